select id from outbox.message where bucket = $1 order by id
