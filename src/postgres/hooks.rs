//! Commands that concern the workers, before and after the server carries them out.
//!
//! - DROP DATABASE, ALTER DATABASE ... RENAME or SET TABLESPACE, and CREATE DATABASE ... TEMPLATE need a database that
//!   nobody is connected to. Relays leave it first and stay away until the command's transaction ends.
//! - COMMIT PREPARED makes rows visible of which this session knows nothing.
//! - DROP EXTENSION with unsent messages says how many; relays learn of it, and of ALTER EXTENSION, at once.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pgrx::pg_sys::elog::PgLogLevel;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{check_for_interrupts, is_a, pg_guard, pg_sys};

use crate::relay::ports::Clock as _;

use super::clock::BootClock;
use super::session::{self, Statement};
use super::{bell, gucs, shared, tables};

/// Time that a relay may need beyond `shutdown_timeout` to be gone.
const GRACE: Duration = Duration::from_secs(1);
/// How often the leaving of relays is looked at, in milliseconds.
const LOOK_EVERY_MS: i64 = 10;

static PREVIOUS: OnceLock<pg_sys::ProcessUtility_hook_type> = OnceLock::new();

thread_local! {
    /// Databases that this transaction keeps relays away from.
    static BLOCKED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Puts the hook in front of whatever hook there is.
pub fn install() {
    // SAFETY: called once, while the library is preloaded.
    unsafe {
        let _ = PREVIOUS.set(pg_sys::ProcessUtility_hook);
        pg_sys::ProcessUtility_hook = Some(process_utility);
        pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
    }
}

unsafe extern "C-unwind" {
    // pg_sys wraps it in a guard, which forgets most of an ERROR that passes.
    fn standard_ProcessUtility(
        statement: *mut pg_sys::PlannedStmt,
        query: *const c_char,
        read_only_tree: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        params: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        receiver: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
}

/// Every utility statement of the server passes here, CALL and EXECUTE too, and most fail for reasons of their own. So this
/// function has no guard and nothing to drop: an ERROR of the statement jumps over it and keeps its code, place, context
/// and names. What is ours is guarded on either side.
#[allow(clippy::too_many_arguments, reason = "the server's signature")]
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const c_char,
    read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    receiver: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: the server gives a valid statement, and all arguments are passed on as they came.
    unsafe {
        let after = before((*statement).utilityStmt);
        match PREVIOUS.get().copied().flatten() {
            Some(previous) => {
                previous(statement, query, read_only_tree, context, params, environment, receiver, completion);
            }
            None => standard_ProcessUtility(
                statement,
                query,
                read_only_tree,
                context,
                params,
                environment,
                receiver,
                completion,
            ),
        }
        finish(after);
    }
}

/// What is left to do once a command has been carried out.
#[derive(Clone, Copy)]
#[repr(u8)]
enum After {
    Nothing,
    RingUnknown,
    TouchEverything,
    Announce,
}

#[pg_guard]
unsafe extern "C-unwind" fn before(node: *mut pg_sys::Node) -> After {
    // SAFETY: the utility statement of the hook.
    match unsafe { Concern::of(node) } {
        Concern::None => After::Nothing,
        Concern::CommitPrepared => {
            bell::will_ring_unknown();
            After::RingUnknown
        }
        Concern::Database(name) => {
            keep_relays_away(&name);
            After::Announce
        }
        Concern::NewDatabase(template) => {
            if let Some(template) = template {
                keep_relays_away(&template);
            }
            After::Announce
        }
        Concern::Databases => After::Announce,
        Concern::AlterExtension => After::TouchEverything,
        Concern::DropExtension => {
            warn_of_what_is_lost();
            After::TouchEverything
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn finish(after: After) {
    match after {
        After::Nothing => {}
        After::RingUnknown => bell::ring_unknown(),
        After::TouchEverything => bell::touched_everything(),
        After::Announce => bell::announce_at_commit(),
    }
}

/// What a command means to the workers.
enum Concern {
    None,
    /// The database must have no sessions.
    Database(String),
    /// A database is made, from this template.
    NewDatabase(Option<String>),
    /// The list of databases changes.
    Databases,
    CommitPrepared,
    AlterExtension,
    DropExtension,
}

impl Concern {
    /// # Safety
    /// `node` is a utility statement.
    unsafe fn of(node: *mut pg_sys::Node) -> Self {
        // SAFETY: each cast follows the check of the node's tag.
        unsafe {
            if is_a(node, pg_sys::NodeTag::T_TransactionStmt) {
                let kind = (*node.cast::<pg_sys::TransactionStmt>()).kind;
                return if kind == pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED {
                    Self::CommitPrepared
                } else {
                    Self::None
                };
            }
            if is_a(node, pg_sys::NodeTag::T_DropdbStmt) {
                return text((*node.cast::<pg_sys::DropdbStmt>()).dbname).map_or(Self::None, Self::Database);
            }
            if is_a(node, pg_sys::NodeTag::T_RenameStmt) {
                let rename = &*node.cast::<pg_sys::RenameStmt>();
                return if rename.renameType == pg_sys::ObjectType::OBJECT_DATABASE {
                    text(rename.subname).map_or(Self::None, Self::Database)
                } else {
                    Self::None
                };
            }
            if is_a(node, pg_sys::NodeTag::T_AlterDatabaseStmt) {
                let alter = &*node.cast::<pg_sys::AlterDatabaseStmt>();
                return match text(alter.dbname) {
                    Some(name) if option(alter.options, c"tablespace").is_some() => Self::Database(name),
                    // It may take connections from now on, or be a template no more.
                    _ => Self::Databases,
                };
            }
            if is_a(node, pg_sys::NodeTag::T_AlterExtensionStmt) {
                let ours = text((*node.cast::<pg_sys::AlterExtensionStmt>()).extname).as_deref()
                    == super::EXTENSION.to_str().ok();
                return if ours { Self::AlterExtension } else { Self::None };
            }
            if is_a(node, pg_sys::NodeTag::T_CreatedbStmt) {
                return Self::NewDatabase(option((*node.cast::<pg_sys::CreatedbStmt>()).options, c"template"));
            }
            if is_a(node, pg_sys::NodeTag::T_DropStmt) {
                let drop = &*node.cast::<pg_sys::DropStmt>();
                let ours: &[&str] = match drop.removeType {
                    pg_sys::ObjectType::OBJECT_EXTENSION => &["outbox_relay"],
                    pg_sys::ObjectType::OBJECT_SCHEMA => &["outbox"],
                    _ => return Self::None,
                };
                let named = elements(drop.objects)
                    .into_iter()
                    .filter_map(|object| text(string_value(object.cast())))
                    .any(|name| ours.contains(&name.as_str()));
                return if named { Self::DropExtension } else { Self::None };
            }
            Self::None
        }
    }
}

/// # Safety
/// `text` is a C string or null.
unsafe fn text(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    unsafe { (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned()) }
}

/// # Safety
/// `list` is a list of pointers or null.
unsafe fn elements(list: *mut pg_sys::List) -> Vec<*mut std::ffi::c_void> {
    // SAFETY: the caller's promise; a list has `length` cells.
    unsafe {
        if list.is_null() {
            return Vec::new();
        }
        (0..(*list).length).map(|index| (*(*list).elements.add(index as usize)).ptr_value).collect()
    }
}

/// # Safety
/// `node` is a node or null.
unsafe fn string_value(node: *mut pg_sys::Node) -> *const c_char {
    // SAFETY: the cast follows the check of the tag.
    unsafe {
        if node.is_null() || !is_a(node, pg_sys::NodeTag::T_String) {
            return std::ptr::null();
        }
        (*node.cast::<pg_sys::String>()).sval
    }
}

/// The text of an option such as `template = name`.
///
/// # Safety
/// `options` is a list of DefElem or null.
unsafe fn option(options: *mut pg_sys::List, name: &CStr) -> Option<String> {
    // SAFETY: the caller's promise.
    unsafe {
        elements(options)
            .into_iter()
            .map(|option| &*option.cast::<pg_sys::DefElem>())
            .find(|option| CStr::from_ptr(option.defname) == name)
            .and_then(|option| text(string_value(option.arg)))
    }
}

/// Makes the relays of a database leave, and waits until they are gone or the time is up; then the server decides.
fn keep_relays_away(name: &str) {
    let Some(header) = shared::header() else { return };
    let Ok(c_name) = std::ffi::CString::new(name) else { return };
    // SAFETY: inside a transaction. Who may not do the command is told so by the server, and must not disturb relays.
    let (database, pid) = unsafe {
        let oid = pg_sys::get_database_oid(c_name.as_ptr(), true);
        if oid == pg_sys::InvalidOid || !pg_sys::pg_database_ownercheck(oid, pg_sys::GetUserId()) {
            return;
        }
        (header.database(oid), pg_sys::MyProcPid)
    };
    let Some(database) = database else { return };
    if database.blocked_by.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return;
    }
    BLOCKED.with_borrow_mut(|blocked| blocked.push(database.oid.load(Ordering::Acquire)));
    database.stop_all();
    let give_up = BootClock.now() + gucs::settings().shutdown_timeout + GRACE;
    while database.has_workers() && BootClock.now() < give_up {
        wait_a_moment();
        header.announce(0);
    }
}

fn wait_a_moment() {
    // SAFETY: a backend's own latch.
    unsafe {
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, LOOK_EVERY_MS, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts!();
}

/// When the transaction has ended, relays may come back. An ERROR here would be a PANIC, so nothing here can raise one.
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _argument: *mut std::ffi::c_void) {
    if matches!(
        event,
        pg_sys::XactEvent::XACT_EVENT_COMMIT
            | pg_sys::XactEvent::XACT_EVENT_ABORT
            | pg_sys::XactEvent::XACT_EVENT_PREPARE
    ) {
        release_databases();
    }
}

fn release_databases() {
    let blocked = BLOCKED.take();
    if blocked.is_empty() {
        return;
    }
    let Some(header) = shared::header() else { return };
    for database in header.databases() {
        if blocked.contains(&database.oid.load(Ordering::Acquire)) {
            database.blocked_by.store(0, Ordering::Release);
        }
    }
    header.announce(0);
}

/// Counts the messages that DROP EXTENSION is about to throw away.
fn warn_of_what_is_lost() {
    // SAFETY: inside a transaction. Counted as the table's owner, who may read it and whose code may hang on it; an ERROR
    // restores the user.
    let [unsent, skipped] = unsafe {
        let extension = pg_sys::get_extension_oid(super::EXTENSION.as_ptr(), true);
        if extension == pg_sys::InvalidOid || !pg_sys::pg_extension_ownercheck(extension, pg_sys::GetUserId()) {
            return;
        }
        let Some(table) = tables::if_there(tables::MESSAGE) else { return };
        let relation = pg_sys::table_open(table, pg_sys::AccessShareLock as i32);
        let owner = (*(*relation).rd_rel).relowner;
        pg_sys::table_close(relation, pg_sys::NoLock as i32);
        let mut user = pg_sys::InvalidOid;
        let mut security = 0;
        pg_sys::GetUserIdAndSecContext(&mut user, &mut security);
        let ours = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
        pg_sys::SetUserIdAndSecContext(owner, security | ours as i32);
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        pg_sys::SPI_connect();
        let count = Statement::new(include_str!("../../sql/statements/count_messages.sql"), &[]);
        session::execute(count.plan(), &[], true);
        let mut null = false;
        let table = pg_sys::SPI_tuptable;
        let counted = [1, 2]
            .map(|column| pg_sys::SPI_getbinval(*(*table).vals, (*table).tupdesc, column, &mut null).value() as i64);
        pg_sys::SPI_finish();
        pg_sys::PopActiveSnapshot();
        pg_sys::SetUserIdAndSecContext(user, security);
        counted
    };
    if unsent > 0 {
        ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, "dropping outbox_relay with unsent messages", "outbox_relay")
            .set_detail(format!("Messages that will never be published: {unsent}."))
            .set_hint("Roll back if they still matter, and drop the extension once outbox.message is empty.")
            .report(PgLogLevel::WARNING);
    }
    if skipped > 0 {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_WARNING,
            "dropping outbox_relay with skipped messages",
            "outbox_relay",
        )
        .set_detail(format!("Messages that outbox.skip has kept, and that are gone with it: {skipped}."))
        .set_hint("Roll back if they still matter, and copy outbox.skipped before you drop the extension.")
        .report(PgLogLevel::WARNING);
    }
}
