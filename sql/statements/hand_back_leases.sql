update outbox.lease l
set relay_id = null,
    expires_at = pg_catalog.clock_timestamp()
from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3)) h (bucket, token)
where l.bucket = h.bucket
  and l.token = h.token
  and l.relay_id = $1
