//! What is checked of a message before it is stored, whichever function was called.
//!
//! Everything that can be refused is refused here, where somebody is there to hear it, with SQLSTATE, detail and hint.
//! A function that takes many messages adds which of them it was.

use std::borrow::Cow;

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::{pg_sys, varlena};

use crate::headers::{self, HEADERS_MAX, HeadersError, NAME_LEN_MAX};
use crate::message::{check_topic, record_size};

use super::{capital, gucs, raise, session, tables};

/// How an argument becomes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bytea,
    /// text and json: what was given, in UTF-8.
    Text,
    /// jsonb: its text form, in UTF-8.
    Jsonb,
}

/// A message as the caller gave it: what each datum is, the functions' declarations say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given {
    /// text
    pub topic: Option<pg_sys::Datum>,
    pub key: Option<pg_sys::Datum>,
    pub value: Option<pg_sys::Datum>,
    /// jsonb
    pub headers: Option<pg_sys::Datum>,
    pub partition: Option<i32>,
    /// uuid
    pub message_id: Option<pg_sys::Datum>,
}

/// A message that may be stored. Its values live in the memory of the call.
#[derive(Debug, Clone, Copy)]
pub struct Checked {
    /// text
    pub topic: pg_sys::Datum,
    pub partition: Option<u32>,
    /// bytea, as are the next two
    pub key: Option<pg_sys::Datum>,
    pub value: Option<pg_sys::Datum>,
    pub headers: Option<pg_sys::Datum>,
    pub message_id: [u8; 16],
}

/// Why a message is refused.
#[derive(Debug)]
pub struct Refusal {
    code: PgSqlErrorCode,
    message: String,
    detail: String,
    hint: &'static str,
}

impl Refusal {
    fn new(code: PgSqlErrorCode, message: impl Into<String>, detail: impl Into<String>, hint: &'static str) -> Self {
        Self { code, message: message.into(), detail: detail.into(), hint }
    }

    pub fn raise(self) -> ! {
        raise(self.code, &self.message, &self.detail, self.hint)
    }

    /// Rows count from 1.
    pub fn raise_for_row(self, row: usize) -> ! {
        raise(self.code, &self.message, &format!("Row {row}: {}", self.detail), self.hint)
    }
}

/// Checks a message. `partitions` is asked only for a message with an explicit partition.
pub fn check(given: &Given, key: Kind, value: Kind, partitions: &mut KnownPartitions) -> Result<Checked, Refusal> {
    let topic = given.topic.ok_or_else(|| {
        Refusal::new(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            "topic must not be null",
            "Every message goes to a topic.",
            "Give the name of a Kafka topic as the first argument.",
        )
    })?;
    let name = utf8(varlena_bytes(topic));
    check_name(&String::from_utf8_lossy(&name))?;
    let partition = given.partition.map(|number| check_partition(number, topic, partitions)).transpose()?;
    let key = given.key.map(|datum| to_bytea(datum, key));
    let value = given.value.map(|datum| to_bytea(datum, value));
    let blob = encode_headers(given.headers)?;
    let list = blob.as_deref().map(headers::decode).transpose().expect("just encoded").unwrap_or_default();
    let size = record_size(key.map(varlena_bytes), value.map(varlena_bytes), &list);
    if size > gucs::max_message_bytes() {
        return Err(Refusal::new(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            format!("message of {size} bytes is too large"),
            format!("Key, value, headers and overhead of the record may have {} bytes.", gucs::max_message_bytes()),
            "Raise outbox_relay.max_message_bytes and the topic's max.message.bytes, or send a reference to the data.",
        ));
    }
    let message_id = given.message_id.unwrap_or_else(|| {
        // SAFETY: the function takes no argument and looks at none.
        unsafe { pg_sys::gen_random_uuid(std::ptr::null_mut()) }
    });
    Ok(Checked { topic, partition, key, value, headers: session::arg(blob), message_id: uuid_bytes(message_id) })
}

fn check_name(topic: &str) -> Result<(), Refusal> {
    check_topic(topic).map_err(|error| {
        Refusal::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("invalid topic name \"{topic}\""),
            error.to_string(),
            "Use 1 to 249 letters, digits, dots, underscores and hyphens.",
        )
    })
}

fn check_partition(number: i32, topic: pg_sys::Datum, partitions: &mut KnownPartitions) -> Result<u32, Refusal> {
    let partition = not_negative(number)?;
    match partitions.of(topic) {
        Some(count) if number >= count => Err(Refusal::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("invalid partition {number}"),
            format!(
                "Topic \"{}\" has {count} partitions, as outbox.topic says, which are numbered from 0.",
                String::from_utf8_lossy(varlena_bytes(topic))
            ),
            "Omit the partition to let the key decide. If the topic has more by now, say so with outbox.set_topic().",
        )),
        _ => Ok(partition),
    }
}

/// A partition argument, outside of the checks of a whole message.
pub fn partition_argument(datum: Option<pg_sys::Datum>) -> Option<u32> {
    datum.map(|datum| not_negative(datum.value() as i32).unwrap_or_else(|refusal| refusal.raise()))
}

/// A partition as the caller gave it.
fn not_negative(number: i32) -> Result<u32, Refusal> {
    u32::try_from(number).map_err(|_| {
        Refusal::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("invalid partition {number}"),
            "Partitions are numbered from 0.",
            "Omit the partition to let the key decide.",
        )
    })
}

