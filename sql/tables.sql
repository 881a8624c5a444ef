-- The tables hold the truth; shared memory only wakes, hints and counts.

-- A schema that somebody else owns would let its owner plant functions under our names.
do $$
begin
    if exists (
        select from pg_catalog.pg_namespace n
        where n.nspname = 'outbox'
          and not exists (
              select from pg_catalog.pg_roles r
              where r.oid = n.nspowner and (r.rolname = current_user or r.rolsuper)
          )
    ) then
        raise exception using
            errcode = 'insufficient_privilege',
            message = 'schema "outbox" exists and belongs to another role',
            detail = 'The extension keeps its tables in this schema, whose owner could replace them.',
            hint = 'Drop or rename the schema, or make the installing role its owner.';
    end if;
end
$$;

comment on schema outbox is 'outbox_relay: messages saved with the business change and published to Kafka by background workers';

-- Messages ------------------------------------------------------------------------------------------------------------

-- CACHE 1: a session that hoards ids would write old ids long after newer ones were published.
create sequence outbox.message_id_seq as bigint cache 1;
comment on sequence outbox.message_id_seq is 'ids of outbox.message; must keep CACHE 1, for ids are the order of a bucket';

create table outbox.message (
    bucket integer not null,
    id bigint not null default pg_catalog.nextval('outbox.message_id_seq'),
    topic text collate "C" not null,
    partition integer,
    key bytea,
    value bytea,
    headers bytea,
    message_id uuid not null,
    created_at timestamptz not null default pg_catalog.clock_timestamp(),
    constraint message_pkey primary key (bucket, id),
    constraint message_bucket_check check (bucket between 0 and 1023),
    constraint message_id_check check (id > 0),
    constraint message_partition_check check (partition >= 0)
) with (
    -- Rows live for milliseconds: vacuum by what was written, not by what is left.
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 500000,
    autovacuum_vacuum_cost_delay = 0
);
alter sequence outbox.message_id_seq owned by outbox.message.id;

comment on table outbox.message is 'messages not yet acknowledged by the broker: a row exists if and only if it is still to be published';
comment on column outbox.message.bucket is 'the unit of order and of leasing; computed by outbox.enqueue and never changed by a relay';
comment on column outbox.message.id is 'rows of one bucket are submitted in the order of this id';
comment on column outbox.message.topic is 'Kafka topic';
comment on column outbox.message.partition is 'explicit partition, or null for the one the key hashes to (murmur2, as Java clients do)';
comment on column outbox.message.key is 'key bytes; null means keyless, which is not the same as empty';
comment on column outbox.message.value is 'value bytes; null is a tombstone, which is not the same as empty';
comment on column outbox.message.headers is 'headers in the encoding that outbox.decode_headers reads; null means none';
comment on column outbox.message.message_id is 'identity of the message over all its copies, sent as header x-outbox-message-id';
comment on column outbox.message.created_at is 'when outbox.enqueue stored the row; not the timestamp of the Kafka record';

-- Leases and relays ---------------------------------------------------------------------------------------------------

create table outbox.lease (
    bucket integer not null,
    relay_id text collate "C",
    token bigint not null default 0,
    expires_at timestamptz not null default '-infinity',
    constraint lease_pkey primary key (bucket),
    constraint lease_bucket_check check (bucket >= 0)
) with (fillfactor = 30, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.0);

comment on table outbox.lease is 'which relay may publish a bucket; changed by guarded updates only, rows are seeded by the relays';
comment on column outbox.lease.bucket is 'bucket, from 0 to the bucket count less one';
comment on column outbox.lease.relay_id is 'the relay that holds the lease, or null';
comment on column outbox.lease.token is 'grows by one at every change of owner; every statement of the owner names it';
comment on column outbox.lease.expires_at is 'on this database''s clock; an expired lease may be claimed by any relay';

create table outbox.relay (
    relay_id text collate "C" not null,
    pid integer not null,
    started_at timestamptz not null default pg_catalog.clock_timestamp(),
    last_seen timestamptz not null default pg_catalog.clock_timestamp(),
    stopped_at timestamptz,
    constraint relay_pkey primary key (relay_id)
) with (fillfactor = 30, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.0);

comment on table outbox.relay is 'heartbeats of the relays of this database';
comment on column outbox.relay.relay_id is 'server instance, boot, database, and number of the worker; never used twice';
comment on column outbox.relay.pid is 'process id of the worker';
comment on column outbox.relay.started_at is 'first heartbeat';
comment on column outbox.relay.last_seen is 'latest heartbeat; a relay not seen for a lease duration does not count for the fair share';
comment on column outbox.relay.stopped_at is 'set before a stopping relay frees its leases, so that a late claim of its is refused';

create table outbox.failure (
    bucket integer not null,
    id bigint not null,
    attempts integer not null,
    error text not null,
    first_failed_at timestamptz not null default pg_catalog.clock_timestamp(),
    last_failed_at timestamptz not null default pg_catalog.clock_timestamp(),
    next_try_at timestamptz not null,
    constraint failure_pkey primary key (bucket, id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.0);

comment on table outbox.failure is 'messages at the head of their bucket that the broker refused, with the time of the next attempt';
comment on column outbox.failure.bucket is 'bucket of the message';
comment on column outbox.failure.id is 'id of the message in outbox.message';
comment on column outbox.failure.attempts is 'refused attempts so far';
comment on column outbox.failure.error is 'what the Kafka client reported last';
comment on column outbox.failure.first_failed_at is 'time of the first refusal';
comment on column outbox.failure.last_failed_at is 'time of the latest refusal';
comment on column outbox.failure.next_try_at is 'earliest time of the next attempt';

-- Settings of the database --------------------------------------------------------------------------------------------

-- Seeded by nobody: a row made by the install script would collide with the dumped one at restore.
create table outbox.setting (
    name text collate "C" not null,
    value text not null,
    constraint setting_pkey primary key (name),
    constraint setting_value_check check (
        case name
            when 'bucket_count' then value ~ '^[0-9]{1,4}$' and value::integer between 1 and 1024
            else false
        end
    )
);
comment on table outbox.setting is 'settings that belong to the data and travel with a dump; an absent row is the default';
comment on column outbox.setting.name is 'bucket_count: number of buckets, 1 to 1024, default 8';
comment on column outbox.setting.value is 'value of the setting';

-- Whether to publish --------------------------------------------------------------------------------------------------

-- A copy of a database must not publish what the original publishes. So the first outbox.enqueue stamps the database, the
-- stamp travels with every copy, and where it does not fit nothing is published. Seeded by nobody, as above. No key:
-- transactions that are the first at the same time each bring a stamp, and none waits for another.
create table outbox.publishing (
    stamp text collate "C" not null,
    paused_at timestamptz,
    pause_reason text
);
comment on table outbox.publishing is 'where this database publishes from, and whether an operator has paused it; all rows must allow it';
comment on column outbox.publishing.stamp is 'server and database that may publish these messages; anywhere else it means paused until outbox.resume()';
comment on column outbox.publishing.paused_at is 'when outbox.pause() was called, or null';
comment on column outbox.publishing.pause_reason is 'the reason that was given';

-- Unsent messages and settings are the user's data; leases, heartbeats and failures mean nothing elsewhere.
select pg_catalog.pg_extension_config_dump('outbox.message', '');
select pg_catalog.pg_extension_config_dump('outbox.message_id_seq', '');
select pg_catalog.pg_extension_config_dump('outbox.setting', '');
select pg_catalog.pg_extension_config_dump('outbox.publishing', '');
