//! Keeps the right number of relays alive in every database that has the extension.
//!
//! It is connected to no database, so it blocks none. Whether a database has the extension only a worker inside can see: a
//! relay looks at its start and leaves if not. A database is looked at when the server starts, when it is new, and when it
//! is announced by CREATE EXTENSION. Slots in shared memory say what runs; the launcher alone fills them.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime, DynamicBackgroundWorker};
use pgrx::{IntoDatum, pg_guard, pg_sys};
use tracing::{info, warn};

use crate::clock::Time;
use crate::kafka::Ring;
use crate::relay::ports::Clock as _;
use crate::repeats::Repeats;

use super::clock::BootClock;
use super::rest::{self, Rest};
use super::session::{self, Session, SqlError};
use super::shared::{self, Database, Header, Outcome, Phase, Slot};
use super::{capital, gucs, log, worker};

/// The list of databases is read at least this often, for what no hook has seen.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// A worker that ran for less than this failed.
const LIFE_MIN: Duration = Duration::from_secs(1);
/// Longest wait before a worker that keeps failing is started again.
const RESTART_MAX: Duration = Duration::from_secs(60);
/// A worker that was asked for and has not come after this long will not come.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Registers the launcher; called while the library is preloaded.
pub fn register() {
    BackgroundWorkerBuilder::new("outbox_relay launcher")
        .set_type("outbox_relay launcher")
        .set_library("outbox_relay")
        .set_function("outbox_relay_launcher_main")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

/// Entry of the launcher process.
///
/// # Safety
/// Called by the server only.
#[pg_guard]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn outbox_relay_launcher_main(_argument: pg_sys::Datum) {
    rest::handle_signals();
    // SAFETY: a worker's entry, before any other use of the server. No database: the shared catalogues suffice.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(pg_sys::InvalidOid, pg_sys::InvalidOid, 0) };
    let ring = Ring::new().expect("the system has room for a descriptor");
    log::install(ring.clone());
    let header = shared::header().expect("the library was preloaded");
    // SAFETY: this process's own latch; the callback takes it back before the process ends.
    unsafe {
        header.set_launcher(pg_sys::MyLatch);
        pg_sys::before_shmem_exit(Some(forget_launcher), pg_sys::Datum::from(0));
    }
    info!("outbox_relay launcher started");
    Launcher::new(header).run(&mut Rest::new(ring));
    // Never 0, which would unregister the launcher for good.
    // SAFETY: the regular way out of a worker.
    unsafe { pg_sys::proc_exit(1) };
}

#[pg_guard]
unsafe extern "C-unwind" fn forget_launcher(_code: i32, _argument: pg_sys::Datum) {
    if let Some(header) = shared::header() {
        header.set_launcher(std::ptr::null_mut());
    }
}

struct Launcher {
    header: &'static Header,
    /// Databases that a worker has found without the extension.
    without: HashSet<u32>,
    /// Databases announced while a worker was looking, whose answer may be out of date.
    announced: HashSet<u32>,
    watches: HashMap<(usize, usize), Watch>,
    repeats: Repeats<&'static str>,
}

/// What the launcher knows of a slot that it has filled.
#[derive(Default)]
struct Watch {
    worker: Option<DynamicBackgroundWorker>,
    started: Option<Time>,
    failures: u32,
    start_at: Option<Time>,
}

impl Launcher {
    fn new(header: &'static Header) -> Self {
        let mut launcher = Self {
            header,
            without: HashSet::new(),
            announced: HashSet::new(),
            watches: HashMap::new(),
            repeats: Repeats::default(),
        };
        launcher.adopt();
        launcher
    }

    /// Workers of an earlier launcher go on; those that it asked for and that never came are given their time.
    fn adopt(&mut self) {
        let now = BootClock.now();
        for (place, _, slot) in self.slots() {
            if slot.phase() == Phase::Busy {
                self.watches.insert(place, Watch { started: Some(now), ..Watch::default() });
            }
        }
    }

