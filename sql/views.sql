-- "Is it working?" Never a key or a value here: payloads may be secret.

create function outbox.relay_status(
    out relay_id text,
    out pid integer,
    out state text,
    out state_since timestamptz,
    out batches bigint,
    out messages bigint,
    out bytes bigint,
    out errors bigint,
    out last_error text,
    out last_error_at timestamptz,
    out stats_reset timestamptz
) returns setof record
    language c volatile parallel restricted
    as 'MODULE_PATHNAME', 'outbox_relay_status';
comment on function outbox.relay_status() is 'what the running relays of this database note in shared memory; read it through outbox.pg_stat_relay';

create function outbox.bucket_status(
    out bucket integer,
    out acknowledged bigint,
    out last_acknowledged_at timestamptz
) returns setof record
    language c volatile parallel restricted
    as 'MODULE_PATHNAME', 'outbox_bucket_status';
comment on function outbox.bucket_status() is 'counters of the buckets of this database in shared memory; read it through outbox.pg_stat_bucket';

create view outbox.pg_stat_relay as
select s.relay_id,
       s.pid,
       s.state,
       s.state_since,
       (select count(*)
        from outbox.lease l
        where l.relay_id = s.relay_id and l.expires_at > pg_catalog.clock_timestamp()) as leased_buckets,
       s.batches,
       s.messages,
       s.bytes,
       s.errors,
       s.last_error,
       s.last_error_at,
       r.started_at,
       r.last_seen,
       s.stats_reset
from outbox.relay_status() s
left join outbox.relay r on r.relay_id = s.relay_id collate "C";

comment on view outbox.pg_stat_relay is 'one row for each running relay of this database';
comment on column outbox.pg_stat_relay.relay_id is 'identity of the relay, as in outbox.lease; null until it has a Kafka client';
comment on column outbox.pg_stat_relay.pid is 'process id, as in pg_stat_activity';
comment on column outbox.pg_stat_relay.state is 'what it does or waits for: starting, idle, publishing, waiting for broker, backing off, standby, paused, paused as a copy, disabled, not configured, misconfigured, version mismatch, stopping';
comment on column outbox.pg_stat_relay.state_since is 'since when it is in this state';
comment on column outbox.pg_stat_relay.leased_buckets is 'buckets with an unexpired lease of this relay';
comment on column outbox.pg_stat_relay.batches is 'batches acknowledged';
comment on column outbox.pg_stat_relay.messages is 'messages acknowledged by the broker and removed';
comment on column outbox.pg_stat_relay.bytes is 'bytes of key, value and headers of those messages';
comment on column outbox.pg_stat_relay.errors is 'failed attempts: refused messages, failed statements, errors of the Kafka client';
comment on column outbox.pg_stat_relay.last_error is 'text of the latest of them';
comment on column outbox.pg_stat_relay.last_error_at is 'time of the latest of them';
comment on column outbox.pg_stat_relay.started_at is 'first heartbeat';
comment on column outbox.pg_stat_relay.last_seen is 'latest heartbeat';
comment on column outbox.pg_stat_relay.stats_reset is 'since when the counters count';

-- What is left is counted up to 1,000 rows, bucket by bucket: the rows above the fence may be many.
create view outbox.pg_stat_bucket_change as
select c.fence_id,
       c.bucket_count,
       l.rows_left,
       c.changed_at,
       c.changed_by
from outbox.bucket_change c
cross join lateral (
    select count(*) as rows_left
    from (
        select
        from pg_catalog.generate_series(
            0, (select max(e.bucket_count) from outbox.bucket_change e where e.fence_id <= c.fence_id) - 1
        ) b (bucket)
        cross join lateral (
            select from outbox.message m where m.bucket = b.bucket and m.id <= c.fence_id limit 1000
        ) m
        limit 1000
    ) r
) l
where l.rows_left > 0;

comment on view outbox.pg_stat_bucket_change is 'changes of the bucket count that messages still wait for: those above the fence for those at or below it';
comment on column outbox.pg_stat_bucket_change.fence_id is 'last id before the change';
comment on column outbox.pg_stat_bucket_change.bucket_count is 'the bucket count until then';
comment on column outbox.pg_stat_bucket_change.rows_left is 'messages at or below the fence that are still to be published, counted up to 1000';
comment on column outbox.pg_stat_bucket_change.changed_at is 'time of the change';
comment on column outbox.pg_stat_bucket_change.changed_by is 'role that called outbox.set_bucket_count()';

