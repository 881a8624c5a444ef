-- "Is it working?" Two views answer: what each relay does and why, what each bucket holds and who publishes it.
\pset null '<null>'
create extension outbox_relay;

-- Polls until the condition holds; gives up after 30 seconds with what there is instead.
create function wait_for(condition text) returns void language plpgsql as $$
declare
    reached boolean;
begin
    for i in 1..3000 loop
        execute 'select ' || condition into reached;
        if reached then
            return;
        end if;
        perform pg_sleep(0.01);
    end loop;
    raise exception 'not reached: %', trim(condition)
        using detail = (select string_agg(r::text, e'\n') from outbox.pg_stat_relay r);
end
$$;

-- Names and types of the columns are a promise.
select a.attname as column, format_type(a.atttypid, a.atttypmod) as type
from pg_attribute a where a.attrelid = 'outbox.pg_stat_relay'::regclass and a.attnum > 0 order by a.attnum;
select a.attname as column, format_type(a.atttypid, a.atttypmod) as type
from pg_attribute a where a.attrelid = 'outbox.pg_stat_bucket'::regclass and a.attnum > 0 order by a.attnum;

-- Every bucket has a row, before there was any message, lease or relay that has seen it.
select bucket, relay_id, token, state, backlog, oldest_created_at, oldest_age, acknowledged, last_acknowledged_at,
       failing_id, attempts, failing_since, last_error, next_try_at
from outbox.pg_stat_bucket order by bucket;

-- Without a broker a relay says so.
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'not configured') $$);
select relay_id, pid is not null as pid, state, state_since <= clock_timestamp() as since, leased_buckets, batches,
       messages, bytes, errors, last_error, last_error_at, started_at, last_seen
from outbox.pg_stat_relay;
select a.datname = current_database() as database, a.backend_type, a.application_name
from outbox.pg_stat_relay r join pg_stat_activity a using (pid);
select datname as launcher_in, count(*) from pg_stat_activity where backend_type = 'outbox_relay launcher' group by datname;

-- A backlog that nobody publishes: rows, since when, and that no relay holds a lease.
select count(outbox.enqueue('views', i::text, 'v', partition => 3)) from generate_series(1, 5) i;
select count(outbox.enqueue('views', i::text, 'v', partition => 4)) from generate_series(1, 999) i;
select count(outbox.enqueue('views', i::text, 'v', partition => 5)) from generate_series(1, 1000) i;
-- Counted up to a thousand: the view stays cheap in an incident.
select count(outbox.enqueue('views', i::text, 'v', partition => 6)) from generate_series(1, 1001) i;
select bucket, state, backlog,
       oldest_created_at = (select min(m.created_at) from outbox.message m where m.bucket = b.bucket) as oldest,
       oldest_age between interval '0' and interval '10 minutes' as age
from outbox.pg_stat_bucket b order by bucket;
-- Ages are those of one moment, however long it takes to read the view.
select count(distinct oldest_created_at + oldest_age) as moments, count(oldest_age) as ages
from (select b.*, pg_sleep(0.01) from outbox.pg_stat_bucket b offset 0) b;

-- A lease counts as long as it has not expired.
insert into outbox.lease values
    (3, 'regress', 7, clock_timestamp() + interval '1 hour'),
    (4, 'regress', 8, clock_timestamp() - interval '1 ms');
select bucket, relay_id, token, lease_expires_at > clock_timestamp() as leased, state
from outbox.pg_stat_bucket where bucket between 3 and 5 order by bucket;
delete from outbox.lease;

-- A message that the broker refuses, with what is known of it.
insert into outbox.failure (bucket, id, attempts, error, first_failed_at, last_failed_at, next_try_at)
select bucket, id, 3, 'Broker: Unknown topic or partition',
       '2026-01-01 00:00:00+00', '2026-01-01 00:01:00+00', '2026-01-01 00:02:00+00'
from outbox.message where bucket = 3 order by id limit 1;
select bucket, state, backlog, failing_id = (select min(m.id) from outbox.message m where m.bucket = b.bucket) as first,
       attempts, failing_since at time zone 'UTC' as failing_since, last_error, next_try_at at time zone 'UTC' as next_try_at
from outbox.pg_stat_bucket b where failing_id is not null;
-- Once the message is gone, so is its failure.
delete from outbox.message where bucket = 3;
select bucket, state, failing_id from outbox.pg_stat_bucket where bucket = 3;
truncate outbox.failure;

