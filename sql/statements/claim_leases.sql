update outbox.lease
set relay_id = $1,
    token = token + 1,
    expires_at = greatest(expires_at, pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3))
where bucket = any ($2)
  and (relay_id is null or expires_at <= pg_catalog.clock_timestamp())
returning bucket, token
