-- Nobody may do anything until he is told that he may; an application needs USAGE and one EXECUTE; monitoring never sees
-- a payload.
create extension outbox_relay;
create role regress_app;
create role regress_monitor in role pg_monitor;
create role regress_reader;

-- Everything of the extension that has privileges, and all there are.
create view privileges as
select c.oid::regclass::text as object, p.privilege, r.rolname as role,
       has_table_privilege(r.oid, c.oid, p.privilege) as granted
from pg_class c, pg_roles r,
     unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p (privilege)
where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'v')
union all
select c.oid::regclass::text, p.privilege || ' (column)', r.rolname, has_any_column_privilege(r.oid, c.oid, p.privilege)
from pg_class c, pg_roles r, unnest(array['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) p (privilege)
where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'v')
union all
select s.seqrelid::regclass::text, p.privilege, r.rolname, has_sequence_privilege(r.oid, s.seqrelid, p.privilege)
from pg_sequence s, pg_roles r, unnest(array['SELECT', 'UPDATE', 'USAGE']) p (privilege)
where s.seqrelid = 'outbox.message_id_seq'::regclass
union all
select p.oid::regprocedure::text, 'EXECUTE', r.rolname, has_function_privilege(r.oid, p.oid, 'EXECUTE')
from pg_proc p, pg_roles r
where p.pronamespace = 'outbox'::regnamespace
union all
select 'schema outbox', p.privilege, r.rolname, has_schema_privilege(r.oid, 'outbox', p.privilege)
from pg_roles r, unnest(array['USAGE', 'CREATE']) p (privilege);
select count(distinct object) from privileges;

-- Public has nothing, neither by grant nor by default.
select object, privilege from privileges where role = 'regress_app' and granted;
select c.oid::regclass as public from pg_class c, aclexplode(c.relacl) a
where c.relnamespace = 'outbox'::regnamespace and a.grantee = 0;
select p.oid::regprocedure as public from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
where p.pronamespace = 'outbox'::regnamespace and a.grantee = 0;

-- What enqueue does with the owner's rights it does for that moment only. A trigger of the owner's runs as the owner, on a path of
-- the owner's: a caller cannot put his own functions before it. Afterwards everything is as it was, after an error too.
grant usage on schema outbox to regress_app;
grant execute on function outbox.enqueue(text, text, text, jsonb, integer, uuid) to regress_app;
grant execute on function outbox.enqueue_many(text, text[], text[], jsonb[], integer[], uuid[]) to regress_app;
create schema regress_app authorization regress_app;
create function public.tell() returns trigger language plpgsql as $$
begin
    raise notice 'topic %, as the caller: %, path: %', new.topic, session_user = current_user, current_setting('search_path');
    if new.topic = 'refused' then
        raise exception 'refused as %', case when current_user = 'regress_app' then 'the caller' else 'the owner' end;
    end if;
    return new;
end
$$;
set session authorization regress_app;
set search_path = regress_app, public;
select outbox.enqueue('plain', 'k'::text, 'v'::text) is not null as stored, current_user, current_setting('search_path') as path;
insert into outbox.message (bucket, topic, message_id) values (0, 't', gen_random_uuid());
select nextval('outbox.message_id_seq');
reset session authorization;
create trigger tell before insert on outbox.message for each row execute function public.tell();
set session authorization regress_app;
set search_path = regress_app, public;
select outbox.enqueue('told', 'k'::text, 'v'::text) is not null as stored, current_user, current_setting('search_path') as path;
select cardinality(outbox.enqueue_many('told', array['k'], array['v']));
begin;
savepoint before;
select outbox.enqueue('refused', 'k'::text, 'v'::text);
rollback to before;
select current_user, current_setting('search_path') as path;
select outbox.enqueue('told', 'k'::text, 'v'::text) is not null as stored;
rollback;
reset search_path;
reset session authorization;
drop trigger tell on outbox.message;
-- Nor what an index of the owner's calls.
create function public.kind(topic text) returns text language plpgsql immutable as $$ begin return upper(topic); end $$;
create index kind on outbox.message (public.kind(topic));
set session authorization regress_app;
create function regress_app.upper(topic text) returns text language plpgsql as $$
begin
    raise exception 'the caller''s code runs as %', case when current_user = session_user then 'the caller' else 'the owner' end;
end
$$;
set search_path = regress_app, pg_catalog, public;
select upper('that the trap works');
select outbox.enqueue('indexed', 'k'::text, 'v'::text) is not null as stored;
select cardinality(outbox.enqueue_many('indexed', array['k', 'l'], array['v', 'w']));
drop function regress_app.upper(text);
reset search_path;
reset session authorization;
drop index outbox.kind;
drop function public.kind(text);
drop function public.tell();
drop schema regress_app;
revoke all on schema outbox from regress_app;
revoke all on all functions in schema outbox from regress_app;
truncate outbox.message;

-- Monitoring may look at what holds no payload, and change nothing.
select object, privilege from privileges
where role = 'pg_monitor' and granted and privilege !~ 'column'
order by object collate "C", privilege;
-- No other role of the server's own has anything, but those whose business is all data.
select role, privilege, count(*) from privileges
where role like 'pg\_%' and role <> 'pg_monitor' and granted and privilege !~ 'column'
group by role, privilege order by role collate "C", privilege;

-- SECURITY DEFINER where it is needed, and then with a pinned search path; owned by who installed.
select p.oid::regprocedure as function, p.prosecdef as security_definer, p.proconfig as settings
from pg_proc p
where p.pronamespace = 'outbox'::regnamespace and (p.prosecdef or p.proconfig is not null)
order by p.oid::regprocedure::text collate "C";
select count(*) from pg_proc where pronamespace = 'outbox'::regnamespace and prosecdef and proowner <> 'postgres'::regrole;

-- Without any grant: not even the schema.
set role regress_app;
select outbox.enqueue('orders', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select * from outbox.pg_stat_relay;
select outbox.version();
reset role;

-- USAGE alone is not enough; EXECUTE of one combination is no more than that.
grant usage on schema outbox to regress_app;
set role regress_app;
select outbox.enqueue('orders', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
reset role;
grant execute on function outbox.enqueue(text, text, jsonb, jsonb, integer, uuid) to regress_app;
set role regress_app;
select outbox.enqueue('orders', 'k', '{}'::jsonb) as id \gset
select outbox.enqueue('orders', 'k', '{}'::jsonb, '{"h": "v"}', 3, '00000000-0000-4000-8000-000000000001');
select outbox.enqueue('orders', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- And that is all that an application may do.
select * from outbox.message;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
insert into outbox.message (bucket, topic, message_id) values (0, 'orders', '00000000-0000-4000-8000-000000000002');
update outbox.message set topic = 'other';
delete from outbox.message;
truncate outbox.message;
copy outbox.message to stdout;
begin;
lock outbox.message;
rollback;
select nextval('outbox.message_id_seq');
select currval('outbox.message_id_seq');
select setval('outbox.message_id_seq', 1);
select last_value from outbox.message_id_seq;
select * from outbox.lease;
update outbox.lease set relay_id = null;
select * from outbox.relay;
select * from outbox.failure;
select * from outbox.setting;
select * from outbox.bucket_change;
select * from outbox.topic;
select * from outbox.skipped;
select * from outbox.once;
insert into outbox.setting values ('bucket_count', '1');
select * from outbox.pg_stat_relay;
select * from outbox.pg_stat_bucket;
select * from outbox.pg_stat_bucket_change;
select * from outbox.pg_stat_topic;
select * from outbox.parked;
select outbox.version();
select outbox.bucket_count();
select outbox.set_bucket_count(9);
select outbox.skip(0, 1, 'reason');
select outbox.retry_now(0, 1);
select outbox.retry_now('orders');
select outbox.requeue(0, 1);
select outbox.edit(0, 1, 'other');
select outbox.set_topic('orders', 'block');
select outbox.reset_topic('orders');
select outbox.pause_topic('orders');
select outbox.resume_topic('orders');
select outbox.decode_headers('\x0100000000');
select outbox.partition_for('k', 3);
select outbox.bucket_for('k');
select outbox.enqueue_once('orders', 'k', 'v', gen_random_uuid());
select outbox.enqueue_many('orders', array['k'], array['v']);
select outbox.enqueue_agg('orders', 'k', 'v');
select outbox.reset_stats();
select outbox.announce();
select outbox.relay_status();
select outbox.bucket_status();
alter function outbox.enqueue(text, text, jsonb, jsonb, integer, uuid) security invoker;
create function outbox.mine() returns int language sql as 'select 1';
drop table outbox.message;
reset role;
select count(*) from outbox.message;

-- A trigger of the application on its own table writes as the application.
create table regress_orders (id int);
grant insert on regress_orders to regress_app;
create function regress_announce() returns trigger language plpgsql as $$
begin
    perform outbox.enqueue('orders', new.id::text, to_jsonb(new));
    return new;
end
$$;
create trigger announce after insert on regress_orders for each row execute function regress_announce();
set role regress_app;
insert into regress_orders values (1);
reset role;
select count(*) from outbox.message;
drop table regress_orders;
drop function regress_announce;

-- Objects of the application's own cannot make the function, which runs as its owner, run them.
create schema regress_app_own authorization regress_app;
set role regress_app;
create function regress_app_own.betray() returns boolean language plpgsql as $$
begin
    raise notice 'running as %', current_user;
    return true;
end
$$;
create function regress_app_own.same(integer, integer) returns boolean language sql as 'select regress_app_own.betray()';
create function regress_app_own.same(text, text) returns boolean language sql as 'select regress_app_own.betray()';
create operator regress_app_own.= (leftarg = integer, rightarg = integer, function = regress_app_own.same);
create operator regress_app_own.= (leftarg = text, rightarg = text, function = regress_app_own.same);
create function regress_app_own.nextval(regclass) returns bigint language sql as
    'select regress_app_own.betray()::int::bigint';
create function regress_app_own.clock_timestamp() returns timestamptz language sql as
    'select case when regress_app_own.betray() then now() end';
create function regress_app_own.gen_random_uuid() returns uuid language sql as
    $$ select case when regress_app_own.betray() then '00000000-0000-4000-8000-000000000003'::uuid end $$;
-- A new session, for nothing must be planned already when the trap is set.
\c -
set role regress_app;
create temporary table message (bucket integer, id bigint, topic text);
create temporary table setting (name text, value text);
create temporary view pg_proc as select regress_app_own.betray();
set search_path = regress_app_own, pg_temp, outbox, pg_catalog;
-- That the trap works where nothing is pinned.
select 1 = 1 as trapped;
select outbox.enqueue('orders', 'k'::text, '{}'::jsonb) as id \gset
reset search_path;
drop table pg_temp.message, pg_temp.setting;
drop view pg_temp.pg_proc;
reset role;
select count(*) from outbox.message where topic = 'orders' and bucket between 0 and 7;
set client_min_messages = warning;
drop schema regress_app_own cascade;
reset client_min_messages;

-- Nor may it hang anything on the tables.
set role regress_app;
create trigger t before insert on outbox.message for each row execute function suppress_redundant_updates_trigger();
create policy p on outbox.message using (true);
create rule r as on insert to outbox.message do instead nothing;
reset role;

-- Monitoring sees the views, the leases and the failures, but never a message.
set role regress_monitor;
select count(*) from outbox.pg_stat_bucket;
select count(*) >= 0 as may_look from outbox.pg_stat_relay;
select count(*) >= 0 as may_look from outbox.lease;
select count(*) >= 0 as may_look from outbox.relay;
select count(*) >= 0 as may_look from outbox.failure;
select count(*) >= 0 as may_look from outbox.setting;
select count(*) >= 0 as may_look from outbox.bucket_change;
select count(*) >= 0 as may_look from outbox.topic;
select count(*) >= 0 as may_look from outbox.pg_stat_bucket_change;
select count(*) >= 0 as may_look from outbox.pg_stat_topic;
select sum(waiting) as may_look from outbox.parked;
select outbox.bucket_count();
select outbox.version() is not null as may_look;
select * from outbox.message;
select * from outbox.skipped;
select last_value from outbox.message_id_seq;
select outbox.enqueue('orders', 'k', 'v');
select outbox.reset_stats();
select outbox.announce();
delete from outbox.failure;
update outbox.setting set value = '1';
reset role;

-- What the views show, they show of no key, value or header.
select attrelid::regclass as view, attname as column from pg_attribute
where attrelid in ('outbox.pg_stat_relay'::regclass, 'outbox.pg_stat_bucket'::regclass, 'outbox.pg_stat_bucket_change'::regclass,
                   'outbox.pg_stat_topic'::regclass, 'outbox.parked'::regclass)
  and (attname ~ 'key|value|header|payload' or atttypid = 'bytea'::regtype);

-- A DBA may give single functions to operators.
grant usage on schema outbox to regress_reader;
grant execute on function outbox.reset_stats(), outbox.decode_headers(bytea) to regress_reader;
set role regress_reader;
select outbox.reset_stats() is not null as reset;
select outbox.decode_headers('\x010100000001000000610100000078');
select outbox.version();
reset role;

-- What is revoked is gone.
revoke execute on function outbox.enqueue(text, text, jsonb, jsonb, integer, uuid) from regress_app;
set role regress_app;
select outbox.enqueue('orders', 'k', '{}'::jsonb);
reset role;

truncate outbox.message;
drop view privileges;
drop schema outbox cascade;
drop role regress_app, regress_monitor, regress_reader;

-- Who was made the owner of the extension may drop it, and cannot make the count of unsent messages run code of his.
create role regress_installer superuser;
create role regress_owner;
set role regress_installer;
create extension outbox_relay;
select outbox.enqueue('orders', 'k', 'v') as id \gset
reset role;
reassign owned by regress_installer to regress_owner;
create schema regress_owner_own authorization regress_owner;
set role regress_owner;
create function regress_owner_own.betray(bigint) returns bigint language plpgsql as $$
begin
    raise notice 'running as %', current_user;
    return $1 + 1;
end
$$;
create aggregate regress_owner_own.count(*) (sfunc = regress_owner_own.betray, stype = bigint, initcond = '0');
set search_path = regress_owner_own, pg_catalog;
-- That the trap works where nothing is pinned.
select count(*) from (values (1)) v;
begin;
drop extension outbox_relay;
rollback;
reset search_path;
reset role;
truncate outbox.message;
set client_min_messages = warning;
drop schema regress_owner_own cascade;
drop schema outbox cascade;
reset client_min_messages;
drop role regress_installer, regress_owner;
