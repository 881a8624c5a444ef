//! Compares what was committed with what reached Kafka.

use std::collections::HashMap;
use std::fmt;

use anyhow::{Result, ensure};
use uuid::Uuid;

use crate::consumer::Record;

/// A message that was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The id that enqueue returned.
    pub message_id: Uuid,
    /// Its key.
    pub key: Vec<u8>,
    /// Its place among the messages of its key, in commit order.
    pub place: i64,
    /// Its value.
    pub value: Vec<u8>,
}

/// What the comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Messages that were committed.
    pub committed: usize,
    /// Records that were read.
    pub consumed: usize,
    /// Committed, but in no record.
    pub missing: Vec<Uuid>,
    /// In a record, but never committed; a record without a proper message id is one of these too.
    pub invented: Vec<String>,
    /// Further records of a message that had one already.
    pub duplicates: usize,
    /// Records whose key or value is not what was committed.
    pub altered: Vec<Uuid>,
    /// First records of a message that come after the first record of a later message of the same key.
    pub out_of_order: Vec<Uuid>,
    /// Messages of a key that is on more than one partition, where no order holds.
    pub scattered: Vec<Uuid>,
}

/// Compares. Records may come in any order of partitions; within one, their offsets tell.
pub fn compare(committed: &[Committed], records: &[Record]) -> Figures {
    let mut figures = Figures { committed: committed.len(), consumed: records.len(), ..Figures::default() };
    let truth: HashMap<Uuid, &Committed> = committed.iter().map(|message| (message.message_id, message)).collect();
    let mut arrived: HashMap<Uuid, ()> = HashMap::with_capacity(records.len());
    let mut keys: HashMap<&[u8], Last> = HashMap::new();

    let mut in_order: Vec<&Record> = records.iter().collect();
    in_order.sort_by_key(|record| (&record.topic, record.partition, record.offset));
    for record in in_order {
        let id = match record.message_id() {
            Ok(id) => id,
            Err(error) => {
                figures.invented.push(format!("[{}]@{}: {error}", record.partition, record.offset));
                continue;
            }
        };
        let Some(message) = truth.get(&id) else {
            figures.invented.push(id.to_string());
            continue;
        };
        if record.key.as_deref() != Some(&message.key) || record.value.as_deref() != Some(&message.value) {
            figures.altered.push(id);
        }
        if arrived.insert(id, ()).is_some() {
            figures.duplicates += 1;
            continue;
        }
        let last = keys.entry(&message.key).or_insert(Last { partition: record.partition, place: i64::MIN });
        if last.partition != record.partition {
            figures.scattered.push(id);
        } else if message.place < last.place {
            figures.out_of_order.push(id);
        } else {
            last.place = message.place;
        }
    }
    figures.missing =
        committed.iter().map(|message| message.message_id).filter(|id| !arrived.contains_key(id)).collect();
    figures
}

/// Where the last first record of a key was seen.
struct Last {
    partition: i32,
    place: i64,
}

impl Figures {
    /// Holds after anything: nothing is lost, invented, altered or out of order.
    pub fn require_at_least_once(&self) -> Result<()> {
        ensure!(
            self.missing.is_empty()
                && self.invented.is_empty()
                && self.altered.is_empty()
                && self.out_of_order.is_empty()
                && self.scattered.is_empty(),
            "{self}\n{}",
            self.examples()
        );
        Ok(())
    }

    /// Holds without faults: no duplicates either.
    pub fn require_exactly_once(&self) -> Result<()> {
        self.require_at_least_once()?;
        ensure!(self.duplicates == 0, "{self}");
        Ok(())
    }

    fn examples(&self) -> String {
        let some = |ids: &[Uuid]| ids.iter().take(3).map(Uuid::to_string).collect::<Vec<_>>().join(" ");
        format!(
            "missing: {}\ninvented: {}\naltered: {}\nout of order: {}\nscattered: {}",
            some(&self.missing),
            self.invented.iter().take(3).cloned().collect::<Vec<_>>().join(" "),
            some(&self.altered),
            some(&self.out_of_order),
            some(&self.scattered)
        )
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} committed, {} consumed: {} missing, {} invented, {} duplicates, {} altered, {} out of order",
            self.committed,
            self.consumed,
            self.missing.len(),
            self.invented.len(),
            self.duplicates,
            self.altered.len(),
            self.out_of_order.len() + self.scattered.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::MESSAGE_ID;

