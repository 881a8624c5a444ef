//! What others on the same server notice of a busy relay (R8).
//!
//! Reason: the relay lives in somebody's production database server. pgbench's TPC-B-like transactions in another database
//! come at a fixed rate, a third of what the machine can do of them, at random times of that mean. Counted is the time from
//! when a transaction was due to its answer, so that waiting in line counts too.
//!
//! Six turns a round: the relay idle; the relay busy at a quarter, and at a sixteenth, of the rate at which it drains a
//! backlog, fed by calls of a thousand messages; and controls without a relay: at each of these rates the same feeder writing to
//! a table of the same shape that nobody reads, and at a quarter a producer beside that feeder that sends as many records, made
//! of nothing. The feeder alone is the price of writing the rows at all; with the producer it is what rows in a table and records
//! in Kafka cost on this machine, whoever moves them. What is between that and busy is the relay's own. The short mode has the
//! first two turns only.
//!
//! What was in fact written and removed meanwhile is reported beside it: where the processors are full, it may be less than asked
//! for. The first rounds are not measured, for tables and caches that nobody has touched yet make them slower.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use outbox_relay_pg_test::process;
use postgres::Client;

use crate::Bench;
use crate::arrivals::Arrivals;
use crate::backlog;
use crate::messages::Messages;
use crate::numbered::{self, Target};
use crate::pgbench::{self, Load, Script, Until};
use crate::raw;
use crate::results::{Good, Ratio, Results, median, median_of_ratios, percentile};
use crate::servers::{DATABASE, Servers};

const GROUP: &str = "bystander";
const MOVED: &str = "messages beside the bystander";
const CORES: &str = "cores in use beside the bystander";
const BYSTANDER: &str = "bystander";
const TOPIC: &str = "bystander";
/// Of the producer without a database.
const RAW_TOPIC: &str = "bystander-raw";
const PARTITIONS: i32 = 4;
/// A million accounts.
const SCALE: u32 = 10;
const CLIENTS: usize = 8;
/// Messages a call of the feeder.
const A_COMMIT: u64 = 1_000;
/// By which the feeder begins before the bystander and goes on after it.
const MARGIN: Duration = Duration::from_secs(1);
/// Rounds before the first that is measured.
const UNMEASURED: usize = 2;
const PERCENTS: [usize; 3] = [50, 95, 99];

/// What else happens while the bystander works: a feeder of this table, and a producer beside it.
struct Turn {
    who: &'static str,
    feeder: Option<Target<'static>>,
    producer: bool,
    /// Messages a second, as a part of the rate at which the relay drains.
    part: f64,
}

impl Turn {
    fn feeds_the_relay(&self) -> bool {
        matches!(self.feeder, Some(Target::Outbox(_)))
    }
}

/// The part of R8 itself, and of its controls.
const QUARTER: f64 = 0.25;
const SIXTEENTH: f64 = 1.0 / 16.0;
/// The turns of R8 itself, the first; the others are what it is to be compared with.
const OF_R8: usize = 2;
const TURNS: [Turn; 6] = [
    Turn { who: "relay idle", feeder: None, producer: false, part: 0.0 },
    Turn { who: "relay busy at a quarter", feeder: Some(Target::Outbox(TOPIC)), producer: false, part: QUARTER },
    Turn {
        who: "a quarter into a raw table, no relay",
        feeder: Some(Target::RawTable),
        producer: false,
        part: QUARTER,
    },
    Turn {
        who: "and a raw producer of as many records",
        feeder: Some(Target::RawTable),
        producer: true,
        part: QUARTER,
    },
    Turn { who: "relay busy at a sixteenth", feeder: Some(Target::Outbox(TOPIC)), producer: false, part: SIXTEENTH },
    Turn {
        who: "a sixteenth into a raw table, no relay",
        feeder: Some(Target::RawTable),
        producer: false,
        part: SIXTEENTH,
    },
];

/// What all turns have in common.
struct Scene<'a> {
    bench: &'a Bench<'a>,
    client: Client,
    arrivals: Arrivals,
    /// Of each turn.
    seconds: u64,
    /// Transactions a second of the bystander.
    rate: f64,
    /// Messages a second that the relay drains.
    drain: f64,
}

/// What was seen in a turn.
struct Seen {
    /// Of the bystander's transactions, in ms and in order.
    times: Vec<f64>,
    cores: Cores,
    /// Messages a second that the feeder wrote, if there was one.
    written: Option<f64>,
    /// Messages a second that the relay removed.
    removed: f64,
}

