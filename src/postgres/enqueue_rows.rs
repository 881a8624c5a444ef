//! Checked messages become rows of outbox.message, and the bells of their buckets ring at commit.
//!
//! Rows go straight into table and index, many of them as COPY writes them: a page is locked and logged once for all rows that
//! fit into it. A statement would cost more than the row it writes: an executor made and taken down, and constraints compiled
//! that hold by construction. Whatever an owner has hung on the table that only the executor knows to serve (triggers, rules,
//! policies, constraints, more columns), or that runs functions (indexes of his own), sends rows through a kept plan one by one,
//! on a pinned search path: with the owner's rights no code may run that finds its way by the caller's.

use std::ffi::CStr;

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::{FromDatum, pg_sys};

use crate::bucket::{BUCKET_COUNT_DEFAULT, BUCKET_COUNT_MAX, BUCKET_COUNT_MIN, Bucket, bucket_of};

use super::enqueue_check::{Checked, varlena_bytes};
use super::session::{self, Statement};
use super::{bell, raise, stamp, tables};

/// Rows that are written at a time: some pages full of small ones.
const ROWS_AT_A_TIME: usize = 200;
/// Size at which fewer are.
const BYTES_AT_A_TIME: usize = 256 << 10;
/// Columns of outbox.message, in their order.
const COLUMNS: usize = 9;
/// Those with a default: id and created_at.
const COLUMNS_WITH_DEFAULT: u16 = 2;
/// And their types.
const TYPES: [pg_sys::Oid; COLUMNS] = [
    pg_sys::INT4OID,
    pg_sys::INT8OID,
    pg_sys::TEXTOID,
    pg_sys::INT4OID,
    pg_sys::BYTEAOID,
    pg_sys::BYTEAOID,
    pg_sys::BYTEAOID,
    pg_sys::UUIDOID,
    pg_sys::TIMESTAMPTZOID,
];
/// Partition, key, value and headers.
const NULLABLE: std::ops::Range<usize> = 3..7;
/// The constraints of sql/tables.sql. What is checked, numbered and given a bucket here meets them.
const CONSTRAINTS: [&CStr; 3] = [c"message_bucket_check", c"message_id_check", c"message_partition_check"];

/// Stores messages in the caller's transaction, as the owner of the table, in their order.
pub fn store(messages: &[Checked]) {
    if messages.is_empty() {
        return;
    }
    // SAFETY: as INSERT does, with its words.
    unsafe {
        pg_sys::PreventCommandIfReadOnly(c"INSERT".as_ptr());
        pg_sys::PreventCommandIfParallelMode(c"INSERT".as_ptr());
    }
    lock_table();
    stamp::ensure();
    let count = bucket_count();
    match Table::open() {
        Some(mut table) => {
            let mut rest = messages;
            session::as_owner(|| {
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(first_few(rest));
                    table.insert(now, count);
                    rest = later;
                }
            });
            table.close();
        }
        None => session::as_owner_with_path(|| {
            for message in messages {
                let bucket = bucket(message, count);
                bell::wrote(bucket, insert(bucket, message));
            }
        }),
    }
}

/// How many rows are written next, at least one.
fn first_few(messages: &[Checked]) -> usize {
    let mut bytes = 0;
    let few = messages.iter().take(ROWS_AT_A_TIME).take_while(|message| {
        let room = bytes < BYTES_AT_A_TIME;
        bytes += [message.key, message.value, message.headers]
            .into_iter()
            .flatten()
            .map(|datum| varlena_bytes(datum).len())
            .sum::<usize>();
        room
    });
    few.count()
}

fn bucket(message: &Checked, count: u32) -> Bucket {
    bucket_of(message.partition, message.key.map(varlena_bytes), &message.message_id, count)
}

/// A uuid that lives as long as these bytes.
pub fn uuid_datum(bytes: &[u8; 16]) -> pg_sys::Datum {
    session::arg(pgrx::Uuid::from_bytes(*bytes)).expect("not null")
}

/// Locks outbox.message against a change of the bucket count: such a change waits for this transaction, or is seen by it. So
/// this comes before the count is read.
pub fn lock_table() {
    let message = tables::named(tables::MESSAGE);
    // SAFETY: a lock, inside the caller's transaction.
    unsafe { pg_sys::LockRelationOid(message, pg_sys::RowExclusiveLock as i32) };
}

