//! Hands rows to librdkafka and collects the reports, without ever waiting.
//!
//! One client serves all buckets of a relay. When queued rows must be called back, the client is purged and *replaced*: an
//! idempotent producer numbers its records, and a purge leaves a gap in the numbers that the broker would refuse for ever.
//! The old client is kept until its last report is in, then closed elsewhere.
//!
//! A broker refuses a request as a whole for the sake of one row that is too large or invalid, and rows of many buckets
//! share a request. Nobody is blamed for that: rows that it names as innocent are given up, to be submitted again, and the
//! others are sent again by a second client that puts each into a request of its own. What is refused there is the culprit.
//!
//! Meanwhile rows behind those may go through. A row is never reported as acknowledged behind an earlier row of its flight
//! with the same topic, partition and key that was not: it is given up too, so that it is published once more, behind it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::bindings as rdsys;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig};

use crate::headers::{self, MESSAGE_ID_HEADER};
use crate::message::{Batch, Message};
use crate::properties::Properties;
use crate::relay::ports::{Answer, FlightId, PublishError, Publisher, Report, Submitted};

use super::caretaker::{Caretaker, Lines};
use super::client_config;
use super::errors::{self, Class};
use super::inquiry::{Contact, Inquiries};
use super::report::{self, Verdict};
use super::ring::Ring;
use super::trial::Causes;

/// Old clients that may wait for their last reports at once; beyond that the oldest is given up.
const RETIRING_MAX: usize = 4;
/// What may be remembered to be stuck in one client; beyond that it is replaced.
const STUCK_MAX: usize = 100_000;
/// A client that fails for good sooner than this after its start is not replaced at once.
const CLIENT_LIFE_MIN: Duration = Duration::from_secs(1);

/// Asks the client library whether it takes these properties, without making a client or touching the network.
///
/// # Errors
/// The name of the first property that it refuses, and a sentence with the library's own words, which hold the value.
pub fn check_properties(properties: &Properties) -> Result<(), (String, String)> {
    match client_config(properties).create_native_config() {
        Ok(_) => Ok(()),
        Err(KafkaError::ClientConfig(_, reason, name, _)) => {
            let reason = format!("Property \"{name}\": {}.", reason.trim_end().trim_end_matches('.'));
            Err((name, reason))
        }
        Err(error) => Err((String::new(), format!("{error}."))),
    }
}

/// The [`Publisher`] on librdkafka.
pub struct KafkaPublisher {
    properties: Properties,
    /// Rung by the client whenever reports or log lines wait.
    ring: Ring,
    caretaker: Caretaker,
    /// Made when first needed.
    current: Option<Client>,
    /// Batches of which it has the first rows and had no room for the rest.
    begun: BTreeSet<FlightId>,
    /// The batch of which it refused a row just now.
    refused: Option<FlightId>,
    retiring: Vec<Client>,
    /// Sends suspects, each in a request of its own; made anew when needed.
    apart: Option<Client>,
    suspects: VecDeque<Suspect>,
    /// Suspects that were called back before they were sent.
    given_up: Vec<usize>,
    inquiries: Arc<Inquiries>,
    contact: Contact,
}

impl KafkaPublisher {
    /// A publisher that makes its clients with these properties, see [`crate::properties::effective`], and rings when there
    /// is something to collect.
    ///
    /// # Errors
    /// When a client cannot be made: the properties contradict each other or the system is out of threads.
    pub fn new(properties: Properties, ring: Ring, caretaker: Caretaker) -> Result<Self, String> {
        let inquiries = Arc::default();
        let client = Client::new(&properties, &ring, caretaker.lines(), &inquiries, Requests::Shared)?;
        let contact = Contact::default();
        contact.is_now(&client.producer);
        let current = Some(client);
        // A new client waits half a second for its producer id, and batches wait for their suspects.
        let apart = Some(Client::new(&properties, &ring, caretaker.lines(), &inquiries, Requests::OneRow)?);
        Ok(Self {
            properties,
            ring,
            caretaker,
            current,
            begun: BTreeSet::new(),
            refused: None,
            retiring: Vec::new(),
            apart,
            suspects: VecDeque::new(),
            given_up: Vec::new(),
            inquiries,
            contact,
        })
    }

    /// How to reach the client that serves all buckets, whichever that is at the time.
    #[must_use]
    pub fn contact(&self) -> Contact {
        self.contact.clone()
    }

