//! Messages, leases and notes in memory, with the guards of the real statements, and a store that can be slow or down.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::broken::{Rule, broken};
use crate::bucket::{BUCKET_COUNT_DEFAULT, Bucket};
use crate::clock::Time;
use crate::fence;
use crate::lease::{self, Lease, LeaseRow, Plan};
use crate::message::{Batch, Message};
use crate::policy::TopicRule;
use crate::relay::ports::{
    Acknowledged, Acquired, Failure, FailureNote, FailureNotes, Limits, Ownership, Removed, Renewal, Round, Store,
    StoreError, TopicRules,
};

use super::Seat;
use super::truth::{Promise, Serial};
use super::world::{Verb, World};

#[derive(Debug)]
pub(crate) struct Database {
    pub bucket_count: u32,
    /// Bytes of every message.
    pub value_size: usize,
    pub lease_duration: Duration,
    /// Whether leases can be renewed while messages are on their way.
    pub renews: bool,
    /// Whether rounds of relays follow each other; if not, only the guards keep them apart.
    pub(super) rounds_in_turn: bool,
    pub failures: BTreeMap<(Bucket, i64), Noted>,
    /// Until when somebody keeps messages of a bucket locked.
    pub locked: BTreeMap<Bucket, Time>,
    /// Reading this bucket fails.
    pub damaged: Option<Bucket>,
    /// Rows that are there, but that no fetch gives.
    pub hidden: BTreeSet<(Bucket, i64)>,
    /// What acquisitions were told to look at first.
    pub hints: Vec<BTreeSet<Bucket>>,
    /// Where reading began: bucket and position.
    pub read_from: Vec<(Bucket, i64)>,
    /// Changes of the bucket count whose old messages are not all published.
    pub(super) fences: Vec<fence::Change>,
    /// Relays that the siblings know to be dead.
    pub(super) dead: BTreeSet<String>,
    /// What was done to leases since somebody looked last.
    pub(super) changes: Vec<Change>,
    messages: BTreeMap<(Bucket, i64), Serial>,
    /// What operators have laid down for topics.
    pub rules: BTreeMap<String, TopicRule>,
    /// Topic and key of those that have others than usual.
    labels: BTreeMap<(Bucket, i64), Label>,
    leases: Vec<LeaseEntry>,
    relays: BTreeMap<String, Heartbeat>,
    hindrances: Vec<Hindering>,
}

#[derive(Debug, Clone)]
pub(super) struct LeaseEntry {
    pub relay_id: Option<String>,
    pub token: i64,
    /// On the database's clock.
    pub expires_at: Time,
    /// When that would be if nobody set the clock.
    pub real_until: Time,
    /// Who had it before, were not asked, and until when they can't know.
    disputed: Vec<(String, Time)>,
}

/// A lease before and after a statement.
#[derive(Debug)]
pub(super) struct Change {
    pub bucket: Bucket,
    pub before: LeaseEntry,
    pub after: LeaseEntry,
    pub by: Option<String>,
    pub why: Why,
}

/// Which statement changed a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Claim,
    Keep,
    Renew,
    HandBack,
    Release,
    /// Its relay is dead.
    Dead,
    /// Its bucket is not used any more.
    Unused,
    /// Somebody else took it.
    Steal,
}

#[derive(Debug)]
struct Hindering {
    relay: Option<usize>,
    verb: Option<Verb>,
    when: Range<Time>,
    odds: u8,
    how: Hindrance,
}

#[derive(Debug)]
struct Heartbeat {
    last_seen: Time,
    stopped: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Noted {
    pub failure: Failure,
    /// On the database's clock.
    first_failed_at: Time,
    pub next_try_at: Option<Time>,
}

/// Topic and key of a message. Without a key its bucket, which it names as its partition, is its unit of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label {
    pub topic: &'static str,
    pub key: Option<u8>,
}

