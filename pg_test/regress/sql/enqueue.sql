-- outbox.enqueue saves what it was given, in the caller's transaction, and returns the message id.
\pset null '<null>'
create extension outbox_relay;

-- What is stored, but for what differs at each run.
create view saved as
select m.id, m.topic, m.partition, m.key, m.value, outbox.decode_headers(m.headers) as headers from outbox.message m;

-- All five combinations of types.
select pg_typeof(outbox.enqueue('bytea-bytea', '\x00ff'::bytea, '\xff00'::bytea));
select pg_typeof(outbox.enqueue('text-text', 'key'::text, 'value'::text));
select pg_typeof(outbox.enqueue('text-jsonb', 'key'::text, '{"a": 1}'::jsonb));
select pg_typeof(outbox.enqueue('text-json', 'key'::text, '{"a": 1}'::json));
select pg_typeof(outbox.enqueue('text-bytea', 'key'::text, '\x01'::bytea));
select * from saved order by id;
truncate outbox.message;

-- Untyped literals are text, in any place that leaves a choice.
select outbox.enqueue('literals', '42', '\x00') as id \gset
select outbox.enqueue('literals', '42', '{"total":  7}'::jsonb) as id \gset
select outbox.enqueue('literals', null, null) as id \gset
select outbox.enqueue('literals', '\x00'::bytea, '\x01') as id \gset
select outbox.enqueue('literals', '42', 'value', '{"a": "b"}', 3) as id \gset
select topic, key, value, partition, outbox.decode_headers(headers) as headers from outbox.message order by id;
truncate outbox.message;

-- Arguments by name, in any order and number.
select outbox.enqueue(topic => 'names', key => 'k', value => 'v') as id \gset
select outbox.enqueue(value => '{}'::jsonb, key => 'k', topic => 'names', partition => 2) as id \gset
select outbox.enqueue('names', key => 'k', value => 'v', headers => '[["h", "1"]]') as id \gset
select outbox.enqueue('names', 'k', 'v', message_id => '00000000-0000-4000-8000-000000000001');
select topic, key, value, partition, outbox.decode_headers(headers) as headers from outbox.message order by id;
truncate outbox.message;

-- Null, empty and binary: three different things, for key and value.
select outbox.enqueue('nothing', null::text, null::text) as id \gset
select outbox.enqueue('nothing', ''::text, ''::text) as id \gset
select outbox.enqueue('nothing', null::bytea, null::bytea) as id \gset
select outbox.enqueue('nothing', ''::bytea, ''::bytea) as id \gset
select outbox.enqueue('nothing', 'k'::text, null::jsonb) as id \gset
select outbox.enqueue('nothing', 'k'::text, null::json) as id \gset
select outbox.enqueue('nothing', 'k'::text, null::bytea) as id \gset
select outbox.enqueue('nothing', '\x000102fdfeff'::bytea, '\x00'::bytea) as id \gset
select key, value, key is null as keyless, value is null as tombstone from outbox.message order by id;
truncate outbox.message;

-- The null of JSON is four bytes, not a tombstone.
select outbox.enqueue('null', 'k', 'null'::jsonb) as id \gset
select outbox.enqueue('null', 'k', 'null'::json) as id \gset
select convert_from(value, 'UTF8') as value from outbox.message order by id;
truncate outbox.message;

-- jsonb arrives in its text form, json as it was written.
select outbox.enqueue('json', 'k', '{"b":1.50, "a" : [1,  2], "a": "ü\u00fc"}'::jsonb) as id \gset
select outbox.enqueue('json', 'k', '{"b":1.50, "a" : [1,  2], "a": "ü\u00fc"}'::json) as id \gset
select outbox.enqueue('json', 'k', '"text"'::jsonb) as id \gset
select convert_from(value, 'UTF8') as value from outbox.message order by id;
truncate outbox.message;

