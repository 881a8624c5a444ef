//! The clock, what is to happen when, who has the turn, and a journal of what the relays did.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::relay::Ended;
use crate::relay::ports::{Order, Wait};
use crate::settings::Settings;

use super::broker::{Broker, Client};
use super::database::Database;

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
    pub(super) actors: Vec<Actor>,
    /// Who had the turn last.
    turn: usize,
    events: BTreeMap<(Time, u64), Event>,
    next_event: u64,
    steps: usize,
}

type Event = Box<dyn FnOnce(&mut World)>;

/// A relay as the world sees it.
#[derive(Debug)]
pub(super) struct Actor {
    pub id: String,
    pub whereabouts: Whereabouts,
    /// Something has happened since it rested last.
    pub latch: bool,
    pub listening: BTreeSet<Bucket>,
    pub unknown: bool,
    pub orders: Orders,
    pub client: Client,
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
    NoteFailure,
    Failures,
    Release,
    Submit,
    Purge,
    CallPeers,
}

impl Verb {
    pub fn is_of_the_store(self) -> bool {
        !matches!(self, Verb::Submit | Verb::Purge | Verb::CallPeers)
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
            actors: Vec::new(),
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
            listening: BTreeSet::new(),
            unknown: false,
            orders: Orders::default(),
            client: Client::default(),
        });
    }

    pub(super) fn leave(&mut self, actor: usize, ended: Ended) {
        let actor = &mut self.actors[actor];
        actor.whereabouts = Whereabouts::Ended;
        self.ended.insert(actor.id.clone(), (self.now, ended));
    }

    pub fn schedule(&mut self, time: Time, event: impl FnOnce(&mut World) + 'static) {
        self.events.insert((time, self.next_event), Box::new(event));
        self.next_event += 1;
    }

    /// Lets time go on to whatever is next, and names the relay that it concerns; none when all have ended.
    pub(super) fn next_turn(&mut self) -> Option<usize> {
        while self.actors.iter().any(|actor| actor.whereabouts != Whereabouts::Ended) {
            while let Some(event) = self.events.first_entry().filter(|event| event.key().0 <= self.now) {
                event.remove()(self);
            }
            // In turn, so that a relay which never rests does not hide the others.
            let ready = |actor: &usize| self.actors[*actor].due(self.now).is_some_and(|due| due <= self.now);
            let mut in_turn = (self.turn + 1..self.actors.len()).chain(0..self.actors.len());
            if let Some(next) = in_turn.find(ready) {
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
        assert!(self.steps < STEPS_MAX, "a relay is busy for ever at {:?}: {:?}", self.now, self.rests.last());
    }

    pub(super) fn record(&mut self, relay: usize, verb: Verb, rows: Vec<(Bucket, i64)>, answered: bool) {
        self.step();
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
        self.database.lease_duration = settings.lease.duration;
        for actor in &mut self.actors {
            actor.order(Order::Settings(Box::new(settings.clone())));
        }
    }
}

impl Actor {
    /// When it may run next.
    fn due(&self, now: Time) -> Option<Time> {
        match self.whereabouts {
            Whereabouts::Resting(_) if self.latch => Some(now),
            Whereabouts::Busy(until) | Whereabouts::Resting(until) => Some(until),
            Whereabouts::Ended => None,
        }
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
