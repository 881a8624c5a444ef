-- What an earlier owner noted of the first message of each bucket; notes on messages that are gone mean nothing.
select f.bucket, f.id, f.attempts, f.error,
       greatest(0, extract(epoch from f.next_try_at - pg_catalog.clock_timestamp()))::double precision as wait
from outbox.failure f
where f.bucket = any ($1)
  and f.id = (select m.id from outbox.message m where m.bucket = f.bucket order by m.id limit 1)
