-- Relays of this server instance ($1) that its shared memory does not know ($2) are dead: of an earlier boot, or crashed.
update outbox.relay
set stopped_at = pg_catalog.clock_timestamp()
where pg_catalog.starts_with(relay_id, $1)
  and relay_id <> all ($2)
  and stopped_at is null
