//! Reads a topic back: every message once, no other, each key in order. Ten million take seconds and a few megabytes: what
//! was seen is a bit a message and a number a key.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::broker::{Broker, client_settings};
use outbox_relay_pg_test::consumer::MESSAGE_ID;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};

use crate::messages::{Headers, Messages};

const ANSWER_AT_MOST: Duration = Duration::from_secs(15);
/// Without any record.
const SILENT_AT_MOST: Duration = Duration::from_secs(30);
/// The text form of a UUID.
const ID_BYTES: usize = 36;

/// Reads all of a topic and fails unless it holds exactly these messages; their number.
pub fn check(broker: &Broker, topic: &str, messages: &Messages, headers: Headers) -> Result<u64> {
    let consumer: BaseConsumer = client_settings(&broker.bootstrap())
        // librdkafka wants a group even from a consumer that joins none and commits nothing.
        .set("group.id", "reads-back")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_uncommitted")
        .set("fetch.queue.backoff.ms", "1")
        .set("queued.min.messages", "100000")
        .create()
        .context("could not make a consumer")?;
    let mut assignment = TopicPartitionList::new();
    let mut ends = Vec::new();
    for partition in 0..messages.partitions {
        let (begin, end) = consumer
            .fetch_watermarks(topic, partition, ANSWER_AT_MOST)
            .with_context(|| format!("could not get the end of {topic} [{partition}]"))?;
        ensure!(begin == 0, "{topic} [{partition}] begins at {begin}");
        ends.push(end as u64);
        assignment.add_partition_offset(topic, partition, Offset::Beginning).context("assignment")?;
    }
    let all: u64 = ends.iter().sum();
    ensure!(all == messages.count, "{topic} holds {all} records in {ends:?}, {} were written", messages.count);
    consumer.assign(&assignment).context("could not assign partitions")?;

    let mut seen = Seen::new(messages);
    let mut last = Instant::now();
    while seen.records < all {
        match consumer.poll(Duration::from_millis(100)) {
            Some(record) => {
                let record = record.with_context(|| format!("could not read {topic} back"))?;
                seen.add(&View::of(&record, headers)?)
                    .with_context(|| format!("{topic} [{}] at offset {}", record.partition(), record.offset()))?;
                last = Instant::now();
            }
            None => ensure!(
                last.elapsed() < SILENT_AT_MOST,
                "only {} of {all} records of {topic} could be read",
                seen.records
            ),
        }
    }
    seen.require_all()?;
    Ok(seen.records)
}

/// What counts of a record.
struct View<'a> {
    partition: i32,
    offset: i64,
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> View<'a> {
    fn of(record: &'a BorrowedMessage<'_>, headers: Headers) -> Result<View<'a>> {
        if headers == Headers::MessageId {
            let headers = record.headers().context("a record without headers")?;
            let id = headers.iter().last().context("a record without a header")?;
            ensure!(id.key == MESSAGE_ID, "the last header is {:?}, not the message id", id.key);
            ensure!(id.value.is_some_and(|value| value.len() == ID_BYTES), "the message id is no UUID");
        }
        Ok(View {
            partition: record.partition(),
            offset: record.offset(),
            key: record.key().context("a record without a key")?,
            value: record.payload().context("a record without a value")?,
        })
    }
}

/// What was seen so far.
struct Seen<'a> {
    messages: &'a Messages,
    padding: Vec<u8>,
    records: u64,
    /// A bit a message.
    arrived: Vec<u64>,
    /// The row that is expected next at the earliest, by key.
    next_row: Vec<u64>,
    /// Where the key lies, once that is known.
    partition: Vec<Option<i32>>,
    /// The offset that comes next, by partition.
    next_offset: Vec<i64>,
}

