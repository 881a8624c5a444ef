//! What the messages of a case are like: the same for every contestant, and known to the reader that checks them.
//!
//! A message is a row number. Key and value follow from it, and rows of a key are written in the order of their numbers, so
//! a record tells which message it is, and whether it comes in time.

/// Messages of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// How many.
    pub count: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Different keys, taking turns.
    pub keys: u64,
    /// Partitions of the topic.
    pub partitions: i32,
    /// How many are committed at a time.
    pub a_commit: u64,
}

/// Whether records carry the message id that a relay adds to each. Headers are dear: with one, the client is much slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// Key and value only: what a producer without an outbox sends.
    None,
    /// The message id behind all others, as a relay sends it.
    MessageId,
}

impl Messages {
    /// The case around which one factor at a time is varied.
    pub fn central(count: u64) -> Messages {
        Messages { count, value_bytes: 200, keys: 100_000, partitions: 4, a_commit: 1_000 }
    }

    /// The key of a row.
    pub fn key(&self, row: u64) -> String {
        format!("key-{}", row % self.keys)
    }

    /// What values are made of: the row's number, then this from there on. Letters at random, always the same, so that
    /// PostgreSQL cannot compress a long value away.
    pub fn padding(&self) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(self.value_bytes as u64);
        std::iter::repeat_with(|| random.alphabetic() as u8).take(self.value_bytes).collect()
    }
}
