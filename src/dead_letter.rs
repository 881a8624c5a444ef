//! A message on its way to a dead-letter topic, with what a consumer there has to know.
//!
//! Reason: whoever looks at a dead letter asks where it was to go, what was wrong, and since when. Key, value, and all
//! headers stay as they were, the message id too, so that it can be sent again by anybody.
//!
//! Rule: headers are added behind its own: `x-outbox-topic`, `x-outbox-partition` (if one was given),
//! `x-outbox-error`, `x-outbox-attempts`, `x-outbox-first-refused-at` and `x-outbox-dead-lettered-at`, all text; times are
//! milliseconds since 1970 as in Kafka's own timestamps. Headers that cannot be read, of a row that was written by hand, are the
//! value of `x-outbox-unreadable-headers`, byte for byte. The partition is chosen anew, by the key.

use std::time::Duration;

use crate::headers::{self, Header};
use crate::message::{Batch, Message};

/// Why and when a message was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason<'a> {
    /// What was reported last.
    pub error: &'a str,
    /// How often it was refused.
    pub attempts: u32,
    /// The first time, since 1970.
    pub first_refused: Duration,
    /// Now, since 1970.
    pub now: Duration,
}

/// A batch of the one message as it goes to the dead-letter topic. Id, handle and message id are its own.
#[must_use]
pub fn letter(message: &Message<'_>, topic: &str, reason: Reason<'_>) -> Batch {
    let unreadable = |blob| vec![Header { name: "x-outbox-unreadable-headers", value: Some(blob) }];
    let read = |blob| headers::decode(blob).unwrap_or_else(|_| unreadable(blob));
    let own = message.headers.map(read).unwrap_or_default();
    let partition = message.partition.map(|partition| partition.to_string());
    let attempts = reason.attempts.to_string();
    let (first_refused, now) = (reason.first_refused.as_millis().to_string(), reason.now.as_millis().to_string());
    let told = [
        ("x-outbox-topic", Some(message.topic)),
        ("x-outbox-partition", partition.as_deref()),
        ("x-outbox-error", Some(reason.error)),
        ("x-outbox-attempts", Some(attempts.as_str())),
        ("x-outbox-first-refused-at", Some(first_refused.as_str())),
        ("x-outbox-dead-lettered-at", Some(now.as_str())),
    ];
    let told =
        told.into_iter().filter_map(|(name, value)| value.map(|value| Header { name, value: Some(value.as_bytes()) }));
    let headers = headers::encode(own.into_iter().chain(told));
    let mut batch = Batch::default();
    batch.push(&Message { topic, partition: None, headers: headers.as_deref(), ..*message });
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_says_where_from_why_and_when() {
        let own = headers::encode([Header { name: "h", value: None }].into_iter());
        let message = Message {
            id: 7,
            topic: "orders",
            partition: Some(3),
            key: Some(b"k"),
            value: None,
            headers: own.as_deref(),
            message_id: [1; 16],
            handle: b"x",
        };
        let reason = Reason {
            error: "too large",
            attempts: 5,
            first_refused: Duration::from_millis(1_700_000_000_123),
            now: Duration::from_millis(1_700_000_060_000),
        };
        let batch = letter(&message, "dlq", reason);
        let sent = batch.message(0);
        assert_eq!(Message { topic: "orders", partition: Some(3), headers: own.as_deref(), ..sent }, message);
        assert_eq!((sent.topic, sent.partition), ("dlq", None));
        let headers = headers::decode(sent.headers.expect("some")).expect("they can be read");
        let headers: Vec<_> =
            headers.iter().map(|header| (header.name, header.value.map(String::from_utf8_lossy))).collect();
        let text = |name, value: &'static str| (name, Some(value.into()));
        let expected = [
            ("h", None),
            text("x-outbox-topic", "orders"),
            text("x-outbox-partition", "3"),
            text("x-outbox-error", "too large"),
            text("x-outbox-attempts", "5"),
            text("x-outbox-first-refused-at", "1700000000123"),
            text("x-outbox-dead-lettered-at", "1700000060000"),
        ];
        assert_eq!(headers, expected);
    }

    #[test]
    fn a_message_without_a_partition_names_none() {
        let message = Message {
            id: 7,
            topic: "orders",
            partition: None,
            key: None,
            value: Some(b"v"),
            headers: None,
            message_id: [1; 16],
            handle: &[],
        };
        let zero = Duration::ZERO;
        let reason = Reason { error: "no", attempts: 1, first_refused: zero, now: zero };
        let batch = letter(&message, "dlq", reason);
        let headers = headers::decode(batch.message(0).headers.expect("some")).expect("they can be read");
        assert!(headers.iter().all(|header| header.name != "x-outbox-partition"));
    }

    #[test]
    fn headers_that_nobody_can_read_are_kept_as_they_are() {
        let blob = b"\x07of no known version";
        let message = Message {
            id: 7,
            topic: "orders",
            partition: None,
            key: None,
            value: None,
            headers: Some(blob),
            message_id: [1; 16],
            handle: &[],
        };
        let reason = Reason { error: "no", attempts: 1, first_refused: Duration::ZERO, now: Duration::ZERO };
        let batch = letter(&message, "dlq", reason);
        let headers = headers::decode(batch.message(0).headers.expect("some")).expect("they can be read");
        let [unreadable, topic, ..] = &headers[..] else { panic!("{headers:?}") };
        assert_eq!((unreadable.name, unreadable.value), ("x-outbox-unreadable-headers", Some(&blob[..])));
        assert_eq!(topic.name, "x-outbox-topic");
    }
}
