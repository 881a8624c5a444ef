-- Without shared_preload_libraries nothing is installed, and the hint holds the line to add.
\set ON_ERROR_ROLLBACK off
create extension outbox_relay;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
load 'outbox_relay';
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Nothing is left behind.
select count(*) from pg_extension where extname = 'outbox_relay';
select count(*) from pg_namespace where nspname = 'outbox';
select count(*) from pg_settings where name like 'outbox\_relay.%';
