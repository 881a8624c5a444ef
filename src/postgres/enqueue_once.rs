//! What writers call for a message that a retry may bring again: stored once within a time, and the caller is told.
//!
//! Reason: a caller that got no answer to its COMMIT does not know whether the message is stored, and calls again with the
//! same id. The ids are kept in a table of their own, so nobody pays for it who has not asked for it.
//!
//! The ids are unique there: a second transaction with an id waits for the first, and stores the message if that rolls back.
//! That wait is the only one. Ids whose time has run out are removed by the calls that store new ones, now and then and a
//! few at a time, at the end of the transaction: removed earlier, they would be locked while it goes on to wait for others.

use std::cell::Cell;

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::{pg_guard, pg_sys};

use super::enqueue_check::{Given, Kind, KnownPartitions, check};
use super::session::{self, Statement};
use super::{Function, enqueue_rows, raise};

/// One of so many transactions that store such a message removes old ids. Each brings a few at most, and the statement
/// removes more than that: the table does not grow beyond what is remembered.
const FORGET_ONE_OF: u32 = 32;
/// Longest time that an id is remembered, in microseconds: a year of 366 days.
const WITHIN_MAX: i128 = 366 * DAY;
const DAY: i128 = 86_400_000_000;

macro_rules! enqueue_once_function {
    ($name:ident, $info:ident, $key:expr, $value:expr) => {
        super::sql_function! {
            /// outbox.enqueue_once of one combination of types.
            fn $name / $info(function) {
                enqueue_once(&function, $key, $value)
            }
        }
    };
}

enqueue_once_function!(
    outbox_enqueue_once_bytea_bytea,
    pg_finfo_outbox_enqueue_once_bytea_bytea,
    Kind::Bytea,
    Kind::Bytea
);
enqueue_once_function!(outbox_enqueue_once_text_text, pg_finfo_outbox_enqueue_once_text_text, Kind::Text, Kind::Text);
enqueue_once_function!(
    outbox_enqueue_once_text_jsonb,
    pg_finfo_outbox_enqueue_once_text_jsonb,
    Kind::Text,
    Kind::Jsonb
);
enqueue_once_function!(outbox_enqueue_once_text_json, pg_finfo_outbox_enqueue_once_text_json, Kind::Text, Kind::Text);
enqueue_once_function!(
    outbox_enqueue_once_text_bytea,
    pg_finfo_outbox_enqueue_once_text_bytea,
    Kind::Text,
    Kind::Bytea
);

fn enqueue_once(function: &Function, key: Kind, value: Kind) -> pg_sys::Datum {
    let Some(message_id) = function.argument(3) else {
        raise(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            "message_id must not be null",
            "It tells whether a message is the same.",
            "Give an id that a retry will give again, or call outbox.enqueue.",
        )
    };
    let given = Given {
        topic: function.argument(0),
        key: function.argument(1),
        value: function.argument(2),
        headers: function.argument(4),
        partition: function.argument(5).map(|datum| datum.value() as i32),
        message_id: Some(message_id),
    };
    let within = function.argument(6);
    check_within(within);
    let message = check(&given, key, value, &mut KnownPartitions::default()).unwrap_or_else(|refusal| refusal.raise());
    let new = remember(message_id, within);
    if new {
        enqueue_rows::store(std::slice::from_ref(&message));
        if fastrand::u32(..FORGET_ONE_OF) == 0 {
            FORGET.set(true);
        }
    }
    session::arg(new).expect("not null")
}

fn check_within(within: Option<pg_sys::Datum>) {
    let valid = within.is_some_and(|datum| {
        // SAFETY: a datum of type interval.
        let interval = unsafe { *datum.cast_mut_ptr::<pg_sys::Interval>() };
        let days = 30 * i128::from(interval.month) + i128::from(interval.day);
        (1..=WITHIN_MAX).contains(&(days * DAY + i128::from(interval.time)))
    });
    if !valid {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "within must be a positive time of at most 366 days",
            "For so long the message id is remembered.",
            "Choose a time in which all retries are over.",
        );
    }
}

thread_local! {
    static REMEMBER: Statement = const {
        Statement::new(include_str!("../../sql/statements/remember_id.sql"), &[pg_sys::UUIDOID, pg_sys::INTERVALOID])
    };
    static FORGET_SOME: Statement = const { Statement::new(include_str!("../../sql/statements/forget_ids.sql"), &[]) };
    /// This transaction removes old ids at its end.
    static FORGET: Cell<bool> = const { Cell::new(false) };
}

/// Whether the id is new within the time.
fn remember(message_id: pg_sys::Datum, within: Option<pg_sys::Datum>) -> bool {
    // SAFETY: inside the caller's transaction, as the owner of the table.
    unsafe {
        pg_sys::SPI_connect();
        REMEMBER.with(|remember| session::execute(remember.plan(), &[Some(message_id), within], false));
        let new = pg_sys::SPI_processed == 1;
        pg_sys::SPI_finish();
        new
    }
}

/// Registers the callback, once a process.
pub fn install() {
    // SAFETY: called once, when the library is preloaded; children inherit the registration.
    unsafe { pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut()) };
}

/// Called around the end of every transaction. Statements can be run before the commit; an ERROR of theirs ends it.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    let early =
        matches!(event, pg_sys::XactEvent::XACT_EVENT_PARALLEL_PRE_COMMIT | pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE);
    if early || !FORGET.take() || event != pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT {
        return;
    }
    // SAFETY: inside a transaction still. An older snapshot would make the statement fail where it may skip: for such
    // transactions others do it.
    unsafe {
        if pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 {
            return;
        }
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        session::as_owner_with_path(|| {
            pg_sys::SPI_connect();
            FORGET_SOME.with(|forget| session::execute(forget.plan(), &[], false));
            pg_sys::SPI_finish();
        });
        pg_sys::PopActiveSnapshot();
    }
}
