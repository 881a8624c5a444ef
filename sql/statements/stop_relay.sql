-- Before the leases are freed: if the rest is cut short, leases run out, instead of being free and reserved for a ghost.
update outbox.relay
set stopped_at = pg_catalog.clock_timestamp(),
    last_seen = greatest(last_seen, pg_catalog.clock_timestamp())
where relay_id = $1
