-- Waits for nobody: a note that an operator has locked, or is about to remove, is left to him, and comes with the next attempt.
-- parked_at tells since when nobody tries any more: the relay gives no time of a next attempt ($6 is null) once it parks.
-- The lease ($7, $8) must still hold: the notes of the new owner count. The note that this one takes the place of ($9, may be
-- null) ends.
with held as (
    select from outbox.lease l
    where l.bucket = $1 and l.relay_id = $7 and l.token = $8
), unlocked as (
    select f.bucket, f.id
    from outbox.failure f
    where f.bucket = $1 and f.id = $2 and exists (select from held)
    for update skip locked
), renewed as (
    update outbox.failure f
    set kind = $3,
        attempts = $4,
        error = $5,
        last_failed_at = pg_catalog.clock_timestamp(),
        next_try_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => coalesce($6, 0)),
        parked_at = case when $6 is null then coalesce(f.parked_at, pg_catalog.clock_timestamp()) end
    from unlocked u
    where f.bucket = u.bucket and f.id = u.id
), replaced as (
    delete from outbox.failure f
    using (
        select g.bucket, g.id
        from outbox.failure g
        where g.bucket = $1 and g.id = $9 and exists (select from held)
        for update skip locked
    ) u
    where f.bucket = u.bucket and f.id = u.id
)
insert into outbox.failure (bucket, id, kind, attempts, error, next_try_at, parked_at)
select $1, $2, $3, $4, $5,
       pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => coalesce($6, 0)),
       case when $6 is null then pg_catalog.clock_timestamp() end
from held
where not exists (select from outbox.failure f where f.bucket = $1 and f.id = $2)
on conflict do nothing
