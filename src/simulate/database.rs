//! Messages, leases and notes in memory, with the guards of the real statements, and a store that can be slow or down.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::bucket::{BUCKET_COUNT_DEFAULT, Bucket};
use crate::clock::Time;
use crate::lease::{self, Lease, LeaseRow};
use crate::message::{Batch, Message};
use crate::relay::ports::{
    Acknowledged, Acquired, Failure, FailureNotes, Limits, Ownership, Renewal, Round, Store, StoreError,
};

use super::Seat;
use super::world::{Verb, World};

#[derive(Debug)]
pub(crate) struct Database {
    pub bucket_count: u32,
    /// Bytes of every message.
    pub value_size: usize,
    pub lease_duration: Duration,
    /// Whether leases can be renewed while messages are on their way.
    pub renews: bool,
    pub failures: BTreeMap<(Bucket, i64), Noted>,
    /// Reading this bucket fails.
    pub damaged: Option<Bucket>,
    /// What acquisitions were told to look at first.
    pub hints: Vec<BTreeSet<Bucket>>,
    /// Where reading began: bucket and position.
    pub read_from: Vec<(Bucket, i64)>,
    messages: BTreeSet<(Bucket, i64)>,
    leases: Vec<LeaseEntry>,
    relays: BTreeMap<String, Heartbeat>,
    hindrances: Vec<(Option<Verb>, Range<Time>, Hindrance)>,
}

#[derive(Debug, Clone)]
struct LeaseEntry {
    relay_id: Option<String>,
    token: i64,
    expires_at: Time,
}

#[derive(Debug)]
struct Heartbeat {
    last_seen: Time,
    stopped: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Noted {
    pub attempts: u32,
    error: String,
    next_try_at: Time,
}

/// How a commit is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ring {
    /// By the bell of the bucket.
    Bucket,
    /// By the bell that names no bucket.
    Unknown,
    /// Not at all.
    Silent,
}

/// What can go wrong with a call of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Hindrance {
    /// It waits before it takes effect, and the answer takes a while after it.
    Slow { before: Duration, after: Duration },
    /// It fails.
    Fails(Failing),
    /// The store is gone.
    Gone,
    /// It says that trying again would not help.
    Misconfigured,
    /// It is cancelled after this long, without effect.
    Interrupted { after: Duration },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failing {
    BeforeEffect,
    /// Only the answer is lost.
    AfterEffect,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            bucket_count: BUCKET_COUNT_DEFAULT,
            value_size: 10,
            lease_duration: Duration::ZERO,
            renews: true,
            failures: BTreeMap::new(),
            damaged: None,
            hints: Vec::new(),
            read_from: Vec::new(),
            messages: BTreeSet::new(),
            leases: Vec::new(),
            relays: BTreeMap::new(),
            hindrances: Vec::new(),
        }
    }
}

impl Database {
    pub(super) fn seed(&mut self, lease_duration: Duration) {
        let expires_at = Time::since_zero(Duration::ZERO);
        self.lease_duration = lease_duration;
        self.leases = vec![LeaseEntry { relay_id: None, token: 0, expires_at }; self.bucket_count as usize];
    }

    /// Calls of this kind that begin in this time are hindered.
    pub fn hinder(&mut self, verb: Verb, when: Range<Time>, hindrance: Hindrance) {
        self.hindrances.push((Some(verb), when, hindrance));
    }

    /// Every call that begins in this time fails.
    pub fn down(&mut self, when: Range<Time>) {
        self.hindrances.push((None, when, Hindrance::Fails(Failing::BeforeEffect)));
    }

    fn hindrance(&self, verb: Verb, now: Time) -> Option<Hindrance> {
        let hinders = |(of, when, _): &&(Option<Verb>, Range<Time>, Hindrance)| {
            of.is_none_or(|of| of == verb) && when.contains(&now)
        };
        self.hindrances.iter().find(hinders).map(|(_, _, hindrance)| *hindrance)
    }

