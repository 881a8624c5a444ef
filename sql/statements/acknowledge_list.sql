delete from outbox.message
where bucket = $1
  and id = any ($2)
  and exists (
      select from outbox.lease l
      where l.bucket = $1 and l.relay_id = $3 and l.token = $4
  )
