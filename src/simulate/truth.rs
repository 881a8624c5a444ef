//! Who knows the truth: every message, every copy of it, every lease; and what the relays promised about them.
//!
//! It believes neither the guards of the simulated database nor the relays, but looks at what they did. Duplicates are
//! allowed only with a cause: what takes a message from a relay before it could be removed marks it, and a copy without a
//! mark breaks the promise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::lease::Lease;
use crate::relay::ports::FlightId;

use super::database::{Change, Label, Why};
use super::world::{Verb, World};

/// Those of a run.
pub(crate) const TOPICS: [&str; 2] = ["events", "others"];

/// A message, over all copies of it.
pub(crate) type Serial = u32;

/// What is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Promise {
    NothingLost,
    NothingInvented,
    OrderOfAKey,
    NewestIsLast,
    DuplicatesHaveACause,
    OneOwnerABucket,
    PublishOnlyWithALease,
    OneBatchABucket,
    MemoryIsBounded,
    RemoveOnlyWhatIsPublished,
    RemoveOnlyWithALease,
    QuietBeforeRelease,
    ClocksOnlyForward,
    SharesSettle,
    NoBucketStarves,
    OthersFlow,
    EverythingDrains,
    NotesEnd,
    RelaysRest,
    NoPanic,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::NothingLost => "nothing is lost",
            Promise::NothingInvented => "nothing is invented",
            Promise::OrderOfAKey => "a key's messages arrive in order",
            Promise::NewestIsLast => "a consumer is left with a key's newest message, whatever was refused",
            Promise::DuplicatesHaveACause => "a duplicate has a cause",
            Promise::OneOwnerABucket => "a bucket has one owner",
            Promise::PublishOnlyWithALease => "only who holds a lease publishes",
            Promise::OneBatchABucket => "a bucket has one batch on its way",
            Promise::MemoryIsBounded => "what is on its way is bounded",
            Promise::RemoveOnlyWhatIsPublished => "only what the broker has is removed",
            Promise::RemoveOnlyWithALease => "only who holds a lease removes",
            Promise::QuietBeforeRelease => "nothing is freed that may still be published",
            Promise::ClocksOnlyForward => "leases are never shortened or revived",
            Promise::SharesSettle => "shares settle, and then nothing changes owner",
            Promise::NoBucketStarves => "no bucket starves",
            Promise::OthersFlow => "a refused message holds up its own key only, a topic with trouble itself only",
            Promise::EverythingDrains => "everything drains once faults have ended",
            Promise::NotesEnd => "no note of a refused message outlasts it",
            Promise::RelaysRest => "a relay rests when there is nothing to do",
            Promise::NoPanic => "no relay panics",
        })
    }
}

/// A promise that was not kept.
#[derive(Debug, Clone)]
pub(crate) struct Breach {
    pub promise: Promise,
    pub words: String,
}

/// Why a message may be published again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Crash,
    /// Its relay ended without having removed it.
    Stop,
    LeaseTakenOver,
    LeaseOutOfDate,
    RenewalRefused,
    Rejection,
    ClientReplaced,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Cause::Crash => "duplicates after a crash",
            Cause::Stop => "duplicates after a stop",
            Cause::LeaseTakenOver => "duplicates after a lease was taken over",
            Cause::LeaseOutOfDate => "duplicates after a lease was out of date",
            Cause::RenewalRefused => "duplicates after a renewal was refused",
            Cause::Rejection => "duplicates behind a refused message",
            Cause::ClientReplaced => "duplicates after a client was replaced",
        }
    }
}

#[derive(Debug)]
struct Message {
    key: u8,
    bucket: Bucket,
    id: i64,
    visible: Option<Time>,
    rolled_back: bool,
    removed: bool,
    appended: u32,
    /// It went to the dead-letter topic.
    lettered: bool,
    /// Copies that clients hold and may still send.
    with_clients: u32,
    /// Its last submission.
    submitted: Option<(usize, FlightId, usize)>,
    again: Option<Cause>,
    /// Its relay has seen that the broker has it.
    answered: bool,
    /// What its last submission was allowed by.
    allowed: Option<Cause>,
}