/// The bucket count as of now, even in a transaction whose snapshot is older: writers must agree with relays.
pub fn bucket_count() -> u32 {
    let mut count = None;
    session::each_row_now(tables::named(c"setting"), |tuple, columns| {
        let column = |number| {
            let mut null = false;
            // SAFETY: a row of the table, whose columns are texts.
            unsafe {
                let datum = pg_sys::heap_getattr(tuple, number, columns, &mut null);
                String::from_datum(datum, null)
            }
        };
        if column(1).as_deref() == Some("bucket_count") {
            count = column(2).and_then(|value| value.parse().ok());
        }
    });
    count.unwrap_or(BUCKET_COUNT_DEFAULT).clamp(BUCKET_COUNT_MIN, BUCKET_COUNT_MAX)
}

thread_local! {
    static INSERT: Statement = const {
        Statement::new(
            include_str!("../../sql/statements/insert_message.sql"),
            // All but id and created_at, which have defaults.
            &[TYPES[0], TYPES[2], TYPES[3], TYPES[4], TYPES[5], TYPES[6], TYPES[7]],
        )
    };
}

/// Inserts a row and returns its id.
fn insert(bucket: Bucket, message: &Checked) -> i64 {
    let args = [
        session::arg(bucket as i32),
        Some(message.topic),
        session::arg(message.partition.map(|partition| partition as i32)),
        message.key,
        message.value,
        message.headers,
        Some(uuid_datum(&message.message_id)),
    ];
    // SAFETY: inside the caller's transaction; the values live in the call's memory, and the id is read before the table
    // is freed.
    unsafe {
        pg_sys::SPI_connect();
        INSERT.with(|insert| session::execute(insert.plan(), &args, false));
        if pg_sys::SPI_processed != 1 {
            raise(
                PgSqlErrorCode::ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION,
                "the message was not stored",
                "A trigger or rule on outbox.message has suppressed it.",
                "Remove the trigger or rule.",
            );
        }
        let mut null = false;
        let table = pg_sys::SPI_tuptable;
        let id = pg_sys::SPI_getbinval(*(*table).vals, (*table).tupdesc, 1, &mut null).value() as i64;
        pg_sys::SPI_finish();
        id
    }
}

/// outbox.message, opened for rows that are written many at a time.
struct Table {
    relation: pg_sys::Relation,
    sequence: pg_sys::Oid,
    state: *mut pg_sys::EState,
    result: *mut pg_sys::ResultRelInfo,
    slots: Vec<*mut pg_sys::TupleTableSlot>,
}

impl Table {
    /// `None` if rows of this table must go through the executor.
    fn open() -> Option<Table> {
        // SAFETY: inside the caller's transaction, with the table locked. What is opened is closed by `close`, or by the
        // server when an ERROR ends the transaction.
        unsafe {
            let relation = pg_sys::table_open(tables::named(tables::MESSAGE), pg_sys::NoLock as i32);
            if !is_as_made(relation) {
                pg_sys::table_close(relation, pg_sys::NoLock as i32);
                return None;
            }
            let state = pg_sys::CreateExecutorState();
            let size = std::mem::size_of::<pg_sys::ResultRelInfo>();
            let result: *mut pg_sys::ResultRelInfo = pg_sys::palloc0(size).cast();
            pg_sys::InitResultRelInfo(result, relation, 0, std::ptr::null_mut(), 0);
            pg_sys::ExecOpenIndices(result, false);
            let sequence = tables::named(c"message_id_seq");
            Some(Table { relation, sequence, state, result, slots: Vec::new() })
        }
    }

