//! One run: a plan is carried out, and what came of it.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::policy::TopicRule;
use crate::relay::Ended;
use crate::relay::ports::{Order, Round};

use super::broker::Trouble;
use super::plan::{Fault, Plan, What};
use super::truth::{Breach, Cause, Promise, TOPICS, Truth};
use super::world::{Chance, PlanTimes, Refusal, Whereabouts, World};

/// What a run has shown.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub breach: Option<Breach>,
    /// The same for every run of the same plan.
    pub hash: u64,
    pub trace: Vec<String>,
    pub coverage: BTreeMap<&'static str, u64>,
}

/// Between the end of a process and the next one in its place; longer with each.
const RESTART: Duration = Duration::from_millis(50);
const RESTART_MOST: Duration = Duration::from_secs(1);

/// How often an operator looks for parked messages, once faults have ended.
const OPERATOR_LOOKS: Duration = Duration::from_secs(2);

/// Between two attempts to change the bucket count.
const CHANGE_RETRY: Duration = Duration::from_millis(5);

/// Carries out a plan.
pub(crate) fn run(plan: &Plan, traced: bool) -> Outcome {
    let mut world = World::new();
    world.truth = Some(Truth::new(plan.most_rows()));
    world.trace.lines = traced.then(Vec::new);
    world.prepare(plan);
    let world = Rc::new(RefCell::new(world));
    let life = panic::catch_unwind(AssertUnwindSafe(|| super::play(&world)));
    let mut world = world.borrow_mut();
    if let Err(panic) = life {
        world.breach(Promise::NoPanic, words_of(&*panic));
    }
    Outcome {
        breach: world.breach.take(),
        hash: world.trace.hash(),
        trace: world.trace.lines.take().unwrap_or_default(),
        coverage: mem::take(&mut world.coverage),
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().cloned();
    words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned())).unwrap_or_default()
}

impl World {
    fn prepare(&mut self, plan: &Plan) {
        self.chance = Some(Chance { random: Rng::with_seed(plan.seed), latency: plan.latency, calm: plan.calm });
        self.plan_times = Some(PlanTimes {
            settled: plan.settled(),
            patience: plan.patience(),
            beside_failures: plan.beside_failures(),
        });
        self.database.bucket_count = plan.buckets;
        self.database.renews = plan.renews;
        self.database.rounds_in_turn = plan.rounds_in_turn;
        self.database.value_size = 20;
        self.database.seed(plan.settings.lease.duration);
        self.settings = plan.settings.clone();
        for (topic, policy) in TOPICS.into_iter().zip(&plan.policies) {
            let rule = TopicRule { policy: policy.clone(), ..TopicRule::default() };
            self.database.rules.insert(topic.to_owned(), rule);
        }
        self.broker.linger = plan.broker.linger;
        self.broker.delay = Duration::ZERO;
        self.broker.transit = plan.broker.transit;
        self.broker.capacity = plan.broker.capacity;
        self.broker.pipeline = plan.broker.pipeline;
        self.broker.shuffled = plan.broker.shuffled.then(|| Rng::with_seed(0));
        for begins in &plan.relays {
            self.join(*begins);
        }
        for transaction in &plan.transactions {
            self.add_transaction(transaction.clone());
        }
        for fault in &plan.faults {
            if let What::Refusal { transaction, row, by } = fault.what {
                self.refusals.push(Refusal { transaction, row, by, until: fault.at + fault.lasts });
            }
            let fault = fault.clone();
            self.schedule(fault.at, move |world| world.begin_fault(fault));
        }
        self.schedule(plan.calm, World::calm);
        self.schedule(plan.settled(), World::truth_settles);
        let faultless = plan.faults.is_empty();
        self.schedule(plan.end(), move |world| {
            world.truth_ends();
            let truth = world.truth.as_ref().expect("runs have it");
            if faultless && (truth.duplicates > 0 || truth.losses > 0) {
                let words = format!("{} duplicates, {} losses without a fault", truth.duplicates, truth.losses);
                world.breach(Promise::DuplicatesHaveACause, words);
            }
            world.stop_all();
        });
    }

