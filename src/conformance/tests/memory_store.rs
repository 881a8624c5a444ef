//! A storage in memory with all that the contract names, in which each guard can be left out.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use crate::bucket::Bucket;
use crate::conformance::store::{LateCommits, StoreFixture, run_all};
use crate::lease::{self, Lease, LeaseRow, Plan};
use crate::message::{Batch, Message};
use crate::order::Part;
use crate::relay::ports::{
    Acknowledged, Acquired, Failure, FailureNote, FailureNotes, Limits, Ownership, Removed, Renewal, Round, Store,
    StoreError,
};
use crate::share;

use super::broken_stores::Fault;

const BUCKETS: u32 = 8;
const DURATION: Duration = Duration::from_secs(30);

#[test]
fn a_complete_store_keeps_every_rule() {
    let report = run_all(Fixture::default);
    report.require();
    assert_eq!(report.skipped(), []);
}

/// The storage, shared by the stores on it.
#[derive(Default)]
pub(super) struct Fixture(Rc<RefCell<Storage>>);

pub(super) struct Storage {
    /// What is left out.
    fault: Option<Fault>,
    now: Duration,
    next_id: i64,
    messages: BTreeMap<(Bucket, i64), Stored>,
    /// The lowest id of a bucket that was committed and is not told yet.
    untold: BTreeMap<Bucket, i64>,
    leases: Vec<Entry>,
    relays: BTreeMap<String, Heartbeat>,
    notes: BTreeMap<(Bucket, i64), Note>,
    releases_are_cut: bool,
}

#[derive(Clone, Default)]
struct Entry {
    owner: Option<String>,
    token: i64,
    expires_at: Duration,
}

struct Heartbeat {
    last_seen: Duration,
    stopped: bool,
}

#[derive(Clone)]
struct Note {
    failure: Failure,
    by: String,
    began: Duration,
    due: Option<Duration>,
}

struct Stored {
    version: u64,
    topic: String,
    partition: Option<i32>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Option<Vec<u8>>,
    message_id: [u8; 16],
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            fault: None,
            now: Duration::from_secs(1000),
            next_id: 1,
            messages: BTreeMap::new(),
            untold: BTreeMap::new(),
            leases: vec![Entry::default(); BUCKETS as usize],
            relays: BTreeMap::new(),
            notes: BTreeMap::new(),
            releases_are_cut: false,
        }
    }
}

impl Fixture {
    pub fn with(fault: Fault) -> Self {
        let fixture = Self::default();
        fixture.0.borrow_mut().fault = Some(fault);
        fixture
    }
}

impl StoreFixture for Fixture {
    fn open(&mut self, relay: &str) -> Box<dyn Store> {
        Box::new(MemoryStore { relay: relay.to_owned(), storage: Rc::clone(&self.0) })
    }

    fn bucket_count(&self) -> u32 {
        BUCKETS
    }

    fn lease_duration(&self) -> Duration {
        DURATION
    }

    fn pass(&mut self, time: Duration) {
        self.0.borrow_mut().now += time;
    }

