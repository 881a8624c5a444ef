-- The settings: what they are called, what they take, who may set them, and what is refused with which reason.

select name, setting, unit, vartype, min_val, max_val, context from pg_settings
where name like 'outbox\_relay.%' order by name collate "C";

-- Every setting is described, in whole sentences.
select name, short_desc from pg_settings where name like 'outbox\_relay.%' order by name collate "C";
select name as bad_description from pg_settings
where name like 'outbox\_relay.%' and (short_desc !~ '^[A-Z].*\.$' or extra_desc !~ '^([A-Z].*\.)?$');

-- The prefix is ours: a misspelt name is an error, not a placeholder.
set outbox_relay.batchsize = 5;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
alter system set outbox_relay.bootstrap_server = 'localhost:9092';

-- But for the trace context they belong to the server: no session, role or database has its own.
set outbox_relay.enabled = off;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
set local outbox_relay.max_message_bytes = 2000;
alter database regression set outbox_relay.enabled = off;
alter role postgres set outbox_relay.bootstrap_servers = 'localhost:9092';
set outbox_relay.max_databases = 9;
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Trace context belongs to whoever sets it, and follows the grammar of W3C Trace Context.
create role regress_traced;
set role regress_traced;
set outbox_relay.traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
set outbox_relay.tracestate = 'vendor=1, tenant@system=x y';
show outbox_relay.traceparent;
show outbox_relay.tracestate;
set outbox_relay.traceparent = '00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01';
\echo SQLSTATE :LAST_ERROR_SQLSTATE
set outbox_relay.traceparent = '4bf92f3577b34da6a3ce929d0e0e4736';
set outbox_relay.traceparent = 'ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
set outbox_relay.traceparent = '00-00000000000000000000000000000000-00f067aa0ba902b7-01';
set outbox_relay.traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01';
select set_config('outbox_relay.traceparent', e'00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n', true);
set outbox_relay.tracestate = 'vendor';
\echo SQLSTATE :LAST_ERROR_SQLSTATE
set outbox_relay.tracestate = 'größe=1';
set outbox_relay.tracestate = 'vendor=1,vendor=2';
select set_config('outbox_relay.tracestate', string_agg('k' || i || '=v', ','), true) from generate_series(1, 33) i;
show outbox_relay.traceparent;
show outbox_relay.tracestate;
set outbox_relay.traceparent = '';
set outbox_relay.tracestate = '';
reset outbox_relay.traceparent;
reset outbox_relay.tracestate;
reset role;
drop role regress_traced;

-- Units and ranges.
alter system set outbox_relay.lease_duration = '1min';
alter system set outbox_relay.lease_duration = '999ms';
\echo SQLSTATE :LAST_ERROR_SQLSTATE
alter system set outbox_relay.lease_duration = '2h';
alter system set outbox_relay.lease_duration = 'long';
alter system set outbox_relay.lease_renew_interval = '99ms';
alter system set outbox_relay.poll_interval = '0';
alter system set outbox_relay.error_backoff = '9ms';
alter system set outbox_relay.shutdown_timeout = '61s';
alter system set outbox_relay.max_message_bytes = '1MB';
alter system set outbox_relay.max_message_bytes = 999;
alter system set outbox_relay.batch_bytes = '257MB';
alter system set outbox_relay.batch_size = 0;
alter system set outbox_relay.max_in_flight_messages = 99;
alter system set outbox_relay.max_in_flight_bytes = '1023kB';
alter system set outbox_relay.max_in_flight_bytes = '1025MB';
alter system set outbox_relay.workers = 17;
alter system set outbox_relay.workers = -1;
alter system set outbox_relay.max_databases = 0;
alter system set outbox_relay.enabled = 'perhaps';
select name, setting, applied, error from pg_file_settings
where name like 'outbox\_relay.%' order by name collate "C";

-- Brokers: a list of host:port.
alter system set outbox_relay.bootstrap_servers = 'localhost';
\echo SQLSTATE :LAST_ERROR_SQLSTATE
alter system set outbox_relay.bootstrap_servers = 'localhost:';
alter system set outbox_relay.bootstrap_servers = ':9092';
alter system set outbox_relay.bootstrap_servers = 'localhost:0';
alter system set outbox_relay.bootstrap_servers = 'localhost:65536';
alter system set outbox_relay.bootstrap_servers = 'localhost:kafka';
alter system set outbox_relay.bootstrap_servers = 'one:9092,two';
alter system set outbox_relay.bootstrap_servers = 'one:9092,,two:9092';
alter system set outbox_relay.bootstrap_servers = 'one:9092,';
alter system set outbox_relay.bootstrap_servers = 'one:9092, two:9092, [::1]:9092';
alter system set outbox_relay.bootstrap_servers = '';

-- Properties: the grammar of a connection string.
alter system set outbox_relay.kafka_properties =
    'linger.ms = 5 compression.type=lz4 client.id=''two words'' sasl.username=''o\''b\\x'' ';
