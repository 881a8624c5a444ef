//! outbox_relay: messages saved with the business change, published to Kafka by workers inside PostgreSQL.
//!
//! A message's journey, and where to read it:
//!
//! 1. An application calls `outbox.enqueue` in its own transaction. The message is checked ([`message`], [`headers`], [`trace_context`]),
//!    gets the bucket that keeps its key's order ([`bucket`]), and becomes a row (postgres/enqueue.rs, sql/enqueue.sql).
//! 2. The commit rings: the bucket's bell in shared memory is lowered to the lowest id, and the relay that listens for the
//!    bucket wakes (postgres/bell.rs, postgres/shared.rs).
//! 3. Which relay that is, leases decide: guarded UPDATEs on the database's clock, planned so that relays share evenly
//!    ([`share`], [`lease`], sql/statements/claim_leases.sql). The launcher keeps the relays alive (postgres/launcher.rs,
//!    postgres/worker.rs).
//! 4. The relay loop ([`relay`]) reads a batch of the bucket from its position and waits until its commits are safe on disk
//!    (postgres/fetch.rs), as far as the window allows ([`window`]), and up to where messages wait for those of an earlier
//!    bucket count ([`fence`]).
//! 5. The rows are handed to librdkafka (kafka/producer.rs), whose properties partly are law ([`properties`]).
//! 6. Delivery reports come back (kafka/report.rs) and say how much of the batch is acknowledged ([`prefix`]). Exactly those
//!    rows are removed (postgres/store.rs, postgres/removal.rs). What failed is tried again after a wait
//!    ([`backoff`]), and said once, then counted ([`repeats`]).
//!
//! The modules above are pure rules: they know neither Postgres nor Kafka, take time as a parameter ([`clock`]), and are all
//! that is built without features. The relay loop sees the world through four traits ([`relay::ports`]), so it runs over
//! other storages too: [`custom_stores`] is the chapter on that, and [`conformance`] tries whether such a store keeps the
//! contract. The server is behind the first wall, src/postgres, whose `_PG_init` is where the library starts; librdkafka is
//! behind the second, src/kafka. `unsafe` occurs in these two only.

pub mod backoff;
mod broken;
pub mod bucket;
pub mod clock;
pub mod conformance;
pub mod custom_stores;
pub mod dead_letter;
pub mod fence;
pub mod headers;
pub mod lease;
pub mod message;
pub mod order;
pub mod policy;
pub mod prefix;
pub mod properties;
pub mod relay;
pub mod repeats;
pub mod settings;
pub mod share;
pub mod trace_context;
pub mod window;

#[cfg(feature = "kafka")]
#[allow(unsafe_code, reason = "the second wall")]
pub mod kafka;
#[cfg(feature = "pg15")]
#[allow(unsafe_code, reason = "the first wall")]
mod postgres;
#[cfg(any(test, feature = "simulate"))]
#[cfg_attr(not(test), allow(dead_code, reason = "scripts, which are tests, use more of it"))]
pub mod simulate;
