//! Writers and the relay at the same time: whether the relay falls behind (R4), and how long a message takes (R6).
//!
//! Reason: a backlog is drained once, but a relay must keep up for ever, with writers that take the same cores. Falling behind
//! shows as an age of the oldest unsent row that grows; a constant age is only a delay.
//!
//! Flat out: pgbench commits one message at a time as fast as it can beside the relay. A session looks up to ten times a second how
//! old the oldest unsent row of any bucket is and how many ids are not removed yet. The growth is the median slope of all
//! pairs of looks in the second half of the run (Theil and Sen), which one slow look cannot bend.
//!
//! On schedule: the same writers at a part of that rate, at random times of that mean (an open loop: who is late does not
//! slow the next one down). pgbench notes when each COMMIT was answered; a consumer in this process notes when it got the
//! message. The latency is the time between, for every single message, both by this machine's clock.
//!
//! Everything is read back: every message once, each key in order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use postgres::{Client, Statement};

use crate::Bench;
use crate::arrivals::Arrivals;
use crate::numbered::{self, Target};
use crate::pgbench::{self, Load, Outcome, Script, Until};
use crate::results::{Good, Ratio, Results, median, percentile};
use crate::servers::{DATABASE, Servers};

const GROUP: &str = "steady";
const TOPIC: &str = "steady";
const PARTITIONS: i32 = 4;
/// Writers on schedule.
const CLIENTS: usize = 8;
/// Between two looks at the lag.
const LOOK: Duration = Duration::from_millis(100);
/// An age that grows by a millisecond a second is a relay that is slower than its writers by a thousandth.
const GROWTH_AT_MOST: f64 = 1.0;

/// Flat out, then on schedule.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let servers = bench.servers;
    servers.broker.create_topic(TOPIC, PARTITIONS, &[])?;
    let mut arrivals = Arrivals::follow(&servers.broker.bootstrap(), TOPIC)?;
    servers.enable(true)?;
    // Not measured: caches, connections and the topic's metadata.
    scheduled_run(servers, &mut arrivals, 500.0, 1)?;

    let cases: &[(usize, bool)] =
        bench.pick(&[(8, true), (16, false)], &[(8, true), (16, true), (8, false), (16, false)]);
    // Who writes flat out shares the machine with writers and relay alone.
    arrivals.pause()?;
    let rates = flat_out(bench, cases, &mut arrivals, results)?;
    arrivals.resume()?;
    on_schedule(bench, rates, &mut arrivals, results)?;
    results.records_read_back += arrivals.read();
    servers.enable(false)
}

/// What a look at the lag found.
#[derive(Clone, Copy)]
struct Look {
    /// Since the start of the run, in seconds.
    at: f64,
    /// Age of the oldest unsent row, in milliseconds; 0 without one.
    age: f64,
    /// Ids drawn whose messages are not removed.
    unsent: f64,
    /// How long the look itself took, in milliseconds.
    took: f64,
}

/// Runs every case and returns the rate of the first one.
fn flat_out(bench: &Bench<'_>, cases: &[(usize, bool)], arrivals: &mut Arrivals, results: &mut Results) -> Result<f64> {
    let seconds = bench.pick(30, 120);
    let mut of_first = f64::NAN;
    let mut worst: Option<(f64, String)> = None;
    for (clients, flushed) in cases {
        let (rate, looks) = flat_out_run(bench, *clients, *flushed, seconds, arrivals)?;
        let ages: Vec<f64> = looks.iter().map(|look| look.age).collect();
        let highest = |of: fn(&Look) -> f64| looks.iter().map(of).fold(0.0, f64::max);
        let growth = growth(&looks[looks.len() / 2..]);
        let age = median(&ages);
        let age_max = highest(|look| look.age);
        let unsent = highest(|look| look.unsent);
        let took = median(&looks.iter().map(|look| look.took).collect::<Vec<_>>());
        let case = format!("flat out, {clients} clients, synchronous_commit {}", if *flushed { "on" } else { "off" });
        bench.terminal.good(format_args!(
            "{case}: {rate:.0} messages/s; age of the oldest {age:.1} ms, at most {age_max:.1} ms, growth {growth:.3} ms/s; \
             at most {unsent:.0} unsent"
        ));
        if of_first.is_nan() {
            of_first = rate;
        }
        if worst.as_ref().is_none_or(|(before, _)| growth > *before) {
            worst = Some((growth, case.clone()));
        }
        let columns = [
            ("writers", "messages/s", "one message a commit, beside the relay and Kafka"),
            (
                "growth of the age of the oldest unsent row",
                "ms/s",
                "median slope of all pairs of looks of the second half",
            ),
            ("age of the oldest unsent row, median look", "ms", "since outbox.enqueue was called, so with the commit"),
            ("age of the oldest unsent row, highest look", "ms", "one look of up to ten a second"),
            ("unsent messages, highest look", "messages", "ids drawn and not removed: with those not committed yet"),
            ("a look itself, median", "ms", "100 ms after the last; it shares the machine too"),
        ];
        for ((who, unit, note), value) in columns.into_iter().zip([rate, growth, age, age_max, unsent, took]) {
            results.add_series(GROUP, &case, who, unit, vec![value], note);
        }
    }
    let (value, case) = worst.context("no case was run")?;
    results.ratios.push(Ratio {
        id: "R4".into(),
        what: "growth of the lag beside writers that commit one message at a time as fast as they can".into(),
        value,
        unit: " ms/s".into(),
        good: Good::AtMost,
        required: GROWTH_AT_MOST,
        aim: None,
        method: format!(
            "the worst case ({case}) of {}; {seconds} s each, growth of the age of the oldest unsent row over \
             the second half; 1 ms a second would be a relay that is a thousandth slower than its writers",
            cases.len()
        ),
    });
    Ok(of_first)
}

