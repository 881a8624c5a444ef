-- A message that cannot be published is seen, tried again, put at the end, or changed, by hand.
create extension outbox_relay;
-- The place in the script is of no interest.
\set SHOW_CONTEXT never
set timezone = 'UTC';
create function stored() returns table (
    bucket integer, id bigint, topic text, partition integer, key text, value text, headers jsonb
) language sql as $$
    select m.bucket, m.id, m.topic, m.partition, convert_from(m.key, 'UTF8'), convert_from(m.value, 'UTF8'),
           outbox.decode_headers(m.headers)
    from outbox.message m order by m.id
$$;
-- There is no broker: what a relay would note is noted by hand.
create procedure fails(id bigint, kind text default 'message', parked boolean default false) language sql as $$
    insert into outbox.failure (bucket, id, kind, attempts, error, first_failed_at, last_failed_at, next_try_at, parked_at)
    select m.bucket, m.id, fails.kind, 5, 'too large', '2026-01-01 00:00:00+00', '2026-01-01 00:01:00+00',
           '2026-01-01 00:02:00+00', case when fails.parked then timestamptz '2026-01-01 00:01:00+00' end
    from outbox.message m where m.id = fails.id
$$;
-- Key order-1 has bucket 6, so has key foobar; 1 to 3 are of order-1, 4 is its message to another topic.
select outbox.enqueue('orders', 'order-1', 'first', '{"h": "v"}', message_id => '00000000-0000-4000-8000-000000000001');
select count(outbox.enqueue('orders', 'order-1', v)) from unnest('{second,third}'::text[]) v;
select outbox.enqueue('audit', 'order-1', 'fourth') is not null as saved;
select outbox.enqueue('orders', 'foobar', 'fifth') is not null as saved;
-- Without a key, with a partition and without; 6 and 7 are of one partition, 8 goes anywhere.
select count(outbox.enqueue('orders', null, v, partition => 6)) from unnest('{sixth,seventh}'::text[]) v;
select outbox.enqueue('orders', null, 'eighth', message_id => '00112233-4455-6677-8899-aabbccddeeff') is not null as saved;
select * from stored();

-- The view: who fails, how often, since when, and how many wait for it.
select attname as column, format_type(atttypid, atttypmod) as type
from pg_attribute where attrelid = 'outbox.parked'::regclass and attnum > 0 order by attnum;
call fails(1);
call fails(6, parked => true);
select * from outbox.parked where id = 1;
select bucket, id, state, attempts, error, since, next_try_at, parked_at, waiting from outbox.parked order by id;
-- A topic that takes nothing holds all of its messages in the bucket, a key of policy block all messages.
update outbox.failure set kind = 'topic' where id = 1;
select id, state, waiting from outbox.parked order by id;
update outbox.failure set kind = 'message' where id = 1;
select outbox.set_topic('orders', 'block') is not null as set;
select id, state, waiting from outbox.parked order by id;
select outbox.reset_topic('orders') is not null as reset;
-- Without a message it means nothing.
begin;
delete from outbox.message where id = 1;
select id from outbox.parked;
rollback;
-- Counted up to a thousand, among the ten thousand of the bucket behind the first that fails.
begin;
select count(outbox.enqueue('orders', 'order-1', 'v')) from generate_series(1, 1100) i;
select id, waiting from outbox.parked where id = 1;
rollback;
begin;
select count(outbox.enqueue('orders', 'foobar', 'v')) from generate_series(1, 10000) i;
select outbox.enqueue('orders', 'order-1', 'too far') is not null as saved;
select id, waiting from outbox.parked where id = 1;
rollback;

