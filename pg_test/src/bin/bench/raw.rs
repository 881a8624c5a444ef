//! The raw producer: the relay's settings, the relay's bytes, and no database.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::broker::Broker;
use outbox_relay_pg_test::consumer::MESSAGE_ID;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

/// Bytes of each value.
pub const VALUE_BYTES: usize = 200;
/// Different keys.
pub const KEYS: u64 = 100_000;
/// Partitions of each topic.
pub const PARTITIONS: i32 = 4;

/// The laws and defaults of a relay's producer, as in src/properties.rs of the extension.
pub const SETTINGS: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("partitioner", "murmur2_random"),
    ("message.timeout.ms", "0"),
    ("message.max.bytes", "1000000000"),
    ("linger.ms", "0"),
    ("batch.num.messages", "10000"),
    ("batch.size", "1000000"),
    ("queue.buffering.max.messages", "500000"),
    ("queue.buffering.max.kbytes", "1048576"),
];

const FLUSH_AT_MOST: Duration = Duration::from_secs(120);

/// Counts what the broker acknowledged.
#[derive(Default)]
pub struct Acknowledged {
    good: AtomicU64,
    bad: AtomicU64,
}

impl ClientContext for Acknowledged {}

impl ProducerContext for Acknowledged {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _opaque: ()) {
        match result {
            Ok(_) => self.good.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.bad.fetch_add(1, Ordering::Relaxed),
        };
    }
}

/// A producer with the relay's settings.
pub fn producer(broker: &Broker) -> Result<BaseProducer<Acknowledged>> {
    let mut settings = ClientConfig::new();
    settings.set("bootstrap.servers", broker.bootstrap());
    for (name, value) in SETTINGS {
        settings.set(*name, *value);
    }
    BaseProducer::from_config_and_context(&settings, Acknowledged::default()).context("could not make a producer")
}

/// Whether records carry the message id that a relay adds to each. Headers are dear: with one, the client is half as fast.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// Key and value only: what a producer without an outbox sends.
    None,
    /// The relay's bytes exactly.
    MessageId,
}

/// Produces `rows` records to a new topic; returns the time from the first to the last acknowledgement.
pub fn produce(broker: &Broker, topic: &str, rows: u64, headers: Headers) -> Result<Duration> {
    broker.create_topic(topic, PARTITIONS, &[])?;
    let producer = producer(broker)?;
    // The topic's metadata is no part of the rate.
    producer.client().fetch_metadata(Some(topic), FLUSH_AT_MOST).context("metadata")?;
    let id = Uuid::new_v4().to_string();

    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let mut value = vec![b'.'; VALUE_BYTES];

    let since = Instant::now();
    for row in 0..rows {
        // The row's number, which only grows longer, before the padding.
        let digits = row.to_string();
        value[..digits.len()].copy_from_slice(digits.as_bytes());
        let mut record = BaseRecord::to(topic).key(&keys[(row % KEYS) as usize]).payload(&value);
        if headers == Headers::MessageId {
            record =
                record.headers(OwnedHeaders::new_with_capacity(1).insert(Header { key: MESSAGE_ID, value: Some(&id) }));
        }
        loop {
            match producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), again)) => {
                    record = again;
                    producer.poll(Duration::from_millis(1));
                }
                Err((error, _)) => return Err(error).context("could not produce"),
            }
        }
        if row % 1_000 == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    producer.flush(FLUSH_AT_MOST).context("could not flush")?;
    let took = since.elapsed();
    let counts = producer.context();
    let (good, bad) = (counts.good.load(Ordering::Relaxed), counts.bad.load(Ordering::Relaxed));
    ensure!(good == rows && bad == 0, "{good} of {rows} acknowledged, {bad} refused");
    Ok(took)
}

/// The key of a row; many keys, each again and again.
pub fn key(row: u64) -> String {
    format!("key-{}", row % KEYS)
}
