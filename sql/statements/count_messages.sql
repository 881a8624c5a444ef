select pg_catalog.count(*) from outbox.message