    /// Writes at most [`ROWS_AT_A_TIME`] rows.
    fn insert(&mut self, messages: &[Checked], bucket_count: u32) {
        // SAFETY: the slots fit the table; each holds the row that it is filled with here until it is filled again.
        unsafe {
            while self.slots.len() < messages.len() {
                self.slots.push(pg_sys::MakeSingleTupleTableSlot((*self.relation).rd_att, &pg_sys::TTSOpsHeapTuple));
            }
            for (message, slot) in messages.iter().zip(&self.slots) {
                let bucket = bucket(message, bucket_count);
                let id = self.next_id();
                self.fill(*slot, message, bucket, id);
                bell::wrote(bucket, id);
            }
            let command = pg_sys::GetCurrentCommandId(true);
            let nowhere = std::ptr::null_mut();
            if let [_] = messages {
                let (slot, mut copied) = (self.slots[0], false);
                let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, true, &mut copied);
                pg_sys::heap_insert(self.relation, tuple, command, 0, nowhere);
                (*slot).tts_tid = (*tuple).t_self;
            } else {
                let count = messages.len() as i32;
                pg_sys::heap_multi_insert(self.relation, self.slots.as_mut_ptr(), count, command, 0, nowhere);
            }
            for slot in &self.slots[..messages.len()] {
                // No index is deferrable: that would come with a trigger.
                let nothing = std::ptr::null_mut();
                pg_sys::ExecInsertIndexTuples(
                    self.result,
                    *slot,
                    self.state,
                    false,
                    false,
                    nothing,
                    std::ptr::null_mut(),
                );
                let context = (*self.state).es_per_tuple_exprcontext;
                if !context.is_null() {
                    pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
                }
            }
        }
    }

    /// What the default of the column gives.
    fn next_id(&self) -> i64 {
        // SAFETY: the function takes an oid, and raises an ERROR itself.
        let id = unsafe { pgrx::direct_function_call_as_datum(pg_sys::nextval_oid, &[Some(self.sequence.into())]) };
        id.expect("a sequence gives no null").value() as i64
    }

    /// # Safety
    /// The slot is of this table.
    unsafe fn fill(&self, slot: *mut pg_sys::TupleTableSlot, message: &Checked, bucket: Bucket, id: i64) {
        let row: [Option<pg_sys::Datum>; COLUMNS] = [
            session::arg(bucket as i32),
            session::arg(id),
            Some(message.topic),
            session::arg(message.partition.map(|partition| partition as i32)),
            message.key,
            message.value,
            message.headers,
            Some(pg_sys::Datum::from(message.message_id.as_ptr())),
            // What the default of the column gives.
            session::arg(super::now()),
        ];
        let mut nulls = row.map(|column| column.is_none());
        let mut values = row.map(|column| column.unwrap_or(pg_sys::Datum::from(0)));
        // SAFETY: as many columns as the table has, of its types. The slot frees the row.
        unsafe {
            let tuple = pg_sys::heap_form_tuple((*self.relation).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::ExecStoreHeapTuple(tuple, slot, true);
            (*slot).tts_tableOid = (*self.relation).rd_id;
        }
    }

    fn close(self) {
        // SAFETY: undoes `open`, and makes the rows visible to what follows in the transaction.
        unsafe {
            for slot in self.slots {
                pg_sys::ExecDropSingleTupleTableSlot(slot);
            }
            pg_sys::ExecCloseIndices(self.result);
            pg_sys::FreeExecutorState(self.state);
            pg_sys::table_close(self.relation, pg_sys::NoLock as i32);
            pg_sys::CommandCounterIncrement();
        }
    }
}

/// Whether the table is as sql/tables.sql has made it, as far as the way of a row into it is concerned. An index beside the primary
/// key may have expressions, or a condition, that call functions.
///
/// # Safety
/// The relation is open.
unsafe fn is_as_made(relation: pg_sys::Relation) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let (class, columns) = ((*relation).rd_rel, (*relation).rd_att);
        let constraints = (*columns).constr;
        (*class).relkind == pg_sys::RELKIND_RELATION as std::ffi::c_char
            && !(*class).relrowsecurity
            && !(*class).relispartition
            && pg_sys::list_length(pg_sys::RelationGetIndexList(relation)) == 1
            && (*relation).rd_tableam == pg_sys::GetHeapamTableAmRoutine()
            && (*relation).trigdesc.is_null()
            && (*relation).rd_rules.is_null()
            && (*columns).natts as usize == COLUMNS
            && !constraints.is_null()
            && (*constraints).num_defval == COLUMNS_WITH_DEFAULT
            && !(*constraints).has_generated_stored
            && has_our_checks(&*constraints)
            && (*columns).attrs.as_slice(COLUMNS).iter().enumerate().all(|(index, column)| {
                column.attnotnull != NULLABLE.contains(&index) && column.atttypid == TYPES[index]
            })
    }
}

/// # Safety
/// The constraints of an open relation.
unsafe fn has_our_checks(constraints: &pg_sys::TupleConstr) -> bool {
    // SAFETY: the caller's promise; the server keeps as many as it says.
    unsafe {
        let checks = std::slice::from_raw_parts(constraints.check, usize::from(constraints.num_check));
        checks.len() == CONSTRAINTS.len()
            && checks.iter().all(|check| CONSTRAINTS.contains(&CStr::from_ptr(check.ccname)))
    }
}
