select extversion from pg_catalog.pg_extension where extname = 'outbox_relay'
