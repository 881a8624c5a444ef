-- What writers call for a message that a retry may bring again. The message id decides alone, of whatever topic the message
-- is; only messages that came this way are remembered, in outbox.once.
--
-- SECURITY DEFINER because it writes outbox.once by statements, as the owner; PARALLEL UNSAFE because it writes.

create function outbox.enqueue_once(
    topic text,
    key bytea,
    value bytea,
    message_id uuid,
    headers jsonb default null,
    partition integer default null,
    within interval default '1 day'
) returns boolean
    language c volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    as 'MODULE_PATHNAME', 'outbox_enqueue_once_bytea_bytea';
comment on function outbox.enqueue_once(text, bytea, bytea, uuid, jsonb, integer, interval) is
    'saves a message as outbox.enqueue does, unless one with this id was saved by this function within the time; returns whether it was saved now';

create function outbox.enqueue_once(
    topic text,
    key text,
    value text,
    message_id uuid,
    headers jsonb default null,
    partition integer default null,
    within interval default '1 day'
) returns boolean
    language c volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    as 'MODULE_PATHNAME', 'outbox_enqueue_once_text_text';
comment on function outbox.enqueue_once(text, text, text, uuid, jsonb, integer, interval) is
    'saves a message as outbox.enqueue does, unless one with this id was saved by this function within the time; returns whether it was saved now';

create function outbox.enqueue_once(
    topic text,
    key text,
    value jsonb,
    message_id uuid,
    headers jsonb default null,
    partition integer default null,
    within interval default '1 day'
) returns boolean
    language c volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    as 'MODULE_PATHNAME', 'outbox_enqueue_once_text_jsonb';
comment on function outbox.enqueue_once(text, text, jsonb, uuid, jsonb, integer, interval) is
    'saves a message as outbox.enqueue does, unless one with this id was saved by this function within the time; returns whether it was saved now';

create function outbox.enqueue_once(
    topic text,
    key text,
    value json,
    message_id uuid,
    headers jsonb default null,
    partition integer default null,
    within interval default '1 day'
) returns boolean
    language c volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    as 'MODULE_PATHNAME', 'outbox_enqueue_once_text_json';
comment on function outbox.enqueue_once(text, text, json, uuid, jsonb, integer, interval) is
    'saves a message as outbox.enqueue does, unless one with this id was saved by this function within the time; returns whether it was saved now';

create function outbox.enqueue_once(
    topic text,
    key text,
    value bytea,
    message_id uuid,
    headers jsonb default null,
    partition integer default null,
    within interval default '1 day'
) returns boolean
    language c volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    as 'MODULE_PATHNAME', 'outbox_enqueue_once_text_bytea';
comment on function outbox.enqueue_once(text, text, bytea, uuid, jsonb, integer, interval) is
    'saves a message as outbox.enqueue does, unless one with this id was saved by this function within the time; returns whether it was saved now';