    fn join(&mut self, begins: Time) {
        // Not in the order in which they come, for the order of ids decides about shares.
        let number = self.actors.len();
        let letter = char::from(b'a' + (number * 7 % 26) as u8);
        let id = format!("{letter}{number}");
        self.enter(&id, begins);
    }

    /// Faults have ended; if nobody is left, somebody comes.
    fn calm(&mut self) {
        let now = self.now;
        self.note(None, &[20], || "calm".to_owned());
        self.retry_all();
        if !self.actors.iter().any(|actor| actor.lives(now)) {
            self.join(now);
        }
    }

    /// An operator has what was refused tried again, and some of it may be parked only a moment later.
    fn retry_all(&mut self) {
        let now = self.now;
        if self.plan_times.is_some_and(|times| now >= times.settled) {
            return;
        }
        let database_now = self.database_now();
        if self.database.retry_all(database_now) {
            self.actors.iter_mut().for_each(|actor| actor.order(Order::LookAgain));
        }
        self.schedule(now + OPERATOR_LOOKS, World::retry_all);
    }

    pub(super) fn refuse_as_planned(&mut self, transaction: usize, row: usize, bucket: Bucket, id: i64) {
        let planned = self.refusals.iter().find(|refusal| refusal.transaction == transaction && refusal.row == row);
        if let Some(Refusal { by, until, .. }) = planned.copied() {
            self.broker.refuse(bucket, id, by, until);
        }
    }

    fn begin_fault(&mut self, fault: Fault) {
        let now = self.now;
        let until = now + fault.lasts;
        let relay = |number: usize, world: &World| {
            let relay = number % world.actors.len();
            world.actors[relay].lives(now).then_some(relay)
        };
        self.note(None, &[21], || format!("{:?} until {until:?}", fault.what));
        match fault.what {
            What::Store { relay: of, verb, odds, how } => {
                let of = of.map(|of| of % self.actors.len());
                self.database.hinder_some(of, verb, now..until, odds, how);
            }
            What::Damage { bucket } => {
                self.database.damaged = Some(bucket);
                self.schedule(until, |world| world.database.damaged = None);
                self.count("damaged buckets");
            }
            What::BrokerAway => {
                self.broker.away = Some(now..until);
                self.count("outages of the broker");
            }
            What::BrokerSlow { by } => {
                self.broker.delay = by.min(fault.lasts);
                self.schedule(until, |world| world.broker.delay = Duration::ZERO);
                self.count("slow brokers");
            }
            What::Refusal { .. } => {}
            What::Topic { topic, trouble } => {
                self.count(if trouble == Trouble::Silent { "silent topics" } else { "refusing topics" });
                self.trouble(TOPICS[topic], trouble, until);
            }
            What::Pause { topic } => {
                self.count("paused topics");
                self.broker.troubled.insert(TOPICS[topic]);
                self.pause(topic, true);
                self.schedule(until, move |world| world.pause(topic, false));
            }
            What::ClientReplaced { relay: number } => {
                if let Some(relay) = relay(number, self) {
                    self.replace_client(relay);
                }
            }
            What::Stop { relay: number, interrupts, straggler } => {
                if let Some(relay) = relay(number, self) {
                    self.order_stop(relay, interrupts, straggler);
                }
            }
            What::Crash { relay: number, noticed } => {
                if let Some(relay) = relay(number, self) {
                    self.count("crashes");
                    self.actors[relay].whereabouts = Whereabouts::Ended;
                    self.crashed.push(relay);
                    self.truth_marks(relay, None, Cause::Crash);
                    self.end_process(relay, noticed);
                }
            }
            What::Freeze { relay: number } => {
                if let Some(relay) = relay(number, self) {
                    self.count("frozen processes");
                    self.actors[relay].frozen = until;
                }
            }
            What::Reload { settings } => {
                self.count("reloads");
                self.reload(&settings);
            }
            What::LostCalls => {
                self.calls_heard = false;
                self.schedule(until, |world| world.calls_heard = true);
            }
            What::ClockStep { by } => {
                self.count(if by < 0 { "clocks set back" } else { "clocks set forward" });
                self.clock_set += by;
                // Somebody may see the new time well before the others.
                let relay = self.chance.as_mut().expect("it is there").random.usize(..self.actors.len());
                self.actors[relay].order(Order::LookAgain);
            }
            What::Steal { bucket } => {
                self.count("stolen leases");
                self.steal(bucket);
            }
            What::Lock { bucket } => {
                self.count("locked messages");
                self.database.locked.insert(bucket, until);
            }
            What::BucketCount { to } => self.change_bucket_count(to, until),
            What::Join => {
                self.count("joins");
                self.join(now);
            }
        }
    }

