insert into outbox.once as o (message_id, stored_at, keep_until)
select $1, t.now, t.now + $2 from clock_timestamp() t (now)
on conflict (message_id) do update
set stored_at = excluded.stored_at, keep_until = excluded.keep_until
where o.stored_at <= excluded.stored_at - $2
