select count(*) from outbox.message
