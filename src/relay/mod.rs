//! The journey of messages as a loop: leases, bells, fetch, submit, reports, acknowledge, rest.
//!
//! It knows neither Postgres nor Kafka, only the ports. One turn does all that can be done now, and [`Bell::rest`] is the
//! only place where it waits. Rules that are kept here (relay-rules R1 to R20, DESIGN G1 to G5):
//!
//! - a row is removed only after the broker acknowledged it, front to back ([`crate::prefix`]);
//! - a bucket has one batch on its way, many buckets have one at once;
//! - leases are checked before a bucket is read, after the fetch and before the acknowledgement, by an age that counts from
//!   before the call that took them;
//! - a lost lease keeps its rows, and nothing else of the bucket is started until all reports are in;
//! - a failed lease write suspends publishing, every other failure keeps the leases;
//! - a refused first row is tried alone with a growing wait, while other buckets go on.

mod flight;
mod lane;
pub mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::backoff::Backoff;
use crate::bucket::Bucket;
use crate::clock::Time;
use crate::lease::Lease;
use crate::message::Batch;
use crate::repeats::Repeats;
use crate::settings::Settings;
use crate::window::Window;

use flight::Flight;
use lane::{Failing, Lane};
use ports::{
    Acknowledged, Bell, Clock, Failure, FlightId, Limits, Order, PublishError, Publisher, Report, Store, StoreError,
    Wait,
};

/// After this long without any report while rows are with the client, the wait is said to be for the broker.
const BROKER_SILENCE: Duration = Duration::from_secs(5);
/// Memory that an idle batch buffer keeps.
const SPARE_BYTES: usize = 1 << 20;
/// Idle batch buffers that are kept.
const SPARE_MAX: usize = 16;
/// Part of the shutdown time that is left for the last acknowledgement and the release.
const RELEASE_RESERVE: Duration = Duration::from_millis(500);

/// Why a relay ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was ordered to stop.
    Stopped,
    /// The store told it to leave.
    Left(String),
}

/// One publishing worker.
#[derive(Debug)]
pub struct Relay<S, P, C, B> {
    store: S,
    publisher: P,
    clock: C,
    bell: B,
    settings: Settings,
    backoff: Backoff,
    tenure: Tenure,
    lanes: BTreeMap<Bucket, Lane>,
    flights: BTreeMap<FlightId, Flight>,
    next_flight: FlightId,
    /// Buckets take turns: the one after the last that was served comes first.
    next_lane: Bucket,
    window: Window,
    /// When to look for rows that no bell told of.
    discover_at: Option<Time>,
    /// Failed turns in a row in which nothing was published.
    fruitless: u32,
    /// After a failed turn: do nothing before this.
    wait_until: Option<Time>,
    silence: Silence,
    /// What was said already: refused messages by bucket, failed turns by their error.
    refusals: Repeats<Bucket>,
    failed_turns: Repeats<String>,
    spare: Vec<Batch>,
    reports: Vec<Report>,
}

/// Since when leases are held. The times are from before the call that the store answered.
#[derive(Debug, Default, Clone, Copy)]
struct Tenure {
    /// The latest acquisition or renewal that succeeded.
    confirmed: Option<Time>,
    /// The latest acquisition that succeeded; none forces the next.
    rebalanced: Option<Time>,
    /// Whether anything was ever acquired, and so is to be released.
    acquired: bool,
}

