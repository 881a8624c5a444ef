//! The clock, what is to happen when, who has the turn, and a journal of what the relays did.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use crate::broken::{Rule, broken};
use crate::bucket::Bucket;
use crate::clock::Time;
use crate::fence::Withheld;
use crate::relay::Ended;
use crate::relay::ports::{Order, Wait};
use crate::settings::Settings;

use super::broker::{Broker, Client, Refuser};
use super::database::Database;
use super::plan::START;
use super::trace::Trace;
use super::truth::{Breach, Promise, Truth};
use super::writers::Writers;

/// More steps than this without time passing are a loop that does not rest.
const STEPS_MAX: usize = 20_000;

pub(crate) struct World {
    pub now: Time,
    pub database: Database,
    pub broker: Broker,
    /// What the relays did, in order.
    pub calls: Vec<Call>,
    /// How they waited.
    pub rests: Vec<Rest>,
    /// When and why they ended.
    pub ended: BTreeMap<String, (Time, Ended)>,
    /// Bells of the buckets: the lowest id committed since somebody took it.
    pub bells: BTreeMap<Bucket, i64>,
    /// Who is woken by them.
    pub(super) listeners: BTreeMap<Bucket, usize>,
    /// Those with which relays begin.
    pub(super) settings: Settings,
    pub(super) actors: Vec<Actor>,
    /// Relays that have crashed since somebody looked last.
    pub(super) crashed: Vec<usize>,
    /// What is left to chance; without it everything takes its turn and no time.
    pub(super) chance: Option<Chance>,
    pub(super) truth: Option<Truth>,
    pub(super) breach: Option<Breach>,
    pub(super) trace: Trace,
    /// How often what happened.
    pub(super) coverage: BTreeMap<&'static str, u64>,
    pub(super) writers: Writers,
    /// By how many milliseconds the database's clock was set.
    pub clock_set: i64,
    /// Calls of peers are heard.
    pub(super) calls_heard: bool,
    pub(super) refusals: Vec<Refusal>,
    pub(super) plan_times: Option<PlanTimes>,
    /// Who had the turn last.
    turn: usize,
    events: BTreeMap<(Time, u64), Event>,
    next_event: u64,
    steps: usize,
}

/// Where small delays and the order of the ready come from.
#[derive(Debug)]
pub(super) struct Chance {
    pub random: Rng,
    /// Most that a call of the store takes before its effect, and again after it.
    pub latency: Duration,
    /// Nothing slow lasts longer than until then.
    pub calm: Time,
}

/// Times that the truth measures by.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanTimes {
    pub settled: Time,
    pub patience: Duration,
    /// There are no other faults than refused messages and topics with trouble: nothing else waits longer than this.
    pub beside_failures: Option<Duration>,
}

/// A message that will be refused, by its place in a transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub transaction: usize,
    pub row: usize,
    pub by: Refuser,
    pub until: Time,
}

/// When the database's clock begins, so that it can be set back.
const DATABASE_BEGAN: Duration = Duration::from_secs(1000);

type Event = Box<dyn FnOnce(&mut World)>;

/// A relay as the world sees it.
#[derive(Debug)]
pub(super) struct Actor {
    pub id: String,
    pub whereabouts: Whereabouts,
    /// Something has happened since it rested last.
    pub latch: bool,
    pub unknown: bool,
    /// What its store keeps in memory.
    pub withheld: Withheld,
    pub orders: Orders,
    pub client: Client,
    /// Those it goes by now.
    pub settings: Settings,
    /// The call of the store that has not taken effect yet, and whether an order has interrupted it.
    pub call: Option<Verb>,
    pub interrupted: bool,
    /// Something hindered it after it was ordered to stop.
    pub hindered_in_stopping: bool,
    /// Its process stands still until then.
    pub frozen: Time,
    begins: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// In a call, and not to be woken.
    Busy(Time),
    /// At rest, until its time comes or its latch is set.
    Resting(Time),
    Ended,
}

/// Orders not yet taken; a later one replaces an earlier one of its kind.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub stop: bool,
    pub settings: Option<Box<Settings>>,
    pub look_again: bool,
}

/// What a relay can ask of its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Acquire,
    Renew,
    HandBack,
    Pending,
    Fetch,
    Acknowledge,
    NoteFailures,
    Failures,
    TopicRules,
    Release,
    Submit,
    Purge,
    Abandon,
    Inquire,
    CallPeers,
}

impl Verb {
    pub fn is_of_the_store(self) -> bool {
        !matches!(self, Verb::Submit | Verb::Purge | Verb::Abandon | Verb::Inquire | Verb::CallPeers)
    }
}