#[derive(Debug, Default)]
struct Key {
    /// In the order in which they became visible.
    messages: Vec<Serial>,
    published: usize,
    /// Nobody promises an order: a message was refused, or its writers do not lock it.
    without_order: bool,
    /// A message of it was refused.
    refused: bool,
    /// Its writers do not lock it.
    unlocked: bool,
    /// Whose copy is the last that consumers see.
    last: Option<Serial>,
}

#[derive(Debug, Default)]
pub(super) struct Truth {
    messages: Vec<Message>,
    keys: BTreeMap<u8, Key>,
    /// The lowest index of a flight from which on rows of a key may be published again, and why.
    failed: BTreeMap<(usize, FlightId, u8), (usize, Cause)>,
    /// From before the latest call by which a relay knows its leases, and how long they last.
    confirmed: BTreeMap<usize, (Time, Duration)>,
    /// Relays that have stopped for good.
    released: BTreeSet<usize>,
    /// Most rows that a client may have at a time.
    most_rows: usize,
    /// Nothing may change owner any more.
    settled: bool,
    pub duplicates: u32,
    /// Every lease that was lost.
    pub losses: u32,
}

impl Truth {
    /// Of a run in which a client may have so many rows at a time.
    pub fn new(most_rows: usize) -> Self {
        Self { most_rows, ..Self::default() }
    }

    fn fails(&mut self, relay: usize, flight: FlightId, key: u8, index: usize, cause: Cause) {
        let first = self.failed.entry((relay, flight, key)).or_insert((index, cause));
        if index < first.0 {
            *first = (index, cause);
        }
    }
}

impl World {
    /// A promise was not kept: the run ends.
    pub(super) fn breach(&mut self, promise: Promise, words: String) {
        assert!(self.truth.is_some(), "{promise}: {words}");

        self.note(None, &[99], || format!("BROKEN: {promise}: {words}"));
        self.breach.get_or_insert(Breach { promise, words });
    }

    pub(super) fn truth_wrote(&mut self, key: u8, bucket: Bucket, id: i64, ordered: bool) -> Serial {
        let Some(truth) = &mut self.truth else { return 0 };
        let serial = truth.messages.len() as Serial;
        truth.messages.push(Message {
            key,
            bucket,
            id,
            visible: None,
            rolled_back: false,
            removed: false,
            appended: 0,
            lettered: false,
            with_clients: 0,
            submitted: None,
            again: None,
            answered: false,
            allowed: None,
        });
        let key = truth.keys.entry(key).or_default();
        key.without_order |= !ordered;
        key.unlocked |= !ordered;
        serial
    }

    /// Keys are shared out to two topics.
    pub(super) fn truth_label(&self, serial: Serial) -> Label {
        let Some(truth) = &self.truth else { return Label::default() };
        let key = truth.messages[serial as usize].key;
        Label { topic: TOPICS[usize::from(key % 2)], key: Some(key) }
    }

    pub(super) fn truth_visible(&mut self, serial: Serial) {
        let now = self.now;
        let Some(truth) = &mut self.truth else { return };
        let message = &mut truth.messages[serial as usize];
        message.visible = Some(now);
        truth.keys.entry(message.key).or_default().messages.push(serial);
    }

    pub(super) fn truth_rolled_back(&mut self, serial: Serial) {
        if let Some(truth) = &mut self.truth {
            truth.messages[serial as usize].rolled_back = true;
        }
    }