-- As many rows as buckets, and those beyond that still hold rows: nobody can claim them, so they must not be hidden.
insert into outbox.setting values ('bucket_count', '2');
select bucket, state, backlog from outbox.pg_stat_bucket order by bucket;
update outbox.setting set value = '1024';
select count(*), min(bucket), max(bucket) from outbox.pg_stat_bucket;
delete from outbox.setting;
truncate outbox.message;

-- Settings take effect by a reload: as many relays as they say, none, one that is disabled.
alter system set outbox_relay.workers = 3;
select pg_reload_conf();
select wait_for($$ 3 = (select count(*) from outbox.pg_stat_relay where state = 'not configured') $$);
select count(distinct pid) as workers from outbox.pg_stat_relay;
alter system set outbox_relay.workers = 0;
select pg_reload_conf();
select wait_for($$ not exists (select from outbox.pg_stat_relay) $$);
select count(*) from outbox.pg_stat_bucket;
alter system reset outbox_relay.workers;
alter system set outbox_relay.enabled = off;
select pg_reload_conf();
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'disabled') $$);
alter system reset outbox_relay.enabled;
select pg_reload_conf();
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'not configured') $$);

-- What keeps a relay from its work can be read in SQL: SQL objects of another version than the library, settings that
-- contradict each other, a file that cannot be read.
update pg_extension set extversion = '0.0.9' where extname = 'outbox_relay';
select pg_reload_conf();
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'version mismatch') $$);
select last_error ~ '0\.0\.9' as reason, last_error_at <= clock_timestamp() as at from outbox.pg_stat_relay;
update pg_extension set extversion = outbox.version() where extname = 'outbox_relay';
select pg_reload_conf();
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'not configured') $$);
alter system set outbox_relay.lease_renew_interval = '30s';
select pg_reload_conf();
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'misconfigured') $$);
select last_error ~ 'lease_renew_interval' as reason, last_error_at <= clock_timestamp() as at from outbox.pg_stat_relay;
alter system reset outbox_relay.lease_renew_interval;
select pg_reload_conf();
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'not configured') $$);
alter system set outbox_relay.bootstrap_servers = '127.0.0.1:1';
alter system set outbox_relay.kafka_properties_file = '/nowhere/secrets';
select pg_reload_conf();
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'misconfigured') $$);
select last_error ~ '/nowhere/secrets' as reason, last_error_at <= clock_timestamp() as at from outbox.pg_stat_relay;
alter system reset outbox_relay.kafka_properties_file;

-- A broker that cannot be reached: messages are accepted and kept, the relay holds the leases and says what is wrong.
select outbox.enqueue('views', 'order-1', 'v') as id \gset
select pg_reload_conf();
select wait_for($$
    exists (select from outbox.pg_stat_relay where state = 'waiting for broker' and last_error ~* 'connect')
$$);
select leased_buckets, batches, messages, bytes, errors > 0 as errors, last_error_at is not null as at,
       started_at <= last_seen as heartbeat
from outbox.pg_stat_relay;
select b.bucket, b.relay_id = r.relay_id as leased, b.token, b.lease_expires_at > clock_timestamp() as valid, b.state,
       b.backlog
from outbox.pg_stat_bucket b, outbox.pg_stat_relay r order by b.bucket;

-- Stopped by a setting, it gives its leases back.
alter system reset outbox_relay.bootstrap_servers;
alter system set outbox_relay.enabled = off;
select pg_reload_conf();
select wait_for($$ exists (select from outbox.pg_stat_relay where state = 'disabled') $$);
select relay_id, leased_buckets, errors > 0 as errors from outbox.pg_stat_relay;
select count(*) from outbox.lease where relay_id is not null;
select state, backlog from outbox.pg_stat_bucket where backlog > 0;
select count(*) from outbox.relay where stopped_at is not null;

-- Counters begin again, and say since when.
select outbox.reset_stats() as reset_at \gset
select batches, messages, bytes, errors, stats_reset = :'reset_at' as reset from outbox.pg_stat_relay;
select sum(acknowledged) as acknowledged, count(last_acknowledged_at) from outbox.pg_stat_bucket;
select count(*) from outbox.message;

alter system reset all;
select pg_reload_conf();
truncate outbox.message;
drop function wait_for;
drop schema outbox cascade;