    /// Closes all clients elsewhere and returns a flag that is set when that is done.
    #[must_use]
    pub fn close(mut self) -> Arc<std::sync::atomic::AtomicBool> {
        for client in self.current.take().into_iter().chain(self.apart.take()).chain(self.retiring.drain(..)) {
            self.caretaker.close(Box::new(client));
        }
        self.caretaker.finish()
    }

    /// The client that packs rows so, made when first needed.
    fn client(&mut self, requests: Requests) -> Result<&mut Client, PublishError> {
        let place = match requests {
            Requests::Shared => &mut self.current,
            Requests::OneRow => &mut self.apart,
        };
        match place {
            Some(client) => Ok(client),
            place => {
                let client =
                    Client::new(&self.properties, &self.ring, self.caretaker.lines(), &self.inquiries, requests)
                        .map_err(|reason| report::publish_error(Class::Stop, reason))?;
                if requests == Requests::Shared {
                    self.contact.is_now(&client.producer);
                }
                Ok(place.insert(client))
            }
        }
    }

    /// Sends away the clients of which this is true; the next submission makes new ones.
    fn retire_if(&mut self, unwanted: impl Fn(&Client) -> bool) {
        let current = self.current.take_if(|client| unwanted(client));
        if current.is_some() {
            self.begun.clear();
            self.refused = None;
        }
        let apart = self.apart.take_if(|client| unwanted(client));
        for client in current.into_iter().chain(apart) {
            client.purge_queued();
            self.retiring.push(client);
            if self.retiring.len() > RETIRING_MAX {
                self.retiring[0].purge_all();
            }
        }
    }

    /// When nothing is on its way and no batch is to be continued, nothing can get ahead of anything.
    fn forget_what_was_stuck(&self) {
        let clients = || self.current.iter().chain(&self.apart);
        if self.suspects.is_empty() && self.begun.is_empty() && clients().all(|client| client.outstanding == 0) {
            clients().for_each(Client::forget_what_was_stuck);
        }
    }

    /// Sends the rows of refused requests again, as far as the second client takes them.
    fn send_apart(&mut self, reports: &mut Vec<Report>) {
        while let Some(suspect) = self.suspects.pop_front() {
            let sent = match self.client(Requests::OneRow) {
                Ok(client) => client.send_record(suspect.record()),
                Err(error) => Sent::Refused(error),
            };
            match sent {
                Sent::Queued => {}
                Sent::Full => {
                    self.suspects.push_front(suspect);
                    return;
                }
                Sent::Refused(error) => reports.push(report_of(suspect.opaque, Err(error))),
            }
        }
    }
}

impl Publisher for KafkaPublisher {
    fn submit(&mut self, flight: FlightId, batch: &Batch, from: usize) -> Submitted {
        let goes_on = self.refused.take() == Some(flight) || self.begun.remove(&flight);
        if from > 0 && !goes_on {
            // The first rows are with a client that was replaced since, and may be lost or late: no overtaking.
            return Submitted { rows: 0, refused: Some(PublishError::GivenUp) };
        }
        let client = match self.client(Requests::Shared) {
            Ok(client) => client,
            Err(error) => return Submitted { rows: 0, refused: Some(error) },
        };
        for index in from..batch.len() {
            let index_in_batch = u32::try_from(index).expect("batch_size is far below 2^32");
            match client.send(flight, index_in_batch, &batch.message(index)) {
                Sent::Queued => {}
                Sent::Full => {
                    if index > 0 {
                        self.begun.insert(flight);
                    }
                    return Submitted { rows: index - from, refused: None };
                }
                Sent::Refused(error) => {
                    self.refused = Some(flight);
                    return Submitted { rows: index - from, refused: Some(error) };
                }
            }
        }
        Submitted { rows: batch.len() - from, refused: None }
    }

    fn submit_apart(&mut self, flight: FlightId, batch: &Batch) -> Submitted {
        debug_assert_eq!(batch.len(), 1, "one row a request");
        let sent = match self.client(Requests::OneRow) {
            Ok(client) => client.send(flight, 0, &batch.message(0)),
            Err(error) => Sent::Refused(error),
        };
        match sent {
            Sent::Queued => Submitted { rows: 1, refused: None },
            Sent::Full => Submitted { rows: 0, refused: None },
            Sent::Refused(error) => Submitted { rows: 0, refused: Some(error) },
        }
    }

