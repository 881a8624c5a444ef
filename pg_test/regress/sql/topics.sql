-- What operators say of a topic: what becomes of messages that are refused for good, and whether anything is published.
create extension outbox_relay;
-- The place in the script is of no interest.
\set SHOW_CONTEXT never
-- Times are.
create view said as
select topic, policy, dead_letter_topic, max_attempts, partitions,
       paused_at between now() - interval '1 minute' and clock_timestamp() as paused, pause_reason
from outbox.topic order by topic;

-- Arguments that are left out leave what they stand for as it is.
select outbox.set_topic('orders', max_attempts => 3);
select outbox.set_topic('orders', policy => 'dead_letter', dead_letter_topic => 'orders.dead');
select outbox.set_topic('orders', partitions => 12);
select outbox.set_topic('audit', 'block');
select * from said;
select outbox.set_topic('orders', partitions => 12);
select outbox.set_topic('audit', 'park_key');
select * from said;
select outbox.set_topic('audit', 'park_key');

-- What cannot be.
select outbox.set_topic(null, 'block');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('no topic', 'block');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('', 'block');
select outbox.set_topic(repeat('x', 250), 'block');
select outbox.set_topic('audit', 'drop');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('audit');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('audit', max_attempts => 0);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('audit', max_attempts => 1001);
select outbox.set_topic('audit', partitions => 0);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('audit', partitions => -1);
select outbox.set_topic('audit', 'dead_letter');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('audit', 'dead_letter', '..');
select outbox.set_topic('audit', 'dead_letter', 'audit');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('audit', dead_letter_topic => 'audit.dead');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('audit', 'block', 'audit.dead');
-- A dead-letter topic has none itself, whichever of the two is set first.
select outbox.set_topic('audit', 'dead_letter', 'orders');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.set_topic('orders.dead', 'dead_letter', 'grave');
select outbox.set_topic('orders.dead', 'block');
select outbox.set_topic('audit', 'dead_letter', 'orders.dead');
select * from said;

-- A dead-letter topic that is not used now is kept for later.
select outbox.set_topic('orders', 'block');
select outbox.set_topic('orders', 'dead_letter');
-- It has its say again from then on.
select outbox.set_topic('orders', 'park_key');
select outbox.set_topic('orders.dead', 'dead_letter', 'grave');
select outbox.reset_topic('audit');
select outbox.set_topic('orders.dead', 'dead_letter', 'grave');
select outbox.set_topic('orders', 'dead_letter');
select * from said;

-- Back to the defaults.
select outbox.reset_topic('orders.dead');
select outbox.reset_topic('orders');
select outbox.reset_topic('orders');
select outbox.reset_topic('no topic');
select outbox.reset_topic(null);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select * from said;

-- A topic is paused and resumed, through everything else that is said of it.
select outbox.pause_topic('orders', 'schema change');
select * from said;
\set VERBOSITY terse
select outbox.pause_topic('orders', 'once more');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
\set VERBOSITY default
do $$
begin
    perform outbox.pause_topic('orders');
exception when object_not_in_prerequisite_state then
    declare
        said text;
        wanted text;
    begin
        get stacked diagnostics said = pg_exception_detail, wanted = pg_exception_hint;
        raise notice '% %', regexp_replace(said, 'Since [^;]+;', 'Since ...;'), wanted;
    end;
end
$$;
select outbox.set_topic('orders', partitions => 6);
select outbox.reset_topic('orders');
select outbox.reset_topic('orders');
select * from said;
select outbox.resume_topic('orders');
select * from said;
select outbox.resume_topic('orders');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.resume_topic('orders, paused');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.pause_topic(null);
select outbox.pause_topic('orders');
select outbox.set_topic('orders', partitions => 6);
select outbox.resume_topic('orders');
select * from said;
select outbox.reset_topic('orders');

-- What is rolled back was not said.
begin;
select outbox.pause_topic('orders');
select outbox.set_topic('audit', 'block');
rollback;
select * from said;
begin;
select outbox.set_topic('orders', 'block');
savepoint s;
select outbox.set_topic('orders', 'dead_letter');
rollback to s;
commit;
select * from said;