impl Seen<'_> {
    fn new(messages: &Messages) -> Seen<'_> {
        let keys = messages.keys as usize;
        Seen {
            messages,
            padding: messages.padding(),
            records: 0,
            arrived: vec![0; messages.count.div_ceil(64) as usize],
            next_row: vec![0; keys],
            partition: vec![None; keys],
            next_offset: vec![0; messages.partitions as usize],
        }
    }

    fn add(&mut self, record: &View<'_>) -> Result<()> {
        let expected = &mut self.next_offset[record.partition as usize];
        ensure!(*expected == record.offset, "the consumer passed over records: {expected} was next");
        *expected += 1;

        let digits = record.value.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let row = number(&record.value[..digits]).context("the value is no row number: invented")?;
        ensure!(row < self.messages.count, "row {row} was never written: invented");
        ensure!(
            record.value.len() == self.messages.value_bytes && record.value[digits..] == self.padding[digits..],
            "the value of row {row} is altered"
        );
        let key = row % self.messages.keys;
        ensure!(
            record.key.strip_prefix(b"key-").and_then(number) == Some(key),
            "row {row} has the key {:?}",
            String::from_utf8_lossy(record.key)
        );

        let (word, bit) = (row as usize / 64, 1 << (row % 64));
        ensure!(self.arrived[word] & bit == 0, "row {row} is a duplicate");
        self.arrived[word] |= bit;
        self.records += 1;

        let key = key as usize;
        let partition = self.partition[key].get_or_insert(record.partition);
        ensure!(*partition == record.partition, "the key of row {row} lies in partition {partition} too");
        ensure!(self.next_row[key] <= row, "row {row} is out of order: a later row of its key came before");
        self.next_row[key] = row + 1;
        Ok(())
    }

    fn require_all(&self) -> Result<()> {
        let arrived: u64 = self.arrived.iter().map(|word| u64::from(word.count_ones())).sum();
        ensure!(arrived == self.messages.count, "{} rows are missing", self.messages.count - arrived);
        Ok(())
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |number, digit| Some(number * 10 + u64::from(digit.is_ascii_digit().then(|| digit - b'0')?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: Messages = Messages { count: 6, value_bytes: 20, keys: 2, partitions: 2, a_commit: 1 };

    /// The records of these rows, each key in a partition of its own, as `change` leaves them.
    fn read(rows: &[u64], change: impl Fn(usize, &mut (i32, String, Vec<u8>))) -> Result<()> {
        let mut seen = Seen::new(&MESSAGES);
        let mut offsets = [0, 0];
        for (index, row) in rows.iter().enumerate() {
            let mut value = MESSAGES.padding();
            let digits = row.to_string();
            value[..digits.len()].copy_from_slice(digits.as_bytes());
            let mut record = ((row % 2) as i32, MESSAGES.key(*row), value);
            change(index, &mut record);
            let (partition, key, value) = record;
            let offset = offsets[partition as usize];
            offsets[partition as usize] += 1;
            seen.add(&View { partition, offset, key: key.as_bytes(), value: &value })?;
        }
        seen.require_all()
    }

    fn refusal(rows: &[u64], change: impl Fn(usize, &mut (i32, String, Vec<u8>))) -> String {
        format!("{:#}", read(rows, change).expect_err("something is wrong"))
    }

    #[test]
    fn what_is_whole_passes_in_any_order_of_keys() {
        read(&[0, 2, 1, 4, 3, 5], |_, _| ()).expect("each key is in order");
    }

    #[test]
    fn sees_a_missing_row() {
        assert!(refusal(&[0, 1, 2, 3, 5], |_, _| ()).contains("1 rows are missing"));
    }

    #[test]
    fn sees_a_duplicate() {
        assert!(refusal(&[0, 1, 1], |_, _| ()).contains("row 1 is a duplicate"));
    }

    #[test]
    fn sees_a_row_out_of_order() {
        assert!(refusal(&[0, 1, 4, 2], |_, _| ()).contains("row 2 is out of order"));
    }

    #[test]
    fn sees_an_invented_row() {
        assert!(refusal(&[0, 6], |_, _| ()).contains("row 6 was never written"));
        assert!(refusal(&[0], |_, record| record.2 = b"x".to_vec()).contains("invented"));
    }

    #[test]
    fn sees_an_altered_value_and_an_altered_key() {
        assert!(refusal(&[0], |_, record| record.2[19] = b'.').contains("altered"));
        assert!(refusal(&[0], |_, record| record.2.truncate(19)).contains("altered"));
        assert!(refusal(&[0], |_, record| record.1 = "key-1".into()).contains("has the key"));
    }

    #[test]
    fn sees_a_key_in_two_partitions() {
        assert!(
            refusal(&[0, 1, 2], |index, record| record.0 = i32::from(index > 0)).contains("lies in partition 0 too")
        );
    }
}
