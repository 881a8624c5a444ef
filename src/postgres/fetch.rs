//! Rows straight from the executor into a batch, without a copy of each in between.
//!
//! Reason: SPI forms a tuple of every row and keeps them all; reading is the larger part of what a relay costs. A receiver
//! of our own gets each row as the executor has it.
//!
//! And the rule of G2: with `synchronous_commit = off` a row is visible before its commit is safe on disk. The commit's
//! position in WAL is looked up for every transaction of the batch, and WAL is flushed up to the latest of them before the
//! batch is handed on. Transactions that were committed synchronously have none, so normally this costs a look-up only.
//! A batch ends before the first row that is not safe yet, unless it begins with it: with many writers who do not wait for the
//! disk, one flush then serves all buckets, where each would have needed its own.

use std::mem;

use pgrx::{FromDatum, pg_guard, pg_sys, varlena};

use crate::bucket::Bucket;
use crate::message::{Batch, Message};
use crate::relay::ports::Limits;

use super::row_version::RowVersion;
use super::session::{Session, Statement, arg, arguments};
use super::stamp;

/// What a fetch has found beside the rows.
#[derive(Debug, Clone, Copy)]
pub struct Fetched {
    /// There may be more rows.
    pub more: bool,
    /// WAL position behind the commits of all rows; 0 when all are flushed.
    pub commits: pg_sys::XLogRecPtr,
}

/// Reads up to `limits` rows of a bucket above `after`, none above `highest`, and none where the database may not publish.
pub fn batch(
    session: &Session,
    statement: &Statement,
    bucket: Bucket,
    after: i64,
    highest: i64,
    limits: Limits,
    batch: &mut Batch,
) -> Fetched {
    let mut commits = Commits::default();
    let (mut full, mut latest, begins_at) = (false, 0, batch.len());
    // SAFETY: no preconditions; the time line is not asked for.
    let flushed = unsafe { pg_sys::GetFlushRecPtr(std::ptr::null_mut()) };
    let args = [arg(bucket as i32), arg(after), arg(highest), arg(limits.rows as i64), arg(stamp::own())];
    receive(session, statement, &args, |row| {
        let mut detoasted = Detoasted::default();
        let topic = detoasted.bytes(row, 1).unwrap_or_default();
        let version = row.version();
        let committed = commits.position(version.xmin);
        if committed > flushed && latest <= flushed && batch.len() > begins_at {
            full = true;
            return false;
        }
        latest = latest.max(committed);
        let message = Message {
            id: row.must(0),
            // Names are checked at enqueue; what somebody else wrote is refused by the broker, not here.
            topic: &String::from_utf8_lossy(topic),
            partition: row.get(2),
            key: detoasted.bytes(row, 3),
            value: detoasted.bytes(row, 4),
            headers: detoasted.bytes(row, 5),
            message_id: row.uuid(6),
            handle: &version.handle(),
        };
        batch.push(&message);
        full = batch.bytes() >= limits.bytes;
        !full
    });
    let commits = if latest > flushed { latest } else { 0 };
    Fetched { more: full || batch.len() >= limits.rows, commits }
}

/// Makes the commits up to this position safe; at once when they are.
pub fn flush_commits(position: pg_sys::XLogRecPtr) {
    if position != 0 {
        // SAFETY: the end of a record that exists: it came from a committed transaction.
        unsafe { pg_sys::XLogFlush(position) };
    }
}

/// Commit positions of transactions, of which the last one is remembered.
#[derive(Default)]
struct Commits {
    last: u32,
    position: pg_sys::XLogRecPtr,
}

impl Commits {
    /// Behind the commit of this transaction, whose row is visible; 0 if it is known to be safe on disk.
    fn position(&mut self, xmin: u32) -> pg_sys::XLogRecPtr {
        // Neighbours are mostly of one transaction, or at least of one look-up.
        if xmin == mem::replace(&mut self.last, xmin) {
            return self.position;
        }
        let xid = pg_sys::TransactionId::from(xmin);
        // SAFETY: the row is visible, so its transaction has committed. Of frozen rows the commit log may be gone; they
        // were flushed long ago. The limit is read without its lock: should it move in between, the look-up fails with an
        // ERROR and the batch is read again.
        self.position = unsafe {
            let oldest = (*pg_sys::ShmemVariableCache).oldestClogXid;
            let normal = xmin >= pg_sys::FirstNormalTransactionId.into_inner();
            if normal && !pg_sys::TransactionIdPrecedes(xid, oldest) {
                pg_sys::TransactionIdGetCommitLSN(xid)
            } else {
                0
            }
        };
        self.position
    }
}

/// Varlena values of one row that had to be unpacked, freed with it.
#[derive(Default)]
struct Detoasted(Vec<*mut pg_sys::varlena>);

