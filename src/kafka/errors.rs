//! What to do about an error of the Kafka client or of a broker, code by code.
//!
//! Reason: what a code says decides whether a message is tried again for ever, counted, or whether the whole relay waits; and
//! whoever operates it must be able to look that up. So the table is the code, and docs/errors.md shows the same table, which a
//! test compares. A code that is not in the table is taken for transient: nothing is lost by trying again.
//!
//! Only what a producer without transactions can meet is in the table. The client repeats most of it by itself and for ever, so
//! that few of these codes are reported of a message; all are here because a later client may report them.

use std::ffi::CStr;

use rdkafka::bindings as rdsys;
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::types::RDKafkaRespErr;

use Blame::{Neighbour, Request, Row};
use Class::{BackOffTopic, Park, Rebuild, Retry, Stop};

/// What to do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Try again; not counted.
    Retry,
    /// The topic cannot take messages now; others can. Not counted.
    BackOffTopic,
    /// This message will never be taken as it is; counted.
    Park,
    /// The client is beyond repair and is replaced; the message is without fault.
    Rebuild,
    /// Nothing can be published as things are set up.
    Stop,
}

/// Whom an error of one row concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// The row, or what it was meant for.
    Row,
    /// One row of the request, and it is not sure which.
    Request,
    /// Another row of the request.
    Neighbour,
}

/// An entry of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    code: Code,
    class: Class,
    blame: Blame,
    reason: &'static str,
}

const fn known(code: Code, class: Class, blame: Blame, reason: &'static str) -> Known {
    Known { code, class, blame, reason }
}

