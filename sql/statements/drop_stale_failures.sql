-- Waits for nobody: what an operator has locked is looked at again later. A message is looked up by itself: a join may be
-- planned to read all dead rows.
delete from outbox.failure f
using (
    select g.bucket, g.id
    from outbox.failure g
    where g.bucket = any ($1)
      and (select true from outbox.message m where m.bucket = g.bucket and m.id = g.id limit 1) is null
    for update skip locked
) u
where f.bucket = u.bucket and f.id = u.id
