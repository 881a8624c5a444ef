-- Rows in buckets that no relay can own; counted up to 1,000. Two ranges of the key, for a condition with "or" would read
-- the whole backlog each time.
select count(*)
from (
    select
    from (
        (select from outbox.message where bucket < 0 limit 1000)
        union all
        (select from outbox.message where bucket >= $1 limit 1000)
    ) both_ranges
    limit 1000
) s
