select pg_catalog.nextval('outbox.message_id_seq')
