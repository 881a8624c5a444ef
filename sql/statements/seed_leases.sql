-- The relays make the lease rows: rows made by the install script would collide with those of a restored dump.
insert into outbox.lease (bucket)
select b
from pg_catalog.generate_series(0, $1 - 1) b
where not exists (select from outbox.lease l where l.bucket = b)
on conflict do nothing
