select outbox.bucket_count()