fn flat_out_run(
    bench: &Bench<'_>,
    clients: usize,
    flushed: bool,
    seconds: u64,
    arrivals: &mut Arrivals,
) -> Result<(f64, Vec<Look>)> {
    let servers = bench.servers;
    servers.vacuum()?;
    let mut lag = Lag::new(servers.session()?)?;
    let base = arrivals.next_base();
    let removed = lag.look()?.1;
    let script = numbered::script(Target::Outbox(TOPIC), 1);
    let mut load = Load::new(DATABASE, Script::Text(&script), clients, Until::Seconds(seconds));
    let variables = [(numbered::BASE, base as i64)];
    load.variables = &variables;
    load.options = if flushed { "-c synchronous_commit=on" } else { "-c synchronous_commit=off" };
    let mut writers = pgbench::start(servers, &load)?;
    let since = Instant::now();
    let mut looks = Vec::new();
    while writers.goes_on()? {
        let at = since.elapsed();
        let (age, drawn) = lag.look()?;
        let took = (since.elapsed() - at).as_secs_f64() * 1000.0;
        let look = Look { at: at.as_secs_f64(), age, unsent: drawn - removed, took };
        bench.terminal.draw(format_args!(
            "{clients} clients: the oldest unsent row is {age:.0} ms old, {:.0} unsent",
            look.unsent
        ));
        looks.push(look);
        thread::sleep(LOOK);
    }
    let outcome = writers.finish()?;
    numbered::wait_until_empty(&mut lag.client)?;
    arrivals.read_past_run(base, outcome.transactions)?;
    bench.terminal.wipe();
    Ok((outcome.rate, looks))
}

/// The age of the oldest unsent row in milliseconds, the ids that were drawn without those of removed messages, and the lowest
/// unsent id. Looks at the first row of each bucket from an id on: to count the rows would read them all, and to begin at the
/// front would pass all that was removed and not yet vacuumed. The age is that of when the statement came: by the clock the
/// time that the look itself takes, which grows with the rows to pass, would count as lag.
const LAG: &str = "
    select coalesce(max(extract(epoch from statement_timestamp() - o.created_at)), 0)::float8 * 1000,
           ((select last_value from outbox.message_id_seq)
            - (select coalesce(sum(messages), 0) from outbox.relay_status()))::float8,
           coalesce(min(o.id), (select last_value from outbox.message_id_seq))
    from generate_series(0, outbox.bucket_count() - 1) b (bucket)
    cross join lateral (
        select m.id, m.created_at from outbox.message m where m.bucket = b.bucket and m.id >= $1 order by m.id limit 1
    ) o";

/// A look begins so many ids before the first unsent one of the look before: a transaction may commit later than others that
/// drew their ids after it, but not three seconds of them.
const COMMITTED_LATE: i64 = 100_000;

/// Looks at the lag, again and again.
struct Lag {
    client: Client,
    statement: Statement,
    first: i64,
}

impl Lag {
    fn new(mut client: Client) -> Result<Self> {
        let statement = client.prepare(LAG)?;
        Ok(Self { client, statement, first: 0 })
    }

    /// The age in milliseconds, and the ids that were drawn without those of removed messages.
    fn look(&mut self) -> Result<(f64, f64)> {
        let from = self.first.saturating_sub(COMMITTED_LATE);
        let row = self.client.query_one(&self.statement, &[&from]).context("could not look at the lag")?;
        self.first = row.get(2);
        Ok((row.get(0), row.get(1)))
    }
}

/// The median of the slopes of all pairs, in milliseconds a second.
fn growth(looks: &[Look]) -> f64 {
    let slopes: Vec<f64> = looks
        .iter()
        .enumerate()
        .flat_map(|(place, first)| {
            looks[place + 1..].iter().map(move |second| (second.age - first.age) / (second.at - first.at))
        })
        .collect();
    median(&slopes)
}

