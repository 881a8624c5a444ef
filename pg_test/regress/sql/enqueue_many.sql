-- Many messages at a time: as arrays, as an aggregate over a query's rows, and outbox.enqueue over a query's rows.
\pset null '<null>'
create extension outbox_relay;
create view saved as
select m.topic, m.partition, convert_from(m.key, 'UTF8') as key, convert_from(m.value, 'UTF8') as value,
       outbox.decode_headers(m.headers) as headers
from outbox.message m order by m.id;

-- outbox.enqueue saves a message for each row that a query gives.
create table orders (id integer primary key, total numeric);
insert into orders select i, 10 * i from generate_series(1, 5) i;
select count(outbox.enqueue('orders', id::text, to_jsonb(orders))) from orders;
select * from saved;
truncate outbox.message;

-- All five combinations of types, with one topic and with a topic for each. Ids come back in the order of the arrays.
select cardinality(outbox.enqueue_many('bytea-bytea', array['\x00ff', '']::bytea[], array['\xff00', null]::bytea[]));
select cardinality(outbox.enqueue_many('text-text', array['a', null], array['v', '']));
select cardinality(outbox.enqueue_many('text-jsonb', array['a'], array['{"a": 1}']::jsonb[]));
select cardinality(outbox.enqueue_many('text-json', array['a'], array['{"a":  1}']::json[]));
select cardinality(outbox.enqueue_many('text-bytea', array['a'], array['\x01']::bytea[]));
select cardinality(outbox.enqueue_many(array['t1', 't2'], array['\x00ff', '']::bytea[], array['\xff00', null]::bytea[]));
select cardinality(outbox.enqueue_many(array['t1', 't2'], array['a', null], array['v', '']));
select cardinality(outbox.enqueue_many(array['t1'], array['a'], array['{"a": 1}']::jsonb[]));
select cardinality(outbox.enqueue_many(array['t1'], array['a'], array['{"a":  1}']::json[]));
select cardinality(outbox.enqueue_many(array['t1'], array['a'], array['\x01']::bytea[]));
select topic, key, value from outbox.message order by id;
select outbox.enqueue_many('ids', array['k', 'k', 'k'], null::text[],
                           message_ids => array['00000000-0000-4000-8000-000000000002', null, '00000000-0000-4000-8000-000000000001']::uuid[]) as ids \gset
select (:'ids'::uuid[])[1] as first, (:'ids'::uuid[])[3] as third;
select array_agg(message_id order by id) = :'ids'::uuid[] as in_order, count(distinct message_id) from outbox.message where topic = 'ids';
truncate outbox.message;

-- What is stored is what outbox.enqueue stores: buckets, headers, partitions, bytes, time.
select cardinality(outbox.enqueue_many(
    'many', array['order-1', 'foobar', null, '', 'k'], array['a', 'b', 'c', null, ''],
    headers => array['{"h": "1"}', null, '[["a", null], ["a", {"base64": "AP8="}]]', '[]', '{}']::jsonb[],
    partitions => array[null, 13, null, null, 5],
    message_ids => array[null, null, '00112233-4455-6677-8899-aabbccddeeff', null, null]::uuid[]
));
select outbox.enqueue('one', 'order-1', 'a', '{"h": "1"}') as id \gset
select outbox.enqueue('one', 'foobar', 'b', null, 13) as id \gset
select outbox.enqueue('one', null, 'c', '[["a", null], ["a", {"base64": "AP8="}]]', null, '00112233-4455-6677-8899-aabbccddeeff') as id \gset
select outbox.enqueue('one', '', null, '[]') as id \gset
select outbox.enqueue('one', 'k', '', '{}', 5) as id \gset
select count(*) as same
from (select *, row_number() over (partition by topic order by id) n from outbox.message) a
join (select *, row_number() over (partition by topic order by id) n from outbox.message) b using (n)
where a.topic = 'many' and b.topic = 'one' and a.bucket = b.bucket
  and (a.partition, a.key, a.value, a.headers) is not distinct from (b.partition, b.key, b.value, b.headers);
select bool_and(created_at between now() - interval '1 minute' and clock_timestamp()) as time_of_call from outbox.message;
truncate outbox.message;

