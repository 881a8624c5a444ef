//! Commit rings, the relay wakes: the writer's side.
//!
//! Reason: NOTIFY in writers serialises their commits, and polling costs either latency or an idle load. So a transaction
//! notes what it wrote, and its commit lowers the bucket's bell in shared memory to the lowest id and sets one latch. Rows
//! are visible by then. Rollback rings nothing, savepoints that were rolled back ring for nothing, which is harmless.
//!
//! Between a commit becoming visible and its ring another transaction of the same key may commit and ring. So a
//! transaction says before it commits that it will ring, and the relay looks at that once it has its snapshot: what the
//! snapshot may show without a ring is read from below (postgres/fetch.rs). That keeps the order of a key.
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
    /// An operator has changed something: the relays are to look at everything again.
    call: bool,
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

/// The commit of this transaction changes what relays may or have to do.
pub fn call_at_commit() {
    PENDING.with_borrow_mut(|pending| pending.call = true);
}

/// Rows of which nothing is known are about to become visible.
pub fn will_ring_unknown() {
    if let Some(header) = shared::header() {
        // SAFETY: reads the id of the database of this session.
        header.will_ring(unsafe { pg_sys::MyDatabaseId }, 0);
    }
}

/// Rings "unknown" now: the rows are visible already.
pub fn ring_unknown() {
    let Some(header) = shared::header() else { return };
    // SAFETY: reads the id of the database of this session.
    if let Some(database) = header.database(unsafe { pg_sys::MyDatabaseId }) {
        database.ring_unknown();
    }
    header.has_rung();
}

/// Called around the end of every transaction. From the commit on an ERROR here would be a PANIC, so nothing here can raise one.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    let Some(header) = shared::header() else { return };
    // SAFETY: reads the id of the database of this session.
    let oid = unsafe { pg_sys::MyDatabaseId };
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            if let Some(lowest) = PENDING.with_borrow(|pending| pending.rows.values().copied().min()) {
                header.will_ring(oid, lowest);
            }
        }
        pg_sys::XactEvent::XACT_EVENT_COMMIT => {
            ring(header, oid, PENDING.take());
            header.has_rung();
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            PENDING.take();
            header.has_rung();
        }
        _ => {}
    }
}

fn ring(header: &shared::Header, oid: pg_sys::Oid, pending: Pending) {
    if pending.announce {
        header.announce(oid.to_u32());
    }
    if pending.rows.is_empty() && !pending.unknown && !pending.call {
        return;
    }
    // Without an entry no relay runs; the one that will be started looks at everything.
    let Some(database) = header.database(oid) else { return };
    if pending.call {
        database.call_all();
    }
    if pending.unknown {
        database.ring_unknown();
    }
    for (bucket, id) in pending.rows {
        database.ring(bucket, id);
    }
}
