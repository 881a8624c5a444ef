-- Partition and bucket of a message, told before it is sent.
\pset null '<null>'
create extension outbox_relay;

-- The partition is that of Kafka's Java clients: murmur2 without its sign, modulo the number of partitions.
select key, outbox.partition_for(key, 7) as of_7, outbox.partition_for(key, 8) as of_8, outbox.partition_for(key, 1) as of_1
from unnest(array['', 'order-12345', 'order-1', 'foobar', 'ключ']) key;
select outbox.partition_for('\x00'::bytea, 8) as nul, outbox.partition_for('\x00000000'::bytea, 8) as nuls;
select outbox.partition_for('ключ', 2147483647) = outbox.partition_for(convert_to('ключ', 'UTF8'), 2147483647) as same;

-- No key may lie on any partition.
select outbox.partition_for(null, 7), outbox.partition_for('k', null);
select outbox.partition_for('k', 0);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.partition_for('k', -1);

-- The bucket is the one that outbox.enqueue chooses, by partition, key, or message id.
create table sample (key text, partition integer, message_id uuid);
insert into sample select 'key-' || i, null, null from generate_series(1, 100) i;
insert into sample select 'key-' || i, i, gen_random_uuid() from generate_series(1, 20) i;
insert into sample select null, null, gen_random_uuid() from generate_series(1, 100) i;
insert into sample values ('', null, null), (null, 13, null);
select count(outbox.enqueue('preview', key, null::text, partition => partition, message_id => message_id)) from sample;
select count(distinct (key, partition, message_id, bucket)) as told
from outbox.message m
where bucket = outbox.bucket_for(key, partition, message_id);
select count(*) from outbox.message where bucket is distinct from outbox.bucket_for(convert_from(key, 'UTF8'), partition, message_id);
truncate outbox.message;
drop table sample;

-- It goes with the bucket count.
select outbox.bucket_for('order-1'), outbox.bucket_for('order-1', 13), outbox.bucket_for(null, 13);
insert into outbox.setting values ('bucket_count', '4');
select outbox.bucket_for('order-1'), outbox.bucket_for('order-1', 13), outbox.bucket_for(null, 13);
delete from outbox.setting;

-- A random id decides, or the arguments are no message.
select outbox.bucket_for(null);
select outbox.bucket_for('k', -1);
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Nothing was stored.
select count(*) from outbox.message;
drop extension outbox_relay;
drop schema outbox;