    /// Ids of the bucket's rows.
    pub fn rows(&self, bucket: Bucket) -> Vec<i64> {
        self.messages.range((bucket, i64::MIN)..=(bucket, i64::MAX)).map(|(_, id)| *id).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The buckets of the leases that name this relay, expired or not.
    pub fn held_by(&self, relay: &str) -> BTreeSet<Bucket> {
        (0..).zip(&self.leases).filter(|(_, lease)| lease.relay_id.as_deref() == Some(relay)).map(|(b, _)| b).collect()
    }

    /// Tokens of all leases: they grow at every change of owner.
    pub fn tokens(&self) -> Vec<i64> {
        self.leases.iter().map(|lease| lease.token).collect()
    }

    /// Whether this relay's lease of the bucket lasts.
    pub(super) fn is_owner(&self, relay: &str, bucket: Bucket, now: Time) -> bool {
        let lease = &self.leases[bucket as usize];
        lease.relay_id.as_deref() == Some(relay) && lease.expires_at > now
    }

    /// An operator takes the message away, and what is noted of it.
    pub fn skip(&mut self, bucket: Bucket, id: i64) {
        self.messages.remove(&(bucket, id));
        self.failures.remove(&(bucket, id));
    }

    /// Somebody whom nobody knows takes the bucket for the duration of a lease, whoever had it.
    pub fn steal(&mut self, bucket: Bucket, now: Time) {
        let expires_at = now + self.lease_duration;
        let lease = &mut self.leases[bucket as usize];
        *lease = LeaseEntry { relay_id: Some("stranger".to_owned()), token: lease.token + 1, expires_at };
    }

    fn named(&mut self, relay: &str, lease: Lease) -> Option<&mut LeaseEntry> {
        let entry = &mut self.leases[lease.bucket as usize];
        (entry.relay_id.as_deref() == Some(relay) && entry.token == lease.token).then_some(entry)
    }

    /// Whether it was recorded: a relay marked as stopped stays so.
    fn heartbeat(&mut self, relay: &str, now: Time) -> bool {
        let row = self.relays.entry(relay.to_owned()).or_insert(Heartbeat { last_seen: now, stopped: false });
        if !row.stopped {
            row.last_seen = now;
        }
        !row.stopped
    }

    fn acquire(&mut self, relay: &str, round: Round<'_>, now: Time) -> Acquired {
        let alive = self.heartbeat(relay, now);
        let Round { busy, lease_duration: duration, previous } = round;
        self.hints.push(previous.clone());
        assert!(self.renews || busy.is_empty(), "{relay} acquires while {busy:?} are busy and nobody renews");
        let active: BTreeSet<&str> = self
            .relays
            .iter()
            .filter(|(_, row)| !row.stopped && row.last_seen + duration > now)
            .map(|(id, _)| id.as_str())
            .collect();
        let rows: Vec<LeaseRow> = (0..)
            .zip(&self.leases)
            .map(|(bucket, lease)| LeaseRow {
                bucket,
                relay_id: lease.relay_id.clone(),
                unexpired: lease.expires_at > now,
            })
            .collect();
        let plan = lease::plan(self.bucket_count, &rows, &active, relay);
        let (leaving, hand_back): (BTreeSet<_>, BTreeSet<_>) =
            plan.hand_back.into_iter().partition(|bucket| busy.contains(bucket));
        for bucket in plan.keep.iter().chain(&leaving) {
            let lease = &mut self.leases[*bucket as usize];
            lease.expires_at = lease.expires_at.max(now + duration);
        }
        for bucket in &hand_back {
            self.free(*bucket, now);
        }
        for bucket in plan.claim.into_iter().filter(|_| alive) {
            let lease = &mut self.leases[bucket as usize];
            if lease.relay_id.is_none() || lease.expires_at <= now {
                lease.relay_id = Some(relay.to_owned());
                lease.token += 1;
                lease.expires_at = now + duration;
            }
        }
        let lease = |bucket: Bucket| Lease { bucket, token: self.leases[bucket as usize].token };
        let leases = self.held_by(relay).into_iter().map(lease).collect();
        Acquired { leases, leaving, freed: !hand_back.is_empty(), distant: plan.distant }
    }

    fn free(&mut self, bucket: Bucket, now: Time) {
        let lease = &mut self.leases[bucket as usize];
        lease.relay_id = None;
        lease.expires_at = now;
    }

    fn renew(&mut self, relay: &str, leases: &[Lease], duration: Duration, now: Time) -> bool {
        let lasting = |lease: &Lease| {
            let entry = &self.leases[lease.bucket as usize];
            self.is_owner(relay, lease.bucket, now) && entry.token == lease.token
        };
        if !leases.iter().all(lasting) {
            return false;
        }
        let expires_at = now + duration;
        for lease in leases {
            let entry = &mut self.leases[lease.bucket as usize];
            entry.expires_at = entry.expires_at.max(expires_at);
        }
        self.heartbeat(relay, now);
        true
    }

    fn acknowledge(&mut self, relay: &str, one: &Acknowledged<'_>) -> bool {
        let holds = self.named(relay, one.lease).is_some();
        if holds {
            let bucket = one.lease.bucket;
            for id in one.batch.ids(one.len) {
                self.messages.remove(&(bucket, id));
            }
            if one.ends_failure {
                let last = one.batch.id(one.len - 1);
                self.failures.retain(|(of, id), _| *of != bucket || *id > last);
            }
        }
        holds
    }
}

impl World {
    /// Rows are committed now.
    pub fn commit(&mut self, bucket: Bucket, ids: impl IntoIterator<Item = i64>, ring: Ring) {
        for id in ids {
            self.database.messages.insert((bucket, id));
            if ring == Ring::Bucket {
                let bell = self.bells.entry(bucket).or_insert(id);
                *bell = id.min(*bell);
            }
        }
        for actor in &mut self.actors {
            match ring {
                Ring::Bucket => actor.latch |= actor.listening.contains(&bucket),
                Ring::Unknown => (actor.unknown, actor.latch) = (true, true),
                Ring::Silent => {}
            }
        }
    }

