-- What writers call. One C function a combination of key and value types, so that untyped literals resolve to text.
--
-- Nobody but the owner may write outbox.message, so the functions take on the owner's rights for that moment themselves, and pin
-- the search path where triggers of the table's run: SECURITY DEFINER with a search path costs more than storing the row.
-- PARALLEL UNSAFE because they write.

create function outbox.enqueue(
    topic text,
    key bytea,
    value bytea,
    headers jsonb default null,
    partition integer default null,
    message_id uuid default null
) returns uuid
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_bytea_bytea';
comment on function outbox.enqueue(text, bytea, bytea, jsonb, integer, uuid) is
    'saves a message in the current transaction, to be published to Kafka once it commits; returns the message id';

create function outbox.enqueue(
    topic text,
    key text,
    value text,
    headers jsonb default null,
    partition integer default null,
    message_id uuid default null
) returns uuid
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_text_text';
comment on function outbox.enqueue(text, text, text, jsonb, integer, uuid) is
    'saves a message in the current transaction, to be published to Kafka once it commits; returns the message id';

create function outbox.enqueue(
    topic text,
    key text,
    value jsonb,
    headers jsonb default null,
    partition integer default null,
    message_id uuid default null
) returns uuid
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_text_jsonb';
comment on function outbox.enqueue(text, text, jsonb, jsonb, integer, uuid) is
    'saves a message in the current transaction, to be published to Kafka once it commits; returns the message id';

create function outbox.enqueue(
    topic text,
    key text,
    value json,
    headers jsonb default null,
    partition integer default null,
    message_id uuid default null
) returns uuid
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_text_json';
comment on function outbox.enqueue(text, text, json, jsonb, integer, uuid) is
    'saves a message in the current transaction, to be published to Kafka once it commits; returns the message id';

create function outbox.enqueue(
    topic text,
    key text,
    value bytea,
    headers jsonb default null,
    partition integer default null,
    message_id uuid default null
) returns uuid
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_text_bytea';
comment on function outbox.enqueue(text, text, bytea, jsonb, integer, uuid) is
    'saves a message in the current transaction, to be published to Kafka once it commits; returns the message id';

create function outbox.decode_headers(headers bytea) returns jsonb
    language c immutable strict parallel safe
    as 'MODULE_PATHNAME', 'outbox_decode_headers';
comment on function outbox.decode_headers(bytea) is
    'headers of a stored message as an array of [name, value] pairs; a value that is no UTF-8 text is {"base64": ...}';

create function outbox.encode_headers(headers jsonb) returns bytea
    language c immutable strict parallel safe
    as 'MODULE_PATHNAME', 'outbox_encode_headers';
comment on function outbox.encode_headers(jsonb) is
    'headers as outbox.message stores them, from what outbox.enqueue takes; none give null';
