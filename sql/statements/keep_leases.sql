-- Only forward: a clock that was set back does not shorten a lease.
update outbox.lease l
set expires_at = greatest(l.expires_at, pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $4))
from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3)) k (bucket, token)
where l.bucket = k.bucket
  and l.token = k.token
  and l.relay_id = $1
returning l.bucket, l.token