/// One call, at the moment it took effect.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub at: Time,
    pub relay: String,
    pub verb: Verb,
    /// Bucket and id of the rows concerned, or bucket and token of the leases.
    pub rows: Vec<(Bucket, i64)>,
    /// Whether the relay got the answer.
    pub answered: bool,
}

/// One rest.
#[derive(Debug, Clone)]
pub(crate) struct Rest {
    pub at: Time,
    pub relay: String,
    pub wait: Wait,
    pub until: Time,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            now: Time::since_zero(std::time::Duration::ZERO),
            database: Database::default(),
            broker: Broker::default(),
            calls: Vec::new(),
            rests: Vec::new(),
            ended: BTreeMap::new(),
            bells: BTreeMap::new(),
            listeners: BTreeMap::new(),
            actors: Vec::new(),
            settings: Settings::default(),
            crashed: Vec::new(),
            chance: None,
            truth: None,
            breach: None,
            trace: Trace::default(),
            coverage: BTreeMap::new(),
            writers: Writers::default(),
            clock_set: 0,
            calls_heard: true,
            refusals: Vec::new(),
            plan_times: None,
            turn: 0,
            events: BTreeMap::new(),
            next_event: 0,
            steps: 0,
        }
    }

    pub(super) fn enter(&mut self, id: &str, begins: Time) {
        self.actors.push(Actor {
            id: id.to_owned(),
            whereabouts: Whereabouts::Busy(begins),
            latch: false,
            unknown: false,
            orders: Orders::default(),
            client: Client::default(),
            settings: Settings::default(),
            call: None,
            interrupted: false,
            withheld: Withheld::default(),
            hindered_in_stopping: false,
            frozen: START,
            begins,
        });
    }

    pub(super) fn leave(&mut self, actor: usize, ended: Ended) {
        let of = &mut self.actors[actor];
        of.whereabouts = Whereabouts::Ended;
        self.ended.insert(of.id.clone(), (self.now, ended.clone()));
        self.left(actor, &ended);
    }

    /// What the database's clock shows.
    pub fn database_now(&self) -> Time {
        let began = if self.chance.is_some() { DATABASE_BEGAN } else { Duration::ZERO };
        let shown = self.now + began;
        let set = Duration::from_millis(self.clock_set.unsigned_abs());
        if self.clock_set < 0 { Time::since_zero(shown.since(START + set)) } else { shown + set }
    }

    /// A commit has made a row visible.
    pub(super) fn ring_bell(&mut self, bucket: Bucket, id: i64) {
        let bell = self.bells.entry(bucket).or_insert(id);
        *bell = id.min(*bell);
        if let Some(listener) = self.listeners.get(&bucket) {
            self.actors[*listener].latch = true;
        }
    }

    /// The lowest id that a snapshot may show in a bucket though the relay was not told of it.
    pub(super) fn lowest_untold(&self, relay: usize, bucket: Bucket) -> i64 {
        if self.actors[relay].unknown && !broken(Rule::UnknownIsUntold) {
            return i64::MIN;
        }
        let rung = self.bells.get(&bucket).copied().unwrap_or(i64::MAX);
        self.writers.lowest_unrung().min(rung)
    }

    pub(super) fn count(&mut self, what: &'static str) {
        if self.truth.is_some() {
            *self.coverage.entry(what).or_default() += 1;
        }
    }

    /// A line of the trace: the numbers tell runs apart, the words are made when somebody wants to read them.
    pub(super) fn note(&mut self, actor: Option<usize>, numbers: &[u64], words: impl FnOnce() -> String) {
        if self.truth.is_none() {
            return;
        }
        self.trace.add(self.now, actor, numbers);
        if let Some(lines) = &mut self.trace.lines {
            let name = actor.map_or("", |actor| &self.actors[actor].id);
            let words = words();
            if lines.last().is_some_and(|last| last.ends_with(&format!("  {name:<4} {words}"))) {
                return;
            }
            let time = self.now.since(START).as_secs_f64();
            lines.push(format!("{time:12.6}  {name:<4} {words}"));
        }
    }

    pub fn schedule(&mut self, time: Time, event: impl FnOnce(&mut World) + 'static) {
        self.events.insert((time, self.next_event), Box::new(event));
        self.next_event += 1;
    }

    /// Lets time go on to whatever is next, and names the relay that it concerns; none when all have ended.
    pub(super) fn next_turn(&mut self) -> Option<usize> {
        self.trace.steps += 1;
        while self.actors.iter().any(|actor| actor.whereabouts != Whereabouts::Ended) {
            while let Some(event) = self.events.first_entry().filter(|event| event.key().0 <= self.now) {
                event.remove()(self);
            }
            if self.breach.is_some() || !self.crashed.is_empty() {
                return None;
            }
            // In turn, so that a relay which never rests does not hide the others.
            let ready = |actor: &usize| self.actors[*actor].due(self.now).is_some_and(|due| due <= self.now);
            let mut in_turn = (self.turn + 1..self.actors.len()).chain(0..self.actors.len());
            let next = match &mut self.chance {
                None => in_turn.find(ready),
                Some(chance) => {
                    let ready: Vec<usize> = (0..self.actors.len()).filter(ready).collect();
                    (!ready.is_empty()).then(|| ready[chance.random.usize(..ready.len())])
                }
            };
            if let Some(next) = next {
                self.step();
                if matches!(self.actors[next].whereabouts, Whereabouts::Resting(_)) {
                    self.actors[next].latch = false;
                }
                self.turn = next;
                return Some(next);
            }
            let due = self.actors.iter().filter_map(|actor| actor.due(self.now)).min();
            let event = self.events.first_key_value().map(|((time, _), _)| *time);
            self.now = [due, event].into_iter().flatten().min().expect("a relay that has not ended is due");
            self.steps = 0;
        }
        None
    }

    fn step(&mut self) {
        self.steps += 1;
        // By chance nothing is as large as in the scripts.
        let most = if self.chance.is_some() { STEPS_MAX / 20 } else { STEPS_MAX };
        if self.steps == most {
            let words = format!("busy for ever at {:?}: {:?}", self.now, self.rests.last());
            self.breach(Promise::RelaysRest, words);
        }
    }

    pub(super) fn record(&mut self, relay: usize, verb: Verb, rows: Vec<(Bucket, i64)>, answered: bool) {
        self.step();
        if self.truth.is_some() {
            let numbers =
                rows.iter().fold(u64::from(answered), |sum, (b, id)| sum.wrapping_mul(31) + u64::from(*b) + *id as u64);
            let fails = if answered { "" } else { ", without an answer" };
            return self.note(Some(relay), &[8, verb as u64, numbers], || format!("{verb:?} {rows:?}{fails}"));
        }
        let relay = self.actors[relay].id.clone();
        self.calls.push(Call { at: self.now, relay, verb, rows, answered });
    }

    /// Calls of one kind, by any relay.
    pub fn calls(&self, verb: Verb) -> Vec<&Call> {
        self.calls.iter().filter(|call| call.verb == verb).collect()
    }

    /// Calls of one kind that concern the bucket.
    pub fn calls_for(&self, verb: Verb, bucket: Bucket) -> Vec<&Call> {
        self.calls(verb).into_iter().filter(|call| call.rows.iter().any(|(of, _)| *of == bucket)).collect()
    }

    /// Gives an order and wakes the relay.
    pub fn order(&mut self, relay: &str, order: Order) {
        let actor = self.actors.iter_mut().find(|actor| actor.id == relay).expect("a relay of that name");
        actor.order(order);
    }

    pub(super) fn stop_all(&mut self) {
        for actor in &mut self.actors {
            actor.order(Order::Stop);
        }
    }

    /// New settings for the relays and the store, as after a reload of the server.
    pub fn reload(&mut self, settings: &Settings) {
        self.settings = settings.clone();
        self.database.lease_duration = settings.lease.duration;
        for actor in &mut self.actors {
            actor.order(Order::Settings(Box::new(settings.clone())));
        }
    }
}

impl Actor {
    /// When it may run next.
    fn due(&self, now: Time) -> Option<Time> {
        let due = match self.whereabouts {
            Whereabouts::Resting(_) if self.latch => now,
            Whereabouts::Busy(until) | Whereabouts::Resting(until) => until,
            Whereabouts::Ended => return None,
        };
        Some(due.max(self.frozen))
    }

    /// Whether it has begun and not ended.
    pub fn lives(&self, now: Time) -> bool {
        self.begins <= now && self.whereabouts != Whereabouts::Ended
    }

    pub fn order(&mut self, order: Order) {
        match order {
            Order::Stop => self.orders.stop = true,
            Order::Settings(settings) => self.orders.settings = Some(settings),
            Order::LookAgain => self.orders.look_again = true,
        }
        self.latch = true;
    }
}

impl Call {
    pub fn ids(&self) -> Vec<i64> {
        self.rows.iter().map(|(_, id)| *id).collect()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now).finish_non_exhaustive()
    }
}