    fn collect(&mut self, reports: &mut Vec<Report>) {
        for client in self.current.iter_mut().chain(&mut self.retiring).chain(&mut self.apart) {
            client.collect(reports, &mut self.suspects);
        }
        for client in self.current.iter().chain(&self.apart) {
            for topic in client.take_doubted() {
                self.inquiries.look_up(&client.producer, topic, &self.caretaker, &self.ring);
            }
        }
        reports.extend(self.given_up.drain(..).map(|opaque| report_of(opaque, Err(PublishError::GivenUp))));
        self.send_apart(reports);
        self.forget_what_was_stuck();
        self.retire_if(Client::has_to_go);
        // What was on its way when a client failed for good, and is to be tried again, lies in its queue and is never sent.
        self.retiring.iter().filter(|client| client.is_broken()).for_each(Client::purge_queued);
        for done in self.retiring.extract_if(.., |client| client.outstanding == 0) {
            self.caretaker.close(Box::new(done));
        }
    }

    fn purge(&mut self) {
        for client in &self.retiring {
            client.purge_queued();
        }
        self.retire_if(|client| client.outstanding > 0);
        if !self.suspects.is_empty() {
            self.given_up.extend(self.suspects.drain(..).map(|suspect| suspect.opaque));
            self.ring.ring();
        }
    }

    fn inquire(&mut self, topic: &str) {
        let Ok(producer) = self.client(Requests::Shared).map(|client| client.producer.clone()) else { return };
        self.inquiries.look_up(&producer, topic.to_owned(), &self.caretaker, &self.ring);
    }

    fn answers(&mut self, answers: &mut Vec<Answer>) {
        answers.append(&mut self.inquiries.answers.lock().expect("no panic while it is held"));
    }

    fn abandon(&mut self) {
        self.purge();
        for client in &self.retiring {
            client.purge_all();
        }
    }
}

enum Sent {
    Queued,
    /// The client's queue is full: back-pressure, not an error.
    Full,
    Refused(PublishError),
}

/// One librdkafka producer and what it owes us.
struct Client {
    /// Declared before the producer, hence dropped before it.
    queue: MainQueue,
    producer: Arc<BaseProducer<Callbacks>>,
    /// Rows handed over whose report has not been collected.
    outstanding: usize,
    made_at: Instant,
    inquiries: Arc<Inquiries>,
}

fn make(properties: &Properties, ear: Ear, requests: Requests) -> Result<BaseProducer<Callbacks>, String> {
    let callbacks =
        Callbacks { ear, requests, collected: Mutex::default(), doubted: Mutex::default(), broken: Mutex::default() };
    let mut config = client_config(properties);
    if requests == Requests::OneRow {
        config.set("batch.num.messages", "1");
    }
    BaseProducer::from_config_and_context(&config, callbacks)
        .map_err(|error| format!("could not make a Kafka client: {error}"))
}

/// A client that sends nothing, and whose complaints are kept and not logged.
///
/// # Errors
/// When it cannot be made.
pub(super) fn client_for_a_trial(
    properties: &Properties,
    causes: Arc<Mutex<Causes>>,
) -> Result<BaseProducer<Callbacks>, String> {
    make(properties, Ear::Trial(causes), Requests::Shared)
}

impl Client {
    fn new(
        properties: &Properties,
        ring: &Ring,
        lines: Lines,
        inquiries: &Arc<Inquiries>,
        requests: Requests,
    ) -> Result<Self, String> {
        let producer = make(properties, Ear::Log(lines), requests)?;
        let queue = MainQueue::of(&producer, ring);
        let inquiries = inquiries.clone();
        Ok(Self { queue, producer: Arc::new(producer), outstanding: 0, made_at: Instant::now(), inquiries })
    }

    fn send(&mut self, flight: FlightId, index: u32, message: &Message<'_>) -> Sent {
        let alone = message.key.is_none() && message.partition.is_none();
        let opaque = report::pack(flight, index, alone);
        let headers = match record_headers(message) {
            Ok(headers) => headers,
            Err(error) => return Sent::Refused(report::publish_error(Class::Park, error.to_string())),
        };
        let mut record: BaseRecord<'_, [u8], [u8], usize> =
            BaseRecord::with_opaque_to(message.topic, opaque).headers(headers);
        record.key = message.key;
        record.payload = message.value;
        record.partition = message.partition;
        self.send_record(record)
    }

