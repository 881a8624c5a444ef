//! A transaction in a background worker: snapshot, SPI, abort on error, statistics. Nothing else may call SPI there.
//!
//! Reason: pgrx's own `BackgroundWorker::transaction` neither aborts on an ERROR nor reports statistics, and SPI outside a
//! transaction takes the whole server down. Here both are impossible: work gets a [`Session`] only inside a transaction,
//! and whatever goes wrong in it comes back as an error after the abort.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{FromDatum, IntoDatum, PgTryBuilder, pg_sys};

use super::{rest, tables};

/// An ERROR that ended a transaction; it is aborted already.
#[derive(Debug, Clone)]
pub struct SqlError {
    pub code: PgSqlErrorCode,
    pub message: String,
}

/// The right to run statements: exists only inside [`run`].
#[derive(Debug)]
pub struct Session {
    _not_send: PhantomData<*const ()>,
}

/// Runs `work` in a transaction of its own. It commits when `work` returns `Ok`, else it is rolled back.
///
/// # Errors
/// What `work` returned, or the ERROR that was raised in it or at commit.
pub fn run<T, E>(activity: &CStr, work: impl FnOnce(&Session) -> Result<T, E>) -> Result<T, E>
where
    E: From<SqlError>,
{
    transaction(activity, true, work)
}

/// As [`run`], for a process that is connected to no database and so reads shared catalogues only.
///
/// # Errors
/// As [`run`].
pub fn run_without_database<T, E>(activity: &CStr, work: impl FnOnce(&Session) -> Result<T, E>) -> Result<T, E>
where
    E: From<SqlError>,
{
    transaction(activity, false, work)
}

fn transaction<T, E>(activity: &CStr, database: bool, work: impl FnOnce(&Session) -> Result<T, E>) -> Result<T, E>
where
    E: From<SqlError>,
{
    rest::enter_transaction();
    // SAFETY: a background worker with a database connection, on its main thread (pg_sys checks), outside a transaction.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, activity.as_ptr());
    }
    let result = PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: as above. Every path out of here ends the transaction: commit, or the abort in the handlers.
        unsafe {
            pg_sys::StartTransactionCommand();
            if database {
                hold_extension();
                become_owner((pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION) as i32);
            }
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            pg_sys::SPI_connect();
        }
        match work(&Session { _not_send: PhantomData }) {
            Ok(done) => {
                // SAFETY: undoes the above in order.
                unsafe {
                    pg_sys::SPI_finish();
                    pg_sys::PopActiveSnapshot();
                    pg_sys::CommitTransactionCommand();
                    be_oneself();
                }
                Ok(done)
            }
            Err(error) => {
                abort();
                Err(error)
            }
        }
    }))
    .catch_others(|error| {
        abort();
        Err(E::from(describe(error)))
    })
    .execute();
    rest::leave_transaction();
    // SAFETY: outside a transaction now. Workers do not report by themselves, and autovacuum would never come.
    unsafe {
        pg_sys::pgstat_report_stat(false);
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
    }
    result
}

/// Whoever drops or alters the extension locks it first. Waiting for that here, while nothing else is locked, cannot end in
/// a deadlock over the tables.
///
/// # Safety
/// Inside a transaction.
unsafe fn hold_extension() {
    // SAFETY: the caller's promise; a lock on an object that is gone meanwhile is harmless.
    unsafe {
        let extension = pg_sys::get_extension_oid(super::EXTENSION.as_ptr(), true);
        if extension != pg_sys::InvalidOid {
            pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, pg_sys::AccessShareLock as i32);
        }
    }
}

/// Runs what follows with the rights of the tables' owner: should the owner not be a superuser, triggers and the like that
/// hang on the tables gain nothing by a relay's touching them. An abort undoes it.
///
/// # Safety
/// Inside a transaction.
unsafe fn become_owner(context: i32) {
    let Some(table) = tables::if_there(tables::MESSAGE) else { return };
    // SAFETY: the caller's promise; a look-up in the catalogue.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, table.into());
        if tuple.is_null() {
            return;
        }
        let row: *const pg_sys::FormData_pg_class = (*tuple).t_data.byte_add((*(*tuple).t_data).t_hoff as usize).cast();
        let owner = (*row).relowner;
        pg_sys::ReleaseSysCache(tuple);
        pg_sys::SetUserIdAndSecContext(owner, context);
    }
}

