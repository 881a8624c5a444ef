select bucket, relay_id, token, expires_at > pg_catalog.clock_timestamp() as unexpired
from outbox.lease
where bucket < $1
order by bucket