    /// A relay hands a message to its client.
    pub(super) fn truth_submits(&mut self, relay: usize, serial: Serial, flight: FlightId, index: usize) {
        let now = self.now;
        let Some(truth) = &mut self.truth else { return };
        let key = truth.messages[serial as usize].key;
        let behind_failed = |(relay, flight, index): (usize, FlightId, usize)| {
            truth.failed.get(&(relay, flight, key)).filter(|(failed, _)| *failed <= index).map(|(_, cause)| *cause)
        };
        let message = &mut truth.messages[serial as usize];
        let bucket = message.bucket;
        let mut breaches = Vec::new();
        if message.visible.is_none() {
            breaches.push((Promise::NothingInvented, format!("message {} was never committed", message.id)));
        }
        // It can't know yet that somebody has taken the bucket from it.
        let unaware = self.database.owner(bucket) != Some(self.actors[relay].id.as_str());
        let unaware = unaware.then_some(Cause::LeaseTakenOver);
        message.allowed = message.again.take().or_else(|| message.submitted.and_then(behind_failed)).or(unaware);
        if message.appended > 0 || message.with_clients > 0 {
            match message.allowed {
                Some(cause) => *self.coverage.entry(cause.name()).or_default() += 1,
                None => breaches.push((
                    Promise::DuplicatesHaveACause,
                    format!("message {} of bucket {bucket} is published again", message.id),
                )),
            }
        }
        message.submitted = Some((relay, flight, index));
        message.answered = false;
        message.again = unaware;
        message.with_clients += 1;
        if truth.confirmed.get(&relay).is_none_or(|(began, lasts)| now.since(*began) >= *lasts) {
            breaches.push((Promise::PublishOnlyWithALease, format!("bucket {bucket}: its leases are out of date")));
        }
        let actor = &self.actors[relay];
        if actor.client.rows >= truth.most_rows {
            breaches.push((Promise::MemoryIsBounded, format!("{} rows are with its client", actor.client.rows + 1)));
        }
        if !self.database.renews
            && index == 0
            && let Some((began, lasts)) = truth.confirmed.get(&relay)
            && now.since(*began) + actor.settings.max_publish_duration.unwrap_or_default() >= *lasts
        {
            breaches.push((Promise::PublishOnlyWithALease, format!("bucket {bucket}: its lease may end meanwhile")));
        }
        if !self.database.may_publish(&self.actors[relay].id, bucket, self.database_now(), now) {
            breaches.push((Promise::PublishOnlyWithALease, format!("bucket {bucket} is not its own")));
        }
        for (promise, words) in breaches {
            let words = format!("{}: {words}", self.actors[relay].id);
            self.breach(promise, words);
        }
    }

    pub(super) fn truth_answers(&mut self, serial: Serial) {
        if let Some(truth) = &mut self.truth {
            truth.messages[serial as usize].answered = true;
        }
    }

    /// A relay ends in order. What it could have removed it has to have removed.
    pub(super) fn truth_stops(&mut self, relay: usize) {
        let Some(truth) = &mut self.truth else { return };
        let actor = &self.actors[relay];
        let able = !actor.hindered_in_stopping && truth.confirmed.contains_key(&relay);
        for message in &mut truth.messages {
            let is_its = message.submitted.is_some_and(|(by, ..)| by == relay) && !message.removed;
            let removable = able && message.answered && actor.client.rows_of(message.bucket) == 0;
            if is_its && !removable {
                message.again = Some(Cause::Stop);
            }
        }
    }

    /// A copy is with no client any more: it has arrived, or it never will, and does not count.
    pub(super) fn truth_let_go(&mut self, serial: Serial, arrived: bool) {
        if let Some(truth) = &mut self.truth {
            let message = &mut truth.messages[serial as usize];
            message.with_clients -= 1;
            if !arrived {
                message.again = message.again.or(message.allowed);
            }
        }
    }

    /// A client had sent the message and was replaced: nobody will say whether it arrived.
    pub(super) fn truth_replaced(&mut self, relay: usize, serial: Serial, flight: FlightId, index: usize) {
        if let Some(truth) = &mut self.truth {
            let key = truth.messages[serial as usize].key;
            truth.fails(relay, flight, key, index, Cause::ClientReplaced);
        }
    }

    /// Consumers see a message.
    pub(super) fn truth_appends(&mut self, serial: Serial, letter: bool) {
        let now = self.now;
        let settled = self.plan_times.map(|times| times.settled);
        let patience = self.plan_times.map(|times| times.patience).unwrap_or_default();
        let Some(truth) = &mut self.truth else { return };
        let message = &mut truth.messages[serial as usize];
        message.appended += 1;
        message.lettered |= letter;
        if !letter {
            truth.keys.entry(message.key).or_default().last = Some(serial);
        }
        let mut breaches = Vec::new();
        let Some(visible) = message.visible else {
            return self.breach(Promise::NothingInvented, "a message that was never committed is published".to_owned());
        };
        if message.appended > 1 {
            truth.duplicates += 1;
            return;
        }
        if settled.is_some_and(|settled| visible >= settled) && now.since(visible) > patience {
            let words = format!("message {} of bucket {} waited {:?}", message.id, message.bucket, now.since(visible));
            breaches.push((Promise::NoBucketStarves, words));
        }
        let key = truth.keys.get_mut(&message.key).expect("a visible message has its key");
        let spared = !key.refused && !self.broker.troubled.contains(TOPICS[usize::from(message.key % 2)]);
        if let Some(most) = self.plan_times.and_then(|times| times.beside_failures)
            && spared
            && now.since(visible) > most
        {
            let words = format!("message {} of bucket {} waited {:?}", message.id, message.bucket, now.since(visible));
            breaches.push((Promise::OthersFlow, words));
        }
        if key.messages.get(key.published) != Some(&serial) && !key.without_order {
            let first = key.messages[key.published];
            let (id, first) = (message.id, truth.messages[first as usize].id);
            breaches.push((Promise::OrderOfAKey, format!("{id} comes before {first}")));
        }
        while key.messages.get(key.published).is_some_and(|next| truth.messages[*next as usize].appended > 0) {
            key.published += 1;
        }
        for (promise, words) in breaches {
            self.breach(promise, words);
        }
    }

