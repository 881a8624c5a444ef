-- Forgets relays that were stopped a lease duration ago or not seen for ten.
delete from outbox.relay
where relay_id <> $1
  and last_seen < pg_catalog.clock_timestamp()
      - pg_catalog.make_interval(secs => case when stopped_at is null then 10 * $2 else $2 end)
