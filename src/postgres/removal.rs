//! Removes exactly the rows of a batch that were acknowledged, by where they lie.
//!
//! Reason: removing is the larger part of what a relay costs the server. A statement searches the index again for each row,
//! and reads a removed row once more to say which it was. But the fetch has just seen where each row lies, so it is looked at
//! there, compared and removed.
//!
//! The rule is that of acknowledge_list.sql, which is used wherever this will not do: not a row that was changed, removed or
//! given its id since it was read. A row that lies where another one was is told by the transaction that wrote it.

use pgrx::pg_sys;

use crate::bucket::Bucket;
use crate::message::Batch;

use super::row_version::RowVersion;
use super::session::Session;

/// Columns of outbox.message, in their order.
const COLUMNS_READ: i32 = 2;

/// What became of an attempt to remove rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// All of them are removed.
    Done,
    /// At least one is not what was read; the transaction must be rolled back.
    Changed,
    /// Somebody has put a trigger, a rule or a policy on the table, which a statement heeds. Nothing was removed.
    NeedsStatement,
}

/// Removes the first `len` rows of a batch. Whether the lease is held the caller asks before, in the same transaction.
pub fn rows(_session: &Session, bucket: Bucket, batch: &Batch, len: usize) -> Removal {
    let wanted: Vec<(i64, RowVersion)> = batch.handles(len).map(|(id, handle)| (id, RowVersion::of(handle))).collect();
    // SAFETY: inside a transaction with an active snapshot. Nothing in the closure has a destructor, so an ERROR may leave it
    // at any point; the end of the transaction then releases table, slot and buffers.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| remove(bucket as i32, &wanted)) }
}

/// # Safety
/// Inside a transaction with an active snapshot, behind a boundary that catches an ERROR.
unsafe fn remove(bucket: i32, wanted: &[(i64, RowVersion)]) -> Removal {
    // SAFETY: the caller's promise. The lock on the table is kept to the end of the transaction, as a statement would; the
    // slot is of the table's own kind, and its values are read before anything else is put into it.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"outbox".as_ptr(), false);
        let table = pg_sys::get_relname_relid(c"message".as_ptr(), schema);
        let relation = pg_sys::table_open(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
        let description = (*relation).rd_rel;
        if (*description).relhastriggers || (*description).relhasrules || (*description).relrowsecurity {
            pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            return Removal::NeedsStatement;
        }
        let methods = (*relation).rd_tableam;
        let (Some(look_at), Some(delete)) = ((*methods).tuple_fetch_row_version, (*methods).tuple_delete) else {
            unreachable!("every table access method has both");
        };
        let slot = pg_sys::table_slot_create(relation, std::ptr::null_mut());
        let snapshot = pg_sys::GetActiveSnapshot();
        let command = pg_sys::GetCurrentCommandId(true);
        let mut outcome = Removal::Done;
        for (id, version) in wanted {
            if pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            let mut place = version.place();
            if !look_at(relation, &mut place, snapshot, slot) || !is_row(slot, bucket, *id, *version) {
                outcome = Removal::Changed;
                break;
            }
            let mut failure = pg_sys::TM_FailureData::default();
            let no_cross_check = std::ptr::null_mut();
            let deleted = delete(relation, &mut place, command, snapshot, no_cross_check, true, &mut failure, false);
            if deleted != pg_sys::TM_Result::TM_Ok {
                outcome = Removal::Changed;
                break;
            }
        }
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        // What follows in the transaction sees that they are gone.
        pg_sys::CommandCounterIncrement();
        outcome
    }
}

/// # Safety
/// The slot holds a row of outbox.message.
unsafe fn is_row(slot: *mut pg_sys::TupleTableSlot, bucket: i32, id: i64, version: RowVersion) -> bool {
    // SAFETY: the caller's promise; bucket and id are the table's first columns, and never null.
    unsafe {
        if i32::from((*slot).tts_nvalid) < COLUMNS_READ {
            pg_sys::slot_getsomeattrs_int(slot, COLUMNS_READ);
        }
        let column = |index: usize| (*(*slot).tts_values.add(index)).value();
        let mut null = false;
        let Some(system_column) = (*(*slot).tts_ops).getsysattr else { return false };
        let xmin = system_column(slot, pg_sys::MinTransactionIdAttributeNumber, &mut null).value() as u32;
        column(0) as i32 == bucket && column(1) as i64 == id && xmin == version.xmin
    }
}
