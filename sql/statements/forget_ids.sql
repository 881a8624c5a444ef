delete from outbox.once
where message_id = any (array(
    select o.message_id from outbox.once o where o.keep_until < clock_timestamp()
    order by o.keep_until limit 500 for update skip locked
))