    fn message(number: u128, key: &str, place: i64) -> Committed {
        Committed {
            message_id: Uuid::from_u128(number),
            key: key.into(),
            place,
            value: format!("value {number}").into_bytes(),
        }
    }

    fn record(message: &Committed, partition: i32, offset: i64) -> Record {
        Record {
            topic: "t".into(),
            partition,
            offset,
            timestamp: 0,
            key: Some(message.key.clone()),
            value: Some(message.value.clone()),
            headers: vec![(MESSAGE_ID.into(), Some(message.message_id.to_string().into_bytes()))],
        }
    }

    /// Two keys on two partitions, two messages each, all arrived.
    fn whole() -> (Vec<Committed>, Vec<Record>) {
        let committed = vec![message(1, "a", 1), message(2, "a", 2), message(3, "b", 1), message(4, "b", 2)];
        let records = vec![
            record(&committed[0], 0, 0),
            record(&committed[1], 0, 1),
            record(&committed[2], 1, 0),
            record(&committed[3], 1, 1),
        ];
        (committed, records)
    }

    #[test]
    fn what_is_whole_passes_in_any_reading_order() {
        let (committed, mut records) = whole();
        records.reverse();
        let figures = compare(&committed, &records);
        figures.require_exactly_once().expect("nothing is wrong");
        assert_eq!(
            figures.to_string(),
            "4 committed, 4 consumed: 0 missing, 0 invented, 0 duplicates, 0 altered, 0 out of order"
        );
    }

    #[test]
    fn sees_a_missing_message() {
        let (committed, mut records) = whole();
        records.remove(1);
        let figures = compare(&committed, &records);
        assert_eq!(figures.missing, vec![Uuid::from_u128(2)]);
        assert!(figures.require_at_least_once().is_err());
    }

    #[test]
    fn sees_an_invented_message() {
        let (committed, mut records) = whole();
        records.push(record(&message(9, "a", 3), 0, 2));
        let figures = compare(&committed, &records);
        assert_eq!(figures.invented.len(), 1);
        assert!(figures.require_at_least_once().is_err());
    }

    #[test]
    fn a_record_without_a_message_id_is_invented() {
        let (committed, mut records) = whole();
        records[3].headers.clear();
        let figures = compare(&committed, &records);
        assert_eq!((figures.invented.len(), figures.missing.len()), (1, 1));
        assert!(figures.require_at_least_once().is_err());
    }

    #[test]
    fn sees_a_duplicate_and_lets_it_pass_where_faults_are_allowed() {
        let (committed, mut records) = whole();
        records.push(record(&committed[0], 0, 2));
        let figures = compare(&committed, &records);
        assert_eq!(figures.duplicates, 1);
        figures.require_at_least_once().expect("a late copy breaks no order");
        assert!(figures.require_exactly_once().is_err());
    }

    #[test]
    fn sees_an_altered_value_and_an_altered_key() {
        let (committed, mut records) = whole();
        records[0].value = Some(b"other".to_vec());
        records[2].key = None;
        let figures = compare(&committed, &records);
        assert_eq!(figures.altered.len(), 2);
        assert!(figures.require_at_least_once().is_err());
    }

    #[test]
    fn sees_a_broken_order_of_one_key_and_only_there() {
        let (committed, mut records) = whole();
        (records[0].offset, records[1].offset) = (1, 0);
        let figures = compare(&committed, &records);
        assert_eq!(figures.out_of_order, vec![Uuid::from_u128(1)]);
        assert!(figures.require_at_least_once().is_err());
    }

    #[test]
    fn sees_a_key_on_two_partitions() {
        let (committed, mut records) = whole();
        records[1].partition = 2;
        let figures = compare(&committed, &records);
        assert_eq!(figures.scattered, vec![Uuid::from_u128(2)]);
        assert!(figures.require_at_least_once().is_err());
    }
}
