//! A relay worker's life, from its start in a database to its exit.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pgrx::{IntoDatum, pg_guard, pg_sys};
use tracing::{info, warn};

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::kafka::{Caretaker, KafkaPublisher, Ring};
use crate::properties::Properties;
use crate::relay::ports::{Bell, Clock as _, Order, Wait};
use crate::relay::{Ended, Relay};
use crate::settings::Settings;

use super::clock::BootClock;
use super::rest::{self, Rest};
use super::session::{self, SqlError, Statement};
use super::shared::{self, Database, Header, Outcome, Slot};
use super::status::State;
use super::store::PgStore;
use super::{capital, gucs, log, now};

/// How often an idle worker looks whether it may begin.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Longest time that a leaving worker waits for its Kafka client to close.
const CLOSE_PATIENCE: Duration = Duration::from_millis(700);

/// Settings of the worker's session that no role, database or configuration file may change.
const PINNED: [(&CStr, &CStr); 17] = [
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"timezone", c"UTC"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_deferrable", c"off"),
    (c"session_replication_role", c"origin"),
    // Bounds every statement of a stopping relay.
    (c"lock_timeout", c"2s"),
    (c"statement_timeout", c"0"),
    (c"idle_in_transaction_session_timeout", c"0"),
    // Losing an acknowledgement in a crash repeats a message, never loses one.
    (c"synchronous_commit", c"off"),
    // The statements are made for their indexes, whatever the statistics of a table that is empty most of the time say.
    (c"enable_seqscan", c"off"),
    (c"enable_bitmapscan", c"off"),
    (c"enable_sort", c"off"),
    (c"max_parallel_workers_per_gather", c"0"),
    (c"jit", c"off"),
    (c"plan_cache_mode", c"force_generic_plan"),
    (c"row_security", c"off"),
];

/// Which slot a worker is to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub database: usize,
    pub slot: usize,
    pub generation: u32,
}

impl IntoDatum for Place {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(pg_sys::Datum::from((self.database << 48) | (self.slot << 32) | self.generation as usize))
    }
    fn type_oid() -> pg_sys::Oid {
        pg_sys::INT8OID
    }
}

impl From<pg_sys::Datum> for Place {
    fn from(datum: pg_sys::Datum) -> Self {
        let value = datum.value();
        Self { database: value >> 48, slot: (value >> 32) & 0xffff, generation: value as u32 }
    }
}

/// Entry of a relay process.
///
/// # Safety
/// Called by the server only.
#[pg_guard]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn outbox_relay_worker_main(argument: pg_sys::Datum) {
    rest::handle_signals();
    let place = Place::from(argument);
    let header = shared::header().expect("the library was preloaded");
    let database = &header.databases()[place.database];
    let slot = &database.slots[place.slot];
    let oid = database.oid.load(Ordering::Acquire);
    if slot.generation.load(Ordering::Acquire) != place.generation || oid == 0 {
        // Another worker has the place, or the database is gone.
        return;
    }
    // SAFETY: a worker's entry: its own latch and id, a callback that outlives nothing, then the connection.
    unsafe {
        slot.set_latch(pg_sys::MyLatch);
        slot.pid.store(pg_sys::MyProcPid, Ordering::Release);
        pg_sys::before_shmem_exit(Some(vacate), argument);
        pg_sys::BackgroundWorkerInitializeConnectionByOid(oid.into(), pg_sys::InvalidOid, 0);
        for (name, value) in PINNED {
            pin(name, value);
        }
        let name = concat!("outbox_relay ", env!("CARGO_PKG_VERSION"), "\0");
        pin(c"application_name", CStr::from_bytes_with_nul_unchecked(name.as_bytes()));
    }
    let ring = Ring::new().expect("the system has room for a descriptor");
    log::install(ring.clone());
    let extension_version = Statement::new(include_str!("../../sql/statements/extension_version.sql"), &[]);
    let outcome = Worker { header, database, slot, place, ring, runs: 0, told: None, extension_version }.live();
    slot.set_outcome(outcome);
    // SAFETY: the regular way out; the launcher decides what comes next.
    unsafe { pg_sys::proc_exit(0) };
}