-- The backlog is counted up to 1,000 rows a bucket: a view that reads the whole table is no help in an incident.
create view outbox.pg_stat_bucket as
select b.bucket,
       l.relay_id,
       l.token,
       l.expires_at as lease_expires_at,
       case
           when o.id is null then 'empty'
           when l.relay_id is null or l.expires_at <= pg_catalog.clock_timestamp() then 'unowned'
           when o.id > (select min(c.fence_id) from outbox.pg_stat_bucket_change c) then 'fenced'
           when f.id is not null then 'failing'
           else 'pending'
       end as state,
       (select count(*) from (select from outbox.message m where m.bucket = b.bucket limit 1000) c) as backlog,
       o.created_at as oldest_created_at,
       -- One moment for all rows, however long the view takes to read them.
       (select pg_catalog.clock_timestamp()) - o.created_at as oldest_age,
       coalesce(s.acknowledged, 0) as acknowledged,
       s.last_acknowledged_at,
       f.id as failing_id,
       f.attempts,
       f.first_failed_at as failing_since,
       f.error as last_error,
       f.next_try_at
from pg_catalog.generate_series(
    0, greatest(outbox.bucket_count() - 1, (select max(m.bucket) from outbox.message m))
) b (bucket)
left join outbox.lease l on l.bucket = b.bucket
left join outbox.bucket_status() s on s.bucket = b.bucket
left join lateral (
    select m.id, m.created_at from outbox.message m where m.bucket = b.bucket order by m.id limit 1
) o on true
left join lateral (
    select e.id, e.attempts, e.first_failed_at, e.error, e.next_try_at
    from outbox.failure e
    where e.bucket = b.bucket
      and exists (select from outbox.message m where m.bucket = e.bucket and m.id = e.id)
    order by e.id
    limit 1
) f on true
-- Beyond the count a bucket has no relay: it is shown as long as rows lie there.
where b.bucket < outbox.bucket_count() or o.id is not null;

comment on view outbox.pg_stat_bucket is 'one row for each bucket: who publishes it, what waits in it and why';
comment on column outbox.pg_stat_bucket.bucket is 'bucket, from 0 to outbox.bucket_count() less one, and any above that holds rows';
comment on column outbox.pg_stat_bucket.relay_id is 'the relay named by the lease';
comment on column outbox.pg_stat_bucket.token is 'grows at every change of owner';
comment on column outbox.pg_stat_bucket.lease_expires_at is 'when the lease ends unless it is renewed';
comment on column outbox.pg_stat_bucket.state is 'empty, pending, failing (a message of it is failing or parked, see outbox.parked), unowned (rows, but no relay holds a lease), fenced (its messages wait for those of an earlier bucket count, see outbox.pg_stat_bucket_change)';
comment on column outbox.pg_stat_bucket.backlog is 'rows waiting, counted up to 1000';
comment on column outbox.pg_stat_bucket.oldest_created_at is 'when the first waiting row was stored';
comment on column outbox.pg_stat_bucket.oldest_age is 'how long it has been waiting';
comment on column outbox.pg_stat_bucket.acknowledged is 'messages of this bucket acknowledged since the server started or outbox.reset_stats()';
comment on column outbox.pg_stat_bucket.last_acknowledged_at is 'time of the latest of them';
comment on column outbox.pg_stat_bucket.failing_id is 'id of the first message of it that is failing or parked';
comment on column outbox.pg_stat_bucket.attempts is 'failed attempts of that message';
comment on column outbox.pg_stat_bucket.failing_since is 'time of the first of them';
comment on column outbox.pg_stat_bucket.last_error is 'what the Kafka client reported last';
comment on column outbox.pg_stat_bucket.next_try_at is 'earliest time of the next attempt';

-- Who waits is looked for among the next 10,000 rows of each bucket, once for all that fail there, and not at all unless that
-- column is asked for: such a join is left out. What has one unit of order has the same text here: a bucket, a topic, a key,
-- or, without keys, a partition. '/' is in no topic's name.
-- A message is looked up by itself ("limit 1"): a join with a table of which statistics say that it is empty may be planned to
-- read all its dead rows.
create view outbox.parked as
select f.bucket,
       f.id,
       m.message_id,
       m.topic,
       case when f.kind = 'topic' then 'topic' when f.parked_at is not null then 'parked' else 'failing' end as state,
       f.attempts,
       f.error,
       f.first_failed_at as since,
       case when f.parked_at is null then f.next_try_at end as next_try_at,
       f.parked_at,
       coalesce(w.waiting, 0) as waiting
