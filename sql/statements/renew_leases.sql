-- Extends what has not expired and nothing else. The caller rolls back unless every lease was extended.
update outbox.lease l
set expires_at = greatest(l.expires_at, pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $4))
from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3)) k (bucket, token)
where l.bucket = k.bucket
  and l.token = k.token
  and l.relay_id = $1
  and l.expires_at > pg_catalog.clock_timestamp()
