-- The number of buckets, changed while messages are written and published.
--
-- Writers lock outbox.message before they read the count (postgres/enqueue.rs), and the lock taken here waits until none of
-- them is under way. So all ids given out until then are committed or rolled back, and all later ones go with the new
-- count: the last id is a fence between the two. Messages keep their buckets; relays read nothing above a fence while a
-- message at or below it is left (src/fence.rs), and forget it after that.

create function outbox.bucket_count() returns integer
    language sql stable parallel safe
    begin atomic
        select coalesce((select s.value::integer from outbox.setting s where s.name = 'bucket_count'), 8);
    end;
comment on function outbox.bucket_count() is 'number of buckets of this database, which new messages are spread over';

create function outbox.set_bucket_count(bucket_count integer) returns text
    language plpgsql volatile parallel unsafe security definer
    set search_path = pg_catalog, pg_temp
    -- Given back at the end, whatever is set below.
    set lock_timeout = '100ms'
as $$
declare
    patience constant interval := '30 s';
    -- Writers queue behind the lock that is waited for, so it is waited for briefly, then they have as long to go on.
    -- Longer each time: a transaction that has begun may need a while. Above deadlock_timeout autovacuum gives way.
    wait_ms integer := 100;
    longest_wait_ms constant integer := 1200;
    -- CHANGES_MAX of src/fence.rs.
    changes_max constant integer := 16;
    give_up constant timestamptz := clock_timestamp() + patience;
    locked boolean := false;
    holders text;
    old_count integer;
    fence bigint;
    what text;
begin
    if set_bucket_count.bucket_count is null then
        raise exception using
            errcode = 'null_value_not_allowed',
            message = 'bucket count must not be null',
            detail = 'A database has 1 to 1024 buckets.',
            hint = 'Give the number of buckets as the argument.';
    end if;
    if set_bucket_count.bucket_count not between 1 and 1024 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('invalid bucket count %s', set_bucket_count.bucket_count),
            detail = 'A database has 1 to 1024 buckets.',
            hint = 'Choose at least as many as there are relays, and at best a multiple of the partitions of the topics.';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using
            errcode = 'invalid_transaction_state',
            message = format(
                'outbox.set_bucket_count cannot be called in a %s transaction',
                upper(current_setting('transaction_isolation'))
            ),
            detail = 'Its snapshot may be older than the last change of the bucket count.',
            hint = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    end if;

    loop
        old_count := outbox.bucket_count();
        if old_count = set_bucket_count.bucket_count then
            return format('the bucket count is %s already; nothing changes', old_count);
        end if;
        exit when locked;
        perform set_config('lock_timeout', wait_ms || 'ms', true);
        begin
            lock table outbox.message in share row exclusive mode;
            locked := true;
            continue;
        exception when lock_not_available or deadlock_detected then
            select string_agg(h.holder, ', ')
            into holders
            from (
                select coalesce('process ' || l.pid, 'prepared transaction ' || quote_literal(p.gid)) as holder
                from pg_locks l
                left join pg_locks x
                    on l.pid is null
                    and x.pid is null
                    and x.virtualtransaction = l.virtualtransaction
                    and x.locktype = 'transactionid'
                left join pg_prepared_xacts p on p.transaction = x.transactionid
                where l.locktype = 'relation'
                  and l.relation = 'outbox.message'::regclass
                  and l.database = (select d.oid from pg_database d where d.datname = current_database())
                      and l.mode not in ('AccessShareLock', 'RowShareLock')
                  and l.pid is distinct from pg_backend_pid()
                order by l.pid
                limit 10
            ) h;
        end;
        if clock_timestamp() >= give_up then
            raise exception using
                errcode = 'lock_not_available',
                message = 'could not change the bucket count: outbox.message is in use',
                detail = format(
                    'For %s s there was no moment without a transaction that writes messages or waits to lock the table. The last in the way: %s.',
                    extract(epoch from patience)::integer, coalesce(holders, 'ended meanwhile')
                ),
                hint = 'End these transactions, or call outbox.set_bucket_count again when there is less to do.';
        end if;
        perform pg_sleep(wait_ms * (1 + random()) / 1000);
        wait_ms := least(2 * wait_ms, longest_wait_ms);
    end loop;

    -- Writers wait from here on: nothing may take long.
    perform set_config('lock_timeout', '1s', true);
    select case when s.is_called then s.last_value else s.last_value - 1 end into fence from outbox.message_id_seq s;
    what := format('the bucket count changes from %s to %s from commit on', old_count, set_bucket_count.bucket_count);
    -- Where no id was ever given nobody has to wait.
    if fence > 0 then
        what := what || format('; messages up to id %s keep their buckets and are published first', fence);
        -- With no id since the last change there is nothing between the two, and its fence stands for both.
        insert into outbox.bucket_change (fence_id, bucket_count, changed_by)
        values (fence, old_count, session_user)
        on conflict do nothing;
        if (select count(*) from outbox.bucket_change) > changes_max then
            raise exception using
                errcode = 'program_limit_exceeded',
                message = 'too many changes of the bucket count at a time',
                detail = format('Messages of %s earlier bucket counts are still to be published.', changes_max),
                hint = 'Wait until relays have published them and forgotten the changes, see outbox.bucket_change; while publishing is paused they do neither.';
        end if;
    end if;
    insert into outbox.setting (name, value)
    values ('bucket_count', set_bucket_count.bucket_count)
    on conflict (name) do update set value = excluded.value;
    perform outbox.announce();
    raise log using
        message = format('bucket count changes from %s to %s at commit', old_count, set_bucket_count.bucket_count),
        detail = format(
            'Called by role "%s"; messages up to id %s keep their buckets and are published first.', session_user, fence
        );
    return what;
end
$$;
comment on function outbox.set_bucket_count(integer) is
    'changes the number of buckets, 1 to 1024, under traffic; waits up to 30 s for a moment without writers, who then wait until the transaction ends; returns what it did';
