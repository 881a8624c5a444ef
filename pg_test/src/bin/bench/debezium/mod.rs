//! The relay beside Debezium, which is what one would take otherwise: the same rows from the same Postgres to the same Kafka, in
//! turns, in a phase of its own because Debezium needs `wal_level = logical`.

mod contestant;
mod latency;

use std::time::Duration;

use anyhow::Result;
use outbox_relay_pg_test::{connect, state};

use crate::Bench;
use crate::backlog;
use crate::drain::RELAY;
use crate::messages::Messages;
use crate::results::{Good, Ratio, Results, median, percentile};
use crate::servers::Servers;

use contestant::{COMMON, DOCUMENTED, Debezium, Drained, PROMPT, Settings, TUNED};
use latency::Turns;

const RATES: &str = "drain beside Debezium";
const FROM_RESUME: &str = "Debezium's drains with their start";
const PROCESSOR: &str = "processor time beside Debezium";
const MEMORY: &str = "memory beside Debezium";
const LATENCY: &str = "one message on an idle server beside Debezium";

const PER_MILLION: &str = "s per 1M messages";

/// All rounds, then one message at a time.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let terminal = bench.terminal;
    let (servers, password) = terminal.during("starting a Postgres with wal_level = logical", || {
        let mut servers = bench.servers.beside("pg-logical", &[("wal_level", "logical")])?;
        let password = contestant::prepare(&mut servers)?;
        Ok((servers, password))
    })?;
    let mut debezium = terminal.during("starting Debezium", || Debezium::start(&servers, &password))?;
    describe(results)?;
    let warm_up = Messages::central(bench.pick(100_000, 300_000));
    // A Java program becomes fast by running; buffers become so by being touched.
    for settings in [&DOCUMENTED, &TUNED] {
        terminal.draw(format_args!("warming Debezium up, {}", settings.name));
        debezium.drain(bench, settings, &warm_up)?;
    }
    debezium.stop()?;
    backlog::drain_on(bench, &servers, results, &warm_up)?;

    let messages = Messages::central(bench.pick(200_000, 1_000_000));
    let rounds = Rounds { bench, servers: &servers, case: format!("{} rows of 200 B", messages.count), messages };
    let mut times = Vec::new();
    for round in 1..=bench.rounds {
        let (relay, best) = rounds.one(&mut debezium, results)?;
        terminal
            .good(format_args!("round {round}: Debezium {best:.0}/s, relay {relay:.0}/s, {:.1} times", relay / best));
        times.push(relay / best);
    }
    rounds.annotate(results);
    results.ratios.push(rounds.ratio(&times, &warm_up));

    for settings in [&DOCUMENTED, &PROMPT] {
        debezium.catch_up(settings)?;
        one_at_a_time(bench, results, &servers, settings)?;
    }
    Ok(())
}

/// What all rounds have in common.
struct Rounds<'a> {
    bench: &'a Bench<'a>,
    servers: &'a Servers,
    messages: Messages,
    case: String,
}

