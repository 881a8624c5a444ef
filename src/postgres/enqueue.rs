//! What writers call: checks a message, computes its bucket, and inserts the row in the caller's transaction.
//!
//! Everything that can be refused is refused here, where somebody is there to hear it, with SQLSTATE, detail and hint.

use std::borrow::Cow;

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::{FromDatum, pg_sys, varlena};

use crate::bucket::{BUCKET_COUNT_DEFAULT, BUCKET_COUNT_MAX, BUCKET_COUNT_MIN, bucket_of};
use crate::headers;
use crate::message::{check_topic, record_size};

use super::session::{self, Statement};
use super::{Function, bell, capital, gucs, raise, stamp};

/// How an argument becomes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bytea,
    /// text and json: what was given, in UTF-8.
    Text,
    /// jsonb: its text form, in UTF-8.
    Jsonb,
}

macro_rules! enqueue_function {
    ($name:ident, $info:ident, $key:expr, $value:expr) => {
        super::sql_function! {
            /// outbox.enqueue of one combination of types.
            fn $name / $info(function) {
                enqueue(&function, $key, $value)
            }
        }
    };
}

enqueue_function!(outbox_enqueue_bytea_bytea, pg_finfo_outbox_enqueue_bytea_bytea, Kind::Bytea, Kind::Bytea);
enqueue_function!(outbox_enqueue_text_text, pg_finfo_outbox_enqueue_text_text, Kind::Text, Kind::Text);
enqueue_function!(outbox_enqueue_text_jsonb, pg_finfo_outbox_enqueue_text_jsonb, Kind::Text, Kind::Jsonb);
enqueue_function!(outbox_enqueue_text_json, pg_finfo_outbox_enqueue_text_json, Kind::Text, Kind::Text);
enqueue_function!(outbox_enqueue_text_bytea, pg_finfo_outbox_enqueue_text_bytea, Kind::Text, Kind::Bytea);

super::sql_function! {
    /// outbox.decode_headers
    fn outbox_decode_headers / pg_finfo_outbox_decode_headers(function) {
        let blob = function.argument(0).expect("the function is strict");
        let blob = varlena_bytes(blob);
        match headers::to_json(blob) {
            Ok(json) => {
                let json = std::ffi::CString::new(json).expect("the JSON of headers escapes NUL");
                let encoding = pg_sys::pg_enc::PG_UTF8 as i32;
                // SAFETY: converts JSON text of ours to the database's encoding, parses it, and gives a jsonb.
                unsafe {
                    let json = pg_sys::pg_any_to_server(json.as_ptr(), json.as_bytes().len() as i32, encoding);
                    pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &[Some(json.cast_const().into())])
                }
                    .expect("JSON is not null")
            }
            Err(error) => raise(
                PgSqlErrorCode::ERRCODE_INVALID_BINARY_REPRESENTATION,
                "could not read stored headers",
                &format!("{}.", capital(&error.to_string())),
                "The argument must be a value of outbox.message.headers.",
            ),
        }
    }
}

fn enqueue(function: &Function, key_kind: Kind, value_kind: Kind) -> pg_sys::Datum {
    let topic = function.argument(0).map(varlena_text);
    let topic = topic.as_deref().unwrap_or_else(|| {
        raise(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            "topic must not be null",
            "Every message goes to a topic.",
            "Give the name of a Kafka topic as the first argument.",
        )
    });
    if let Err(error) = check_topic(topic) {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("invalid topic name \"{topic}\""),
            &error.to_string(),
            "Use 1 to 249 letters, digits, dots, underscores and hyphens.",
        );
    }
    let key = function.argument(1).map(|datum| bytes(datum, key_kind));
    let value = function.argument(2).map(|datum| bytes(datum, value_kind));
    let blob = function.argument(3).and_then(encode_headers);
    let partition = function.argument(4).map(partition_number);
    let message_id = function.argument(5).unwrap_or_else(|| {
        // SAFETY: the function takes no argument and looks at none.
        unsafe { pg_sys::gen_random_uuid(std::ptr::null_mut()) }
    });
    // SAFETY: a datum of type uuid.
    let id_bytes = *unsafe { pgrx::Uuid::from_datum(message_id, false) }.expect("not null").as_bytes();

    let list = blob.as_deref().map(headers::decode).transpose().expect("just encoded").unwrap_or_default();
    let size = record_size(key.as_deref(), value.as_deref(), &list);
    if size > gucs::max_message_bytes() {
        raise(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            &format!("message of {size} bytes is too large"),
            &format!("Key, value, headers and overhead of the record may have {} bytes.", gucs::max_message_bytes()),
            "Raise outbox_relay.max_message_bytes and the topic's max.message.bytes, or send a reference to the data.",
        );
    }

    let schema = lock_schema();
    stamp::ensure(schema);
    let bucket = bucket_of(partition, key.as_deref(), &id_bytes, bucket_count(schema));
    let id = insert(bucket, topic, partition, key.as_deref(), value.as_deref(), blob.as_deref(), message_id);
    bell::wrote(bucket, id);
    message_id
}

fn partition_number(datum: pg_sys::Datum) -> u32 {
    let number = datum.value() as i32;
    u32::try_from(number).unwrap_or_else(|_| {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            &format!("invalid partition {number}"),
            "Partitions are numbered from 0.",
            "Omit the partition to let the key decide.",
        )
    })
}

fn encode_headers(datum: pg_sys::Datum) -> Option<Vec<u8>> {
    let json = String::from_utf8_lossy(&bytes(datum, Kind::Jsonb)).into_owned();
    headers::from_json(&json).unwrap_or_else(|error| {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "invalid message headers",
            &format!("{}.", capital(&error.to_string())),
            "Give a JSON object, or an array of [name, value] pairs to keep order and duplicates; a value is a string, null or {\"base64\": \"...\"}.",
        )
    })
}