    fn commit(&mut self, bucket: Bucket, messages: &[Message<'_>]) -> Vec<i64> {
        let mut storage = self.0.borrow_mut();
        let mut commit = |message| {
            let id = storage.draw();
            storage.insert(bucket, id, message);
            id
        };
        messages.iter().map(&mut commit).collect()
    }

    fn roll_back(&mut self, bucket: Bucket, messages: &[Message<'_>]) {
        let mut storage = self.0.borrow_mut();
        for message in messages {
            let id = storage.draw();
            if storage.is(Fault::KeepsWhatWasRolledBack) {
                storage.insert(bucket, id, message);
            }
        }
    }

    fn stored(&mut self, bucket: Bucket) -> Vec<i64> {
        self.0.borrow().ids(bucket)
    }

    fn late_commits(&mut self) -> Option<&mut dyn LateCommits> {
        Some(self)
    }

    fn set_clock_back(&mut self, by: Duration) -> bool {
        self.0.borrow_mut().now -= by;
        true
    }

    fn cut_releases_short(&mut self) -> bool {
        self.0.borrow_mut().releases_are_cut = true;
        true
    }

    fn strand_message(&mut self) -> bool {
        let mut storage = self.0.borrow_mut();
        let id = storage.draw();
        let message = Message {
            id,
            topic: "t",
            partition: None,
            key: None,
            value: None,
            headers: None,
            message_id: [0; 16],
            handle: &[],
        };
        storage.insert(BUCKETS, id, &message);
        true
    }
}

impl LateCommits for Fixture {
    fn draw(&mut self, _bucket: Bucket) -> i64 {
        self.0.borrow_mut().draw()
    }

    fn commit_drawn(&mut self, bucket: Bucket, id: i64, message: &Message<'_>) {
        let mut storage = self.0.borrow_mut();
        storage.insert(bucket, id, message);
        let lowest = storage.untold.entry(bucket).or_insert(id);
        *lowest = id.min(*lowest);
    }
}

impl Storage {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn draw(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn insert(&mut self, bucket: Bucket, id: i64, message: &Message<'_>) {
        let version = self.messages.len() as u64;
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        let stored = Stored {
            version,
            topic: message.topic.to_owned(),
            partition: message.partition,
            key: owned(message.key),
            value: owned(message.value),
            headers: owned(message.headers),
            message_id: message.message_id,
        };
        self.messages.insert((bucket, id), stored);
    }

    fn ids(&self, bucket: Bucket) -> Vec<i64> {
        self.messages.range((bucket, i64::MIN)..=(bucket, i64::MAX)).map(|((_, id), _)| *id).collect()
    }

    fn held_by(&self, relay: &str) -> Vec<Bucket> {
        (0..).zip(&self.leases).filter(|(_, entry)| entry.owner.as_deref() == Some(relay)).map(|(b, _)| b).collect()
    }

    fn lease(&self, bucket: Bucket) -> Lease {
        Lease { bucket, token: self.leases[bucket as usize].token }
    }

    fn holds(&self, relay: &str, lease: Lease) -> bool {
        let entry = &self.leases[lease.bucket as usize];
        entry.owner.as_deref() == Some(relay) && (entry.token == lease.token || self.is(Fault::IgnoresTheToken))
    }

    fn extend(&mut self, bucket: Bucket, duration: Duration) {
        let shortens = self.is(Fault::ShortensLeases);
        let until = self.now + duration;
        let entry = &mut self.leases[bucket as usize];
        entry.expires_at = if shortens { until } else { until.max(entry.expires_at) };
    }

    fn free(&mut self, bucket: Bucket) {
        let now = self.now;
        let entry = &mut self.leases[bucket as usize];
        (entry.owner, entry.expires_at) = (None, now);
    }

    /// Whether it was recorded: a relay marked as stopped stays so.
    fn heartbeat(&mut self, relay: &str) -> bool {
        let (now, revives) = (self.now, self.is(Fault::LetsTheStoppedClaim));
        let row = self.relays.entry(relay.to_owned()).or_insert(Heartbeat { last_seen: now, stopped: false });
        row.stopped &= !revives;
        if !row.stopped {
            row.last_seen = now.max(row.last_seen);
        }
        !row.stopped
    }

    fn mark_stopped(&mut self, relay: &str) {
        if let Some(row) = self.relays.get_mut(relay)
            && self.fault != Some(Fault::CountsTheReleased)
        {
            row.stopped = true;
        }
    }

    fn plan(&self, relay: &str, duration: Duration) -> Plan {
        let now = match self.fault {
            Some(Fault::ClaimsTooEarly) => self.now + DURATION / 4,
            Some(Fault::ClaimsTooLate) => self.now.saturating_sub(DURATION / 4),
            _ => self.now,
        };
        let active: BTreeSet<&str> = self
            .relays
            .iter()
            .filter(|(_, row)| !row.stopped && row.last_seen + duration > self.now)
            .map(|(id, _)| id.as_str())
            .collect();
        let rows: Vec<LeaseRow> = (0..)
            .zip(&self.leases)
            .map(|(bucket, entry)| LeaseRow {
                bucket,
                relay_id: entry.owner.clone(),
                unexpired: entry.expires_at > now,
            })
            .collect();
        let mut plan = lease::plan(BUCKETS, &rows, &active, relay);
        let ceiling = BUCKETS.div_ceil(active.len() as u32) as usize;
        match self.fault {
            Some(Fault::SharesByCeiling) => {
                let mut mine = [plan.keep, plan.hand_back].concat();
                plan.hand_back = mine.split_off(ceiling.min(mine.len()));
                plan.keep = mine;
                let free = rows.iter().filter(|row| row.relay_id.is_none() || !row.unexpired);
                plan.claim = free.map(|row| row.bucket).take(ceiling - plan.keep.len()).collect();
            }
            Some(Fault::SharesById) => {
                let share = share::compute(BUCKETS, &active, &BTreeMap::new(), relay) as usize;
                let mut mine = [plan.keep, plan.hand_back].concat();
                plan.hand_back = mine.split_off(share.min(mine.len()));
                plan.keep = mine;
            }
            Some(Fault::HandsNothingBack) => plan.keep.append(&mut plan.hand_back),
            Some(Fault::MovesLeasesAbout) if plan.keep.len() > 1 => plan.hand_back.extend(plan.keep.pop()),
            Some(Fault::LeavesABucketOut) => plan.claim.retain(|bucket| *bucket != 3),
            Some(Fault::ForgetsItsExpiredLeases) => {
                let expired = |bucket: &Bucket| self.leases[*bucket as usize].expires_at <= self.now;
                plan.hand_back.extend(plan.keep.extract_if(.., |bucket| expired(bucket)));
            }
            Some(Fault::ForgetsTheStandbys) if plan.keep.is_empty() && active.len() as u32 > BUCKETS => {
                plan.claim.clear();
            }
            _ => {}
        }
        plan
    }

    fn acquire(&mut self, relay: &str, round: Round<'_>) -> Result<Acquired, StoreError> {
        if self.messages.keys().any(|(bucket, _)| *bucket >= BUCKETS) && !self.is(Fault::IgnoresStrandedMessages) {
            return Err(StoreError::Misconfigured("messages lie in buckets that do not exist".to_owned()));
        }
        if !self.heartbeat(relay) {
            return Err(StoreError::Leave("it was marked as stopped".to_owned()));
        }
        let plan = self.plan(relay, round.lease_duration);
        let busy = if self.is(Fault::TakesBusyBuckets) { &BTreeSet::new() } else { round.busy };
        let (leaving, hand_back): (BTreeSet<_>, BTreeSet<_>) =
            plan.hand_back.into_iter().partition(|bucket| busy.contains(bucket));
        for bucket in plan.keep.iter().chain(&leaving) {
            if !self.is(Fault::ExtendsNothing) {
                self.extend(*bucket, round.lease_duration);
            }
            if self.is(Fault::GivesNewTokensToTheKept) {
                self.leases[*bucket as usize].token += 1;
            }
        }
        for bucket in &hand_back {
            self.free(*bucket);
        }
        for bucket in plan.claim {
            if !self.is(Fault::GivesOldTokens) {
                self.leases[bucket as usize].token += 1;
            }
            let expires_at = self.now + round.lease_duration;
            let entry = &mut self.leases[bucket as usize];
            (entry.owner, entry.expires_at) = (Some(relay.to_owned()), expires_at);
        }
        let mut held = self.held_by(relay);
        if self.is(Fault::TakesTheHintForOwnership) {
            held.extend(round.previous.iter().filter(|bucket| **bucket < BUCKETS));
            held.sort_unstable();
            held.dedup();
        }
        if self.is(Fault::GrantsToTwo) && held.is_empty() {
            held.push(0);
        }
        Ok(Acquired {
            leases: held.iter().map(|bucket| self.lease(*bucket)).collect(),
            leaving,
            freed: !hand_back.is_empty() && !self.is(Fault::TellsNobodyOfWhatGotFree),
            distant: plan.distant || (self.is(Fault::LetsEveryStandbyRest) && held.is_empty()),
        })
    }

    fn fetch(&self, bucket: Bucket, after: i64, limits: Limits, batch: &mut Batch) -> bool {
        let Limits { rows, bytes } = match self.fault {
            Some(Fault::IgnoresTheLimitOfRows) => Limits { rows: usize::MAX, ..limits },
            Some(Fault::IgnoresTheLimitOfBytes) => Limits { bytes: usize::MAX, ..limits },
            _ => limits,
        };
        let after = match self.fault {
            Some(Fault::ReadsFromTheStart) if batch.is_empty() => 0,
            Some(Fault::PassesLateCommitsOver) => after,
            _ => after.min(self.untold.get(&bucket).map_or(i64::MAX, |lowest| lowest - 1)),
        };
        if self.is(Fault::ReplacesTheBatch) {
            batch.clear(0);
        }
        let is_next = |of: Bucket, id: i64| (of == bucket || self.is(Fault::MixesBuckets)) && id > after;
        let mut messages: Vec<_> = self.messages.iter().filter(|((of, id), _)| is_next(*of, *id)).collect();
        messages.sort_by_key(|((_, id), _)| *id);
        for ((_, id), stored) in messages {
            if batch.len() >= rows || batch.bytes() >= bytes {
                return !self.is(Fault::SaysThatThereIsNoMore);
            }
            let value = stored.value.as_deref();
            if self.is(Fault::SkipsLargeMessages) && value.is_some_and(|value| value.len() > bytes) {
                continue;
            }
            let emptied = self.is(Fault::MakesEmptyNull) && value == Some(b"");
            batch.push(&Message {
                id: *id,
                topic: &stored.topic,
                partition: stored.partition,
                key: stored.key.as_deref(),
                value: if emptied { None } else { value },
                headers: stored.headers.as_deref(),
                message_id: stored.message_id,
                handle: &stored.version.to_le_bytes(),
            });
        }
        self.is(Fault::SaysThatThereIsMore)
    }

    fn acknowledge(&mut self, relay: &str, one: &Acknowledged<'_>) -> Removed {
        let bucket = one.lease.bucket;
        if !self.holds(relay, one.lease) && !self.is(Fault::AcknowledgesWithoutALease) {
            return Removed::LeaseLost;
        }
        let mut any = false;
        let len = if self.is(Fault::RemovesTheWholeBatch) { one.batch.len() } else { one.len };
        for (id, handle) in one.batch.handles(len) {
            if self.messages.get(&(bucket, id)).is_some_and(|stored| stored.version.to_le_bytes() == handle) {
                self.messages.remove(&(bucket, id));
                any = true;
            }
        }
        if self.is(Fault::RemovesByRange) {
            let range = one.batch.id(0)..=one.batch.id(len - 1);
            self.messages.retain(|(of, id), _| *of != bucket || !range.contains(id));
        }
        if one.ends_failure {
            let all = self.is(Fault::EndsLaterNotes);
            self.notes.retain(|(of, id), _| *of != bucket || !(all || one.batch.ids(one.len).any(|gone| gone == *id)));
        }
        if any || !self.is(Fault::RefusesWhatIsGone) { Removed::Gone } else { Removed::LeaseLost }
    }

    fn renew(&mut self, relay: &str, leases: &[Lease], duration: Duration) -> bool {
        let lasts =
            |lease: &Lease| self.holds(relay, *lease) && self.leases[lease.bucket as usize].expires_at > self.now;
        let (lasting, over): (Vec<Lease>, Vec<Lease>) = leases.iter().copied().partition(lasts);
        match self.fault {
            Some(Fault::RenewalClaims) => {
                let free: Vec<Lease> =
                    over.into_iter().filter(|lease| self.leases[lease.bucket as usize].owner.is_none()).collect();
                for lease in &free {
                    self.leases[lease.bucket as usize].owner = Some(relay.to_owned());
                    self.extend(lease.bucket, duration);
                }
                return lasting.len() + free.len() == leases.len();
            }
            Some(Fault::RenewsWhatItCan) => lasting.iter().for_each(|lease| self.extend(lease.bucket, duration)),
            _ => {}
        }
        let revives = self.is(Fault::RenewalRevives) && over.iter().all(|lease| self.holds(relay, *lease));
        if !over.is_empty() && !revives {
            return false;
        }
        for lease in leases {
            if self.is(Fault::RenewalOnlySaysYes) {
                continue;
            }
            self.extend(lease.bucket, duration);
        }
        if !self.is(Fault::RenewalIsNoHeartbeat) {
            self.heartbeat(relay);
        }
        true
    }

    fn hand_back(&mut self, relay: &str, leases: &[Lease]) {
        if self.is(Fault::HandsEverythingBack) {
            self.held_by(relay).into_iter().for_each(|bucket| self.free(bucket));
        }
        for lease in leases {
            if self.holds(relay, *lease) {
                self.free(lease.bucket);
            }
        }
    }

    fn release(&mut self, relay: &str, previous: &BTreeSet<Bucket>) -> Result<(), StoreError> {
        let held: Vec<Bucket> = match self.fault {
            Some(Fault::ReleasesNothing) => Vec::new(),
            Some(Fault::ReleasesTheHintOnly) => {
                self.held_by(relay).into_iter().filter(|bucket| previous.contains(bucket)).collect()
            }
            Some(Fault::ReleasesWhoeverHoldsIt) => previous.iter().copied().collect(),
            _ => self.held_by(relay),
        };
        if self.is(Fault::FreesBeforeItMarks) {
            held.iter().for_each(|bucket| self.free(*bucket));
        } else {
            self.mark_stopped(relay);
        }
        if self.releases_are_cut {
            return Err(StoreError::Retry("the connection is lost".to_owned()));
        }
        self.mark_stopped(relay);
        held.iter().for_each(|bucket| self.free(*bucket));
        Ok(())
    }

    fn note(&mut self, relay: &str, note: &FailureNote) {
        let failure = &note.failure;
        let place = (failure.bucket, failure.id);
        if let Some(later) = note.in_place_of.filter(|_| !self.is(Fault::KeepsTheReplacedNote)) {
            self.notes.remove(&(failure.bucket, later));
        }
        let before = self.notes.get(&place).filter(|_| !self.is(Fault::ForgetsTheFirstRefusal));
        let began = before.map_or(self.now.saturating_sub(failure.failing_for), |before| before.began);
        let due = failure.wait.map(|wait| self.now + wait);
        let note = Note { failure: failure.clone(), by: relay.to_owned(), began, due };
        if !(self.is(Fault::KeepsTheFirstNote) && self.notes.contains_key(&place)) {
            self.notes.insert(place, note);
        }
    }

    fn noted(&self, relay: &str, bucket: Bucket) -> Vec<Failure> {
        let notes = self.notes.range((bucket, i64::MIN)..=(bucket, i64::MAX));
        let exists = |(place, note): &(&(Bucket, i64), &Note)| {
            (self.messages.contains_key(*place) || self.is(Fault::TellsNotesOfWhatIsGone))
                && (note.by == relay || !self.is(Fault::NotesForItselfOnly))
        };
        let read = |(_, note): (_, &Note)| {
            let left = note.due.map(|due| due.saturating_sub(self.now));
            let left = if self.is(Fault::TriesParkedAgain) { Some(left.unwrap_or_default()) } else { left };
            let wait = if self.is(Fault::WaitsAnew) { note.failure.wait } else { left };
            let failing_for = self.now - note.began;
            let mut failure = Failure { wait, failing_for, ..note.failure.clone() };
            if self.is(Fault::TakesTopicsForMessages) {
                failure.unit.part = Part::Row(failure.id);
            }
            failure
        };
        let mut read: Vec<Failure> = notes.filter(exists).map(read).collect();
        if self.is(Fault::TellsTheLastNote) {
            read = read.pop().into_iter().collect();
        }
        read
    }
}

struct MemoryStore {
    relay: String,
    storage: Rc<RefCell<Storage>>,
}

impl Store for MemoryStore {
    fn acquire(&mut self, round: Round<'_>) -> Result<Acquired, StoreError> {
        self.storage.borrow_mut().acquire(&self.relay, round)
    }

    fn pending(&mut self, buckets: &[Bucket]) -> Result<Vec<Bucket>, StoreError> {
        let storage = self.storage.borrow();
        let finds = |bucket: &Bucket| !storage.ids(*bucket).is_empty() || storage.is(Fault::FindsEveryBucket);
        Ok(buckets.iter().copied().filter(finds).collect())
    }

    fn fetch(&mut self, bucket: Bucket, after: i64, limits: Limits, batch: &mut Batch) -> Result<bool, StoreError> {
        let mut storage = self.storage.borrow_mut();
        let more = storage.fetch(bucket, after, limits, batch);
        if storage.is(Fault::FetchingRemoves) {
            storage.messages.retain(|(of, _), _| *of != bucket);
        }
        Ok(more)
    }

    fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<Removed>, StoreError> {
        let mut storage = self.storage.borrow_mut();
        let answers: Vec<Removed> = acknowledged.iter().map(|one| storage.acknowledge(&self.relay, one)).collect();
        if storage.is(Fault::AnswersForAllAtOnce) && answers.contains(&Removed::LeaseLost) {
            return Ok(vec![Removed::LeaseLost; answers.len()]);
        }
        Ok(answers)
    }

    fn renewal(&mut self) -> Option<&mut dyn Renewal> {
        Some(self)
    }

    fn ownership(&mut self) -> Option<&mut dyn Ownership> {
        Some(self)
    }

    fn failure_notes(&mut self) -> Option<&mut dyn FailureNotes> {
        Some(self)
    }
}

impl Renewal for MemoryStore {
    fn renew(&mut self, leases: &[Lease], duration: Duration) -> Result<bool, StoreError> {
        Ok(self.storage.borrow_mut().renew(&self.relay, leases, duration))
    }

    fn hand_back(&mut self, leases: &[Lease]) -> Result<(), StoreError> {
        self.storage.borrow_mut().hand_back(&self.relay, leases);
        Ok(())
    }
}

impl Ownership for MemoryStore {
    fn release(&mut self, previous: &BTreeSet<Bucket>) -> Result<(), StoreError> {
        self.storage.borrow_mut().release(&self.relay, previous)
    }
}

impl FailureNotes for MemoryStore {
    fn note_failures(&mut self, notes: &[FailureNote]) -> Result<(), StoreError> {
        let mut storage = self.storage.borrow_mut();
        for note in notes {
            if storage.holds(&self.relay, note.lease) || storage.is(Fault::NotesWithoutALease) {
                storage.note(&self.relay, note);
            }
        }
        Ok(())
    }

    fn failures(&mut self, buckets: &[Bucket]) -> Result<Vec<Failure>, StoreError> {
        let storage = self.storage.borrow();
        Ok(buckets.iter().flat_map(|bucket| storage.noted(&self.relay, *bucket)).collect())
    }
}
