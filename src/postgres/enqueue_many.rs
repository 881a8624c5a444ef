//! What writers call for many messages: arrays of them, or an aggregate over the rows of a query.
//!
//! One bad message refuses the call, and the error says which it was. The aggregate gathers what its query gives and stores
//! it a thousand rows at a time: the query is the caller's own and runs with his rights, only the storing is done with those
//! of the tables' owner.

use std::ffi::c_char;

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::{PgMemoryContexts, pg_sys};

use super::enqueue_check::{Checked, Given, Kind, KnownPartitions, check};
use super::{Function, enqueue_rows, raise, session};

/// Messages that an aggregate gathers before it stores them.
const GATHERED_MAX: usize = 1_000;
/// Size at which it stores fewer.
const GATHERED_BYTES: usize = 1 << 20;

macro_rules! enqueue_many_function {
    ($name:ident, $info:ident, $topics:expr, $key:expr, $value:expr) => {
        super::sql_function! {
            /// outbox.enqueue_many of one combination of types.
            fn $name / $info(function) {
                enqueue_many(&function, $topics, $key, $value)
            }
        }
    };
}

/// What the first argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topics {
    /// text: the topic of all.
    One,
    /// text[]: a topic for each.
    Each,
}

/// An array of bytea, text, json or jsonb has this element type.
#[derive(Debug, Clone, Copy)]
struct Elements {
    kind: Kind,
    oid: pg_sys::Oid,
}

const BYTEA: Elements = Elements { kind: Kind::Bytea, oid: pg_sys::BYTEAOID };
const TEXT: Elements = Elements { kind: Kind::Text, oid: pg_sys::TEXTOID };
const JSON: Elements = Elements { kind: Kind::Text, oid: pg_sys::JSONOID };
const JSONB: Elements = Elements { kind: Kind::Jsonb, oid: pg_sys::JSONBOID };

enqueue_many_function!(
    outbox_enqueue_many_bytea_bytea,
    pg_finfo_outbox_enqueue_many_bytea_bytea,
    Topics::One,
    BYTEA,
    BYTEA
);
enqueue_many_function!(outbox_enqueue_many_text_text, pg_finfo_outbox_enqueue_many_text_text, Topics::One, TEXT, TEXT);
enqueue_many_function!(
    outbox_enqueue_many_text_jsonb,
    pg_finfo_outbox_enqueue_many_text_jsonb,
    Topics::One,
    TEXT,
    JSONB
);
enqueue_many_function!(outbox_enqueue_many_text_json, pg_finfo_outbox_enqueue_many_text_json, Topics::One, TEXT, JSON);
enqueue_many_function!(
    outbox_enqueue_many_text_bytea,
    pg_finfo_outbox_enqueue_many_text_bytea,
    Topics::One,
    TEXT,
    BYTEA
);
enqueue_many_function!(
    outbox_enqueue_each_bytea_bytea,
    pg_finfo_outbox_enqueue_each_bytea_bytea,
    Topics::Each,
    BYTEA,
    BYTEA
);
enqueue_many_function!(outbox_enqueue_each_text_text, pg_finfo_outbox_enqueue_each_text_text, Topics::Each, TEXT, TEXT);
enqueue_many_function!(
    outbox_enqueue_each_text_jsonb,
    pg_finfo_outbox_enqueue_each_text_jsonb,
    Topics::Each,
    TEXT,
    JSONB
);
enqueue_many_function!(outbox_enqueue_each_text_json, pg_finfo_outbox_enqueue_each_text_json, Topics::Each, TEXT, JSON);
enqueue_many_function!(
    outbox_enqueue_each_text_bytea,
    pg_finfo_outbox_enqueue_each_text_bytea,
    Topics::Each,
    TEXT,
    BYTEA
);

fn enqueue_many(function: &Function, topics: Topics, key: Elements, value: Elements) -> pg_sys::Datum {
    let array = |index, name, oid| function.argument(index).map(|datum| Array::open(name, datum, oid));
    let topic_array = match topics {
        Topics::One => None,
        Topics::Each => array(0, "topics", pg_sys::TEXTOID),
    };
    let arrays = [
        topic_array,
        array(1, "keys", key.oid),
        array(2, "values", value.oid),
        array(3, "headers", pg_sys::JSONBOID),
        array(4, "partitions", pg_sys::INT4OID),
        array(5, "message_ids", pg_sys::UUIDOID),
    ];
    let count = common_length(&arrays);
    let [topic_array, keys, values, headers, partitions, message_ids] = &arrays;
    let one_topic = if topics == Topics::One { function.argument(0) } else { None };
    let element = |array: &Option<Array>, row| array.as_ref().and_then(|array| array.get(row));
    let mut known = KnownPartitions::default();
    let mut messages = Vec::with_capacity(count);
    for row in 0..count {
        // A long call can be cancelled.
        pgrx::check_for_interrupts!();
        let given = Given {
            topic: one_topic.or_else(|| element(topic_array, row)),
            key: element(keys, row),
            value: element(values, row),
            headers: element(headers, row),
            partition: element(partitions, row).map(|datum| datum.value() as i32),
            message_id: element(message_ids, row),
        };
        let message = check(&given, key.kind, value.kind, &mut known);
        messages.push(message.unwrap_or_else(|refusal| refusal.raise_for_row(row + 1)));
    }
    enqueue_rows::store(&messages);
    array_of_ids(&messages)
}