/// Does something with the rights of the tables' owner that runs no code of anybody else: a search path of the caller's can
/// mislead nothing there. An ERROR undoes it with the transaction or savepoint that it ends.
pub(super) fn as_owner<T>(work: impl FnOnce() -> T) -> T {
    let (mut user, mut context) = (pg_sys::InvalidOid, 0);
    // SAFETY: inside the caller's transaction; the user is put back as it was found.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        become_owner(context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32);
        let done = work();
        pg_sys::SetUserIdAndSecContext(user, context);
        done
    }
}

/// The same for what may run code of somebody else, such as triggers: with a pinned search path, as a function with SECURITY
/// DEFINER and such a path would. That costs more than a row.
pub(super) fn as_owner_with_path<T>(work: impl FnOnce() -> T) -> T {
    as_owner(|| {
        // SAFETY: as above; the setting is put back as it was found.
        unsafe {
            let level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                c"pg_catalog, pg_temp".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
            let done = work();
            pg_sys::AtEOXact_GUC(true, level);
            done
        }
    })
}

/// Undoes [`become_owner`] after a commit.
///
/// # Safety
/// Outside a transaction.
unsafe fn be_oneself() {
    // SAFETY: the session's user does not change.
    unsafe { pg_sys::SetUserIdAndSecContext(pg_sys::GetSessionUserId(), 0) };
}

fn abort() {
    // SAFETY: inside a transaction, on the main thread. A signal must not interrupt the abort.
    unsafe {
        pg_sys::InterruptHoldoffCount += 1;
        pg_sys::AbortCurrentTransaction();
        pg_sys::InterruptHoldoffCount -= 1;
    }
}

fn describe(error: CaughtError) -> SqlError {
    let report = match &error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report,
        CaughtError::RustPanic { ereport, .. } => ereport,
    };
    let detail = report.detail().map(|detail| format!(" ({})", detail.trim_end_matches('.'))).unwrap_or_default();
    SqlError { code: report.sql_error_code(), message: format!("{}{detail}", report.message()) }
}

impl Session {
    /// Locks outbox.message as a reader does and works with a snapshot that was taken after that. An ALTER TABLE that rewrites the
    /// table gives its rows to a new transaction: to an older snapshot, taken before the wait for it, the table is empty.
    pub fn with_messages<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: inside a transaction. An ERROR ends it, and with it the snapshot.
        unsafe {
            pg_sys::LockRelationOid(tables::named(tables::MESSAGE), pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let done = work();
            pg_sys::PopActiveSnapshot();
            done
        }
    }

    /// Whether the extension exists in this database.
    pub fn extension_exists(&self) -> bool {
        // SAFETY: inside a transaction.
        unsafe { pg_sys::get_extension_oid(super::EXTENSION.as_ptr(), true) != pg_sys::InvalidOid }
    }
}

/// A statement of sql/statements, planned once a process.
#[derive(Debug)]
pub struct Statement {
    text: &'static str,
    types: &'static [pg_sys::Oid],
    plan: Cell<pg_sys::SPIPlanPtr>,
}

impl Statement {
    pub const fn new(text: &'static str, types: &'static [pg_sys::Oid]) -> Self {
        Self { text, types, plan: Cell::new(std::ptr::null_mut()) }
    }

    /// Types of the arguments.
    pub(super) fn types(&self) -> &'static [pg_sys::Oid] {
        self.types
    }

    /// The kept plan, made at first use.
    pub(super) fn plan(&self) -> pg_sys::SPIPlanPtr {
        if self.plan.get().is_null() {
            let text = CString::new(self.text).expect("statements hold no NUL");
            // SAFETY: SPI is connected (callers have a `Session`, or are inside an SPI call of their own); the types are
            // copied by the call.
            let plan = unsafe {
                let types = self.types.as_ptr().cast_mut();
                let plan = pg_sys::SPI_prepare(text.as_ptr(), self.types.len() as i32, types);
                assert!(!plan.is_null(), "could not prepare a statement of the extension: {}", self.text);
                pg_sys::SPI_keepplan(plan);
                plan
            };
            self.plan.set(plan);
        }
        self.plan.get()
    }

    /// Runs the statement and returns the number of rows it gave or changed.
    pub fn run(&self, _session: &Session, args: &[Option<pg_sys::Datum>]) -> u64 {
        execute(self.plan(), args, false);
        // SAFETY: set by the execution.
        unsafe { pg_sys::SPI_processed }
    }

    /// Runs the statement and reads its rows.
    pub fn rows<T>(&self, _session: &Session, args: &[Option<pg_sys::Datum>], read: impl Fn(&Row) -> T) -> Vec<T> {
        execute(self.plan(), args, false);
        // SAFETY: the table of the execution above, until the next one.
        let (table, rows) = unsafe { (pg_sys::SPI_tuptable, pg_sys::SPI_processed) };
        let result = (0..rows as usize).map(|index| read(&Row { table, index })).collect();
        // SAFETY: nothing of it is used any more: values were copied out.
        unsafe { pg_sys::SPI_freetuptable(table) };
        result
    }
}