alter system set outbox_relay.kafka_properties = '';
alter system set outbox_relay.kafka_properties = 'linger.ms';
\echo SQLSTATE :LAST_ERROR_SQLSTATE
alter system set outbox_relay.kafka_properties = 'linger.ms=5 =6';
alter system set outbox_relay.kafka_properties = 'client.id=''two words';
alter system set outbox_relay.kafka_properties = 'linger.ms=5 linger.ms=6';

-- Properties: those that the client does not know, or not with that value, or not from a text.
alter system set outbox_relay.kafka_properties = 'lingering.ms=5';
alter system set outbox_relay.kafka_properties = 'linger.ms=never';
alter system set outbox_relay.kafka_properties = 'linger.ms=-1';
alter system set outbox_relay.kafka_properties = 'compression.type=rar';
alter system set outbox_relay.kafka_properties = 'security.protocol=carrier-pigeon';
alter system set outbox_relay.kafka_properties = 'dr_cb=0';

-- Properties: what the guarantees stand on is law, under every name it has.
select format('alter system set outbox_relay.kafka_properties = %L', property)
from unnest(array[
    'acks=1', 'request.required.acks=1', 'enable.idempotence=false', 'partitioner=random', 'message.timeout.ms=1000',
    'delivery.timeout.ms=1000', 'message.max.bytes=1000', 'transactional.id=mine', 'transaction.timeout.ms=1000',
    'retries=0', 'message.send.max.retries=0', 'delivery.report.only.error=true', 'enable.gapless.guarantee=true',
    'queuing.strategy=lifo', 'bootstrap.servers=other:9092', 'metadata.broker.list=other:9092',
    'max.in.flight=6', 'max.in.flight.requests.per.connection=6', 'max.in.flight=0', 'max.in.flight=many',
    -- A client with brokers of its own acknowledges what nobody will ever read.
    'test.mock.num.brokers=1'
]) property \gexec
\echo SQLSTATE :LAST_ERROR_SQLSTATE
alter system set outbox_relay.kafka_properties = 'max.in.flight=1';

-- Properties: nothing that loads code into the server, runs commands or takes its signals and log.
select format('alter system set outbox_relay.kafka_properties = %L', property)
from unnest(array[
    'plugin.library.paths=x', 'ssl.engine.location=x', 'ssl.providers=x', 'sasl.kerberos.kinit.cmd=x', 'sasl.kerberos.min.time.before.relogin=1',
    'internal.termination.signal=29', 'log_level=7', 'log.queue=false'
]) property \gexec

-- Properties: no secret, for a setting is shown and logged; and no error repeats one.
select format('alter system set outbox_relay.kafka_properties = %L', property || '=hunter2')
from unnest(array[
    'sasl.password', 'ssl.key.password', 'ssl.key.pem', 'ssl.keystore.password', 'sasl.oauthbearer.config',
    'sasl.oauthbearer.client.secret', 'sasl.oauthbearer.client.credentials.client.secret',
    'sasl.oauthbearer.assertion.private.key.passphrase', 'sasl.oauthbearer.assertion.private.key.pem'
]) property \gexec
alter system set outbox_relay.kafka_properties = 'linger.ms=5 sasl.password=''hunter2';

-- What was refused is not in the file.
select name, setting from pg_file_settings where name in ('outbox_relay.kafka_properties', 'outbox_relay.bootstrap_servers');

-- A plain role may set none, unless he is told that he may; he sees all but the name of the file with secrets.
create role regress_plain;
alter system set outbox_relay.kafka_properties_file = '/nowhere/secrets';
select pg_reload_conf();
\c -
show outbox_relay.kafka_properties_file;
set role regress_plain;
alter system set outbox_relay.enabled = off;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
set outbox_relay.enabled = off;
show outbox_relay.kafka_properties_file;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select current_setting('outbox_relay.kafka_properties_file');
select count(*) from pg_settings where name = 'outbox_relay.kafka_properties_file';
select count(*) from pg_settings where name like 'outbox\_relay.%';
reset role;
grant alter system on parameter outbox_relay.enabled to regress_plain;
set role regress_plain;
alter system set outbox_relay.enabled = on;
alter system set outbox_relay.workers = 2;
reset role;
revoke alter system on parameter outbox_relay.enabled from regress_plain;
drop role regress_plain;

-- A reload takes effect without a restart.
alter system reset outbox_relay.kafka_properties_file;
alter system set outbox_relay.batch_size = 77;
select pg_reload_conf();
\c -
show outbox_relay.batch_size;
show outbox_relay.lease_duration;
show outbox_relay.max_message_bytes;

alter system reset all;
select pg_reload_conf();
\c -
select name, setting from pg_settings where name like 'outbox\_relay.%' and setting <> boot_val;
