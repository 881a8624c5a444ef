-- What the test makes before the suite runs in a worker of its database.
create schema conformance;
comment on schema conformance is 'the conformance suite on the store of this database';

create table conformance.outcome (rule text not null, outcome text not null);
comment on table conformance.outcome is 'what came of each rule, and a last row with an empty name';

create table conformance.cut ();
comment on table conformance.cut is 'as long as there is a row, no lease can be freed';

create function conformance.cut_short() returns trigger
    language plpgsql
    as $$
begin
    if new.relay_id is null and exists (select from conformance.cut) then
        raise exception 'the release is cut short';
    end if;
    return new;
end
$$;
comment on function conformance.cut_short() is 'refuses to free a lease, if conformance.cut says so';

create trigger cut_short before update on outbox.lease for each row execute function conformance.cut_short();
comment on trigger cut_short on outbox.lease is 'lets a release fail between its two halves';
