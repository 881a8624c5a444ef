select (select pg_catalog.count(*) from outbox.message), (select pg_catalog.count(*) from outbox.skipped)