fn on_schedule(bench: &Bench<'_>, flat_out: f64, arrivals: &mut Arrivals, results: &mut Results) -> Result<()> {
    let seconds = bench.pick(3, 20);
    let parts: &[u32] = bench.pick(&[50], &[25, 50, 90]);
    // p50, p95 and p99 of the latency, p99 of the lateness of the writers, and the rate.
    let mut series = vec![<[Vec<f64>; 5]>::default(); parts.len()];
    for round in 1..=bench.rounds {
        for (percent, series) in parts.iter().zip(&mut series) {
            bench.terminal.draw(format_args!("round {round} of {}, at {percent} %", bench.rounds));
            let rate = flat_out * f64::from(*percent) / 100.0;
            let (outcome, latencies, late) = scheduled_run(bench.servers, arrivals, rate, seconds)?;
            let found = [
                percentile(&latencies, 50),
                percentile(&latencies, 95),
                percentile(&latencies, 99),
                percentile(&late, 99),
                outcome.rate,
            ];
            for (samples, value) in series.iter_mut().zip(found) {
                samples.push(value);
            }
        }
    }
    for (percent, series) in parts.iter().zip(series) {
        let case = format!("on schedule, {percent} % of flat out");
        let [p50, p95, p99, late, rate] = series.each_ref().map(|samples| median(samples));
        bench.terminal.good(format_args!(
            "{case}, {rate:.0} messages/s: commit to consumer {p50:.2} / {p95:.2} / {p99:.2} ms (p50 / p95 / p99); writers late \
             by {late:.2} ms (p99)"
        ));
        if *percent == 50 {
            results.ratios.push(Ratio {
                id: "R6".into(),
                what: "p99 from commit to consumer at half the rate that the machine can write beside the relay".into(),
                value: p99,
                unit: " ms".into(),
                good: Good::AtMost,
                required: 25.0,
                aim: Some(10.0),
                method: format!(
                    "{CLIENTS} clients, one message a commit, {rate:.0} messages/s at random times (open loop), {seconds} s, \
                     {} rounds; from the answer to COMMIT to an independent consumer, every message; p99 of the writers' \
                     lateness {late:.2} ms",
                    bench.rounds
                ),
            });
        }
        let asked = format!(
            "of {:.0} asked for; one message a commit, random times, synchronous_commit on",
            flat_out * f64::from(*percent) / 100.0
        );
        let columns = [
            ("commit to consumer, p50", "ms", "from the answer to COMMIT to a consumer on the same machine"),
            ("commit to consumer, p95", "ms", "as p50"),
            ("commit to consumer, p99", "ms", "as p50"),
            ("lateness of the writers, p99", "ms", "how late a transaction began; not part of the latency"),
            ("writers", "messages/s", &asked),
        ];
        for ((who, unit, note), samples) in columns.into_iter().zip(series) {
            results.add_series(GROUP, &case, who, unit, samples, note);
        }
    }
    Ok(())
}

/// Writers on schedule; the latency of each message and the lateness of each writer in milliseconds, both sorted.
fn scheduled_run(
    servers: &Servers,
    arrivals: &mut Arrivals,
    rate: f64,
    seconds: u64,
) -> Result<(Outcome, Vec<f64>, Vec<f64>)> {
    let base = arrivals.next_base();
    let script = numbered::script(Target::Outbox(TOPIC), 1);
    let mut load = Load::new(DATABASE, Script::Text(&script), CLIENTS, Until::Seconds(seconds));
    let variables = [(numbered::BASE, base as i64)];
    load.variables = &variables;
    load.rate = Some(rate);
    load.log = true;
    let written = AtomicU64::new(u64::MAX);
    let (outcome, arrived) = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            arrivals.read_run(base, || Some(written.load(Ordering::Relaxed)).filter(|written| *written != u64::MAX))
        });
        let outcome = pgbench::run(servers, &load);
        // Without a number the reader ends with what it has, and the error of the writers is told.
        written.store(outcome.as_ref().map_or(0, |outcome| outcome.transactions), Ordering::Relaxed);
        let arrived = reader.join().map_err(|_| anyhow!("the reader panicked"))?;
        let outcome = outcome?;
        anyhow::Ok((outcome, arrived?))
    })?;
    let mut at: HashMap<(usize, u64), Duration> = HashMap::with_capacity(arrived.len());
    at.extend(arrived.iter().map(|arrival| ((arrival.writer, arrival.number), arrival.at)));
    let (mut latencies, mut late) = (Vec::with_capacity(arrived.len()), Vec::with_capacity(arrived.len()));
    for transaction in outcome.log()? {
        let arrived = at
            .get(&(transaction.client, transaction.number))
            .with_context(|| format!("{transaction:?} was committed and not read"))?;
        // The relay may be faster than the answer to COMMIT: then it is below zero.
        latencies.push((arrived.as_secs_f64() - transaction.answered.as_secs_f64()) * 1000.0);
        late.push(transaction.late.as_secs_f64() * 1000.0);
    }
    for times in [&mut latencies, &mut late] {
        times.sort_unstable_by(f64::total_cmp);
    }
    Ok((outcome, latencies, late))
}
