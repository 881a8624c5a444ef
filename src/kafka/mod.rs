//! The second wall: the only place that knows librdkafka.
//!
//! What is law for every producer is in [`crate::properties::LAWS`]. Nothing here calls Postgres or blocks the server's
//! thread: sending only queues, reports are collected when a descriptor rings, and what takes time (closing a client) runs
//! on threads of our own, which are started with all signals blocked so that none of the server's is taken by them.

mod caretaker;
mod errors;
mod inquiry;
mod producer;
mod report;
mod ring;
mod telling;
mod trial;

pub use caretaker::Caretaker;
pub use inquiry::Contact;
pub use producer::{KafkaPublisher, check_properties};
pub use ring::Ring;
pub use trial::{Outcome, Trial};

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::properties::Properties;

fn client_config(properties: &Properties) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (name, value) in properties {
        config.set(name, value);
    }
    config.set_log_level(RDKafkaLogLevel::Info);
    config
}