-- Changes come one after the other; writers are not held up by one that is open.
begin;
select outbox.pause_topic('orders');
\! PGOPTIONS='-c client_min_messages=error' psql -X -q -At -v VERBOSITY=verbose -v SHOW_CONTEXT=never -d regression -c "select outbox.set_topic('audit', 'block')" 2>&1 | sed '/^LOCATION/d'
\! PGOPTIONS='-c lock_timeout=1s' psql -X -q -At -d regression -c "select outbox.enqueue('orders', 'k', 'v') is not null, outbox.enqueue('orders', 'k', 'v', partition => 1) is not null"
commit;
set lock_timeout = '7s';
select outbox.set_topic('audit', 'block');
show lock_timeout;
reset lock_timeout;
select outbox.reset_topic('audit');
-- Who changes a topic must see the others as they are now; pausing needs nothing of the kind.
begin isolation level repeatable read;
select outbox.set_topic('audit', 'block');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;
begin isolation level serializable;
select outbox.resume_topic('orders');
select outbox.pause_topic('orders', 'serialised');
commit;
begin read only;
select outbox.resume_topic('orders');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
rollback;
select * from said;

-- All of it can be said while publishing is paused, and a change can be prepared.
select outbox.pause('moving house');
select outbox.resume_topic('orders');
select outbox.pause_topic('orders');
begin;
select outbox.resume_topic('orders');
prepare transaction 'regress_topic';
commit prepared 'regress_topic';
select outbox.resume();
select * from said;

-- The view has those of which something is said, and those that fail.
select attname as column, format_type(atttypid, atttypmod) as type
from pg_attribute where attrelid = 'outbox.pg_stat_topic'::regclass and attnum > 0 order by attnum;
truncate outbox.message;
select outbox.set_topic('paused', max_attempts => 7, partitions => 3);
select outbox.pause_topic('paused', 'for the view');
select count(outbox.enqueue(t, k::text, 'v')) from unnest('{fails,missing,fine}'::text[]) t, generate_series(1, 5) k;
insert into outbox.failure (bucket, id, kind, attempts, error, first_failed_at, last_failed_at, next_try_at, parked_at)
select bucket, id, 'message', 5, 'error of ' || convert_from(key, 'UTF8'), '2026-01-01 00:00:00+00',
       timestamptz '2026-01-01 00:01:00+00' + convert_from(key, 'UTF8')::integer * interval '1 s', 'infinity',
       case when key > '2' then timestamptz '2026-01-01 00:02:00+00' end
from outbox.message where topic = 'fails';
insert into outbox.failure (bucket, id, kind, attempts, error, first_failed_at, last_failed_at, next_try_at)
select distinct on (bucket) bucket, id, 'topic', 1, 'unknown topic', '2026-01-01 00:00:00+00', '2026-01-01 00:01:00+00',
       timestamptz 'infinity'
from outbox.message where topic = 'missing' order by bucket, id;
set timezone = 'UTC';
select topic, policy, dead_letter_topic, max_attempts, partitions, paused_at is not null as paused, pause_reason,
       failing, parked, unavailable_since, last_error, last_failed_at
from outbox.pg_stat_topic order by topic;
truncate outbox.message;
select topic from outbox.pg_stat_topic order by topic;
truncate outbox.failure;
select outbox.resume_topic('paused');
select outbox.reset_topic('paused');
select * from said;

-- Nobody but the owner, until it is granted; who called is named.
create role regress_topic login;
grant usage on schema outbox to regress_topic;
\c - regress_topic
select outbox.set_topic('orders', 'block');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.pause_topic('orders');
select outbox.lock_topic('orders');
select outbox.unlock_topic('orders');
\c - postgres
grant execute on function outbox.pause_topic(text, text), outbox.resume_topic(text) to regress_topic;
\c - regress_topic
select outbox.pause_topic('orders');
select outbox.resume_topic('orders');
\c - postgres
revoke all on function outbox.pause_topic(text, text), outbox.resume_topic(text) from regress_topic;
revoke all on schema outbox from regress_topic;
drop role regress_topic;

drop view said;
drop schema outbox cascade;
