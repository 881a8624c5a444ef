delete from outbox.failure f
where f.bucket = any ($1)
  and not exists (select from outbox.message m where m.bucket = f.bucket and m.id = f.id)
