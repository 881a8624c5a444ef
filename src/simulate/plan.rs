//! What happens in one run: relays, writers, settings and faults, all of it drawn from one number.
//!
//! A plan is plain data, so that a run can be repeated, and shrunk by leaving things out (src/simulate/shrink.rs).

use std::time::Duration;

use fastrand::Rng;

use crate::clock::Time;
use crate::lease::LeaseTimes;
use crate::policy::{Patience, Policy};
use crate::settings::Settings;
use crate::window;

use super::broker::{LETTERS, Refuser, Trouble};
use super::database::{Failing, Hindrance};
use super::world::Verb;

/// One run before it begins.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Whence the scheduler and everybody's small delays are drawn.
    pub seed: u64,
    pub buckets: u32,
    /// Whether the store can renew leases.
    pub renews: bool,
    /// Whether rounds of relays follow each other.
    pub rounds_in_turn: bool,
    /// Those at the beginning.
    pub settings: Settings,
    /// Most that a call of the store takes, before its effect and again after it, when nothing hinders it.
    pub latency: Duration,
    pub broker: Broker,
    /// When relays begin.
    pub relays: Vec<Time>,
    pub transactions: Vec<Transaction>,
    pub faults: Vec<Fault>,
    /// There are no other faults than refused messages and topics with trouble.
    pub failures_only: bool,
    /// What becomes of refused messages, by topic.
    pub policies: [Policy; 2],
    /// From now on there are no faults, and everything has to settle.
    pub calm: Time,
}

/// How clients and broker behave when nothing is wrong.
#[derive(Debug, Clone)]
pub(crate) struct Broker {
    pub linger: Duration,
    /// Most from sending to the broker's log, and from there to the report.
    pub transit: Duration,
    pub capacity: usize,
    pub pipeline: usize,
    pub shuffled: bool,
}

/// A writer's transaction.
#[derive(Debug, Clone)]
pub(crate) struct Transaction {
    pub begins: Time,
    /// The key of each of its messages. It has locked them all from its beginning until it is visible.
    pub keys: Vec<u8>,
    /// From drawing its first id to the end of its work.
    pub works: Duration,
    /// From saying that it will ring to being visible, and from there to having rung.
    pub becomes_visible: Duration,
    pub rings: Duration,
    pub ends: Ends,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Its bells ring.
    Rings,
    /// The bell rings that names no bucket.
    RingsUnknown,
    /// It is prepared, and committed by somebody else this much later.
    Prepared(Duration),
    /// Its writer does not know of bells, nor does the order of its keys matter.
    Silent,
    RollsBack,
}

/// Keys from here on are those of silent writers.
pub(crate) const SILENT_KEYS: u8 = 200;

/// Something goes wrong, or merely changes.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub at: Time,
    /// None of them lasts beyond the calm.
    pub lasts: Duration,
    pub what: What,
}

/// Relays are numbered in the order in which they begin; a number beyond them starts again at the first.
#[derive(Debug, Clone)]
pub(crate) enum What {
    /// Calls of the store, of all or one kind and of all or one relay, are hindered, so many of a hundred.
    Store {
        relay: Option<usize>,
        verb: Option<Verb>,
        odds: u8,
        how: Hindrance,
    },
    /// A bucket can't be read.
    Damage {
        bucket: u32,
    },
    BrokerAway,
    BrokerSlow {
        by: Duration,
    },
    /// A message is refused.
    Refusal {
        transaction: usize,
        row: usize,
        by: Refuser,
    },
    /// A client has to be replaced: what it has sent may or may not have arrived.
    ClientReplaced {
        relay: usize,
    },
    /// An orderly stop; the call that is under way may be interrupted, and a claim of the relay may arrive after it.
    Stop {
        relay: usize,
        interrupts: bool,
        straggler: Option<Duration>,
    },
    /// The relay's process dies, and its siblings learn of that so much later, or never.
    Crash {
        relay: usize,
        noticed: Option<Duration>,
    },
    /// The relay's process stands still.
    Freeze {
        relay: usize,
    },
    Reload {
        settings: Box<Settings>,
    },
    /// Nobody hears when peers are called.
    LostCalls,
    /// The database's clock is set, by so many milliseconds.
    ClockStep {
        by: i64,
    },
    /// Somebody whom nobody knows takes a lease.
    Steal {
        bucket: u32,
    },
    /// Somebody keeps messages of a bucket locked.
    Lock {
        bucket: u32,
    },
    /// A topic has trouble.
    Topic {
        topic: usize,
        trouble: Trouble,
    },
    /// A topic is paused.
    Pause {
        topic: usize,
    },
    /// A relay joins.
    Join,
    /// The bucket count is changed, as soon as no writer is under way.
    BucketCount {
        to: u32,
    },
}

