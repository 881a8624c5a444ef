-- Where a message would go, told before it is sent. Neither looks at a topic: how many partitions it has, Kafka knows.

create function outbox.partition_for(key bytea, partitions integer) returns integer
    language c immutable strict parallel safe
    as 'MODULE_PATHNAME', 'outbox_partition_for_bytea';
comment on function outbox.partition_for(bytea, integer) is
    'the partition, from 0, on which a message with this key lies in a topic with so many partitions; null for no key, which may lie on any';

create function outbox.partition_for(key text, partitions integer) returns integer
    language c immutable strict parallel safe
    as 'MODULE_PATHNAME', 'outbox_partition_for_text';
comment on function outbox.partition_for(text, integer) is
    'the partition, from 0, on which a message with this key lies in a topic with so many partitions; null for no key, which may lie on any';

create function outbox.bucket_for(key bytea, partition integer default null, message_id uuid default null) returns integer
    language c stable parallel safe
    as 'MODULE_PATHNAME', 'outbox_bucket_for_bytea';
comment on function outbox.bucket_for(bytea, integer, uuid) is
    'the bucket in which outbox.enqueue would store a message now; null where a random message id decides';

create function outbox.bucket_for(key text, partition integer default null, message_id uuid default null) returns integer
    language c stable parallel safe
    as 'MODULE_PATHNAME', 'outbox_bucket_for_text';
comment on function outbox.bucket_for(text, integer, uuid) is
    'the bucket in which outbox.enqueue would store a message now; null where a random message id decides';
