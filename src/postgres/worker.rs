//! A relay worker's life, from its start in a database to its exit.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pgrx::{IntoDatum, pg_guard, pg_sys};
use tracing::{info, warn};

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::kafka::{Caretaker, Contact, Outcome as TrialOutcome, Ring, Trial};
use crate::properties::Properties;
use crate::relay::ports::{Bell, Clock as _, Order, Wait};
use crate::relay::{Ended, Relay};
use crate::settings::Settings;

use super::clock::BootClock;
use super::rest::{self, Rest};
use super::session::{self, SqlError, Statement};
use super::shared::{self, Database, Header, Outcome, Slot};
use super::stamp::{self, Permission};
use super::status::State;
use super::store::PgStore;
use super::test_hooks::{self, KafkaPublisher};
use super::{capital, gucs, log, memory, now};

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
    memory::give_back_large_blocks();
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
    let catalogue = Rc::new(Catalogue::new());
    let outcome = Worker { header, database, slot, place, ring, told: None, catalogue, kept: None }.live();
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
    database.stop_listening_at_all(place.slot);
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
    /// Why it does not publish, as last logged.
    told: Option<(State, String)>,
    catalogue: Rc<Catalogue>,
    /// What the last relay published with, where that was not what the settings say.
    kept: Option<Kept>,
}

/// Properties that go on because others were tried in vain, or are still being tried.
#[derive(Clone)]
struct Kept {
    old: Properties,
    wanted: Properties,
}

/// What the database says of the extension.
struct Catalogue {
    extension_version: Statement,
    publishing: Statement,
}

enum Sight {
    NoExtension,
    /// It must not publish, for this reason.
    Refusal(State, String),
    Permission,
}

impl Catalogue {
    fn new() -> Self {
        Self {
            extension_version: Statement::new(include_str!("../../sql/statements/extension_version.sql"), &[]),
            publishing: stamp::statement(),
        }
    }

    fn look(&self) -> Result<Sight, SqlError> {
        session::run(c"looking for the extension", |session| {
            let library = env!("CARGO_PKG_VERSION");
            let version = self.extension_version.rows(session, &[], |row| row.must::<String>(1)).pop();
            let Some(version) = version else { return Ok(Sight::NoExtension) };
            if version != library {
                let detail = format!("The library has version {library}, the SQL objects {version}.");
                return Ok(Sight::Refusal(State::VersionMismatch, detail));
            }
            Ok(match stamp::permission(session, &self.publishing) {
                Permission::Granted | Permission::NoStamp => Sight::Permission,
                Permission::Paused(reason) => {
                    let reason = reason.map_or("No reason was given".to_owned(), |reason| format!("Reason: {reason}"));
                    Sight::Refusal(State::Paused, format!("{reason}."))
                }
                Permission::Copy(stamp) => {
                    let detail = format!("Its stamp is {stamp}, but this is {}.", stamp::own());
                    Sight::Refusal(State::Copy, detail)
                }
            })
        })
    }
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
            match self.catalogue.look() {
                Ok(Sight::NoExtension) => return Outcome::NoExtension,
                Ok(Sight::Refusal(state, detail)) => {
                    if state != State::VersionMismatch {
                        self.serve();
                    }
                    self.hold(&mut rest, state, &detail);
                }
                Ok(Sight::Permission) => {
                    self.serve();
                    test_hooks::try_contract(self.header, self.database, self.slot);
                    match wish() {
                        Wish::Rest(state, detail) => self.hold(&mut rest, state, &detail),
                        Wish::Publish(settings, properties) => rest = self.publish(rest, settings, properties),
                    }
                }
                // What a stop has cancelled is no failure.
                Err(_) if rest::stop_requested() => {}
                Err(error) => {
                    warn!(detail = format!("{}.", capital(&error.message)), "could not look for the extension");
                    rest.until(BootClock.now() + gucs::settings().error_backoff);
                }
            }
        }
    }

    /// The extension is here: now the launcher may start the other relays.
    fn serve(&self) {
        if !self.database.served.swap(true, Ordering::AcqRel) {
            self.header.announce(0);
        }
    }

    /// Does nothing, visibly, until something changes.
    fn hold(&mut self, rest: &mut Rest, state: State, detail: &str) {
        let now_told = (state, detail.to_owned());
        if self.told.as_ref() != Some(&now_told) {
            self.told = Some(now_told);
            if !matches!(state, State::Disabled | State::NotConfigured | State::Paused) {
                self.slot.note_error(detail, now());
            }
            match state {
                State::Disabled => info!(detail, "outbox_relay is disabled"),
                State::Paused => info!(detail, hint = "To go on call outbox.resume().", "publishing is paused"),
                State::Copy => warn!(
                    detail,
                    hint = "If this database is to publish its messages call outbox.resume().",
                    "this database is a copy and does not publish"
                ),
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
        let look_again = BootClock.now() + LOOK_INTERVAL;
        // A line that is left by another thread wakes it too, and is no reason to look.
        while BootClock.now() < look_again
            && !(rest::stop_requested() || rest::reload_requested() || self.database.must_leave(self.place.slot))
            && !self.slot.take_unknown()
        {
            rest.until(look_again);
            log::write_waiting(|_| {});
        }
    }

    /// Runs one relay until it ends, and closes its Kafka client.
    fn publish(&mut self, rest: Rest, settings: Settings, wanted: Properties) -> Rest {
        // What another relay tried in vain is not taken over just because this one is new.
        let old = self.kept.take().filter(|kept| kept.wanted == wanted).map(|kept| kept.old);
        let (properties, wanted) = match old {
            Some(old) => (old, Some(wanted)),
            None => (wanted, None),
        };
        let instance = instance();
        let database = self.database.oid.load(Ordering::Acquire);
        let relay_id = format!("{instance}{:016x}.{database}.{}", self.header.boot(), self.header.next_relay());
        let mut rest = rest;
        let publisher = match make_publisher(&properties, &self.ring) {
            Ok(publisher) => publisher,
            Err(error) => {
                self.hold(&mut rest, State::Misconfigured, &error);
                return rest;
            }
        };
        self.told = None;
        self.slot.set_relay_id(&relay_id);
        info!(relay_id = relay_id.as_str(), "relay started");
        let store = PgStore::new(relay_id.clone(), instance, self.header, self.database, self.slot);
        let change = Change { contact: publisher.contact(), wanted, trial: None, try_at: BootClock.now(), told: None };
        let bell = SharedBell {
            rest,
            header: self.header,
            database: self.database,
            slot: self.slot,
            index: self.place.slot,
            settings: settings.clone(),
            properties,
            change,
            catalogue: self.catalogue.clone(),
            ring: self.ring.clone(),
            look_again: false,
        };
        let mut relay =
            Relay::new(store, publisher, BootClock, bell, settings, &relay_id).expect("the settings were checked");
        let ended = relay.run();
        let (publisher, bell) = relay.into_ports();
        self.database.stop_listening_at_all(self.place.slot);
        self.kept = bell.change.wanted.map(|wanted| Kept { old: bell.properties, wanted });
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
            // Trying again at once would not help.
            Ended::Misconfigured(reason) => {
                self.hold(&mut rest, State::Misconfigured, &format!("{}.", capital(&reason)))
            }
        }
        rest
    }
}