/// What a fault of the store concerns, as often as it matters.
const VERBS: [Verb; 11] = [
    Verb::Acquire,
    Verb::Acquire,
    Verb::Renew,
    Verb::Renew,
    Verb::HandBack,
    Verb::Pending,
    Verb::Fetch,
    Verb::Acknowledge,
    Verb::NoteFailures,
    Verb::Failures,
    Verb::Release,
];

/// The beginning of every run.
pub(crate) const START: Time = Time::since_zero(Duration::ZERO);

fn ms(random: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_micros(random.u64(range.start * 1000..range.end * 1000))
}

fn one_of<T: Copy>(random: &mut Rng, of: &[T]) -> T {
    of[random.usize(..of.len())]
}

fn settings(random: &mut Rng, renews: bool) -> Settings {
    let duration = ms(random, 2000..12_000);
    let renew_interval =
        duration.mul_f64(one_of(random, if renews { &[0.2, 0.33, 0.33, 0.5, 0.8, 0.9] } else { &[0.2, 0.33, 0.5] }));
    let room = duration - renew_interval;
    Settings {
        enabled: true,
        lease: LeaseTimes { duration, renew_interval },
        batch_size: one_of(random, &[1, 2, 3, 5, 500]),
        batch_bytes: one_of(random, &[1, 60, 4 << 20, 4 << 20]),
        window: window::Size::default(),
        patience: Patience {
            max_attempts: one_of(random, &[1, 2, u32::MAX]),
            park_patience: one_of(random, &[Duration::ZERO, Duration::from_secs(2)]),
        },
        poll_interval: ms(random, 300..8000),
        error_backoff: ms(random, 50..1500),
        shutdown_timeout: ms(random, 600..4000),
        max_publish_duration: (!renews).then(|| room.mul_f64(0.4 + 0.5 * random.f64())),
    }
}

impl Plan {
    /// The plan of this number.
    pub fn of(seed: u64) -> Self {
        let random = &mut Rng::with_seed(seed);
        let renews = random.u8(..3) != 0;
        let mut settings = settings(random, renews);
        settings.window.rows = [2, 3, 5].get(seed as usize % 8).copied().unwrap_or(window::ROWS_MAX);
        let calm = Time::since_zero(ms(random, 8000..30_000));
        let buckets = random.u32(1..7);
        let latency = one_of(random, if renews { &[0.0, 0.0005, 0.003, 0.01] } else { &[0.0, 0.0005, 0.002] });
        let mut broker = Broker {
            linger: ms(random, 0..8),
            transit: Duration::from_millis(one_of(random, &[1, 10, 60, 300])),
            capacity: one_of(random, &[1, 2, 3, 4, 6, 1000, 1000]),
            pipeline: one_of(random, &[1, 2, 5, 1000]),
            shuffled: random.bool(),
        };
        if let Some(budget) = settings.max_publish_duration {
            // Without a fault the promise of how long a publish takes is kept.
            broker.transit = broker.transit.min(budget / 4);
            (broker.capacity, broker.pipeline) = (1000, 1000);
        }
        let relays = (0..random.usize(1..5)).map(|i| if i == 0 { START } else { some_time(random, calm) });
        let relays: Vec<Time> = relays.collect();
        let mut plan = Self {
            seed: random.u64(..),
            buckets,
            renews,
            rounds_in_turn: random.u8(..3) != 0,
            latency: settings.lease.duration.mul_f64(latency),
            settings,
            broker,
            relays,
            transactions: Vec::new(),
            faults: Vec::new(),
            failures_only: random.u8(..8) == 0,
            policies: [Policy::ParkKey, Policy::ParkKey],
            calm,
        };
        plan.draw_transactions(random);
        let faults = if random.u8(..10) == 0 { 0 } else { random.usize(1..9) };
        for _ in 0..faults {
            let fault = plan.draw_fault(random);
            plan.faults.push(fault);
        }
        plan.draw_policies(random);
        plan
    }

