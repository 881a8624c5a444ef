//! The journey of messages as a loop: leases, bells, fetch, submit, reports, acknowledge, rest.
//!
//! It knows neither Postgres nor Kafka, only the ports. One turn does all that can be done now, and [`Bell::rest`] is the
//! only place where it waits. The guarantees G1 to G5 of the README rest on the rules kept here:
//!
//! - a row is removed only after the broker acknowledged it, front to back ([`crate::prefix`]);
//! - a bucket has one batch on its way, many buckets have one at once, and a topic that is late with its answers goes apart
//!   (aside.rs);
//! - leases are checked before a bucket is read, after the fetch and before the acknowledgement, by an age that counts from
//!   before the call that took them;
//! - a lost lease keeps its rows, and nothing else of the bucket is started until all reports are in;
//! - a failed lease write suspends publishing, every other failure keeps the leases;
//! - a refused row is tried alone with a growing wait; the later rows of its key wait behind it, everything else goes on.
//!
//! What a turn does is in files of its own: leases.rs, reports.rs, aside.rs, silence.rs, rows.rs; how it all ends, in stop.rs.
//! How to run it over a storage of one's own, with a complete example: [`crate::custom_stores`].

mod aside;
mod flight;
mod holds;
mod lane;
mod leases;
mod looks;
pub mod ports;
mod reports;
mod rows;
mod silence;
mod stop;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use tracing::{error, info, warn};

use crate::backoff::Backoff;
use crate::bucket::Bucket;
use crate::clock::Time;
use crate::lease::LeaseTimes;
use crate::message::Batch;
use crate::policy::Rules;
use crate::repeats::{Budget, Repeats};
use crate::settings::{Contradiction, Settings};
use crate::window::Window;

use flight::Flight;
use lane::Lane;
use leases::Tenure;
use looks::Looks;
use ports::{Bell, Clock, FlightId, Order, Publisher, Report, Store, StoreError, Wait};
use reports::Told;

/// After this long without any report while rows are with the client, the wait is said to be for the broker.
const BROKER_SILENCE: Duration = Duration::from_secs(5);

/// Why a relay ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It was ordered to stop.
    Stopped,
    /// The store told it to leave.
    Left(String),
    /// It can't work as it is set up.
    Misconfigured(String),
}

/// One publishing worker.
#[derive(Debug)]
pub struct Relay<S, P, C, B> {
    store: S,
    publisher: P,
    clock: C,
    bell: B,
    settings: Settings,
    /// How long a publish may take, where leases can't be renewed meanwhile; none where they can.
    budget: Option<Duration>,
    backoff: Backoff,
    tenure: Tenure,
    lanes: BTreeMap<Bucket, Lane>,
    flights: BTreeMap<FlightId, Flight>,
    next_flight: FlightId,
    /// Buckets take turns: the one after the last that was served comes first.
    next_lane: Bucket,
    window: Window,
    /// The buckets of the latest acquisition: a hint where to look first, kept when leases are lost.
    previous: BTreeSet<Bucket>,
    /// Buckets of which it is still to be read what is noted of refused rows.
    unread: BTreeSet<Bucket>,
    /// When peers or an operator called last.
    called_at: Option<Time>,
    /// When to look for rows that no bell told of, and how long such looks take.
    looks: Looks,
    /// Failed turns in a row in which nothing was published.
    fruitless: u32,
    /// After a failed turn: do nothing before this.
    wait_until: Option<Time>,
    silence: Silence,
    /// What operators have laid down for topics.
    rules: Rules,
    /// Why nothing can be published as it is set up, as a row was just refused for.
    misconfigured: Option<String>,
    /// How often in a row that was so.
    refused_altogether: u32,
    /// What was said already: refused messages by topic, failed reads and locked rows by bucket, failed turns by their error.
    refusals: Repeats<(String, Told)>,
    topic_lines: Budget,
    unreadable: Repeats<Bucket>,
    locked: Repeats<Bucket>,
    failed_turns: Repeats<String>,
    spare: Vec<Batch>,
    reports: Vec<Report>,
}

