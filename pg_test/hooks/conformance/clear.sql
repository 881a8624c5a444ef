-- A storage that is empty.
delete from outbox.message;
delete from outbox.lease;
delete from outbox.relay;
delete from outbox.failure;
delete from conformance.cut;
