insert into outbox.message (bucket, topic, partition, key, value, headers, message_id, id)
values ($1, $2, $3, $4, $5, $6, $7, $8)
