-- What an earlier owner noted of the first refused message of each bucket; notes on messages that are gone mean nothing.
select distinct on (f.bucket)
       f.bucket, f.id, f.attempts, f.error,
       greatest(0, extract(epoch from f.next_try_at - pg_catalog.clock_timestamp()))::double precision as wait
from outbox.failure f
where f.bucket = any ($1)
  and exists (select from outbox.message m where m.bucket = f.bucket and m.id = f.id)
order by f.bucket, f.id
