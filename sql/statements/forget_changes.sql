-- Of drained fences. Relays follow each other here, and nobody else deletes them.
delete from outbox.bucket_change
where fence_id <= $1