/// Prefix of the ids of all relays of this server instance: system identifier and timeline. A promoted standby has another.
fn instance() -> String {
    // SAFETY: read from the control file in memory; workers run only after recovery.
    unsafe { format!("{}.{}.", pg_sys::GetSystemIdentifier(), pg_sys::GetWALInsertionTimeLine()) }
}

/// A publisher with a client that could be made, or a sentence on why not.
fn make_publisher(properties: &Properties, ring: &Ring) -> Result<KafkaPublisher, String> {
    Caretaker::start(ring.clone())
        .map_err(|error| error.to_string())
        .and_then(|caretaker| KafkaPublisher::new(properties.clone(), ring.clone(), caretaker))
        .map_err(|error| format!("{}.", capital(error.trim_end().trim_end_matches('.'))))
}

fn wish() -> Wish {
    let settings = gucs::settings();
    if !settings.enabled {
        return Wish::Rest(State::Disabled, "Messages are accepted and kept; outbox_relay.enabled is off.".to_owned());
    }
    if let Err(error) = settings.check() {
        return Wish::Rest(State::Misconfigured, format!("Setting {error}."));
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

/// Other Kafka properties, on trial before the relay changes over to them.
struct Change {
    /// How to ask the client in use whether it has a broker.
    contact: Contact,
    /// What the settings say now, if that is not what the relay publishes with.
    wanted: Option<Properties>,
    trial: Option<Trial>,
    /// When to begin the next trial.
    try_at: Time,
    /// Why what is wanted was refused, as last logged.
    told: Option<String>,
}

/// The [`Bell`] in shared memory, and the relay's only place to sleep.
struct SharedBell {
    rest: Rest,
    header: &'static Header,
    database: &'static Database,
    slot: &'static Slot,
    index: usize,
    settings: Settings,
    properties: Properties,
    change: Change,
    catalogue: Rc<Catalogue>,
    ring: Ring,
    /// Something has changed of which it is not known what: perhaps the permission to publish.
    look_again: bool,
}

impl SharedBell {
    /// Whether the relay has to stop because its database may not publish any more, or has no extension.
    fn lost_permission(&mut self) -> bool {
        if !self.look_again {
            return false;
        }
        match self.catalogue.look() {
            Ok(sight) => {
                self.look_again = false;
                !matches!(sight, Sight::Permission)
            }
            // What the relay does next will meet the same error, and say it.
            Err(_) => false,
        }
    }

    /// What a reload means to a running relay.
    fn reloaded(&mut self) -> Option<Order> {
        log::adopt_level();
        let (settings, properties) = match wish() {
            Wish::Rest(State::Disabled | State::NotConfigured, _) => return Some(Order::Stop),
            Wish::Rest(_, detail) => return self.keep_old(&detail),
            Wish::Publish(settings, properties) => (settings, properties),
        };
        let wanted = (properties != self.properties).then_some(properties);
        if wanted.is_none() || wanted != self.change.wanted {
            self.change.told = None;
        }
        // Even if they are the same as before: somebody expects them to work now.
        self.change.trial = None;
        self.change.try_at = BootClock.now();
        self.change.wanted = wanted;
        if settings.lease != self.settings.lease {
            return Some(Order::Stop);
        }
        (settings != self.settings).then(|| {
            self.settings = settings.clone();
            Order::Settings(Box::new(settings))
        })
    }

    /// Tries the properties that are wanted. If they are better than what the relay has, it is stopped in its order, and a new
    /// one started.
    fn tried(&mut self) -> Option<Order> {
        let wanted = self.change.wanted.as_ref()?;
        let Some(trial) = &self.change.trial else {
            if BootClock.now() >= self.change.try_at {
                self.change.try_at = BootClock.now() + self.settings.lease.renew_interval;
                match Trial::start(wanted.clone(), self.change.contact.clone(), self.ring.clone()) {
                    Ok(trial) => self.change.trial = Some(trial),
                    Err(error) => return self.refused(&format!("{}.", capital(&error.to_string()))),
                }
            }
            return None;
        };
        let outcome = trial.outcome()?;
        self.change.trial = None;
        match outcome {
            TrialOutcome::Answered => {}
            TrialOutcome::NobodyAnswers(reason) => {
                info!(
                    detail = reason,
                    "new settings are used though no broker answers, for none answers with the old ones"
                );
            }
            TrialOutcome::Refused(reason) => return self.refused(&reason),
        }
        self.change.wanted = None;
        Some(Order::Stop)
    }

    fn refused(&mut self, reason: &str) -> Option<Order> {
        self.change.try_at = BootClock.now() + self.settings.lease.renew_interval;
        // The same cause is told in words that differ in ports and times.
        let cause: String = reason.chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.change.told.as_ref() == Some(&cause) {
            self.slot.note_error(reason, now());
            return None;
        }
        self.change.told = Some(cause);
        self.keep_old(reason)
    }

    fn keep_old(&self, detail: &str) -> Option<Order> {
        self.slot.note_error(detail, now());
        warn!(detail, hint = "The relay goes on with what it had.", "new settings are not used");
        None
    }
}

impl Bell for SharedBell {
    fn take(&mut self, bucket: Bucket) -> Option<i64> {
        self.database.take_bell(self.header, self.index, bucket)
    }

    fn take_unknown(&mut self) -> bool {
        let rung = self.slot.take_unknown();
        self.look_again |= rung;
        rung
    }

    fn listen_for(&mut self, buckets: &BTreeSet<Bucket>) {
        self.database.listen(self.header, self.index, buckets);
    }

    fn stop_listening_for(&mut self, buckets: &BTreeSet<Bucket>) {
        self.database.stop_listening(self.index, buckets.iter().copied());
    }

    fn call_peers(&mut self) {
        self.database.call_peers(self.index);
    }

    fn order(&mut self) -> Option<Order> {
        rest::serve_interrupts();
        if rest::stop_requested() || self.database.must_leave(self.index) {
            return Some(Order::Stop);
        }
        // Asked before the turn that a call leads to: a fetch would find out too, with messages on their way.
        self.look_again |= self.slot.called.load(Ordering::Acquire);
        if self.lost_permission() {
            return Some(Order::Stop);
        }
        if rest::reload()
            && let Some(order) = self.reloaded()
        {
            return Some(order);
        }
        if let Some(order) = self.tried() {
            return Some(order);
        }
        self.slot.called.swap(false, Ordering::AcqRel).then_some(Order::LookAgain)
    }

    fn rest(&mut self, wait: Wait, until: Time) {
        set_state(self.slot, State::from(wait));
        let next_trial =
            self.change.wanted.as_ref().filter(|_| self.change.trial.is_none()).map(|_| self.change.try_at);
        self.rest.until(next_trial.map_or(until, |at| at.min(until)));
        log::write_waiting(|text| self.slot.note_error(text, now()));
    }
}
