-- What is noted of refused messages, by earlier owners or changed by an operator, and what each is in order with; notes on
-- messages that are gone mean nothing. A message is looked up by itself: a join may be planned to read all dead rows.
select f.bucket, f.id, f.kind = 'topic' as whole_topic, m.topic, m.partition, m.key, f.attempts, f.error,
       greatest(0, extract(epoch from pg_catalog.clock_timestamp() - f.first_failed_at))::double precision as failing_for,
       case when f.parked_at is null
           then greatest(0, extract(epoch from f.next_try_at - pg_catalog.clock_timestamp()))::double precision
       end as wait
from outbox.failure f
cross join lateral (
    select m.topic, m.partition, m.key from outbox.message m where m.bucket = f.bucket and m.id = f.id limit 1
) m
where f.bucket = any ($1)
order by f.bucket, f.id