/// Whether Kafka answers.
#[derive(Debug, Clone, Copy)]
struct Silence {
    since: Time,
    told: bool,
}

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// A relay over its four ports.
    pub fn new(store: S, publisher: P, clock: C, bell: B, settings: Settings, relay_id: &str) -> Self {
        let backoff = Backoff::new(settings.error_backoff, settings.lease.renew_interval, relay_id);
        let silence = Silence { since: clock.now(), told: false };
        Self {
            store,
            publisher,
            clock,
            bell,
            settings,
            backoff,
            tenure: Tenure::default(),
            lanes: BTreeMap::new(),
            flights: BTreeMap::new(),
            next_flight: 0,
            next_lane: 0,
            window: Window::default(),
            discover_at: None,
            fruitless: 0,
            wait_until: None,
            silence,
            refusals: Repeats::default(),
            failed_turns: Repeats::default(),
            spare: Vec::new(),
            reports: Vec::new(),
        }
    }

    /// Gives back the publisher and the bell, so that the one can be closed and the other used again.
    pub fn into_ports(self) -> (P, B) {
        (self.publisher, self.bell)
    }

    /// Publishes until it is ordered to stop or must leave.
    pub fn run(&mut self) -> Ended {
        loop {
            match self.bell.order() {
                Some(Order::Stop) => {
                    self.stop();
                    return Ended::Stopped;
                }
                Some(Order::Settings(settings)) => self.adopt_settings(*settings),
                Some(Order::Rebalance) => self.tenure.rebalanced = None,
                None => {}
            }
            match self.turn() {
                // Something was done: there may be more.
                Ok(true) => {}
                Ok(false) => {
                    let (wait, until) = self.rest_plan();
                    self.bell.rest(wait, until);
                }
                Err(StoreError::Retry(error)) => self.back_off(&error),
                Err(StoreError::Leave(reason)) => {
                    self.publisher.purge();
                    return Ended::Left(reason);
                }
            }
        }
    }

    /// Does all that can be done now and says whether anything was.
    fn turn(&mut self) -> Result<bool, StoreError> {
        self.collect();
        if self.wait_until.is_some_and(|until| self.clock.now() < until) {
            return Ok(false);
        }
        self.wait_until = None;
        self.hold_leases()?;
        let acknowledged = self.acknowledge()?;
        self.hand_back()?;
        self.look_for_rows()?;
        let submitted = self.submit()?;
        if mem::take(&mut self.fruitless) > 0 {
            self.failed_turns = Repeats::default();
            info!("publishing goes on");
        }
        Ok(acknowledged || submitted)
    }

    // Reports ----------------------------------------------------------------------------------------------------------

    /// Takes in the outcomes that have arrived.
    fn collect(&mut self) {
        let mut reports = mem::take(&mut self.reports);
        self.publisher.collect(&mut reports);
        let mut give_up = false;
        // What was given up is the client's own answer.
        if reports.iter().any(|report| report.outcome != Err(PublishError::GivenUp)) {
            self.heard_from_broker();
        }
        for report in reports.drain(..) {
            if let Some(flight) = self.flights.get_mut(&report.flight) {
                give_up |= flight.report(report.index as usize, report.outcome);
            }
        }
        self.reports = reports;
        if give_up {
            // Rows behind a refused one wait for it; those already sent cannot be called back.
            self.publisher.purge();
        }
    }

    fn heard_from_broker(&mut self) {
        self.silence.since = self.clock.now();
        if mem::take(&mut self.silence.told) {
            info!("Kafka answers again");
        }
    }

    /// Removes the acknowledged prefix of every batch whose reports are all in.
    fn acknowledge(&mut self) -> Result<bool, StoreError> {
        let complete: Vec<FlightId> =
            self.flights.iter().filter(|(_, flight)| flight.complete()).map(|(id, _)| *id).collect();
        if complete.is_empty() {
            return Ok(false);
        }
        let to_remove: Vec<FlightId> = complete
            .iter()
            .copied()
            .filter(|id| !self.flights[id].orphaned && !self.flights[id].prefix.is_empty())
            .collect();
        if !to_remove.is_empty() {
            let acknowledged: Vec<_> =
                to_remove.iter().map(|id| acknowledged_of(&self.flights[id], &self.lanes)).collect();
            let removed = self.store.acknowledge(&acknowledged)?;
            for (id, removed) in to_remove.iter().zip(removed) {
                if !removed {
                    self.lose(self.flights[id].lease, "another relay has taken it over");
                }
            }
        }
        // The rows are gone whatever else fails, so every flight ends before an error is passed on.
        let failed: Vec<_> = complete.into_iter().filter_map(|id| self.land(id)).collect();
        for failure in failed {
            self.store.note_failure(&failure)?;
        }
        Ok(true)
    }

    /// Ends a flight and says whether its bucket now begins with a refused row.
    fn land(&mut self, id: FlightId) -> Option<Failure> {
        let flight = self.flights.remove(&id).expect("only flights that exist are ended");
        self.window.remove(flight.batch.len(), flight.batch.bytes());
        let bucket = flight.lease.bucket;
        let done = flight.prefix.len();
        let failure = match self.lanes.get_mut(&bucket) {
            Some(lane) if flight.orphaned => {
                // The bucket came back meanwhile, and the rows are still there.
                lane.landed(Some(flight.batch.id(0)));
                None
            }
            Some(lane) => {
                lane.landed((done < flight.batch.len()).then(|| flight.batch.id(done)));
                if done > 0
                    && let Some(failing) = lane.failing.take()
                {
                    info!(bucket, id = failing.id, attempts = failing.attempts, "published a message that had failed");
                    self.refusals.forget(&bucket);
                }
                match flight.prefix.first_error() {
                    Some((index, PublishError::Refused(error))) => {
                        Some(self.refused(bucket, flight.batch.id(*index), error.clone()))
                    }
                    _ => None,
                }
            }
            None => None,
        };
        self.recycle(flight.batch);
        failure
    }

    /// The first row of a bucket was refused: it is tried again alone, after a wait that grows.
    fn refused(&mut self, bucket: Bucket, id: i64, error: String) -> Failure {
        let now = self.clock.now();
        let lane = self.lanes.get_mut(&bucket).expect("the caller has just had it");
        let attempts = match lane.failing {
            Some(failing) if failing.id == id => failing.attempts.saturating_add(1),
            _ => 1,
        };
        let wait = self.backoff.after(attempts);
        lane.failing = Some(Failing { id, attempts, retry_at: now + wait });
        if self.refusals.note(bucket, now).is_some() {
            warn!(
                detail = format!("Bucket {bucket}, id {id}, {attempts} attempts: {error}."),
                hint = "The bucket waits for this message; see outbox.pg_stat_bucket.",
                "could not publish a message"
            );
        }
        Failure { bucket, id, attempts, error, wait }
    }

    // Leases -----------------------------------------------------------------------------------------------------------

    /// Takes, keeps, renews or gives up leases, whatever is due.
    fn hold_leases(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        let times = self.settings.lease;
        if self.tenure.confirmed.is_some_and(|confirmed| times.expired(confirmed, now)) {
            self.lose_all("they were not renewed in time");
        }
        if self.tenure.rebalanced.is_none_or(|begun| times.rebalance_due(begun) <= now) {
            self.acquire()
        } else if self.tenure.confirmed.is_some_and(|confirmed| times.renewal_due(confirmed) <= now) {
            self.renew()
        } else {
            Ok(())
        }
    }

    fn acquire(&mut self) -> Result<(), StoreError> {
        let before = self.clock.now();
        let busy: BTreeSet<Bucket> = self.flights.values().map(|flight| flight.lease.bucket).collect();
        let acquired = self.store.acquire(&busy).inspect_err(|_| self.tenure.suspend())?;
        if self.settings.lease.expired(before, self.clock.now()) {
            self.lose_all("acquiring them took longer than they last");
            return Err(StoreError::Retry("acquiring leases took longer than they last".to_owned()));
        }
        let first = !mem::replace(&mut self.tenure.acquired, true);
        self.tenure.confirmed = Some(before);
        self.tenure.rebalanced = Some(before);
        if first || acquired.freed {
            self.bell.call_peers();
        }
        self.adopt(acquired)
    }

    fn renew(&mut self) -> Result<(), StoreError> {
        let before = self.clock.now();
        let leases: Vec<Lease> = self.lanes.values().map(|lane| lane.lease).collect();
        let renewed = self.store.renew(&leases).inspect_err(|_| self.tenure.suspend())?;
        if !renewed {
            self.lose_all("the renewal was refused");
            return Err(StoreError::Retry("the renewal of leases was refused".to_owned()));
        }
        self.tenure.confirmed = Some(before);
        Ok(())
    }

    /// Takes over what the store says is ours now.
    fn adopt(&mut self, acquired: ports::Acquired) -> Result<(), StoreError> {
        let held: BTreeMap<Bucket, Lease> = acquired.leases.iter().map(|lease| (lease.bucket, *lease)).collect();
        let gone: Vec<Lease> =
            self.lanes.values().map(|lane| lane.lease).filter(|lease| held.get(&lease.bucket) != Some(lease)).collect();
        for lease in &gone {
            self.lanes.remove(&lease.bucket);
            self.orphan(*lease);
        }
        let gained: Vec<Bucket> = held.keys().copied().filter(|bucket| !self.lanes.contains_key(bucket)).collect();
        for bucket in &gained {
            let flight = self.flights.iter().find(|(_, flight)| flight.lease.bucket == *bucket).map(|(id, _)| *id);
            self.lanes.insert(*bucket, Lane::new(held[bucket], flight));
        }
        for (bucket, lane) in &mut self.lanes {
            lane.leaving = acquired.leaving.contains(bucket);
        }
        if gone.is_empty() && gained.is_empty() {
            return Ok(());
        }
        info!(buckets = self.lanes.len(), gained = gained.len(), handed_back = gone.len(), "leases changed");
        self.bell.listen_for(&self.lanes.keys().copied().collect());
        self.discover_at = None;
        if gained.is_empty() {
            return Ok(());
        }
        let now = self.clock.now();
        for failure in self.store.failures(&gained)? {
            if let Some(lane) = self.lanes.get_mut(&failure.bucket) {
                let retry_at = now + failure.wait;
                lane.failing = Some(Failing { id: failure.id, attempts: failure.attempts, retry_at });
            }
        }
        Ok(())
    }

    /// Frees the buckets above the share that have become quiet.
    fn hand_back(&mut self) -> Result<(), StoreError> {
        let quiet: Vec<Lease> =
            self.lanes.values().filter(|lane| lane.leaving && lane.flight.is_none()).map(|lane| lane.lease).collect();
        if quiet.is_empty() {
            return Ok(());
        }
        self.store.hand_back(&quiet)?;
        for lease in &quiet {
            self.lanes.remove(&lease.bucket);
        }
        info!(buckets = self.lanes.len(), gained = 0, handed_back = quiet.len(), "leases changed");
        self.bell.listen_for(&self.lanes.keys().copied().collect());
        self.bell.call_peers();
        Ok(())
    }

    fn lose(&mut self, lease: Lease, reason: &str) {
        warn!(detail = format!("Bucket {}: {reason}.", lease.bucket), "lost a lease");
        self.lanes.remove(&lease.bucket);
        self.orphan(lease);
        self.tenure.rebalanced = None;
    }

    fn lose_all(&mut self, reason: &str) {
        self.tenure.suspend();
        self.tenure.confirmed = None;
        if self.lanes.is_empty() {
            return;
        }
        warn!(detail = format!("Buckets: {}; {reason}.", self.lanes.len()), "lost all leases");
        for lane in mem::take(&mut self.lanes).into_values() {
            self.orphan(lane.lease);
        }
        self.bell.listen_for(&BTreeSet::new());
    }

    /// What is in flight under a lost lease is only waited for; what the client has only queued is called back.
    fn orphan(&mut self, lease: Lease) {
        if let Some(flight) = self.flights.values_mut().find(|flight| flight.lease == lease && !flight.orphaned) {
            flight.orphaned = true;
            if !flight.complete() {
                self.publisher.purge();
            }
        }
    }

    // Rows -------------------------------------------------------------------------------------------------------------

    /// Learns from bells, and now and then by looking, which buckets may have rows.
    fn look_for_rows(&mut self) -> Result<(), StoreError> {
        let unknown = self.bell.take_unknown();
        for (bucket, lane) in &mut self.lanes {
            if let Some(id) = self.bell.take(*bucket) {
                lane.ring(id);
            }
            if unknown {
                lane.rescan();
            }
        }
        let now = self.clock.now();
        if self.lanes.is_empty() || self.discover_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        let quiet: Vec<Bucket> =
            self.lanes.iter().filter(|(_, lane)| lane.flight.is_none()).map(|(bucket, _)| *bucket).collect();
        for bucket in self.store.pending(&quiet)? {
            if let Some(lane) = self.lanes.get_mut(&bucket) {
                lane.rescan();
            }
        }
        self.discover_at = Some(now + self.settings.poll_interval);
        Ok(())
    }

    /// Starts a batch of every bucket that may have one, in turn, as far as the window allows.
    fn submit(&mut self) -> Result<bool, StoreError> {
        let mut any = self.submit_rest();
        // Every bucket once a turn: a full one must not starve the others.
        let turn: Vec<Bucket> =
            self.lanes.range(self.next_lane..).chain(self.lanes.range(..self.next_lane)).map(|(b, _)| *b).collect();
        for bucket in turn {
            let now = self.clock.now();
            if !self.lanes[&bucket].can_start(now) {
                continue;
            }
            if !self.window.open() {
                self.next_lane = bucket;
                break;
            }
            if !self.may_publish(now) {
                break;
            }
            self.next_lane = bucket + 1;
            any |= self.start(bucket)?;
        }
        Ok(any)
    }

    /// Hands over what the client had no room for before.
    fn submit_rest(&mut self) -> bool {
        let waiting: Vec<FlightId> =
            self.flights.iter().filter(|(_, flight)| flight.next().is_some()).map(|(id, _)| *id).collect();
        if !self.may_publish(self.clock.now()) {
            return false;
        }
        waiting.into_iter().fold(false, |any, id| any | (self.hand_over(id) > 0))
    }

    /// Whether leases are held and young enough to begin something.
    fn may_publish(&self, now: Time) -> bool {
        self.tenure.rebalanced.is_some()
            && self.tenure.confirmed.is_some_and(|confirmed| !self.settings.lease.expired(confirmed, now))
    }

    /// Fetches a batch of the bucket and submits it.
    fn start(&mut self, bucket: Bucket) -> Result<bool, StoreError> {
        let lane = &self.lanes[&bucket];
        let rows = if lane.failing.is_some() { 1 } else { self.settings.batch_size };
        let limits = Limits { rows, bytes: self.settings.batch_bytes };
        let mut batch = self.spare.pop().unwrap_or_default();
        let fetched = self.store.fetch(bucket, lane.position(), limits, &mut batch);
        let usable = fetched.is_ok() && !batch.is_empty() && self.may_publish(self.clock.now());
        if !usable {
            let empty = batch.is_empty();
            self.recycle(batch);
            fetched?;
            if empty {
                self.lanes.get_mut(&bucket).expect("fetching changes no lanes").found_empty();
            } else {
                warn!("reading a batch outlasted the lease; the batch is not published");
            }
            return Ok(false);
        }
        let more = fetched?;
        let id = self.next_flight;
        self.next_flight = self.next_flight.wrapping_add(1);
        let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
        // A failing row was alone in its batch, so there may be more behind it.
        let more = more || lane.failing.is_some();
        lane.started(id, batch.last_id().expect("the batch is not empty"), more);
        if lane.failing.is_some_and(|failing| failing.id != batch.id(0)) {
            // Somebody else has removed the refused row: what comes now has not failed yet.
            lane.failing = None;
        }
        if self.flights.is_empty() {
            self.silence.since = self.clock.now();
        }
        self.window.add(batch.len(), batch.bytes());
        self.flights.insert(id, Flight::new(lane.lease, batch));
        self.hand_over(id);
        Ok(true)
    }

    /// Keeps a few buffers for the next batches.
    fn recycle(&mut self, mut batch: Batch) {
        if self.spare.len() < SPARE_MAX {
            batch.clear(SPARE_BYTES);
            self.spare.push(batch);
        }
    }

    /// Hands over as many rows of a flight as the client takes.
    fn hand_over(&mut self, id: FlightId) -> usize {
        let flight = self.flights.get_mut(&id).expect("only flights that exist are submitted");
        let Some(from) = flight.next() else { return 0 };
        let submitted = self.publisher.submit(id, &flight.batch, from);
        debug!(bucket = flight.lease.bucket, rows = submitted.rows, "submitted");
        flight.handed_over(submitted.rows);
        if let Some(error) = submitted.refused {
            flight.refused(error);
        }
        submitted.rows
    }

    // Waiting ----------------------------------------------------------------------------------------------------------

    /// Why and until when to rest.
    fn rest_plan(&mut self) -> (Wait, Time) {
        let now = self.clock.now();
        let times = self.settings.lease;
        if let Some(until) = self.wait_until {
            return (Wait::BackingOff, until);
        }
        let mut until = self.tenure.rebalanced.map_or(now, |begun| times.rebalance_due(begun));
        if let Some(confirmed) = self.tenure.confirmed {
            until = until.min(times.renewal_due(confirmed));
        }
        if self.lanes.is_empty() && self.flights.is_empty() {
            return (Wait::Standby, until);
        }
        if let Some(at) = self.discover_at.filter(|_| !self.lanes.is_empty()) {
            until = until.min(at);
        }
        if let Some(at) = self.lanes.values().filter_map(Lane::waits_until).min() {
            until = until.min(at);
        }
        if !self.flights.is_empty() {
            let silent_at = self.silence.since + BROKER_SILENCE;
            if silent_at > now {
                return (Wait::Publishing, until.min(silent_at));
            }
            if !mem::replace(&mut self.silence.told, true) {
                warn!(
                    detail = format!("Nothing was heard for {} s while messages wait.", BROKER_SILENCE.as_secs()),
                    hint = "Messages are kept and published once Kafka answers.",
                    "Kafka does not answer"
                );
            }
            return (Wait::Broker, until);
        }
        let held_up = self.lanes.values().any(|lane| lane.is_ready() && lane.failing.is_some());
        (if held_up { Wait::BackingOff } else { Wait::Idle }, until)
    }

    /// A turn failed: wait, longer each time, but not beyond the next look at the leases.
    fn back_off(&mut self, error: &str) {
        let now = self.clock.now();
        self.fruitless = self.fruitless.saturating_add(1);
        let mut wait = self.backoff.after(self.fruitless);
        if let Some(begun) = self.tenure.rebalanced.filter(|_| self.fruitless > 1 && !self.lanes.is_empty()) {
            let due = self.settings.lease.rebalance_due(begun).since(now);
            wait = wait.min(due.max(self.settings.error_backoff));
        }
        self.wait_until = Some(now + wait);
        if self.failed_turns.note(error.to_owned(), now).is_some() {
            let (failures, wait) = (self.fruitless, wait.as_millis());
            warn!(
                detail = format!("Reported was: {error}. Failures in a row: {failures}, next attempt in {wait} ms."),
                "publishing is interrupted"
            );
        }
    }

    fn adopt_settings(&mut self, settings: Settings) {
        self.backoff.set_limits(settings.error_backoff, settings.lease.renew_interval);
        self.discover_at = self.discover_at.map(|at| at.min(self.clock.now() + settings.poll_interval));
        self.settings = settings;
    }

    // Stopping ---------------------------------------------------------------------------------------------------------

    /// Gives up what was not sent, waits a bounded time for what was, acknowledges it, then releases.
    fn stop(&mut self) {
        let deadline = self.clock.now() + self.settings.shutdown_timeout;
        let patience = deadline.since(self.clock.now()).saturating_sub(RELEASE_RESERVE);
        let wait_until = self.clock.now() + patience;
        loop {
            self.publisher.purge();
            self.collect();
            if self.flights.values().all(Flight::complete) || self.clock.now() >= wait_until {
                break;
            }
            self.bell.rest(Wait::Stopping, wait_until);
        }
        let confirmed = self.tenure.confirmed;
        if confirmed.is_none_or(|confirmed| self.settings.lease.expired(confirmed, self.clock.now())) {
            self.lose_all("they were not renewed in time");
        }
        if let Err(error) = self.acknowledge() {
            warn!(detail = format!("{error}."), "could not remove acknowledged messages before stopping");
        }
        if !self.tenure.acquired {
            return;
        }
        if !self.flights.is_empty() {
            warn!(
                detail = format!("Batches without an answer from Kafka: {}.", self.flights.len()),
                hint = "Their messages are kept; they may be published twice.",
                "stopping without releasing leases"
            );
            return;
        }
        match self.store.release() {
            Ok(()) => self.bell.call_peers(),
            Err(error) => warn!(detail = format!("{error}."), "could not release leases; they will expire"),
        }
    }
}

/// What a flight asks the store to remove.
fn acknowledged_of<'a>(flight: &'a Flight, lanes: &BTreeMap<Bucket, Lane>) -> Acknowledged<'a> {
    let len = flight.prefix.len();
    let failing = lanes.get(&flight.lease.bucket).and_then(|lane| lane.failing);
    let ends_failure = failing.is_some_and(|failing| failing.id <= flight.batch.id(len - 1));
    Acknowledged { lease: flight.lease, batch: &flight.batch, len, ends_failure }
}

impl Tenure {
    /// Nothing new is published until leases are acquired again.
    fn suspend(&mut self) {
        self.rebalanced = None;
    }
}
