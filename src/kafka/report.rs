//! Delivery reports become plain outcomes, by what to do about them.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::relay::ports::{FlightId, PublishError};

/// What a failed row means for the client that reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Concerns the row only.
    Row(PublishError),
    /// The client is beyond repair; the row is without fault.
    Client(String),
}

/// Classes an error. What was purged was never at fault; a fatal error ends the client; everything else is the row's.
pub(super) fn verdict(error: &KafkaError) -> Verdict {
    match error.rdkafka_error_code() {
        // Purged in flight: whether the broker has it is not known, so it is sent again; the id tells the copies apart.
        Some(RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight) => Verdict::Row(PublishError::GivenUp),
        Some(RDKafkaErrorCode::Fatal) => Verdict::Client(error.to_string()),
        Some(code) => Verdict::Row(PublishError::Refused(code.to_string())),
        None => Verdict::Row(PublishError::Refused(error.to_string())),
    }
}

/// Whether the broker refused a whole request for the sake of one of its rows, without saying which.
pub(super) fn blames_all(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::MessageSizeTooLarge
                | RDKafkaErrorCode::MessageBatchTooLarge
                | RDKafkaErrorCode::InvalidRecord
                | RDKafkaErrorCode::InvalidDifferentRecord
                | RDKafkaErrorCode::InvalidTimestamp
                | RDKafkaErrorCode::UnsupportedForMessageFormat
                | RDKafkaErrorCode::PolicyViolation
        )
    )
}

/// Whether the client's picture of the topic may be out of date: it would ask by itself only after a minute.
pub(super) fn doubts_topic(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::TopicAuthorizationFailed
        )
    )
}

/// Packs flight and row into the opaque of a record, which costs no allocation.
pub(super) fn pack(flight: FlightId, index: u32) -> usize {
    const { assert!(usize::BITS == 64, "the opaque holds two 32-bit numbers") };
    ((flight as usize) << 32) | index as usize
}

/// The flight and row of an opaque.
pub(super) fn unpack(opaque: usize) -> (FlightId, u32) {
    ((opaque >> 32) as u32, opaque as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opaque_names_flight_and_row() {
        for pair in [(0, 0), (1, 2), (u32::MAX, u32::MAX)] {
            assert_eq!(unpack(pack(pair.0, pair.1)), pair);
        }
    }

    #[test]
    fn what_was_purged_is_no_fault_of_the_row() {
        for code in [RDKafkaErrorCode::PurgeQueue, RDKafkaErrorCode::PurgeInflight] {
            assert_eq!(verdict(&KafkaError::MessageProduction(code)), Verdict::Row(PublishError::GivenUp));
        }
    }

    #[test]
    fn a_request_refused_for_one_row_blames_all() {
        assert!(blames_all(&KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge)));
        assert!(blames_all(&KafkaError::MessageProduction(RDKafkaErrorCode::InvalidDifferentRecord)));
        assert!(!blames_all(&KafkaError::MessageProduction(RDKafkaErrorCode::UnknownTopic)));
        assert!(!blames_all(&KafkaError::MessageProduction(RDKafkaErrorCode::PurgeQueue)));
    }

    #[test]
    fn a_fatal_error_ends_the_client_and_others_concern_the_row() {
        assert!(matches!(verdict(&KafkaError::MessageProduction(RDKafkaErrorCode::Fatal)), Verdict::Client(_)));
        let too_large = verdict(&KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge));
        assert!(matches!(too_large, Verdict::Row(PublishError::Refused(text)) if text.contains("MessageSizeTooLarge")));
    }
}