/// All rounds.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let mut scene = Scene::set(bench, results)?;
    let turns = bench.pick(&TURNS[..OF_R8], &TURNS);
    let mut series = vec![[const { Vec::<f64>::new() }; PERCENTS.len()]; turns.len()];
    for (round, is_measured) in bench.rounds_after(UNMEASURED).enumerate() {
        for (turn, series) in turns.iter().zip(&mut series) {
            let who = turn.who;
            bench.terminal.draw(format_args!("round {} of {}: {who}", round + 1, UNMEASURED + bench.rounds));
            let seen = scene.play(turn)?;
            if is_measured {
                for (samples, percent) in series.iter_mut().zip(PERCENTS) {
                    samples.push(percentile(&seen.times, percent));
                }
                seen.add_to(results, turn, scene.drain);
            }
        }
    }
    let (rate, drain, seconds) = (scene.rate, scene.drain, scene.seconds);
    scene.clear(results)?;

    let p95: Vec<&[f64]> = series.iter().map(|series| series[1].as_slice()).collect();
    let ratio = |of: &[f64]| median_of_ratios(p95[0], of);
    for (Turn { who, .. }, p95) in turns.iter().zip(&p95) {
        bench.terminal.good(format_args!(
            "p95 of the bystander, {who}: {:.2} ms; idle / that {:.3}",
            median(p95),
            ratio(p95)
        ));
    }
    let controls: String = turns
        .iter()
        .zip(&p95)
        .skip(OF_R8)
        .map(|(Turn { who, .. }, p95)| format!("; {who}: {:.3}", ratio(p95)))
        .collect();
    results.ratios.push(Ratio {
        id: "R8".into(),
        what: "p95 of a bystander, relay idle / relay busy at a quarter of its drain rate".into(),
        value: ratio(p95[1]),
        unit: String::new(),
        good: Good::AtLeast,
        required: 0.85,
        aim: Some(0.95),
        method: format!(
            "pgbench tpcb-like, scale {SCALE}, in another database at {rate:.0} transactions/s, a third of its capacity, open loop; \
             the relay gets {:.0} messages/s by calls of {A_COMMIT}; {seconds} s each, {} rounds in turns after {UNMEASURED} that were not measured, median of their \
             ratios{controls}",
            drain * QUARTER,
            bench.rounds
        ),
    });
    for (Turn { who, part, .. }, series) in turns.iter().zip(series) {
        for (samples, percent) in series.into_iter().zip(PERCENTS) {
            let case = format!("p{percent}");
            let note = format!("{rate:.0} transactions/s of pgbench tpcb-like beside {:.0} messages/s", drain * part);
            results.add_series(GROUP, &case, who, "ms", samples, &note);
        }
    }
    Ok(())
}

impl<'a> Scene<'a> {
    /// The relay's rate and the machine's are measured, and the relay is enabled.
    fn set(bench: &'a Bench<'a>, results: &mut Results) -> Result<Scene<'a>> {
        let servers = bench.servers;
        let messages = Messages::central(bench.pick(200_000, 1_000_000));
        let mut drains = Vec::new();
        for is_measured in bench.rounds_after(1) {
            let rate = backlog::drain(bench, results, &messages)?.rate(&messages);
            drains.extend(is_measured.then_some(rate));
        }
        let drain = median(&drains);
        servers.cluster.connect("postgres")?.batch_execute(&format!("create database {BYSTANDER}"))?;
        pgbench::create_tables(servers, BYSTANDER, SCALE)?;
        for topic in [TOPIC, RAW_TOPIC] {
            servers.broker.create_topic(topic, PARTITIONS, &[])?;
        }
        let arrivals = Arrivals::follow(&servers.broker.bootstrap(), TOPIC)?;
        arrivals.pause()?;
        let mut client = servers.session()?;
        raw::make_table(&mut client)?;
        servers.enable(true)?;