impl Default for Label {
    fn default() -> Self {
        Self { topic: "events", key: None }
    }
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
            rounds_in_turn: true,
            failures: BTreeMap::new(),
            locked: BTreeMap::new(),
            damaged: None,
            hidden: BTreeSet::new(),
            hints: Vec::new(),
            read_from: Vec::new(),
            fences: Vec::new(),
            dead: BTreeSet::new(),
            changes: Vec::new(),
            messages: BTreeMap::new(),
            rules: BTreeMap::new(),
            labels: BTreeMap::new(),
            leases: Vec::new(),
            relays: BTreeMap::new(),
            hindrances: Vec::new(),
        }
    }
}

/// Who takes leases without asking.
const STRANGER: &str = "stranger";

impl LeaseEntry {
    /// Its owner will be another one without having been asked.
    fn dispute(&mut self) {
        if let Some(owner) = self.relay_id.take().filter(|owner| owner != STRANGER) {
            self.disputed.push((owner, self.real_until));
        }
    }
}

impl Database {
    pub(super) fn seed(&mut self, lease_duration: Duration) {
        let never = Time::since_zero(Duration::ZERO);
        self.lease_duration = lease_duration;
        let free = LeaseEntry { relay_id: None, token: 0, expires_at: never, real_until: never, disputed: Vec::new() };
        self.leases = vec![free; self.bucket_count as usize];
    }

    /// Messages from now on have buckets of this count. No writer may be under way.
    pub(super) fn set_bucket_count(&mut self, bucket_count: u32, last_id: i64) {
        if self.fences.last().is_none_or(|last| last.fence_id < last_id) {
            self.fences.push(fence::Change { fence_id: last_id, bucket_count: self.bucket_count });
        }
        self.bucket_count = bucket_count;
    }

    fn undrained(&self) -> &[fence::Change] {
        let left = |buckets, fence_id| self.messages.keys().any(|(bucket, id)| *bucket < buckets && *id <= fence_id);
        fence::undrained(&self.fences, left)
    }

    /// How many buckets are leased now. Forgets what is drained, makes leases that lack, and frees those beyond.
    fn leased_buckets(&mut self, now: Time) -> u32 {
        self.fences = self.undrained().to_vec();
        let count = fence::leased_buckets(self.bucket_count, &self.fences);
        let never = Time::since_zero(Duration::ZERO);
        while self.leases.len() < count as usize {
            self.leases.push(LeaseEntry {
                relay_id: None,
                token: 0,
                expires_at: never,
                real_until: never,
                disputed: Vec::new(),
            });
        }
        for bucket in count..self.leases.len() as u32 {
            if self.leases[bucket as usize].relay_id.is_some() {
                self.free(bucket, None, Why::Unused, now);
            }
        }
        count
    }

    /// Calls of this kind that begin in this time are hindered.
    pub fn hinder(&mut self, verb: Verb, when: Range<Time>, hindrance: Hindrance) {
        self.hinder_some(None, Some(verb), when, 100, hindrance);
    }

    /// Every call that begins in this time fails.
    pub fn down(&mut self, when: Range<Time>) {
        self.hinder_some(None, None, when, 100, Hindrance::Fails(Failing::BeforeEffect));
    }

    /// So many of a hundred calls of this kind, by this relay, that begin in this time.
    pub(super) fn hinder_some(
        &mut self,
        relay: Option<usize>,
        verb: Option<Verb>,
        when: Range<Time>,
        odds: u8,
        how: Hindrance,
    ) {
        self.hindrances.push(Hindering { relay, verb, when, odds, how });
    }

    fn hindrance(&self, relay: usize, verb: Verb, now: Time, mut chance: impl FnMut() -> u8) -> Option<Hindrance> {
        let hinders = |of: &&Hindering| {
            of.relay.is_none_or(|of| of == relay)
                && of.verb.is_none_or(|of| of == verb)
                && of.when.contains(&now)
                && (of.odds >= 100 || chance() < of.odds)
        };
        self.hindrances.iter().find(hinders).map(|of| of.how)
    }

