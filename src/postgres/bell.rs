//! Commit rings, the relay wakes: the writer's side.
//!
//! Reason: NOTIFY in writers serialises their commits, and polling costs either latency or an idle load. So a transaction
//! notes what it wrote, and its commit lowers the bucket's bell in shared memory to the lowest id and sets one latch. Rows
//! are visible by then. Rollback rings nothing, savepoints that were rolled back ring for nothing, which is harmless.
//!
//! A prepared transaction commits in another session, which knows nothing of its rows: its COMMIT PREPARED rings "unknown".

use std::cell::RefCell;
use std::collections::BTreeMap;

use pgrx::{pg_guard, pg_sys};

use super::shared;

#[derive(Default)]
struct Pending {
    /// Lowest id written to each bucket by this transaction.
    rows: BTreeMap<u32, i64>,
    /// Something else changed of which the bucket is not known.
    unknown: bool,
    /// The launcher is to look at this database.
    announce: bool,
}

thread_local! {
    static PENDING: RefCell<Pending> = RefCell::default();
}

/// Registers the callback, once a process.
pub fn install() {
    // SAFETY: called once, when the library is preloaded; children inherit the registration.
    unsafe { pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut()) };
}

/// This transaction has written row `id` of `bucket`.
pub fn wrote(bucket: u32, id: i64) {
    PENDING.with_borrow_mut(|pending| {
        pending.rows.entry(bucket).and_modify(|lowest| *lowest = id.min(*lowest)).or_insert(id);
    });
}

/// The commit of this transaction concerns all relays of the database.
pub fn touched_everything() {
    PENDING.with_borrow_mut(|pending| pending.unknown = true);
}

/// The commit of this transaction asks the launcher to look at the database.
pub fn announce_at_commit() {
    PENDING.with_borrow_mut(|pending| pending.announce = true);
}

/// Rings "unknown" now: the rows are visible already.
pub fn ring_unknown() {
    // SAFETY: reads the id of the database of this session.
    let database = unsafe { pg_sys::MyDatabaseId };
    if let Some(database) = shared::header().and_then(|header| header.database(database)) {
        database.ring_unknown();
    }
}

/// Called at the end of every transaction. An ERROR here would be a PANIC, so nothing here can raise one.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    let committed = match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => true,
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => false,
        _ => return,
    };
    let pending = PENDING.take();
    if !committed {
        return;
    }
    let Some(header) = shared::header() else { return };
    // SAFETY: reads the id of the database of this session.
    let oid = unsafe { pg_sys::MyDatabaseId };
    if pending.announce {
        header.announce(oid.to_u32());
    }
    if pending.rows.is_empty() && !pending.unknown {
        return;
    }
    // Without an entry no relay runs; the one that will be started looks at everything.
    let Some(database) = header.database(oid) else { return };
    if pending.unknown {
        database.ring_unknown();
    }
    for (bucket, id) in pending.rows {
        database.ring(bucket, id);
    }
}
