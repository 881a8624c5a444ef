-- What can be refused is refused in the caller's transaction, with SQLSTATE, detail and hint, and nothing is stored.
create extension outbox_relay;

-- Topic: null, empty, too long, a character that Kafka does not take, dots only.
select outbox.enqueue(null, 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue(repeat('x', 250), 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('two words', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('a/b', 'k', 'v');
select outbox.enqueue('bücher', 'k', 'v');
select outbox.enqueue(' orders', 'k', 'v');
select outbox.enqueue('.', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('..', 'k', 'v');

-- The same of every combination of types.
select outbox.enqueue('a:b', '\x00'::bytea, '\x00'::bytea);
select outbox.enqueue('a:b', 'k', '{}'::jsonb);
select outbox.enqueue('a:b', 'k', '{}'::json);
select outbox.enqueue('a:b', 'k', '\x00'::bytea);

-- What Kafka takes is taken.
select count(outbox.enqueue(topic, 'k', 'v'))
from unnest(array['a', '...', '-', '_', '0', 'A.b_c-9', repeat('x', 249)]) topic;
truncate outbox.message;

-- Partition.
select outbox.enqueue('orders', 'k', 'v', partition => -1);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('orders', 'k', 'v', partition => -2147483648);
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Partition: at or above the number that was declared for the topic; asked for only where a partition is given.
insert into outbox.topic (topic, partitions) values ('declared', 12), ('other', null);
select outbox.enqueue('declared', 'k', 'v', partition => 11) as id \gset
select outbox.enqueue('declared', 'k', 'v', partition => 12);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('other', 'k', 'v', partition => 12) as id \gset
select outbox.enqueue('unheard-of', 'k', 'v', partition => 2147483647) as id \gset
select outbox.enqueue('declared', 'k', 'v') as id \gset
select outbox.enqueue_many('declared', array['a', 'b', 'c'], null::text[], partitions => array[0, null, 12]);
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue_many(array['unheard-of', 'declared'], null::text[], array['a', 'b'], partitions => array[12, 12]);
select outbox.enqueue_agg('declared', i::text, 'v', null, i) from generate_series(0, 20) i;
select outbox.enqueue_once('declared', 'k', 'v', gen_random_uuid(), partition => 13);
-- The number of now, whatever the snapshot, and whether the index of the table is there or not.
begin isolation level repeatable read;
select partitions from outbox.topic where topic = 'declared';
\! psql -X -q -d regression -c "update outbox.topic set partitions = 13 where topic = 'declared'"
select outbox.enqueue('declared', 'k', 'v', partition => 12) as id \gset
select outbox.enqueue('declared', 'k', 'v', partition => 13);
rollback;
begin;
alter table outbox.topic drop constraint topic_pkey;
select outbox.enqueue('declared', 'k', 'v', partition => 13);
rollback;
delete from outbox.topic;
select outbox.enqueue('declared', 'k', 'v', partition => 12) as id \gset
truncate outbox.message;

-- Headers: neither object nor array of pairs.
select outbox.enqueue('orders', 'k', 'v', '1');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('orders', 'k', 'v', '"text"');
select outbox.enqueue('orders', 'k', 'v', 'true');
select outbox.enqueue('orders', 'k', 'v', '["name", "value"]');
select outbox.enqueue('orders', 'k', 'v', '[{"name": "value"}]');
select outbox.enqueue('orders', 'k', 'v', '[["name"]]');
select outbox.enqueue('orders', 'k', 'v', '[[]]');
select outbox.enqueue('orders', 'k', 'v', '[["name", "value", "more"]]');
select outbox.enqueue('orders', 'k', 'v', '[[1, "value"]]');
select outbox.enqueue('orders', 'k', 'v', '[[null, "value"]]');
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Headers: a value that is no string, null or {"base64": ...}.
select outbox.enqueue('orders', 'k', 'v', '{"name": 1}');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('orders', 'k', 'v', '{"name": 1.5}');
select outbox.enqueue('orders', 'k', 'v', '{"name": 1e400}');
select outbox.enqueue('orders', 'k', 'v', '{"name": false}');
select outbox.enqueue('orders', 'k', 'v', '{"name": ["value"]}');
select outbox.enqueue('orders', 'k', 'v', '{"name": {}}');
select outbox.enqueue('orders', 'k', 'v', '{"name": {"base65": "AA=="}}');
select outbox.enqueue('orders', 'k', 'v', '{"name": {"base64": "AA==", "more": ""}}');
select outbox.enqueue('orders', 'k', 'v', '{"name": {"base64": null}}');
select outbox.enqueue('orders', 'k', 'v', '{"name": {"base64": "?"}}');
select outbox.enqueue('orders', 'k', 'v', '{"name": {"base64": "AA="}}');
select outbox.enqueue('orders', 'k', 'v', '[["a", "1"], ["b", 2]]');
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Headers: nested too deeply to be looked into.
select outbox.enqueue('orders', 'k', 'v', (repeat('[', 1000) || repeat(']', 1000))::jsonb);
select outbox.enqueue('orders', 'k', 'v', ('[["name", "value", ' || repeat('[', 1000) || repeat(']', 1000) || ']]')::jsonb);
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Headers: too many.
select outbox.enqueue('orders', 'k', 'v', jsonb_agg(jsonb_build_array('name', i::text))) as id
from generate_series(1, 1000) i \gset
select outbox.enqueue('orders', 'k', 'v', jsonb_agg(jsonb_build_array('name', i::text)))
from generate_series(1, 1001) i;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
truncate outbox.message;

-- Headers: a name that is too long; it counts in bytes.
select outbox.enqueue('orders', 'k', 'v', jsonb_build_object(repeat('n', 1024), 'value')) as id \gset
select outbox.enqueue('orders', 'k', 'v', jsonb_build_object(repeat('n', 1025), 'value'));
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('orders', 'k', 'v', jsonb_build_object(repeat('ü', 513), 'value'));
truncate outbox.message;

-- Arguments that the server itself refuses: no such types, no valid JSON, no uuid.
select outbox.enqueue('orders', 1, 2);
select outbox.enqueue('orders', 'k');
select outbox.enqueue('orders', 'k', 'v', 'no json');
select outbox.enqueue('orders', 'k', 'v', message_id => 'no uuid');

-- Size: the greatest that fits, one byte more, both numbers in the text. A record without key and headers adds 93 bytes
-- to its value: 36 for itself, 57 for the header with the message id.
show outbox_relay.max_message_bytes;
select outbox.enqueue('orders', null, repeat('x', 1000000 - 93)) as id \gset
select outbox.enqueue('orders', null, repeat('x', 1000000 - 92));
\echo SQLSTATE :LAST_ERROR_SQLSTATE

alter system set outbox_relay.max_message_bytes = 1000;
select pg_reload_conf();
\c -
show outbox_relay.max_message_bytes;
truncate outbox.message;
select outbox.enqueue('orders', null, repeat('x', 907)) as id \gset
select outbox.enqueue('orders', null, repeat('x', 908));
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.enqueue('orders', repeat('k', 100), repeat('x', 807)) as id \gset
select outbox.enqueue('orders', repeat('k', 100), repeat('x', 808));
select outbox.enqueue('orders', repeat('k', 907), null) as id \gset
select outbox.enqueue('orders', repeat('k', 908), null);
select outbox.enqueue('orders', decode(repeat('00', 500), 'hex'), decode(repeat('ff', 407), 'hex')) as id \gset
select outbox.enqueue('orders', decode(repeat('00', 500), 'hex'), decode(repeat('ff', 408), 'hex'));
-- A header adds its name, its value, and the two lengths: a byte each up to 63, then two.
select outbox.enqueue('orders', null, repeat('x', 887), jsonb_build_object('name', repeat('h', 14))) as id \gset
select outbox.enqueue('orders', null, repeat('x', 888), jsonb_build_object('name', repeat('h', 14)));
select outbox.enqueue('orders', null, repeat('x', 800), jsonb_build_object('name', repeat('h', 100))) as id \gset
select outbox.enqueue('orders', null, repeat('x', 801), jsonb_build_object('name', repeat('h', 100)));
-- Text counts in bytes.
select outbox.enqueue('orders', null, repeat('ü', 453)) as id \gset
select outbox.enqueue('orders', null, repeat('ü', 454));
-- jsonb counts as its text, quotes included.
select outbox.enqueue('orders', null, to_jsonb(repeat('x', 905))) as id \gset
select outbox.enqueue('orders', null, to_jsonb(repeat('x', 906)));
select count(*), max(length(coalesce(key, '')) + length(coalesce(value, ''))) from outbox.message;
truncate outbox.message;

alter system reset outbox_relay.max_message_bytes;
select pg_reload_conf();
\c -
show outbox_relay.max_message_bytes;

-- A refusal is an ordinary error: the transaction is lost, unless a savepoint or a handler keeps the rest.
begin;
select outbox.enqueue('orders', 'k', 'lost') as id \gset
select outbox.enqueue('', 'k', 'refused');
select 1;
commit;
do $$
begin
    perform outbox.enqueue('orders', 'k', 'kept');
    perform outbox.enqueue('orders', 'k', 'refused', '1');
exception when invalid_parameter_value then
    perform outbox.enqueue('orders', 'k', 'instead');
end
$$;
select convert_from(value, 'UTF8') as value from outbox.message;

truncate outbox.message;

-- JSON null is no set of headers; SQL null is none.
select outbox.enqueue('orders', 'k', 'v', 'null');
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- A row that somebody else's trigger swallows is an error, not a message.
create function swallow() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger swallow before insert on outbox.message for each row execute function swallow();
select outbox.enqueue('orders', 'k', 'v');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
drop trigger swallow on outbox.message;
drop function swallow();

-- What the owner writes by hand must be something that a relay can publish.
\set VERBOSITY terse
insert into outbox.message (id, bucket, topic, message_id) values (0, 1, 'orders', gen_random_uuid());
insert into outbox.message (bucket, topic, message_id) values (-1, 'orders', gen_random_uuid());
insert into outbox.message (bucket, topic, message_id) values (1024, 'orders', gen_random_uuid());
insert into outbox.message (bucket, topic, partition, message_id) values (1, 'orders', -1, gen_random_uuid());

truncate outbox.message;
drop schema outbox cascade;