    /// A message is refused: those of its batch behind it may have been sent, and its key has no order any more.
    pub(super) fn truth_refuses(&mut self, relay: usize, serial: Serial, flight: FlightId, index: usize) {
        let Some(truth) = &mut self.truth else { return };
        let key = truth.messages[serial as usize].key;
        truth.fails(relay, flight, key, index, Cause::Rejection);
        let key = truth.keys.entry(key).or_default();
        (key.without_order, key.refused) = (true, true);
        self.count("refusals");
    }

    /// What this relay has submitted and not removed, of all buckets or one, may be published again.
    pub(super) fn truth_marks(&mut self, relay: usize, bucket: Option<Bucket>, cause: Cause) {
        let Some(truth) = &mut self.truth else { return };
        let mut any = false;
        for message in &mut truth.messages {
            let is_its = message.submitted.is_some_and(|(by, ..)| by == relay);
            if is_its && !message.removed && bucket.is_none_or(|bucket| bucket == message.bucket) {
                message.again = Some(cause);
                any = true;
            }
        }
        truth.losses += u32::from(any);
    }

    /// A message leaves the database.
    pub(super) fn truth_removes(&mut self, relay: usize, lease: Lease, serial: Serial) {
        let holds = self.database.holds(&self.actors[relay].id, lease);
        let Some(truth) = &mut self.truth else { return };
        let message = &mut truth.messages[serial as usize];
        message.removed = true;
        let words = format!("message {} of bucket {}", message.id, message.bucket);
        if message.appended == 0 {
            self.breach(Promise::RemoveOnlyWhatIsPublished, words.clone());
        }
        if !holds {
            self.breach(Promise::RemoveOnlyWithALease, words);
        }
    }

    /// A relay knows its leases by a call that began then.
    pub(super) fn truth_confirms(&mut self, relay: usize, began: Time, lasts: Duration) {
        let now = self.now;
        let Some(truth) = &mut self.truth else { return };
        if now.since(began) >= lasts {
            return self.truth_lease_ends(relay);
        }
        truth.confirmed.insert(relay, (began, lasts));
        self.schedule(began + lasts, move |world| {
            let truth = world.truth.as_ref().expect("it was there before");
            if truth.confirmed.get(&relay).is_some_and(|(latest, _)| *latest == began) {
                world.truth_lease_ends(relay);
            }
        });
    }

    fn truth_lease_ends(&mut self, relay: usize) {
        if self.truth.as_mut().is_some_and(|truth| truth.confirmed.remove(&relay).is_some()) {
            self.count("leases out of date");
            self.note(Some(relay), &[6], || "its leases are out of date".to_owned());
        }
        self.truth_marks(relay, None, Cause::LeaseOutOfDate);
    }

    /// A renewal is refused: is it right to be?
    pub(super) fn truth_judges_refusal(&mut self, relay: usize, leases: &[Lease]) {
        let now = self.database_now();
        let id = self.actors[relay].id.clone();
        let lasts = |lease: &Lease| self.database.holds(&id, *lease) && self.database.is_owner(&id, lease.bucket, now);
        if self.truth.is_some() && leases.iter().all(lasts) {
            self.breach(Promise::OneOwnerABucket, format!("{id}: the renewal of leases that last is refused"));
        }
        self.refused_guard();
    }

