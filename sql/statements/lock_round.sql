-- One acquisition round at a time in a database: rounds that overlap would plan from each other's half-done work.
select pg_catalog.pg_advisory_xact_lock('outbox.lease'::pg_catalog.regclass::pg_catalog.oid::pg_catalog.int4, 0)
