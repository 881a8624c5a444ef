//! Removes exactly the rows of a batch that were acknowledged, by where they lie.
//!
//! Reason: removing is the larger part of what a relay costs the server. A statement searches the index again for each row,
//! and reads a removed row once more to say which it was. But the fetch has just seen where each row lies, so it is looked at
//! there, compared and removed; rows of one page together, for finding a page costs more than to look at a row in it.
//!
//! The rule is that of acknowledge_list.sql, which is used wherever this will not do: not a row that was changed, removed or
//! given its id since it was read. A row that lies where another one was is told by the transaction that wrote it.

use std::ffi::c_int;

use pgrx::pg_sys;

use crate::bucket::Bucket;
use crate::message::Batch;

use super::row_version::RowVersion;
use super::session::Session;
use super::tables;

/// What became of an attempt to remove rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// All of them are removed.
    Done,
    /// At least one is not what was read, or somebody has locked it, for whom is not waited; the transaction must be rolled back.
    Changed,
    /// Somebody has put a trigger, a rule or a policy on the table, which a statement heeds, or keeps it otherwise than in a
    /// heap. Nothing was removed.
    NeedsStatement,
}

/// Removes the first `len` rows of a batch. Whether the lease is held the caller asks before, in the same transaction.
pub fn rows(_session: &Session, bucket: Bucket, batch: &Batch, len: usize) -> Removal {
    let rows: Vec<Row> = batch.handles(len).map(|(id, handle)| Row { id, version: RowVersion::of(handle) }).collect();
    // SAFETY: inside a transaction with an active snapshot. The lock on the table is kept to the end of the transaction, as a
    // statement would; so nobody shortens the table meanwhile. After an ERROR the transaction's end releases the table.
    unsafe {
        let relation = pg_sys::table_open(tables::named(tables::MESSAGE), pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
        let class = (*relation).rd_rel;
        let as_made = !((*class).relhastriggers || (*class).relhasrules || (*class).relrowsecurity);
        let removal = match as_made.then(|| Table::of(relation)).flatten() {
            None => Removal::NeedsStatement,
            Some(table) => {
                let all = rows.chunk_by(Row::shares_page).all(|rows| table.remove(bucket, rows));
                // What follows in the transaction sees that they are gone.
                pg_sys::CommandCounterIncrement();
                if all { Removal::Done } else { Removal::Changed }
            }
        };
        pg_sys::table_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        removal
    }
}

/// A row as it was read.
struct Row {
    id: i64,
    version: RowVersion,
}

impl Row {
    fn shares_page(&self, other: &Row) -> bool {
        self.version.block == other.version.block
    }
}

// pg_sys wraps each of them in a boundary of its own, which is dear; here one is around all that happens to a page.
unsafe extern "C-unwind" {
    fn ReadBuffer(relation: pg_sys::Relation, block: pg_sys::BlockNumber) -> pg_sys::Buffer;
    fn LockBuffer(buffer: pg_sys::Buffer, mode: c_int);
    fn ReleaseBuffer(buffer: pg_sys::Buffer);
}

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

/// outbox.message, a heap, open and locked.
struct Table {
    relation: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    command: pg_sys::CommandId,
    blocks: pg_sys::BlockNumber,
    delete: Delete,
}

impl Table {
    /// # Safety
    /// Open, locked, inside a transaction with an active snapshot.
    unsafe fn of(relation: pg_sys::Relation) -> Option<Table> {
        // SAFETY: the caller's promise.
        unsafe {
            let methods = (*relation).rd_tableam;
            if methods != pg_sys::GetHeapamTableAmRoutine() {
                return None;
            }
            Some(Table {
                relation,
                snapshot: pg_sys::GetActiveSnapshot(),
                command: pg_sys::GetCurrentCommandId(true),
                blocks: pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM),
                delete: (*methods).tuple_delete?,
            })
        }
    }

    /// Removes rows of one page if all of them are those that were read, and says whether they were.
    fn remove(&self, bucket: Bucket, rows: &[Row]) -> bool {
        let block = rows[0].version.block;
        // A TRUNCATE may have left less than there was.
        if block >= self.blocks {
            return false;
        }
        // SAFETY: as `of` was promised; the page is within the table. While it is pinned nothing in it can be moved or cleaned
        // away, so what was compared under its lock is what is removed; should somebody else remove it in between, that is said.
        // The boundary turns an ERROR of the server's functions, which are called as they are, into a panic, which ends the
        // transaction and with it pin and lock; nothing in it has a destructor.
        unsafe {
            if pg_sys::InterruptPending != 0 {
                pg_sys::ProcessInterrupts();
            }
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let buffer = ReadBuffer(self.relation, block);
                LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
                let page = pg_sys::BufferGetPage(buffer);
                let as_read = rows.iter().all(|row| lies_in(page, bucket, row));
                LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as c_int);
                let removed = as_read && rows.iter().all(|row| self.delete(row));
                ReleaseBuffer(buffer);
                removed
            })
        }
    }

    /// # Safety
    /// Inside a boundary; the row was seen at its place.
    unsafe fn delete(&self, row: &Row) -> bool {
        let mut place = row.version.place();
        let mut failure = pg_sys::TM_FailureData::default();
        let (none, wait) = (std::ptr::null_mut(), false);
        // SAFETY: the caller's promise.
        let deleted = unsafe {
            (self.delete)(self.relation, &mut place, self.command, self.snapshot, none, wait, &mut failure, false)
        };
        deleted == pg_sys::TM_Result::TM_Ok
    }
}

/// Whether the row is the one at its place. It was committed when it was read, so whoever wrote it need not be asked for again.
///
/// # Safety
/// A page of outbox.message, pinned and locked.
unsafe fn lies_in(page: pg_sys::Page, bucket: Bucket, row: &Row) -> bool {
    let number = row.version.offset;
    // SAFETY: the place is within the page. Bucket and id are the table's first columns, an integer and a bigint, never null; so
    // they lie at the beginning of a row's data, which is aligned for both, and eight bytes behind that.
    unsafe {
        if number > pg_sys::PageGetMaxOffsetNumber(page) {
            return false;
        }
        let item = pg_sys::PageGetItemId(page, number);
        if (*item).lp_flags() != pg_sys::LP_NORMAL {
            return false;
        }
        let tuple: *const pg_sys::HeapTupleHeaderData = pg_sys::PageGetItem(page, item).cast();
        let data = tuple.cast::<u8>().add((*tuple).t_hoff.into());
        pg_sys::HeapTupleHeaderGetRawXmin(tuple).into_inner() == row.version.xmin
            && data.cast::<i32>().read() == bucket as i32
            && data.add(8).cast::<i64>().read() == row.id
    }
}
