-- Publishing can be paused, and a database with the stamp of another one is.
create extension outbox_relay;
select count(*) as stamps from outbox.publishing;

-- The first message stamps the database; a rolled back one does not.
begin;
select outbox.enqueue('pause', 'k', 'v') is not null as enqueued;
select count(*) as stamps from outbox.publishing;
rollback;
select count(*) as stamps from outbox.publishing;
select outbox.enqueue('pause', 'k', 'v') is not null as enqueued;
select outbox.enqueue('pause', 'k', 'v') is not null as enqueued;
select stamp = outbox.own_stamp() as own, paused_at, pause_reason from outbox.publishing;
select outbox.own_stamp() =
    (select system_identifier from pg_control_system()) || '.' || (select oid from pg_database where datname = current_database()) as format;

create function wait_for(wanted text) returns text language plpgsql as $$
begin
    for i in 1..3000 loop
        if exists (select from outbox.pg_stat_relay where state = wanted) then
            return 'reached: ' || wanted;
        end if;
        perform pg_sleep(0.01);
    end loop;
    raise exception 'not reached: %', wanted
        using detail = (select string_agg(r::text, e'\n') from outbox.pg_stat_relay r);
end
$$;

select outbox.pause('moving house');
select wait_for('paused');
select paused_at <= clock_timestamp() as since, pause_reason from outbox.publishing;
-- Messages are accepted.
select outbox.enqueue('pause', 'k', 'v') is not null as enqueued;
select outbox.pause();
select paused_at <= clock_timestamp() as since, pause_reason from outbox.publishing;
begin;
select outbox.resume();
rollback;
select paused_at is not null as still_paused from outbox.publishing;
select outbox.resume();
select wait_for('not configured');
select paused_at, pause_reason from outbox.publishing;

-- The stamp of another database.
update outbox.publishing set stamp = '1.2';
select outbox.announce();
select wait_for('paused as a copy');
select regexp_replace(last_error, 'this is [0-9.]+\.', 'this is ours.') as last_error from outbox.pg_stat_relay;
select outbox.enqueue('pause', 'k', 'v') is not null as enqueued;
select stamp from outbox.publishing;
select outbox.resume();
select wait_for('not configured');
select stamp = outbox.own_stamp() as own from outbox.publishing;

-- Of several stamps all must fit.
insert into outbox.publishing (stamp) select outbox.own_stamp();
select outbox.announce();
select wait_for('not configured');
insert into outbox.publishing (stamp) values ('3.4');
select outbox.announce();
select wait_for('paused as a copy');
select outbox.pause();
select count(*) as stamps from outbox.publishing;
select outbox.resume();
select wait_for('not configured');
select count(*) as stamps from outbox.publishing;
\set VERBOSITY terse
create role pause_nobody;
grant usage on schema outbox to pause_nobody;
set role pause_nobody;
select outbox.pause();
select outbox.resume();
reset role;
grant execute on function outbox.pause(text), outbox.resume() to pause_nobody;
set role pause_nobody;
select outbox.pause('allowed');
select outbox.resume();
reset role;
revoke all on function outbox.pause(text), outbox.resume() from pause_nobody;
revoke all on schema outbox from pause_nobody;
drop role pause_nobody;
drop function wait_for;
set client_min_messages = error;
drop extension outbox_relay;
