-- The bucket of a message: partition, else Kafka's murmur2 of the key, else of the message id's bytes, modulo the count.
create extension outbox_relay;

create function bucket_of(key bytea) returns integer language plpgsql as $$
declare
    stored integer;
begin
    perform outbox.enqueue('buckets', key, null::bytea);
    delete from outbox.message returning bucket into strict stored;
    return stored;
end
$$;

-- A key has the bucket that Kafka's hash gives it, for ever: rows keep theirs.
create table vectors (key bytea, bucket_of_8 integer, bucket_of_7 integer, bucket_of_4 integer);
insert into vectors values
    ('', 1, 2, null),
    ('order-12345', 1, 3, null),
    ('stable-key', 1, null, null),
    ('order-1', 6, null, 2),
    ('some-key', 6, null, null),
    ('foobar', 6, null, null),
    ('abc', 3, null, null),
    ('a', 4, null, null),
    ('\x00', 4, null, null),
    ('\x00000000', 0, null, null),
    ('key-0', 1, null, null),
    ('key-1', 0, null, null),
    ('key-2', 6, null, null),
    (convert_to('ключ', 'UTF8'), 0, null, null);
select outbox.bucket_count();
select key, bucket_of_8, bucket_of(key) as got from vectors where bucket_of_8 is distinct from bucket_of(key);

insert into outbox.setting values ('bucket_count', '7');
select key, bucket_of_7, bucket_of(key) as got from vectors where bucket_of_7 <> bucket_of(key);
select bucket_of('') as empty, bucket_of('order-12345') as order_12345;

update outbox.setting set value = '4';
select key, bucket_of_4, bucket_of(key) as got from vectors where bucket_of_4 <> bucket_of(key);
select bucket_of('order-1') as order_1;

-- One bucket takes everything.
update outbox.setting set value = '1';
select distinct bucket_of(key) from vectors;

-- As many as there may be.
update outbox.setting set value = '1024';
select bucket_of('order-1') as order_1, 1221710326 % 1024 as expected;
delete from outbox.setting;

-- Text and bytes of the same key share a bucket, whatever the value is.
select outbox.enqueue('buckets', 'ключ', 'v') as id \gset
select outbox.enqueue('buckets', 'ключ', '1'::jsonb) as id \gset
select outbox.enqueue('buckets', 'ключ', '1'::json) as id \gset
select outbox.enqueue('buckets', 'ключ', '\x01'::bytea) as id \gset
select outbox.enqueue('another-topic', convert_to('ключ', 'UTF8'), '\x01') as id \gset
select bucket, count(*) from outbox.message group by bucket;
truncate outbox.message;

-- An explicit partition wins over the key, and gives its number modulo the count.
select outbox.enqueue('buckets', 'abc', 'v', partition => 5) as id \gset
select outbox.enqueue('buckets', 'abc', 'v', partition => 13) as id \gset
select outbox.enqueue('buckets', null, 'v', partition => 0) as id \gset
select outbox.enqueue('buckets', '', 'v', partition => 2147483647) as id \gset
select bucket, partition from outbox.message order by id;
truncate outbox.message;
insert into outbox.setting values ('bucket_count', '4');
select outbox.enqueue('buckets', 'abc', 'v', partition => 2) as id \gset
select bucket, partition from outbox.message order by id;
truncate outbox.message;
delete from outbox.setting;

-- Without a key the message id decides, by its bytes in the order that its text shows them.
select outbox.enqueue('buckets', null, 'v', message_id => '00112233-4455-6677-8899-aabbccddeeff') as id \gset
select outbox.enqueue('buckets', null, 'v', message_id => '3f2504e0-4f89-11d3-9a0c-0305e82c3301') as id \gset
select bucket, message_id from outbox.message order by id;
with deleted as (delete from outbox.message returning bucket, message_id)
select bucket, message_id from deleted order by bucket;
select bucket_of(uuid_send('00112233-4455-6677-8899-aabbccddeeff')) as first,
       bucket_of(uuid_send('3f2504e0-4f89-11d3-9a0c-0305e82c3301')) as second;

-- Random ids spread: in a thousand, no bucket of 8 is left with less than half of its share or gets twice as much.
select count(outbox.enqueue('buckets', null, 'v')) from generate_series(1, 1000);
select count(*) as buckets, min(rows) > 62 as no_bucket_starves, max(rows) < 250 as no_bucket_drowns
from (select count(*) as rows from outbox.message group by bucket) b;
truncate outbox.message;

-- The count is that of now, also for a transaction whose snapshot is older than the change: writers must not disagree.
begin isolation level repeatable read;
select outbox.bucket_count();
\! psql -X -q -d regression -c "insert into outbox.setting values ('bucket_count', '4')"
select outbox.bucket_count() as of_the_snapshot;
select outbox.enqueue('buckets', 'order-1', 'v') as id \gset
select bucket from outbox.message;
commit;

-- What is stored keeps its bucket.
delete from outbox.setting;
select outbox.enqueue('buckets', 'order-1', 'v') as id \gset
select bucket from outbox.message order by id;

truncate outbox.message;
drop table vectors;
drop function bucket_of;
drop schema outbox cascade;
