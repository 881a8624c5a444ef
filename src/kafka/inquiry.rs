//! Questions to brokers for a sign of life, off the server's thread.
//!
//! Asking for the metadata of a topic does two things: the answer tells that a broker lives, whatever it says of the topic; and
//! the client learns what has become of the topic, which by itself it would ask only after a minute.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rdkafka::bindings as rdsys;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaRespErr;

use super::caretaker::Caretaker;
use super::producer::Callbacks;
use super::ring::Ring;

/// Longest time that a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Topics that may be asked for at a time; others are left out, and will be asked for again.
const UNDER_WAY_MAX: usize = 100;

/// What is being asked, and whether anything was answered.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    /// Topics whose answer is awaited, by the client that was asked: each has its own picture of a topic.
    under_way: Mutex<BTreeSet<(usize, String)>>,
    /// Whether a broker has answered since this was looked at.
    pub answered: AtomicBool,
}

impl Inquiries {
    /// Whether no answer is awaited.
    #[cfg(test)]
    pub fn is_quiet(&self) -> bool {
        self.under_way.lock().expect("no panic while it is held").is_empty()
    }

    /// Asks for a topic, if it is not being asked for already, and rings when a broker has answered.
    pub fn look_up(
        self: &Arc<Self>,
        producer: &Arc<BaseProducer<Callbacks>>,
        topic: String,
        caretaker: &Caretaker,
        ring: &Ring,
    ) {
        let asked = (Arc::as_ptr(producer) as usize, topic);
        let mut under_way = self.under_way.lock().expect("no panic while it is held");
        if under_way.len() >= UNDER_WAY_MAX || !under_way.insert(asked.clone()) {
            return;
        }
        drop(under_way);
        let (inquiries, producer, ring, question) = (self.clone(), producer.clone(), ring.clone(), asked.clone());
        let accepted = caretaker.ask(move || {
            let answer = producer.client().fetch_metadata(Some(&question.1), PATIENCE);
            inquiries.under_way.lock().expect("no panic while it is held").remove(&question);
            if answer.is_ok() {
                inquiries.answered.store(true, Ordering::Release);
                ring.ring();
            }
        });
        if !accepted {
            self.under_way.lock().expect("no panic while it is held").remove(&asked);
        }
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
