//! What travels: the checks a message must pass before it is stored, and a batch of stored messages.
//!
//! Reason: what can be refused is refused inside the writer's transaction, where somebody is there to hear it. Behind the
//! commit only the broker may still say no.

use crate::headers::{self, Header};

/// Longest topic name that Kafka takes.
pub const TOPIC_LEN_MAX: usize = 249;
/// What one record adds to its parts on the wire, at most: lengths, attributes, deltas (Kafka's record format 2).
const RECORD_OVERHEAD: usize = 36;

/// Why a topic name is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// Nothing there.
    #[error("The name is empty.")]
    Empty,
    /// Longer than [`TOPIC_LEN_MAX`].
    #[error("The name has {0} bytes, but Kafka takes at most {TOPIC_LEN_MAX}.")]
    TooLong(usize),
    /// `.` and `..` would be directories at the broker.
    #[error("A name of one or two dots is reserved.")]
    Dots,
    /// A character outside Kafka's set.
    #[error("Kafka takes letters a to z and A to Z, digits, \".\", \"_\" and \"-\", but not \"{0}\".")]
    Character(char),
}

/// Kafka's rule: 1 to 249 of `[a-zA-Z0-9._-]`, but neither `.` nor `..`.
///
/// # Errors
/// Says which part of the rule the name breaks.
pub fn check_topic(name: &str) -> Result<(), TopicError> {
    if name.is_empty() {
        return Err(TopicError::Empty);
    }
    if let Some(wrong) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        return Err(TopicError::Character(wrong));
    }
    if name.len() > TOPIC_LEN_MAX {
        return Err(TopicError::TooLong(name.len()));
    }
    if name == "." || name == ".." {
        return Err(TopicError::Dots);
    }
    Ok(())
}

/// Bytes of the record on the wire before compression, as librdkafka counts them against `message.max.bytes`.
#[must_use]
pub fn record_size(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) -> usize {
    RECORD_OVERHEAD + key.unwrap_or_default().len() + value.unwrap_or_default().len() + headers::wire_size(headers)
}

/// A message as the relay reads it: slices of a [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Rows of one bucket are submitted in the order of this id, which is at least 1.
    pub id: i64,
    /// Kafka topic.
    pub topic: &'a str,
    /// Explicit partition, or none for the one the key hashes to.
    pub partition: Option<i32>,
    /// Key; none is not the same as empty.
    pub key: Option<&'a [u8]>,
    /// Value; none is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Stored headers, see [`crate::headers`].
    pub headers: Option<&'a [u8]>,
    /// Identity over all copies.
    pub message_id: [u8; 16],
    /// Whatever the store wants to know the message by when it is acknowledged: opaque, comes back as it was given. May be
    /// empty.
    pub handle: &'a [u8],
}

impl Message<'_> {
    /// Bytes of key, value and headers.
    #[must_use]
    pub fn bytes(&self) -> usize {
        [self.key, self.value, self.headers].into_iter().flatten().map(<[u8]>::len).sum()
    }
}

/// Rows of one bucket in id order. The bytes of all of them lie in one buffer: one allocation a batch, not five a row.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Batch {
    rows: Vec<Row>,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    id: i64,
    message_id: [u8; 16],
    handle: Span,
    partition: Option<i32>,
    topic: Span,
    key: Option<Span>,
    value: Option<Span>,
    headers: Option<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

impl Batch {
    /// Appends a copy of `message`, whose id must be above all others of the batch.
    pub fn push(&mut self, message: &Message<'_>) {
        debug_assert!(self.rows.last().is_none_or(|last| last.id < message.id), "rows come in id order");
        // Neighbours mostly share the topic: store its name once.
        let topic = match self.rows.last() {
            Some(last) if self.slice(last.topic) == message.topic.as_bytes() => last.topic,
            _ => self.store(message.topic.as_bytes()),
        };
        let row = Row {
            id: message.id,
            message_id: message.message_id,
            handle: self.store(message.handle),
            partition: message.partition,
            topic,
            key: message.key.map(|key| self.store(key)),
            value: message.value.map(|value| self.store(value)),
            headers: message.headers.map(|headers| self.store(headers)),
        };
        self.rows.push(row);
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes of all rows' topics, keys, values, headers and handles.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The row at `index`.
    #[must_use]
    pub fn message(&self, index: usize) -> Message<'_> {
        let row = &self.rows[index];
        Message {
            id: row.id,
            topic: std::str::from_utf8(self.slice(row.topic)).expect("it was a str when it was stored"),
            partition: row.partition,
            key: row.key.map(|span| self.slice(span)),
            value: row.value.map(|span| self.slice(span)),
            headers: row.headers.map(|span| self.slice(span)),
            message_id: row.message_id,
            handle: self.slice(row.handle),
        }
    }

