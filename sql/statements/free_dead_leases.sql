-- Their leases need not run out. Leases of other instances, such as the old primary's, end by time only.
update outbox.lease
set relay_id = null,
    expires_at = pg_catalog.clock_timestamp()
where pg_catalog.starts_with(relay_id, $1)
  and relay_id <> all ($2)
