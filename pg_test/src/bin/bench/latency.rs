//! One message at a time on an idle system: commit to consumer beside produce to consumer, taking turns (R5).
//!
//! Reason: what an outbox adds to the way of a single message shows best where nothing else waits. Both contestants go to a
//! topic with one partition with `linger.ms = 0`, and the same consumer in this process waits for both, so its price is the
//! same. The relay's time counts from the answer to COMMIT; from sending COMMIT it includes the flush of WAL to disk, and is
//! told beside it. The raw producer adds no header.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::consumer::Consumer;
use rdkafka::producer::BaseRecord;
use uuid::Uuid;

use crate::Bench;
use crate::raw;
use crate::results::{Good, Ratio, Results, median_of_ratios, percentile};

const AT_MOST: Duration = Duration::from_secs(60);
const GROUP: &str = "latency, idle";
const VALUE_BYTES: usize = 200;
/// Before the first one counts: connections, metadata, caches.
const WARM_UP: usize = 100;
const RAW: &str = "latency-raw";
const RELAY: &str = "latency-relay";
/// The contestants, in the order in which a turn gives their times.
const WHO: [&str; 3] =
    ["raw producer, produce to consumer", "relay, commit answered to consumer", "relay, commit sent to consumer"];
const PERCENTS: [usize; 3] = [50, 95, 99];

/// Takes turns so that both meet the same machine.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let servers = bench.servers;
    servers.enable(true)?;
    for topic in [RAW, RELAY] {
        servers.broker.create_topic(topic, 1, &[])?;
    }
    let mut turns = Turns::prepare(bench)?;
    for _ in 0..WARM_UP {
        turns.next()?;
    }
    let messages = bench.pick(200, 1_000);
    // For each contestant and each percentile one sample a round.
    let mut series = [const { [const { Vec::<f64>::new() }; PERCENTS.len()] }; WHO.len()];
    for round in 1..=bench.rounds {
        let mut times = [const { Vec::<Duration>::new() }; WHO.len()];
        for number in 1..=messages {
            bench.terminal.draw(format_args!("round {round} of {}, message {number} of {messages}", bench.rounds));
            for (times, time) in times.iter_mut().zip(turns.next()?) {
                times.push(time);
            }
        }
        for (series, mut times) in series.iter_mut().zip(times) {
            times.sort_unstable();
            let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1000.0).collect();
            for (samples, percent) in series.iter_mut().zip(PERCENTS) {
                samples.push(percentile(&times, percent));
            }
        }
    }
    results.records_read_back += turns.read;
    servers.enable(false)?;

    let value = median_of_ratios(&series[1][0], &series[0][0]);
    bench.terminal.good(format_args!("p50 commit to consumer / p50 produce to consumer {value:.2}"));
    results.ratios.push(Ratio {
        id: "R5".into(),
        what: "p50 from commit to consumer / p50 from produce to consumer of the raw producer, idle".into(),
        value,
        unit: String::new(),
        good: Good::AtMost,
        required: 2.0,
        aim: Some(1.5),
        method: format!(
            "one message at a time in turns, {messages} of each a round, {} rounds, median of their ratios; linger 0 both, from \
             the answer to COMMIT",
            bench.rounds
        ),
    });
    for (who, series) in WHO.into_iter().zip(series) {
        for (samples, percent) in series.into_iter().zip(PERCENTS) {
            let case = format!("p{percent}");
            let note = format!("{VALUE_BYTES} bytes, one partition; {messages} messages a round, one at a time");
            results.add_series(GROUP, &case, who, "ms", samples, &note);
        }
    }
    Ok(())
}

/// Both contestants, ready.
struct Turns {
    client: postgres::Client,
    enqueue: postgres::Statement,
    producer: rdkafka::producer::BaseProducer<raw::Acknowledged>,
    consumer: Consumer,
    value: String,
    rng: fastrand::Rng,
    read: u64,
}

impl Turns {
    fn prepare(bench: &Bench<'_>) -> Result<Turns> {
        let servers = bench.servers;
        let mut client = servers.session()?;
        Ok(Turns {
            enqueue: client.prepare("select outbox.enqueue($1::text, 'key', $2::text)")?,
            client,
            producer: raw::producer(&servers.broker)?,
            consumer: Consumer::follow(&servers.broker.bootstrap(), &[RAW, RELAY])?,
            value: "x".repeat(VALUE_BYTES),
            rng: fastrand::Rng::with_seed(1),
            read: 0,
        })
    }

    /// One message of each; the times are in the order of [`WHO`].
    fn next(&mut self) -> Result<[Duration; WHO.len()]> {
        self.idle();
        let produced = Instant::now();
        self.producer.send(BaseRecord::to(RAW).key("key").payload(&self.value)).map_err(|(error, _)| error)?;
        let record = self.consumer.next(AT_MOST)?.context("the raw message did not arrive")?;
        let raw = produced.elapsed();
        ensure!(record.topic == RAW, "an unexpected record arrived");
        self.producer.poll(Duration::ZERO);

        self.idle();
        let mut transaction = self.client.transaction()?;
        let id: Uuid = transaction.query_one(&self.enqueue, &[&RELAY, &self.value])?.get(0);
        let sent = Instant::now();
        transaction.commit()?;
        let committed = Instant::now();
        let record = self.consumer.next(AT_MOST)?.context("the enqueued message did not arrive")?;
        let arrived = Instant::now();
        ensure!(record.message_id()? == id, "an unexpected record arrived");
        self.read += 2;
        Ok([raw, arrived - committed, arrived - sent])
    }

    /// Lets everything come to rest, never in step with anybody's timer.
    fn idle(&mut self) {
        thread::sleep(Duration::from_micros(self.rng.u64(3_000..12_000)));
    }
}