-- Values that are stored compressed or out of line are read whole.
create table big (value text, json jsonb, bytes bytea);
insert into big
select string_agg(md5(i::text), ''), jsonb_object_agg(i::text, md5(i::text)), string_agg(decode(md5(i::text), 'hex'), '')
from generate_series(1, 4000) i;
insert into big select repeat('x', 100000), to_jsonb(repeat('x', 100000)), repeat('x', 100000)::bytea;
select count(outbox.enqueue('big', 'text', value)), count(outbox.enqueue('big', 'jsonb', json)),
       count(outbox.enqueue('big', 'bytea', bytes)), count(outbox.enqueue('big', bytes, bytes)) from big;
select count(*) from outbox.message m
where exists (
    select from big b
    where m.value = case m.key
        when 'text' then convert_to(b.value, 'UTF8')
        when 'jsonb' then convert_to(b.json::text, 'UTF8')
        when 'bytea' then b.bytes
    end
);
select count(*) from outbox.message m join big b on m.key = b.bytes and m.value = b.bytes;
drop table big;
truncate outbox.message;

-- The id that is returned is the one that is stored: made at random, or as given.
select outbox.enqueue('id', 'k', 'v') as id \gset
select count(*) from outbox.message where message_id = :'id';
select substr(:'id', 15, 1) as version;
select count(distinct message_id) from outbox.message;
select outbox.enqueue('id', 'k', 'v', message_id => '00112233-4455-6677-8899-AABBCCDDEEFF');
select count(*) from outbox.message where message_id = '00112233-4455-6677-8899-aabbccddeeff';
-- Whoever repeats an id says that it is the same message: consumers drop the copy, the outbox doesn't.
select outbox.enqueue('id', 'k', 'v', message_id => '00112233-4455-6677-8899-AABBCCDDEEFF');
select count(*) from outbox.message where message_id = '00112233-4455-6677-8899-aabbccddeeff';

-- A null for an optional argument is as good as none.
select outbox.enqueue('id', 'k', 'v', null, null, null) as id \gset
select headers, partition, message_id is not null as identified from outbox.message order by id desc limit 1;

-- created_at is the time of the call, not of the transaction.
begin;
select outbox.enqueue('time', 'k', 'v') as id \gset
select created_at > now() and created_at <= clock_timestamp() as time_of_call from outbox.message where topic = 'time';
commit;
truncate outbox.message;

-- Ids of one session grow, in every bucket.
select count(outbox.enqueue('order', (i % 5)::text, i::text)) from generate_series(1, 100) i;
select bool_and(id > previous) as grows
from (select id, lag(id, 1, 0) over (order by convert_from(value, 'UTF8')::int) as previous from outbox.message) m;
truncate outbox.message;

-- Rolled-back work leaves nothing: transaction, savepoint, exception.
begin;
select outbox.enqueue('rollback', 'k', 'gone') as id \gset
rollback;
begin;
select outbox.enqueue('rollback', 'k', 'before') as id \gset
savepoint s;
select outbox.enqueue('rollback', 'k', 'gone') as id \gset
rollback to s;
select outbox.enqueue('rollback', 'k', 'after') as id \gset
savepoint t;
select outbox.enqueue('rollback', 'k', 'released') as id \gset
release t;
commit;
do $$
begin
    begin
        perform outbox.enqueue('rollback', 'k', 'gone');
        raise exception 'no';
    exception when raise_exception then
        perform outbox.enqueue('rollback', 'k', 'handled');
    end;
end
$$;
select convert_from(value, 'UTF8') as value from outbox.message order by id;
truncate outbox.message;

-- From a trigger, with what the row holds.
create table orders (id int primary key, total numeric);
create function announce() returns trigger language plpgsql as $$
begin
    perform outbox.enqueue('orders', new.id::text, jsonb_build_object('op', tg_op, 'total', new.total));
    return new;
end
$$;
create trigger announce after insert or update on orders for each row execute function announce();
insert into orders values (1, 10), (2, 20);
update orders set total = total + 1 where id = 2;
insert into orders values (3, 30), (1, 40);
select convert_from(key, 'UTF8') as key, convert_from(value, 'UTF8') as value from outbox.message order by id;
drop table orders;
drop function announce;
truncate outbox.message;

