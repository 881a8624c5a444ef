-- The cures for a message that stands still, but for outbox.skip: try it now, put it at the end, change where it goes.
--
-- Whoever changes a row gives it a new xmin, so a copy of it that is on its way removes nothing when it is acknowledged
-- (postgres/fetch.rs): what was changed is published in any case. What is not standing still is left alone, for it may be
-- published as it was and as it is.

create function outbox.check_message(topic text, key bytea, value bytea, headers jsonb, partition integer) returns void
    language c stable parallel safe
    as 'MODULE_PATHNAME', 'outbox_check_message';
comment on function outbox.check_message(text, bytea, bytea, jsonb, integer) is
    'refuses what outbox.enqueue refuses: names of topics, headers, numbers of partitions, records that are too large; called by other functions';

create function outbox.new_place(
    key bytea,
    partition integer,
    message_id uuid,
    out bucket integer,
    out id bigint
) returns setof record
    language c volatile parallel unsafe
    as 'MODULE_PATHNAME', 'outbox_new_place';
comment on function outbox.new_place(bytea, integer, uuid) is
    'where outbox.enqueue would put a message now, with a new id, told to the relays at commit; called by other functions';

create function outbox.lock_message(bucket integer, id bigint) returns outbox.message
    language plpgsql volatile parallel unsafe
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '3s'
as $$
declare
    give_up constant timestamptz := clock_timestamp() + interval '3 s';
    message outbox.message;
    holder text;
begin
    if lock_message.bucket is null or lock_message.id is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'bucket and id must not be null',
            detail = 'They name the message.',
            hint = 'A message that cannot be published is shown by outbox.parked, as bucket and id.';
    end if;
    begin
        -- A change of the bucket count waits for this transaction from here on, or is seen by what follows.
        lock table outbox.message in row exclusive mode;
    exception when lock_not_available then
        raise exception using
            errcode = 'lock_not_available',
            message = format('could not change message %s of bucket %s: outbox.message is in use', lock_message.id, lock_message.bucket),
            detail = 'For 3 s it was locked against writers, as outbox.set_bucket_count does until its transaction ends.',
            hint = 'Commit or end the other transaction, see pg_locks, or try again.';
    end;
    loop
        select m.*
        into message
        from outbox.message m
        where m.bucket = lock_message.bucket and m.id = lock_message.id
        for update skip locked;
        if found then
            return message;
        end if;
        select coalesce('process ' || l.pid, 'prepared transaction ' || quote_literal(p.gid), 'not known')
        into holder
        from outbox.message m
        left join pg_locks l on l.locktype = 'transactionid' and l.granted and l.transactionid = m.xmax
        left join pg_prepared_xacts p on l.pid is null and p.transaction = m.xmax
        where m.bucket = lock_message.bucket and m.id = lock_message.id;
        if not found then
            raise exception using
                errcode = 'no_data_found',
                message = format('no message %s in bucket %s', lock_message.id, lock_message.bucket),
                detail = 'It was published, skipped or requeued meanwhile, or never was there.',
                hint = 'See outbox.parked for those that cannot be published, outbox.message for all that wait, '
                    'and outbox.skipped for those skipped before.';
        end if;
        if clock_timestamp() >= give_up then
            raise exception using
                errcode = 'lock_not_available',
                message = format('could not change message %s of bucket %s: it is locked', lock_message.id, lock_message.bucket),
                detail = format('For 3 s another transaction has held it. In the way: %s.', holder),
                hint = 'Commit or end that transaction, or try again.';
        end if;
        perform pg_sleep(0.02);
    end loop;
end
$$;
comment on function outbox.lock_message(integer, bigint) is
    'locks a message and returns it, or says why it cannot; waits up to 3 s; called by other functions';

create function outbox.lock_held(bucket integer, id bigint) returns outbox.message
    language plpgsql volatile parallel unsafe
    set search_path = pg_catalog, pg_temp
as $$
declare
    held outbox.message;
begin
    held := outbox.lock_message(lock_held.bucket, lock_held.id);
    if not (
        -- It is failing or parked, or waits behind one that is.
        exists (
            select
            from outbox.failure f
            cross join lateral (
                select m.topic, m.key, m.partition from outbox.message m where m.bucket = f.bucket and m.id = f.id limit 1
            ) m
            left join outbox.topic t on t.topic = m.topic
            where f.bucket = held.bucket
              and f.id <= held.id
              and (
                  f.id = held.id
                  or t.policy = 'block'
                  or m.topic = held.topic
                     and (
                         f.kind = 'topic'
                         or m.key = held.key
                         or m.key is null and held.key is null and m.partition = held.partition
                     )
              )
        )
        or exists (select from outbox.topic t where t.topic = held.topic and t.paused_at is not null)
        or (select bool_and(p.stamp = outbox.own_stamp() and p.paused_at is null) from outbox.publishing p) is not true
    ) then
        raise exception using
            errcode = 'object_not_in_prerequisite_state',
            message = format('message %s of bucket %s is not standing still', held.id, held.bucket),
            detail = 'It is neither failing nor parked, nor behind one that is, and its topic is not paused: '
                'it may be on its way, and would be published as it was too.',
            hint = format('Wait, or call outbox.pause_topic(%L) first.', held.topic);
    end if;
    return held;
