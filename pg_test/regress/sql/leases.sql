-- The guards of the statements that relays run on leases: who may claim, keep, renew, hand back and acknowledge, and when.
create extension outbox_relay;
\getenv suite PG_ABS_SRCDIR
\set sql :suite '/../../sql/statements'
\set acknowledge_list `cat :'sql'/acknowledge_list.sql`
\set active_relays `cat :'sql'/active_relays.sql`
\set claim_leases `cat :'sql'/claim_leases.sql`
\set drop_stale_failures `cat :'sql'/drop_stale_failures.sql`
\set failures `cat :'sql'/failures.sql`
\set hand_back_leases `cat :'sql'/hand_back_leases.sql`
\set heartbeat `cat :'sql'/heartbeat.sql`
\set keep_leases `cat :'sql'/keep_leases.sql`
\set leases `cat :'sql'/leases.sql`
\set pending_buckets `cat :'sql'/pending_buckets.sql`
\set prune_relays `cat :'sql'/prune_relays.sql`
\set release_leases `cat :'sql'/release_leases.sql`
\set renew_leases `cat :'sql'/renew_leases.sql`
\set seed_leases `cat :'sql'/seed_leases.sql`
\set stop_relay `cat :'sql'/stop_relay.sql`
\set stranded_messages `cat :'sql'/stranded_messages.sql`
prepare acknowledge_list (integer, bigint[], bigint[], text, bigint) as :acknowledge_list;
prepare active_relays (double precision) as :active_relays;
prepare claim (text, integer[], double precision) as :claim_leases;
prepare drop_stale_failures (integer[]) as :drop_stale_failures;
prepare failures (integer[]) as :failures;
prepare hand_back (text, integer[], bigint[]) as :hand_back_leases;
prepare heartbeat (text, integer) as :heartbeat;
prepare keep (text, integer[], bigint[], double precision) as :keep_leases;
prepare leases (integer) as :leases;
prepare pending (integer[]) as :pending_buckets;
prepare prune (text, double precision) as :prune_relays;
prepare release (text) as :release_leases;
prepare renew (text, integer[], bigint[], double precision) as :renew_leases;
prepare seed (integer) as :seed_leases;
prepare stop (text) as :stop_relay;
prepare stranded (integer) as :stranded_messages;
create view held as
select bucket, relay_id, token, 5 * round(extract(epoch from expires_at - clock_timestamp()) / 5) as seconds
from outbox.lease order by bucket;
\set QUIET off

-- Lease rows are made for buckets that lack one, not for so many as are lacking.
execute seed (4);
execute seed (4);
delete from outbox.lease where bucket = 2;
insert into outbox.lease (bucket) values (9);
execute seed (4);
-- Those of a larger bucket count stay and are looked past.
execute leases (4);
truncate outbox.lease;
execute seed (4);

-- Free buckets are claimed under a new token, those of others are not.
execute heartbeat ('a', 1);
execute claim ('a', '{0,1,2,3}', 30);
execute claim ('b', '{0,1,2,3}', 30);
select * from held;

-- A lease is kept by its owner under its token.
execute keep ('a', '{0,1}', '{1,1}', 40);
execute keep ('a', '{2}', '{0}', 40);
execute keep ('b', '{3}', '{1}', 40);
select * from held;

-- After the clock was set back by 25 s nothing is shortened, nobody's lease is free, and heartbeats stay where they were.
update outbox.lease set expires_at = clock_timestamp() + interval '55 s';
update outbox.relay set last_seen = clock_timestamp() + interval '25 s' where relay_id = 'a';
execute keep ('a', '{0,1}', '{1,1}', 30);
execute renew ('a', '{2,3}', '{1,1}', 30);
execute claim ('b', '{0,1,2,3}', 30);
execute heartbeat ('a', 1);
select * from held;
select 5 * round(extract(epoch from last_seen - clock_timestamp()) / 5) as seconds from outbox.relay;

-- Nobody revives an expired lease by renewing it. Its owner may keep it by an acquisition as long as it is nobody else's.
update outbox.lease set expires_at = clock_timestamp() where bucket < 2;
execute renew ('a', '{0,1}', '{1,1}', 30);
execute keep ('a', '{0}', '{1}', 30);
select * from held;

-- Once another has claimed it, nothing that the old owner does has an effect.
execute claim ('b', '{0,1}', 30);
execute keep ('a', '{1}', '{1}', 30);
execute renew ('a', '{1}', '{1}', 30);
execute hand_back ('a', '{1}', '{1}');
execute claim ('a', '{1}', 30);
insert into outbox.message (bucket, topic, message_id) values (1, 't', gen_random_uuid()) returning id \gset
select xmin as version from outbox.message \gset
execute acknowledge_list (1, array[:id], array[:version], 'a', 1);
-- Nor under a token that was the bucket's before, though it is its own again.
execute acknowledge_list (1, array[:id], array[:version], 'b', 1);
execute pending ('{0,1,2}');
execute release ('a');
select * from held;

