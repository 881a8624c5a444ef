//! What the cluster tests, the demo and the benchmark stand on: real servers, an independent consumer, and the truth.
//!
//! In the order a test meets them:
//!
//! - [`state`]: where everything lives that is made here, and as whom servers run
//! - [`process`]: a server process that never outlives the run unless it is meant to
//! - [`wait`]: waiting for a named state, with a bound
//! - [`cluster`]: a Postgres cluster of our own
//! - [`broker`]: an Apache Kafka broker of our own
//! - [`security`]: TLS, SASL and ACLs for it
//! - [`tokens`]: an OIDC provider whose tokens it knows
//! - [`brokers`]: three of them that replicate to each other
//! - [`connect`]: Kafka Connect, which runs the Debezium that the benchmark compares with
//! - [`proxy`]: what lies between a client and a broker, and may swallow everything
//! - [`load`]: writers that enqueue, roll back, lose their connection, and know what they committed
//! - [`consumer`]: reads back what reached Kafka; it shares nothing with the extension but the protocol
//! - [`checker`]: compares both
//! - [`murmur2`]: Kafka's hash, written a second time so that the extension's is not its own witness
//! - [`terminal`]: how the demo and the benchmark talk to people

pub mod broker;
pub mod brokers;
pub mod checker;
pub mod cluster;
pub mod connect;
pub mod consumer;
pub mod load;
pub mod murmur2;
pub mod process;
pub mod proxy;
pub mod security;
pub mod state;
pub mod terminal;
pub mod tokens;
pub mod wait;