    /// The relay hears that its renewal was refused.
    pub(super) fn truth_renewal_refused(&mut self, relay: usize) {
        if self.truth.is_none() {
            return;
        }
        self.truth_marks(relay, None, Cause::RenewalRefused);
        if let Some(truth) = &mut self.truth {
            truth.confirmed.remove(&relay);
        }
        self.count("refused renewals");
    }

    /// A guarded statement found that its lease is not its own any more.
    pub(super) fn refused_guard(&mut self) {
        if self.truth.as_ref().is_some_and(|truth| truth.settled) {
            self.breach(Promise::SharesSettle, "a guarded write is refused".to_owned());
        }
    }

    /// Before a call of the store: what must hold when a relay makes it.
    pub(super) fn truth_calls(&mut self, relay: usize, verb: Verb) {
        let now = self.now;
        let Some(truth) = &self.truth else { return };
        if verb == Verb::Acknowledge
            && truth.confirmed.get(&relay).is_none_or(|(began, lasts)| now.since(*began) >= *lasts)
        {
            let words = format!("{}: it acknowledges though its leases are out of date", self.actors[relay].id);
            self.breach(Promise::RemoveOnlyWithALease, words);
        }
    }

    /// A relay has given up its leases. Whether its process ends at once or not, others have its buckets from now on.
    pub(super) fn truth_released(&mut self, relay: usize) {
        if self.actors[relay].orders.stop {
            self.truth_stops(relay);
        } else {
            // It ends because of a misconfiguration.
            self.truth_marks(relay, None, Cause::Stop);
        }
        if let Some(truth) = &mut self.truth {
            truth.released.insert(relay);
        }
    }

    /// Looks at all that was done to leases since it looked last.
    pub(super) fn truth_looks_at_leases(&mut self) {
        for change in std::mem::take(&mut self.database.changes) {
            if self.truth.is_some() {
                self.truth_looks_at(&change);
            }
        }
    }

    fn truth_looks_at(&mut self, change: &Change) {
        let Change { bucket, before, after, by, why } = change;
        let (database_now, now) = (self.database_now(), self.now);
        let actor =
            |world: &World, id: &Option<String>| world.actors.iter().position(|actor| Some(&actor.id) == id.as_ref());
        let relay = actor(self, by);
        let name = by.clone().unwrap_or_else(|| "somebody".to_owned());
        let moves = before.relay_id != after.relay_id;
        self.note(relay, &[7, u64::from(*bucket), after.token as u64, *why as u64], || {
            format!(
                "{why:?} bucket {bucket}, token {}, owner {:?} -> {:?}",
                after.token, before.relay_id, after.relay_id
            )
        });
        let mut breaches = Vec::new();
        match why {
            Why::Claim => {
                if before.relay_id.is_some() && before.expires_at > database_now {
                    breaches.push((Promise::OneOwnerABucket, format!("{name} claims bucket {bucket}, which lasts")));
                }
                if after.token <= before.token {
                    breaches.push((Promise::OneOwnerABucket, format!("bucket {bucket} changes owner under one token")));
                }
                if relay.is_some_and(|relay| self.truth.as_ref().is_some_and(|truth| truth.released.contains(&relay))) {
                    breaches
                        .push((Promise::OneOwnerABucket, format!("{name} claims bucket {bucket} after its release")));
                }
            }
            Why::Keep | Why::Renew => {
                if moves || before.token != after.token {
                    breaches.push((Promise::OneOwnerABucket, format!("{name} keeps bucket {bucket} of somebody else")));
                }
                if after.expires_at < before.expires_at {
                    breaches
                        .push((Promise::ClocksOnlyForward, format!("{name} shortens the lease of bucket {bucket}")));
                }
                if *why == Why::Renew && before.expires_at <= database_now {
                    breaches.push((Promise::ClocksOnlyForward, format!("{name} revives the lease of bucket {bucket}")));
                }
            }
            Why::HandBack | Why::Release => {
                if before.relay_id != *by {
                    breaches.push((Promise::OneOwnerABucket, format!("{name} frees bucket {bucket} of somebody else")));
                }
                if let Some(relay) = relay
                    && self.actors[relay].client.may_publish(*bucket)
                {
                    let words = format!("{name} frees bucket {bucket} while its client may still publish");
                    breaches.push((Promise::QuietBeforeRelease, words));
                }
            }
            Why::Dead => {
                let owner = actor(self, &before.relay_id);
                if owner.is_some_and(|owner| !self.actors[owner].client.gone) {
                    breaches.push((Promise::OneOwnerABucket, format!("bucket {bucket} is taken from one that lives")));
                }
            }
            Why::Unused => {
                if !self.database.rows(*bucket).is_empty() {
                    breaches.push((Promise::NoBucketStarves, format!("bucket {bucket} has messages and no owner")));
                }
            }
            Why::Steal => {}
        }
        // Who gives a bucket up has removed what it could; who is dead was looked at when it died.
        let taken = matches!(why, Why::Claim | Why::Steal);
        if moves
            && taken
            && let Some(owner) = actor(self, &before.relay_id)
        {
            self.truth_marks(owner, Some(*bucket), Cause::LeaseTakenOver);
            if matches!(why, Why::Claim) && before.real_until > now {
                self.count("leases taken over early after a step of the clock");
            }
        }
        if moves && self.truth.as_ref().is_some_and(|truth| truth.settled) {
            breaches.push((Promise::SharesSettle, format!("bucket {bucket} changes owner by {why:?} of {name}")));
        }
        if moves {
            self.count("changes of owner");
        }
        for (promise, words) in breaches {
            self.breach(promise, words);
        }
    }

