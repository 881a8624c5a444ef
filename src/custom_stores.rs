//! How to publish from a storage of your own: a chapter for those who write a [`Store`].
//!
//! The relay loop knows no database. [`Relay`] is the same over PostgreSQL, over the simulated world of its tests, and
//! over whatever implements the four ports of [`ports`]: a [`Store`], a [`Publisher`], a [`Clock`] and a [`Bell`]. The
//! [`Store`] is the one that decides whether the guarantees hold, so this chapter is about it; the other three are
//! small, and the [example](#a-complete-example) at the end has one of each.
//!
//! # What the loop promises
//!
//! Over a store that keeps its part:
//!
//! - Nothing is lost: a message is removed only after the destination has acknowledged it, from the front of its bucket
//!   to the back.
//! - Messages of a bucket are submitted in the order in which they were stored, one batch at a time. If one of a batch
//!   fails, those behind it may have arrived already and arrive again.
//! - Every message is published at least once. Copies come from crashes, lost leases and lost answers; all of them
//!   carry the same [message id](crate::message::Message::message_id).
//! - A bucket has one publisher at a time, as far as leases can tell. A process that slept past its lease may still
//!   have records on their way: no lease calls back what was sent.
//! - It waits in one place only, with a deadline, and everything it holds in memory is bounded.
//!
//! # What a storage must offer
//!
//! Two things, which most databases have:
//!
//! 1. **A conditional write that is atomic.** "Make me the owner, if nobody is or if it has expired" is all that
//!    decides who publishes: a guarded `UPDATE`, a compare-and-set, a conditional put. No lock is held between calls,
//!    and no transaction spans the publish.
//! 2. **Reading a bucket in the order of storing.** A sequence, a counter that writers take a number from, a document
//!    id that grows with time: the number starts at 1 or above and only has to grow, and gaps mean nothing.
//!
//! And four promises, which no code of the loop can check:
//!
//! - Messages leave the storage through [`Store::acknowledge`] alone. Anything that expires them by age loses them.
//! - A bucket is never leased to two relays at once.
//! - Leases are measured on one clock, that of the storage, and an expiry only ever moves forward. Clocks of the
//!   relays' hosts have no part in it.
//! - A message in a bucket that no relay can own, such as one beyond the last, is reported, or ends the relay with
//!   [`StoreError::Misconfigured`]. It must not just lie there.
//!
//! # The four verbs
//!
//! | verb | what it is for | the point that is easily missed |
//! | --- | --- | --- |
//! | [`acquire`] | says that it lives; keeps, hands back, claims leases | the guarded write decides, whatever was planned |
//! | [`pending`] | which of these buckets have messages | called often: must not read the backlog |
//! | [`fetch`] | the next messages of a bucket | what it gives can't be undone by a crash any more |
//! | [`acknowledge`] | removes exactly the messages it is given | guarded by the lease; calling it twice is no error |
//!
//! The loop calls one verb at a time, and each is a short transaction of its own. An error keeps the leases, unless it
//! was one of acquiring or renewing; what [`StoreError`] it is says what the loop does next. Two of them end a relay:
//! [`Leave`], when the storage is gone for it, and [`Misconfigured`], when trying again would not help. The rest is
//! tried again.
//!
//! # A message's identity is yours
//!
//! [`acknowledge`] gets back the very batch that [`fetch`] filled, and the length of the prefix to remove. Beside the
//! [`id`], which the loop compares, a message carries a
//! [`handle`]: bytes that nobody but the store looks at. A document's native key fits
//! there, or a row's version, so that a row that was changed meanwhile is not taken for the one that was published.
//!
//! # Whom a bucket belongs to
//!
//! A store that can read all leases hands them to [`lease::plan`], with the ids of the relays that live, and carries
//! out what comes back: `keep`, `hand_back`, `claim`. Relays that see the same rows plan claims that do not overlap, so
//! in a settled fleet no conditional write is refused. The plan is advice. Views differ for a moment whenever somebody
//! joins or leaves, and then the condition in the write is what keeps a bucket from having two owners.
//!
//! A store that can only try single buckets claims up to its share, in an order that does not start among a peer's:
//!
//! ```
//! use std::collections::BTreeSet;
//!
//! use outbox_relay::bucket::Bucket;
//! use outbox_relay::share::{self, Held};
//!
//! /// Buckets in the order in which to try them: what was held last, the own range, and then what others left behind.
//! fn probe_order(buckets: u32, range: std::ops::Range<Bucket>, previous: &BTreeSet<Bucket>) -> Vec<Bucket> {
//!     let mut seen = BTreeSet::new();
//!     let order = previous.iter().copied().chain(range).chain(0..buckets);
//!     order.filter(|bucket| *bucket < buckets && seen.insert(*bucket)).collect()
//! }
//!
//! let active = BTreeSet::from(["a", "b", "c"]);
//! let nothing_known = Held::new();
//! assert_eq!(share::compute(8, &active, &nothing_known, "c"), 2);
//! let range = share::assign(8, &active, &nothing_known, "c");
//! assert_eq!(probe_order(8, range, &BTreeSet::from([1])), [1, 6, 7, 0, 2, 3, 4, 5]);
//!
//! // More relays than buckets: c has no share, and is the first to be served when one gets free.
//! assert_eq!(share::compute(2, &active, &nothing_known, "c"), 0);
//! assert_eq!(share::standby_rank(2, &active, &nothing_known, "c"), Some(0));
//! // With known holdings c may keep what it has, whatever its id sorts as.
//! assert_eq!(share::compute(2, &active, &Held::from([("c", 1)]), "c"), 1);
//! ```
//!
//! `previous` comes with every [`Round`]: the buckets of the latest acquisition that succeeded. The loop keeps it over
//! failures and expired leases, so it says where to look first and proves nothing. Pass the held counts whenever they
//! can be read: shares by ids alone take a bucket from a relay that is publishing it whenever a process starts whose id
//! sorts early.
//!
//! A relay that waits further back than one standby a bucket ([`share::standby_rank`]) need only stay counted. A store
//! that says so in [`Acquired::distant`] is asked less often, but still within the time for which peers count the
//! relay.
//!
//! # Renewal
//!
//! A destination that is away for minutes must not cost the leases. A store with [`Renewal`] is asked to extend them
//! while messages are on their way. A renewal extends what has not expired, all of it or nothing; it claims nothing,
//! gives nothing up, and brings nothing back to life. It may be refused, and then the loop keeps the rows of what is on
//! its way even if they are acknowledged later: somebody else answers for them by now. Buckets above the share that are
//! busy are kept at an acquisition, come back in [`Acquired::leaving`], and are freed by [`Renewal::hand_back`] once
//! they are quiet.
//!
//! Without renewal a lease has to outlast a whole publish, and only you can know how long that is. So
//! [`Settings::max_publish_duration`] must be given: the longest time from handing over a batch to its last report,
//! retries and all. It must be less than the lease duration less the renewal interval, or [`Relay::new`] refuses the
//! settings. The loop then acquires only between publishes, and begins one only while the lease, counted from before
//! the call that took it, still has room for it and for the acquisition that follows; else it acquires first. It is a
//! promise and no timeout: a publish that takes longer ends the relay as misconfigured, because whatever was built on
//! the promise does not hold.
//!
//! # Ownership
//!
//! Leases of a crashed relay run out. One that stops in order can give them up at once, if the store has [`Ownership`]:
//! [`release`] is called once, after the last report is in and what was acknowledged has been removed, and not at all
//! if that takes longer than [`Settings::shutdown_timeout`]. Do not free leases from anywhere else: under a running
//! publisher that gives a bucket two.
//!
//! - Mark the relay as stopped first, then free its leases. Cut short in between, leases run out, which costs what a
//!   crash costs. The other way round buckets are free, and peers keep them for a relay that they still count.
//! - Free by owner, not by what the relay believes that it holds.
//! - Keep the mark. A heartbeat that was under way when the relay stopped must have something to lose against, and a
//!   claim that arrives late must be refused because of it.
//!
//! Where a request can outlive its sender, as over HTTP, each of them needs a version: name the lease's [`token`],
//! which grows by one at each change of owner, or the expiry that was read last, in the condition of every renewal,
//! hand-back, release and acknowledgement.
//!
//! # Failure notes
//!
//! A message that the destination refuses is tried again alone, with growing waits, while what is not in order with it
//! ([`crate::order`]) goes on. With [`FailureNotes`] the next owner goes on where the last one stood, and what was parked
//! stays so; without them it begins anew, and may send the messages behind it once more. What becomes of a message in the
//! end ([`crate::policy`]) is the same for all topics unless the store has [`TopicRules`].
//!
//! # The writers' side
//!
//! A message is stored in the transaction of the change that it tells of, in the storage's own way. What the relay
//! counts on: the bucket is [`bucket_of`] its partition, key or id; headers are encoded by [`headers::encode`]; the
//! message id is unique and never changes; and all writers and relays agree on the number of buckets.
//!
//! # Does it keep the contract?
//!
//! [`conformance`] has a rule for every sentence of it, to be called from your tests with a fixture of some forty
//! lines. It needs neither a broker nor PostgreSQL.
//!
//! # A complete example
//!
//! A store with the four required verbs on a database that is a value in memory, a publisher that writes into a list, a
//! clock, and a bell that never rings. It passes the suite, and a relay publishes a message with it.
//!
//! ```
//! use std::cell::RefCell;
//! use std::collections::{BTreeMap, BTreeSet};
//! use std::rc::Rc;
//! use std::thread;
//! use std::time::{Duration, Instant};
//!
//! use outbox_relay::bucket::{Bucket, bucket_of};
//! use outbox_relay::clock::Time;
//! use outbox_relay::conformance::store::{StoreFixture, run_all};
//! use outbox_relay::lease::{Lease, LeaseRow, plan};
//! use outbox_relay::message::{Batch, Message};
//! use outbox_relay::relay::ports::*;
//! use outbox_relay::relay::{Ended, Relay};
//! use outbox_relay::settings::Settings;
//!
//! const BUCKETS: u32 = 4;
//!
//! // The database ---------------------------------------------------------------------------------------------------
//!
//! #[derive(Default)]
//! struct Database {
//!     now: Duration,
//!     documents: BTreeMap<(Bucket, i64), Document>,
//!     last_id: i64,
//!     leases: [Holder; BUCKETS as usize],
//!     last_seen: BTreeMap<String, Duration>,
//! }
//!
//! struct Document {
//!     name: String,
//!     topic: String,
//!     partition: Option<i32>,
//!     key: Option<Vec<u8>>,
//!     value: Option<Vec<u8>>,
//!     headers: Option<Vec<u8>>,
//!     message_id: [u8; 16],
//! }
//!
//! #[derive(Default)]
//! struct Holder {
//!     relay: Option<String>,
//!     token: i64,
//!     expires_at: Duration,
//! }
//!
//! type Shared = Rc<RefCell<Database>>;
//!
//! impl Database {
//!     fn commit(&mut self, bucket: Bucket, message: &Message<'_>) -> i64 {
//!         self.last_id += 1;
//!         let document = Document {
//!             name: format!("document {}", self.last_id),
//!             topic: message.topic.to_owned(),
//!             partition: message.partition,
//!             key: message.key.map(<[u8]>::to_vec),
//!             value: message.value.map(<[u8]>::to_vec),
//!             headers: message.headers.map(<[u8]>::to_vec),
//!             message_id: message.message_id,
//!         };
//!         self.documents.insert((bucket, self.last_id), document);
//!         self.last_id
//!     }
//! }
//!
//! // The store ------------------------------------------------------------------------------------------------------
//!
//! struct MyStore {
//!     relay: String,
//!     database: Shared,
//! }
//!
//! impl Store for MyStore {
//!     fn acquire(&mut self, round: Round<'_>) -> Result<Acquired, StoreError> {
//!         let mut guard = self.database.borrow_mut();
//!         let db = &mut *guard;
//!         let (now, expires_at) = (db.now, db.now + round.lease_duration);
//!         db.last_seen.insert(self.relay.clone(), now);
//!         let lives = |seen: &Duration| *seen + round.lease_duration > now;
//!         let active: BTreeSet<&str> =
//!             db.last_seen.iter().filter(|(_, seen)| lives(seen)).map(|(id, _)| id.as_str()).collect();
//!         let rows: Vec<LeaseRow> = (0..)
//!             .zip(&db.leases)
//!             .map(|(bucket, row)| LeaseRow { bucket, relay_id: row.relay.clone(), unexpired: row.expires_at > now })
//!             .collect();
//!         let plan = plan(BUCKETS, &rows, &active, &self.relay);
//!         for bucket in &plan.keep {
//!             let row = &mut db.leases[*bucket as usize];
//!             row.expires_at = row.expires_at.max(expires_at);
//!         }
//!         for bucket in &plan.hand_back {
//!             db.leases[*bucket as usize].relay = None;
//!         }
//!         for bucket in &plan.claim {
//!             let row = &mut db.leases[*bucket as usize];
//!             // The guard, which would be part of the write to a real database.
//!             if row.relay.is_none() || row.expires_at <= now {
//!                 *row = Holder { relay: Some(self.relay.clone()), token: row.token + 1, expires_at };
//!             }
//!         }
//!         let mine = (0..).zip(&db.leases).filter(|(_, row)| row.relay.as_ref() == Some(&self.relay));
//!         let leases = mine.map(|(bucket, row)| Lease { bucket, token: row.token }).collect();
//!         let freed = !plan.hand_back.is_empty();
//!         Ok(Acquired { leases, leaving: BTreeSet::new(), freed, distant: plan.distant })
//!     }
//!
//!     fn pending(&mut self, buckets: &[Bucket]) -> Result<Vec<Bucket>, StoreError> {
//!         let db = self.database.borrow();
//!         let any = |bucket: &Bucket| db.documents.range((*bucket, 0)..=(*bucket, i64::MAX)).next().is_some();
//!         Ok(buckets.iter().copied().filter(any).collect())
//!     }
//!
//!     fn fetch(&mut self, bucket: Bucket, after: i64, limits: Limits, batch: &mut Batch) -> Result<bool, StoreError> {
//!         let db = self.database.borrow();
//!         for ((_, id), document) in db.documents.range((bucket, after + 1)..=(bucket, i64::MAX)) {
//!             if batch.len() >= limits.rows || batch.bytes() >= limits.bytes {
//!                 return Ok(true);
//!             }
//!             batch.push(&Message {
//!                 id: *id,
//!                 topic: &document.topic,
//!                 partition: document.partition,
//!                 key: document.key.as_deref(),
//!                 value: document.value.as_deref(),
//!                 headers: document.headers.as_deref(),
//!                 message_id: document.message_id,
//!                 // What this database knows it by.
//!                 handle: document.name.as_bytes(),
//!             });
//!         }
//!         Ok(false)
//!     }
//!
//!     fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<Removed>, StoreError> {
//!         let mut db = self.database.borrow_mut();
//!         let mut answers = Vec::new();
//!         for one in acknowledged {
//!             let row = &db.leases[one.lease.bucket as usize];
//!             let holds = row.relay.as_ref() == Some(&self.relay) && row.token == one.lease.token;
//!             if holds {
//!                 let names: BTreeSet<&[u8]> = one.batch.handles(one.len).map(|(_, handle)| handle).collect();
//!                 db.documents.retain(|_, document| !names.contains(document.name.as_bytes()));
//!             }
//!             answers.push(if holds { Removed::Gone } else { Removed::LeaseLost });
//!         }
//!         Ok(answers)
//!     }
//! }
//!
//! // The contract ---------------------------------------------------------------------------------------------------
//!
//! #[derive(Default)]
//! struct Fixture(Shared);
//!
//! impl StoreFixture for Fixture {
//!     fn open(&mut self, relay: &str) -> Box<dyn Store> {
//!         Box::new(MyStore { relay: relay.to_owned(), database: self.0.clone() })
//!     }
//!     fn bucket_count(&self) -> u32 {
//!         BUCKETS
//!     }
//!     fn lease_duration(&self) -> Duration {
//!         Duration::from_secs(30)
//!     }
//!     fn pass(&mut self, time: Duration) {
//!         self.0.borrow_mut().now += time;
//!     }
//!     fn commit(&mut self, bucket: Bucket, messages: &[Message<'_>]) -> Vec<i64> {
//!         messages.iter().map(|message| self.0.borrow_mut().commit(bucket, message)).collect()
//!     }
//!     fn roll_back(&mut self, _bucket: Bucket, messages: &[Message<'_>]) {
//!         // All that is left of it is a gap.
//!         self.0.borrow_mut().last_id += messages.len() as i64;
//!     }
//!     fn stored(&mut self, bucket: Bucket) -> Vec<i64> {
//!         self.0.borrow().documents.keys().filter(|(of, _)| *of == bucket).map(|(_, id)| *id).collect()
//!     }
//! }
//!
//! let report = run_all(Fixture::default);
//! report.require();
//! // What this store does not offer was left out.
//! assert!(report.skipped().contains(&("a_renewal_extends_the_leases", "the store has no renewal")));
//!
//! // Publishing -----------------------------------------------------------------------------------------------------
//!
//! #[derive(Default)]
//! struct ToList {
//!     published: Rc<RefCell<Vec<String>>>,
//!     reports: Vec<Report>,
//! }
//!
//! impl Publisher for ToList {
//!     fn submit(&mut self, flight: FlightId, batch: &Batch, from: usize) -> Submitted {
//!         for index in from..batch.len() {
//!             let message = batch.message(index);
//!             let value = String::from_utf8_lossy(message.value.unwrap_or_default());
//!             self.published.borrow_mut().push(format!("{}: {value}", message.topic));
//!             self.reports.push(Report { flight, index: index as u32, outcome: Ok(()) });
//!         }
//!         Submitted { rows: batch.len() - from, refused: None }
//!     }
//!     fn collect(&mut self, reports: &mut Vec<Report>) {
//!         reports.append(&mut self.reports);
//!     }
//!     fn purge(&mut self) {
//!         // Nothing is ever queued.
//!     }
//! }
//!
//! /// A real one counts the time that the host sleeps as well: CLOCK_BOOTTIME and its like.
//! #[derive(Clone, Copy)]
//! struct SinceStart(Instant);
//!
//! impl Clock for SinceStart {
//!     fn now(&self) -> Time {
//!         Time::since_zero(self.0.elapsed())
//!     }
//! }
//!
//! /// Nobody rings: messages are found every `poll_interval`. Stops the relay when nothing is left.
//! struct UntilEmpty {
//!     database: Shared,
//!     clock: SinceStart,
//! }
//!
//! impl Bell for UntilEmpty {
//!     fn take(&mut self, _bucket: Bucket) -> Option<i64> {
//!         None
//!     }
//!     fn take_unknown(&mut self) -> bool {
//!         false
//!     }
//!     fn listen_for(&mut self, _buckets: &BTreeSet<Bucket>) {}
//!     fn stop_listening_for(&mut self, _buckets: &BTreeSet<Bucket>) {}
//!     fn call_peers(&mut self) {}
//!     fn order(&mut self) -> Option<Order> {
//!         self.database.borrow().documents.is_empty().then_some(Order::Stop)
//!     }
//!     fn rest(&mut self, _wait: Wait, until: Time) {
//!         // A real one also wakes when reports are there to be collected.
//!         thread::sleep(until.since(self.clock.now()).min(Duration::from_millis(10)));
//!     }
//! }
//!
//! let database = Shared::default();
//! let message = Message {
//!     id: 0,
//!     topic: "orders",
//!     partition: None,
//!     key: Some(b"order-1"),
//!     value: Some(b"paid"),
//!     headers: None,
//!     message_id: [1; 16],
//!     handle: &[],
//! };
//! let bucket = bucket_of(None, message.key, &message.message_id, BUCKETS);
//! database.borrow_mut().commit(bucket, &message);
//!
//! // Without renewal somebody has to know how long a publish takes at most.
//! let settings = Settings { max_publish_duration: Some(Duration::from_secs(5)), ..Settings::default() };
//! let store = MyStore { relay: "host-1".to_owned(), database: database.clone() };
//! let publisher = ToList::default();
//! let published = publisher.published.clone();
//! let clock = SinceStart(Instant::now());
//! let bell = UntilEmpty { database: database.clone(), clock };
//! let mut relay = Relay::new(store, publisher, clock, bell, settings, "host-1")?;
//! assert_eq!(relay.run(), Ended::Stopped);
//! assert_eq!(*published.borrow(), ["orders: paid"]);
//! # Ok::<(), outbox_relay::settings::Contradiction>(())
//! ```
//!
//! [`Acquired::distant`]: crate::relay::ports::Acquired::distant
//! [`Acquired::leaving`]: crate::relay::ports::Acquired::leaving
//! [`Bell`]: crate::relay::ports::Bell
//! [`Clock`]: crate::relay::ports::Clock
//! [`FailureNotes`]: crate::relay::ports::FailureNotes
//! [`Ownership`]: crate::relay::ports::Ownership
//! [`TopicRules`]: crate::relay::ports::TopicRules
//! [`Publisher`]: crate::relay::ports::Publisher
//! [`Relay`]: crate::relay::Relay
//! [`Relay::new`]: crate::relay::Relay::new
//! [`Renewal`]: crate::relay::ports::Renewal
//! [`Renewal::hand_back`]: crate::relay::ports::Renewal::hand_back
//! [`Round`]: crate::relay::ports::Round
//! [`Settings::max_publish_duration`]: crate::settings::Settings::max_publish_duration
//! [`Settings::shutdown_timeout`]: crate::settings::Settings::shutdown_timeout
//! [`Store`]: crate::relay::ports::Store
//! [`Store::acknowledge`]: crate::relay::ports::Store::acknowledge
//! [`StoreError`]: crate::relay::ports::StoreError
//! [`StoreError::Misconfigured`]: crate::relay::ports::StoreError::Misconfigured
//! [`Leave`]: crate::relay::ports::StoreError::Leave
//! [`Misconfigured`]: crate::relay::ports::StoreError::Misconfigured
//! [`acknowledge`]: crate::relay::ports::Store::acknowledge
//! [`acquire`]: crate::relay::ports::Store::acquire
//! [`bucket_of`]: crate::bucket::bucket_of
//! [`conformance`]: crate::conformance
//! [`fetch`]: crate::relay::ports::Store::fetch
//! [`handle`]: crate::message::Message::handle
//! [`headers::encode`]: crate::headers::encode
//! [`id`]: crate::message::Message::id
//! [`lease::plan`]: crate::lease::plan
//! [`pending`]: crate::relay::ports::Store::pending
//! [`ports`]: crate::relay::ports
//! [`release`]: crate::relay::ports::Ownership::release
//! [`share::standby_rank`]: crate::share::standby_rank
//! [`token`]: crate::lease::Lease::token
