//! The four things the loop needs: where messages are stored, where they go, what time it is, and what wakes it.
//!
//! All are synchronous and none waits for Kafka: the loop waits only in [`Bell::rest`], with a deadline. So the same loop
//! runs in a background worker and, on a virtual clock, in a test.
//!
//! What is said here is tried, sentence by sentence, by [`crate::conformance`]; [`crate::custom_stores`] tells it as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::lease::Lease;
use crate::message::Batch;
use crate::order::Unit;
use crate::policy::TopicRule;
use crate::settings::Settings;

/// Where messages and leases are stored. A store object belongs to one relay and knows its id; the relay calls one verb at a
/// time, and each verb is one short transaction of its own.
///
/// Four verbs are required: [`acquire`](Store::acquire), [`pending`](Store::pending), [`fetch`](Store::fetch) and
/// [`acknowledge`](Store::acknowledge). The others are optional, and a store says through four methods which it has:
/// [`Renewal`], [`Ownership`], [`FailureNotes`] and [`TopicRules`].
///
/// What a storage technology must offer for this: an atomic conditional write, which decides who holds a lease, and reading
/// a bucket's messages in the order in which they were stored. What every store owes the relay: messages leave it through
/// [`Store::acknowledge`] only, never because of their age; one bucket is never leased to two relays at once; expiry is
/// measured on one clock, the store's, and moves only forward; and a bucket that no relay can own is reported, not ignored.
pub trait Store {
    /// One round: says that this relay lives, and keeps, hands back and claims leases up to the fair share
    /// ([`crate::lease::plan`], [`crate::share`]). The guarded write alone decides who owns a bucket.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    fn acquire(&mut self, round: Round<'_>) -> Result<Acquired, StoreError>;

    /// Which of the buckets have messages, found without reading the backlog.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    fn pending(&mut self, buckets: &[Bucket]) -> Result<Vec<Bucket>, StoreError>;

    /// Appends to `batch` the bucket's messages with an id above `after`, oldest first, up to `limits`. Says whether there
    /// may be more; a batch that ends earlier says so too, and is not empty. What it gives is committed for good: a crash
    /// cannot undo it any more. And it is in order: if it gives a message, it gives with it, or gave before, all that were
    /// visible when that message's transaction began, those at or below `after` included that were committed since.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    fn fetch(&mut self, bucket: Bucket, after: i64, limits: Limits, batch: &mut Batch) -> Result<bool, StoreError>;

    /// Removes exactly the named messages, where the lease still holds, and returns what became of each batch. It is given
    /// the very messages that [`Store::fetch`] returned, in order, though others may lie between them; a message that is gone
    /// already is no error.
    ///
    /// # Errors
    /// As [`StoreError`] says; then nothing was removed, as far as known.
    fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<Removed>, StoreError>;

    /// The store, if it can extend leases while messages are on their way.
    fn renewal(&mut self) -> Option<&mut dyn Renewal> {
        None
    }

    /// The store, if it can give up everything at once when the relay stops.
    fn ownership(&mut self) -> Option<&mut dyn Ownership> {
        None
    }

    /// The store, if it remembers refused messages for the next owner.
    fn failure_notes(&mut self) -> Option<&mut dyn FailureNotes> {
        None
    }

    /// The store, if it knows rules for topics.
    fn topic_rules(&mut self) -> Option<&mut dyn TopicRules> {
        None
    }
}

/// Leases that last while messages are on their way. Without it a relay acquires only between publishes, and must be told
/// how long a publish takes at most: [`Settings::max_publish_duration`].
pub trait Renewal {
    /// Extends leases that have not expired, all or none, and says that this relay lives. Never claims and never revives;
    /// says no instead.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    fn renew(&mut self, leases: &[Lease], duration: Duration) -> Result<bool, StoreError>;

    /// Frees leases that [`Store::acquire`] wanted to hand back, once nothing of theirs is being published.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    fn hand_back(&mut self, leases: &[Lease]) -> Result<(), StoreError>;
}

/// Leases that are given up when the relay stops gracefully, so that peers have them at once and not after a lease duration.
pub trait Ownership {
    /// Marks the relay as stopped, then frees its leases, in this order: if the rest is cut short, leases run out, instead of
    /// being free and reserved for a ghost. Called at most once, after everything on its way has been answered. Frees by
    /// owner where it can; `previous`, the buckets of the latest acquisition, may be incomplete. A claim of this relay that
    /// arrives later must be refused.
    ///
    /// # Errors
    /// As [`StoreError`] says; then the leases end by themselves.
    fn release(&mut self, previous: &BTreeSet<Bucket>) -> Result<(), StoreError>;
}