    /// Ids of the bucket's rows.
    pub fn rows(&self, bucket: Bucket) -> Vec<i64> {
        self.messages.range((bucket, i64::MIN)..=(bucket, i64::MAX)).map(|((_, id), _)| *id).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn insert(&mut self, bucket: Bucket, id: i64, serial: Serial) {
        self.messages.insert((bucket, id), serial);
    }

    /// From now on the message of this id has topic and key.
    pub fn label(&mut self, bucket: Bucket, id: i64, label: Label) {
        self.labels.insert((bucket, id), label);
    }

    pub(super) fn label_of(&self, row: (Bucket, i64)) -> Label {
        self.labels.get(&row).copied().unwrap_or_default()
    }

    /// An operator wants everything that is parked to be tried again now. Whether anything is.
    pub fn retry_all(&mut self, now: Time) -> bool {
        let parked: Vec<_> = self.failures.values_mut().filter(|noted| noted.next_try_at.is_none()).collect();
        let any = !parked.is_empty();
        for noted in parked {
            noted.next_try_at = Some(now);
            noted.failure.attempts = 0;
        }
        any
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

    /// Whom the lease names.
    pub(super) fn owner(&self, bucket: Bucket) -> Option<&str> {
        self.leases[bucket as usize].relay_id.as_deref()
    }

    /// Whether this very lease is still the relay's, expired or not.
    pub(super) fn holds(&self, relay: &str, lease: Lease) -> bool {
        let entry = &self.leases[lease.bucket as usize];
        entry.relay_id.as_deref() == Some(relay) && entry.token == lease.token
    }

    /// Whether the relay may publish the bucket, or can't know that it may not: somebody set the clock, or took the lease
    /// without asking.
    pub(super) fn may_publish(&self, relay: &str, bucket: Bucket, now: Time, real: Time) -> bool {
        let lease = &self.leases[bucket as usize];
        let names = lease.relay_id.as_deref() == Some(relay) && (lease.expires_at > now || lease.real_until > real);
        names || lease.disputed.iter().any(|(owner, until)| owner == relay && *until > real)
    }

    /// Whether the message is there.
    pub(super) fn has(&self, place: (Bucket, i64)) -> bool {
        self.messages.contains_key(&place)
    }

    /// An operator takes the message away, and what is noted of it.
    pub fn skip(&mut self, bucket: Bucket, id: i64) {
        self.messages.remove(&(bucket, id));
        self.failures.remove(&(bucket, id));
    }

    /// Somebody whom nobody knows takes the bucket for the duration of a lease, whoever had it.
    pub(super) fn steal(&mut self, bucket: Bucket, now: Time, real: Time) {
        let duration = self.lease_duration;
        self.change(bucket, None, Why::Steal, |lease| {
            lease.dispute();
            lease.relay_id = Some(STRANGER.to_owned());
            lease.token += 1;
            lease.expires_at = now + duration;
            lease.real_until = real + duration;
        });
    }

    fn change(&mut self, bucket: Bucket, by: Option<&str>, why: Why, change: impl FnOnce(&mut LeaseEntry)) {
        let lease = &mut self.leases[bucket as usize];
        let before = lease.clone();
        change(lease);
        let after = lease.clone();
        self.changes.push(Change { bucket, before, after, by: by.map(str::to_owned), why });
    }

    /// Whether it was recorded: a relay marked as stopped stays so.
    fn heartbeat(&mut self, relay: &str, now: Time) -> bool {
        let row = self.relays.entry(relay.to_owned()).or_insert(Heartbeat { last_seen: now, stopped: false });
        if !row.stopped {
            row.last_seen = row.last_seen.max(now);
        }
        !row.stopped
    }

    /// The first half of a round: what the relay means to do. None for a relay that was marked as stopped.
    fn begin_round(&mut self, relay: &str, round: Round<'_>, now: Time) -> Option<(Plan, bool)> {
        if !self.heartbeat(relay, now) && !broken(Rule::NoClaimAfterStop) {
            return None;
        }
        let duration = round.lease_duration;
        self.hints.push(round.previous.clone());
        let freed_dead = self.free_dead(now);
        let bucket_count = self.leased_buckets(now);
        let active: BTreeSet<&str> = self
            .relays
            .iter()
            .filter(|(_, row)| !row.stopped && row.last_seen + duration > now)
            .map(|(id, _)| id.as_str())
            .collect();
        let rows: Vec<LeaseRow> = (0..bucket_count)
            .zip(&self.leases)
            .map(|(bucket, lease)| LeaseRow {
                bucket,
                relay_id: lease.relay_id.clone(),
                unexpired: lease.expires_at > now,
            })
            .collect();
        Some((lease::plan(bucket_count, &rows, &active, relay), freed_dead))
    }

    /// The second half: guarded writes, which alone decide.
    fn end_round(&mut self, relay: &str, round: Round<'_>, plan: Plan, now: Time, real: Time) -> Acquired {
        let Round { busy, lease_duration: duration, .. } = round;
        let stopped = self.relays.get(relay).is_none_or(|row| row.stopped) && !broken(Rule::NoClaimAfterStop);
        let mine = |database: &Self, bucket: &Bucket| database.owner(*bucket) == Some(relay);
        let (leaving, hand_back): (BTreeSet<_>, BTreeSet<_>) =
            plan.hand_back.into_iter().filter(|bucket| mine(self, bucket)).partition(|bucket| busy.contains(bucket));
        for bucket in plan.keep.iter().chain(&leaving) {
            if mine(self, bucket) {
                self.extend(*bucket, relay, Why::Keep, duration, now, real);
            }
        }
        for bucket in &hand_back {
            self.free(*bucket, Some(relay), Why::HandBack, now);
        }
        for bucket in plan.claim.into_iter().filter(|_| !stopped) {
            let lease = &self.leases[bucket as usize];
            if lease.relay_id.is_none() || lease.expires_at <= now || broken(Rule::GuardedClaim) {
                self.change(bucket, Some(relay), Why::Claim, |lease| {
                    lease.dispute();
                    lease.relay_id = Some(relay.to_owned());
                    lease.token += i64::from(!broken(Rule::TokenGrows));
                });
                self.extend(bucket, relay, Why::Keep, duration, now, real);
            }
        }
        let lease = |bucket: Bucket| Lease { bucket, token: self.leases[bucket as usize].token };
        let leases = self.held_by(relay).into_iter().map(lease).collect();
        Acquired { leases, leaving, freed: !hand_back.is_empty(), distant: plan.distant }
    }

    /// Both halves at once.
    pub(super) fn acquire(&mut self, relay: &str, round: Round<'_>, now: Time, real: Time) -> Option<Acquired> {
        let (plan, freed) = self.begin_round(relay, round, now)?;
        let acquired = self.end_round(relay, round, plan, now, real);
        Some(Acquired { freed: acquired.freed || freed, ..acquired })
    }

    /// Leases of relays that are known to be dead need not run out.
    fn free_dead(&mut self, now: Time) -> bool {
        let mut any = false;
        for relay in self.dead.clone() {
            if let Some(row) = self.relays.get_mut(&relay) {
                row.stopped = true;
            }
            for bucket in self.held_by(&relay) {
                self.free(bucket, None, Why::Dead, now);
                any = true;
            }
        }
        any
    }

    /// Only forward: a clock that was set back does not shorten a lease.
    fn extend(&mut self, bucket: Bucket, relay: &str, why: Why, duration: Duration, now: Time, real: Time) {
        self.change(bucket, Some(relay), why, |lease| {
            let forward = if broken(Rule::OnlyForward) { now } else { lease.expires_at };
            lease.expires_at = forward.max(now + duration);
            lease.real_until = real + duration;
        });
    }

    fn free(&mut self, bucket: Bucket, by: Option<&str>, why: Why, now: Time) {
        self.change(bucket, by, why, |lease| {
            lease.relay_id = None;
            lease.expires_at = now;
        });
    }

    fn renew(&mut self, relay: &str, leases: &[Lease], duration: Duration, now: Time, real: Time) -> bool {
        let lasts = |lease: &Lease| self.is_owner(relay, lease.bucket, now) || broken(Rule::NoRevival);
        if !leases.iter().all(|lease| self.holds(relay, *lease) && lasts(lease)) {
            return false;
        }
        for lease in leases {
            self.extend(lease.bucket, relay, Why::Renew, duration, now, real);
        }
        self.heartbeat(relay, now);
        true
    }

    /// What became of it, and what was removed.
    fn acknowledge(&mut self, relay: &str, one: &Acknowledged<'_>, now: Time) -> (Removed, Vec<Serial>) {
        let mut removed = Vec::new();
        if !self.holds(relay, one.lease) && !broken(Rule::GuardedRemoval) {
            return (Removed::LeaseLost, removed);
        }
        let bucket = one.lease.bucket;
        if self.locked.get(&bucket).is_some_and(|until| now < *until) {
            return (Removed::Locked, removed);
        }
        for (id, handle) in one.batch.handles(one.len) {
            // Exactly the message that was fetched, not another that was given its id since.
            if self.messages.get(&(bucket, id)).is_some_and(|serial| serial.to_be_bytes() == handle) {
                removed.extend(self.messages.remove(&(bucket, id)));
            }
        }
        if one.ends_failure {
            one.batch.ids(one.len).for_each(|id| drop(self.failures.remove(&(bucket, id))));
        }
        (Removed::Gone, removed)
    }
}

impl World {
    /// Rows are committed now.
    pub fn commit(&mut self, bucket: Bucket, ids: impl IntoIterator<Item = i64>, ring: Ring) {
        for id in ids {
            let serial = self.database.messages.len() as Serial;
            self.database.insert(bucket, id, serial);
            if ring == Ring::Bucket {
                self.ring_bell(bucket, id);
            }
        }
        if ring == Ring::Unknown {
            self.ring_unknown();
        }
    }

    /// Something was committed of which the bucket is not known.
    pub(super) fn ring_unknown(&mut self) {
        self.actors.iter_mut().for_each(|actor| (actor.unknown, actor.latch) = (true, true));
    }

    /// Somebody else takes the bucket, and the relay that holds it does not know.
    pub fn steal(&mut self, bucket: Bucket) {
        let database_now = self.database_now();
        self.database.steal(bucket, database_now, self.now);
        self.truth_looks_at_leases();
    }
}

impl World {
    /// A call of the store begins: what hinders it.
    fn begin_call(&mut self, relay: usize, verb: Verb) -> Option<Hindrance> {
        self.truth_calls(relay, verb);
        let now = self.now;
        let hindrance = match &mut self.chance {
            Some(chance) => self.database.hindrance(relay, verb, now, || chance.random.u8(..100)),
            None => self.database.hindrance(relay, verb, now, || 0),
        };
        if let Some(hindrance) = hindrance {
            self.count(match hindrance {
                Hindrance::Slow { .. } => "slow calls of the store",
                Hindrance::Fails(Failing::BeforeEffect) => "failed calls of the store",
                Hindrance::Fails(Failing::AfterEffect) => "lost answers of the store",
                Hindrance::Gone => "relays told to leave",
                Hindrance::Misconfigured => "misconfigurations",
                Hindrance::Interrupted { .. } => "interrupted calls of the store",
            });
        }
        let actor = &mut self.actors[relay];
        actor.call = Some(verb);
        actor.hindered_in_stopping |= actor.orders.stop && verb != Verb::Release && hindrance.is_some();
        hindrance
    }
}

impl Seat<'_> {
    /// One call of the store, with what hinders it. `prepare` is what it reads first, `effect` the rest, a moment later.
    fn call_in_two<P, T>(
        &self,
        verb: Verb,
        prepare: impl FnOnce(&mut World) -> P,
        effect: impl FnOnce(&mut World, &str, P) -> (T, Vec<(Bucket, i64)>),
    ) -> Result<T, StoreError> {
        let hindrance = self.world().begin_call(self.me, verb);
        let (before, after) = match hindrance {
            Some(Hindrance::Slow { before, after }) => (before, after),
            Some(Hindrance::Interrupted { after }) => (after, Duration::ZERO),
            _ => (Duration::ZERO, Duration::ZERO),
        };
        self.take_time(before);
        let mut world = self.world();
        world.actors[self.me].call = None;
        let failed = Err(StoreError::Retry("the store is down".to_owned()));
        let answer = match hindrance {
            _ if std::mem::take(&mut world.actors[self.me].interrupted) => Err(StoreError::Interrupted),
            Some(Hindrance::Gone) => Err(StoreError::Leave("the store is gone".to_owned())),
            Some(Hindrance::Interrupted { .. }) => Err(StoreError::Interrupted),
            Some(Hindrance::Misconfigured) => Err(StoreError::Misconfigured("no bucket fits".to_owned())),
            Some(Hindrance::Fails(Failing::BeforeEffect)) => failed,
            _ => {
                let prepared = prepare(&mut world);
                if verb == Verb::Fetch || (verb == Verb::Acquire && !world.database.rounds_in_turn) {
                    drop(world);
                    self.take_time(Duration::ZERO);
                    world = self.world();
                }
                let relay = world.actors[self.me].id.clone();
                let (answer, rows) = effect(&mut world, &relay, prepared);
                let lost = matches!(hindrance, Some(Hindrance::Fails(Failing::AfterEffect)));
                world.record(self.me, verb, rows, !lost);
                world.truth_looks_at_leases();
                drop(world);
                self.take_time(after);
                return if lost { failed } else { Ok(answer) };
            }
        };
        world.record(self.me, verb, Vec::new(), false);
        answer
    }

    fn call<T>(
        &self,
        verb: Verb,
        effect: impl FnOnce(&mut World, &str) -> (T, Vec<(Bucket, i64)>),
    ) -> Result<T, StoreError> {
        self.call_in_two(verb, |_| (), |world, relay, ()| effect(world, relay))
    }
}

fn named(leases: &[Lease]) -> Vec<(Bucket, i64)> {
    leases.iter().map(|lease| (lease.bucket, lease.token)).collect()
}

impl Store for Seat<'_> {
    fn acquire(&mut self, round: Round<'_>) -> Result<Acquired, StoreError> {
        let me = self.me;
        let began = {
            let mut world = self.world();
            let actor = &world.actors[me];
            let out: Vec<&Bucket> = round.busy.iter().filter(|bucket| actor.client.rows_of(**bucket) > 0).collect();
            if !world.database.renews && !out.is_empty() {
                let words = format!("{} acquires while {out:?} are on their way", actor.id);
                world.breach(Promise::QuietBeforeRelease, words);
            }
            world.now
        };
        let plan = |world: &mut World| {
            let (id, now) = (world.actors[me].id.clone(), world.database_now());
            (!world.database.rounds_in_turn).then(|| world.database.begin_round(&id, round, now))
        };
        let acquired = self.call_in_two(Verb::Acquire, plan, |world, relay, planned| {
            let (database_now, now) = (world.database_now(), world.now);
            let acquired = match planned {
                None => world.database.acquire(relay, round, database_now, now),
                Some(planned) => planned.map(|(plan, freed)| {
                    let acquired = world.database.end_round(relay, round, plan, database_now, now);
                    Acquired { freed: acquired.freed || freed, ..acquired }
                }),
            };
            let rows = acquired.as_ref().map(|acquired| named(&acquired.leases)).unwrap_or_default();
            (acquired, rows)
        })?;
        let Some(acquired) = acquired else { return Err(StoreError::Leave("it was marked as stopped".to_owned())) };
        self.world().truth_confirms(self.me, began, round.lease_duration);
        Ok(acquired)
    }

