//! Reads back what reached Kafka: an ordinary consumer that knows nothing of the extension.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use uuid::Uuid;

use crate::broker::client_settings;

/// The header that tells copies of one message.
pub const MESSAGE_ID: &str = "x-outbox-message-id";

const ANSWER_AT_MOST: Duration = Duration::from_secs(15);

/// A record as it lies in Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// Offset in the partition.
    pub offset: i64,
    /// Time stamp in milliseconds since 1970.
    pub timestamp: i64,
    /// Key; none for a keyless record, which is not the empty key.
    pub key: Option<Vec<u8>>,
    /// Value; none for a tombstone, which is not the empty value.
    pub value: Option<Vec<u8>>,
    /// Headers in their order, duplicates included.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Record {
    /// The message id: the last header, and the only one of that name.
    pub fn message_id(&self) -> Result<Uuid> {
        let (name, value) = self.headers.last().context("the record has no header")?;
        ensure!(name == MESSAGE_ID, "the last header is {name:?}, not the message id");
        let ids = self.headers.iter().filter(|(name, _)| name == MESSAGE_ID).count();
        ensure!(ids == 1, "the record carries {ids} message ids");
        let value = value.as_deref().context("the message id is null")?;
        ensure!(value.len() == 36, "the message id has {} characters", value.len());
        let text = std::str::from_utf8(value).context("the message id is no text")?;
        let id = Uuid::parse_str(text).with_context(|| format!("the message id {text:?} is no uuid"))?;
        ensure!(id.hyphenated().to_string() == text, "the message id {text:?} is not in lower-case hyphenated form");
        Ok(id)
    }

    /// The value as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.value.as_deref().unwrap_or_default()).into_owned()
    }
}

/// Follows topics from their beginning.
pub struct Consumer {
    client: BaseConsumer,
    /// The next offset to be read of each partition.
    positions: HashMap<(String, i32), i64>,
}

impl Consumer {
    /// Follows all partitions that `topics` have now, and fetches ahead whether or not anything is read.
    pub fn follow(bootstrap: &str, topics: &[&str]) -> Result<Consumer> {
        let consumer = Consumer::counter(bootstrap, topics)?;
        let assignment = consumer.all_partitions(Offset::Beginning)?;
        consumer.client.assign(&assignment).context("could not assign partitions")?;
        Ok(consumer)
    }

    /// Only counts what the partitions hold that `topics` have now, and fetches nothing.
    pub fn counter(bootstrap: &str, topics: &[&str]) -> Result<Consumer> {
        let client: BaseConsumer = client_settings(bootstrap)
            // librdkafka wants a group even from a consumer that joins none and commits nothing.
            .set("group.id", "reads-everything")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_uncommitted")
            .set("fetch.wait.max.ms", "500")
            .set("fetch.queue.backoff.ms", "1")
            .set("queued.min.messages", "1000000")
            .create()
            .context("could not make a consumer")?;
        let mut positions = HashMap::new();
        for topic in topics {
            let metadata = client.fetch_metadata(Some(topic), ANSWER_AT_MOST).context("metadata")?;
            let partitions = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
            ensure!(partitions > 0, "there is no topic {topic}");
            for partition in 0..partitions as i32 {
                positions.insert(((*topic).to_owned(), partition), 0);
            }
        }
        Ok(Consumer { client, positions })
    }

    /// Fetches nothing until [`Self::resume`], and forgets what it has fetched ahead.
    pub fn pause(&self) -> Result<()> {
        self.client.pause(&self.all_partitions(Offset::Invalid)?).context("could not pause")
    }

    /// Goes on where it was left.
    pub fn resume(&self) -> Result<()> {
        self.client.resume(&self.all_partitions(Offset::Invalid)?).context("could not resume")
    }

    fn all_partitions(&self, offset: Offset) -> Result<TopicPartitionList> {
        let mut all = TopicPartitionList::new();
        for (topic, partition) in self.positions.keys() {
            all.add_partition_offset(topic, *partition, offset).context("a list of partitions")?;
        }
        Ok(all)
    }