/// Refused messages, remembered over restarts and changes of owner. Without it the waits of a refused message begin anew
/// with each owner.
pub trait FailureNotes {
    /// Notes messages that were refused, for the next owner and for the operator, each where the lease still holds under which
    /// it was tried; a later note of a message replaces the earlier. What is not noted for want of the lease is no error.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    fn note_failures(&mut self, notes: &[FailureNote]) -> Result<(), StoreError>;

    /// What is noted of these buckets, of messages that still exist, by bucket and id.
    ///
    /// # Errors
    /// As [`StoreError`] says.
    fn failures(&mut self, buckets: &[Bucket]) -> Result<Vec<Failure>, StoreError>;
}

/// What operators have laid down for topics. Without it every topic has the default.
pub trait TopicRules {
    /// All rules; the relay asks again after [`Order::LookAgain`].
    ///
    /// # Errors
    /// As [`StoreError`] says.
    fn topic_rules(&mut self) -> Result<BTreeMap<String, TopicRule>, StoreError>;
}

/// What a relay asks of one acquisition.
#[derive(Debug, Clone, Copy)]
pub struct Round<'a> {
    /// How long leases are to last from now.
    pub lease_duration: Duration,
    /// The buckets of the latest acquisition that succeeded: where to look first. A hint that survives failures and expired
    /// leases, never a proof of ownership.
    pub previous: &'a BTreeSet<Bucket>,
    /// Buckets with messages on their way: those above the share are kept and come back in [`Acquired::leaving`]. When the store
    /// has no [`Renewal`], only those with messages for which it has answered [`Removed::Locked`].
    pub busy: &'a BTreeSet<Bucket>,
}

/// What one batch may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most rows, at least 1.
    pub rows: usize,
    /// Most bytes; the row that passes the limit is the last.
    pub bytes: usize,
}

/// The answer to an acquisition.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Acquired {
    /// All leases that the relay holds now.
    pub leases: Vec<Lease>,
    /// Those of them to hand back as soon as nothing of theirs is being published.
    pub leaving: BTreeSet<Bucket>,
    /// Whether something was freed that a peer may claim now.
    pub freed: bool,
    /// Whether the relay waits so far behind others that it may skip rounds: [`crate::lease::Plan::distant`].
    pub distant: bool,
}

/// Messages that may be removed: the first `len` rows of a batch, all of them acknowledged by the broker.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledged<'a> {
    /// The lease under which they were published.
    pub lease: Lease,
    /// The batch as it was fetched, or rows of it.
    pub batch: &'a Batch,
    /// How many of its first rows, at least 1.
    pub len: usize,
    /// Whether failures that are noted of these messages are over with this.
    pub ends_failure: bool,
}

/// What became of messages that were to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// They are gone, all of them.
    Gone,
    /// The lease does not hold any more; none of them was removed.
    LeaseLost,
    /// Somebody keeps at least one of them locked; none of them was removed, and it was not waited for. They are asked for
    /// again, and their bucket waits for that, no other.
    Locked,
}

/// A refused message, and what it holds up: the later ones of its unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its bucket.
    pub bucket: Bucket,
    /// Its id.
    pub id: i64,
    /// What waits for it: the unit of the message, or its topic as a whole.
    pub unit: Unit<'static>,
    /// Refused attempts so far; where the topic is what fails, attempts with it.
    pub attempts: u32,
    /// What the client reported last.
    pub error: String,
    /// How long ago it was refused first.
    pub failing_for: Duration,
    /// How long to wait for the next attempt, from now; none means that it waits for an operator.
    pub wait: Option<Duration>,
}

/// What is to be noted of a refused message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureNote {
    /// The lease under which it was tried.
    pub lease: Lease,
    /// The message, and why it was refused.
    pub failure: Failure,
    /// A later message of its bucket of which the note ends with this one: it had been refused before, for the same unit, and
    /// now waits as others do.
    pub in_place_of: Option<i64>,
}

/// A failed store call, by what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Wait and try again.
    #[error("{0}")]
    Retry(String),
    /// An order has come meanwhile, and matters more.
    #[error("interrupted by an order")]
    Interrupted,
    /// The store is gone for good, or this relay must leave it: stop without waiting.
    #[error("{0}")]
    Leave(String),
    /// It can't work as it is set up, and trying again would not help: the one error that ends a relay, in order.
    #[error("{0}")]
    Misconfigured(String),
}

/// Names a batch on its way.
pub type FlightId = u32;

