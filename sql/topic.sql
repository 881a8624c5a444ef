-- What operators say of a topic: what becomes of messages that are refused for good, and whether anything is published.
--
-- Changes come one after the other, so that what is checked still holds when it is stored. enqueue and relays only read.

create function outbox.lock_topic(topic text) returns outbox.topic
    language plpgsql volatile parallel unsafe
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '3s'
as $$
declare
    said outbox.topic;
begin
    perform outbox.check_message(lock_topic.topic, null, null, null, null);
    begin
        lock table outbox.topic in share row exclusive mode;
    exception when lock_not_available then
        raise exception using
            errcode = 'lock_not_available',
            message = format('could not change topic "%s": outbox.topic is in use', lock_topic.topic),
            detail = 'Another transaction has changed it and was still open after 3 s.',
            hint = 'Commit the other transaction, see pg_locks, or try again.';
    end;
    select t.* into said from outbox.topic t where t.topic = lock_topic.topic;
    if not found then
        insert into outbox.topic (topic) values (lock_topic.topic) returning * into said;
    end if;
    return said;
end
$$;
comment on function outbox.lock_topic(text) is
    'checks the name of a topic and locks outbox.topic for a change, made with the defaults where it has no row; called by other functions';

-- An absent row says the same as one with the defaults only.
create function outbox.unlock_topic(topic text) returns void
    language sql volatile parallel unsafe
    set search_path = pg_catalog, pg_temp
    begin atomic
        delete from outbox.topic t
        where t.topic = unlock_topic.topic
          and t.policy = 'park_key'
          and pg_catalog.num_nonnulls(t.dead_letter_topic, t.max_attempts, t.partitions, t.paused_at) = 0;
        select outbox.announce();
    end;
comment on function outbox.unlock_topic(text) is
    'ends a change of a topic: forgets it where only defaults are left, and tells the relays at commit; called by other functions';

create function outbox.set_topic(
    topic text,
    policy text default null,
    dead_letter_topic text default null,
    max_attempts integer default null,
    partitions integer default null
) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    old outbox.topic;
    new outbox.topic;
    other text;
    what text;
begin
    if set_topic.policy not in ('park_key', 'dead_letter', 'block') then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('unknown policy "%s"', set_topic.policy),
            detail = 'What becomes of a message that is refused for good is a matter of the policy.',
            hint = 'Use park_key (it and the later ones of its key wait), dead_letter (it is published to another topic) '
                'or block (its bucket waits).';
    end if;
    if set_topic.max_attempts not between 1 and 1000 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('invalid max_attempts %s', set_topic.max_attempts),
            detail = 'A message may be refused 1 to 1000 times before the policy acts.',
            hint = 'Omit it to go by outbox_relay.max_attempts.';
    end if;
    if set_topic.partitions < 1 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('invalid number of partitions %s', set_topic.partitions),
            detail = 'A topic has at least one.',
            hint = 'Give the number that the topic has in Kafka, or omit it.';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using
            errcode = 'invalid_transaction_state',
            message = format(
                'outbox.set_topic cannot be called in a %s transaction',
                upper(current_setting('transaction_isolation'))
            ),
            detail = 'Its snapshot may be older than the last change of another topic, which must fit.',
            hint = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    end if;
    if set_topic.dead_letter_topic is not null then
        perform outbox.check_message(set_topic.dead_letter_topic, null, null, null, null);
    end if;

    old := outbox.lock_topic(set_topic.topic);
    if num_nonnulls(set_topic.policy, set_topic.dead_letter_topic, set_topic.max_attempts, set_topic.partitions) = 0 then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = format('nothing is said of topic "%s"', set_topic.topic),
            detail = 'An argument that is null leaves what it stands for as it is.',
            hint = 'Give at least one of policy, dead_letter_topic, max_attempts and partitions; '
                'outbox.reset_topic goes back to the defaults.';
    end if;
    update outbox.topic t
    set policy = coalesce(set_topic.policy, t.policy),
        dead_letter_topic = coalesce(set_topic.dead_letter_topic, t.dead_letter_topic),
        max_attempts = coalesce(set_topic.max_attempts, t.max_attempts),
        partitions = coalesce(set_topic.partitions, t.partitions)
    where t.topic = set_topic.topic
    returning t.* into new;
    if new.policy = 'dead_letter' and new.dead_letter_topic is null then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('topic "%s" has no dead-letter topic', new.topic),
            detail = 'With policy dead_letter a message that is refused for good is published to another topic.',
            hint = 'Give that topic as dead_letter_topic.';
    end if;
    if new.policy <> 'dead_letter' and set_topic.dead_letter_topic is not null then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('topic "%s" has policy %s, which uses no dead-letter topic', new.topic, new.policy),
            detail = 'A dead-letter topic alone does not change what becomes of a message.',
            hint = 'Give policy => ''dead_letter'' as well.';
    end if;
    if new.policy = 'dead_letter' then
        if new.dead_letter_topic = new.topic then
            raise exception using
                errcode = 'invalid_parameter_value',
                message = format('topic "%s" cannot be its own dead-letter topic', new.topic),
                detail = 'A message would be sent to where it was refused.',
                hint = 'Give another topic as dead_letter_topic.';
        end if;
        -- One step only: what a dead-letter topic refuses stays where it is.
        select t.topic
        into other
        from outbox.topic t
        where t.policy = 'dead_letter'
          and (t.topic = new.dead_letter_topic or t.dead_letter_topic = new.topic)
        order by t.topic
        limit 1;
        if found then
            raise exception using
                errcode = 'invalid_parameter_value',
                message = format('topic "%s" cannot have "%s" as its dead-letter topic', new.topic, new.dead_letter_topic),
                detail = format(
                    'Topic "%s" has policy dead_letter too, and one of the two would be the dead-letter topic of the other.',
                    other
                ),
                hint = 'Choose a topic that has another policy.';
        end if;
    end if;
    if new = old then
        perform outbox.unlock_topic(new.topic);
        return format('topic "%s" has these settings already; nothing changes', new.topic);
    end if;
    perform outbox.unlock_topic(new.topic);
    what := format(
        'policy %s, dead-letter topic %s, max_attempts %s, partitions %s',
        new.policy, coalesce('"' || new.dead_letter_topic || '"', 'none'),
        coalesce(new.max_attempts::text, 'as outbox_relay.max_attempts'), coalesce(new.partitions::text, 'not declared')
    );
    raise log using
        message = format('topic "%s" is set at commit', new.topic),
        detail = format('Now: %s; called by role "%s".', what, session_user);
    return format('topic "%s" from commit on: %s', new.topic, what);
