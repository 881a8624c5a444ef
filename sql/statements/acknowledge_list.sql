-- Exactly the rows that were published: not those that were changed, or given their ids, since.
delete from outbox.message m
using rows from (pg_catalog.unnest($2), pg_catalog.unnest($3)) p (id, version)
where m.bucket = $1
  and m.id = p.id
  and m.xmin::pg_catalog.text::pg_catalog.int8 = p.version
  and exists (
      select from outbox.lease l
      where l.bucket = $1 and l.relay_id = $4 and l.token = $5
  )
