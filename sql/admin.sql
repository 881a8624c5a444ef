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
comment on function outbox.announce() is 'asks the launcher to look at this database at commit; harmless at any time';

select outbox.announce();