-- Ids follow the order of the arrays, over any number of rows and pages; large values are stored out of line.
select cardinality(outbox.enqueue_many('order', array_agg(i::text order by i), array_agg(i::text order by i)))
from generate_series(1, 5000) i;
select count(*), bool_and(id > previous) as grows
from (select id, lag(id, 1, 0) over (order by convert_from(value, 'UTF8')::int) as previous from outbox.message) m;
set enable_seqscan = off;
select count(*) from generate_series(0, 7) b, lateral (select from outbox.message m where m.bucket = b) found;
reset enable_seqscan;
truncate outbox.message;
create table big as select i, string_agg(md5((i * j)::text), '') as value from generate_series(1, 20) i, generate_series(1, 3000) j group by i;
select cardinality(outbox.enqueue_many('big', array_agg(i::text order by i), array_agg(value order by i))) from big;
select outbox.enqueue_agg('big', i::text, value order by i) from big;
select count(*) from outbox.message m join big b on b.i = convert_from(m.key, 'UTF8')::int and m.value = convert_to(b.value, 'UTF8');
drop table big;
truncate outbox.message;

-- None at all.
select outbox.enqueue_many('none', array[]::text[], array[]::text[]);
select outbox.enqueue_many(array[]::text[], null::text[], null::text[]);
select count(*) from outbox.message;

-- A null array leaves that part out; keys alone make tombstones, values alone keyless messages.
select cardinality(outbox.enqueue_many('tombstones', array['a', 'b'], null::text[]));
select cardinality(outbox.enqueue_many('keyless', null::text[], array['a', 'b']));
select * from saved;
truncate outbox.message;

-- Arrays must agree in length, have one dimension, and there must be one.
select outbox.enqueue_many('orders', array['a', 'b'], array['c']);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_many('orders', null::text[], array['c'], partitions => array[1, 2, 3]);
select outbox.enqueue_many(array['t', 't'], array['c'], array['c']);
select outbox.enqueue_many('orders', array[['a', 'b']], array['c', 'd']);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_many('orders', null::text[], null::text[]);
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Literals without a type could be any array: better no answer than a wrong one.
select outbox.enqueue_many('orders', '{a,b}', '{c,d}');
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- One bad message refuses the call, and the error says which.
select outbox.enqueue_many(null, array['a'], array['c']);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_many(array['good', 'good', 'not good'], array['a', 'b', 'c'], array['a', 'b', 'c']);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_many(array['good', null], array['a', 'b'], array['a', 'b']);
select outbox.enqueue_many('orders', array['a', 'b'], array['c', 'd'], partitions => array[0, -1]);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_many('orders', array['a', 'b'], array['c', 'd'], headers => array['{}', '{"h": 1}']::jsonb[]);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_many('orders', array_agg(i::text), array_agg(repeat('x', case i when 700 then 1000001 else 1 end))) from generate_series(1, 1000) i;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select count(*) from outbox.message;

-- The aggregate takes the rows of the caller's query, in their order, and gives their number.
select outbox.enqueue_agg('orders', id::text, to_jsonb(orders) order by id desc) from orders;
select * from saved;
truncate outbox.message;

-- With headers, partition and message id; of all types that outbox.enqueue takes, and literals.
select outbox.enqueue_agg('agg', 'k', 'v', '{"h": "1"}') from generate_series(1, 2);
select outbox.enqueue_agg('agg', 'k'::text, '{"a": 1}'::jsonb, null, 3) from generate_series(1, 2);
select outbox.enqueue_agg('agg', 'k'::varchar, '{"a":  1}'::json, null, null, ('00000000-0000-4000-8000-00000000000' || i)::uuid) from generate_series(1, 2) i;
select outbox.enqueue_agg('agg', '\x6b'::bytea, '\x76'::bytea) from generate_series(1, 2);
select outbox.enqueue_agg('agg', null, 'v') from generate_series(1, 1);
select outbox.enqueue_agg('agg', 'k', null) from generate_series(1, 1);
create domain label as text;
select outbox.enqueue_agg('agg', 'k'::label, 'v'::label) from generate_series(1, 1);
drop domain label;
select * from saved;
select count(*) from outbox.message where message_id::text like '00000000-0000-4000-8000-00000000000_';
truncate outbox.message;
select outbox.enqueue_agg('agg', id, to_jsonb(orders)) from orders;
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- More than it gathers at a time, in groups, without rows, of distinct rows, of some rows.
select outbox.enqueue_agg('agg', i::text, i::text order by i) from generate_series(1, 2500) i;
select count(*), bool_and(id > previous) as grows
from (select id, lag(id, 1, 0) over (order by convert_from(value, 'UTF8')::int) as previous from outbox.message) m;
truncate outbox.message;
select i % 3 as rest, outbox.enqueue_agg('agg-' || i % 3, i::text, i::text) from generate_series(1, 10) i group by 1 order by 1;
select outbox.enqueue_agg('agg', id::text, total::text) from orders where false;
select outbox.enqueue_agg(distinct 'agg', (i % 2)::text, 'v'::text) from generate_series(1, 10) i;
select outbox.enqueue_agg('agg', i::text, 'v') filter (where i > 8) from generate_series(1, 10) i;
select topic, count(*) from outbox.message group by topic order by topic;
truncate outbox.message;

