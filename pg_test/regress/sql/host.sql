-- A server with the library behaves as one without it, in every statement that is none of its business: results, and errors
-- with all that they tell. (What is expected here was printed by a server without it.)
create table host (a integer primary key, b integer constraint b_is_positive check (b > 0));

-- Where in the statement it went wrong.
create table other (a integer check (nowhere > 0));
\echo SQLSTATE :LAST_ERROR_SQLSTATE
create view other as select 1 / nowhere as a from host;
explain select nowhere from host;
alter table host add constraint c check (nowhere > 0);

-- In which function, line or row.
\set SHOW_CONTEXT always
do $$
begin
    insert into host values (1, 1), (1, 1);
end
$$;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
create procedure failing() language plpgsql as $$
begin
    perform 1 / 0;
end
$$;
call failing();
\echo SQLSTATE :LAST_ERROR_SQLSTATE
drop procedure failing;
copy host from stdin;
1	1
z	1
\.
\unset SHOW_CONTEXT

-- Which constraint of which table: what applications decide by.
prepare add_row (integer, integer) as insert into host values ($1, $2);
create function told(statement text) returns table (state text, message text, detail text, hint text, names text)
language plpgsql as $$
declare
    schema_name text;
    table_name text;
    column_name text;
    constraint_name text;
    type_name text;
begin
    execute statement;
exception when others then
    get stacked diagnostics state = returned_sqlstate, message = message_text, detail = pg_exception_detail,
        hint = pg_exception_hint, schema_name = schema_name, table_name = table_name, column_name = column_name,
        constraint_name = constraint_name, type_name = pg_datatype_name;
    names := concat_ws(' ', schema_name, table_name, column_name, constraint_name, type_name);
    return next;
end
$$;
create procedure raising() language plpgsql as $$
begin
    raise exception 'message' using errcode = 'ZZ001', detail = 'detail', hint = 'hint', schema = 'schema', table = 'table',
        column = 'column', constraint = 'constraint', datatype = 'type';
end
$$;
create procedure adding(integer, integer) language plpgsql as $$
begin
    insert into host values ($1, $2);
end
$$;
\x on
select * from told('execute add_row(1, 0)');
select * from told('call adding(1, 0)');
select * from told('do ''begin insert into host values (null, 1); end''');
select * from told('call raising()');
select * from told('create table host ()');
select * from told('alter table host add check (b > a), add constraint b_is_positive check (b > 0)');
\x off

-- An error of one's own keeps its code.
call raising();
\echo SQLSTATE :LAST_ERROR_SQLSTATE
do $$ begin raise exception 'own' using errcode = 'OWN01'; end $$;
\echo SQLSTATE :LAST_ERROR_SQLSTATE

-- Transactions within procedures and blocks.
create procedure in_steps() language plpgsql as $$
begin
    for i in 1..4 loop
        insert into host values (i, i);
        if i % 2 = 0 then commit; else rollback; end if;
    end loop;
end
$$;
call in_steps();
select * from host order by a;
do $$
begin
    delete from host;
    commit;
    insert into host values (9, 9);
    rollback;
end
$$;
select * from host;

-- Statements that the library looks at, when they are not about it.
drop extension no_extension;
drop extension if exists no_extension;
drop schema no_schema;
drop schema if exists no_schema;
drop database no_database;
drop database if exists no_database;
drop database regression;
alter database no_database rename to other;
alter database regression rename to other;
create database other template no_database;
create database regression;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
commit prepared 'none';
begin;
drop database other;
rollback;
create role regress_host;
create database regress_host_own;
set role regress_host;
drop database regress_host_own;
\echo SQLSTATE :LAST_ERROR_SQLSTATE
alter database regress_host_own rename to other;
create database other template regress_host_own;
reset role;
drop database regress_host_own;
drop role regress_host;

-- Results and command tags of utility statements.
execute add_row (1, 1);
\echo :ROW_COUNT
explain (costs off) execute add_row (1, 1);
begin;
declare c cursor for select a from host;
fetch all from c;
close c;
commit;
show server_encoding;
copy host to stdout;
vacuum host;
listen host;
unlisten host;
deallocate add_row;

drop procedure raising;
drop procedure adding;
drop procedure in_steps;
drop function told;
drop table host;
