-- Bucket by bucket: a join would be planned to read the index of all buckets, with all the dead rows in it.
select b
from pg_catalog.unnest($1) b
where (select true from outbox.message m where m.bucket = b limit 1)