    fn send_record(&mut self, record: BaseRecord<'_, [u8], [u8], usize>) -> Sent {
        match self.producer.send(record) {
            Ok(()) => {
                self.outstanding += 1;
                Sent::Queued
            }
            Err((error, _)) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) => Sent::Full,
            Err((error, record)) => {
                let context = self.producer.context();
                context.doubt(&error, record.topic);
                Sent::Refused(self.judge(report::verdict(&error, record.topic)))
            }
        }
    }

    fn collect(&mut self, reports: &mut Vec<Report>, suspects: &mut VecDeque<Suspect>) {
        // The ring is heard only when the queue turns from empty to non-empty, so it is emptied each time.
        loop {
            self.producer.poll(Duration::ZERO);
            if self.queue.is_empty() {
                break;
            }
        }
        let mut collected = self.producer.context().collected.lock().expect("no panic while it is held");
        let deliveries = std::mem::take(&mut collected.deliveries);
        self.outstanding -= deliveries.len();
        drop(collected);
        for (opaque, delivery) in deliveries {
            let outcome = match delivery {
                Delivery::Appended => Ok(()),
                Delivery::Supposed | Delivery::Overtook => Err(PublishError::GivenUp),
                Delivery::Failed(verdict) => Err(self.judge(verdict)),
                Delivery::Suspected(suspect) => {
                    suspects.push_back(*suspect);
                    continue;
                }
            };
            reports.push(report_of(opaque, outcome));
        }
    }

    fn judge(&self, verdict: Verdict) -> PublishError {
        match verdict {
            Verdict::Row(error) => error,
            // The look-up that is due now says whether the topic is there; until then it is not the row's fault.
            Verdict::NoPartition { topic, told } => {
                let class = if self.inquiries.is_there(&topic) { Class::Park } else { Class::BackOffTopic };
                report::publish_error(class, told)
            }
            Verdict::Client(reason) => self.broke(reason),
        }
    }

    /// Notes that the client is beyond repair, and says what that means for the row that met it.
    fn broke(&self, reason: String) -> PublishError {
        // A fatal error stands for another one, which says more.
        let (class, reason) = match self.producer.client().fatal_error() {
            Some((code, words)) => (errors::class(code), errors::tell(code, Some(&words))),
            None => (Class::Rebuild, reason),
        };
        self.producer.context().broke(&reason);
        match class {
            Class::Stop => report::publish_error(class, reason),
            // One that breaks at once would be replaced without end: then the row waits before it is tried again.
            _ if self.made_at.elapsed() < CLIENT_LIFE_MIN => report::publish_error(Class::Retry, reason),
            _ => report::publish_error(Class::Rebuild, reason),
        }
    }

    /// Topics of which the client reported that they, or a partition, do not exist or cannot be used.
    fn take_doubted(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.producer.context().doubted.lock().expect("no panic while it is held"))
    }

    fn forget_what_was_stuck(&self) {
        self.producer.context().collected.lock().expect("no panic while it is held").stuck.0.clear();
    }

    /// Whether it is beyond repair, or too much is to be remembered of it.
    fn has_to_go(&self) -> bool {
        let collected = self.producer.context().collected.lock().expect("no panic while it is held");
        let too_much = collected.stuck.0.len() >= STUCK_MAX;
        drop(collected);
        too_much || self.is_broken()
    }

    /// Whether it has failed for good.
    fn is_broken(&self) -> bool {
        self.producer.context().broken.lock().expect("no panic while it is held").is_some()
    }

    /// Calls back what was not sent, without waiting for the client's threads.
    fn purge_queued(&self) {
        self.producer.purge(PurgeConfig::default().queue().non_blocking());
    }

    fn purge_all(&self) {
        self.producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
    }
}

fn report_of(opaque: usize, outcome: Result<(), PublishError>) -> Report {
    let (flight, index) = report::unpack(opaque);
    Report { flight, index, outcome }
}

/// The stored headers in their order without a forged message id, then the message id.
fn record_headers(message: &Message<'_>) -> Result<OwnedHeaders, headers::HeadersError> {
    let stored = message.headers.map(headers::decode).transpose()?.unwrap_or_default();
    let mut headers = OwnedHeaders::new_with_capacity(stored.len() + 1);
    // Consumers read the first header of a name, so one that the application stored would shadow ours.
    for header in stored.iter().filter(|header| header.name != MESSAGE_ID_HEADER) {
        headers = headers.insert(Header { key: header.name, value: header.value });
    }
    let mut text = [0; 36];
    let id = uuid::Uuid::from_bytes(message.message_id).hyphenated().encode_lower(&mut text);
    Ok(headers.insert(Header { key: MESSAGE_ID_HEADER, value: Some(id.as_bytes()) }))
}

/// How a client packs rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Requests {
    /// As many in a request as it likes.
    Shared,
    /// One, so that a refusal names its row.
    OneRow,
}