-- From functions of SQL, from a prepared statement, from a cursor, from COPY.
create function from_sql(text) returns uuid language sql as $$ select outbox.enqueue('sql', $1, $1) $$;
select from_sql('function') as id \gset
drop function from_sql;
prepare from_prepared (text, jsonb) as select outbox.enqueue('sql', $1, $2) is not null as saved;
execute from_prepared ('prepared', '1');
execute from_prepared ('prepared', '2');
execute from_prepared ('prepared', null);
deallocate from_prepared;
begin;
declare c cursor for select outbox.enqueue('sql', 'cursor', i::text) is not null as saved from generate_series(1, 10) i;
fetch 2 from c;
commit;
copy (select outbox.enqueue('sql', 'copy', i::text) is not null from generate_series(1, 2) i) to stdout;
select convert_from(key, 'UTF8') as key, convert_from(value, 'UTF8') as value from outbox.message order by id;
truncate outbox.message;

-- The plan that a session keeps outlives a change of the table and a new extension.
select outbox.enqueue('plan', 'k', 'before') as id \gset
alter table outbox.message set (fillfactor = 90);
select outbox.enqueue('plan', 'k', 'altered') as id \gset
truncate outbox.message;
drop view saved;
drop extension outbox_relay;
create extension outbox_relay;
select outbox.enqueue('plan', 'k', 'created') as id \gset
select convert_from(value, 'UTF8') as value from outbox.message;
truncate outbox.message;

-- Never in a parallel worker, however much the planner would like to.
create table many as select i from generate_series(1, 1000) i;
analyze many;
begin;
set local force_parallel_mode = on;
set local parallel_setup_cost = 0;
set local parallel_tuple_cost = 0;
set local min_parallel_table_scan_size = 0;
explain (costs off) select count(i) from many;
explain (costs off) select count(outbox.enqueue('parallel', i::text, 'v')) from many;
select count(outbox.enqueue('parallel', i::text, 'v')) from many;
select count(*) from outbox.message;
rollback;
drop table many;

-- In every isolation level.
begin isolation level repeatable read;
select count(*) from outbox.message;
select outbox.enqueue('isolation', 'k', 'repeatable read') as id \gset
commit;
begin isolation level serializable;
select outbox.enqueue('isolation', 'k', 'serializable') as id \gset
commit;
select convert_from(value, 'UTF8') as value from outbox.message order by id;
truncate outbox.message;

-- A transaction that may not write may not enqueue.
begin read only;
select outbox.enqueue('read-only', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;

-- Objects that the caller made are not taken for ours, whatever the search path.
create schema hostile;
create table hostile.message (like outbox.message);
create table hostile.setting (name text, value text);
insert into hostile.setting values ('bucket_count', '1');
create function hostile.trap() returns void language plpgsql as $$ begin raise exception 'trapped'; end $$;
create function hostile.nextval(text) returns bigint language plpgsql as $$ begin raise exception 'trapped'; end $$;
create function hostile.clock_timestamp() returns timestamptz language plpgsql as $$ begin raise exception 'trapped'; end $$;
create function hostile.gen_random_uuid() returns uuid language plpgsql as $$ begin raise exception 'trapped'; end $$;
create function hostile.equal(int, int) returns bool language plpgsql as $$ begin raise exception 'trapped'; end $$;
create operator hostile.= (leftarg = int, rightarg = int, function = hostile.equal);
-- A new session, for nothing must be planned already when the trap is set.
\c -
create temporary table message (like outbox.message);
create temporary table setting (name text, value text);
set search_path = hostile, pg_temp, outbox, pg_catalog;
select clock_timestamp();
select enqueue('hostile', 'order-1', 'v') as id \gset
select bucket_count(), version() is not null as version;
select count(*) from outbox.pg_stat_bucket;
reset search_path;
select bucket, topic from outbox.message;
select (select count(*) from hostile.message) + (select count(*) from pg_temp.message) as strays;
drop table pg_temp.message, pg_temp.setting;
set client_min_messages = warning;
drop schema hostile cascade;
reset client_min_messages;

truncate outbox.message;
drop schema outbox cascade;