    fn draw_transactions(&mut self, random: &mut Rng) {
        let keys = random.u8(1..8);
        let until = self.calm + Duration::from_secs(2);
        // Some runs have bursts, so that transactions meet.
        let burst = random.bool();
        let mut begins = START;
        for number in 0..random.usize(2..40) {
            if !burst || number % 5 == 0 {
                begins = some_time(random, until);
            }
            let ends = match random.u8(..20) {
                0..=12 => Ends::Rings,
                13 | 14 => Ends::RingsUnknown,
                15 | 16 => Ends::Prepared(ms(random, 1..3000)),
                17 => Ends::Silent,
                _ => Ends::RollsBack,
            };
            let first = if ends == Ends::Silent { SILENT_KEYS } else { 0 };
            let mut of = (0..random.usize(1..4)).map(|_| first + random.u8(..keys)).collect::<Vec<_>>();
            of.sort_unstable();
            let works = one_of(random, &[5, 50, 3000]);
            self.transactions.push(Transaction {
                begins: begins + ms(random, 0..50),
                keys: of,
                works: ms(random, 0..works),
                becomes_visible: ms(random, 0..8),
                rings: ms(random, 0..30),
                ends,
            });
        }
        // And a few when all has settled.
        let settled = self.settled();
        for number in 0..3 {
            self.transactions.push(Transaction {
                begins: settled + Duration::from_millis(500 * number),
                keys: vec![random.u8(..keys)],
                works: Duration::ZERO,
                becomes_visible: Duration::ZERO,
                rings: Duration::ZERO,
                ends: Ends::Rings,
            });
        }
    }

    fn draw_policies(&mut self, random: &mut Rng) {
        for policy in &mut self.policies {
            *policy = match random.u8(..4) {
                0 => Policy::DeadLetter(LETTERS.to_owned()),
                1 if !self.failures_only => Policy::Block,
                _ => Policy::ParkKey,
            };
        }
    }

    fn draw_fault(&self, random: &mut Rng) -> Fault {
        // Mostly while there is something to do: a transaction has just ended, or is about to.
        let transaction = &self.transactions[random.usize(..self.transactions.len())];
        let busy = transaction.begins + transaction.works + ms(random, 0..120);
        let at = if random.u8(..4) != 0 && busy < self.calm { busy } else { some_time(random, self.calm) };
        let longest = self.settings.lease.duration * 2;
        let lasts = match random.u8(..3) {
            0 => ms(random, 0..300),
            1 => longest.mul_f64(0.5 * random.f64()),
            _ => longest.mul_f64(random.f64()),
        };
        let lasts = lasts.min(self.calm - at);
        let relay = random.usize(..4);
        let what = match if self.failures_only { random.u8(50..60) } else { random.u8(..54) } {
            50 | 51 => What::Topic {
                topic: random.usize(..2),
                trouble: if random.bool() { Trouble::Silent } else { Trouble::Refuses },
            },
            52 => What::Pause { topic: random.usize(..2) },
            53..=59 => What::Refusal {
                transaction: random.usize(..self.transactions.len()),
                row: random.usize(..3),
                by: if random.bool() { Refuser::Broker } else { Refuser::Client },
            },
            0..=11 => What::Store {
                relay: random.bool().then_some(relay),
                verb: (random.u8(..4) != 0).then(|| one_of(random, &VERBS)),
                odds: one_of(random, &[20, 60, 100]),
                how: self.draw_hindrance(random),
            },
            12 => What::Damage { bucket: random.u32(..self.buckets) },
            13 | 14 => What::BrokerAway,
            15 | 16 => What::BrokerSlow { by: longest.mul_f64(random.f64()) },
            17..=22 => What::Refusal {
                transaction: random.usize(..self.transactions.len()),
                row: random.usize(..3),
                by: if random.bool() { Refuser::Broker } else { Refuser::Client },
            },
            23..=26 => {
                What::Stop { relay, interrupts: random.bool(), straggler: random.bool().then(|| ms(random, 0..2000)) }
            }
            27..=29 => What::Crash { relay, noticed: (random.u8(..3) != 0).then(|| ms(random, 0..500)) },
            30 | 31 => What::Freeze { relay },
            32 => {
                let mut settings = settings(random, self.renews);
                settings.window = self.settings.window;
                // Times stay below those for which the calm has room.
                settings.lease.duration = settings.lease.duration.min(self.settings.lease.duration);
                settings.lease.renew_interval = settings.lease.duration.mul_f64(0.3);
                settings.max_publish_duration = settings.max_publish_duration.map(|_| settings.lease.duration / 2);
                What::Reload { settings: Box::new(settings) }
            }
            33 => What::LostCalls,
            34..=37 => What::ClientReplaced { relay },
            38..=40 => What::ClockStep { by: random.i64(-8000..14_000) },
            41..=43 => What::BucketCount { to: random.u32(1..9) },
            44 | 45 => What::Steal { bucket: random.u32(..self.buckets) },
            46 | 47 => What::Lock { bucket: random.u32(..self.buckets) },
            _ => What::Join,
        };
        Fault { at, lasts, what }
    }

