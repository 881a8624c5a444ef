-- Of messages that were published.
delete from outbox.failure
where bucket = $1
  and id = any ($2)
