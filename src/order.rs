//! What has to stay in order with what, and so what waits when a message is refused.
//!
//! Reason: Kafka orders a partition, and consumers rely on the order of a key. So a message that the broker refuses holds
//! up the later ones of its key, or a consumer would see a newer state before an older one; but nothing else, or one bad
//! message would stop thousands of good ones.
//!
//! Rule: the unit of order is topic and key; of a message without a key, topic and explicit partition; of one without
//! either, the message itself. A topic that can take nothing is a unit as a whole.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::message::Message;

/// Longest key that is kept as it is.
const KEY_MAX: usize = 256;

/// Messages that stay in order with each other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit<'a> {
    /// Their topic.
    pub topic: Cow<'a, str>,
    /// Which of the topic's messages.
    pub part: Part<'a>,
}

/// Part of a topic's messages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part<'a> {
    /// All.
    Whole,
    /// Those of a key.
    Key(Cow<'a, [u8]>),
    /// Those of a long key, of which only its length and a hash are kept. If two keys ever share both, each waits for the other.
    LongKey(usize, u64),
    /// Those without a key for an explicit partition.
    Partition(i32),
    /// The one of this id, which has neither.
    Row(i64),
}

impl<'a> Unit<'a> {
    /// The unit of a message.
    #[must_use]
    pub fn of(message: &Message<'a>) -> Self {
        let part = match (message.key, message.partition) {
            (Some(key), _) if key.len() > KEY_MAX => {
                let mut hasher = DefaultHasher::new();
                key.hash(&mut hasher);
                Part::LongKey(key.len(), hasher.finish())
            }
            (Some(key), _) => Part::Key(Cow::Borrowed(key)),
            (None, Some(partition)) => Part::Partition(partition),
            (None, None) => Part::Row(message.id),
        };
        Self { topic: Cow::Borrowed(message.topic), part }
    }

    /// A topic as a whole.
    #[must_use]
    pub fn topic(topic: &'a str) -> Self {
        Self { topic: Cow::Borrowed(topic), part: Part::Whole }
    }

    /// Whether it is a topic as a whole.
    #[must_use]
    pub fn is_topic(&self) -> bool {
        self.part == Part::Whole
    }

    /// Whether the message is one of it.
    #[must_use]
    pub fn has(&self, message: &Message<'_>) -> bool {
        self.topic == message.topic && (self.is_topic() || self.part == Unit::of(message).part)
    }

    /// The same with memory of its own.
    #[must_use]
    pub fn into_owned(self) -> Unit<'static> {
        let part = match self.part {
            Part::Key(key) => Part::Key(Cow::Owned(key.into_owned())),
            Part::LongKey(len, hash) => Part::LongKey(len, hash),
            Part::Whole => Part::Whole,
            Part::Partition(partition) => Part::Partition(partition),
            Part::Row(id) => Part::Row(id),
        };
        Unit { topic: Cow::Owned(self.topic.into_owned()), part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Message<'static> = Message {
        id: 7,
        topic: "t",
        partition: None,
        key: None,
        value: None,
        headers: None,
        message_id: [0; 16],
        handle: &[],
    };

    #[test]
    fn a_key_is_in_order_within_its_topic() {
        let keyed = Message { key: Some(b"k"), ..PLAIN };
        let unit = Unit::of(&keyed);
        assert!(unit.has(&Message { id: 8, partition: Some(1), ..keyed }), "wherever it goes");
        assert!(!unit.has(&Message { topic: "u", ..keyed }));
        assert!(!unit.has(&Message { key: Some(b""), ..keyed }));
        assert!(!unit.has(&PLAIN));
    }

    #[test]
    fn a_long_key_is_told_from_others_in_little_memory() {
        let (one, other) = (vec![1; 900_000], [vec![1; 899_999], vec![2]].concat());
        let keyed = Message { key: Some(&one), ..PLAIN };
        let unit = Unit::of(&keyed).into_owned();
        assert!(matches!(unit.part, Part::LongKey(900_000, _)));
        assert!(unit.has(&Message { id: 8, ..keyed }) && !unit.has(&Message { key: Some(&other), ..keyed }));
    }

    #[test]
    fn without_a_key_an_explicit_partition_is_in_order() {
        let placed = Message { partition: Some(3), ..PLAIN };
        let unit = Unit::of(&placed);
        assert!(unit.has(&Message { id: 8, ..placed }));
        assert!(!unit.has(&Message { partition: Some(4), ..placed }));
        assert!(!unit.has(&Message { key: Some(b"k"), ..placed }));
    }

    #[test]
    fn with_neither_a_message_is_alone() {
        let unit = Unit::of(&PLAIN);
        assert!(unit.has(&PLAIN));
        assert!(!unit.has(&Message { id: 8, ..PLAIN }));
    }

    #[test]
    fn a_topic_has_all_its_messages() {
        let unit = Unit::topic("t");
        assert!(unit.has(&PLAIN) && unit.has(&Message { key: Some(b"k"), ..PLAIN }));
        assert!(!unit.has(&Message { topic: "u", ..PLAIN }));
    }

    #[test]
    fn an_owned_unit_is_the_same() {
        for message in [PLAIN, Message { key: Some(b"k"), ..PLAIN }, Message { partition: Some(1), ..PLAIN }] {
            assert_eq!(Unit::of(&message).into_owned(), Unit::of(&message));
        }
    }
}