end
$$;
comment on function outbox.set_topic(text, text, text, integer, integer) is
    'says what becomes of messages of a topic that are refused for good, after how many refusals, and how many partitions it has; null leaves as is; returns what it did';

create function outbox.reset_topic(topic text) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    old outbox.topic;
    new outbox.topic;
    still_paused text := '';
begin
    old := outbox.lock_topic(reset_topic.topic);
    update outbox.topic t
    set policy = default, dead_letter_topic = null, max_attempts = null, partitions = null
    where t.topic = reset_topic.topic
    returning t.* into new;
    perform outbox.unlock_topic(reset_topic.topic);
    if new.paused_at is not null then
        still_paused := '; it stays paused until outbox.resume_topic()';
    end if;
    if new = old then
        return format('topic "%s" has the defaults already; nothing changes%s', reset_topic.topic, still_paused);
    end if;
    raise log using
        message = format('topic "%s" is reset at commit', reset_topic.topic),
        detail = format('It had policy %s; called by role "%s".', old.policy, session_user);
    return format('topic "%s" goes by the defaults from commit on%s', reset_topic.topic, still_paused);
end
$$;
comment on function outbox.reset_topic(text) is
    'goes back to the defaults for a topic; a paused one stays paused; returns what it did';

create function outbox.pause_topic(topic text, reason text default null) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    old outbox.topic;
    -- A blank one is none.
    why text := nullif(btrim(pause_topic.reason), '');
begin
    old := outbox.lock_topic(pause_topic.topic);
    if old.paused_at is not null then
        raise exception using
            errcode = 'object_not_in_prerequisite_state',
            message = format('topic "%s" is paused already', old.topic),
            detail = format('Since %s; reason: %s.', old.paused_at, coalesce(old.pause_reason, 'none given')),
            hint = 'Call outbox.resume_topic() first to pause it for another reason.';
    end if;
    update outbox.topic t
    set paused_at = clock_timestamp(), pause_reason = why
    where t.topic = pause_topic.topic;
    perform outbox.unlock_topic(pause_topic.topic);
    raise log using
        message = format('topic "%s" is paused at commit', pause_topic.topic),
        detail = format('Called by role "%s"; reason: %s', session_user, coalesce(why, 'none given'));
    return format(
        'topic "%s" is paused from commit on; its messages are accepted and kept, and what is on its way may still arrive',
        pause_topic.topic
    );
end
$$;
comment on function outbox.pause_topic(text, text) is
    'stops publishing to a topic until outbox.resume_topic(), through restarts too; other topics go on; returns what it did';

create function outbox.resume_topic(topic text) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    old outbox.topic;
begin
    old := outbox.lock_topic(resume_topic.topic);
    if old.paused_at is null then
        raise exception using
            errcode = 'object_not_in_prerequisite_state',
            message = format('topic "%s" is not paused', old.topic),
            detail = 'There is nothing to resume.',
            hint = 'See outbox.pg_stat_topic for the topics that are, and outbox.publishing for the database.';
    end if;
    update outbox.topic t set paused_at = null, pause_reason = null where t.topic = resume_topic.topic;
    perform outbox.unlock_topic(resume_topic.topic);
    raise log using
        message = format('topic "%s" is resumed at commit', old.topic),
        detail = format('Called by role "%s"; it was paused at %s; reason: %s',
                        session_user, old.paused_at, coalesce(old.pause_reason, 'none given'));
    return format('publishing to topic "%s" goes on from commit on', old.topic);
end
$$;
comment on function outbox.resume_topic(text) is
    'publishes to a topic again after outbox.pause_topic(); returns what it did';