    fn pause(&mut self, topic: usize, paused: bool) {
        if let Some(rule) = self.database.rules.get_mut(TOPICS[topic]) {
            rule.paused = paused;
        }
        self.actors.iter_mut().for_each(|actor| actor.order(Order::LookAgain));
    }

    fn change_bucket_count(&mut self, to: u32, until: Time) {
        if self.some_writer() {
            if self.now < until {
                let again = self.now + CHANGE_RETRY;
                self.schedule(again, move |world| world.change_bucket_count(to, until));
            }
            return;
        }
        self.count("changes of the bucket count");
        self.note(None, &[23, u64::from(to)], || format!("from now on {to} buckets"));
        self.database.set_bucket_count(to, self.last_id());
        self.actors.iter_mut().for_each(|actor| actor.order(Order::LookAgain));
    }

    fn order_stop(&mut self, relay: usize, interrupts: bool, straggler: Option<Duration>) {
        self.count("stops");
        let actor = &mut self.actors[relay];
        actor.order(Order::Stop);
        if interrupts && actor.call.is_some() && matches!(actor.whereabouts, Whereabouts::Busy(_)) {
            actor.interrupted = true;
            actor.whereabouts = Whereabouts::Busy(self.now);
            self.count("interrupted calls");
        }
        if let Some(after) = straggler {
            let at = self.now + after;
            self.schedule(at, move |world| world.straggle(relay));
        }
    }

    /// A claim that the relay made before it stopped is carried out only now.
    fn straggle(&mut self, relay: usize) {
        if self.actors[relay].whereabouts != Whereabouts::Ended {
            return;
        }
        self.count("claims that arrive after a stop");
        let (id, now) = (self.actors[relay].id.clone(), self.database_now());
        let none = std::collections::BTreeSet::new();
        let lease_duration = self.settings.lease.duration;
        let round = Round { lease_duration, previous: &none, busy: &none };
        let _refused = self.database.acquire(&id, round, now, self.now);
        self.truth_looks_at_leases();
    }

    /// A relay's loop has come to its end.
    pub(super) fn left(&mut self, relay: usize, ended: &Ended) {
        if self.truth.is_none() {
            return;
        }
        self.note(Some(relay), &[22], || format!("ends: {ended:?}"));
        // As the launcher does: whatever a process has left behind is free at once, for the process is gone.
        if *ended == Ended::Stopped {
            self.truth_stops(relay);
        } else {
            self.truth_marks(relay, None, Cause::Stop);
        }
        self.end_process(relay, Some(Duration::ZERO));
        if *ended != Ended::Stopped {
            self.count("relays that left");
            let at = self.now + (RESTART * self.actors.len() as u32).min(RESTART_MOST);
            self.join(at);
        }
    }

    fn end_process(&mut self, relay: usize, noticed: Option<Duration>) {
        self.end_client(relay);
        self.listeners.retain(|_, listener| *listener != relay);
        if let Some(after) = noticed {
            let at = self.now + after;
            self.schedule(at, move |world| {
                let id = world.actors[relay].id.clone();
                world.database.dead.insert(id);
                if world.calls_heard {
                    world.actors.iter_mut().for_each(|actor| actor.order(Order::LookAgain));
                }
            });
        }
    }
}
