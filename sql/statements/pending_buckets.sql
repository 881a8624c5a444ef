select b
from pg_catalog.unnest($1) b
where exists (select from outbox.message m where m.bucket = b)