-- Tried now. It stays what it is, and its attempts count.
select outbox.retry_now(6, 1);
select id, attempts, first_failed_at, last_failed_at, next_try_at between now() and clock_timestamp() as now, parked_at
from outbox.failure order by id;
select outbox.retry_now(6, 6);
select id, attempts, next_try_at between now() - interval '1 minute' and clock_timestamp() as now, parked_at
from outbox.failure order by id;
select outbox.retry_now(null, 1);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.retry_now(6, null);
select outbox.retry_now(6, 9);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.retry_now(5, 1);
select outbox.retry_now(6, 5);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
-- All of a topic.
update outbox.failure set next_try_at = 'infinity', parked_at = case when id = 6 then now() end;
call fails(4);
select outbox.retry_now('orders');
select id, next_try_at <= clock_timestamp() as now, parked_at from outbox.failure order by id;
select outbox.retry_now('missing');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.retry_now('no topic');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.retry_now(null);
begin;
select outbox.retry_now('audit');
rollback;
select id, next_try_at from outbox.failure where id = 4;
delete from outbox.failure where id in (4, 6);

-- Requeued: the same message with a new id, and a warning for those that now go first.
create temporary table before as select * from outbox.message where id = 1;
begin;
select outbox.requeue(6, 1);
select * from stored();
select id from outbox.failure;
rollback;
select * from stored();
select id from outbox.failure;
-- Nothing of its key behind it: no warning. All but its place is as before.
delete from outbox.message where id in (2, 3);
select outbox.requeue(6, 1);
select * from stored();
select m.topic = b.topic and m.partition is not distinct from b.partition and m.key = b.key and m.value = b.value
       and m.headers = b.headers and m.message_id = b.message_id and m.created_at = b.created_at as same
from outbox.message m, before b where m.message_id = b.message_id;
select id from outbox.failure;
-- Of one partition without a key there is an order too; without both there is none.
call fails(6);
begin;
select outbox.requeue(6, 6);
rollback;
update outbox.message set partition = 5 where id = 7;
select outbox.requeue(6, 6);
call fails(8);
select bucket as was from outbox.message where id = 8;
select outbox.requeue(2, 8);
select * from stored();
-- A key is looked for among the next hundred thousand of the bucket.
truncate outbox.message, outbox.failure;
alter sequence outbox.message_id_seq restart;
select outbox.enqueue('orders', 'order-1', 'v') is not null as saved;
insert into outbox.message (bucket, topic, key, message_id)
select 6, 'orders', case when n <= 2 then 'order-1' else 'foobar' end::bytea, gen_random_uuid() from generate_series(1, 100001) n;
select min(id) as id from outbox.message \gset
call fails(:id);
\set VERBOSITY terse
select outbox.requeue(6, :id) \gset
\set VERBOSITY default
truncate outbox.message, outbox.failure;
alter sequence outbox.message_id_seq restart;

-- With a new bucket count it gets the bucket of that, and goes above the fence with the others of the key.
select outbox.enqueue('orders', 'order-1', 'v') is not null as saved;
call fails(1);
select outbox.set_bucket_count(4);
select outbox.enqueue('orders', 'order-1', 'newer') is not null as saved;
select * from stored();
select outbox.requeue(6, 1);
select * from stored();
select fence_id, rows_left from outbox.pg_stat_bucket_change;
-- In a transaction whose snapshot is older than the change too.
call fails(2);
begin isolation level repeatable read;
select outbox.bucket_count();
\! psql -X -q -At -d regression -c "select outbox.set_bucket_count(8)"
set local client_min_messages = error;
select outbox.requeue(2, 2);
commit;
select * from stored();
truncate outbox.message, outbox.failure;
delete from outbox.bucket_change;

-- Changed: id, bucket and message id stay, and so does its place unless it goes elsewhere.
alter sequence outbox.message_id_seq restart;
select outbox.enqueue('orders', 'order-1', 'first', '{"h": "v"}', message_id => '00000000-0000-4000-8000-000000000001');
select outbox.enqueue('orders', 'order-1', 'second') is not null as saved;
select outbox.enqueue('orders', null, 'third', message_id => '00112233-4455-6677-8899-aabbccddeeff') is not null as saved;
call fails(1);
call fails(3);
create temporary table before_edit as select xmin as version, * from outbox.message;
select outbox.edit(6, 1, headers => '[["b", "1"], ["a", null], ["b", {"base64": "AP8="}]]');
select id from outbox.failure order by id;
call fails(1);
select outbox.edit(6, 1, headers => '{}');
call fails(1);
select outbox.edit(6, 1, 'orders.v2');
select outbox.retry_now(6, 1);
call fails(1);
select outbox.edit(6, 1, partition => 5);
call fails(1);
select outbox.edit(6, 1, 'orders', '{"h": "w"}', 3);
select outbox.edit(2, 3, 'elsewhere');
select * from stored();
-- What a relay has sent of the old row removes nothing.
select m.id, m.message_id = b.message_id as message_id, m.value = b.value as value, m.created_at = b.created_at as created_at,
       m.xmin::text = b.version::text as version
