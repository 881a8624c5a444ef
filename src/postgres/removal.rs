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
use super::tables;

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
    // SAFETY: inside a transaction with an active snapshot. The lock on the table is kept to the end of the transaction, as a
    // statement would; so nobody shortens the table meanwhile. After an ERROR the transaction's end releases table and slot.
    unsafe {
        let relation = pg_sys::table_open(tables::named(tables::MESSAGE), pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
        let class = (*relation).rd_rel;
        let as_made = !((*class).relhastriggers || (*class).relhasrules || (*class).relrowsecurity);
        let removal = match as_made.then(|| Table::of(relation)).flatten() {
            None => Removal::NeedsStatement,
            Some(table) => {
                let all = batch.handles(len).all(|(id, handle)| table.remove(bucket, id, RowVersion::of(handle)));
                pg_sys::ExecDropSingleTupleTableSlot(table.slot);
                // What follows in the transaction sees that they are gone.
                pg_sys::CommandCounterIncrement();
                if all { Removal::Done } else { Removal::Changed }
            }
        };
        pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        removal
    }
}

type LookAt = unsafe extern "C-unwind" fn(
    pg_sys::Relation,
    pg_sys::ItemPointer,
    pg_sys::Snapshot,
    *mut pg_sys::TupleTableSlot,
) -> bool;
type Delete = unsafe extern "C-unwind" fn(
    pg_sys::Relation,
    pg_sys::ItemPointer,
    pg_sys::CommandId,
    pg_sys::Snapshot,
    pg_sys::Snapshot,
    bool,
    *mut pg_sys::TM_FailureData,
    bool,
) -> pg_sys::TM_Result::Type;
type SystemColumn =
    unsafe extern "C-unwind" fn(*mut pg_sys::TupleTableSlot, std::ffi::c_int, *mut bool) -> pg_sys::Datum;
type Columns = unsafe extern "C-unwind" fn(*mut pg_sys::TupleTableSlot, std::ffi::c_int);

/// outbox.message, open and locked, and what its access method offers.
struct Table {
    relation: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    snapshot: pg_sys::Snapshot,
    command: pg_sys::CommandId,
    blocks: pg_sys::BlockNumber,
    look_at: LookAt,
    delete: Delete,
    system_column: SystemColumn,
    columns: Columns,
}

impl Table {
    /// # Safety
    /// Open, locked, inside a transaction with an active snapshot. Who gets one drops its slot.
    unsafe fn of(relation: pg_sys::Relation) -> Option<Table> {
        // SAFETY: the caller's promise.
        unsafe {
            let methods = (*relation).rd_tableam;
            let (look_at, delete) = ((*methods).tuple_fetch_row_version?, (*methods).tuple_delete?);
            let slot = pg_sys::table_slot_create(relation, std::ptr::null_mut());
            Some(Table {
                relation,
                slot,
                snapshot: pg_sys::GetActiveSnapshot(),
                command: pg_sys::GetCurrentCommandId(true),
                blocks: pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM),
                look_at,
                delete,
                system_column: (*(*slot).tts_ops).getsysattr?,
                columns: (*(*slot).tts_ops).getsomeattrs?,
            })
        }
    }

    /// Removes a row if it is the one that was read, and says whether it was.
    fn remove(&self, bucket: Bucket, id: i64, version: RowVersion) -> bool {
        // A TRUNCATE may have left less than there was.
        if version.block() >= self.blocks {
            return false;
        }
        let mut place = version.place();
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: as `of` was promised; the place is within the table. The boundary, one for all because it is dear, turns an
        // ERROR of a function of the server's that is called by its address into a panic, which ends the transaction; nothing
        // in it has a destructor. Bucket and id are the table's first columns, which every row has, never null, and read before
        // the slot gets another row.
        unsafe {
            if pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                if !(self.look_at)(self.relation, &mut place, self.snapshot, self.slot) {
                    return false;
                }
                let mut null = false;
                let xmin = (self.system_column)(self.slot, pg_sys::MinTransactionIdAttributeNumber, &mut null);
                if i32::from((*self.slot).tts_nvalid) < COLUMNS_READ {
                    (self.columns)(self.slot, COLUMNS_READ);
                }
                let column = |index: usize| (*(*self.slot).tts_values.add(index)).value();
                if xmin.value() as u32 != version.xmin || column(0) as u32 != bucket || column(1) as i64 != id {
                    return false;
                }
                let (none, wait) = (std::ptr::null_mut(), true);
                let deleted = (self.delete)(
                    self.relation,
                    &mut place,
                    self.command,
                    self.snapshot,
                    none,
                    wait,
                    &mut failure,
                    false,
                );
                deleted == pg_sys::TM_Result::TM_Ok
            })
        }
    }
}