/// A row of a request that was refused as a whole.
struct Suspect {
    opaque: usize,
    topic: String,
    /// The partition that was chosen at first, which must not change.
    partition: i32,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Option<OwnedHeaders>,
}

impl Suspect {
    fn of(opaque: usize, message: &BorrowedMessage<'_>) -> Self {
        Self {
            opaque,
            topic: message.topic().to_owned(),
            partition: message.partition(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: message.headers().map(BorrowedHeaders::detach),
        }
    }

    fn record(&self) -> BaseRecord<'_, [u8], [u8], usize> {
        let mut record = BaseRecord::with_opaque_to(&self.topic, self.opaque).partition(self.partition);
        record.key = self.key.as_deref();
        record.payload = self.value.as_deref();
        record.headers = self.headers.clone();
        record
    }
}

/// What the client reported of a row.
enum Delivery {
    /// The broker has it, and said where.
    Appended,
    /// The client takes it for appended without having been told so: a later request of the partition was accepted. That
    /// proves nothing while the broker does not know this producer there; a request that it had refused is lost then.
    Supposed,
    /// The broker has it, but not an earlier row of its flight with the same key.
    Overtook,
    /// Its request was refused as a whole.
    Suspected(Box<Suspect>),
    Failed(Verdict),
}

/// What has come in since it was looked at last.
#[derive(Default)]
struct Collected {
    deliveries: Vec<(usize, Delivery)>,
    stuck: Stuck,
}

/// The first row of each unit that was not acknowledged, so that nothing behind it is. What is called back is reported before
/// earlier rows that were sent.
#[derive(Default)]
struct Stuck(BTreeMap<Unit, u32>);

impl Stuck {
    fn note(&mut self, unit: Unit, index: u32) {
        let first = self.0.entry(unit).or_insert(index);
        *first = index.min(*first);
    }

    /// Whether a row of this one's unit in front of it was not acknowledged. The unit is asked for only where something of the
    /// flight was not, for hashing a key costs time.
    fn is_before(&self, (flight, index): (FlightId, u32), unit: impl FnOnce() -> Unit) -> bool {
        self.0.range((flight, 0)..=(flight, u64::MAX)).next().is_some()
            && self.0.get(&unit()).is_some_and(|first| *first < index)
    }
}

/// What has an order: the rows of a flight with one topic, partition and key. The latter as a hash, which is short; if two
/// ever share one, a row is published once more than needed.
type Unit = (FlightId, u64);

fn unit_of(opaque: usize, message: &BorrowedMessage<'_>) -> Unit {
    let mut hasher = DefaultHasher::new();
    (message.topic(), message.partition(), message.key()).hash(&mut hasher);
    (report::unpack(opaque).0, hasher.finish())
}

/// What the client calls, on the thread that polls it.
pub(super) struct Callbacks {
    ear: Ear,
    requests: Requests,
    collected: Mutex<Collected>,
    /// Topics to be looked at anew.
    doubted: Mutex<BTreeSet<String>>,
    /// Why the client is beyond repair.
    broken: Mutex<Option<String>>,
}

impl Callbacks {
    /// Notes a topic that the client knows too little of, by this error.
    fn doubt(&self, error: &KafkaError, topic: &str) {
        if report::doubts_topic(error) {
            self.doubted.lock().expect("no panic while it is held").insert(topic.to_owned());
        }
    }

    /// Notes that the client is beyond repair. It is said with the client's own lines, which are thinned out.
    fn broke(&self, reason: &str) {
        let mut broken = self.broken.lock().expect("no panic while it is held");
        if broken.is_none() {
            self.ear.hear(RDKafkaLogLevel::Error, "REPLACED", reason);
            *broken = Some(reason.to_owned());
        }
    }
}

impl ClientContext for Callbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.ear.hear(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // That all brokers are down says less than why, which has been said of each.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            self.ear.hear(RDKafkaLogLevel::Error, "ERROR", reason);
        }
    }
}

/// Who hears what a client has to say.
enum Ear {
    Log(Lines),
    Trial(Arc<Mutex<Causes>>),
}

impl Ear {
    fn hear(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        match self {
            Self::Log(lines) => lines.push(level, facility, text),
            Self::Trial(causes) if level as i32 <= RDKafkaLogLevel::Warning as i32 => {
                causes.lock().expect("no panic while it is held").hear(text);
            }
            Self::Trial(_) => {}
        }
    }
}