-- It is no function without effects that the planner may leave out, evaluate once for two, or split.
select count(*) from (select outbox.enqueue_agg('agg', i::text, 'unseen') from generate_series(1, 3) i) unseen;
select outbox.enqueue_agg('agg', i::text, 'twice'), outbox.enqueue_agg('agg', i::text, 'twice') from generate_series(1, 3) i;
select convert_from(value, 'UTF8') as value, count(*) from outbox.message group by 1 order by 1;
truncate outbox.message;
select outbox.enqueue_agg('agg', i::text, 'v') over (order by i) from generate_series(1, 3) i;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select provolatile, proparallel, count(*) from pg_proc where pronamespace = 'outbox'::regnamespace and proname ~ '^enqueue_(many|agg)' group by 1, 2;
select outbox.enqueue_agg_add(null, 'topic', 'k'::text, 'v'::text);
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- One bad row refuses the whole, whatever was stored before it, and the error says which.
select outbox.enqueue_agg(case i when 2222 then 'not good' else 'good' end, i::text, 'v' order by i) from generate_series(1, 2500) i;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select count(*) from outbox.message;

-- From a statement's trigger, over all rows that the statement has written, in one go.
create function announce() returns trigger language plpgsql as $$
begin
    perform outbox.enqueue_agg('orders', n.id::text, to_jsonb(n) order by n.id) from new_rows n;
    perform outbox.enqueue_many('totals', array_agg(n.id::text order by n.id), array_agg(n.total::text order by n.id)) from new_rows n;
    return null;
end
$$;
create trigger announce after insert on orders referencing new table as new_rows for each statement execute function announce();
insert into orders values (7, 70), (6, 60);
select * from saved;
drop trigger announce on orders;
drop function announce;
truncate outbox.message;

-- In a query that writes; the rows are visible to what follows in the transaction.
begin;
with changed as (update orders set total = total + 1 where id < 3 returning *)
select outbox.enqueue_agg('orders', id::text, to_jsonb(changed) order by id) from changed;
select * from saved;
do $$
begin
    perform outbox.enqueue_many('orders', array['k'], array['seen']);
    assert (select count(*) from outbox.message) = 3;
end
$$;
rollback;
select count(*) from outbox.message;

-- Rolled back with its savepoint.
begin;
select cardinality(outbox.enqueue_many('rollback', array['a', 'b'], array['1', '2']));
savepoint s;
select cardinality(outbox.enqueue_many('rollback', array['c'], array['gone']));
select outbox.enqueue_agg('rollback', 'd', 'gone') from generate_series(1, 2);
rollback to s;
commit;
select count(*) from outbox.message;
truncate outbox.message;