    /// The faults are long over.
    pub(super) fn truth_settles(&mut self) {
        let alive: Vec<String> =
            self.actors.iter().filter(|actor| actor.lives(self.now)).map(|actor| actor.id.clone()).collect();
        let held: Vec<usize> = alive.iter().map(|id| self.database.held_by(id).len()).collect();
        let (most, least) = (held.iter().max().copied(), held.iter().min().copied());
        let sum: usize = held.iter().sum();
        if sum != self.database.bucket_count as usize || most.unwrap_or(0) > least.unwrap_or(0) + 1 {
            self.breach(
                Promise::SharesSettle,
                format!("{alive:?} hold {held:?} of {} buckets", self.database.bucket_count),
            );
        }
        let (now, patience) = (self.now, self.plan_times.map(|times| times.patience).unwrap_or_default());
        let Some(truth) = &mut self.truth else { return };
        truth.settled = true;
        let late = truth
            .messages
            .iter()
            .find(|message| message.visible.is_some_and(|visible| now.since(visible) > patience) && !message.removed);
        if let Some(message) = late {
            let words = format!("message {} of bucket {} is still there", message.id, message.bucket);
            self.breach(Promise::EverythingDrains, words);
        }
    }

    /// The run is about to end.
    pub(super) fn truth_ends(&mut self) {
        let (now, patience) = (self.now, self.plan_times.map(|times| times.patience).unwrap_or_default());
        if let Some(truth) = &mut self.truth {
            truth.settled = false;
            // What became visible only now may still be on its way.
            let due = |message: &Message| message.visible.is_some_and(|visible| now.since(visible) > patience);
            let lost = truth.messages.iter().find(|message| due(message) && message.appended == 0);
            if let Some(message) = lost {
                let words = format!("message {} of bucket {}", message.id, message.bucket);
                let promise = if message.removed { Promise::NothingLost } else { Promise::EverythingDrains };
                return self.breach(promise, words);
            }
            // Where processes die, a copy of an old message may arrive last.
            let exact = self.plan_times.is_some_and(|times| times.beside_failures.is_some());
            for (name, key) in truth.keys.iter().filter(|(_, key)| exact && !key.unlocked) {
                let sent = |serial: &&Serial| !truth.messages[**serial as usize].lettered;
                let newest = key
                    .messages
                    .iter()
                    .rev()
                    .find(sent)
                    .copied()
                    .filter(|newest| due(&truth.messages[*newest as usize]));
                if newest.is_some() && key.last != newest {
                    let words = format!("key {name}: a consumer is left with {:?}, not with {newest:?}", key.last);
                    return self.breach(Promise::NewestIsLast, words);
                }
            }
            if let Some(message) = truth.messages.iter().find(|message| due(message) && !message.removed) {
                let words = format!("message {} of bucket {} is never removed", message.id, message.bucket);
                return self.breach(Promise::EverythingDrains, words);
            }
            let noted = self.database.failures.keys().find(|place| !self.database.has(**place));
            if let Some((bucket, id)) = noted {
                let words = format!("message {id} of bucket {bucket} is gone and still noted as refused");
                self.breach(Promise::NotesEnd, words)
            }
        }
    }
}
