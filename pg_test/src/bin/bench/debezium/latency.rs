//! One message at a time on an idle server: commit to consumer by Debezium beside the same by the relay, taking turns.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::consumer::Consumer;
use postgres::types::ToSql;
use postgres::{Client, Statement};

use crate::Bench;
use crate::messages::Messages;
use crate::servers::Servers;

use super::contestant::{INSERT, TOPICS};

const AT_MOST: Duration = Duration::from_secs(60);
/// Of each, before the first one counts: connections, metadata, caches.
const WARM_UP: usize = 50;
const DEBEZIUM: &str = "one-at-a-time";
const RELAY: &str = "one-at-a-time-relay";

/// Milliseconds from the answer to COMMIT until the consumer has the record.
pub struct Latencies {
    /// By Debezium.
    pub debezium: Vec<f64>,
    /// By the relay.
    pub relay: Vec<f64>,
}

/// With both at work on the same server, `count` messages of each.
pub fn measure(bench: &Bench<'_>, servers: &Servers, count: usize) -> Result<Latencies> {
    let topics = [format!("{TOPICS}{DEBEZIUM}"), RELAY.to_owned()];
    for topic in &topics {
        servers.broker.create_topic(topic, 1, &[])?;
    }
    let mut consumer = Consumer::follow(&servers.broker.bootstrap(), &[&topics[0], &topics[1]])?;
    let mut client = servers.session()?;
    let insert = client.prepare(INSERT)?;
    let enqueue = client.prepare("select outbox.enqueue($1::text, $2::text, $3::bytea)")?;
    let value = Messages::central(1).padding();
    let mut latencies = Latencies { debezium: Vec::new(), relay: Vec::new() };
    let mut random = fastrand::Rng::with_seed(1);
    for number in 0..WARM_UP + count {
        bench.terminal.draw(format_args!("message {number} of {}", WARM_UP + count));
        let debezium = one(&mut client, &insert, &[&DEBEZIUM, &"key", &value], &mut consumer, &topics[0], &mut random)?;
        let relay = one(&mut client, &enqueue, &[&RELAY, &"key", &value], &mut consumer, &topics[1], &mut random)?;
        if number >= WARM_UP {
            latencies.debezium.push(debezium);
            latencies.relay.push(relay);
        }
    }
    bench.terminal.wipe();
    Ok(latencies)
}

fn one(
    client: &mut Client,
    statement: &Statement,
    parameters: &[&(dyn ToSql + Sync)],
    consumer: &mut Consumer,
    topic: &str,
    random: &mut fastrand::Rng,
) -> Result<f64> {
    // Lets everything come to rest, never in step with anybody's timer.
    thread::sleep(Duration::from_micros(random.u64(3_000..12_000)));
    let mut transaction = client.transaction()?;
    transaction.execute(statement, parameters).context("could not write a message")?;
    transaction.commit()?;
    let committed = Instant::now();
    let record = consumer.next(AT_MOST)?.with_context(|| format!("no message arrived in {topic}"))?;
    let took = committed.elapsed();
    ensure!(record.topic == topic, "a record of {} arrived, one of {topic} was expected", record.topic);
    Ok(took.as_secs_f64() * 1_000.0)
}