end
$$;
comment on function outbox.lock_held(integer, bigint) is
    'as outbox.lock_message(), but only for a message that nothing is published of now; called by other functions';

create function outbox.retry_now(bucket integer, id bigint) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '3s'
as $$
declare
    message outbox.message;
    failing outbox.failure;
begin
    message := outbox.lock_message(retry_now.bucket, retry_now.id);
    begin
        select f.* into failing from outbox.failure f where f.bucket = message.bucket and f.id = message.id for update;
    exception when lock_not_available then
        raise exception using
            errcode = 'lock_not_available',
            message = format('what is known of message %s of bucket %s is in use', message.id, message.bucket),
            detail = 'Another transaction has changed it and was still open after 3 s.',
            hint = 'Commit or end the other transaction, see pg_locks, or try again.';
    end;
    if failing.id is null then
        raise exception using
            errcode = 'object_not_in_prerequisite_state',
            message = format('message %s of bucket %s is not failing', message.id, message.bucket),
            detail = 'It waits for its turn, or behind another one.',
            hint = 'See outbox.parked for messages that are failing or parked.';
    end if;
    update outbox.failure f
    set next_try_at = clock_timestamp(), parked_at = null
    where f.bucket = message.bucket and f.id = message.id;
    perform outbox.announce();
    raise log using
        message = format('message %s of bucket %s is to be tried from commit on', message.id, message.bucket),
        detail = format('Topic "%s", message id %s, failed attempts %s, %s; called by role "%s".',
                        message.topic, message.message_id, failing.attempts,
                        case when failing.parked_at is null then 'not parked' else 'parked' end, session_user);
    return format(
        'message %s of bucket %s (topic %s) is tried from commit on%s',
        message.id, message.bucket, message.topic,
        case when failing.parked_at is not null then '; it was parked, and is again if it is refused once more' else '' end
    );
end
$$;
comment on function outbox.retry_now(integer, bigint) is
    'tries a failing or parked message at once instead of later or never; its attempts still count; returns what it did';

create function outbox.retry_now(topic text) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '3s'
as $$
declare
    tried bigint;
    parked bigint;
begin
    perform outbox.check_message(retry_now.topic, null, null, null, null);
    begin
        with failing as (
            select f.bucket, f.id, f.parked_at
            from outbox.failure f
            cross join lateral (
                select m.topic from outbox.message m where m.bucket = f.bucket and m.id = f.id limit 1
            ) m
            where m.topic = retry_now.topic
            -- In one order, so that two calls cannot lock each other out.
            order by f.bucket, f.id
            for update of f
        ), changed as (
            update outbox.failure f
            set next_try_at = clock_timestamp(), parked_at = null
            from failing x
            where f.bucket = x.bucket and f.id = x.id
            returning x.parked_at
        )
        select count(*), count(c.parked_at) into tried, parked from changed c;
    exception when lock_not_available then
        raise exception using
            errcode = 'lock_not_available',
            message = format('what is known of messages of topic "%s" is in use', retry_now.topic),
            detail = 'Another transaction has changed it and was still open after 3 s.',
            hint = 'Commit or end the other transaction, see pg_locks, or try again.';
    end;
    if tried = 0 then
        raise exception using
            errcode = 'no_data_found',
            message = format('no message of topic "%s" is failing', retry_now.topic),
            detail = 'All that wait do so for their turn or for another reason.',
            hint = 'See outbox.parked for messages that are failing or parked, and outbox.pg_stat_topic for topics that are paused.';
    end if;
    perform outbox.announce();
    raise log using
        message = format('failing messages of topic "%s" are to be tried from commit on', retry_now.topic),
        detail = format('Failing are %s, parked were %s of them; called by role "%s".', tried, parked, session_user);
    return format(
        'failing messages of topic %s are tried from commit on: %s, of which parked were %s', retry_now.topic, tried, parked
    );
end
$$;
comment on function outbox.retry_now(text) is
    'tries all failing and parked messages of a topic at once instead of later or never; their attempts still count; returns what it did';

create function outbox.requeue(bucket integer, id bigint) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    -- Rows of a bucket that are looked at for later messages of the same key.
    look_at constant integer := 100000;
    old outbox.message;
    new record;
    overtaken bigint;
    looked_at bigint;
    ordered boolean;