impl ProducerContext for Callbacks {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let mut collected = self.collected.lock().expect("no panic while it is held");
        let (in_order, row) = (!report::is_alone(opaque), report::unpack(opaque));
        let (message, delivery) = match result {
            Ok(message) if message.offset() < 0 => (message, Delivery::Supposed),
            Ok(message) if in_order && collected.stuck.is_before(row, || unit_of(opaque, message)) => {
                (message, Delivery::Overtook)
            }
            Ok(message) => (message, Delivery::Appended),
            Err((error, message)) if self.requests == Requests::Shared && report::blames_all(error) => {
                (message, Delivery::Suspected(Box::new(Suspect::of(opaque, message))))
            }
            Err((error, message)) => {
                self.doubt(error, message.topic());
                // What the broker said of the row is not asked for: this librdkafka (2.12.1) has freed the text by now.
                (message, Delivery::Failed(report::verdict(error, message.topic())))
            }
        };
        if !matches!(delivery, Delivery::Appended) && collected.stuck.0.len() < STUCK_MAX && in_order {
            collected.stuck.note(unit_of(opaque, message), row.1);
        }
        collected.deliveries.push((opaque, delivery));
    }
}

/// The queue of a client from which reports and log lines are polled.
struct MainQueue {
    queue: *mut rdsys::rd_kafka_queue_t,
    /// Keeps the descriptor open as long as the client may write to it.
    _ring: Ring,
}

// SAFETY: librdkafka's queues may be used from any thread; the pointer is only counted, read and released.
unsafe impl Send for MainQueue {}

impl MainQueue {
    /// Makes the client ring when its queue turns from empty to non-empty.
    fn of(producer: &BaseProducer<Callbacks>, ring: &Ring) -> Self {
        // SAFETY: the client outlives the queue (see `Client`), and what is to be written is copied by the call.
        let queue = unsafe {
            let queue = rdsys::rd_kafka_queue_get_main(producer.client().native_ptr());
            rdsys::rd_kafka_queue_io_event_enable(queue, ring.fd(), Ring::RING.as_ptr().cast(), Ring::RING.len());
            queue
        };
        Self { queue, _ring: ring.clone() }
    }

    fn is_empty(&self) -> bool {
        // SAFETY: the reference that `of` took is released only by `drop`.
        unsafe { rdsys::rd_kafka_queue_length(self.queue) == 0 }
    }
}