from outbox.message m join before_edit b using (bucket, id) order by m.id;
select id from outbox.failure;

-- What cannot be.
call fails(1);
select outbox.edit(6, 1);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(null, 1, 'orders');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 4, 'orders');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 1, 'no topic');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 1, headers => '{"a": 1}');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 1, headers => 'null');
select outbox.edit(6, 1, partition => -1);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 1, headers => jsonb_build_object('big', repeat('x', 1000000)));
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 1, 'orders', '{"h": "w"}', 3);
-- Headers that nobody can read are replaced, not kept.
begin;
update outbox.message set headers = '\x02' where id = 1;
savepoint s;
select outbox.edit(6, 1, 'audit');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback to s;
select outbox.edit(6, 1, headers => '{"h": "w"}');
rollback;
select outbox.set_topic('orders', partitions => 6);
select outbox.edit(6, 1, partition => 6);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 1, 'orders.v2', partition => 6) is not null as changed;
call fails(1);
select outbox.edit(6, 1, 'orders');
select outbox.reset_topic('orders');
select outbox.requeue(6, 4);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.requeue(null, null);
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- What is not standing still is left alone. It does behind a message of its key, its topic or its bucket, or paused.
truncate outbox.message, outbox.failure;
alter sequence outbox.message_id_seq restart;
select count(outbox.enqueue('orders', k, 'v')) from unnest('{foobar,order-1,order-1,foobar}'::text[]) k;
select outbox.enqueue('audit', 'order-1', 'v') is not null as saved;
create function changeable() returns bigint[] language plpgsql as $$
declare
    result bigint[] := '{}';
    wanted record;
begin
    for wanted in select bucket, id from outbox.message order by id loop
        begin
            perform outbox.lock_held(wanted.bucket, wanted.id);
            result := result || wanted.id;
        exception when object_not_in_prerequisite_state then
        end;
    end loop;
    return result;
end
$$;
select changeable();
select outbox.requeue(6, 3);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 3, 'audit');
call fails(2);
select changeable();
update outbox.failure set kind = 'topic';
select changeable();
update outbox.failure set kind = 'message';
select outbox.set_topic('orders', 'block') is not null as set;
select changeable();
select outbox.reset_topic('orders') is not null as reset;
delete from outbox.failure;
select outbox.pause_topic('audit') is not null as paused;
select changeable();
select outbox.resume_topic('audit') is not null as resumed;
select outbox.pause() is not null as paused;
select changeable();
select outbox.edit(6, 1, headers => '{"h": "while paused"}');
select outbox.requeue(6, 5);
select outbox.resume() is not null as resumed;
select changeable();
update outbox.publishing set stamp = '1.2';
select changeable();
select outbox.resume() is not null as resumed;

-- Without the key, what has the same partition stands behind.
truncate outbox.message;
select count(outbox.enqueue('orders', null, 'v', partition => p)) from unnest('{6,6,14}'::integer[]) p;
select min(id) as id from outbox.message \gset
call fails(:id);
select cardinality(changeable());
truncate outbox.message, outbox.failure;
drop function changeable;

-- All messages of a topic that has a wrong name are put right while it is paused.
alter sequence outbox.message_id_seq restart;
select count(outbox.enqueue('ordres', 'order-1', v)) from unnest('{first,second}'::text[]) v;
call fails(1, kind => 'topic');
begin;
select outbox.pause_topic('ordres');
set local client_min_messages = error;
select outbox.edit(m.bucket, m.id, topic => 'orders') from outbox.message m where m.topic = 'ordres' order by m.id;
select outbox.resume_topic('ordres');
commit;
select * from stored();
select id from outbox.failure;

