-- What operators call.

create function outbox.version() returns text
    language c immutable parallel safe
    as 'MODULE_PATHNAME', 'outbox_version';
comment on function outbox.version() is 'version of the loaded library; pg_extension.extversion is that of the SQL objects';

create function outbox.reset_stats() returns timestamptz
    language c volatile parallel restricted
    as 'MODULE_PATHNAME', 'outbox_reset_stats';
comment on function outbox.reset_stats() is 'sets the counters of outbox.pg_stat_relay and outbox.pg_stat_bucket of this database to zero';

-- The launcher learns of a new database from here; it looks once the creating transaction has committed.
create function outbox.announce() returns void
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_announce';
comment on function outbox.announce() is 'asks the launcher and the relays to look at this database at commit; harmless at any time';

create function outbox.own_stamp() returns text
    language c stable parallel safe
    as 'MODULE_PATHNAME', 'outbox_own_stamp';
comment on function outbox.own_stamp() is 'the stamp of this server and database, see outbox.publishing';

create function outbox.pause(reason text default null) returns text
    language sql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    begin atomic
        delete from outbox.publishing where publishing.stamp = outbox.own_stamp();
        insert into outbox.publishing (stamp, paused_at, pause_reason)
        values (outbox.own_stamp(), pg_catalog.clock_timestamp(), pause.reason);
        select outbox.announce();
        select 'publishing is paused from commit on; messages are accepted and kept';
    end;
comment on function outbox.pause(text) is
    'stops publishing from this database until outbox.resume(), through restarts too; returns what it did';

create function outbox.resume() returns text
    language sql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    begin atomic
        delete from outbox.publishing;
        insert into outbox.publishing (stamp) values (outbox.own_stamp());
        select outbox.announce();
        select 'publishing goes on from commit on';
    end;
comment on function outbox.resume() is
    'publishes from this database again, after outbox.pause() or where the database is a copy; returns what it did';

select outbox.announce();
