//! Delivery reports become plain outcomes, by what to do about them.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::relay::ports::{FlightId, PublishError};

use super::errors::{self, Blame, Class};

/// What a failed row means for the client that reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Concerns the row only.
    Row(PublishError),
    /// The topic has no such partition, if it is there at all: of a topic that was deleted the client says the same.
    NoPartition {
        /// The topic.
        topic: String,
        /// What is told of it.
        told: String,
    },
    /// The client is beyond repair; the row is without fault.
    Client(String),
}

/// Classes an error by the table of [`errors`].
pub(super) fn verdict(error: &KafkaError, topic: &str) -> Verdict {
    let Some(code) = error.rdkafka_error_code() else {
        return Verdict::Row(publish_error(Class::Retry, error.to_string()));
    };
    if matches!(code, RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight) {
        // Purged in flight: whether the broker has it is not known, so it is sent again; the id tells the copies apart.
        return Verdict::Row(PublishError::GivenUp);
    }
    if errors::blame(code) == Blame::Neighbour {
        return Verdict::Row(PublishError::GivenUp);
    }
    let told = errors::tell(code, None);
    if code == RDKafkaErrorCode::UnknownPartition {
        return Verdict::NoPartition { topic: topic.to_owned(), told };
    }
    match errors::class(code) {
        Class::Rebuild => Verdict::Client(told),
        class => Verdict::Row(publish_error(class, told)),
    }
}

/// What the relay is told of an error of this class. One that the client is rebuilt for is not the row's.
pub(super) fn publish_error(class: Class, told: String) -> PublishError {
    match class {
        Class::Rebuild => PublishError::GivenUp,
        Class::Retry => PublishError::Transient(told),
        Class::BackOffTopic => PublishError::Topic(told),
        Class::Park => PublishError::Invalid(told),
        Class::Stop => PublishError::Misconfigured(told),
    }
}

/// Whether the broker refused a whole request for the sake of one of its rows, and it is not sure which.
pub(super) fn blames_all(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(|code| errors::blame(code) == Blame::Request)
}

/// Whether the client's picture of the topic may be out of date: it would ask by itself only after a minute.
pub(super) fn doubts_topic(error: &KafkaError) -> bool {
    error
        .rdkafka_error_code()
        .is_some_and(|code| code == RDKafkaErrorCode::UnknownPartition || errors::class(code) == Class::BackOffTopic)
}

/// Marks a row that is in order with no other.
const ALONE: u32 = 1 << 31;

/// Packs flight and row into the opaque of a record, which costs no allocation, and whether it is in order with others.
pub(super) fn pack(flight: FlightId, index: u32, alone: bool) -> usize {
    const { assert!(usize::BITS == 64, "the opaque holds two 32-bit numbers") };
    debug_assert!(index < ALONE, "batch_size is far below 2^31");
    ((flight as usize) << 32) | (index | if alone { ALONE } else { 0 }) as usize
}

/// The flight and row of an opaque.
pub(super) fn unpack(opaque: usize) -> (FlightId, u32) {
    ((opaque >> 32) as u32, opaque as u32 & !ALONE)
}

/// Whether the row of an opaque is in order with no other.
pub(super) fn is_alone(opaque: usize) -> bool {
    opaque as u32 & ALONE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict_of(code: RDKafkaErrorCode) -> Verdict {
        verdict(&KafkaError::MessageProduction(code), "t")
    }

    #[test]
    fn an_opaque_names_flight_and_row() {
        for (flight, index) in [(0, 0), (1, 2), (u32::MAX, ALONE - 1)] {
            for alone in [false, true] {
                let opaque = pack(flight, index, alone);
                assert_eq!((unpack(opaque), is_alone(opaque)), ((flight, index), alone));
            }
        }
    }

    #[test]
    fn what_was_purged_is_no_fault_of_the_row() {
        for code in [RDKafkaErrorCode::PurgeQueue, RDKafkaErrorCode::PurgeInflight] {
            assert_eq!(verdict_of(code), Verdict::Row(PublishError::GivenUp));
        }
    }

    #[test]
    fn a_row_beside_an_invalid_one_is_sent_again_without_blame() {
        assert_eq!(verdict_of(RDKafkaErrorCode::InvalidDifferentRecord), Verdict::Row(PublishError::GivenUp));
    }

    #[test]
    fn a_request_refused_for_one_row_blames_all_unless_the_row_is_named() {
        let blames_all = |code| blames_all(&KafkaError::MessageProduction(code));
        assert!(blames_all(RDKafkaErrorCode::MessageSizeTooLarge));
        assert!(!blames_all(RDKafkaErrorCode::InvalidDifferentRecord));
        assert!(!blames_all(RDKafkaErrorCode::UnknownTopic));
        assert!(!blames_all(RDKafkaErrorCode::PurgeQueue));
    }

    #[test]
    fn a_fatal_error_ends_the_client_and_others_concern_the_row() {
        assert!(matches!(verdict_of(RDKafkaErrorCode::Fatal), Verdict::Client(_)));
        assert!(matches!(verdict_of(RDKafkaErrorCode::OutOfOrderSequenceNumber), Verdict::Client(_)));
        let too_large = verdict_of(RDKafkaErrorCode::MessageSizeTooLarge);
        assert!(matches!(too_large, Verdict::Row(PublishError::Invalid(text)) if text.contains("MSG_SIZE_TOO_LARGE")));
    }

    #[test]
    fn a_topic_that_cannot_take_messages_is_looked_at_anew() {
        let doubts_topic = |code| doubts_topic(&KafkaError::MessageProduction(code));
        assert!(doubts_topic(RDKafkaErrorCode::UnknownTopic));
        assert!(doubts_topic(RDKafkaErrorCode::UnknownPartition));
        assert!(doubts_topic(RDKafkaErrorCode::TopicAuthorizationFailed));
        assert!(!doubts_topic(RDKafkaErrorCode::MessageSizeTooLarge));
    }
}