-- Somebody else has his hands on it: waited for, but not for long, and named.
call fails(1);
begin;
select outbox.skip(6, 1, 'under way') is not null as skipped;
\getenv directory PG_ABS_BUILDDIR
\setenv DIRECTORY :directory
\! echo "select outbox.edit(6, 1, 'audit')" >"$DIRECTORY/edit.sql"; echo "select outbox.retry_now('orders')" >"$DIRECTORY/retry.sql"
\! for name in edit retry; do psql -X -q -At -v VERBOSITY=verbose -v SHOW_CONTEXT=never -d regression -f "$DIRECTORY/$name.sql" >"$DIRECTORY/$name.said" 2>&1 & done; wait
\! cat "$DIRECTORY/edit.said" "$DIRECTORY/retry.said" | sed '/LOCATION:/d; s/^psql.*ERROR: /ERROR: /; s/process [0-9]*/process N/'
rollback;
begin;
select outbox.edit(6, 1, headers => '{"h": "prepared"}') is not null as changed;
prepare transaction 'regress_parked';
select outbox.requeue(6, 1);
rollback prepared 'regress_parked';
-- While the bucket count is about to change as well.
begin;
select outbox.set_bucket_count(16) is not null as changed;
\! psql -X -q -At -v VERBOSITY=verbose -v SHOW_CONTEXT=never -d regression -c "select outbox.requeue(6, 1)" 2>&1 | sed '/^LOCATION/d'
rollback;
begin read only;
select outbox.requeue(6, 1);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;

-- The log tells a DBA on call later what was done, by whom, and to which message; never a payload.
select outbox.enqueue('orders', 'order-1', 'third', message_id => '00000000-0000-4000-8000-000000000003');
update outbox.message set message_id = '00000000-0000-4000-8000-000000000001' where id = 1;
call fails(3, parked => true);
set client_min_messages = log;
select outbox.retry_now(6, 1) is not null as done;
select outbox.retry_now('orders') is not null as done;
select outbox.edit(6, 3, headers => '{"h": "secret"}') is not null as done;
select outbox.edit(6, 3, 'audit', partition => 2) is not null as done;
call fails(3);
select outbox.requeue(6, 3) is not null as done;
select outbox.set_topic('orders', 'dead_letter', 'orders.dead', 3) is not null as done;
select outbox.reset_topic('orders') is not null as done;
select outbox.pause_topic('orders', 'maintenance') is not null as done;
reset client_min_messages;
select outbox.resume_topic('orders') is not null as done;

-- Nobody but the owner, until it is granted; who called is named.
create role regress_parked login;
grant usage on schema outbox to regress_parked;
\c - regress_parked
select outbox.requeue(6, 1);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.edit(6, 1, 'audit');
select outbox.retry_now(6, 1);
select outbox.retry_now('orders');
select outbox.lock_held(6, 1);
select outbox.new_place(null, 1, '00000000-0000-4000-8000-000000000001');
select outbox.check_message('orders', null, null, null, null);
select outbox.encode_headers('{}');
select * from outbox.parked;
\c - postgres
grant execute on function outbox.edit(integer, bigint, text, jsonb, integer), outbox.retry_now(integer, bigint) to regress_parked;
\c - regress_parked
\set SHOW_CONTEXT never
set client_min_messages = log;
select outbox.retry_now(6, 1);
select outbox.edit(6, 1, headers => '{}');
\c - postgres
revoke all on function outbox.edit(integer, bigint, text, jsonb, integer), outbox.retry_now(integer, bigint) from regress_parked;
revoke all on schema outbox from regress_parked;
drop role regress_parked;

-- Headers are stored as enqueue stores them.
select outbox.encode_headers('{}') is null as none, outbox.encode_headers(null) is null as unknown,
       outbox.decode_headers(outbox.encode_headers('[["b", "1"], ["a", null], ["b", {"base64": "AP8="}]]')) as headers;
select outbox.encode_headers('[1]');
\echo SQLSTATE :LAST_ERROR_SQLSTATE

truncate outbox.message;
drop procedure fails;
drop function stored;
drop schema outbox cascade;
