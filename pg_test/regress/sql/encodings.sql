-- What consumers get is UTF-8, whatever the encoding of the database; and what users read is in their own.
create database regress_latin1 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0;
\c regress_latin1
set client_encoding = 'UTF8';
create extension outbox_relay;
show server_encoding;

-- Key and value of every type arrive as UTF-8.
select outbox.enqueue('latin1', 'schlüssel', 'größe') as id \gset
select outbox.enqueue('latin1', 'schlüssel', '{"größe": "é"}'::jsonb) as id \gset
select outbox.enqueue('latin1', 'schlüssel', '{"größe":  "é"}'::json) as id \gset
select outbox.enqueue('latin1', '', '') as id \gset
-- Bytes stay what they are.
select outbox.enqueue('latin1', '\xe9'::bytea, '\xe9'::bytea) as id \gset
select encode(key, 'escape') as key, encode(value, 'escape') as value,
       key = convert_to('schlüssel', 'UTF8') as same_key
from outbox.message order by id;

-- So a key has the bucket that it has in any other database.
select distinct bucket from outbox.message where key = convert_to('schlüssel', 'UTF8');
truncate outbox.message;

-- Headers are stored in UTF-8 too, and shown in the encoding of the database.
select outbox.enqueue('latin1', 'k', 'v', '[["größe", "é"]]') as id \gset
select headers = '\x010100000007000000' || convert_to('größe', 'UTF8') || '\x02000000' || convert_to('é', 'UTF8') as utf8
from outbox.message;
select outbox.decode_headers(headers) as headers from outbox.message;
-- A character that the encoding lacks is an error, not another character.
select outbox.decode_headers('\x010100000001000000' || 'k'::bytea || '\x02000000d0ba');
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- So are texts of errors, which show what is not ASCII as escapes.
select outbox.enqueue('bücher', 'k', 'v');
select outbox.enqueue('latin1', 'k', 'v', '"größe"');
truncate outbox.message;
drop schema outbox cascade;

-- A database without an encoding has only bytes: text must be UTF-8 already.
\c regression
drop database regress_latin1;
create database regress_ascii encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0;
\c regress_ascii
create extension outbox_relay;
select outbox.enqueue('ascii', 'größe', 'value') as id \gset
select convert_from(key, 'UTF8') as key from outbox.message;
select outbox.enqueue('ascii', e'gr\xf6\xdfe', 'value');
\echo SQLSTATE :LAST_ERROR_SQLSTATE
truncate outbox.message;
drop schema outbox cascade;
\c regression
drop database regress_ascii;