    fn pending(&mut self, buckets: &[Bucket]) -> Result<Vec<Bucket>, StoreError> {
        self.call(Verb::Pending, |world, _| {
            let pending = buckets.iter().copied().filter(|bucket| !world.database.rows(*bucket).is_empty()).collect();
            (pending, Vec::new())
        })
    }

    fn fetch(&mut self, bucket: Bucket, after: i64, limits: Limits, batch: &mut Batch) -> Result<bool, StoreError> {
        let me = self.me;
        let too_early = self.world().lowest_untold(me, bucket);
        // As the server does: first the snapshot, then a look at who has rung or is about to.
        let snapshot = |world: &mut World| {
            // Without faults what is told of later can't matter: nothing happens between the two.
            let untold = if world.chance.is_some() { i64::MIN } else { world.lowest_untold(me, bucket) };
            let after = world.actors[me].withheld.after(bucket, after);
            let first = (after + 1).min(untold);
            // Behind a fence everything waits until nothing of an earlier bucket count is left.
            let limit = fence::limit(world.database.undrained());
            let last = limit.unwrap_or(i64::MAX);
            let rows = world.database.messages.range((bucket, first.min(last))..=(bucket, last));
            (after, limit, rows.map(|((_, id), serial)| (*id, *serial)).collect::<Vec<_>>())
        };
        self.call_in_two(Verb::Fetch, snapshot, |world, _, (after, limit, rows)| {
            let untold = match () {
                () if broken(Rule::UntoldIsRead) => i64::MAX,
                () if broken(Rule::UntoldAfterSnapshot) => too_early,
                () => world.lowest_untold(me, bucket),
            };
            let database = &mut world.database;
            database.read_from.push((bucket, after));
            if database.damaged == Some(bucket) {
                return (Err(StoreError::Retry("a page is invalid".to_owned())), vec![(bucket, after)]);
            }
            let after = after.min(untold.saturating_sub(1));
            world.actors[me].withheld.was_read(bucket, limit);
            let database = &world.database;
            let value = vec![0; database.value_size];
            let mut more = false;
            let given = |id| id > after && !database.hidden.contains(&(bucket, id));
            for (id, serial) in rows.into_iter().filter(|(id, _)| given(*id)) {
                if batch.len() >= limits.rows || batch.bytes() >= limits.bytes {
                    more = true;
                    break;
                }
                let label = database.label_of((bucket, id));
                batch.push(&Message {
                    id,
                    topic: label.topic,
                    partition: Some(bucket as i32),
                    key: label.key.as_ref().map(std::slice::from_ref),
                    value: Some(&value),
                    headers: None,
                    // So that the broker sees which bucket a row is of.
                    message_id: u128::from(bucket).to_be_bytes(),
                    handle: &serial.to_be_bytes(),
                });
            }
            (Ok(more), batch.ids(batch.len()).map(|id| (bucket, id)).collect())
        })
        .inspect_err(|_| batch.clear(0))?
    }

    fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<Removed>, StoreError> {
        let me = self.me;
        self.call(Verb::Acknowledge, |world, relay| {
            let mut rows = Vec::new();
            let mut answers = Vec::new();
            let now = world.now;
            for one in acknowledged {
                rows.extend(one.batch.ids(one.len).map(|id| (one.lease.bucket, id)));
                let (answer, removed) = world.database.acknowledge(relay, one, now);
                removed.into_iter().for_each(|serial| world.truth_removes(me, one.lease, serial));
                match answer {
                    Removed::Gone => {}
                    Removed::LeaseLost => world.refused_guard(),
                    Removed::Locked => world.actors[me].hindered_in_stopping |= world.actors[me].orders.stop,
                }
                answers.push(answer);
            }
            if let Some(row) = rows.iter().find(|row| !world.broker.has(**row)) {
                let words = format!("{row:?} is removed, but the broker does not have it");
                world.breach(Promise::RemoveOnlyWhatIsPublished, words);
            }
            (answers, rows)
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

    fn topic_rules(&mut self) -> Option<&mut dyn TopicRules> {
        Some(self)
    }
}

impl TopicRules for Seat<'_> {
    fn topic_rules(&mut self) -> Result<BTreeMap<String, TopicRule>, StoreError> {
        self.call(Verb::TopicRules, |world, _| (world.database.rules.clone(), Vec::new()))
    }
}

impl Renewal for Seat<'_> {
    fn renew(&mut self, leases: &[Lease], duration: Duration) -> Result<bool, StoreError> {
        let me = self.me;
        let began = self.world().now;
        let renewed = self.call(Verb::Renew, |world, relay| {
            let database_now = world.database_now();
            let renewed = world.database.renew(relay, leases, duration, database_now, world.now);
            if !renewed {
                world.truth_judges_refusal(me, leases);
            }
            (renewed, named(leases))
        })?;
        let mut world = self.world();
        if renewed {
            world.truth_confirms(self.me, began, duration);
        } else {
            world.truth_renewal_refused(self.me);
        }
        Ok(renewed)
    }

    fn hand_back(&mut self, leases: &[Lease]) -> Result<(), StoreError> {
        self.call(Verb::HandBack, |world, relay| {
            let database_now = world.database_now();
            for lease in leases {
                if world.database.holds(relay, *lease) || broken(Rule::GuardedHandBack) {
                    world.database.free(lease.bucket, Some(relay), Why::HandBack, database_now);
                } else {
                    world.refused_guard();
                }
            }
            ((), named(leases))
        })
    }
}

impl FailureNotes for Seat<'_> {
    fn note_failures(&mut self, notes: &[FailureNote]) -> Result<(), StoreError> {
        self.call(Verb::NoteFailures, |world, relay| {
            let now = world.database_now();
            let held: Vec<_> = notes.iter().filter(|note| world.database.holds(relay, note.lease)).collect();
            let rows = held.into_iter().map(|FailureNote { failure, in_place_of, .. }| {
                let row = (failure.bucket, failure.id);
                if let Some(later) = in_place_of {
                    world.database.failures.remove(&(failure.bucket, *later));
                }
                let before = world.database.failures.get(&row).map(|before| before.first_failed_at);
                let noted = Noted {
                    failure: failure.clone(),
                    first_failed_at: before.unwrap_or(now.before(failure.failing_for)),
                    next_try_at: failure.wait.map(|wait| now + wait),
                };
                world.database.failures.insert(row, noted);
                row
            });
            ((), rows.collect())
        })
    }