/// All codes that a producer can meet, in the order of their numbers.
pub(super) const TABLE: &[Known] = &[
    // The client's own.
    known(Code::BadMessage, Retry, Row, "an answer of the broker could not be read"),
    known(Code::BadCompression, Retry, Row, "the client could not compress the request"),
    known(Code::BrokerDestroy, Retry, Row, "the client was being closed"),
    known(Code::Fail, Retry, Row, "the client gives no cause"),
    known(Code::BrokerTransportFailure, Retry, Row, "the connection to the broker was lost or refused"),
    known(Code::CriticalSystemResource, Retry, Row, "the system was out of memory, threads or descriptors"),
    known(Code::Resolve, Retry, Row, "the name of the broker's host was not found"),
    known(Code::MessageTimedOut, Retry, Row, "no broker answered in time"),
    known(
        Code::UnknownPartition,
        Park,
        Row,
        "the topic has no such partition; until a broker says that the topic is there, it is waited for",
    ),
    known(Code::FileSystem, Retry, Row, "a file could not be read"),
    known(Code::UnknownTopic, BackOffTopic, Row, "the topic does not exist, until somebody creates it"),
    known(Code::AllBrokersDown, Retry, Row, "no broker can be reached"),
    known(Code::InvalidArgument, Park, Row, "the client cannot send such a message"),
    known(Code::OperationTimedOut, Retry, Row, "no broker answered in time"),
    known(Code::QueueFull, Retry, Row, "the client's queue was full"),
    known(Code::ISRInsufficient, BackOffTopic, Row, "the partition has too few replicas in sync"),
    known(Code::NodeUpdate, Retry, Row, "the client was learning where the broker is"),
    known(Code::SSL, Stop, Row, "TLS with the broker fails: certificates or their settings do not fit"),
    known(Code::WaitingForCoordinator, Retry, Row, "no broker hands out producer ids yet"),
    known(Code::InProgress, Retry, Row, "the client was busy with the same"),
    known(Code::PreviousInProgress, Retry, Row, "the client was busy with the same"),
    known(Code::Conflict, Retry, Row, "the client was busy with something else"),
    known(Code::State, Rebuild, Row, "the client is in a state in which it cannot send"),
    known(Code::UnknownProtocol, Stop, Row, "the broker does not speak this protocol"),
    known(Code::NotImplemented, Stop, Row, "the client cannot do what the settings ask for"),
    known(Code::Authentication, Stop, Row, "the broker refuses the user, the password or the mechanism"),
    known(Code::Outdated, Retry, Row, "what the client knew was out of date"),
    known(Code::TimedOutQueue, Retry, Row, "the request was not sent in time"),
    known(Code::UnsupportedFeature, Stop, Row, "the broker is too old, or lacks what the settings ask for"),
    known(Code::WaitCache, Retry, Row, "the client was learning of the topic"),
    known(Code::Interrupted, Retry, Row, "the client was interrupted"),
    known(Code::Partial, Retry, Row, "an answer of the broker was incomplete"),
    known(Code::NoEnt, Retry, Row, "the client did not know of it yet"),
    known(Code::Underflow, Retry, Row, "an answer of the broker was incomplete"),
    known(Code::Retry, Retry, Row, "the client asks to be tried again"),
    known(Code::PurgeQueue, Retry, Row, "the relay called it back before it was sent"),
    known(Code::PurgeInflight, Retry, Row, "the relay gave it up before it was answered"),
    known(Code::Fatal, Rebuild, Row, "the client cannot go on without losing order or sending twice"),
    known(Code::Inconsistent, Rebuild, Row, "the client contradicts itself"),
    known(Code::GaplessGuarantee, Rebuild, Row, "the client cannot go on without a gap"),
    known(Code::UnknownBroker, Retry, Row, "the client was learning where the broker is"),
    known(Code::NotConfigured, Stop, Row, "the settings lack what the client needs"),
    known(Code::Fenced, Rebuild, Row, "a newer producer has the same id"),
    known(Code::InvalidDifferentRecord, Retry, Neighbour, "another message of the same request is invalid"),
    known(Code::DestroyBroker, Retry, Row, "the broker has left the cluster"),
    // The broker's.
    known(Code::Unknown, Retry, Row, "the broker gives no cause; its log may"),
    known(Code::InvalidMessage, Retry, Row, "the request was damaged on its way"),
    known(Code::UnknownTopicOrPartition, BackOffTopic, Row, "the topic does not exist, until somebody creates it"),
    known(Code::InvalidMessageSize, Park, Request, "the broker cannot take a message of this size"),
    known(Code::LeaderNotAvailable, BackOffTopic, Row, "the partition has no leader now"),
    known(Code::NotLeaderForPartition, Retry, Row, "another broker leads the partition by now"),
    known(Code::RequestTimedOut, Retry, Row, "the replicas did not confirm in time"),
    known(Code::BrokerNotAvailable, Retry, Row, "the broker is not there now"),
    known(Code::ReplicaNotAvailable, Retry, Row, "another broker has the partition by now"),
    known(Code::MessageSizeTooLarge, Park, Request, "larger than max.message.bytes of the topic"),
    known(Code::NetworkException, Retry, Row, "the connection was lost before the answer"),
    known(Code::CoordinatorLoadInProgress, Retry, Row, "the broker has just started"),
    known(Code::CoordinatorNotAvailable, Retry, Row, "no broker hands out producer ids yet"),
    known(Code::NotCoordinator, Retry, Row, "another broker hands out producer ids by now"),
    known(Code::InvalidTopic, Park, Row, "no topic can have this name, or no client may write to it"),
    known(Code::MessageBatchTooLarge, Park, Request, "larger than segment.bytes of the topic"),
    known(Code::NotEnoughReplicas, BackOffTopic, Row, "the partition has too few replicas in sync"),
    known(Code::NotEnoughReplicasAfterAppend, BackOffTopic, Row, "the partition has too few replicas in sync"),
    known(Code::InvalidRequiredAcks, Stop, Row, "the broker does not know acks=all"),
    known(
        Code::TopicAuthorizationFailed,
        BackOffTopic,
        Row,
        "the user may not write to the topic, until it is allowed",
    ),
    known(Code::ClusterAuthorizationFailed, Stop, Row, "the user may write to no topic at all: an ACL is missing"),
    known(Code::InvalidTimestamp, Park, Request, "the topic does not take a record of this time"),
    known(Code::UnsupportedSASLMechanism, Stop, Row, "the broker does not offer this sasl.mechanism"),
    known(Code::IllegalSASLState, Stop, Row, "the broker expects another security.protocol"),
    known(Code::UnsupportedVersion, Stop, Row, "the broker is too old or too new for the client"),
    known(Code::InvalidConfig, BackOffTopic, Row, "the topic's own settings are wrong"),
    known(Code::NotController, Retry, Row, "another broker controls the cluster by now"),
    known(Code::InvalidRequest, Park, Request, "the broker cannot make sense of the request"),
    known(Code::UnsupportedForMessageFormat, Park, Request, "the topic is of an old format without such a feature"),
    known(Code::PolicyViolation, Park, Request, "a policy of the broker forbids it"),
    known(Code::OutOfOrderSequenceNumber, Rebuild, Row, "the broker has lost track of the producer"),
    known(Code::DuplicateSequenceNumber, Rebuild, Row, "the broker has lost track of the producer"),
    known(Code::InvalidProducerEpoch, Rebuild, Row, "the broker knows a newer producer of this id"),
    known(Code::InvalidProducerIdMapping, Rebuild, Row, "the broker has forgotten the producer"),
    known(Code::SecurityDisabled, Stop, Row, "the broker has no authorizer"),
    known(Code::KafkaStorageError, BackOffTopic, Row, "a disk of the broker fails"),
    known(Code::SaslAuthenticationFailed, Stop, Row, "the broker refuses the user or the password"),
    known(Code::UnknownProducerId, Rebuild, Row, "the broker has forgotten the producer"),
    known(Code::ReassignmentInProgress, Retry, Row, "the partition is being moved"),
    known(Code::DelegationTokenAuthDisabled, Stop, Row, "the broker takes no delegation tokens"),
    known(Code::DelegationTokenNotFound, Stop, Row, "the broker does not know the delegation token"),
    known(Code::DelegationTokenOwnerMismatch, Stop, Row, "the delegation token is another user's"),
    known(Code::DelegationTokenRequestNotAllowed, Stop, Row, "the connection may not use delegation tokens"),
    known(Code::DelegationTokenAuthorizationFailed, Stop, Row, "the delegation token allows nothing"),
    known(Code::DelegationTokenExpired, Stop, Row, "the delegation token has expired"),
    known(Code::ListenerNotFound, BackOffTopic, Row, "the partition's leader has no listener for the client"),
    known(Code::FencedLeaderEpoch, Retry, Row, "another broker leads the partition by now"),
    known(Code::UnknownLeaderEpoch, Retry, Row, "the broker does not know yet who leads the partition"),
    known(Code::UnsupportedCompressionType, Stop, Row, "the broker does not know this compression.type"),
    known(Code::StaleBrokerEpoch, Retry, Row, "the broker has just restarted"),
    known(Code::PreferredLeaderNotAvailable, BackOffTopic, Row, "the partition has no leader now"),
    known(Code::EligibleLeadersNotAvailable, BackOffTopic, Row, "the partition has no leader now"),
    known(
        Code::InvalidRecord,
        Park,
        Request,
        "the topic does not take such a message; a compacted one takes none without a key",
    ),
    known(Code::ThrottlingQuotaExceeded, BackOffTopic, Row, "a quota is used up"),
    known(Code::ProducerFenced, Rebuild, Row, "a newer producer has the same id"),
    known(Code::ResourceNotFound, Retry, Row, "the broker did not know of it yet"),
    known(Code::UnknownTopicId, BackOffTopic, Row, "the topic was deleted, and perhaps created anew"),
    known(Code::RebootstrapRequired, Retry, Row, "the client has to learn of the cluster anew"),
];