begin
    old := outbox.lock_held(requeue.bucket, requeue.id);
    -- Without key and partition it has no order to lose.
    ordered := num_nonnulls(old.key, old.partition) > 0;
    select p.bucket, p.id into new from outbox.new_place(old.key, old.partition, old.message_id) p;
    update outbox.message m set bucket = new.bucket, id = new.id where m.bucket = old.bucket and m.id = old.id;
    delete from outbox.failure f where f.bucket = old.bucket and f.id = old.id;
    perform outbox.announce();

    if ordered then
        select coalesce(sum(o.same), 0), coalesce(max(o.rows), 0)
        into overtaken, looked_at
        from (
            select count(*) filter (
                       where w.topic = old.topic
                         and w.key is not distinct from old.key
                         and (old.key is not null or w.partition = old.partition)
                   ) as same,
                   count(*) as rows
            from (select distinct b.bucket from (values (old.bucket), (new.bucket)) b (bucket)) b
            cross join lateral (
                select m.topic, m.key, m.partition
                from outbox.message m
                where m.bucket = b.bucket and m.id > old.id and m.id < new.id
                order by m.id
                limit look_at
            ) w
            group by b.bucket
        ) o;
        if overtaken > 0 or looked_at = look_at then
            raise warning using
                message = format('the order of a key is not kept: later messages go before message %s of bucket %s', old.id, old.bucket),
                detail = case
                    when looked_at < look_at then format('Waiting messages of the same key and topic that now go first: %s.', overtaken)
                    else format(
                        'Waiting messages of the same key and topic that now go first: %s among the next %s of the bucket, and there may be more.',
                        overtaken, look_at
                    )
                end,
                hint = 'Roll back if that matters; outbox.edit and outbox.retry_now keep its place.';
        end if;
    end if;
    raise log using
        message = format('message %s of bucket %s is requeued at commit', old.id, old.bucket),
        detail = format('Topic "%s", message id %s, now message %s of bucket %s, called by role "%s".',
                        old.topic, old.message_id, new.id, new.bucket, session_user);
    return format(
        'message %s of bucket %s (topic %s) is message %s of bucket %s from commit on, behind all that wait; '
            'a copy may be at the broker already%s',
        old.id, old.bucket, old.topic, new.id, new.bucket,
        case when ordered then ', and so may later messages of its key' else '' end
    );
end
$$;
comment on function outbox.requeue(integer, bigint) is
    'puts a message that stands still behind all others as if it were new, keeping its message id; those behind it go on; warns when messages of its key go before it; returns what it did';

create function outbox.edit(
    bucket integer,
    id bigint,
    topic text default null,
    headers jsonb default null,
    partition integer default null
) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    old outbox.message;
    new outbox.message;
    changes text[];
    failing boolean;
begin
    if num_nonnulls(edit.topic, edit.headers, edit.partition) = 0 then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'there is nothing to change',
            detail = 'An argument that is null leaves what it stands for as it is.',
            hint = 'Give at least one of topic, headers and partition; headers => ''{}'' removes all headers.';
    end if;
    old := outbox.lock_held(edit.bucket, edit.id);
    new := old;
    new.topic := coalesce(edit.topic, old.topic);
    new.partition := coalesce(edit.partition, old.partition);
    if edit.headers is not null then
        new.headers := outbox.encode_headers(edit.headers);
    end if;
    perform outbox.check_message(
        new.topic, new.key, new.value, coalesce(edit.headers, outbox.decode_headers(old.headers)), new.partition
    );
    if new.topic <> old.topic then
        changes := changes || format('topic "%s" instead of "%s"', new.topic, old.topic);
    end if;
    if new.partition is distinct from old.partition then
        changes := changes || format('partition %s instead of %s', new.partition, coalesce(old.partition::text, 'that of its key'));
    end if;
    if new.headers is distinct from old.headers then
        changes := changes || case when new.headers is null then 'no headers' else 'new headers' end;
    end if;
    if changes is null then
        return format('message %s of bucket %s is as wanted already; nothing changes', old.id, old.bucket);
    end if;

    update outbox.message m
    set topic = new.topic, partition = new.partition, headers = new.headers
    where m.bucket = old.bucket and m.id = old.id;
    delete from outbox.failure f where f.bucket = old.bucket and f.id = old.id;
    failing := found;
    perform outbox.announce();
    if num_nonnulls(old.key, old.partition) > 0
        and (new.topic <> old.topic or new.partition is distinct from old.partition) then
        raise warning using
            message = format('the order of a key is not kept: message %s of bucket %s goes elsewhere', old.id, old.bucket),
            detail = case
                when new.topic <> old.topic then format(
                    'Later messages of the same key go on to topic "%s" without it, and messages of that key in topic "%s" may be published already.',
                    old.topic, new.topic
                )
                else format('Messages of the same key in another partition than %s have no common order with it.', new.partition)
            end,
            hint = 'Roll back if that matters.';
    end if;
    raise log using
        message = format('message %s of bucket %s is changed at commit', old.id, old.bucket),
        detail = format('Message id %s: %s; called by role "%s".', old.message_id, array_to_string(changes, ', '), session_user);
    return format(
        'message %s of bucket %s has %s from commit on%s; a copy as it was may be at the broker already',
        old.id, old.bucket, array_to_string(changes, ', '),
        case when failing then ', and its failures are forgotten' else '' end
    );
end
$$;
comment on function outbox.edit(integer, bigint, text, jsonb, integer) is
    'changes topic, headers or partition of a message that stands still, keeping its place and its message id; null leaves as is; warns when the order of its key is not kept; returns what it did';
