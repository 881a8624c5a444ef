-- Says that this relay lives. Locks its row, so that a stop and a claim of the same relay cannot pass each other.
-- Touches nothing once the relay is marked as stopped; then it may not claim either.
insert into outbox.relay as r (relay_id, pid)
values ($1, $2)
on conflict (relay_id) do update
    set last_seen = greatest(r.last_seen, pg_catalog.clock_timestamp())
    where r.stopped_at is null
