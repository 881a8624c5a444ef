-- The cure for a message that the broker refuses for good: taken out unpublished, and kept.

create function outbox.skip(bucket integer, id bigint, reason text) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    skipped outbox.message;
begin
    if coalesce(skip.reason, '') !~ '\S' then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'reason must not be blank',
            detail = 'It is kept with the message, and is all that tells later why it was not published.',
            hint = 'Give the reason as the third argument.';
    end if;
    skipped := outbox.lock_message(skip.bucket, skip.id);
    delete from outbox.message m where m.bucket = skip.bucket and m.id = skip.id;
    insert into outbox.skipped
        (bucket, id, topic, partition, key, value, headers, message_id, created_at, skipped_by, reason)
    values (skipped.bucket, skipped.id, skipped.topic, skipped.partition, skipped.key, skipped.value, skipped.headers,
            skipped.message_id, skipped.created_at, session_user, skip.reason);
    delete from outbox.failure f where f.bucket = skip.bucket and f.id = skip.id;
    perform outbox.announce();
    raise log using
        message = format('message %s of bucket %s is skipped at commit', skip.id, skip.bucket),
        detail = format('Topic "%s", message id %s, called by role "%s"; reason: %s',
                        skipped.topic, skipped.message_id, session_user, skip.reason);
    return format(
        'message %s of bucket %s (topic %s) is skipped from commit on and kept in outbox.skipped; '
            'a copy may be at the broker already',
        skip.id, skip.bucket, skipped.topic
    );
end
$$;
comment on function outbox.skip(integer, bigint, text) is
    'takes a message out of outbox.message without publishing it and keeps it in outbox.skipped; a copy may be at the broker already or on its way, and later messages of its key go on; returns what it did';
