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
    -- Ten times the usual pace: a million rows in two seconds. Without a limit vacuum takes a processor from everybody for as long.
    autovacuum_vacuum_cost_delay = 2,
    autovacuum_vacuum_cost_limit = 2000
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
) with (
    fillfactor = 30,
    -- Renewals change every row each time. The pages clean themselves, and statistics tell nothing: without this, autovacuum
    -- would come by each minute on a server that has nothing to do.
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_analyze_threshold = 100000
);

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
) with (
    fillfactor = 30,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_analyze_threshold = 100000
);

comment on table outbox.relay is 'heartbeats of the relays of this database';
comment on column outbox.relay.relay_id is 'server instance, boot, database, and number of the worker; never used twice';
comment on column outbox.relay.pid is 'process id of the worker';
comment on column outbox.relay.started_at is 'first heartbeat';
comment on column outbox.relay.last_seen is 'latest heartbeat; a relay not seen for a lease duration does not count for the fair share';
comment on column outbox.relay.stopped_at is 'set before a stopping relay frees its leases, so that a late claim of its is refused';

create table outbox.failure (
    bucket integer not null,
    id bigint not null,
    kind text collate "C" not null default 'message',
    attempts integer not null,
    error text not null,
    first_failed_at timestamptz not null default pg_catalog.clock_timestamp(),
    last_failed_at timestamptz not null default pg_catalog.clock_timestamp(),
    next_try_at timestamptz not null,
    parked_at timestamptz,
    constraint failure_pkey primary key (bucket, id),
    constraint failure_kind_check check (kind in ('message', 'topic'))
) with (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.0);

comment on table outbox.failure is 'messages that could not be published and that others wait behind, with the time of the next attempt';
comment on column outbox.failure.bucket is 'bucket of the message';
comment on column outbox.failure.id is 'id of the message in outbox.message';
comment on column outbox.failure.kind is 'what is at fault and so what waits: message (it is refused: it and the later ones of its key wait) or topic (the topic takes none now: all of it wait)';
comment on column outbox.failure.attempts is 'attempts so far that failed; refused ones only, where the message is at fault';
comment on column outbox.failure.error is 'what the Kafka client reported last';
comment on column outbox.failure.first_failed_at is 'time of the first failed attempt';
comment on column outbox.failure.last_failed_at is 'time of the latest failed attempt';
comment on column outbox.failure.next_try_at is 'earliest time of the next attempt, unless the message is parked';
comment on column outbox.failure.parked_at is 'since when it is not tried any more, until an operator acts; null while it is tried';

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
comment on column outbox.setting.name is 'bucket_count: number of buckets, 1 to 1024, default 8; changed by outbox.set_bucket_count() only, for else keys lose their order and messages their relay';
comment on column outbox.setting.value is 'value of the setting';

-- Seeded by nobody, as above.
create table outbox.bucket_change (
    fence_id bigint not null,
    bucket_count integer not null,
    changed_at timestamptz not null default pg_catalog.clock_timestamp(),
    changed_by text collate "C" not null,
    constraint bucket_change_pkey primary key (fence_id),
    constraint bucket_change_fence_check check (fence_id > 0),
    constraint bucket_change_count_check check (bucket_count between 1 and 1024)
);
comment on table outbox.bucket_change is 'changes of the bucket count whose old messages may not all be published; made by outbox.set_bucket_count(), removed by the relays';
comment on column outbox.bucket_change.fence_id is 'last id before the change: no message above it is published as long as one at or below it is left';
comment on column outbox.bucket_change.bucket_count is 'the bucket count until then, which the messages at or below the fence were stored with';
comment on column outbox.bucket_change.changed_at is 'time of the change';
comment on column outbox.bucket_change.changed_by is 'role that called outbox.set_bucket_count()';

-- Topics --------------------------------------------------------------------------------------------------------------

