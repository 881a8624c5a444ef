-- The first message at or below a fence ($2), bucket by bucket, from the place ($3, $4) where an earlier search found one:
-- what lies before that is gone for good, and need not be waded through again.
select b.bucket, m.id
from pg_catalog.generate_series($3, $1 - 1) b (bucket)
cross join lateral (
    select m.id
    from outbox.message m
    where m.bucket = b.bucket
      and m.id between case when b.bucket = $3 then $4 else 0 end and $2
    order by m.id
    limit 1
) m
limit 1
