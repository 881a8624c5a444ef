-- Makes all that is measured on the clock older by so many seconds, or younger: then it is as if the clock was set back.
with lease as (
    update outbox.lease set expires_at = expires_at - pg_catalog.make_interval(secs => $1)
), relay as (
    update outbox.relay
    set last_seen = last_seen - pg_catalog.make_interval(secs => $1),
        stopped_at = stopped_at - pg_catalog.make_interval(secs => $1)
)
update outbox.failure
set next_try_at = next_try_at - pg_catalog.make_interval(secs => $1),
    first_failed_at = first_failed_at - pg_catalog.make_interval(secs => $1)
