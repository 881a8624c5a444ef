//! The limits of the machine: a producer without a database, an INSERT without an outbox, a read that sends nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use outbox_relay_pg_test::broker::Broker;
use outbox_relay_pg_test::consumer::MESSAGE_ID;
use outbox_relay_pg_test::process;
use postgres::Client;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use uuid::Uuid;

use crate::memory;
use crate::messages::{Headers, Messages};

/// The laws and defaults of a relay's producer, as in src/properties.rs of the extension. Its queue is longer there than a relay
/// ever fills it; here it is what keeps the producer from holding everything in memory.
pub const SETTINGS: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("partitioner", "murmur2_random"),
    ("message.timeout.ms", "0"),
    ("message.max.bytes", "1000000000"),
    ("linger.ms", "0"),
    ("batch.num.messages", "10000"),
    ("batch.size", "1000000"),
    ("max.in.flight", "1"),
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

/// Hands a record to the client, and waits while that has its fill.
fn send(producer: &BaseProducer<Acknowledged>, mut record: BaseRecord<'_, String, Vec<u8>>) -> Result<()> {
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), again)) => {
                record = again;
                producer.poll(Duration::from_millis(1));
            }
            Err((error, _)) => return Err(error).context("could not produce"),
        }
    }
}

/// The one header that a relay's records have.
fn message_id(id: &str) -> OwnedHeaders {
    OwnedHeaders::new_with_capacity(1).insert(Header { key: MESSAGE_ID, value: Some(id) })
}

/// What it took to produce.
pub struct Produced {
    /// From the first record to the last acknowledgement.
    pub took: Duration,
    /// Processor time of this process meanwhile: nothing else happens in it.
    pub processor: Duration,
}

/// Produces all messages to a topic that is there.
pub fn produce(broker: &Broker, topic: &str, messages: &Messages, headers: Headers) -> Result<Produced> {
    let producer = producer(broker)?;
    // The topic's metadata is no part of the rate.
    producer.client().fetch_metadata(Some(topic), FLUSH_AT_MOST).context("metadata")?;
    let id = Uuid::new_v4().to_string();
    let keys: Vec<String> = (0..messages.keys.min(messages.count)).map(|row| messages.key(row)).collect();
    let mut value = messages.padding();

    memory::touch(messages)?;
    let own = std::process::id() as i32;
    let processor = process::processor_time(own)?;
    let since = Instant::now();
    for row in 0..messages.count {
        // The row's number, which only grows longer, before the padding.
        let digits = row.to_string();
        value[..digits.len()].copy_from_slice(digits.as_bytes());
        let mut record = BaseRecord::to(topic).key(&keys[(row % messages.keys) as usize]).payload(&value);
        if headers == Headers::MessageId {
            record = record.headers(message_id(&id));
        }
        send(&producer, record)?;
        if row % 1_000 == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    producer.flush(FLUSH_AT_MOST).context("could not flush")?;
    let took = since.elapsed();
    let processor = process::processor_time(own)? - processor;
    let counts = producer.context();
    let (good, bad) = (counts.good.load(Ordering::Relaxed), counts.bad.load(Ordering::Relaxed));
    ensure!(good == messages.count && bad == 0, "{good} of {} acknowledged, {bad} refused", messages.count);
    Ok(Produced { took, processor })
}

/// A producer without a database that keeps a pace, in a thread of its own.
pub struct Paced {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Paced {
    /// Begins to send all messages again and again, with the message id, each time after `every`, or as fast as it can if that
    /// is slower.
    pub fn start(broker: &Broker, topic: &str, messages: Messages, every: Duration) -> Result<Paced> {
        let producer = producer(broker)?;
        producer.client().fetch_metadata(Some(topic), FLUSH_AT_MOST).context("metadata")?;
        let stop = Arc::new(AtomicBool::new(false));
        let (topic, stopped) = (topic.to_owned(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (id, value, since) = (Uuid::new_v4().to_string(), messages.padding(), Instant::now());
            for turn in 1.. {
                for row in 0..messages.count {
                    let key = messages.key(u64::from(turn) * messages.count + row);
                    send(&producer, BaseRecord::to(&topic).key(&key).payload(&value).headers(message_id(&id)))?;
                }
                producer.poll(Duration::ZERO);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep((every * turn).saturating_sub(since.elapsed()));
            }
            producer.flush(FLUSH_AT_MOST).context("could not flush")
        });
        Ok(Paced { stop, thread })
    }

    /// Ends it; an error if it could not keep on.
    pub fn finish(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the producer's thread has panicked"))?
    }
}

/// Columns, defaults, checks, index and storage settings of the outbox, and nobody who reads it.
const TABLE: &str = "
    drop table if exists raw_message;
    create table raw_message (like outbox.message including all);
    do $$
    begin
        execute (
            select format('alter table raw_message set (%s)', array_to_string(reloptions, ', '))
            from pg_class where oid = 'outbox.message'::regclass
        );
    end
    $$";

/// Makes the table for [`insert`] anew.
pub fn make_table(client: &mut Client) -> Result<()> {
    client.batch_execute(TABLE).context("could not make a table like outbox.message")
}

/// Leaves nothing of it.
pub fn drop_table(client: &mut Client) -> Result<()> {
    client.batch_execute("drop table raw_message").context("could not drop the table like outbox.message")
}

/// Inserts all messages by one statement into the empty table; the time that takes, with its commit.
pub fn insert(client: &mut Client, topic: &str, messages: &Messages) -> Result<Duration> {
    let since = Instant::now();
    let inserted = client
        .execute(
            "insert into raw_message (bucket, topic, key, value, message_id)
             select n % 8, $1, convert_to('key-' || n % $2::bigint, 'UTF8'),
                    convert_to(n::text, 'UTF8') || substr($3::bytea, length(n::text) + 1), gen_random_uuid()
             from generate_series(0, $4::bigint - 1) n",
            &[&topic, &(messages.keys as i64), &messages.padding(), &(messages.count as i64)],
        )
        .context("could not insert the rows")?;
    let took = since.elapsed();
    ensure!(inserted == messages.count, "{inserted} of {} rows were inserted", messages.count);
    Ok(took)
}

/// Pages as a relay fetches them, by a prepared plan inside of the server. The lengths make it look at every column that is sent.
const READ: &str = "
    create or replace function pg_temp.read_all() returns bigint language plpgsql as $$
    declare
        page constant integer := 5000;
        total bigint := 0;
        after bigint;
        last bigint;
        got bigint;
        bytes bigint;
    begin
        for wanted in 0..7 loop
            after := 0;
            loop
                select max(r.id), count(r.xmin), sum(length(r.topic) + length(r.key) + length(r.value)
                       + coalesce(length(r.headers), 0) + coalesce(r.partition, 0) + length(uuid_send(r.message_id)))
                into last, got, bytes
                from (
                    select id, topic, partition, key, value, headers, message_id, xmin
                    from raw_message where bucket = wanted and id > after order by id limit page
                ) r;
                total := total + got;
                exit when got < page;
                after := last;
            end loop;
        end loop;
        return total;
    end
    $$";

/// Reads all rows of the table in the order of their ids; the time that takes.
pub fn read(client: &mut Client, messages: &Messages) -> Result<Duration> {
    client.batch_execute(READ).context("could not make the function that reads")?;
    let since = Instant::now();
    let read: i64 = client.query_one("select pg_temp.read_all()", &[]).context("could not read the rows")?.get(0);
    let took = since.elapsed();
    ensure!(read as u64 == messages.count, "{read} of {} rows were read", messages.count);
    Ok(took)
}