    /// Somebody else takes the bucket, and the relay that holds it does not know.
    pub fn steal(&mut self, bucket: Bucket) {
        self.database.steal(bucket, self.now);
    }
}

impl Seat<'_> {
    /// One call of the store, with what hinders it.
    fn call<T>(
        &self,
        verb: Verb,
        effect: impl FnOnce(&mut World, &str) -> (T, Vec<(Bucket, i64)>),
    ) -> Result<T, StoreError> {
        let hindrance = {
            let world = self.world();
            world.database.hindrance(verb, world.now)
        };
        if let Some(Hindrance::Slow { before, .. } | Hindrance::Interrupted { after: before }) = hindrance {
            self.be_busy(before);
        }
        let mut world = self.world();
        let failed = Err(StoreError::Retry("the store is down".to_owned()));
        let answer = match hindrance {
            Some(Hindrance::Gone) => Err(StoreError::Leave("the store is gone".to_owned())),
            Some(Hindrance::Interrupted { .. }) => Err(StoreError::Interrupted),
            Some(Hindrance::Misconfigured) => Err(StoreError::Misconfigured("no bucket fits".to_owned())),
            Some(Hindrance::Fails(Failing::BeforeEffect)) => failed,
            _ => {
                let relay = world.actors[self.me].id.clone();
                let (answer, rows) = effect(&mut world, &relay);
                let lost = matches!(hindrance, Some(Hindrance::Fails(Failing::AfterEffect)));
                world.record(self.me, verb, rows, !lost);
                drop(world);
                if let Some(Hindrance::Slow { after, .. }) = hindrance {
                    self.be_busy(after);
                }
                return if lost { failed } else { Ok(answer) };
            }
        };
        world.record(self.me, verb, Vec::new(), false);
        answer
    }
}

fn named(leases: &[Lease]) -> Vec<(Bucket, i64)> {
    leases.iter().map(|lease| (lease.bucket, lease.token)).collect()
}

