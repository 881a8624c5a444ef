-- The bucket count is changed by a function, under traffic: what is stored keeps its bucket, what is new gets one of the
-- new count, and nobody can mistake the one for the other.
create extension outbox_relay;
-- The place in the script is of no interest.
\set SHOW_CONTEXT never
create function stored() returns table (id bigint, bucket integer) language sql as
    'select id, bucket from outbox.message order by id';
create view changes as select fence_id, bucket_count, rows_left, changed_by from outbox.pg_stat_bucket_change order by 1;

-- What cannot be a count.
select outbox.set_bucket_count(0);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_bucket_count(1025);
select outbox.set_bucket_count(-1);
select outbox.set_bucket_count(null);
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Before the first message there is nothing to wait for.
select outbox.set_bucket_count(8);
select outbox.set_bucket_count(4);
select outbox.bucket_count();
select count(*) from outbox.bucket_change;

-- Up, with messages on either side; back to the same count is one more change; none without an id in between.
select outbox.enqueue('count', 'order-1', 'v') is not null as enqueued;
select outbox.set_bucket_count(8);
select outbox.enqueue('count', 'order-1', 'v') is not null as enqueued;
select outbox.set_bucket_count(4);
select outbox.set_bucket_count(3);
select outbox.set_bucket_count(3);
select outbox.enqueue('count', 'order-1', 'v') is not null as enqueued;
select * from stored();
select * from changes;
select fence_id, bucket_count, changed_by, changed_at <= clock_timestamp() as changed_at from outbox.bucket_change;
select * from outbox.setting;
insert into outbox.lease select bucket, 'regress', 1, 'infinity' from generate_series(0, 7) bucket;
select bucket, state, backlog from outbox.pg_stat_bucket order by bucket;
delete from outbox.lease;

-- Once the messages are gone nobody waits any more. The relay, which would forget the changes, has no broker.
delete from outbox.message where id = 1;
select * from changes;
truncate outbox.message;
select * from changes;
delete from outbox.bucket_change;

-- What is rolled back did not happen.
begin;
select outbox.set_bucket_count(64);
select outbox.bucket_count();
rollback;
select outbox.bucket_count();
select count(*) from outbox.bucket_change;
begin;
savepoint s;
select outbox.set_bucket_count(64);
rollback to s;
select outbox.enqueue('count', 'order-1', 'v') is not null as enqueued;
commit;
select bucket from stored();

-- Messages of the same transaction lie on the side on which they were written.
begin;
select outbox.enqueue('count', 'order-1', 'before') is not null as enqueued;
select outbox.set_bucket_count(64);
select outbox.enqueue('count', 'order-1', 'after') is not null as enqueued;
commit;
select m.bucket, convert_from(m.value, 'UTF8') as value, m.id <= c.fence_id as below
from outbox.message m, outbox.bucket_change c order by m.id;

-- A writer whose snapshot is older than the change goes with it, and is published behind the others.
begin isolation level repeatable read;
select outbox.bucket_count();
\! psql -X -q -At -d regression -c "select outbox.set_bucket_count(8)"
select outbox.bucket_count() as of_the_snapshot;
select outbox.enqueue('count', 'order-1', 'late') is not null as enqueued;
commit;
select m.bucket, m.id > (select max(c.fence_id) from outbox.bucket_change c) as above
from outbox.message m where m.value = 'late';

-- Who changes the count must see how it is now.
begin isolation level repeatable read;
select outbox.set_bucket_count(16);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;
begin isolation level serializable;
select outbox.set_bucket_count(16);
rollback;
begin read only;
select outbox.set_bucket_count(16);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;
truncate outbox.message;
delete from outbox.bucket_change;

-- Sixteen changes may wait, and not one more.
do $$
begin
    for n in 1..16 loop
        perform outbox.enqueue('count', 'k', 'v');
        perform outbox.set_bucket_count(16 + n);
    end loop;
end
$$;
select outbox.bucket_count();
select count(*) from changes;
select outbox.set_bucket_count(100);
select outbox.enqueue('count', 'k', 'v') is not null as enqueued;
select outbox.set_bucket_count(101);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.bucket_count();
-- What is left is counted in all buckets of the counts so far, and up to a thousand.
select count(outbox.enqueue('count', i::text, 'v')) from generate_series(1, 1100) i;
delete from outbox.bucket_change where fence_id < (select max(c.fence_id) from outbox.bucket_change c);
update outbox.bucket_change set fence_id = (select max(m.id) from outbox.message m), bucket_count = 100;
select rows_left from changes;
truncate outbox.message;
delete from outbox.bucket_change;
select outbox.set_bucket_count(8);

-- The caller's own settings are as before, whether it went well or not.
set lock_timeout = '7s';
select outbox.set_bucket_count(16);
show lock_timeout;
reset lock_timeout;

-- A statement that is cancelled while it waits changes nothing, and its lock is gone.
begin;
select outbox.enqueue('count', 'k', 'open') is not null as enqueued;
\! PGOPTIONS='-c statement_timeout=1s' psql -X -q -At -d regression -c "select outbox.set_bucket_count(32)" 2>&1 | grep ERROR
select outbox.enqueue('count', 'k', 'goes on') is not null as enqueued;
commit;
select outbox.bucket_count();

-- Transactions in the way are named when patience ends, prepared ones by their identifier.
begin;
select outbox.enqueue('count', 'k', 'prepared') is not null as enqueued;
prepare transaction 'regress_in_the_way';
begin;
select outbox.enqueue('count', 'k', 'open') is not null as enqueued;
\! psql -X -q -At -v VERBOSITY=verbose -v SHOW_CONTEXT=never -d regression -c "select outbox.set_bucket_count(32)" 2>&1 | sed '/^LOCATION/d; s/process [0-9]*/process N/'
commit;
commit prepared 'regress_in_the_way';
select outbox.bucket_count();
select outbox.set_bucket_count(32);

-- A change that is prepared holds up writers until it is committed.
begin;
select outbox.set_bucket_count(16);
prepare transaction 'regress_change';
set lock_timeout = '100ms';
select outbox.enqueue('count', 'k', 'too early');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
reset lock_timeout;
select outbox.bucket_count();
commit prepared 'regress_change';
select outbox.bucket_count();
select outbox.enqueue('count', 'order-1', 'v') is not null as enqueued;
select bucket from outbox.message order by id desc limit 1;
truncate outbox.message;

-- Somebody who changes the setting by hand leaves messages without a relay, which are then shown as such.
update outbox.setting set value = '2';
select count(outbox.enqueue('count', i::text, 'v')) from generate_series(1, 10) i;
select bool_and(bucket < 2) as new_ones from outbox.message where topic = 'count' and id > (select max(fence_id) from outbox.bucket_change);
truncate outbox.message;
delete from outbox.bucket_change;
delete from outbox.setting;

-- Nobody but the owner, until it is granted.
create role regress_count;
grant usage on schema outbox to regress_count;
set role regress_count;
select outbox.set_bucket_count(9);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
reset role;
grant execute on function outbox.set_bucket_count(integer) to regress_count;
set role regress_count;
select outbox.set_bucket_count(9);
reset role;
revoke all on function outbox.set_bucket_count(integer) from regress_count;
revoke all on schema outbox from regress_count;
drop role regress_count;

drop view changes;
drop function stored;
drop schema outbox cascade;
