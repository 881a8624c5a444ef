update outbox.lease
set relay_id = null,
    expires_at = pg_catalog.clock_timestamp()
where relay_id = $1