        let seconds = bench.pick(3, 20);
        let flat_out = Load::new(BYSTANDER, Script::TpcbLike, CLIENTS, Until::Seconds(seconds));
        let capacity = pgbench::run(servers, &flat_out)?.rate;
        let rate = capacity / 3.0;
        bench.terminal.say(format_args!(
            "the machine makes {capacity:.0} transactions/s, the bystander {rate:.0}; the relay drains {drain:.0} messages/s and gets {:.0}",
            drain * QUARTER
        ));
        Ok(Scene { bench, client, arrivals, seconds, rate, drain })
    }

    /// Feeder and producer begin, the bystander works, and everything that was written is read past and cleaned away.
    fn play(&mut self, turn: &Turn) -> Result<Seen> {
        let (servers, base) = (self.bench.servers, self.arrivals.next_base());
        let feed = self.drain * turn.part;
        let feeder =
            turn.feeder.map(|target| start_feeder(self.bench, target, self.seconds, feed, base)).transpose()?;
        let producer = turn.producer.then(|| start_producer(self.bench, feed)).transpose()?;
        if feeder.is_some() {
            thread::sleep(MARGIN);
        }
        let mut load = Load::new(BYSTANDER, Script::TpcbLike, CLIENTS, Until::Seconds(self.seconds));
        load.rate = Some(self.rate);
        load.log = true;
        let (cores, before, since) =
            (Stopwatch::begin(servers)?, backlog::removed_so_far(&mut self.client)?, Instant::now());
        let outcome = pgbench::run(servers, &load)?;
        let removed = (backlog::removed_so_far(&mut self.client)? - before) as f64 / since.elapsed().as_secs_f64();
        let cores = cores.end(servers)?;
        producer.map(raw::Paced::finish).transpose()?;
        let mut times: Vec<f64> =
            outcome.log()?.iter().map(|transaction| transaction.took.as_secs_f64() * 1000.0).collect();
        times.sort_unstable_by(f64::total_cmp);
        let fed = feeder.map(pgbench::Running::finish).transpose()?;
        if let Some(fed) = &fed {
            self.clean_up(turn, base, fed.transactions * A_COMMIT)?;
        }
        Ok(Seen { times, cores, written: fed.map(|fed| fed.rate * A_COMMIT as f64), removed })
    }

    fn clean_up(&mut self, turn: &Turn, base: u64, written: u64) -> Result<()> {
        if !turn.feeds_the_relay() {
            return self.client.batch_execute("truncate raw_message").context("could not empty the raw table");
        }
        numbered::wait_until_empty(&mut self.client)?;
        self.arrivals.read_past_run(base, written)?;
        self.bench.servers.vacuum()
    }

    fn clear(self, results: &mut Results) -> Result<()> {
        let servers = self.bench.servers;
        results.records_read_back += self.arrivals.read();
        servers.enable(false)?;
        servers.cluster.connect("postgres")?.batch_execute(&format!("drop database {BYSTANDER}"))?;
        Ok(())
    }
}

impl Seen {
    fn add_to(&self, results: &mut Results, turn: &Turn, drain: f64) {
        for (who, cores) in &self.cores {
            results.add(CORES, turn.who, who, "cores", *cores);
        }
        results.note(CORES, turn.who, "everything", "on average, pgbench and the feeder included");
        if let Some(written) = self.written {
            results.add(MOVED, turn.who, "written", "messages/s", written);
            results.note(MOVED, turn.who, "written", &format!("of {:.0} asked for", drain * turn.part));
        }
        if turn.feeds_the_relay() {
            results.add(MOVED, turn.who, "removed by the relay", "messages/s", self.removed);
        }
    }
}

/// How many cores the relay, Kafka, and the whole machine had in use on average.
type Cores = [(&'static str, f64); 3];

/// Processor time from some moment on.
struct Stopwatch {
    since: Instant,
    used: [(&'static str, Duration); 3],
}

impl Stopwatch {
    fn begin(servers: &Servers) -> Result<Stopwatch> {
        let relays = servers.relays()?.into_iter().map(process::processor_time).sum::<Result<Duration>>()?;
        let kafka = process::processor_time(servers.broker.pid()?)?;
        let used = [("the relay", relays), ("Kafka", kafka), ("everything", process::processor_time_of_all()?)];
        Ok(Stopwatch { since: Instant::now(), used })
    }

    fn end(self, servers: &Servers) -> Result<Cores> {
        let (seconds, now) = (self.since.elapsed().as_secs_f64(), Stopwatch::begin(servers)?.used);
        Ok(std::array::from_fn(|n| {
            let ((who, before), (_, after)) = (self.used[n], now[n]);
            (who, after.saturating_sub(before).as_secs_f64() / seconds)
        }))
    }
}

/// Sends a call's worth of records at a time, as the feeder writes rows.
fn start_producer(bench: &Bench<'_>, messages_a_second: f64) -> Result<raw::Paced> {
    let every = Duration::from_secs_f64(A_COMMIT as f64 / messages_a_second);
    raw::Paced::start(&bench.servers.broker, RAW_TOPIC, Messages::central(A_COMMIT), every)
}

/// Begins to write before the bystander, and goes on for longer.
fn start_feeder(
    bench: &Bench<'_>,
    target: Target<'_>,
    seconds: u64,
    messages_a_second: f64,
    base: u64,
) -> Result<pgbench::Running> {
    let script = numbered::script(target, A_COMMIT);
    let until = Until::Seconds(seconds + 2 * MARGIN.as_secs());
    let variables = [(numbered::BASE, base as i64)];
    let mut load = Load::new(DATABASE, Script::Text(&script), 1, until);
    load.variables = &variables;
    load.rate = Some(messages_a_second / A_COMMIT as f64);
    pgbench::start(bench.servers, &load)
}
