//! Questions to brokers for a sign of life, off the server's thread.
//!
//! Asking for the metadata of a topic does two things: the answer tells that a broker lives, whatever it says of the topic; and
//! the client learns what has become of the topic, which by itself it would ask only after a minute.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rdkafka::bindings as rdsys;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::metadata::{MetadataPartition, MetadataTopic};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaRespErr;

use crate::relay::ports::Answer;

use super::caretaker::Caretaker;
use super::producer::Callbacks;
use super::ring::Ring;

/// Longest time that a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Topics that may wait to be asked for; others are left out, and will be asked for again.
const WAITING_MAX: usize = 1000;

/// What is to be asked, and whether anything was answered. One question is under way at a time: with the brokers away each takes
/// as long as it may, and the threads are needed to close clients too.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    questions: Mutex<Questions>,
    /// What brokers have answered since this was looked at.
    pub answers: Mutex<Vec<Answer>>,
    /// Topics that a broker has said to be there, since that was asked for.
    there: Mutex<BTreeSet<String>>,
}

/// A topic, and the client to be asked by its address: each has its own picture of a topic.
type Question = (usize, String);

#[derive(Debug, Default)]
struct Questions {
    /// Clients that are closed meanwhile need no answer.
    waiting: BTreeMap<Question, Weak<BaseProducer<Callbacks>>>,
    under_way: Option<Question>,
}

impl Inquiries {
    /// Whether no answer is awaited.
    #[cfg(test)]
    pub fn is_quiet(&self) -> bool {
        self.questions.lock().expect("no panic while it is held").under_way.is_none()
    }

    /// Asks for a topic, if it is not being asked for already, and rings when a broker has answered.
    pub fn look_up(
        self: &Arc<Self>,
        producer: &Arc<BaseProducer<Callbacks>>,
        topic: String,
        caretaker: &Caretaker,
        ring: &Ring,
    ) {
        let question = (Arc::as_ptr(producer) as usize, topic);
        let mut questions = self.questions.lock().expect("no panic while it is held");
        if questions.under_way.as_ref() == Some(&question) || questions.waiting.len() >= WAITING_MAX {
            return;
        }
        let busy = questions.under_way.is_some();
        questions.waiting.insert(question.clone(), Arc::downgrade(producer));
        if busy {
            return;
        }
        questions.under_way = Some(question);
        let (inquiries, ring) = (self.clone(), ring.clone());
        if !caretaker.ask(move || inquiries.ask_all(&ring)) {
            *questions = Questions::default();
        }
    }

    /// Whether a broker has said that the topic is there, since this was asked last.
    pub fn is_there(&self, topic: &str) -> bool {
        self.there.lock().expect("no panic while it is held").remove(topic)
    }

    fn ask_all(&self, ring: &Ring) {
        while let Some((topic, producer)) = self.next() {
            let Some(producer) = producer.upgrade() else { continue };
            let Ok(metadata) = producer.client().fetch_metadata(Some(&topic), PATIENCE) else { continue };
            let in_trouble = |of: &MetadataTopic| {
                let without_leader =
                    |partition: &MetadataPartition| partition.leader() < 0 || partition.error().is_some();
                of.error().is_some() || of.partitions().iter().any(without_leader)
            };
            let in_trouble = metadata.topics().iter().any(|of| of.name() == topic && in_trouble(of));
            let there = |of: &MetadataTopic| of.name() == topic && of.error().is_none() && !of.partitions().is_empty();
            if metadata.topics().iter().any(there) {
                let mut there = self.there.lock().expect("no panic while it is held");
                if there.len() < WAITING_MAX {
                    there.insert(topic.clone());
                }
            }
            let mut answers = self.answers.lock().expect("no panic while it is held");
            if answers.len() < WAITING_MAX {
                answers.push(Answer { topic, in_trouble });
            }
            ring.ring();
        }
    }

    fn next(&self) -> Option<(String, Weak<BaseProducer<Callbacks>>)> {
        let mut questions = self.questions.lock().expect("no panic while it is held");
        let next = questions.waiting.pop_first();
        questions.under_way = next.as_ref().map(|(question, _)| question.clone());
        next.map(|((_, topic), producer)| (topic, producer))
    }
}

/// A way to ask whether the client that is in use has a broker that answers.
#[derive(Debug, Clone, Default)]
pub struct Contact(Arc<Mutex<Weak<BaseProducer<Callbacks>>>>);

impl Contact {
    /// The client that is in use from now on.
    pub(super) fn is_now(&self, producer: &Arc<BaseProducer<Callbacks>>) {
        *self.0.lock().expect("no panic while it is held") = Arc::downgrade(producer);
    }

    /// Whether a broker answers. Takes as long as `patience`.
    pub(super) fn answers(&self, patience: Duration) -> bool {
        let producer = self.0.lock().expect("no panic while it is held").upgrade();
        producer.is_some_and(|producer| ask_for_brokers(&producer, patience).is_ok())
    }
}

/// Asks a broker for the list of brokers, and nothing of any topic.
///
/// # Errors
/// What the client says when none has answered.
pub(super) fn ask_for_brokers(producer: &BaseProducer<Callbacks>, patience: Duration) -> Result<(), RDKafkaErrorCode> {
    let patience = i32::try_from(patience.as_millis()).expect("seconds");
    let mut metadata = std::ptr::null();
    // SAFETY: the client lives; what it gives is destroyed once.
    unsafe {
        let client = producer.client().native_ptr();
        match rdsys::rd_kafka_metadata(client, 0, std::ptr::null_mut(), &mut metadata, patience) {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR => {
                rdsys::rd_kafka_metadata_destroy(metadata);
                Ok(())
            }
            error => Err(error.into()),
        }
    }
}
