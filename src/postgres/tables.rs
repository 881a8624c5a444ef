//! Our tables, indexes and sequences, found by name.
//!
//! Reason: an id is of one DROP and CREATE EXTENSION only, so it is looked up at each use; the server's cache makes that a
//! matter of nanoseconds. What is missing is told by name, for somebody has dropped a part of the extension.

use std::ffi::CStr;

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;

use super::raise;

/// The table of messages.
pub const MESSAGE: &CStr = c"message";

/// The id of a relation in schema outbox. Inside a transaction.
///
/// # Errors
/// An ERROR `undefined_table` if there is none.
pub fn named(name: &CStr) -> pg_sys::Oid {
    if_there(name).unwrap_or_else(|| {
        raise(
            PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
            &format!("relation \"outbox.{}\" does not exist", name.to_string_lossy()),
            "It is a part of the extension outbox_relay.",
            "Save what is left in outbox.message, then drop the extension and create it again.",
        )
    })
}

/// The same where it may be missing.
pub fn if_there(name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: look-ups in the catalogue, inside a transaction.
    let found = unsafe {
        let schema = pg_sys::get_namespace_oid(c"outbox".as_ptr(), true);
        pg_sys::get_relname_relid(name.as_ptr(), schema)
    };
    (found != pg_sys::InvalidOid).then_some(found)
}