    /// The ids of the first `len` rows.
    pub fn ids(&self, len: usize) -> impl ExactSizeIterator<Item = i64> + Clone + '_ {
        self.rows[..len].iter().map(|row| row.id)
    }

    /// The ids and handles of the first `len` rows.
    pub fn handles(&self, len: usize) -> impl ExactSizeIterator<Item = (i64, &[u8])> + Clone + '_ {
        self.rows[..len].iter().map(|row| (row.id, self.slice(row.handle)))
    }

    /// The id of the row at `index`.
    #[must_use]
    pub fn id(&self, index: usize) -> i64 {
        self.rows[index].id
    }

    /// The id of the last row.
    #[must_use]
    pub fn last_id(&self) -> Option<i64> {
        self.rows.last().map(|row| row.id)
    }

    /// Bytes of key, value and headers of the first `len` rows.
    #[must_use]
    pub fn payload_bytes(&self, len: usize) -> u64 {
        let size = |span: Option<Span>| span.map_or(0, |span| u64::from(span.end - span.start));
        self.rows[..len].iter().map(|row| size(row.key) + size(row.value) + size(row.headers)).sum()
    }

    /// Keeps the rows of which this is true, in their order, and says how many it dropped.
    pub fn retain(&mut self, mut keep: impl FnMut(&Message<'_>) -> bool) -> usize {
        let before = self.rows.len();
        let mut kept = 0;
        for index in 0..before {
            if keep(&self.message(index)) {
                self.rows.swap(kept, index);
                kept += 1;
            }
        }
        self.rows.truncate(kept);
        before - kept
    }

    /// A batch of the rows at these ascending indices.
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Batch {
        let mut selected = Batch::default();
        indices.iter().for_each(|index| selected.push(&self.message(*index)));
        selected
    }

    /// Drops the rows behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.rows.truncate(len);
    }

    /// Forgets the rows and keeps the memory, unless it grew beyond `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        self.rows.clear();
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }

    fn store(&mut self, bytes: &[u8]) -> Span {
        let start = self.end();
        self.bytes.extend_from_slice(bytes);
        Span { start, end: self.end() }
    }

    fn end(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("a batch ends at its limit of bytes, and one message is below 4 GiB")
    }

    fn slice(&self, span: Span) -> &[u8] {
        &self.bytes[span.start as usize..span.end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_follow_kafkas_rule() {
        for good in ["a", "orders", "A.b_c-9", "...", &"x".repeat(249)] {
            assert_eq!(check_topic(good), Ok(()), "{good}");
        }
        assert_eq!(check_topic(""), Err(TopicError::Empty));
        assert_eq!(check_topic("."), Err(TopicError::Dots));
        assert_eq!(check_topic(".."), Err(TopicError::Dots));
        assert_eq!(check_topic(&"x".repeat(250)), Err(TopicError::TooLong(250)));
        for (bad, c) in [("a b", ' '), ("a/b", '/'), ("bücher", 'ü'), ("a\n", '\n')] {
            assert_eq!(check_topic(bad), Err(TopicError::Character(c)));
        }
    }

    #[test]
    fn record_size_counts_as_the_client_library() {
        let id_header = 1 + 19 + 1 + 36;
        assert_eq!(record_size(None, None, &[]), 36 + id_header);
        assert_eq!(record_size(Some(b"key"), Some(b"value"), &[]), 36 + 3 + 5 + id_header);
    }

    #[test]
    fn a_batch_gives_back_what_was_pushed() {
        let null = Message {
            id: 3,
            topic: "t",
            partition: None,
            key: None,
            value: None,
            headers: None,
            message_id: [1; 16],
            handle: b"row 3",
        };
        let empty = Message { id: 7, partition: Some(4), key: Some(b""), value: Some(b""), ..null };
        let full = Message { id: 9, topic: "u", key: Some(b"k\0"), value: Some(b"v"), headers: Some(b"h"), ..null };
        let mut batch = Batch::default();
        for message in [null, empty, full] {
            batch.push(&message);
        }
        assert_eq!([batch.message(0), batch.message(1), batch.message(2)], [null, empty, full]);
        assert_eq!(batch.ids(2).collect::<Vec<_>>(), [3, 7]);
        assert_eq!((batch.len(), batch.last_id(), batch.payload_bytes(3)), (3, Some(9), 4));
        assert_eq!(batch.select(&[0, 2]).ids(2).collect::<Vec<_>>(), [3, 9]);
        assert_eq!(batch.retain(|message| message.id != 7), 1);
        assert_eq!([batch.message(0), batch.message(1)], [null, full]);
        assert_eq!(batch.len(), 2);
        batch.clear(0);
        assert!(batch.is_empty());
    }
}
