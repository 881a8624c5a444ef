//! What the functions for operators share with `enqueue`: its checks, and how a message gets its place.
//!
//! Reason: a message that an operator has changed must be one that `enqueue` could have stored, and one that he has moved
//! must lie where `enqueue` would put it now.

use pgrx::{IntoDatum, pg_sys};

use crate::bucket::bucket_of;

use super::enqueue_check::{
    Given, Kind, KnownPartitions, check, encode_given_headers, partition_argument, uuid_bytes, varlena_bytes,
};
use super::enqueue_rows::{bucket_count, lock_table};
use super::{bell, tables};

super::sql_function! {
    /// outbox.check_message
    fn outbox_check_message / pg_finfo_outbox_check_message(function) {
        let given = Given {
            topic: function.argument(0),
            key: function.argument(1),
            value: function.argument(2),
            headers: function.argument(3),
            partition: function.argument(4).map(|datum| datum.value() as i32),
            message_id: None,
        };
        check(&given, Kind::Bytea, Kind::Bytea, &mut KnownPartitions::default()).unwrap_or_else(|refusal| refusal.raise());
        function.return_void()
    }
}

super::sql_function! {
    /// outbox.encode_headers
    fn outbox_encode_headers / pg_finfo_outbox_encode_headers(function) {
        let headers = function.argument(0).expect("the function is strict");
        let blob = encode_given_headers(headers).unwrap_or_else(|refusal| refusal.raise());
        blob.and_then(IntoDatum::into_datum).unwrap_or_else(|| function.return_null())
    }
}

super::sql_function! {
    /// outbox.new_place
    fn outbox_new_place / pg_finfo_outbox_new_place(function) {
        let key = function.argument(0).map(varlena_bytes);
        let partition = partition_argument(function.argument(1));
        let message_id = uuid_bytes(function.argument(2).expect("a message has an id"));
        lock_table();
        let bucket = bucket_of(partition, key, &message_id, bucket_count());
        let sequence = Some(tables::named(c"message_id_seq").into());
        // SAFETY: the next value of a sequence, inside the caller's transaction.
        let id = unsafe { pgrx::direct_function_call::<i64>(pg_sys::nextval_oid, &[sequence]) };
        let id = id.expect("an id is never null");
        bell::wrote(bucket, id);
        function.return_rows([vec![(bucket as i32).into_datum(), id.into_datum()]].into_iter())
    }
}