fn look_up(code: Code) -> Option<&'static Known> {
    TABLE.iter().find(|known| known.code == code)
}

/// What to do about an error.
pub(super) fn class(code: Code) -> Class {
    look_up(code).map_or(Retry, |known| known.class)
}

/// Whom an error that the broker reported of a row concerns.
pub(super) fn blame(code: Code) -> Blame {
    look_up(code).map_or(Row, |known| known.blame)
}

/// The error for people: its name, what was said of this very case or else what the code means by itself, and the table's
/// reason.
pub(super) fn tell(code: Code, words: Option<&str>) -> String {
    let words = words.map_or_else(|| words_of(code), str::to_owned);
    let words = words.trim().trim_end_matches('.');
    match look_up(code) {
        Some(known) => format!("{} ({words}): {}", name(code), known.reason),
        None => format!("{} ({words})", name(code)),
    }
}

/// What librdkafka calls the code.
pub(super) fn name(code: Code) -> String {
    // SAFETY: the code is one of librdkafka's, which has a static string for each.
    text_of(code, |code| unsafe { CStr::from_ptr(rdsys::rd_kafka_err2name(code)) })
}

/// What librdkafka says of the code.
pub(super) fn words_of(code: Code) -> String {
    // SAFETY: as above.
    text_of(code, |code| unsafe { CStr::from_ptr(rdsys::rd_kafka_err2str(code)) })
}

