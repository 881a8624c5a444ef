-- The same message id twice within a time is stored once, and the caller is told.
\pset null '<null>'
create extension outbox_relay;
\set id '''00000000-0000-4000-8000-000000000001''::uuid'

-- Stored, then not; with another id it is another message.
select outbox.enqueue_once('once', 'k', 'first', :id);
select outbox.enqueue_once('once', 'k', 'second', :id);
select outbox.enqueue_once('once', 'k', 'other', gen_random_uuid());
-- The id alone decides, whatever the message is.
select outbox.enqueue_once('elsewhere', null, null, :id);
select convert_from(value, 'UTF8') as value, message_id = :id as with_this_id from outbox.message order by id;
truncate outbox.message, outbox.once;

-- All five combinations of types, and all arguments.
select outbox.enqueue_once('bytea-bytea', '\x00ff'::bytea, '\xff00'::bytea, gen_random_uuid());
select outbox.enqueue_once('text-text', 'key'::text, 'value'::text, gen_random_uuid());
select outbox.enqueue_once('text-jsonb', 'key'::text, '{"a": 1}'::jsonb, gen_random_uuid());
select outbox.enqueue_once('text-json', 'key'::text, '{"a":  1}'::json, gen_random_uuid());
select outbox.enqueue_once('text-bytea', 'key'::text, '\x01'::bytea, gen_random_uuid());
select outbox.enqueue_once('all', 'key', 'value', :id, '{"h": "1"}', 13, '1 hour');
select topic, bucket = outbox.bucket_for(key, partition, message_id) as bucket, partition, key, value, outbox.decode_headers(headers) as headers
from outbox.message order by id;
select keep_until - stored_at as kept, count(*) from outbox.once group by 1 order by 1;
truncate outbox.message, outbox.once;

-- Rolled back, it was not stored.
begin;
select outbox.enqueue_once('once', 'k', 'gone', :id);
rollback;
select outbox.enqueue_once('once', 'k', 'kept', :id);
begin;
savepoint s;
select outbox.enqueue_once('once', 'k', 'gone', '00000000-0000-4000-8000-000000000002');
rollback to s;
select outbox.enqueue_once('once', 'k', 'kept', '00000000-0000-4000-8000-000000000002');
commit;
select convert_from(value, 'UTF8') as value from outbox.message order by id;

-- Published and gone from outbox.message, it is still remembered.
truncate outbox.message;
select outbox.enqueue_once('once', 'k', 'again', :id);

-- After the time it is stored anew, and remembered anew.
update outbox.once set stored_at = stored_at - interval '25 hours', keep_until = keep_until - interval '25 hours';
select outbox.enqueue_once('once', 'k', 'within two days', :id, within => '2 days');
select outbox.enqueue_once('once', 'k', 'after a day', :id);
select outbox.enqueue_once('once', 'k', 'again', :id);
select convert_from(value, 'UTF8') as value from outbox.message order by id;
select count(*) from outbox.once where message_id = :id and stored_at > now() - interval '1 minute';
truncate outbox.message, outbox.once;

-- Only messages that came this way are remembered, and nobody else pays for it.
select outbox.enqueue('once', 'k', 'plain', message_id => :id);
select count(*) from outbox.once;
select outbox.enqueue_once('once', 'k', 'once', :id);
truncate outbox.message, outbox.once;

-- What has run out is removed by later calls, a few at a time; what has not is kept.
insert into outbox.once select gen_random_uuid(), now() - interval '2 days', now() - interval '1 day' from generate_series(1, 2000);
insert into outbox.once select gen_random_uuid(), now(), now() + interval '1 day' from generate_series(1, 10);
do $$
begin
    for i in 1..400 loop
        perform outbox.enqueue_once('once', 'k', 'v', gen_random_uuid());
        commit;
    end loop;
end
$$;
select count(*) filter (where keep_until < now()) as run_out, count(*) filter (where keep_until > now()) as kept from outbox.once;
truncate outbox.message, outbox.once;
-- A transaction with an older snapshot leaves that to others.
insert into outbox.once select gen_random_uuid(), now() - interval '2 days', now() - interval '1 day' from generate_series(1, 10);
begin isolation level repeatable read;
select count(outbox.enqueue_once('once', 'k', 'v', gen_random_uuid())) from generate_series(1, 300);
commit;
select count(*) filter (where keep_until < now()) as run_out from outbox.once;
truncate outbox.message, outbox.once;

-- Of many in one statement each is stored once; prepared transactions remember too.
select n, outbox.enqueue_once('once', 'k', 'v', ('00000000-0000-4000-8000-00000000000' || n)::uuid) as stored from unnest(array[1, 2, 1, 3, 2]) n;
begin;
select outbox.enqueue_once('once', 'k', 'v', '00000000-0000-4000-8000-000000000009');
prepare transaction 'once';
commit prepared 'once';
select outbox.enqueue_once('once', 'k', 'v', '00000000-0000-4000-8000-000000000009');
truncate outbox.message, outbox.once;

-- What is refused is not remembered: id, time, and whatever outbox.enqueue refuses.
select outbox.enqueue_once('once', 'k', 'v', null);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_once('once', 'k', 'v', :id, within => '0');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_once('once', 'k', 'v', :id, within => '-1 day');
select outbox.enqueue_once('once', 'k', 'v', :id, within => null);
select outbox.enqueue_once('once', 'k', 'v', :id, within => '367 days');
select outbox.enqueue_once('once', 'k', 'v', :id, within => '100000000 years');
select outbox.enqueue_once('not good', 'k', 'v', :id);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_once('once', 'k', 'v', :id, partition => -1);
begin read only;
select outbox.enqueue_once('once', 'k', 'v', :id);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;
select count(*) from outbox.once;
select outbox.enqueue_once('once', 'k', 'v', :id, within => '366 days');

-- EXECUTE is all that it takes.
create role regress_once_app;
grant usage on schema outbox to regress_once_app;
grant execute on function outbox.enqueue_once(text, text, text, uuid, jsonb, integer, interval) to regress_once_app;
set role regress_once_app;
do $$
begin
    for i in 1..200 loop
        perform outbox.enqueue_once('once', 'k', 'v', gen_random_uuid());
        commit;
    end loop;
end
$$;
select * from outbox.once;
reset role;
select count(*) from outbox.message;
truncate outbox.message;
drop extension outbox_relay;
drop schema outbox;
drop role regress_once_app;
