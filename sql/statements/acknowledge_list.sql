-- Exactly the rows that were published: not those that were changed, or given their ids, since. Each is looked up by itself: a
-- join may be planned to read all dead rows of the bucket.
delete from outbox.message m
using rows from (pg_catalog.unnest($2), pg_catalog.unnest($3)) p (id, version)
cross join lateral (
    select r.ctid as place from outbox.message r where r.bucket = $1 and r.id = p.id limit 1
) r
where m.ctid = r.place
  and m.xmin::pg_catalog.text::pg_catalog.int8 = p.version
  and exists (
      select from outbox.lease l
      where l.bucket = $1 and l.relay_id = $4 and l.token = $5
  )