fn encode_headers(headers: Option<pg_sys::Datum>) -> Result<Option<Vec<u8>>, Refusal> {
    let json = headers.map(|datum| String::from_utf8_lossy(jsonb_text(datum).as_ref()).into_owned());
    let encoded = match (gucs::trace_context(), json) {
        (None, None) => return Ok(None),
        (None, Some(json)) => headers::from_json(&json),
        (Some(context), json) => headers::with_trace_context(json.as_deref(), &context.as_ref()),
    };
    encoded.map_err(refuse_headers)
}

/// The same of headers that are there, without those that the session adds.
pub fn encode_given_headers(headers: pg_sys::Datum) -> Result<Option<Vec<u8>>, Refusal> {
    headers::from_json(&String::from_utf8_lossy(&jsonb_text(headers))).map_err(refuse_headers)
}

fn refuse_headers(error: HeadersError) -> Refusal {
    match error {
        HeadersError::TooMany(count) => Refusal::new(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            format!("message with {count} headers"),
            format!("A message may have {HEADERS_MAX} headers."),
            "Send a list as the value of one header, or in the value of the message.",
        ),
        HeadersError::NameTooLong(len) => Refusal::new(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            format!("header name of {len} bytes is too long"),
            format!("The name of a header may have {NAME_LEN_MAX} bytes."),
            "Send what is long as the value of the header.",
        ),
        error => Refusal::new(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "invalid message headers",
            format!("{}.", capital(&error.to_string())),
            "Give a JSON object, or an array of [name, value] pairs to keep order and duplicates; a value is a string, null or {\"base64\": \"...\"}.",
        ),
    }
}

/// The numbers of partitions that operators have declared. Remembers the last answer: neighbours mostly share the topic.
#[derive(Debug, Default)]
pub struct KnownPartitions {
    last: Option<(Vec<u8>, Option<i32>)>,
}

impl KnownPartitions {
    fn of(&mut self, topic: pg_sys::Datum) -> Option<i32> {
        let name = varlena_bytes(topic);
        match &self.last {
            Some((last, count)) if last == name => *count,
            _ => {
                let count = declared_partitions(topic);
                self.last = Some((name.to_vec(), count));
                count
            }
        }
    }
}

/// What outbox.topic says as of now, even in a transaction whose snapshot is older.
fn declared_partitions(topic: pg_sys::Datum) -> Option<i32> {
    // Without its index the table is read from end to end.
    let index = tables::if_there(c"topic_pkey").unwrap_or(pg_sys::InvalidOid);
    let mut count = None;
    session::each_row_of_key_now(tables::named(c"topic"), index, topic, |tuple, columns| {
        let mut null = false;
        // SAFETY: a row of the table, whose fifth column is an integer.
        let datum = unsafe { pg_sys::heap_getattr(tuple, 5, columns, &mut null) };
        count = (!null).then(|| datum.value() as i32);
    });
    count
}

/// What a value means to a Kafka consumer, as a bytea that is not compressed.
pub fn to_bytea(datum: pg_sys::Datum, kind: Kind) -> pg_sys::Datum {
    let text = match kind {
        // SAFETY: a datum of a varlena type.
        Kind::Bytea => return unsafe { pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr()) }.into(),
        Kind::Text => {
            // SAFETY: as above. text and bytea differ in what is allowed in them only.
            let plain = unsafe { pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr()) };
            match utf8(varlena_bytes(plain.into())) {
                Cow::Borrowed(_) => return plain.into(),
                Cow::Owned(converted) => Cow::Owned(converted),
            }
        }
        Kind::Jsonb => jsonb_text(datum),
    };
    session::arg(text.as_ref()).expect("not null")
}

/// The text form of a jsonb in UTF-8.
fn jsonb_text(datum: pg_sys::Datum) -> Cow<'static, [u8]> {
    // SAFETY: a jsonb; the text lives in the memory of the call.
    let text = unsafe {
        let jsonb: *mut pg_sys::Jsonb = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
        let len = varlena::varsize_any(jsonb.cast()) as i32;
        let text = pg_sys::JsonbToCString(std::ptr::null_mut(), &mut (*jsonb).root, len);
        std::ffi::CStr::from_ptr(text).to_bytes()
    };
    utf8(text)
}

/// Text of the database's encoding in UTF-8, which is what consumers expect. Borrowed if it is that already.
fn utf8(text: &'static [u8]) -> Cow<'static, [u8]> {
    let encoding = pg_sys::pg_enc::PG_UTF8 as i32;
    // SAFETY: converts text of the database's encoding; the result is the same pointer or a new C string.
    unsafe {
        let converted = pg_sys::pg_server_to_any(text.as_ptr().cast(), text.len() as i32, encoding);
        if converted.cast_const().cast() == text.as_ptr() {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(std::ffi::CStr::from_ptr(converted).to_bytes().to_vec())
        }
    }
}

/// The bytes of a varlena value, valid for the call: arguments and what is detoasted live in the call's memory.
pub fn varlena_bytes(datum: pg_sys::Datum) -> &'static [u8] {
    // SAFETY: a value of a varlena type. The lifetime is that of the call; nothing here keeps the slice longer.
    unsafe {
        let plain = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
        std::slice::from_raw_parts(varlena::vardata_any(plain).cast(), varlena::varsize_any_exhdr(plain))
    }
}

/// The bytes of a uuid in the order of its text.
pub fn uuid_bytes(datum: pg_sys::Datum) -> [u8; 16] {
    // SAFETY: a datum of type uuid points to 16 bytes.
    unsafe { *datum.cast_mut_ptr::<[u8; 16]>() }
}
