-- pg_dump takes along what is the user's: unsent and skipped messages, the ids to come, the settings, what was granted. What
-- belongs to the running relays stays behind.
\getenv directory PG_ABS_BUILDDIR
\setenv DIRECTORY :directory
\set columns 'bucket, id, topic, partition, key, value, outbox.decode_headers(headers) as headers, message_id'
create role regress_dump_app;
create database regress_dump;
\c regress_dump
create extension outbox_relay;
select outbox.set_bucket_count(7);
grant usage on schema outbox to regress_dump_app;
grant execute on function outbox.enqueue(text, text, text, jsonb, integer, uuid) to regress_dump_app;
select outbox.enqueue('dump', 'order-12345', '\x00ff'::bytea, '[["b", "1"], ["a", null]]', null,
                      '00000000-0000-4000-8000-000000000001');
select outbox.enqueue('dump', '', '', partition => 5, message_id => '00000000-0000-4000-8000-000000000002');
select outbox.enqueue('dump', null, null, message_id => '00112233-4455-6677-8899-aabbccddeeff');
-- An id that was given and is gone: it must not come again.
select outbox.enqueue('dump', 'k', 'gone') as id \gset
select outbox.skip(bucket, id, 'for the test') from outbox.message where message_id = :'id';
-- There and back: what is above waits for what is below.
select outbox.set_bucket_count(9);
select outbox.set_bucket_count(7);
-- A retry after the restore must find what it would have found before.
insert into outbox.once values ('00000000-0000-4000-8000-000000000001', '2000-01-01', 'infinity');
insert into outbox.topic (topic, policy, max_attempts, partitions) values ('dump', 'block', 3, 12);
insert into outbox.lease values (0, 'regress', 5, 'infinity');
insert into outbox.relay (relay_id, pid) values ('regress', 1);
insert into outbox.failure (bucket, id, attempts, error, next_try_at) values (0, 1, 1, 'error', now());
select :columns from outbox.message order by id;

\! pg_dump -d regress_dump -f "$DIRECTORY/plain.sql"
\! pg_dump -d regress_dump -Fc -f "$DIRECTORY/custom.dump"

-- As text, by psql.
create database regress_plain;
\! psql -X -q -v ON_ERROR_STOP=1 -d regress_plain -f "$DIRECTORY/plain.sql" >/dev/null
\c regress_plain
select :columns from outbox.message order by id;
select * from outbox.setting;
select fence_id, bucket_count, changed_by from outbox.bucket_change;
select * from outbox.topic;
select id, skipped_by, reason from outbox.skipped;
select message_id, keep_until from outbox.once;
select outbox.bucket_count();
select last_value, is_called from outbox.message_id_seq;
select (select count(*) from outbox.lease) as leases, (select count(*) from outbox.relay) as relays,
       (select count(*) from outbox.failure) as failures;

-- It works as the first one did: ids go on, buckets are the same, what was granted is granted.
set role regress_dump_app;
select outbox.enqueue('dump', 'order-12345', 'next') as id \gset
select outbox.enqueue('dump', 'k', '{}'::jsonb);
reset role;
select bucket, id from outbox.message where message_id = :'id';

-- Times and everything else came back to the bit.
\! psql -X -q -At -d regress_dump -c "select m from outbox.message m order by id" >"$DIRECTORY/before"
\! psql -X -q -At -d regress_plain -c "select m from outbox.message m where id <= 4 order by id" >"$DIRECTORY/after"
\! cmp "$DIRECTORY/before" "$DIRECTORY/after" && echo same

-- What comes out of the copy can be dumped again.
truncate outbox.message;
\! pg_dump -d regress_plain -f "$DIRECTORY/again.sql"

-- In the custom format, by pg_restore, in one transaction.
create database regress_custom;
\! pg_restore --exit-on-error --single-transaction -d regress_custom "$DIRECTORY/custom.dump"
\c regress_custom
select :columns from outbox.message order by id;
select * from outbox.setting;
select fence_id, bucket_count, changed_by from outbox.bucket_change;
select * from outbox.topic;
select id, skipped_by, reason from outbox.skipped;
select message_id, keep_until from outbox.once;
select last_value, is_called from outbox.message_id_seq;
select (select count(*) from outbox.lease) as leases, (select count(*) from outbox.relay) as relays,
       (select count(*) from outbox.failure) as failures;
\c regression
drop database regress_custom;

-- By another superuser than the one who installed it: who owns the schema is what a dump says, and a superuser will do.
create role regress_dump_admin superuser login;
create database regress_custom;
\! pg_restore -U regress_dump_admin --exit-on-error --single-transaction -d regress_custom "$DIRECTORY/custom.dump"
\c regress_custom
select count(*) from outbox.message;
\c regression
drop database regress_custom;

-- With --no-owner as well.
create database regress_custom;
\! pg_restore -U regress_dump_admin --no-owner --exit-on-error --single-transaction -d regress_custom "$DIRECTORY/custom.dump"
\c regress_custom
select count(*) from outbox.message;
\c regression
drop database regress_custom;

-- The objects alone, without any data.
create database regress_custom;
\! pg_dump -d regress_dump --schema-only | psql -X -q -v ON_ERROR_STOP=1 -d regress_custom >/dev/null
\c regress_custom
select (select count(*) from outbox.message) as messages, (select count(*) from outbox.setting) as settings,
       outbox.bucket_count();
\c regression

-- Databases with relays in them can be dropped, renamed and copied.
alter database regress_custom rename to regress_renamed;
create database regress_copy template regress_dump;
\c regress_copy
select count(*) from outbox.message;
\c regression
drop database regress_renamed;
drop database regress_copy;
drop database regress_plain;
drop database regress_dump;
drop role regress_dump_admin, regress_dump_app;
