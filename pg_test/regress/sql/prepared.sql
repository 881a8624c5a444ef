-- A message goes the way of its transaction, also when that is prepared first and finished by another session.
create extension outbox_relay;

begin;
select outbox.enqueue('prepared', 'k', 'committed') as id \gset
prepare transaction 'regress_commit';
begin;
select outbox.enqueue('prepared', 'k', 'rolled back') as id \gset
prepare transaction 'regress_rollback';
select gid from pg_prepared_xacts where database = current_database() order by gid;
select count(*) from outbox.message;

\c -
commit prepared 'regress_commit';
rollback prepared 'regress_rollback';
select convert_from(value, 'UTF8') as value from outbox.message;

-- The session that prepared may go on: what it enqueues next is another transaction's.
begin;
select outbox.enqueue('prepared', 'k', 'also committed') as id \gset
prepare transaction 'regress_commit';
select outbox.enqueue('prepared', 'k', 'beside') as id \gset
select convert_from(value, 'UTF8') as value from outbox.message order by id;
commit prepared 'regress_commit';
select convert_from(value, 'UTF8') as value from outbox.message order by id;

-- Commands for prepared transactions that do not exist fail as ever.
commit prepared 'regress_none';
\echo SQLSTATE :LAST_ERROR_SQLSTATE

truncate outbox.message;
drop schema outbox cascade;