-- Seeded by nobody, as above.
create table outbox.topic (
    topic text collate "C" not null,
    policy text collate "C" not null default 'park_key',
    dead_letter_topic text collate "C",
    max_attempts integer,
    partitions integer,
    paused_at timestamptz,
    pause_reason text,
    constraint topic_pkey primary key (topic),
    constraint topic_policy_check check (policy in ('park_key', 'dead_letter', 'block')),
    constraint topic_max_attempts_check check (max_attempts between 1 and 1000),
    constraint topic_partitions_check check (partitions > 0)
);
comment on table outbox.topic is 'what an operator has said of a Kafka topic; a topic without a row goes by the defaults';
comment on column outbox.topic.topic is 'Kafka topic';
comment on column outbox.topic.policy is 'what becomes of a message that is refused for good: park_key (it and the later ones of its key wait), dead_letter (it is published to another topic), block (its bucket waits)';
comment on column outbox.topic.dead_letter_topic is 'Kafka topic for what policy dead_letter takes out';
comment on column outbox.topic.max_attempts is 'refusals after which the policy acts, 1 to 1000; null means outbox_relay.max_attempts';
comment on column outbox.topic.partitions is 'number of partitions that the operator has declared: outbox.enqueue refuses an explicit partition at or above it; null means unknown';
comment on column outbox.topic.paused_at is 'since when nothing of the topic is published, or null';
comment on column outbox.topic.pause_reason is 'the reason that was given';

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

-- Messages to be stored once ------------------------------------------------------------------------------------------

-- Dumped with the messages: a retry that comes after a restore must find what it would have found before.
create table outbox.once (
    message_id uuid not null,
    stored_at timestamptz not null,
    keep_until timestamptz not null,
    constraint once_pkey primary key (message_id)
) with (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 50000,
    autovacuum_vacuum_insert_scale_factor = 0.0,
    autovacuum_vacuum_insert_threshold = 1000000
);
create index once_keep_until_idx on outbox.once (keep_until);
comment on table outbox.once is 'ids of messages that outbox.enqueue_once() has stored; removed by later calls of it, some time after they have run out';
comment on column outbox.once.message_id is 'as in outbox.message';
comment on column outbox.once.stored_at is 'when the message was stored; outbox.enqueue_once() compares its argument within with the time since then';
comment on column outbox.once.keep_until is 'when the time that was given with the message has run out';
comment on index outbox.once_keep_until_idx is 'finds the ids that have run out';

-- Skipped messages ----------------------------------------------------------------------------------------------------

-- The columns of outbox.message and three more. No key: nothing looks here but people, and an id may come twice by hand.
create table outbox.skipped (
    bucket integer not null,
    id bigint not null,
    topic text collate "C" not null,
    partition integer,
    key bytea,
    value bytea,
    headers bytea,
    message_id uuid not null,
    created_at timestamptz not null,
    skipped_at timestamptz not null default pg_catalog.clock_timestamp(),
    skipped_by text collate "C" not null,
    reason text not null
);
comment on table outbox.skipped is 'messages that outbox.skip() took out of outbox.message unpublished; kept until somebody deletes them';
comment on column outbox.skipped.bucket is 'as in outbox.message';
comment on column outbox.skipped.id is 'as in outbox.message';
comment on column outbox.skipped.topic is 'as in outbox.message';
comment on column outbox.skipped.partition is 'as in outbox.message';
comment on column outbox.skipped.key is 'as in outbox.message';
comment on column outbox.skipped.value is 'as in outbox.message';
comment on column outbox.skipped.headers is 'as in outbox.message';
comment on column outbox.skipped.message_id is 'as in outbox.message';
comment on column outbox.skipped.created_at is 'as in outbox.message';
comment on column outbox.skipped.skipped_at is 'when outbox.skip() was called';
comment on column outbox.skipped.skipped_by is 'role that called it';
comment on column outbox.skipped.reason is 'the reason that was given';

-- Messages, skipped ones and remembered ids too, and settings are the user's data; leases, heartbeats and failures mean nothing elsewhere.
select pg_catalog.pg_extension_config_dump('outbox.message', '');
select pg_catalog.pg_extension_config_dump('outbox.message_id_seq', '');
select pg_catalog.pg_extension_config_dump('outbox.setting', '');
select pg_catalog.pg_extension_config_dump('outbox.bucket_change', '');
select pg_catalog.pg_extension_config_dump('outbox.topic', '');
select pg_catalog.pg_extension_config_dump('outbox.skipped', '');
select pg_catalog.pg_extension_config_dump('outbox.once', '');
select pg_catalog.pg_extension_config_dump('outbox.publishing', '');
