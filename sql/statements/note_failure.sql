insert into outbox.failure as f (bucket, id, attempts, error, next_try_at)
values ($1, $2, $3, $4, pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $5))
on conflict (bucket, id) do update
    set attempts = excluded.attempts,
        error = excluded.error,
        last_failed_at = pg_catalog.clock_timestamp(),
        next_try_at = excluded.next_try_at