fn text_of(code: Code, text: impl Fn(RDKafkaRespErr) -> &'static CStr) -> String {
    RDKafkaRespErr::try_from(code as i32)
        .map_or_else(|_| format!("{code:?}"), |code| text(code).to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DOCUMENT: &str = include_str!("../../docs/errors.md");

    /// Codes of librdkafka that a producer without transactions does not meet: those of consumers and their groups, of
    /// transactions, of administration and of the brokers among themselves; and no error at all.
    const ELSEWHERE: &[&str] = &[
        "_PARTITION_EOF",
        "_UNKNOWN_GROUP",
        "_EXISTING_SUBSCRIPTION",
        "_ASSIGN_PARTITIONS",
        "_REVOKE_PARTITIONS",
        "_NO_OFFSET",
        "_KEY_SERIALIZATION",
        "_VALUE_SERIALIZATION",
        "_KEY_DESERIALIZATION",
        "_VALUE_DESERIALIZATION",
        "_READ_ONLY",
        "_INVALID_TYPE",
        "_MAX_POLL_EXCEEDED",
        "_APPLICATION",
        "_ASSIGNMENT_LOST",
        "_NOOP",
        "_AUTO_OFFSET_RESET",
        "_LOG_TRUNCATION",
        "NO_ERROR",
        "OFFSET_OUT_OF_RANGE",
        "STALE_CTRL_EPOCH",
        "OFFSET_METADATA_TOO_LARGE",
        "ILLEGAL_GENERATION",
        "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_GROUP_ID",
        "UNKNOWN_MEMBER_ID",
        "INVALID_SESSION_TIMEOUT",
        "REBALANCE_IN_PROGRESS",
        "INVALID_COMMIT_OFFSET_SIZE",
        "GROUP_AUTHORIZATION_FAILED",
        "TOPIC_ALREADY_EXISTS",
        "INVALID_PARTITIONS",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_REPLICA_ASSIGNMENT",
        "INVALID_TXN_STATE",
        "INVALID_TRANSACTION_TIMEOUT",
        "CONCURRENT_TRANSACTIONS",
        "TRANSACTION_COORDINATOR_FENCED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "OPERATION_NOT_ATTEMPTED",
        "LOG_DIR_NOT_FOUND",
        "INVALID_PRINCIPAL_TYPE",
        "NON_EMPTY_GROUP",
        "GROUP_ID_NOT_FOUND",
        "FETCH_SESSION_ID_NOT_FOUND",
        "INVALID_FETCH_SESSION_EPOCH",
        "TOPIC_DELETION_DISABLED",
        "OFFSET_NOT_AVAILABLE",
        "MEMBER_ID_REQUIRED",
        "GROUP_MAX_SIZE_REACHED",
        "FENCED_INSTANCE_ID",
        "ELECTION_NOT_NEEDED",
        "NO_REASSIGNMENT_IN_PROGRESS",
        "GROUP_SUBSCRIBED_TO_TOPIC",
        "UNSTABLE_OFFSET_COMMIT",
        "DUPLICATE_RESOURCE",
        "UNACCEPTABLE_CREDENTIAL",
        "INCONSISTENT_VOTER_SET",
        "INVALID_UPDATE_VERSION",
        "FEATURE_UPDATE_FAILED",
        "PRINCIPAL_DESERIALIZATION_FAILURE",
        "FENCED_MEMBER_EPOCH",
        "UNRELEASED_INSTANCE_ID",
        "UNSUPPORTED_ASSIGNOR",
        "STALE_MEMBER_EPOCH",
        "UNKNOWN_SUBSCRIPTION_ID",
        "TELEMETRY_TOO_LARGE",
    ];

    /// All codes that this librdkafka has a name for.
    fn all_names() -> BTreeSet<String> {
        let (mut first, mut count) = (std::ptr::null(), 0);
        // SAFETY: librdkafka fills in a static array of its own and its length; the names are static strings.
        unsafe {
            rdsys::rd_kafka_get_err_descs(&mut first, &mut count);
            let descriptions = std::slice::from_raw_parts(first, count);
            let named = descriptions.iter().filter(|description| !description.name.is_null());
            named.map(|description| CStr::from_ptr(description.name).to_string_lossy().into_owned()).collect()
        }
    }

    #[test]
    fn every_code_of_the_client_is_in_the_table_or_is_met_elsewhere() {
        let table: BTreeSet<String> = TABLE.iter().map(|known| name(known.code)).collect();
        assert_eq!(table.len(), TABLE.len(), "a code is there twice");
        let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(table.intersection(&elsewhere).collect::<Vec<_>>(), Vec::<&String>::new());
        let bounds = ["_BEGIN", "_END"].map(str::to_owned);
        let missing: Vec<String> = all_names()
            .into_iter()
            .filter(|name| !table.contains(name) && !elsewhere.contains(name) && !bounds.contains(name))
            .collect();
        assert_eq!(missing, Vec::<String>::new(), "of these it is not said what to do");
        assert!(TABLE.is_sorted_by_key(|known| known.code as i32));
    }

    #[test]
    fn the_document_shows_the_same_table() {
        let shown: Vec<&str> = DOCUMENT.lines().filter(|line| line.starts_with("| `")).collect();
        let expected: Vec<String> = TABLE
            .iter()
            .map(|known| {
                let class = match known.class {
                    Retry => "retry",
                    BackOffTopic => "back off the topic",
                    Park => "park",
                    Rebuild => "rebuild",
                    Stop => "stop",
                };
                let blame = match known.blame {
                    Row => "",
                    Request => "one of the request",
                    Neighbour => "another",
                };
                format!("| `{}` | {} | {class} | {blame} | {} |", name(known.code), known.code as i32, known.reason)
            })
            .collect();
        assert!(shown == expected, "docs/errors.md has another table; this one is right:\n{}", expected.join("\n"));
    }

    #[test]
    fn an_unknown_code_is_transient() {
        assert_eq!((class(Code::NoError), blame(Code::NoError)), (Retry, Row));
    }

    #[test]
    fn an_error_is_told_with_its_name_its_words_and_the_reason() {
        let told = tell(Code::InvalidRecord, Some("Compacted topic cannot accept message without key. "));
        let expected = "INVALID_RECORD (Compacted topic cannot accept message without key): the topic does not take such a message; a compacted one takes none without a key";
        assert_eq!(told, expected);
        let told = tell(Code::MessageSizeTooLarge, None);
        let expected =
            "MSG_SIZE_TOO_LARGE (Broker: Message size too large): larger than max.message.bytes of the topic";
        assert_eq!(told, expected);
        assert_eq!(tell(Code::NoError, None), "NO_ERROR (Success)");
    }
}