    fn slots(&self) -> impl Iterator<Item = ((usize, usize), &'static Database, &'static Slot)> + use<> {
        self.header.databases().iter().enumerate().flat_map(|(database_index, database)| {
            database
                .slots
                .iter()
                .enumerate()
                .map(move |(slot_index, slot)| ((database_index, slot_index), database, slot))
        })
    }

    fn run(&mut self, rest: &mut Rest) {
        while !rest::stop_requested() {
            if rest::reload() {
                log::adopt_level();
            }
            let next = self.pass();
            log::write_waiting(|_| {});
            rest.until(next);
        }
    }

    /// Brings workers and wishes together; says when to look again.
    fn pass(&mut self) -> Time {
        let now = BootClock.now();
        let mut next = now + LOOK_INTERVAL;
        match self.header.take_announced() {
            Some(announced) => {
                for oid in announced {
                    self.without.remove(&oid);
                    self.announced.insert(oid);
                }
            }
            None => self.without.clear(),
        }
        self.reap(now);
        let names = match databases() {
            Ok(names) => names,
            // What a stop has cancelled is no failure.
            Err(_) if rest::stop_requested() => return now,
            Err(error) => {
                warn!(detail = format!("{}.", capital(&error.message)), "could not read the list of databases");
                return now + LIFE_MIN;
            }
        };
        self.assign_entries(&names);
        for (place, database, slot) in self.slots().collect::<Vec<_>>() {
            let oid = database.oid.load(Ordering::Acquire);
            let wanted = place.1 < self.wanted(database);
            match (slot.phase(), wanted) {
                (Phase::Busy, false) => {
                    slot.stop.store(true, Ordering::Release);
                    slot.wake();
                }
                (Phase::Free, true) if oid != 0 => {
                    let due = self.watches.get(&place).and_then(|watch| watch.start_at).unwrap_or(now);
                    if due <= now {
                        let name = names.get(&oid).map_or("?", String::as_str);
                        self.start(place, database, slot, name, now);
                    }
                    if let Some(at) = self.watches.get(&place).and_then(|watch| watch.start_at).filter(|at| *at > now) {
                        next = next.min(at);
                    }
                }
                _ => {}
            }
        }
        next
    }

    fn wanted(&self, database: &Database) -> usize {
        let blocker = database.blocked_by.load(Ordering::Acquire);
        if blocker != 0 {
            // SAFETY: looks the process up in the server's array.
            if !unsafe { pg_sys::BackendPidGetProc(blocker) }.is_null() {
                return 0;
            }
            database.blocked_by.store(0, Ordering::Release);
        }
        if database.oid.load(Ordering::Acquire) == 0 {
            0
        } else if database.served.load(Ordering::Acquire) {
            gucs::workers()
        } else {
            gucs::workers().min(1)
        }
    }

    /// Learns which workers have left, and why.
    fn reap(&mut self, now: Time) {
        for (place, database, slot) in self.slots().collect::<Vec<_>>() {
            let Some(watch) = self.watches.get_mut(&place) else { continue };
            let Some(started) = watch.started else { continue };
            let lost = slot.phase() == Phase::Busy
                && slot.pid.load(Ordering::Acquire) == 0
                && match &watch.worker {
                    Some(worker) => matches!(worker.pid(), Err(pgrx::bgworkers::BackgroundWorkerStatus::Stopped)),
                    None => now.since(started) > START_PATIENCE,
                };
            if lost {
                slot.vacate();
            }
            if slot.phase() == Phase::Busy {
                continue;
            }
            watch.worker = None;
            watch.started = None;
            let short = now.since(started) < LIFE_MIN;
            match slot.outcome() {
                Outcome::NoExtension => {
                    watch.failures = 0;
                    watch.start_at = None;
                    let oid = database.oid.load(Ordering::Acquire);
                    if !self.announced.remove(&oid) {
                        self.without.insert(oid);
                    }
                    database.served.store(false, Ordering::Release);
                }
                Outcome::Stopped => {
                    watch.failures = 0;
                    watch.start_at = short.then(|| now + LIFE_MIN);
                }
                Outcome::Crashed => {
                    // The first time it comes back at once, and no faster each time after that, until one has lived long.
                    let lived_long = now.since(started) > RESTART_MAX;
                    watch.failures = if lived_long { 1 } else { watch.failures + 1 };
                    let wait = match watch.failures {
                        1 => Duration::ZERO,
                        failures => (LIFE_MIN * 2u32.saturating_pow(failures - 2)).min(RESTART_MAX),
                    };
                    watch.start_at = Some(now + wait);
                }
            }
        }
    }

