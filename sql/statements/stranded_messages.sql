-- Rows in buckets that no relay can own; counted up to 1,000.
select count(*)
from (select from outbox.message where bucket < 0 or bucket >= $1 limit 1000) s
