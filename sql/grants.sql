-- Nobody but the owner may do anything until the DBA says so; monitoring roles may look.
--
-- For an application:  grant usage on schema outbox to app;
--                      grant execute on function outbox.enqueue(text, text, jsonb, jsonb, integer, uuid) to app;

revoke all on all tables in schema outbox from public;
revoke all on all sequences in schema outbox from public;
revoke all on all functions in schema outbox from public;
revoke all on schema outbox from public;

grant usage on schema outbox to pg_monitor;
grant select on outbox.pg_stat_relay, outbox.pg_stat_bucket, outbox.pg_stat_bucket_change, outbox.pg_stat_topic, outbox.parked to pg_monitor;
grant select on outbox.relay, outbox.lease, outbox.failure, outbox.setting, outbox.bucket_change, outbox.topic, outbox.publishing to pg_monitor;
grant execute on function outbox.version(), outbox.bucket_count(), outbox.relay_status(), outbox.bucket_status() to pg_monitor;
