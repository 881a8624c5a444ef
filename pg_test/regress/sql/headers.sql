-- Headers: JSON at enqueue, stored bytes, JSON again from outbox.decode_headers.
\pset null '<null>'
create extension outbox_relay;

create function stored(headers jsonb) returns bytea language plpgsql as $$
declare
    blob bytea;
begin
    perform outbox.enqueue('headers', 'k', 'v', $1);
    delete from outbox.message m returning m.headers into strict blob;
    return blob;
end
$$;

-- An object, an array of pairs, and the bytes that the relay reads: version 1, count, then lengths with what they count.
select stored('{"a": "x"}');
select stored('[["a", "x"]]');
select stored('[["a", "x"], ["", null], ["b", ""]]');
select outbox.decode_headers(stored('{"a": "x"}')) as object, outbox.decode_headers(stored('[["a", "x"]]')) as array;

-- None at all are stored as null.
select stored(null) as "null", stored('{}') as object, stored('[]') as array;
select outbox.decode_headers(null);

-- Only the array keeps order and duplicates: jsonb itself sorts an object's names and keeps the last of two.
select outbox.decode_headers(stored('{"b": "1", "a": "2", "b": "3", "aa": "4"}')) as object;
select outbox.decode_headers(stored('[["b", "1"], ["a", "2"], ["b", "3"], ["b", "3"], ["aa", "4"]]')) as array;

-- Null, empty and text are three values.
select outbox.decode_headers(stored('[["null", null], ["empty", ""], ["text", "null"]]'));

-- Bytes travel as base64, and come back as text if they are text that jsonb can hold.
select outbox.decode_headers(stored('{"bytes": {"base64": "AP8="}}')) as bytes;
select outbox.decode_headers(stored('{"text": {"base64": "dGV4dA=="}}')) as text;
select outbox.decode_headers(stored('{"empty": {"base64": ""}}')) as empty;
select outbox.decode_headers(stored('{"nul": {"base64": "YQBi"}}')) as nul;

-- Any Unicode in names and values, and whatever JSON has to escape.
select outbox.decode_headers(stored('[["ключ", "значение"], ["smile", "😀"], ["", "empty name"]]'));
select outbox.decode_headers(stored('{"escapes": "\" \\ \/ \b \f \n \r \t \u0001 \u00fc \ud83d\ude00"}'));
select stored('{"ü": "ü"}') = stored('{"\u00fc": "\u00fc"}') as same;

-- Long values.
select length(stored(jsonb_build_object('long', repeat('x', 100000))));
select outbox.decode_headers(stored(jsonb_build_object('long', repeat('x', 100000)))) ->0->>1 = repeat('x', 100000) as same;

-- What decode_headers gives, enqueue takes back: the same bytes.
create table samples (headers jsonb);
insert into samples values
    ('[["b", "1"], ["a", null], ["b", {"base64": "AP8="}], ["c", ""], ["d", {"base64": "AA=="}], ["ü", "\u0001"]]'),
    ('{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'),
    ('[["", ""], ["", ""]]');
select stored(headers) = stored(outbox.decode_headers(stored(headers))) as same from samples;
drop table samples;

-- A header with the name of ours is stored as given; the relay puts its own in the place.
select outbox.decode_headers(stored('{"x-outbox-message-id": "forged"}'));

-- Trace context: what the session has set goes with messages that bring none, behind their own headers.
\set parent '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
set outbox_relay.traceparent = :'parent';
select outbox.decode_headers(stored(null)) as none, outbox.decode_headers(stored('{}')) as empty;
set outbox_relay.tracestate = 'vendor=1,other=2';
select outbox.decode_headers(stored('[["b", "1"], ["a", null]]')) as array;
-- A message with a traceparent of its own gets neither, in whatever case it is written; a tracestate of its own is kept.
select outbox.decode_headers(stored('{"traceparent": "mine"}')) as own, outbox.decode_headers(stored('[["TraceParent", null]]')) as null;
select outbox.decode_headers(stored('{"tracestate": "mine=1"}')) as own_state;
-- So with many at a time, and once.
select cardinality(outbox.enqueue_many('headers', array['a', 'b'], null::text[], headers => array[null, '{"traceparent": "mine"}']::jsonb[]));
select outbox.enqueue_agg('headers', 'c', 'v');
select outbox.enqueue_once('headers', 'd', 'v', gen_random_uuid());
select convert_from(key, 'UTF8') as key, outbox.decode_headers(headers) as headers from outbox.message order by id;
truncate outbox.message;
-- It counts as part of the record: 1000000 less 93, less the two headers.
select outbox.enqueue('headers', null, repeat('x', 1000000 - 93 - (1 + 11 + 1 + 55) - (1 + 10 + 1 + 16))) as id \gset
select outbox.enqueue('headers', null, repeat('x', 1000000 - 93 - (1 + 11 + 1 + 55) - (1 + 10 + 1 + 16) + 1));
truncate outbox.message;
-- A tracestate alone means nothing.
reset outbox_relay.traceparent;
select stored(null) as alone;
reset outbox_relay.tracestate;
-- For a transaction only, or a function.
begin;
set local outbox_relay.traceparent = :'parent';
select outbox.decode_headers(stored(null)) as inside;
commit;
select stored(null) as outside;
create function traced() returns bytea language sql set outbox_relay.traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00'
    as 'select stored(null)';
select outbox.decode_headers(traced()) as inside, stored(null) as outside;
drop function traced;
set outbox_relay.traceparent = '';
select stored(null) as empty;
reset outbox_relay.traceparent;

-- Damaged bytes are an error, never a crash: empty, other version, no count, count too large, negative count, cut, too long,
-- no name, name that is no text.
select outbox.decode_headers('\x');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.decode_headers('\x0200000000');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
select outbox.decode_headers('\x01');
select outbox.decode_headers('\x01ffffff7f');
select outbox.decode_headers('\x01ffffffff');
select outbox.decode_headers('\x0101000000010000006101000000');
select outbox.decode_headers('\x010100000001000000610100000078ff');
select outbox.decode_headers('\x0101000000ffffffff0100000078');
select outbox.decode_headers('\x010100000001000000ff0100000078');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
-- No headers at all, in the long form.
select outbox.decode_headers('\x0100000000');

-- Every blob that is cut short is refused.
create function refused(blob bytea) returns boolean language plpgsql as $$
begin
    perform outbox.decode_headers(blob);
    return false;
exception when invalid_binary_representation then
    return true;
end
$$;
select bool_and(refused(substr(blob, 1, i))) as all_refused
from stored('[["name", "value"], ["other", null]]') blob, generate_series(0, length(blob) - 1) i;
-- And whichever byte is changed, the answer is an error or JSON.
select count(refused(set_byte(blob, i, byte)))
from stored('[["name", "value"], ["other", null]]') blob, generate_series(0, length(blob) - 1) i,
     generate_series(0, 255, 5) byte;

drop function stored;
drop function refused;
drop schema outbox cascade;
