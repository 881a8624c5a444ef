//! One message at a time on an idle server: commit to consumer by Debezium beside the same by the relay, taking turns.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::consumer::Consumer;
use postgres::{Client, Statement};

use crate::Bench;
use crate::messages::Messages;
use crate::servers::Servers;

use super::contestant::{self, INSERT};

const AT_MOST: Duration = Duration::from_secs(60);
/// Of each, before the first one counts: connections, metadata, caches.
const WARM_UP: usize = 50;

/// How a contestant gets a message, and where that goes.
struct Way {
    /// Takes topic or aggregate type, key and value.
    write: Statement,
    name: String,
    topic: String,
}

/// Both contestants, at work on one server.
pub struct Turns {
    apparatus: Apparatus,
    debezium: Way,
    relay: Way,
}

/// Writes and waits, for both.
struct Apparatus {
    client: Client,
    consumer: Consumer,
    value: Vec<u8>,
    random: fastrand::Rng,
}

/// Milliseconds from the answer to COMMIT until the consumer has the record.
#[derive(Default)]
pub struct Times {
    /// By Debezium.
    pub debezium: Vec<f64>,
    /// By the relay.
    pub relay: Vec<f64>,
}

impl Turns {
    /// Makes a topic for each and warms up.
    pub fn prepare(bench: &Bench<'_>, servers: &Servers) -> Result<Turns> {
        let mut client = servers.session()?;
        let (name, topic) = contestant::new_topic(bench, "one-at-a-time", 1)?;
        let debezium = Way { write: client.prepare(INSERT)?, name, topic };
        let topic = bench.new_topic("one-at-a-time", 1)?;
        let write = client.prepare("select outbox.enqueue($1::text, $2::text, $3::bytea)")?;
        let relay = Way { write, name: topic.clone(), topic };
        let consumer = Consumer::follow(&servers.broker.bootstrap(), &[&debezium.topic, &relay.topic])?;
        let value = Messages::central(1).padding();
        let random = fastrand::Rng::with_seed(1);
        let mut turns = Turns { apparatus: Apparatus { client, consumer, value, random }, debezium, relay };
        turns.take(WARM_UP)?;
        Ok(turns)
    }

    /// So many messages of each.
    pub fn take(&mut self, count: usize) -> Result<Times> {
        let mut times = Times::default();
        for _ in 0..count {
            times.debezium.push(self.apparatus.time(&self.debezium)?);
            times.relay.push(self.apparatus.time(&self.relay)?);
        }
        Ok(times)
    }
}

impl Apparatus {
    fn time(&mut self, way: &Way) -> Result<f64> {
        // Lets everything come to rest, never in step with anybody's timer.
        thread::sleep(Duration::from_micros(self.random.u64(3_000..12_000)));
        let mut transaction = self.client.transaction()?;
        transaction.execute(&way.write, &[&way.name, &"key", &self.value]).context("could not write a message")?;
        transaction.commit()?;
        let committed = Instant::now();
        let topic = &way.topic;
        let record = self.consumer.next(AT_MOST)?.with_context(|| format!("no message arrived in {topic}"))?;
        let took = committed.elapsed();
        ensure!(&record.topic == topic, "a record of {} arrived, one of {topic} was expected", record.topic);
        ensure!(record.value.as_ref() == Some(&self.value), "the value of a record of {topic} is altered");
        Ok(took.as_secs_f64() * 1_000.0)
    }
}