impl Detoasted {
    /// The bytes of a bytea or text column, valid as long as `row` and `self`.
    fn bytes<'a>(&mut self, row: &'a SlotRow, column: usize) -> Option<&'a [u8]> {
        let packed: *mut pg_sys::varlena = row.datum(column)?.cast_mut_ptr();
        // SAFETY: a varlena of the slot; the slices live no longer than the row's callback, `self` is dropped at its end.
        unsafe {
            let mut plain = packed;
            // Hardly any value is compressed or stored out of line, and a call that may raise an ERROR is dear.
            if varlena::varatt_is_4b_c(packed) || varlena::varatt_is_1b_e(packed) {
                plain = pg_sys::pg_detoast_datum_packed(packed);
                self.0.push(plain);
            }
            let data: *const u8 = varlena::vardata_any(plain).cast();
            Some(std::slice::from_raw_parts(data, varlena::varsize_any_exhdr(plain)))
        }
    }
}

impl Drop for Detoasted {
    fn drop(&mut self) {
        for plain in self.0.drain(..) {
            // SAFETY: allocated by detoasting, and its bytes were copied.
            unsafe { pg_sys::pfree(plain.cast()) };
        }
    }
}

/// A row as the executor has it; columns count from 0.
struct SlotRow(*mut pg_sys::TupleTableSlot);

impl SlotRow {
    fn datum(&self, column: usize) -> Option<pg_sys::Datum> {
        // SAFETY: all columns were made available, and the statement has this one.
        unsafe { (!*(*self.0).tts_isnull.add(column)).then(|| *(*self.0).tts_values.add(column)) }
    }

    fn get<T: FromDatum>(&self, column: usize) -> Option<T> {
        // SAFETY: the type is that of the statement's column.
        self.datum(column).and_then(|datum| unsafe { T::from_datum(datum, false) })
    }

    /// From the columns with xmin and ctid.
    fn version(&self) -> RowVersion {
        let xmin = self.datum(7).expect("xmin is never null").value() as u32;
        let place: *const pg_sys::ItemPointerData = self.datum(8).expect("ctid is never null").cast_mut_ptr();
        // SAFETY: a tid is passed by reference, and lives as long as the row.
        RowVersion::new(xmin, unsafe { place.read_unaligned() })
    }

    fn uuid(&self, column: usize) -> [u8; 16] {
        let uuid: *const [u8; 16] = self.datum(column).expect("the column is not null").cast_mut_ptr();
        // SAFETY: a uuid is passed by reference, and has sixteen bytes.
        unsafe { uuid.read() }
    }

    fn must<T: FromDatum>(&self, column: usize) -> T {
        self.get(column).expect("the column is not null")
    }
}

/// A DestReceiver with a closure behind it.
#[repr(C)]
struct Receiver<'a> {
    base: pg_sys::DestReceiver,
    take: &'a mut dyn FnMut(&SlotRow) -> bool,
}

/// Runs a statement and gives each row to `take` until that returns false.
fn receive(
    _session: &Session,
    statement: &Statement,
    args: &[Option<pg_sys::Datum>],
    mut take: impl FnMut(&SlotRow) -> bool,
) {
    let (values, nulls) = arguments(args);
    let mut receiver = Receiver {
        base: pg_sys::DestReceiver {
            receiveSlot: Some(receive_slot),
            rStartup: Some(startup),
            rShutdown: Some(nothing),
            rDestroy: Some(nothing),
            mydest: pg_sys::CommandDest::DestNone,
        },
        take: &mut take,
    };
    // SAFETY: inside a transaction with SPI connected; the receiver outlives the execution; the parameter list lives in
    // SPI's memory, which the end of the transaction frees.
    unsafe {
        let params = pg_sys::makeParamList(values.len() as i32);
        let slots = (*params).params.as_mut_slice(values.len());
        for (index, slot) in slots.iter_mut().enumerate() {
            slot.value = values[index];
            slot.isnull = nulls[index] == b'n';
            slot.pflags = pg_sys::PARAM_FLAG_CONST as u16;
            slot.ptype = statement.types()[index];
        }
        let options = pg_sys::SPIExecuteOptions {
            params,
            read_only: true,
            dest: (&raw mut receiver).cast(),
            ..pg_sys::SPIExecuteOptions::default()
        };
        let status = pg_sys::SPI_execute_plan_extended(statement.plan(), &options);
        assert!(status > 0, "SPI refused a statement of the extension: {status}");
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn receive_slot(
    slot: *mut pg_sys::TupleTableSlot,
    receiver: *mut pg_sys::DestReceiver,
) -> bool {
    // SAFETY: the executor gives back the receiver that `receive` gave it, which begins with `base`.
    unsafe {
        let columns = (*(*slot).tts_tupleDescriptor).natts;
        if i32::from((*slot).tts_nvalid) < columns {
            pg_sys::slot_getsomeattrs_int(slot, columns);
        }
        let receiver = &mut *receiver.cast::<Receiver<'_>>();
        (receiver.take)(&SlotRow(slot))
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn startup(
    _receiver: *mut pg_sys::DestReceiver,
    _operation: std::ffi::c_int,
    _columns: pg_sys::TupleDesc,
) {
}

#[pg_guard]
unsafe extern "C-unwind" fn nothing(_receiver: *mut pg_sys::DestReceiver) {}
