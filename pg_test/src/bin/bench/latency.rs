//! One message at a time on an idle system: commit to consumer beside produce to consumer, taking turns.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::terminal::Terminal;
use rdkafka::producer::BaseRecord;
use uuid::Uuid;

use crate::servers::Servers;
use crate::{Options, drain, raw};

const AT_MOST: Duration = Duration::from_secs(60);
/// Before the first one counts: connections, metadata, caches.
const WARM_UP: usize = 100;
const RAW: &str = "latency-raw";
const RELAY: &str = "latency-relay";

/// What was measured, sorted.
pub struct Latencies {
    /// The raw producer: from produce to the consumer.
    pub raw: Vec<Duration>,
    /// The relay: from the answer to COMMIT to the consumer.
    pub from_committed: Vec<Duration>,
    /// The relay: from sending COMMIT to the consumer; this includes the flush of WAL to disk.
    pub from_commit_sent: Vec<Duration>,
}

/// Takes turns so that both meet the same machine.
pub fn measure(terminal: &Terminal, servers: &Servers, options: &Options) -> Result<Latencies> {
    let mut client = servers.session()?;
    drain::enable(servers, &mut client, true)?;
    for topic in [RAW, RELAY] {
        servers.broker.create_topic(topic, 1, &[])?;
    }
    let producer = raw::producer(&servers.broker)?;
    let mut consumer = Consumer::follow(&servers.broker.bootstrap(), &[RAW, RELAY])?;
    let enqueue = client.prepare("select outbox.enqueue($1::text, 'key', $2::text)")?;
    let value = "x".repeat(raw::VALUE_BYTES);
    let mut latencies = Latencies { raw: Vec::new(), from_committed: Vec::new(), from_commit_sent: Vec::new() };
    let mut rng = fastrand::Rng::with_seed(1);
    for number in 0..WARM_UP + options.messages {
        terminal.draw(format_args!("message {number} of {}", WARM_UP + options.messages));
        idle(&mut rng);
        let produced = Instant::now();
        producer.send(BaseRecord::to(RAW).key("key").payload(&value)).map_err(|(error, _)| error)?;
        let record = consumer.next(AT_MOST)?.context("the raw message did not arrive")?;
        let raw = produced.elapsed();
        ensure!(record.topic == RAW, "an unexpected record arrived");
        producer.poll(Duration::ZERO);

        idle(&mut rng);
        let mut transaction = client.transaction()?;
        let id: Uuid = transaction.query_one(&enqueue, &[&RELAY, &value])?.get(0);
        let sent = Instant::now();
        transaction.commit()?;
        let committed = Instant::now();
        let record = consumer.next(AT_MOST)?.context("the enqueued message did not arrive")?;
        let arrived = Instant::now();
        ensure!(record.message_id()? == id, "an unexpected record arrived");
        if number >= WARM_UP {
            latencies.raw.push(raw);
            latencies.from_committed.push(arrived - committed);
            latencies.from_commit_sent.push(arrived - sent);
        }
    }
    terminal.wipe();
    for times in [&mut latencies.raw, &mut latencies.from_committed, &mut latencies.from_commit_sent] {
        times.sort_unstable();
    }
    Ok(latencies)
}

/// Lets everything come to rest, never in step with anybody's timer.
fn idle(rng: &mut fastrand::Rng) {
    thread::sleep(Duration::from_micros(rng.u64(3_000..12_000)));
}

/// The time that `percent` of the sorted times do not exceed.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}