/// The bytes that a value means to a Kafka consumer.
fn bytes(datum: pg_sys::Datum, kind: Kind) -> Cow<'static, [u8]> {
    match kind {
        Kind::Bytea => Cow::Borrowed(varlena_bytes(datum)),
        Kind::Text => utf8(varlena_bytes(datum)),
        Kind::Jsonb => {
            let jsonb = varlena_pointer(datum);
            // SAFETY: a detoasted jsonb; the text lives in the memory of the call.
            let text = unsafe {
                let jsonb: *mut pg_sys::Jsonb = pg_sys::pg_detoast_datum(jsonb.cast()).cast();
                let len = varlena::varsize_any(jsonb.cast()) as i32;
                let text = pg_sys::JsonbToCString(std::ptr::null_mut(), &mut (*jsonb).root, len);
                std::ffi::CStr::from_ptr(text).to_bytes()
            };
            utf8(text)
        }
    }
}

/// Text of the database's encoding in UTF-8, which is what consumers expect.
fn utf8(text: &'static [u8]) -> Cow<'static, [u8]> {
    let encoding = pg_sys::pg_enc::PG_UTF8 as i32;
    // SAFETY: converts text of the database's encoding; the result is the same pointer or a new C string.
    unsafe {
        let converted = pg_sys::pg_server_to_any(text.as_ptr().cast(), text.len() as i32, encoding);
        if converted.cast_const().cast() == text.as_ptr() {
            Cow::Borrowed(text)
        } else {
            Cow::Borrowed(std::ffi::CStr::from_ptr(converted).to_bytes())
        }
    }
}

fn varlena_text(datum: pg_sys::Datum) -> String {
    String::from_utf8_lossy(&utf8(varlena_bytes(datum))).into_owned()
}

fn varlena_pointer(datum: pg_sys::Datum) -> *mut pg_sys::varlena {
    datum.cast_mut_ptr()
}

/// The bytes of a varlena argument, valid for the call: arguments and what is detoasted live in the call's memory.
fn varlena_bytes(datum: pg_sys::Datum) -> &'static [u8] {
    // SAFETY: an argument of a varlena type. The lifetime is that of the call; nothing here keeps the slice longer.
    unsafe {
        let plain = pg_sys::pg_detoast_datum_packed(varlena_pointer(datum));
        std::slice::from_raw_parts(varlena::vardata_any(plain).cast(), varlena::varsize_any_exhdr(plain))
    }
}

/// The schema of our tables, with outbox.message locked against a change of the bucket count: such a change waits for this
/// transaction, or is seen by it. So this comes before the count is read.
fn lock_schema() -> pg_sys::Oid {
    // SAFETY: look-ups in the catalogue and a lock, inside the caller's transaction.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"outbox".as_ptr(), false);
        let message = pg_sys::get_relname_relid(c"message".as_ptr(), schema);
        pg_sys::LockRelationOid(message, pg_sys::RowExclusiveLock as i32);
        schema
    }
}

/// The bucket count as of now, even in a transaction whose snapshot is older: writers must agree with relays.
fn bucket_count(schema: pg_sys::Oid) -> u32 {
    // SAFETY: a look-up in the catalogue, inside the caller's transaction.
    let setting = unsafe { pg_sys::get_relname_relid(c"setting".as_ptr(), schema) };
    let mut count = None;
    session::each_row_now(setting, |tuple, columns| {
        let column = |number| {
            let mut null = false;
            // SAFETY: a row of the table, whose columns are texts.
            unsafe {
                let datum = pg_sys::heap_getattr(tuple, number, columns, &mut null);
                String::from_datum(datum, null)
            }
        };
        if column(1).as_deref() == Some("bucket_count") {
            count = column(2).and_then(|value| value.parse().ok());
        }
    });
    count.unwrap_or(BUCKET_COUNT_DEFAULT).clamp(BUCKET_COUNT_MIN, BUCKET_COUNT_MAX)
}

thread_local! {
    static INSERT: Statement = const {
        Statement::new(
            include_str!("../../sql/statements/insert_message.sql"),
            &[
                pg_sys::INT4OID,
                pg_sys::TEXTOID,
                pg_sys::INT4OID,
                pg_sys::BYTEAOID,
                pg_sys::BYTEAOID,
                pg_sys::BYTEAOID,
                pg_sys::UUIDOID,
            ],
        )
    };
}

fn insert(
    bucket: u32,
    topic: &str,
    partition: Option<u32>,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: Option<&[u8]>,
    message_id: pg_sys::Datum,
) -> i64 {
    let args = [
        session::arg(bucket as i32),
        session::arg(topic),
        session::arg(partition.map(|partition| partition as i32)),
        session::arg(key),
        session::arg(value),
        session::arg(headers),
        Some(message_id),
    ];
    // SAFETY: inside the caller's transaction; the values live in the call's memory, and the id is read before the table
    // is freed.
    unsafe {
        pg_sys::SPI_connect();
        INSERT.with(|insert| session::execute(insert.plan(), &args, false));
        if pg_sys::SPI_processed != 1 {
            raise(
                PgSqlErrorCode::ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION,
                "the message was not stored",
                "A trigger or rule on outbox.message has suppressed it.",
                "Remove the trigger or rule.",
            );
        }
        let mut null = false;
        let table = pg_sys::SPI_tuptable;
        let id = pg_sys::SPI_getbinval(*(*table).vals, (*table).tupdesc, 1, &mut null).value() as i64;
        pg_sys::SPI_finish();
        id
    }
}