    /// The next record, if one comes in time.
    pub fn next(&mut self, at_most: Duration) -> Result<Option<Record>> {
        let until = Instant::now() + at_most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.client.poll(left) {
                Some(Ok(message)) => {
                    let record = to_record(&message);
                    let before = self.positions.insert((record.topic.clone(), record.partition), record.offset + 1);
                    // Nothing here is compacted, expires or is transactional: what was passed over was not read.
                    ensure!(
                        before == Some(record.offset),
                        "the consumer passed over records of {} [{}]: after {before:?} came {}",
                        record.topic,
                        record.partition,
                        record.offset
                    );
                    return Ok(Some(record));
                }
                // A broker that is away is none of the consumer's errors: it comes back or the bound ends the wait.
                Some(Err(error)) if error.rdkafka_error_code().is_some_and(is_about_the_connection) => {}
                Some(Err(error)) => return Err(error).context("could not read a record"),
                None if left.is_zero() => return Ok(None),
                None => {}
            }
        }
    }

    /// The next `count` records; the error tells how many came.
    pub fn take(&mut self, count: usize, at_most: Duration) -> Result<Vec<Record>> {
        let until = Instant::now() + at_most;
        let mut records = Vec::with_capacity(count);
        while records.len() < count {
            match self.next(until.saturating_duration_since(Instant::now()))? {
                Some(record) => records.push(record),
                None => bail!("{} of {count} records arrived within {at_most:?}", records.len()),
            }
        }
        Ok(records)
    }

    /// Everything up to where the partitions end now. What was read before is not repeated.
    pub fn rest(&mut self, at_most: Duration) -> Result<Vec<Record>> {
        let until = Instant::now() + at_most;
        let mut records = Vec::new();
        let ends = self.ends(ANSWER_AT_MOST)?;
        loop {
            let missing: i64 = ends.iter().map(|(place, end)| (end - self.positions[place]).max(0)).sum();
            if missing == 0 {
                return Ok(records);
            }
            match self.next(until.saturating_duration_since(Instant::now()))? {
                Some(record) => records.push(record),
                None => bail!("{missing} records of the topic could not be read within {at_most:?}"),
            }
        }
    }

    /// How many records the followed topics hold (nothing here expires or is compacted).
    pub fn count(&self) -> Result<u64> {
        self.count_within(ANSWER_AT_MOST)
    }

    /// How many partitions are followed.
    pub fn partitions(&self) -> usize {
        self.positions.len()
    }

    /// How many records each of the followed partitions holds, in no order.
    pub fn counts(&self) -> Result<Vec<u64>> {
        Ok(self.ends(ANSWER_AT_MOST)?.values().map(|end| *end as u64).collect())
    }

    /// The same, with the patience that each question to the broker gets.
    pub fn count_within(&self, at_most: Duration) -> Result<u64> {
        Ok(self.ends(at_most)?.values().map(|end| *end as u64).sum())
    }

    fn ends(&self, at_most: Duration) -> Result<HashMap<(String, i32), i64>> {
        self.positions
            .keys()
            .map(|(topic, partition)| {
                let (_, end) = self
                    .client
                    .fetch_watermarks(topic, *partition, at_most)
                    .with_context(|| format!("could not get the end of {topic} [{partition}]"))?;
                Ok(((topic.clone(), *partition), end))
            })
            .collect()
    }
}

fn is_about_the_connection(code: rdkafka::types::RDKafkaErrorCode) -> bool {
    use rdkafka::types::RDKafkaErrorCode as Code;
    matches!(code, Code::AllBrokersDown | Code::BrokerTransportFailure | Code::OperationTimedOut | Code::Resolve)
}

fn to_record(message: &BorrowedMessage<'_>) -> Record {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Record {
        topic: message.topic().to_owned(),
        partition: message.partition(),
        offset: message.offset(),
        timestamp: message.timestamp().to_millis().unwrap_or(-1),
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
    }
}
