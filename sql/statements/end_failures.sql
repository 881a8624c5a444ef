delete from outbox.failure
where bucket = $1
  and id <= $2
