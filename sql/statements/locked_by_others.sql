-- Whether another transaction has locked any of the rows that were published, those changed since left aside. The others are
-- locked by this one now. Each is looked up by itself: a join may be planned to read all dead rows of the bucket.
select pg_catalog.count(*) > pg_catalog.count(free.locked) as any_locked
from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3)) p (id, version)
cross join lateral (
    select r.ctid as place, r.xmin::pg_catalog.text::pg_catalog.int8 as version
    from outbox.message r where r.bucket = $1 and r.id = p.id limit 1
) r
left join lateral (
    select true as locked from outbox.message m where m.ctid = r.place for update skip locked
) free on true
where r.version = p.version