/// Runs a kept plan.
pub(super) fn execute(plan: pg_sys::SPIPlanPtr, args: &[Option<pg_sys::Datum>], read_only: bool) {
    let (mut values, nulls) = arguments(args);
    // SAFETY: SPI is connected and the plan takes these arguments; an ERROR unwinds.
    let status = unsafe { pg_sys::SPI_execute_plan(plan, values.as_mut_ptr(), nulls.as_ptr().cast(), read_only, 0) };
    assert!(status > 0, "SPI refused a statement of the extension: {status}");
}

/// Gives each row of a small table as of now, whatever the snapshot of the transaction, and the table's columns.
pub(super) fn each_row_now(table: pg_sys::Oid, take: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc)) {
    // SAFETY: inside a transaction; the snapshot is registered for as long as the scan lasts. An ERROR releases it.
    unsafe {
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        each_row(table, snapshot, take);
        pg_sys::UnregisterSnapshot(snapshot);
    }
}

/// Gives each row of a table whose first column, a text, is `key`, as of now; by the index if there is one.
pub(super) fn each_row_of_key_now(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    key: pg_sys::Datum,
    mut take: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc),
) {
    // SAFETY: inside a transaction; the snapshot is registered for as long as the scan lasts, and each row is used before
    // the next is fetched. An ERROR releases all of it.
    unsafe {
        let mut entry = pg_sys::ScanKeyData::default();
        let equal = pg_sys::Oid::from(pg_sys::F_TEXTEQ);
        pg_sys::ScanKeyInit(&mut entry, 1, pg_sys::BTEqualStrategyNumber as u16, equal, key);
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let found = index != pg_sys::InvalidOid;
        let scan = pg_sys::systable_beginscan(relation, index, found, snapshot, 1, &mut entry);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            take(tuple, (*relation).rd_att);
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        pg_sys::UnregisterSnapshot(snapshot);
    }
}

/// Gives each row of a small table in the snapshot of the session's transaction, and the table's columns.
pub(super) fn each_row_seen(
    _session: &Session,
    table: pg_sys::Oid,
    take: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc),
) {
    // SAFETY: a session has an active snapshot.
    unsafe { each_row(table, pg_sys::GetActiveSnapshot(), take) }
}

/// # Safety
/// Inside a transaction; the snapshot is active or registered.
unsafe fn each_row(
    table: pg_sys::Oid,
    snapshot: pg_sys::Snapshot,
    mut take: impl FnMut(pg_sys::HeapTuple, pg_sys::TupleDesc),
) {
    // SAFETY: the caller's promise; each row is used before the next is fetched. An ERROR releases all of it.
    unsafe {
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::table_beginscan(relation, snapshot, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            take(tuple, (*relation).rd_att);
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
    }
}

/// Values and the null flags that SPI wants beside them.
pub(super) fn arguments(args: &[Option<pg_sys::Datum>]) -> (Vec<pg_sys::Datum>, Vec<u8>) {
    args.iter().map(|arg| (arg.unwrap_or(pg_sys::Datum::from(0)), if arg.is_some() { b' ' } else { b'n' })).unzip()
}

/// A row of a result, whose columns count from 1.
#[derive(Debug)]
pub struct Row {
    table: *mut pg_sys::SPITupleTable,
    index: usize,
}

impl Row {
    /// A column, or `None` when it is null.
    pub fn get<T: FromDatum>(&self, column: i32) -> Option<T> {
        // SAFETY: the table has this row; the type is that of the statement's column.
        unsafe {
            let tuple = *(*self.table).vals.add(self.index);
            let mut null = false;
            let datum = pg_sys::SPI_getbinval(tuple, (*self.table).tupdesc, column, &mut null);
            T::from_datum(datum, null)
        }
    }

    /// A column that is never null.
    pub fn must<T: FromDatum>(&self, column: i32) -> T {
        self.get(column).expect("the column is not null")
    }
}

/// An argument of a statement.
pub fn arg(value: impl IntoDatum) -> Option<pg_sys::Datum> {
    value.into_datum()
}