    fn failures(&mut self, buckets: &[Bucket]) -> Result<Vec<Failure>, StoreError> {
        self.call(Verb::Failures, |world, _| {
            let now = world.database_now();
            let database = &mut world.database;
            let messages = &database.messages;
            database.failures.retain(|place, _| !buckets.contains(&place.0) || messages.contains_key(place));
            let read = buckets.iter().flat_map(|bucket| {
                let notes = database.failures.range((*bucket, 0)..=(*bucket, i64::MAX));
                notes.map(|(_, noted)| Failure {
                    wait: noted.next_try_at.map(|at| at.since(now)),
                    failing_for: now.since(noted.first_failed_at),
                    ..noted.failure.clone()
                })
            });
            (read.collect(), Vec::new())
        })
    }
}

impl Ownership for Seat<'_> {
    fn release(&mut self, _previous: &BTreeSet<Bucket>) -> Result<(), StoreError> {
        let me = self.me;
        self.call(Verb::Release, |world, relay| {
            let now = world.database_now();
            if let Some(row) = world.database.relays.get_mut(relay) {
                row.stopped = true;
                row.last_seen = row.last_seen.max(now);
            }
            let held = world.database.held_by(relay);
            for bucket in &held {
                world.database.free(*bucket, Some(relay), Why::Release, now);
            }
            if world.broker_has_work_of(relay) {
                let words = format!("{relay} releases while its client may still publish");
                world.breach(Promise::QuietBeforeRelease, words);
            }
            world.truth_released(me);
            ((), held.into_iter().map(|bucket| (bucket, 0)).collect())
        })
    }
}
