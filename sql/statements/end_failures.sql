-- Of messages that were published. What an operator has locked waits until it is noticed that the message is gone.
delete from outbox.failure f
using (
    select g.bucket, g.id
    from outbox.failure g
    where g.bucket = $1 and g.id = any ($2)
    for update skip locked
) u
where f.bucket = u.bucket and f.id = u.id