impl Store for Seat<'_> {
    fn acquire(&mut self, round: Round<'_>) -> Result<Acquired, StoreError> {
        self.call(Verb::Acquire, |world, relay| {
            let acquired = world.database.acquire(relay, round, world.now);
            let rows = named(&acquired.leases);
            (acquired, rows)
        })
    }

    fn pending(&mut self, buckets: &[Bucket]) -> Result<Vec<Bucket>, StoreError> {
        self.call(Verb::Pending, |world, _| {
            let pending = buckets.iter().copied().filter(|bucket| !world.database.rows(*bucket).is_empty()).collect();
            (pending, Vec::new())
        })
    }

    fn fetch(&mut self, bucket: Bucket, after: i64, limits: Limits, batch: &mut Batch) -> Result<bool, StoreError> {
        self.call(Verb::Fetch, |world, _| {
            let database = &mut world.database;
            database.read_from.push((bucket, after));
            if database.damaged == Some(bucket) {
                return (Err(StoreError::Retry("a page is invalid".to_owned())), vec![(bucket, after)]);
            }
            let value = vec![0; database.value_size];
            let mut more = false;
            for (_, id) in database.messages.range((bucket, after + 1)..=(bucket, i64::MAX)) {
                if batch.len() >= limits.rows || batch.bytes() >= limits.bytes {
                    more = true;
                    break;
                }
                batch.push(&Message {
                    id: *id,
                    topic: "events",
                    // So that the broker sees which bucket a row is of.
                    partition: Some(bucket as i32),
                    key: None,
                    value: Some(&value),
                    headers: None,
                    message_id: [0; 16],
                    handle: &[],
                });
            }
            (Ok(more), batch.ids(batch.len()).map(|id| (bucket, id)).collect())
        })?
    }

    fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<bool>, StoreError> {
        self.call(Verb::Acknowledge, |world, relay| {
            let mut rows = Vec::new();
            let removed = acknowledged.iter().map(|one| {
                rows.extend(one.batch.ids(one.len).map(|id| (one.lease.bucket, id)));
                world.database.acknowledge(relay, one)
            });
            let removed = removed.collect();
            for row in &rows {
                assert!(world.broker.has(*row), "{row:?} is removed, but the broker does not have it");
            }
            (removed, rows)
        })
    }

    fn renewal(&mut self) -> Option<&mut dyn Renewal> {
        let renews = self.world().database.renews;
        if renews { Some(self) } else { None }
    }

    fn ownership(&mut self) -> Option<&mut dyn Ownership> {
        Some(self)
    }

    fn failure_notes(&mut self) -> Option<&mut dyn FailureNotes> {
        Some(self)
    }
}

impl Renewal for Seat<'_> {
    fn renew(&mut self, leases: &[Lease], duration: Duration) -> Result<bool, StoreError> {
        self.call(Verb::Renew, |world, relay| (world.database.renew(relay, leases, duration, world.now), named(leases)))
    }

    fn hand_back(&mut self, leases: &[Lease]) -> Result<(), StoreError> {
        self.call(Verb::HandBack, |world, relay| {
            for lease in leases {
                if world.database.named(relay, *lease).is_some() {
                    world.database.free(lease.bucket, world.now);
                }
            }
            ((), named(leases))
        })
    }
}

impl FailureNotes for Seat<'_> {
    fn note_failure(&mut self, failure: &Failure) -> Result<(), StoreError> {
        self.call(Verb::NoteFailure, |world, _| {
            let next_try_at = world.now + failure.wait;
            let noted = Noted { attempts: failure.attempts, error: failure.error.clone(), next_try_at };
            let row = (failure.bucket, failure.id);
            world.database.failures.insert(row, noted);
            ((), vec![row])
        })
    }

    fn failures(&mut self, buckets: &[Bucket]) -> Result<Vec<Failure>, StoreError> {
        self.call(Verb::Failures, |world, _| {
            let database = &world.database;
            let failures = buckets.iter().filter_map(|bucket| {
                let mut notes = database.failures.range((*bucket, 0)..=(*bucket, i64::MAX));
                let (&(bucket, id), noted) = notes.find(|(place, _)| database.messages.contains(place))?;
                let wait = noted.next_try_at.since(world.now);
                Some(Failure { bucket, id, attempts: noted.attempts, error: noted.error.clone(), wait })
            });
            (failures.collect(), Vec::new())
        })
    }
}

impl Ownership for Seat<'_> {
    fn release(&mut self, _previous: &BTreeSet<Bucket>) -> Result<(), StoreError> {
        self.call(Verb::Release, |world, relay| {
            if let Some(row) = world.database.relays.get_mut(relay) {
                row.stopped = true;
            }
            let held = world.database.held_by(relay);
            for bucket in &held {
                world.database.free(*bucket, world.now);
            }
            let waiting = world.broker_has_work_of(relay);
            assert!(!waiting, "{relay} releases while its client may still publish");
            ((), held.into_iter().map(|bucket| (bucket, 0)).collect())
        })
    }
}