/// An array argument, taken apart.
struct Array {
    name: &'static str,
    elements: &'static [pg_sys::Datum],
    nulls: &'static [bool],
}

impl Array {
    fn open(name: &'static str, datum: pg_sys::Datum, oid: pg_sys::Oid) -> Array {
        let (len, by_value, align) = match oid {
            pg_sys::INT4OID => (4, true, pg_sys::TYPALIGN_INT),
            pg_sys::UUIDOID => (16, false, pg_sys::TYPALIGN_CHAR),
            _ => (-1, false, pg_sys::TYPALIGN_INT),
        };
        let (mut elements, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: an array of that type, whose elements live in the call's memory, as the lists of them do.
        unsafe {
            let array: *mut pg_sys::ArrayType = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast();
            if (*array).ndim > 1 {
                raise(
                    PgSqlErrorCode::ERRCODE_ARRAY_ELEMENT_ERROR,
                    &format!("{name} must be a one-dimensional array"),
                    &format!("It has {} dimensions.", (*array).ndim),
                    "Give an array with an element for each message.",
                );
            }
            pg_sys::deconstruct_array(
                array,
                oid,
                len,
                by_value,
                align as c_char,
                &mut elements,
                &mut nulls,
                &mut count,
            );
            let count = count as usize;
            Array {
                name,
                elements: std::slice::from_raw_parts(elements, count),
                nulls: std::slice::from_raw_parts(nulls, count),
            }
        }
    }

    fn get(&self, row: usize) -> Option<pg_sys::Datum> {
        (!self.nulls[row]).then(|| self.elements[row])
    }
}

/// The number of messages, on which all arrays must agree that are there.
fn common_length(arrays: &[Option<Array>]) -> usize {
    let mut given = arrays.iter().flatten();
    let first = given.next().unwrap_or_else(|| {
        raise(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            "at least one array must not be null",
            "The arrays say how many messages there are.",
            "Give the values as an array with an element for each message.",
        )
    });
    let count = first.elements.len();
    if let Some(other) = given.find(|array| array.elements.len() != count) {
        raise(
            PgSqlErrorCode::ERRCODE_ARRAY_ELEMENT_ERROR,
            "arrays have different lengths",
            &format!("{} has {count} elements, {} has {}.", first.name, other.name, other.elements.len()),
            "Each array must be null or have an element for each message.",
        );
    }
    count
}

fn array_of_ids(messages: &[Checked]) -> pg_sys::Datum {
    let mut ids: Vec<pg_sys::Datum> =
        messages.iter().map(|message| pg_sys::Datum::from(message.message_id.as_ptr())).collect();
    let align = pg_sys::TYPALIGN_CHAR as c_char;
    // SAFETY: datums of that type, which are copied.
    unsafe { pg_sys::construct_array(ids.as_mut_ptr(), ids.len() as i32, pg_sys::UUIDOID, 16, false, align) }.into()
}

// The aggregate --------------------------------------------------------------------------------------------------------

super::sql_function! {
    /// outbox.enqueue_agg_add
    fn outbox_enqueue_agg_add / pg_finfo_outbox_enqueue_agg_add(function) {
        let memory = function.aggregate_memory().unwrap_or_else(|| {
            raise(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "outbox.enqueue_agg_add was called outside of an aggregate",
                "It is a part of outbox.enqueue_agg.",
                "Call outbox.enqueue_agg.",
            )
        });
        let state: *mut Gathered = match function.argument(0) {
            Some(state) => state.cast_mut_ptr(),
            None => PgMemoryContexts::For(memory).leak_and_drop_on_delete(Gathered::new(&function, memory)),
        };
        // SAFETY: the state of this aggregate, which nobody else looks at while one row is added.
        unsafe { (*state).add(&function) };
        state.into()
    }
}

super::sql_function! {
    /// outbox.enqueue_agg_end
    fn outbox_enqueue_agg_end / pg_finfo_outbox_enqueue_agg_end(function) {
        let stored = match function.argument(0) {
            // SAFETY: the state of this aggregate, after its last row.
            Some(state) => unsafe { (*state.cast_mut_ptr::<Gathered>()).end() },
            None => 0,
        };
        session::arg(stored).expect("not null")
    }
}

/// What an aggregate has gathered and not stored yet.
struct Gathered {
    /// Lives as long as the aggregate.
    memory: pg_sys::MemoryContext,
    key: Argument,
    value: Argument,
    messages: Vec<Checked>,
    bytes: usize,
    /// Messages stored so far.
    stored: usize,
    known: KnownPartitions,
}

/// An argument of type "any", of which the call says what it is.
#[derive(Debug, Clone, Copy)]
struct Argument {
    index: usize,
    kind: Kind,
    /// A literal without a type comes as a C string.
    literal: bool,
}

impl Argument {
    fn new(function: &Function, index: usize, name: &str) -> Argument {
        let oid = function.argument_type(index);
        let (kind, literal) = match oid {
            pg_sys::BYTEAOID => (Kind::Bytea, false),
            pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::JSONOID => (Kind::Text, false),
            pg_sys::JSONBOID => (Kind::Jsonb, false),
            pg_sys::UNKNOWNOID => (Kind::Text, true),
            _ => raise(
                PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
                &format!("{name} must not be of type {}", type_name(oid)),
                "A message is made of text, bytea, json or jsonb.",
                "Cast it to one of these types.",
            ),
        };
        Argument { index, kind, literal }
    }