from outbox.failure f
cross join lateral (
    select m.message_id, m.topic from outbox.message m where m.bucket = f.bucket and m.id = f.id limit 1
) m
left join (
    -- As it is written: statistics of a table that is mostly empty would have a planner read them once for each that fails.
    with behind as materialized (
        select b.bucket, n.id, u.unit
        from (select f.bucket, min(f.id) as id from outbox.failure f group by f.bucket) b
        cross join lateral (
            select m.id, m.topic, m.key, m.partition
            from outbox.message m
            where m.bucket = b.bucket and m.id > b.id
            order by m.id
            limit 10000
        ) n
        cross join lateral (
            values (''), (n.topic), (n.topic || coalesce('/k' || encode(n.key, 'hex'), '/p' || n.partition))
        ) u (unit)
    ), first as materialized (
        select f.bucket,
               f.id,
               case
                   when t.policy = 'block' then ''
                   when f.kind = 'topic' then m.topic
                   else m.topic || coalesce('/k' || encode(m.key, 'hex'), '/p' || m.partition)
               end as unit
        from outbox.failure f
        cross join lateral (
            select m.topic, m.key, m.partition from outbox.message m where m.bucket = f.bucket and m.id = f.id limit 1
        ) m
        left join outbox.topic t on t.topic = m.topic
    )
    select f.bucket, f.id, least(count(*), 1000) as waiting
    from first f
    join behind b on b.bucket = f.bucket and b.unit = f.unit and b.id > f.id
    group by f.bucket, f.id
) w on w.bucket = f.bucket and w.id = f.id;

comment on view outbox.parked is 'messages that cannot be published now and that others wait behind, with the reason';
comment on column outbox.parked.bucket is 'bucket of the message';
comment on column outbox.parked.id is 'id of the message in outbox.message';
comment on column outbox.parked.message_id is 'identity of the message, as returned by outbox.enqueue';
comment on column outbox.parked.topic is 'Kafka topic';
comment on column outbox.parked.state is 'failing (it is refused and tried again), parked (it is not tried any more until an operator acts), topic (its topic takes no messages now; it is tried again)';
comment on column outbox.parked.attempts is 'failed attempts so far';
comment on column outbox.parked.error is 'what the Kafka client reported last';
comment on column outbox.parked.since is 'time of the first failed attempt';
comment on column outbox.parked.next_try_at is 'earliest time of the next attempt; null if it is parked';
comment on column outbox.parked.parked_at is 'since when it is not tried any more';
comment on column outbox.parked.waiting is 'messages that wait for it, counted up to 1000 among the first 10000 of its bucket behind the first that fails there';

create view outbox.pg_stat_topic as
select coalesce(t.topic, f.topic) as topic,
       coalesce(t.policy, 'park_key') as policy,
       t.dead_letter_topic,
       t.max_attempts,
       t.partitions,
       t.paused_at,
       t.pause_reason,
       coalesce(f.failing, 0) as failing,
       coalesce(f.parked, 0) as parked,
       f.unavailable_since,
       f.last_error,
       f.last_failed_at
from outbox.topic t
full join (
    select m.topic,
           count(*) filter (where f.kind = 'message' and f.parked_at is null) as failing,
           count(*) filter (where f.kind = 'message' and f.parked_at is not null) as parked,
           min(f.first_failed_at) filter (where f.kind = 'topic') as unavailable_since,
           (array_agg(f.error order by f.last_failed_at desc))[1] as last_error,
           max(f.last_failed_at) as last_failed_at
    from outbox.failure f
    cross join lateral (
        select m.topic from outbox.message m where m.bucket = f.bucket and m.id = f.id limit 1
    ) m
    group by m.topic
) f on f.topic = t.topic;

comment on view outbox.pg_stat_topic is 'one row for each topic that an operator has said something of or that has messages which cannot be published now';
comment on column outbox.pg_stat_topic.topic is 'Kafka topic';
comment on column outbox.pg_stat_topic.policy is 'what becomes of a message that is refused for good: park_key, dead_letter, block';
comment on column outbox.pg_stat_topic.dead_letter_topic is 'Kafka topic for what policy dead_letter takes out';
comment on column outbox.pg_stat_topic.max_attempts is 'refusals after which the policy acts; null means outbox_relay.max_attempts';
comment on column outbox.pg_stat_topic.partitions is 'number of partitions that was declared, or null';
comment on column outbox.pg_stat_topic.paused_at is 'since when it is paused by outbox.pause_topic(), or null';
comment on column outbox.pg_stat_topic.pause_reason is 'the reason that was given';
comment on column outbox.pg_stat_topic.failing is 'messages that are refused and tried again; those that wait behind them are not counted';
comment on column outbox.pg_stat_topic.parked is 'messages that are not tried any more until an operator acts; those that wait behind them are not counted';
comment on column outbox.pg_stat_topic.unavailable_since is 'since when the topic takes no messages at all, or null';
comment on column outbox.pg_stat_topic.last_error is 'what the Kafka client reported last of these messages';
comment on column outbox.pg_stat_topic.last_failed_at is 'time of the latest failed attempt';