impl Drop for MainQueue {
    fn drop(&mut self) {
        // SAFETY: releases the one reference taken in `of`; there is no ringing after this.
        unsafe {
            rdsys::rd_kafka_queue_io_event_enable(self.queue, -1, std::ptr::null(), 0);
            rdsys::rd_kafka_queue_destroy(self.queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::Headers as _;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use rdkafka::{ClientConfig, Offset, TopicPartitionList};

    use super::*;

    fn message(headers: Option<&[u8]>) -> Message<'_> {
        let (partition, key, value) = (None, None, None);
        Message { id: 1, topic: "t", partition, key, value, headers, message_id: [0xAB; 16], handle: &[] }
    }

    #[test]
    fn the_message_id_is_the_last_header_and_a_forged_one_is_removed() {
        let pairs = [("b", Some("1")), ("x-outbox-message-id", Some("forged")), ("a", None), ("b", Some(""))];
        let stored = pairs.map(|(name, value)| headers::Header { name, value: value.map(str::as_bytes) });
        let blob = headers::encode(stored.into_iter()).expect("there are some");
        let record = record_headers(&message(Some(&blob))).expect("they can be read");
        let sent: Vec<_> =
            record.iter().map(|header| (header.key, header.value.map(String::from_utf8_lossy))).collect();
        let id = "abababab-abab-abab-abab-abababababab";
        let expected = [("b", Some("1")), ("a", None), ("b", Some("")), ("x-outbox-message-id", Some(id))];
        assert_eq!(sent, expected.map(|(name, value)| (name, value.map(Into::into))));
        assert_eq!(record_headers(&message(None)).expect("there are none").count(), 1);
    }

    #[test]
    fn headers_that_cannot_be_read_concern_their_row() {
        for blob in [&[][..], &[2, 0, 0, 0, 0], &[1, 255, 255, 255, 127]] {
            assert!(record_headers(&message(Some(blob))).is_err());
        }
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A broker for injected errors with a topic `t` of one partition, and a publisher that knows it.
    fn publisher_on_a_mock(setting: &[(&str, &str)]) -> (MockCluster<'static, DefaultProducerContext>, KafkaPublisher) {
        let cluster = MockCluster::new(1).expect("a broker for injected errors");
        cluster.create_topic("t", 1, 1).expect("a topic");
        let setting = setting.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let properties = crate::properties::effective(&cluster.bootstrap_servers(), &setting, &Properties::default());
        let ring = Ring::new().expect("a descriptor");
        let caretaker = Caretaker::start(ring.clone()).expect("a thread");
        (cluster, KafkaPublisher::new(properties, ring, caretaker).expect("a client"))
    }

    /// The reports of so many rows, by index.
    fn collect(publisher: &mut KafkaPublisher, rows: usize) -> Vec<Report> {
        let mut reports = Vec::new();
        wait_until(|| {
            publisher.collect(&mut reports);
            reports.len() == rows
        });
        reports.sort_by_key(|report| report.index);
        reports
    }

    fn wait_until(mut reached: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !reached() {
            assert!(Instant::now() < deadline, "it does not come");
            std::thread::yield_now();
        }
    }

    fn outcomes(reports: &[Report]) -> Vec<Result<(), PublishError>> {
        reports.iter().map(|report| report.outcome.clone()).collect()
    }

    #[test]
    fn a_row_is_not_acknowledged_behind_an_earlier_one_of_its_key_that_was_refused() {
        let (cluster, mut publisher) = publisher_on_a_mock(&[("batch.num.messages", "1")]);
        // The request of the first row alone, which the second client repeats.
        cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
        let mut batch = Batch::default();
        for key in [b"k", b"j", b"k"] {
            batch.push(&Message { key: Some(key), ..message(None) });
        }
        publisher.submit(1, &batch, 0);
        let reports = collect(&mut publisher, 3);
        assert_eq!(outcomes(&reports), [Ok(()), Ok(()), Err(PublishError::GivenUp)]);
        // Another batch begins anew.
        publisher.submit(2, &batch, 0);
        assert_eq!(outcomes(&collect(&mut publisher, 3)), [Ok(()), Ok(()), Ok(())]);
    }

    #[test]
    fn what_is_called_back_casts_no_doubt_on_earlier_rows_that_were_sent() {
        let mut stuck = Stuck::default();
        stuck.note((1, 7), 5);
        stuck.note((1, 7), 9);
        let is_before = |stuck: &Stuck, (flight, key), index| stuck.is_before((flight, index), || (flight, key));
        assert!(!is_before(&stuck, (1, 7), 4), "reported later, but sent before");
        assert!(is_before(&stuck, (1, 7), 6));
        assert!(!is_before(&stuck, (2, 7), 6) && !is_before(&stuck, (1, 8), 6));
        stuck.note((1, 7), 3);
        assert!(is_before(&stuck, (1, 7), 4));
    }

    #[test]
    fn a_missing_partition_is_the_rows_fault_only_once_a_broker_has_said_that_the_topic_is_there() {
        let (_cluster, mut publisher) = publisher_on_a_mock(&[]);
        let mut batch = Batch::default();
        batch.push(&Message { partition: Some(9), ..message(None) });
        let mut flight = 0;
        let mut try_it = |publisher: &mut KafkaPublisher| {
            flight += 1;
            let refused = publisher.submit(flight, &batch, 0).refused;
            refused.unwrap_or_else(|| {
                let report = collect(publisher, 1).pop().expect("one report");
                report.outcome.expect_err("there is no such partition")
            })
        };
        let first = try_it(&mut publisher);
        assert!(matches!(first, PublishError::Topic(_)), "it may have been deleted: {first:?}");
        wait_until(|| {
            publisher.collect(&mut Vec::new());
            publisher.inquiries.is_quiet()
        });
        let second = try_it(&mut publisher);
        assert!(matches!(second, PublishError::Invalid(_)), "{second:?}");
    }

    #[test]
    fn an_inquiry_is_answered_once_a_broker_lives_and_tells_whether_the_topic_is_in_trouble() {
        let (cluster, mut publisher) = publisher_on_a_mock(&[]);
        let answers = |publisher: &mut KafkaPublisher| {
            let mut answers = Vec::new();
            publisher.answers(&mut answers);
            answers
        };
        let answer = |in_trouble| [Answer { topic: "t".to_owned(), in_trouble }];
        assert_eq!(answers(&mut publisher), [], "nobody has asked");
        publisher.inquire("t");
        wait_until(|| answers(&mut publisher) == answer(false));
        cluster.broker_down(1).expect("a broker");
        publisher.inquire("t");
        // Its patience ends without an answer.
        wait_until(|| publisher.inquiries.is_quiet());
        assert_eq!(answers(&mut publisher), [], "nobody is there");
        cluster.broker_up(1).expect("a broker");
        cluster.topic_error("t", RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).expect("a topic");
        publisher.inquire("t");
        wait_until(|| answers(&mut publisher) == answer(true));
    }

    #[test]
    fn what_was_sent_and_not_answered_is_given_up_when_it_is_abandoned() {
        let (cluster, mut publisher) = publisher_on_a_mock(&[]);
        let mut batch = Batch::default();
        batch.push(&message(None));
        publisher.submit(1, &batch, 0);
        assert_eq!(outcomes(&collect(&mut publisher, 1)), [Ok(())]);
        cluster.broker_round_trip_time(1, 10 * PATIENCE).expect("a broker");
        // A purge spares what was sent: what it takes had not been.
        let mut flights = 2..;
        let sent = |flight: &u32| {
            publisher.submit(*flight, &batch, 0);
            std::thread::sleep(Duration::from_millis(100));
            publisher.purge();
            std::thread::sleep(Duration::from_millis(100));
            let mut reports = Vec::new();
            publisher.collect(&mut reports);
            reports.is_empty()
        };
        assert!(flights.find(sent).is_some());
        publisher.abandon();
        assert_eq!(outcomes(&collect(&mut publisher, 1)), [Err(PublishError::GivenUp)]);
        cluster.broker_round_trip_time(1, Duration::ZERO).expect("a broker");
        publisher.submit(1, &batch, 0);
        assert_eq!(outcomes(&collect(&mut publisher, 1)), [Ok(())]);
    }

    /// Publishes rows, one a request, through a broker that refuses the first request and takes the others. Returns the
    /// reports by index, and the ids of the messages that the broker has.
    fn publish_where_the_first_request_is_refused(max_in_flight: &str) -> (Vec<Report>, Vec<[u8; 16]>) {
        const ROWS: u8 = 4;
        let (cluster, mut publisher) =
            publisher_on_a_mock(&[("max.in.flight", max_in_flight), ("batch.num.messages", "1")]);

        cluster.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION]);
        // Slow enough for the others to be on their way when the first is refused.
        cluster.broker_round_trip_time(1, Duration::from_millis(100)).expect("a broker");
        let mut batch = Batch::default();
        for row in 0..ROWS {
            // Keys of their own, so that none waits for another.
            let (key, message_id) = ([row], [row; 16]);
            batch.push(&Message { id: i64::from(row) + 1, message_id, key: Some(&key), ..message(None) });
        }
        assert_eq!(publisher.submit(1, &batch, 0), Submitted { rows: ROWS.into(), refused: None });
        let reports = collect(&mut publisher, ROWS.into());

        let bootstrap = cluster.bootstrap_servers();
        let deadline = Instant::now() + PATIENCE;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap).set("group.id", "test").set("enable.partition.eof", "true");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        let mut from_the_start = TopicPartitionList::new();
        from_the_start.add_partition_offset("t", 0, Offset::Beginning).expect("a partition");
        consumer.assign(&from_the_start).expect("a partition to read");
        let mut has = Vec::new();
        loop {
            match consumer.poll(deadline.saturating_duration_since(Instant::now())).expect("an answer in time") {
                Err(KafkaError::PartitionEOF(_)) => break,
                Err(error) => panic!("{error}"),
                Ok(record) => {
                    let headers = record.headers().expect("the message id");
                    let id = headers.get(headers.count() - 1).value.expect("the message id");
                    has.push(uuid::Uuid::try_parse_ascii(id).expect("the message id").into_bytes());
                }
            }
        }
        (reports, has)
    }

    #[test]
    fn what_the_client_only_supposes_to_be_appended_is_not_acknowledged() {
        let (reports, has) = publish_where_the_first_request_is_refused("5");
        assert!(!has.contains(&[0; 16]), "the broker refused it, and the client did not send it again");
        for report in reports {
            let acknowledged = has.contains(&[report.index as u8; 16]);
            assert_eq!(report.outcome, if acknowledged { Ok(()) } else { Err(PublishError::GivenUp) }, "{report:?}");
        }
    }

    #[test]
    fn a_refused_request_is_not_overtaken_while_the_broker_does_not_know_the_producer() {
        let (reports, has) = publish_where_the_first_request_is_refused(crate::properties::MAX_IN_FLIGHT);
        assert!(reports.iter().all(|report| report.outcome == Ok(())), "{reports:?}");
        assert_eq!(has, [[0; 16], [1; 16], [2; 16], [3; 16]]);
    }
}