/// Whether Kafka answers.
#[derive(Debug, Clone, Copy)]
struct Silence {
    since: Time,
    told: bool,
}

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// A relay over its four ports. The id, unique among all relays of the store, sets it out of step with others.
    ///
    /// # Errors
    /// When the settings contradict each other, or lack what a store without [`ports::Renewal`] needs.
    pub fn new(
        mut store: S,
        publisher: P,
        clock: C,
        bell: B,
        settings: Settings,
        relay_id: &str,
    ) -> Result<Self, Contradiction> {
        settings.check()?;
        let budget = if store.renewal().is_some() { None } else { Some(settings.check_without_renewal()?) };
        let backoff = Backoff::new(settings.error_backoff, settings.lease.renew_interval, relay_id);
        let looks = Looks::new(clock.now());
        let silence = Silence { since: clock.now(), told: false };
        Ok(Self {
            store,
            publisher,
            clock,
            bell,
            settings,
            budget,
            backoff,
            tenure: Tenure::default(),
            lanes: BTreeMap::new(),
            flights: BTreeMap::new(),
            next_flight: 0,
            next_lane: 0,
            window: Window::default(),
            previous: BTreeSet::new(),
            unread: BTreeSet::new(),
            called_at: None,
            looks,
            fruitless: 0,
            wait_until: None,
            silence,
            rules: Rules::default(),
            misconfigured: None,
            refused_altogether: 0,
            refusals: Repeats::default(),
            topic_lines: Budget::default(),
            unreadable: Repeats::default(),
            locked: Repeats::default(),
            failed_turns: Repeats::default(),
            spare: Vec::new(),
            reports: Vec::new(),
        })
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
                Some(Order::LookAgain) => self.look_again(),
                None => {}
            }
            match self.turn() {
                // Something was done: there may be more.
                Ok(true) => {}
                Ok(false) => {
                    let (wait, until) = self.rest_plan();
                    if self.flights.is_empty() {
                        // With nothing to do a relay holds no memory for it.
                        self.spare.clear();
                    }
                    self.bell.rest(wait, until);
                }
                Err(StoreError::Retry(error)) => self.back_off(&error),
                Err(StoreError::Interrupted) => {}
                Err(StoreError::Leave(reason)) => {
                    self.publisher.purge();
                    return Ended::Left(reason);
                }
                Err(StoreError::Misconfigured(reason)) => {
                    error!(detail = format!("{reason}."), "a relay ends because of a misconfiguration");
                    self.stop();
                    return Ended::Misconfigured(reason);
                }
            }
        }
    }

    /// Does all that can be done now and says whether anything was.
    fn turn(&mut self) -> Result<bool, StoreError> {
        self.collect();
        self.expire_leases();
        self.keep_budget()?;
        self.set_aside_slow_topics();
        self.look_for_silent_topics();
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

    /// Why and until when to rest.
    fn rest_plan(&mut self) -> (Wait, Time) {
        let now = self.clock.now();
        if let Some(until) = self.wait_until {
            return (Wait::BackingOff, self.tenure.expiry().map_or(until, |expiry| until.min(expiry)));
        }
        let mut until = if self.waits_for_quiet() { self.budget_ends() } else { self.leases_due() }.unwrap_or(now);
        if self.lanes.is_empty() && self.flights.is_empty() {
            return (Wait::Standby, until);
        }
        if !self.lanes.is_empty() {
            until = until.min(self.looks.due(self.settings.poll_interval));
        }
        // Without room in the window, or under a lease too old to begin with, even what is due has to wait for a report.
        let quiet_first =
            self.waits_for_quiet() && (self.leases_due().is_none_or(|due| due <= now) || !self.may_publish(now));
        let room = self.window.open(self.settings.window) && !quiet_first;
        if let Some(at) = self
            .lanes
            .values()
            .filter_map(|lane| lane.waits_until(self.rules.paused()))
            .filter(|at| room || *at > now)
            .min()
        {
            until = until.min(at);
        }
        let put_off = self.flights.values().filter_map(Flight::put_off).min();
        if let Some(at) = self.silence_due().into_iter().chain(self.aside_due()).chain(put_off).min() {
            until = until.min(at);
        }
        if self.batches_in_flight() {
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
        let waits = |lane: &Lane| lane.waits_until(self.rules.paused()).is_some();
        let held_up = put_off.is_some() || self.lanes.values().any(waits);
        (if held_up { Wait::BackingOff } else { Wait::Idle }, until)
    }

    /// A turn failed: wait, longer each time, but not beyond the next look at the leases.
    fn back_off(&mut self, error: &str) {
        let now = self.clock.now();
        let mut wait = self.backoff.after(self.fruitless.saturating_add(1));
        if let Some(due) = self.leases_due().filter(|_| self.fruitless > 0 && !self.lanes.is_empty()) {
            wait = wait.min(due.since(now).max(self.settings.error_backoff));
        }
        self.fruitless = self.fruitless.saturating_add(1);
        let wait = self.do_nothing_for(wait);
        if self.failed_turns.note(error.to_owned(), now).is_some() {
            let (failures, wait) = (self.fruitless, wait.as_millis());
            warn!(
                detail = format!("Reported was: {error}. Failures in a row: {failures}, next attempt in {wait} ms."),
                "publishing is interrupted"
            );
        }
    }

    /// Waits with everything, but not for so long that leases end by that. Returns how long.
    fn do_nothing_for(&mut self, wait: Duration) -> Duration {
        let LeaseTimes { duration, renew_interval } = self.settings.lease;
        let wait = wait.min((duration - renew_interval) / 2);
        self.wait_until = Some(self.clock.now() + wait);
        wait
    }

    fn adopt_settings(&mut self, settings: Settings) {
        self.backoff.set_limits(settings.error_backoff, settings.lease.renew_interval);
        if settings.lease != self.settings.lease {
            // What is held keeps the old times until it is acquired with the new ones.
            self.tenure.suspend();
        }
        self.budget = self.budget.and(settings.max_publish_duration).or(self.budget);
        self.settings = settings;
    }
}