    /// Gives an entry to every database that has, or may have, the extension, and takes back those no longer needed.
    fn assign_entries(&mut self, names: &HashMap<u32, String>) {
        for database in self.header.databases() {
            let oid = database.oid.load(Ordering::Acquire);
            let needed = names.contains_key(&oid) && !self.without.contains(&oid);
            if oid != 0 && !needed && !database.has_workers() {
                database.clear();
            }
        }
        self.without.retain(|oid| names.contains_key(oid));
        let mut unserved = Vec::new();
        for (oid, name) in names {
            if self.without.contains(oid) || self.header.database((*oid).into()).is_some() {
                continue;
            }
            match self.header.databases().iter().find(|database| database.oid.load(Ordering::Acquire) == 0) {
                Some(database) => database.oid.store(*oid, Ordering::Release),
                None => unserved.push(name.as_str()),
            }
        }
        if !unserved.is_empty() && gucs::workers() > 0 && self.repeats.note("unserved", BootClock.now()).is_some() {
            warn!(
                detail = format!("Databases not looked at: {}.", unserved.join(", ")),
                hint = "Raise outbox_relay.max_databases and restart the server.",
                "no room for relays in more databases"
            );
        }
    }

    fn start(&mut self, place: (usize, usize), database: &Database, slot: &Slot, name: &str, now: Time) {
        // What it will find is newer than any announcement so far.
        self.announced.remove(&database.oid.load(Ordering::Acquire));
        let generation = slot.prepare();
        let registered = BackgroundWorkerBuilder::new(&format!("outbox_relay relay {} in {name}", place.1))
            .set_type("outbox_relay relay")
            .set_library("outbox_relay")
            .set_function("outbox_relay_worker_main")
            .enable_spi_access()
            .set_start_time(BgWorkerStartTime::RecoveryFinished)
            .set_restart_time(None)
            // SAFETY: reads the id of this process.
            .set_notify_pid(unsafe { pg_sys::MyProcPid })
            .set_argument(worker::Place { database: place.0, slot: place.1, generation }.into_datum())
            .load_dynamic();
        let watch = self.watches.entry(place).or_default();
        match registered {
            Ok(worker) => {
                watch.worker = Some(worker);
                watch.started = Some(now);
                watch.start_at = None;
            }
            Err(_) => {
                slot.vacate();
                watch.start_at = Some(now + LIFE_MIN * 10);
                if self.repeats.note("full", now).is_some() {
                    warn!(
                        detail = format!("Relay {} of database \"{name}\" waits.", place.1),
                        hint = "Raise max_worker_processes and restart the server.",
                        "no free slot for a background worker"
                    );
                }
            }
        }
    }
}

/// Databases that one can connect to and that are no templates, by id.
fn databases() -> Result<HashMap<u32, String>, SqlError> {
    session::run_without_database(c"reading the list of databases", |_: &Session| {
        let mut names = HashMap::new();
        // SAFETY: inside a transaction; reads a shared catalogue row by row, each row used before the next is fetched.
        unsafe {
            let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
            let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
            loop {
                let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if tuple.is_null() {
                    break;
                }
                let header = (*tuple).t_data;
                let row: *const pg_sys::FormData_pg_database = header.byte_add((*header).t_hoff as usize).cast();
                if (*row).datallowconn && !(*row).datistemplate {
                    let name = CStr::from_ptr((*row).datname.data.as_ptr()).to_string_lossy().into_owned();
                    names.insert((*row).oid.to_u32(), name);
                }
            }
            pg_sys::table_endscan(scan);
            pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        }
        Ok(names)
    })
}