-- With the bucket count of now, whatever the snapshot; not in a transaction that may not write.
begin isolation level repeatable read;
select outbox.bucket_count();
\! psql -X -q -d regression -c "insert into outbox.setting values ('bucket_count', '1')"
select cardinality(outbox.enqueue_many('count', array_agg(i::text), null::text[])) from generate_series(1, 100) i;
select outbox.enqueue_agg('count', i::text, null) from generate_series(1, 100) i;
commit;
select bucket, count(*) from outbox.message group by bucket;
delete from outbox.setting;
truncate outbox.message;
begin read only;
select outbox.enqueue_many('read-only', array['a'], array['c']);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;
begin read only;
select outbox.enqueue_agg('read-only', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;
begin isolation level serializable;
select cardinality(outbox.enqueue_many('serializable', array['a'], array['c']));
commit;
truncate outbox.message;

-- The first messages of a database stamp it.
delete from outbox.publishing;
\c -
select cardinality(outbox.enqueue_many('stamp', array['a'], array['c']));
select count(*) from outbox.publishing;
truncate outbox.message;

-- What an owner hangs on the table is served: triggers, rules, constraints, indexes, columns.
create table log (topic text, value bytea);
create function note() returns trigger language plpgsql as $$ begin insert into public.log values (new.topic, new.value); return new; end $$;
create trigger note before insert on outbox.message for each row execute function note();
select cardinality(outbox.enqueue_many('trigger', array['a', 'b'], array['1', '2']));
select outbox.enqueue_agg('trigger', 'c', '3');
select * from log;
drop trigger note on outbox.message;
drop function note;
create function swallow() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger swallow before insert on outbox.message for each row execute function swallow();
select outbox.enqueue_many('trigger', array['a', 'b'], array['1', '2']);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
drop trigger swallow on outbox.message;
drop function swallow;
create rule note as on insert to outbox.message do also insert into log values (new.topic, new.value);
select cardinality(outbox.enqueue_many('rule', array['a'], array['1']));
drop rule note on outbox.message;
select topic, count(*) from log group by topic;
drop table log;
alter table outbox.message add constraint no_secrets check (topic <> 'secrets');
\set SHOW_CONTEXT never
\set VERBOSITY terse
select outbox.enqueue_many(array['good', 'secrets'], array['a', 'b'], array['1', '2']);
\set VERBOSITY default
\unset SHOW_CONTEXT
alter table outbox.message drop constraint no_secrets;
create unique index message_once on outbox.message (message_id);
select outbox.enqueue_many('once', array['a', 'b'], null::text[], message_ids => array_fill('00000000-0000-4000-8000-000000000001'::uuid, array[2]));
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select cardinality(outbox.enqueue_many('once', array['a', 'b'], null::text[]));
set enable_seqscan = off;
select count(*) from outbox.message m where m.message_id in (select message_id from outbox.message where topic = 'once');
reset enable_seqscan;
drop index outbox.message_once;
alter table outbox.message add column more integer default 5;
select cardinality(outbox.enqueue_many('more', array['a', 'b'], null::text[]));
select more, count(*) from outbox.message group by more order by more;
alter table outbox.message drop column more;
truncate outbox.message;
select cardinality(outbox.enqueue_many('dropped', array['a', 'b'], null::text[]));
truncate outbox.message;
drop view saved;
drop extension outbox_relay;
create extension outbox_relay;

-- Privileges: EXECUTE on the function or the aggregate is all that it takes, and the query keeps the caller's rights.
create role regress_many_app;
grant usage on schema outbox to regress_many_app;
set role regress_many_app;
select outbox.enqueue_many('orders', array['a'], array['c']);
select outbox.enqueue_agg('orders', 'a', 'c');
reset role;
grant execute on function outbox.enqueue_many(text, text[], text[], jsonb[], integer[], uuid[]), outbox.enqueue_agg(text, "any", "any") to regress_many_app;
create table secret as select 'secret'::text as value;
create function caller() returns text language sql volatile as 'select current_user::text';
create function trap(integer, integer) returns boolean language plpgsql as $$ begin raise exception 'trapped as %', current_user; end $$;
create schema regress_many_own authorization regress_many_app;
create operator regress_many_own.= (leftarg = integer, rightarg = integer, function = trap);
set role regress_many_app;
set search_path = regress_many_own, public, pg_catalog;
select cardinality(outbox.enqueue_many('orders', array['a'], array['c']));
select outbox.enqueue_agg('orders', caller(), caller()) from generate_series(1, 2);
select current_user, current_setting('search_path') as search_path;
select outbox.enqueue_agg('orders', 'k', value) from secret;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_agg('orders', 'k', value) from (select case when i > 1499 then repeat('x', 1000001) else 'v' end as value from generate_series(1, 2000) i) v;
select current_user, current_setting('search_path') as search_path;
reset role;
alter table outbox.message add constraint no_secrets check (value <> convert_to('secret', 'UTF8'));
set role regress_many_app;
do $$
begin
    perform outbox.enqueue_agg('orders', 'k', 'secret');
exception when check_violation then
    raise notice 'refused, and still %, %', current_user, current_setting('search_path');
end
$$;
reset role;
alter table outbox.message drop constraint no_secrets;
reset search_path;
reset role;
select convert_from(key, 'UTF8') as key, convert_from(value, 'UTF8') as value, count(*) from outbox.message group by 1, 2 order by 1;
truncate outbox.message;
drop operator regress_many_own.= (integer, integer);
drop function trap(integer, integer), caller();
drop schema regress_many_own;
drop table secret, orders;
drop extension outbox_relay;
drop schema outbox;
drop role regress_many_app;
