-- parked_at tells since when nobody tries any more: the relay gives no time of a next attempt ($6 is null) once it parks.
insert into outbox.failure as f (bucket, id, kind, attempts, error, next_try_at, parked_at)
values (
    $1, $2, $3, $4, $5,
    pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => coalesce($6, 0)),
    case when $6 is null then pg_catalog.clock_timestamp() end
)
on conflict (bucket, id) do update
    set kind = excluded.kind,
        attempts = excluded.attempts,
        error = excluded.error,
        last_failed_at = pg_catalog.clock_timestamp(),
        next_try_at = excluded.next_try_at,
        parked_at = case when excluded.parked_at is not null then coalesce(f.parked_at, excluded.parked_at) end