    fn draw_hindrance(&self, random: &mut Rng) -> Hindrance {
        let longest = self.settings.lease.duration.mul_f64(one_of(random, &[0.05, 0.5, 1.3, 1.3]));
        match random.u8(..12) {
            0 | 1 => Hindrance::Fails(Failing::BeforeEffect),
            2 | 3 => Hindrance::Fails(Failing::AfterEffect),
            4 => Hindrance::Gone,
            5 | 6 => Hindrance::Slow { before: longest.mul_f64(random.f64()), after: Duration::ZERO },
            7..=9 => Hindrance::Slow { before: Duration::ZERO, after: longest.mul_f64(random.f64()) },
            _ => Hindrance::Slow { before: longest.mul_f64(random.f64()), after: longest.mul_f64(random.f64()) },
        }
    }

    /// When the last traces of the faults must be over: leases of those who vanished have run out, whoever waited after a
    /// failure has come back, three rounds have been made, and looks that were put off because earlier ones took long.
    pub fn settled(&self) -> Time {
        let set_back = self.faults.iter().map(|fault| match fault.what {
            What::ClockStep { by } => (-by).max(0).unsigned_abs(),
            _ => 0,
        });
        self.calm
            + self.settings.lease.duration * 2
            + self.longest(|settings| settings.lease.renew_interval) * 5
            + self.longest(|settings| settings.poll_interval) * 5
            + self.longest(|settings| settings.max_publish_duration.unwrap_or_default())
            + self.longest(|settings| settings.error_backoff)
            + Duration::from_millis(set_back.sum())
            + self.drains()
            + Duration::from_secs(2)
    }

    /// How long a message may wait that has nothing to do with refused ones and troubled topics, if there are no other faults:
    /// a topic is taken for silent only after a while.
    pub fn beside_failures(&self) -> Option<Duration> {
        let reads = self.settings.lease.duration + Duration::from_secs(20);
        self.failures_only.then(|| self.patience() + reads + self.drains() * 2)
    }

    /// How long it takes to publish everything one by one, if it has to be.
    fn drains(&self) -> Duration {
        let rows: usize = self.transactions.iter().map(|transaction| transaction.keys.len()).sum();
        (self.broker.linger + self.broker.transit + self.latency * 4) * rows as u32
    }

    fn longest(&self, of: impl Fn(&Settings) -> Duration) -> Duration {
        self.all_settings().map(of).max().unwrap_or_default()
    }

    /// Most rows that a relay may have with its client: the window and one batch.
    pub fn most_rows(&self) -> usize {
        self.all_settings().map(|settings| settings.window.rows + settings.batch_size - 1).max().unwrap_or_default()
    }

    fn all_settings(&self) -> impl Iterator<Item = &Settings> {
        let reloads = self.faults.iter().filter_map(|fault| match &fault.what {
            What::Reload { settings } => Some(&**settings),
            _ => None,
        });
        reloads.chain([&self.settings])
    }

    /// Within this time a message is published when nothing is wrong.
    pub fn patience(&self) -> Duration {
        self.longest(|settings| settings.poll_interval) + Duration::from_secs(3)
    }

    /// When the run ends.
    pub fn end(&self) -> Time {
        self.settled() + Duration::from_secs(2) + self.patience()
    }
}

fn some_time(random: &mut Rng, before: Time) -> Time {
    START + before.since(START).mul_f64(random.f64())
}