    fn get(self, function: &Function) -> Option<pg_sys::Datum> {
        let datum = function.argument(self.index)?;
        // SAFETY: such a datum is a C string.
        Some(if self.literal { unsafe { pg_sys::cstring_to_text(datum.cast_mut_ptr()) }.into() } else { datum })
    }
}

fn type_name(oid: pg_sys::Oid) -> String {
    // SAFETY: a type of the call; the name is a string of this call's memory.
    unsafe { std::ffi::CStr::from_ptr(pg_sys::format_type_be(oid)).to_string_lossy().into_owned() }
}

impl Gathered {
    fn new(function: &Function, memory: pg_sys::MemoryContext) -> Gathered {
        Gathered {
            memory,
            key: Argument::new(function, 2, "key"),
            value: Argument::new(function, 3, "value"),
            messages: Vec::new(),
            bytes: 0,
            stored: 0,
            known: KnownPartitions::default(),
        }
    }

    fn add(&mut self, function: &Function) {
        let optional = |index| if index < function.arguments() { function.argument(index) } else { None };
        let given = Given {
            topic: function.argument(1),
            key: self.key.get(function),
            value: self.value.get(function),
            headers: optional(4),
            partition: optional(5).map(|datum| datum.value() as i32),
            message_id: optional(6),
        };
        let message = check(&given, self.key.kind, self.value.kind, &mut self.known);
        let row = self.stored + self.messages.len() + 1;
        let message = message.unwrap_or_else(|refusal| refusal.raise_for_row(row));
        let message = Checked {
            topic: self.keep(message.topic),
            key: message.key.map(|datum| self.keep(datum)),
            value: message.value.map(|datum| self.keep(datum)),
            headers: message.headers.map(|datum| self.keep(datum)),
            ..message
        };
        self.messages.push(message);
        if self.messages.len() >= GATHERED_MAX || self.bytes >= GATHERED_BYTES {
            self.store();
        }
    }

    /// A copy that outlives the row that the query gave.
    fn keep(&mut self, datum: pg_sys::Datum) -> pg_sys::Datum {
        // SAFETY: a varlena value that is not compressed, and as much room as it takes.
        unsafe {
            let plain = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
            let size = pgrx::varlena::varsize_any(plain);
            self.bytes += size;
            let copy: *mut u8 = pg_sys::MemoryContextAlloc(self.memory, size).cast();
            std::ptr::copy_nonoverlapping(plain.cast::<u8>(), copy, size);
            copy.into()
        }
    }

    fn store(&mut self) {
        enqueue_rows::store(&self.messages);
        self.stored += self.messages.len();
        self.bytes = 0;
        for message in self.messages.drain(..) {
            for datum in [Some(message.topic), message.key, message.value, message.headers].into_iter().flatten() {
                // SAFETY: made by `keep`, and used no more.
                unsafe { pg_sys::pfree(datum.cast_mut_ptr()) };
            }
        }
    }

    fn end(&mut self) -> i64 {
        self.store();
        self.stored as i64
    }
}