-- Exactly the named rows of the bucket leave.
insert into outbox.message (bucket, topic, message_id) values (1, 't', gen_random_uuid()), (2, 't', gen_random_uuid());
execute acknowledge_list (1, array[:id, :id + 1], array[:version, :version], 'b', 2);
select bucket from outbox.message;
truncate outbox.message;

-- Which buckets have rows, and whether any lie where no relay can own them, is found without reading what lies there: no more
-- than a row a bucket.
insert into outbox.message (bucket, topic, message_id)
select n % 2, 't', gen_random_uuid() from generate_series(1, 20000) n;
analyze outbox.message;
execute pending ('{0,1,2}');
execute stranded (2);
execute stranded (1);
create function rows_read(statement text) returns bigint language plpgsql as $$
declare
    plan jsonb;
begin
    execute 'explain (analyze, format json) execute ' || statement into plan;
    return (select sum(((node->'Actual Rows')::bigint + coalesce((node->'Rows Removed by Filter')::bigint, 0))
                       * (node->'Actual Loops')::bigint)
            from jsonb_path_query(plan, 'strict $.** ? (@."Relation Name" == "message")') node);
end
$$;
set enable_seqscan = off; -- as relays do
set enable_bitmapscan = off;
select rows_read('pending (''{0,1,2}'')') <= 3 as at_most_one_a_bucket, rows_read('stranded (2)') as none;
drop function rows_read(text);
truncate outbox.message;

-- Neither is what was removed and not yet cleaned away, of other buckets and other messages, when statistics say that the table
-- is empty.
create function blocks_read(statement text) returns bigint language plpgsql as $$
declare
    plan jsonb;
begin
    execute 'explain (analyze, buffers, format json) execute ' || statement into plan;
    return (plan->0->'Plan'->>'Shared Hit Blocks')::bigint + (plan->0->'Plan'->>'Shared Read Blocks')::bigint;
end
$$;
set plan_cache_mode = force_generic_plan; -- as relays do, and so are these
set enable_sort = off;
begin;
update outbox.lease set relay_id = 'a', token = 1, expires_at = 'infinity' where bucket = 3;
insert into outbox.message (bucket, topic, message_id)
select n % 100, 't', gen_random_uuid() from generate_series(1, 20000) n;
insert into outbox.failure (bucket, id, attempts, error, next_try_at)
select bucket, id, 1, 'refused', now() from outbox.message where bucket = 3 order by id limit 10;
delete from outbox.message;
insert into outbox.message (bucket, topic, message_id) values (3, 't', gen_random_uuid());
analyze outbox.message, outbox.failure;
-- The 200 dead rows of bucket 8, each in a place of its own, and no others.
select blocks_read('pending (''{8}'')') < 500 as pending;
select blocks_read(format('acknowledge_list (3, ''{%s}'', ''{1}'', ''a'', 1)', max(id))) < 50 as acknowledge_list
from outbox.message;
select blocks_read('failures (''{3}'')') < 200 as failures;
select blocks_read('drop_stale_failures (''{3}'')') < 300 as drop_stale_failures;
rollback;
reset plan_cache_mode;
reset enable_seqscan;
reset enable_bitmapscan;
reset enable_sort;
drop function blocks_read(text);

-- Handed back, a bucket is free at once, and keeps its token for the next one to count on.
execute hand_back ('b', '{1}', '{2}');
execute claim ('c', '{1}', 30);

-- Stopped, a relay neither counts nor comes back; whoever was not seen for a lease duration does not count either.
execute heartbeat ('b', 2);
execute heartbeat ('c', 3);
update outbox.relay set last_seen = clock_timestamp() - interval '30 s' where relay_id = 'a';
execute active_relays (30);
execute stop ('b');
execute heartbeat ('b', 2);
execute active_relays (30);

-- Those are forgotten a lease duration after they stopped, or ten after they were seen last.
execute prune ('c', 30);
update outbox.relay set last_seen = clock_timestamp() - interval '31 s' where relay_id = 'b';
execute prune ('c', 30);
update outbox.relay set last_seen = clock_timestamp() - interval '290 s' where relay_id = 'a';
execute prune ('c', 30);
update outbox.relay set last_seen = clock_timestamp() - interval '310 s';
execute prune ('c', 30);
select relay_id from outbox.relay;

drop view held;
drop schema outbox cascade;