/// # Safety
/// Connected, outside a transaction.
unsafe fn pin(name: &CStr, value: &CStr) {
    // SAFETY: the caller's promise; an override outranks every other source.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

/// Whatever ends the process: the slot is free, peers and the launcher learn of it.
#[pg_guard]
unsafe extern "C-unwind" fn vacate(_code: i32, argument: pg_sys::Datum) {
    let place = Place::from(argument);
    let Some(header) = shared::header() else { return };
    let database = &header.databases()[place.database];
    database.listen(place.slot, &BTreeSet::new());
    database.slots[place.slot].vacate();
    database.call_peers(place.slot);
    header.announce(0);
}

struct Worker {
    header: &'static Header,
    database: &'static Database,
    slot: &'static Slot,
    place: Place,
    ring: Ring,
    runs: u32,
    /// Why it does not publish, as last logged.
    told: Option<(State, String)>,
    extension_version: Statement,
}

/// What the settings say now.
enum Wish {
    Publish(Settings, Properties),
    Rest(State, String),
}

impl Worker {
    fn live(mut self) -> Outcome {
        let mut rest = Rest::new(self.ring.clone());
        loop {
            if rest::reload() {
                log::adopt_level();
            }
            if rest::stop_requested() || self.database.must_leave(self.place.slot) {
                return Outcome::Stopped;
            }
            match self.installed_version() {
                Ok(None) => return Outcome::NoExtension,
                Ok(Some(version)) if version != env!("CARGO_PKG_VERSION") => {
                    let detail =
                        format!("The library has version {}, the SQL objects {version}.", env!("CARGO_PKG_VERSION"));
                    self.hold(&mut rest, State::VersionMismatch, &detail);
                    continue;
                }
                Ok(Some(_)) => {}
                Err(error) => {
                    warn!(detail = format!("{}.", error.message), "could not look for the extension");
                    rest.until(BootClock.now() + gucs::settings().error_backoff);
                    continue;
                }
            }
            if !self.database.served.swap(true, Ordering::AcqRel) {
                // Now the launcher may start the others.
                self.header.announce(0);
            }
            match wish() {
                Wish::Rest(state, detail) => self.hold(&mut rest, state, &detail),
                Wish::Publish(settings, properties) => {
                    self.told = None;
                    rest = self.publish(rest, settings, properties);
                }
            }
        }
    }

    fn installed_version(&self) -> Result<Option<String>, SqlError> {
        session::run(c"looking for the extension", |session| {
            Ok(self.extension_version.rows(session, &[], |row| row.must::<String>(1)).pop())
        })
    }

    /// Does nothing, visibly, until something changes.
    fn hold(&mut self, rest: &mut Rest, state: State, detail: &str) {
        let now_told = (state, detail.to_owned());
        if self.told.as_ref() != Some(&now_told) {
            self.told = Some(now_told);
            if !matches!(state, State::Disabled | State::NotConfigured) {
                self.slot.note_error(detail, now());
            }
            match state {
                State::Disabled => info!(detail, "outbox_relay is disabled"),
                State::NotConfigured => info!(
                    detail,
                    hint = "Set outbox_relay.bootstrap_servers and reload the configuration.",
                    "outbox_relay has no broker to publish to"
                ),
                State::VersionMismatch => warn!(
                    detail,
                    hint = "Run ALTER EXTENSION outbox_relay UPDATE, or install the matching library and restart the server.",
                    "outbox_relay does not publish: library and extension differ"
                ),
                _ => warn!(
                    detail,
                    hint = "Correct the setting and reload the configuration.",
                    "outbox_relay does not publish"
                ),
            }
        }
        set_state(self.slot, state);
        rest.until(BootClock.now() + LOOK_INTERVAL);
        log::write_waiting(|_| {});
    }

    /// Runs one relay until it ends, and closes its Kafka client.
    fn publish(&mut self, rest: Rest, settings: Settings, properties: Properties) -> Rest {
        self.runs += 1;
        let instance = instance();
        let relay_id = format!(
            "{instance}{:016x}.{}.{}.{}.{}",
            self.header.boot(),
            self.database.oid.load(Ordering::Acquire),
            self.place.slot,
            self.place.generation,
            self.runs
        );
        let mut rest = rest;
        let made = Caretaker::start(self.ring.clone())
            .map_err(|error| error.to_string())
            .and_then(|caretaker| KafkaPublisher::new(properties.clone(), self.ring.clone(), caretaker));
        let publisher = match made {
            Ok(publisher) => publisher,
            Err(error) => {
                self.hold(&mut rest, State::Misconfigured, &format!("{}.", capital(&error)));
                return rest;
            }
        };
        self.slot.set_relay_id(&relay_id);
        info!(relay_id = relay_id.as_str(), "relay started");
        let store = PgStore::new(relay_id.clone(), instance, settings.lease, self.header, self.database, self.slot);
        let bell = SharedBell {
            rest,
            database: self.database,
            slot: self.slot,
            index: self.place.slot,
            settings: settings.clone(),
            properties,
        };
        let mut relay = Relay::new(store, publisher, BootClock, bell, settings, &relay_id);
        let ended = relay.run();
        let (publisher, bell) = relay.into_ports();
        self.database.listen(self.place.slot, &BTreeSet::new());
        let mut rest = bell.rest;
        let closed = publisher.close();
        let give_up = BootClock.now() + CLOSE_PATIENCE;
        while !closed.load(Ordering::Acquire) && BootClock.now() < give_up {
            rest.until(give_up);
        }
        // Only now: without the id its leases, if any are left, are free to take.
        self.slot.set_relay_id("");
        log::write_waiting(|text| self.slot.note_error(text, now()));
        match ended {
            Ended::Stopped => info!(relay_id, "relay stopped"),
            Ended::Left(reason) => info!(detail = format!("{}.", capital(&reason)), "relay left"),
        }
        rest
    }
}

/// Prefix of the ids of all relays of this server instance: system identifier and timeline. A promoted standby has another.
fn instance() -> String {
    // SAFETY: read from the control file in memory; workers run only after recovery.
    unsafe { format!("{}.{}.", pg_sys::GetSystemIdentifier(), pg_sys::GetWALInsertionTimeLine()) }
}

fn wish() -> Wish {
    let settings = gucs::settings();
    if !settings.enabled {
        return Wish::Rest(State::Disabled, "Messages are accepted and kept; outbox_relay.enabled is off.".to_owned());
    }
    if let Err(error) = settings.check() {
        return Wish::Rest(State::Misconfigured, format!("{}.", capital(&error.to_string())));
    }
    match gucs::kafka_properties() {
        Ok(Some(properties)) => Wish::Publish(settings, properties),
        Ok(None) => Wish::Rest(State::NotConfigured, "Messages are accepted and kept.".to_owned()),
        Err(reason) => Wish::Rest(State::Misconfigured, reason),
    }
}

fn set_state(slot: &Slot, state: State) {
    if slot.state.swap(state as u8, Ordering::Relaxed) != state as u8 || slot.state_since.load(Ordering::Relaxed) == 0 {
        slot.state_since.store(now(), Ordering::Relaxed);
    }
}

/// The [`Bell`] in shared memory, and the relay's only place to sleep.
struct SharedBell {
    rest: Rest,
    database: &'static Database,
    slot: &'static Slot,
    index: usize,
    settings: Settings,
    properties: Properties,
}

impl SharedBell {
    /// What a reload means to a running relay.
    fn reloaded(&mut self) -> Option<Order> {
        log::adopt_level();
        match wish() {
            Wish::Rest(State::Disabled | State::NotConfigured, _) => Some(Order::Stop),
            Wish::Rest(_, detail) => {
                warn!(detail, hint = "The relay goes on with what it had.", "new settings are not used");
                None
            }
            // Another client is needed: the relay is stopped in its order and a new one started.
            Wish::Publish(_, properties) if properties != self.properties => Some(Order::Stop),
            Wish::Publish(settings, _) if settings.lease != self.settings.lease => Some(Order::Stop),
            Wish::Publish(settings, _) if settings != self.settings => {
                self.settings = settings.clone();
                Some(Order::Settings(Box::new(settings)))
            }
            Wish::Publish(..) => None,
        }
    }
}

impl Bell for SharedBell {
    fn take(&mut self, bucket: Bucket) -> Option<i64> {
        self.database.take_bell(bucket)
    }

    fn take_unknown(&mut self) -> bool {
        self.slot.take_unknown()
    }

    fn listen_for(&mut self, buckets: &BTreeSet<Bucket>) {
        self.database.listen(self.index, buckets);
    }

    fn call_peers(&mut self) {
        self.database.call_peers(self.index);
    }

    fn order(&mut self) -> Option<Order> {
        rest::serve_interrupts();
        if rest::stop_requested() || self.database.must_leave(self.index) {
            return Some(Order::Stop);
        }
        if rest::reload()
            && let Some(order) = self.reloaded()
        {
            return Some(order);
        }
        self.slot.rebalance.swap(false, Ordering::AcqRel).then_some(Order::Rebalance)
    }

    fn rest(&mut self, wait: Wait, until: Time) {
        set_state(self.slot, State::from(wait));
        self.rest.until(until);
        log::write_waiting(|text| self.slot.note_error(text, now()));
    }
}
