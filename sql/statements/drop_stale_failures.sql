-- Waits for nobody: what an operator has locked is looked at again later.
delete from outbox.failure f
using (
    select g.bucket, g.id
    from outbox.failure g
    where g.bucket = any ($1)
      and not exists (select from outbox.message m where m.bucket = g.bucket and m.id = g.id)
    for update skip locked
) u
where f.bucket = u.bucket and f.id = u.id
