//! Where a message would go, without sending it: the partition that its key hashes to, and its bucket.

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;

use crate::bucket::{bucket_of, partition_of};

use super::enqueue_check::{Kind, partition_argument, to_bytea, uuid_bytes, varlena_bytes};
use super::{Function, enqueue_rows, raise, session};

super::sql_function! {
    /// outbox.partition_for of bytes
    fn outbox_partition_for_bytea / pg_finfo_outbox_partition_for_bytea(function) {
        partition_for(&function, Kind::Bytea)
    }
}

super::sql_function! {
    /// outbox.partition_for of text
    fn outbox_partition_for_text / pg_finfo_outbox_partition_for_text(function) {
        partition_for(&function, Kind::Text)
    }
}

super::sql_function! {
    /// outbox.bucket_for of bytes
    fn outbox_bucket_for_bytea / pg_finfo_outbox_bucket_for_bytea(function) {
        bucket_for(&function, Kind::Bytea)
    }
}

super::sql_function! {
    /// outbox.bucket_for of text
    fn outbox_bucket_for_text / pg_finfo_outbox_bucket_for_text(function) {
        bucket_for(&function, Kind::Text)
    }
}

fn partition_for(function: &Function, kind: Kind) -> pg_sys::Datum {
    let strict = "the function is strict";
    let key = to_bytea(function.argument(0).expect(strict), kind);
    let partitions = function.argument(1).expect(strict).value() as i32;
    if partitions < 1 {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("invalid number of partitions {partitions}"),
            "A topic has at least 1 partition.",
            "Give the number of partitions of the topic as the second argument.",
        );
    }
    session::arg(partition_of(varlena_bytes(key), partitions as u32) as i32).expect("not null")
}

fn bucket_for(function: &Function, kind: Kind) -> pg_sys::Datum {
    let key = function.argument(0).map(|datum| to_bytea(datum, kind));
    let partition = partition_argument(function.argument(1));
    let message_id = function.argument(2).map(uuid_bytes);
    if partition.is_none() && key.is_none() && message_id.is_none() {
        // A random id will decide.
        return function.return_null();
    }
    let count = enqueue_rows::bucket_count();
    let bucket = bucket_of(partition, key.map(varlena_bytes), &message_id.unwrap_or_default(), count);
    session::arg(bucket as i32).expect("not null")
}
