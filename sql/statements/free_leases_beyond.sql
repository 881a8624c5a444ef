-- After the bucket count was lowered and what lay beyond is published.
update outbox.lease
set relay_id = null,
    expires_at = pg_catalog.clock_timestamp()
where relay_id = $1
  and bucket >= $2
