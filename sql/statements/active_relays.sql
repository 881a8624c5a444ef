-- Who counts for the fair share. Strictly later: at the moment a lease ends, its relay no longer counts either.
select relay_id
from outbox.relay
where stopped_at is null
  and last_seen > pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1)
