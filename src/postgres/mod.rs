//! The first wall: the only place that knows the server's internals.
//!
//! What we promise the server: every call into it is made on a process's first thread; statements run only inside
//! [`session::run`] or a caller's transaction; a worker sleeps only in [`rest::Rest`]; no panic crosses into C, for every
//! function that C calls is guarded; a worker never ends by a signal of ours, and leaves with an exit code that the
//! postmaster understands. What we rely on: shared memory made at start, the commit callback running after the rows have
//! become visible, and one process per worker.

mod bell;
mod clock;
#[cfg(feature = "test-hooks")]
mod conformance;
mod enqueue;
mod enqueue_check;
mod enqueue_many;
mod enqueue_once;
mod enqueue_rows;
mod fences;
mod fetch;
mod gucs;
mod hooks;
mod launcher;
mod log;
mod memory;
mod operate;
mod preview;
mod removal;
mod rest;
mod row_version;
mod session;
mod shared;
mod stamp;
mod status;
mod store;
mod tables;
mod test_hooks;
mod worker;

use std::ffi::CStr;
use std::sync::OnceLock;

use pgrx::pg_sys::elog::PgLogLevel;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{pg_guard, pg_sys};

pgrx::pg_module_magic!(name, version);

/// Name of the extension in the catalogue.
const EXTENSION: &CStr = c"outbox_relay";

static PREVIOUS_REQUEST: OnceLock<pg_sys::shmem_request_hook_type> = OnceLock::new();
static PREVIOUS_STARTUP: OnceLock<pg_sys::shmem_startup_hook_type> = OnceLock::new();

/// Called by the server when it loads the library.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: reads two flags of the process. pg_upgrade moves catalogues only and must not start workers.
    if unsafe { pg_sys::IsBinaryUpgrade } {
        return;
    }
    // SAFETY: as above.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        refuse_late_loading();
    }
    // Before the prefix of the settings is reserved.
    test_hooks::define();
    gucs::define();
    share_memory();
    bell::install();
    enqueue_once::install();
    hooks::install();
    launcher::register();
}

fn refuse_late_loading() -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "outbox_relay must be loaded when the server starts",
        "Its background workers need shared memory.",
        "Add the line shared_preload_libraries = 'outbox_relay' to postgresql.conf, with other names there separated by commas, and restart the server.",
    )
}

fn share_memory() {
    // SAFETY: called once, while the library is preloaded.
    unsafe {
        let _ = PREVIOUS_REQUEST.set(pg_sys::shmem_request_hook);
        pg_sys::shmem_request_hook = Some(on_request);
        let _ = PREVIOUS_STARTUP.set(pg_sys::shmem_startup_hook);
        pg_sys::shmem_startup_hook = Some(on_startup);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_request() {
    if let Some(previous) = PREVIOUS_REQUEST.get().copied().flatten() {
        // SAFETY: the hook of another library, called as the server would.
        unsafe { previous() };
    }
    shared::request();
}

#[pg_guard]
unsafe extern "C-unwind" fn on_startup() {
    if let Some(previous) = PREVIOUS_STARTUP.get().copied().flatten() {
        // SAFETY: as above.
        unsafe { previous() };
    }
    shared::startup();
}

/// Raises an ERROR for the user.
fn raise(code: PgSqlErrorCode, message: &str, detail: &str, hint: &str) -> ! {
    ErrorReport::new(code, presentable(message), "outbox_relay")
        .set_detail(presentable(detail))
        .set_hint(hint)
        .report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return")
}

/// Messages must be in the encoding of the database, strings here are in UTF-8: unless that is the same, other characters
/// than ASCII are shown as escapes.
fn presentable(text: &str) -> String {
    // SAFETY: reads a setting of the database.
    if unsafe { pg_sys::GetDatabaseEncoding() } == pg_sys::pg_enc::PG_UTF8 as i32 {
        return text.to_owned();
    }
    text.chars().map(|c| if c.is_ascii() { c.to_string() } else { format!("\\u{:04x}", u32::from(c)) }).collect()
}

/// Begins a sentence with what an error says.
fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

/// The server's time, as SQL shows it.
fn now() -> i64 {
    // SAFETY: no preconditions.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// A call of one of our SQL functions.
#[derive(Debug)]
struct Function(pg_sys::FunctionCallInfo);

impl Function {
    /// An argument, or `None` when it is null. Arguments count from 0.
    fn argument(&self, index: usize) -> Option<pg_sys::Datum> {
        // SAFETY: the server gives as many arguments as the function is declared with.
        unsafe {
            let arguments = (*self.0).args.as_slice((*self.0).nargs as usize);
            let argument = &arguments[index];
            (!argument.isnull).then_some(argument.value)
        }
    }

    /// How many arguments there are.
    fn arguments(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.0).nargs as usize }
    }

    /// The type of an argument that is declared as "any". Invalid where the call does not say.
    fn argument_type(&self, index: usize) -> pg_sys::Oid {
        // SAFETY: as above.
        unsafe { pg_sys::getBaseType(pg_sys::get_fn_expr_argtype((*self.0).flinfo, index as i32)) }
    }

    /// The memory that lives as long as the aggregate that this function is a part of.
    fn aggregate_memory(&self) -> Option<pg_sys::MemoryContext> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: as above.
        (unsafe { pg_sys::AggCheckCallContext(self.0, &mut memory) } != 0).then_some(memory)
    }

    fn return_null(&self) -> pg_sys::Datum {
        // SAFETY: as above.
        unsafe { (*self.0).isnull = true };
        pg_sys::Datum::from(0)
    }

    fn return_void(&self) -> pg_sys::Datum {
        pg_sys::Datum::from(0)
    }

    /// Returns rows of a function that is declared with OUT columns and SETOF.
    fn return_rows(&self, rows: impl Iterator<Item = Vec<Option<pg_sys::Datum>>>) -> pg_sys::Datum {
        // SAFETY: the server made the call with room for a set; each row has the declared columns.
        unsafe {
            pg_sys::InitMaterializedSRF(self.0, 0);
            let result: *mut pg_sys::ReturnSetInfo = (*self.0).resultinfo.cast();
            for row in rows {
                let mut nulls: Vec<bool> = row.iter().map(Option::is_none).collect();
                let mut values: Vec<_> = row.into_iter().map(|value| value.unwrap_or(pg_sys::Datum::from(0))).collect();
                pg_sys::tuplestore_putvalues(
                    (*result).setResult,
                    (*result).setDesc,
                    values.as_mut_ptr(),
                    nulls.as_mut_ptr(),
                );
            }
        }
        pg_sys::Datum::from(0)
    }
}

/// Declares a function that SQL calls, with the record that tells the server its calling convention.
macro_rules! sql_function {
    ($(#[$doc:meta])* fn $name:ident / $info:ident ($function:ident) $body:block) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C-unwind" fn $info() -> &'static pgrx::pg_sys::Pg_finfo_record {
            const V1: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
            &V1
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// Called by the server only.
        #[unsafe(no_mangle)]
        #[pgrx::pg_guard]
        pub unsafe extern "C-unwind" fn $name(info: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            let $function = $crate::postgres::Function(info);
            $body
        }
    };
}
use sql_function;
