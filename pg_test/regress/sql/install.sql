-- What create extension makes, who may do it, and what drop extension says.

-- Only a superuser, and only into a schema of his own.
create role regress_install;
grant create on database regression to regress_install;
set role regress_install;
create extension outbox_relay;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
create schema outbox;
reset role;
-- The place in the script is of no interest.
\set SHOW_CONTEXT never
create extension outbox_relay;
\unset SHOW_CONTEXT
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select extname from pg_extension where extname = 'outbox_relay';
drop schema outbox;

-- A schema that the installing role owns will do, but no other schema.
create schema outbox;
create extension outbox_relay schema public;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
create extension outbox_relay;
alter extension outbox_relay set schema public;
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- The objects.
\dx outbox_relay
\dx+ outbox_relay
\d outbox.message
\d outbox.lease
\d outbox.relay
\d outbox.failure
\d outbox.setting
\d outbox.bucket_change
\d outbox.topic
\d outbox.skipped
\d outbox.once
select format_type(seqtypid, null) as type, seqstart, seqincrement, seqcache, seqcycle
from pg_sequence where seqrelid = 'outbox.message_id_seq'::regclass;
select p.oid::regprocedure as function, pg_get_function_result(p.oid) as result, l.lanname as language,
       p.provolatile as volatile, p.proparallel as parallel, p.proisstrict as strict
from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'outbox'::regnamespace
order by p.oid::regprocedure::text collate "C";

-- Names and defaults of the arguments of what writers call are a promise.
select pg_get_function_arguments(oid) from pg_proc
where pronamespace = 'outbox'::regnamespace and proname ~ '^enqueue' and proname !~ '^enqueue_agg_'
order by oid;

-- Nothing lies in the schema that is not the extension's, and nothing of it lies elsewhere. The catalogue pg_depend knows
-- members, and what belongs to them by itself: indexes, defaults, row types and TOAST.
select c.oid::regclass as stray
from pg_class c
where c.relnamespace = 'outbox'::regnamespace and c.relkind not in ('i', 'c')
  and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e');

-- Every object has a comment, and so has every column.
select pg_describe_object(d.classid, d.objid, 0) as without_comment
from pg_depend d join pg_extension e on d.refclassid = 'pg_extension'::regclass and d.refobjid = e.oid
where e.extname = 'outbox_relay' and d.deptype = 'e' and d.classid <> 'pg_type'::regclass
  and obj_description(d.objid, d.classid::regclass::text) is null
union all
select pg_describe_object('pg_class'::regclass, a.attrelid, a.attnum)
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'v') and a.attnum > 0
  and col_description(a.attrelid, a.attnum) is null
union all
select 'extension' from pg_extension e
where e.extname = 'outbox_relay' and obj_description(e.oid, 'pg_extension') is null
union all
select 'schema' where obj_description('outbox'::regnamespace, 'pg_namespace') is null;

-- The loaded library and the SQL objects have the same version.
select outbox.version() = extversion as same_version from pg_extension where extname = 'outbox_relay';

-- Ids are the order of a bucket: a session must not hoard them.
select cache_size from pg_sequences where schemaname = 'outbox';

-- What a dump carries: messages, skipped ones too, their ids and those remembered, settings and fences, and nothing of leases and heartbeats.
select c.oid::regclass as dumped, w.condition
from pg_extension e, unnest(e.extconfig, e.extcondition) w (oid, condition), pg_class c
where e.extname = 'outbox_relay' and c.oid = w.oid
order by 1;

-- Settings of the database are checked when they are stored.
insert into outbox.setting values ('bucket_count', '0');
insert into outbox.setting values ('bucket_count', '1025');
insert into outbox.setting values ('bucket_count', 'many');
insert into outbox.setting values ('bucket_count', '');
insert into outbox.setting values ('bucket_count', '-1');
insert into outbox.setting values ('buckets', '8');
select outbox.bucket_count();
insert into outbox.setting values ('bucket_count', '1');
select outbox.bucket_count();
insert into outbox.setting values ('bucket_count', '8');
update outbox.setting set value = '1024';
select outbox.bucket_count();

-- What is said of a topic is checked too.
insert into outbox.topic (topic, policy) values ('orders', 'drop');
insert into outbox.topic (topic, max_attempts) values ('orders', 0);
insert into outbox.topic (topic, max_attempts) values ('orders', 1001);
insert into outbox.topic (topic, partitions) values ('orders', 0);
insert into outbox.topic (topic, max_attempts, partitions) values ('orders', 1000, 1);
insert into outbox.topic (topic) values ('orders');
select * from outbox.topic;

-- Nobody is warned when nothing is lost.
drop extension outbox_relay;
select count(*) from pg_class where relnamespace = 'outbox'::regnamespace;
select count(*) from pg_proc where pronamespace = 'outbox'::regnamespace;

-- The schema stays, and will do for another time.
create extension outbox_relay;
select outbox.enqueue('orders', i::text, 'x') is not null as saved from generate_series(1, 3) i;

-- Unsent messages are counted, by whatever way the extension goes, and come back with a rollback.
begin;
drop extension outbox_relay;
rollback;
begin;
drop schema outbox cascade;
rollback;
begin;
drop extension if exists plpgsql_check, outbox_relay;
rollback;
begin;
do $$ begin execute 'drop extension outbox_relay'; end $$;
rollback;
select count(*) from outbox.message;

-- Who may not drop it is told so, and nothing about the messages.
set role regress_install;
drop extension outbox_relay;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
reset role;

-- What was enqueued in the same transaction is counted too.
begin;
select outbox.enqueue('orders', '4', 'x') as id \gset
drop extension outbox_relay;
rollback;

-- Other extensions and schemas are none of its business.
create schema regress_install_other;
drop schema regress_install_other;

drop schema outbox cascade;
create extension outbox_relay;
drop schema outbox cascade;
revoke create on database regression from regress_install;
drop role regress_install;
