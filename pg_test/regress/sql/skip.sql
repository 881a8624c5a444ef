-- A message that cannot be published is taken out by hand, with a reason, and kept.
create extension outbox_relay;
-- The place in the script is of no interest.
\set SHOW_CONTEXT never
\set columns 'bucket, id, topic, partition, key, value, outbox.decode_headers(headers) as headers, message_id'
select outbox.enqueue('skip', 'order-1', 'poison', '{"h": "v"}', 6, '00000000-0000-4000-8000-000000000001');
select outbox.enqueue('skip', 'order-1', 'next', message_id => '00000000-0000-4000-8000-000000000002');
insert into outbox.failure (bucket, id, attempts, error, next_try_at)
select bucket, id, 3, 'too large', 'infinity' from outbox.message;

-- Which one, and why: both must be said.
select outbox.skip(6, 1, null);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.skip(6, 1, E' \t\n');
select outbox.skip(null, 1, 'because');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.skip(6, null, 'because');
select outbox.skip(5, 1, 'because');
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- A rollback brings all of it back.
begin;
select outbox.skip(6, 1, 'because');
rollback;
select :columns from outbox.message order by id;
select bucket, id from outbox.failure order by id;
select count(*) from outbox.skipped;

create temporary table before as select * from outbox.message where id = 1;
select outbox.skip(6, 1, 'too large for every topic');
select :columns from outbox.message order by id;
select bucket, id from outbox.failure order by id;
select :columns, skipped_by, reason, skipped_at between created_at and clock_timestamp() as skipped_at from outbox.skipped;
select s.created_at = b.created_at as created_at from outbox.skipped s, before b;
select outbox.skip(6, 1, 'once more');

-- It has all columns of a message, in the same order, and three more.
select m.attname as column, m.atttypid = s.atttypid as type, m.attcollation = s.attcollation as collation
from pg_attribute m full join pg_attribute s
    on s.attrelid = 'outbox.skipped'::regclass and s.attname = m.attname and s.attnum = m.attnum
where m.attrelid = 'outbox.message'::regclass and m.attnum > 0
order by m.attnum;
select attname as column from pg_attribute
where attrelid = 'outbox.skipped'::regclass and attnum > (select max(attnum) from pg_attribute where attrelid = 'outbox.message'::regclass)
order by attnum;

-- What was skipped can be sent after all, as a new message with the old message id.
select outbox.enqueue(topic, key, value, outbox.decode_headers(headers), partition, message_id) from outbox.skipped;
select :columns from outbox.message order by id;

-- Who called is named, not as whom the function runs; nobody may call until it is granted, or look.
create role regress_skip login;
grant usage on schema outbox to regress_skip;
\c - regress_skip
select outbox.skip(6, 2, 'mine');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select * from outbox.skipped;
\c - postgres
grant execute on function outbox.skip(integer, bigint, text) to regress_skip;
\c - regress_skip
select outbox.skip(6, 2, 'mine');
\c - postgres
select id, skipped_by, reason from outbox.skipped order by id;
revoke all on function outbox.skip(integer, bigint, text) from regress_skip;
revoke all on schema outbox from regress_skip;
drop role regress_skip;

truncate outbox.message;
-- What is kept goes with the extension, which says so.
drop schema outbox cascade;