/// Where messages go. Nothing here blocks.
pub trait Publisher {
    /// Hands over the rows of the batch from index `from` on, in order, until the client takes no more or refuses one. Behind
    /// that one it may be called again at once, with a batch that lacks the rows that have to wait for it. All rows of a batch go
    /// the same way: if earlier ones were given to a client that has been replaced since, the next is refused as
    /// [`PublishError::GivenUp`], or it would overtake them.
    fn submit(&mut self, flight: FlightId, batch: &Batch, from: usize) -> Submitted;

    /// Hands over the only row of a batch, which was refused before, so that another refusal disturbs no other row.
    fn submit_apart(&mut self, flight: FlightId, batch: &Batch) -> Submitted {
        self.submit(flight, batch, 0)
    }

    /// Adds the outcomes that have come in since the last call.
    fn collect(&mut self, reports: &mut Vec<Report>);

    /// Gives up what the client has only queued; each such row is reported as [`PublishError::GivenUp`]. Rows already sent
    /// are reported as usual. What is submitted later is not affected.
    fn purge(&mut self);

    /// As [`Publisher::purge`], and gives up too what was sent and is not answered: it may arrive all the same.
    fn abandon(&mut self) {
        self.purge();
    }

    /// Asks the brokers for a sign of life, best by asking about this topic, without waiting for it.
    fn inquire(&mut self, _topic: &str) {}

    /// Adds what brokers have answered to inquiries since the last call.
    fn answers(&mut self, _answers: &mut Vec<Answer>) {}
}

/// A broker's answer to an inquiry, and so a sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The topic that was asked about.
    pub topic: String,
    /// It is unknown, or a partition of it has no leader.
    pub in_trouble: bool,
}

/// How far a submission went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// Rows handed over.
    pub rows: usize,
    /// Why the next row was refused for good; none when all were taken or the client is full for now.
    pub refused: Option<PublishError>,
}

/// The outcome of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The flight it was submitted with.
    pub flight: FlightId,
    /// Its index in the batch.
    pub index: u32,
    /// Acknowledged, or why not.
    pub outcome: Result<(), PublishError>,
}

/// Why a row was not acknowledged, by what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The row was never sent, or nobody can say whether it arrived: submit it again at once.
    #[error("the message was given up before it was sent")]
    GivenUp,
    /// No fault of the row's: wait, then try again. Not counted.
    #[error("{0}")]
    Transient(String),
    /// The topic can take nothing now: wait with all its rows, then try the first. Not counted.
    #[error("{0}")]
    Topic(String),
    /// The row can never be accepted as it is: counted, until the topic's policy acts ([`crate::policy`]).
    #[error("{0}")]
    Invalid(String),
    /// Nothing can be published as it is set up: wait with everything.
    #[error("{0}")]
    Misconfigured(String),
}

/// What time it is.
pub trait Clock {
    /// Now, on a monotonic clock that counts suspended time.
    fn now(&self) -> Time;

    /// Now, as people write it: time since 1970. For what is told to people only.
    fn since_1970(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

/// What wakes the relay, and the orders it gets.
pub trait Bell {
    /// The lowest id that was committed to the bucket since the last call, if any. Must be called before the snapshot that
    /// reads the bucket is taken. Gives nothing, and takes nothing, once another relay listens for the bucket: a relay that
    /// does not know yet that it has lost a bucket must not hear what the new owner has to hear.
    fn take(&mut self, bucket: Bucket) -> Option<i64>;

    /// Whether something was committed since the last call of which the bucket is not known.
    fn take_unknown(&mut self) -> bool;

    /// From now on commits to these buckets wake this relay, and no other, until another listens for them.
    fn listen_for(&mut self, buckets: &BTreeSet<Bucket>);

    /// Commits to these buckets do not wake this relay any more.
    fn stop_listening_for(&mut self, buckets: &BTreeSet<Bucket>);

    /// Other relays may want to look at the fair share now rather than at their next round.
    fn call_peers(&mut self);

    /// The latest order, if there is one.
    fn order(&mut self) -> Option<Order>;

    /// Sleeps until `until`, a bell, a delivery report or an order, whatever comes first.
    fn rest(&mut self, wait: Wait, until: Time);
}

/// What somebody else wants of the relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Go on with these settings.
    Settings(Box<Settings>),
    /// Acquire now and read anew what is noted of refused messages: a peer came, left or handed something back, or an operator
    /// has changed something.
    LookAgain,
    /// Stop gracefully.
    Stop,
}

/// Why the relay rests: every wait has a reason that an operator can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Nothing to publish.
    Idle,
    /// No bucket is its own.
    Standby,
    /// Rows are with the client and their reports are due.
    Publishing,
    /// Rows are with the client and Kafka has not answered for a while.
    Broker,
    /// All buckets with rows wait for their next attempt, or the store failed.
    BackingOff,
    /// On its way out.
    Stopping,
}
