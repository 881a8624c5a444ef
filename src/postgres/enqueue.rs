//! What writers call for one message: it is checked, gets its bucket, and becomes a row in the caller's transaction.

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;

use crate::headers;

use super::enqueue_check::{Given, Kind, KnownPartitions, check, varlena_bytes};
use super::{Function, capital, enqueue_rows, raise};

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

fn enqueue(function: &Function, key: Kind, value: Kind) -> pg_sys::Datum {
    let given = Given {
        topic: function.argument(0),
        key: function.argument(1),
        value: function.argument(2),
        headers: function.argument(3),
        partition: function.argument(4).map(|datum| datum.value() as i32),
        message_id: function.argument(5),
    };
    let message = check(&given, key, value, &mut KnownPartitions::default()).unwrap_or_else(|refusal| refusal.raise());
    enqueue_rows::store(std::slice::from_ref(&message));
    given.message_id.unwrap_or_else(|| enqueue_rows::uuid_datum(&message.message_id))
}
