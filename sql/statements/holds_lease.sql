select exists (
    select from outbox.lease l
    where l.bucket = $1 and l.relay_id = $2 and l.token = $3
)
