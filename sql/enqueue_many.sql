-- What writers call for many messages at a time, at the cost of a plain INSERT of as many rows.
--
-- As arrays: a topic for all or for each, and an array that is null leaves that part out of all messages. One C function a
-- combination of types, as in enqueue.sql, which says how they come by the owner's rights and why they are PARALLEL UNSAFE.

create function outbox.enqueue_many(
    topic text,
    keys bytea[],
    "values" bytea[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_many_bytea_bytea';
comment on function outbox.enqueue_many(text, bytea[], bytea[], jsonb[], integer[], uuid[]) is
    'saves messages, one topic, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topic text,
    keys text[],
    "values" text[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_many_text_text';
comment on function outbox.enqueue_many(text, text[], text[], jsonb[], integer[], uuid[]) is
    'saves messages, one topic, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topic text,
    keys text[],
    "values" jsonb[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_many_text_jsonb';
comment on function outbox.enqueue_many(text, text[], jsonb[], jsonb[], integer[], uuid[]) is
    'saves messages, one topic, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topic text,
    keys text[],
    "values" json[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_many_text_json';
comment on function outbox.enqueue_many(text, text[], json[], jsonb[], integer[], uuid[]) is
    'saves messages, one topic, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topic text,
    keys text[],
    "values" bytea[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_many_text_bytea';
comment on function outbox.enqueue_many(text, text[], bytea[], jsonb[], integer[], uuid[]) is
    'saves messages, one topic, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topics text[],
    keys bytea[],
    "values" bytea[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_each_bytea_bytea';
comment on function outbox.enqueue_many(text[], bytea[], bytea[], jsonb[], integer[], uuid[]) is
    'saves messages, a topic for each, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topics text[],
    keys text[],
    "values" text[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_each_text_text';
comment on function outbox.enqueue_many(text[], text[], text[], jsonb[], integer[], uuid[]) is
    'saves messages, a topic for each, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topics text[],
    keys text[],
    "values" jsonb[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_each_text_jsonb';
comment on function outbox.enqueue_many(text[], text[], jsonb[], jsonb[], integer[], uuid[]) is
    'saves messages, a topic for each, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topics text[],
    keys text[],
    "values" json[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_each_text_json';
comment on function outbox.enqueue_many(text[], text[], json[], jsonb[], integer[], uuid[]) is
    'saves messages, a topic for each, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

create function outbox.enqueue_many(
    topics text[],
    keys text[],
    "values" bytea[],
    headers jsonb[] default null,
    partitions integer[] default null,
    message_ids uuid[] default null
) returns uuid[]
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_each_text_bytea';
comment on function outbox.enqueue_many(text[], text[], bytea[], jsonb[], integer[], uuid[]) is
    'saves messages, a topic for each, in the current transaction, in the order of the arrays, all or none; returns their message ids in that order';

-- As an aggregate over the rows of a query. The query is the caller's own; what it gives is stored with the rights of the
-- owner (src/postgres/enqueue_many.rs). "any", so that key and value take the types that outbox.enqueue takes.

create function outbox.enqueue_agg_add(state internal, topic text, key "any", value "any") returns internal
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_agg_add';
comment on function outbox.enqueue_agg_add(internal, text, "any", "any") is 'part of outbox.enqueue_agg';

create function outbox.enqueue_agg_add(state internal, topic text, key "any", value "any", headers jsonb) returns internal
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_agg_add';
comment on function outbox.enqueue_agg_add(internal, text, "any", "any", jsonb) is 'part of outbox.enqueue_agg';

create function outbox.enqueue_agg_add(state internal, topic text, key "any", value "any", headers jsonb, partition integer) returns internal
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_agg_add';
comment on function outbox.enqueue_agg_add(internal, text, "any", "any", jsonb, integer) is 'part of outbox.enqueue_agg';

create function outbox.enqueue_agg_add(state internal, topic text, key "any", value "any", headers jsonb, partition integer, message_id uuid) returns internal
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_agg_add';
comment on function outbox.enqueue_agg_add(internal, text, "any", "any", jsonb, integer, uuid) is 'part of outbox.enqueue_agg';

create function outbox.enqueue_agg_end(state internal) returns bigint
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_enqueue_agg_end';
comment on function outbox.enqueue_agg_end(internal) is 'part of outbox.enqueue_agg';

create aggregate outbox.enqueue_agg(topic text, key "any", value "any") (
    sfunc = outbox.enqueue_agg_add,
    stype = internal,
    finalfunc = outbox.enqueue_agg_end,
    -- It stores what is left: called once for all, never for a window.
    finalfunc_modify = read_write,
    parallel = unsafe
);
comment on aggregate outbox.enqueue_agg(text, "any", "any") is
    'saves a message for each row in the current transaction, in the order of the rows, all or none; returns their number';

create aggregate outbox.enqueue_agg(topic text, key "any", value "any", headers jsonb) (
    sfunc = outbox.enqueue_agg_add,
    stype = internal,
    finalfunc = outbox.enqueue_agg_end,
    -- It stores what is left: called once for all, never for a window.
    finalfunc_modify = read_write,
    parallel = unsafe
);
comment on aggregate outbox.enqueue_agg(text, "any", "any", jsonb) is
    'saves a message for each row in the current transaction, in the order of the rows, all or none; returns their number';

create aggregate outbox.enqueue_agg(topic text, key "any", value "any", headers jsonb, partition integer) (
    sfunc = outbox.enqueue_agg_add,
    stype = internal,
    finalfunc = outbox.enqueue_agg_end,
    -- It stores what is left: called once for all, never for a window.
    finalfunc_modify = read_write,
    parallel = unsafe
);
comment on aggregate outbox.enqueue_agg(text, "any", "any", jsonb, integer) is
    'saves a message for each row in the current transaction, in the order of the rows, all or none; returns their number';

create aggregate outbox.enqueue_agg(topic text, key "any", value "any", headers jsonb, partition integer, message_id uuid) (
    sfunc = outbox.enqueue_agg_add,
    stype = internal,
    finalfunc = outbox.enqueue_agg_end,
    -- It stores what is left: called once for all, never for a window.
    finalfunc_modify = read_write,
    parallel = unsafe
);
comment on aggregate outbox.enqueue_agg(text, "any", "any", jsonb, integer, uuid) is
    'saves a message for each row in the current transaction, in the order of the rows, all or none; returns their number';

-- CREATE AGGREGATE makes every aggregate immutable, and has no way to say otherwise. The planner would leave out one whose
-- result nobody looks at, and evaluate two that look the same once.
update pg_catalog.pg_proc
set provolatile = 'v'
where pronamespace = 'outbox'::regnamespace and proname = 'enqueue_agg';