impl Rounds<'_> {
    /// Everybody drains the same messages once; the relay's rate and Debezium's best.
    fn one(&self, debezium: &mut Debezium<'_>, results: &mut Results) -> Result<(f64, f64)> {
        debezium.catch_up(&DOCUMENTED)?;
        let mut best: f64 = 0.0;
        for settings in [&DOCUMENTED, &TUNED] {
            self.bench.terminal.draw(format_args!("{} by Debezium, {}", self.case, settings.name));
            let drained = debezium.drain(self.bench, settings, &self.messages)?;
            self.add(results, settings, &drained);
            best = best.max(self.rate(drained.flowing));
        }
        debezium.stop()?;
        let drained = backlog::drain_on(self.bench, self.servers, results, &self.messages)?;
        let relay = drained.rate(&self.messages);
        results.add(RATES, &self.case, RELAY, "messages/s", relay);
        results.add(PROCESSOR, &self.case, RELAY, PER_MILLION, self.per_million(drained.processor));
        results.add(MEMORY, &self.case, RELAY, "MB", megabytes(drained.memory));
        Ok((relay, best))
    }

    /// What one of Debezium's drains adds.
    fn add(&self, results: &mut Results, settings: &Settings, drained: &Drained) {
        let (case, who) = (&self.case, who(settings));
        let cost = &drained.cost;
        results.records_read_back += self.messages.count;
        results.add(RATES, case, &who, "messages/s", self.rate(drained.flowing));
        results.add(FROM_RESUME, case, &who, "messages/s", self.rate(drained.from_resume));
        results.add(PROCESSOR, case, &who, PER_MILLION, self.per_million(cost.connect));
        results.add(PROCESSOR, case, &decoder(&who), PER_MILLION, self.per_million(cost.decoder));
        results.add(MEMORY, case, &who, "MB", megabytes(cost.memory));
    }

    /// What must be known to judge the figures; what speaks for Debezium too.
    fn annotate(&self, results: &mut Results) {
        let mut note = |group: &str, who: &str, text: &str| results.note(group, &self.case, who, text);
        for who in [&DOCUMENTED, &TUNED].map(who) {
            note(RATES, &who, "from the first record's arrival in Kafka to the last one's; it removes no rows");
            note(FROM_RESUME, &who, "the same drains, from the request to resume the connector on");
            note(
                PROCESSOR,
                &who,
                "Kafka Connect, which can have a machine of its own; here it has to share, which is unfair to it",
            );
            note(PROCESSOR, &decoder(&who), "sends the changes; always on the database's machine");
            note(MEMORY, &who, "Kafka Connect; Java takes what it may have, by Kafka's default 2 GB of heap");
        }
        note(RATES, RELAY, "from the reload that enables it until the last row is removed");
        note(PROCESSOR, RELAY, "reads, sends and removes; always on the database's machine");
    }

    fn ratio(&self, times: &[f64], warm_up: &Messages) -> Ratio {
        Ratio {
            id: "R2".to_owned(),
            what: "drain / Debezium's best drain of the same rows".to_owned(),
            value: median(times),
            unit: String::new(),
            good: Good::AtLeast,
            required: 6.0,
            aim: Some(10.0),
            method: format!(
                "{} rounds of {}, {} a commit, {} partitions, in turns on one Postgres with wal_level = logical and one Kafka; \
                 median of what each round's rate of the relay is to the higher one of Debezium's two. The relay's time runs from \
                 the reload that enables it until the last row is removed; Debezium's only from the first record's arrival in \
                 Kafka to the last one's: its start and finding its place in the WAL are left out, what the relay wrote it has \
                 read before, it removes nothing, and its Java process is the same for all rounds, warmed up by {} rows with \
                 either settings, as is the relay. Unfair to it: it shares two cores with Postgres and Kafka, and would usually have a machine of \
                 its own",
                times.len(),
                self.case,
                self.messages.a_commit,
                self.messages.partitions,
                warm_up.count,
            ),
        }
    }

    fn rate(&self, took: Duration) -> f64 {
        self.messages.count as f64 / took.as_secs_f64()
    }

    fn per_million(&self, processor: Duration) -> f64 {
        processor.as_secs_f64() * 1e6 / self.messages.count as f64
    }
}

/// How long a message takes that is alone, by both.
fn one_at_a_time(bench: &Bench<'_>, results: &mut Results, servers: &Servers, settings: &Settings) -> Result<()> {
    servers.enable(true)?;
    let mut turns = Turns::prepare(bench, servers)?;
    let count = bench.pick(50, 200);
    let debezium = who(settings);
    for round in 1..=bench.rounds {
        bench.terminal.draw(format_args!("round {round} of {}, one message at a time", bench.rounds));
        let times = turns.take(count)?;
        results.records_read_back += 2 * count as u64;
        for (who, mut times) in [(debezium.as_str(), times.debezium), (RELAY, times.relay)] {
            times.sort_unstable_by(f64::total_cmp);
            for percent in [50, 95, 99] {
                results.add(LATENCY, &format!("p{percent}"), who, "ms", percentile(&times, percent));
            }
        }
    }
    bench.terminal.wipe();
    for who in [&debezium, RELAY] {
        let note = format!("{count} messages a round, in turns with both at work; from the answer to COMMIT");
        results.note(LATENCY, "p50", who, &note);
    }
    servers.enable(false)
}

/// What the contestant is and how it is set.
fn describe(results: &mut Results) -> Result<()> {
    let libraries = state::connect_libraries()?;
    let listed = |settings: &[(&str, &str)]| -> String {
        settings.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    };
    let said = [
        ("debezium", state::version_of("debezium-connector-postgres", &libraries)?),
        (
            "debezium runs on",
            format!(
                "Kafka Connect {} standalone, java {}",
                state::version_of("connect-runtime", &libraries)?,
                connect::MACHINE.join(" ")
            ),
        ),
        ("postgres settings beside Debezium", "wal_level=logical, else the same".to_owned()),
        ("debezium settings, common", listed(COMMON)),
        ("debezium settings, documented", listed(DOCUMENTED.values)),
        ("debezium settings, prompt", listed(PROMPT.values)),
        ("debezium settings, tuned", listed(TUNED.values)),
    ];
    results.measured_with.extend(said.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}

fn who(settings: &Settings) -> String {
    format!("debezium, {}", settings.name)
}

/// The Postgres process that decodes WAL for it.
fn decoder(who: &str) -> String {
    format!("{who}: decoding in Postgres")
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
