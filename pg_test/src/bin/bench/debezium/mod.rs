//! The relay beside Debezium, which is what one would take otherwise: the same rows from the same Postgres to the same Kafka, in
//! turns, in a phase of its own because Debezium needs `wal_level = logical`.

mod contestant;
mod latency;

use std::time::Duration;

use anyhow::Result;
use outbox_relay_pg_test::{connect, state};

use crate::Bench;
use crate::backlog;
use crate::messages::Messages;
use crate::results::{Good, Ratio, Results, median};

use contestant::{COMMON, DOCUMENTED, Debezium, Drained, Settings, TUNED};

const RATES: &str = "drain beside Debezium";
const FROM_RESUME: &str = "Debezium's drains with their start";
const PROCESSOR: &str = "processor time beside Debezium";
const MEMORY: &str = "memory beside Debezium";
const LATENCY: &str = "one message on an idle server beside Debezium";
const RELAY: &str = "relay";

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
    let warm_up = Messages::central(bench.pick(50_000, 300_000));
    terminal.during("warming Debezium up", || {
        // A Java program becomes fast by running.
        for settings in [&DOCUMENTED, &TUNED] {
            debezium.drain(settings, &format!("warm-up-{}", settings.name), &warm_up)?;
        }
        Ok(())
    })?;

    let messages = Messages::central(bench.pick(100_000, 1_000_000));
    let case = format!("{} rows of 200 B", messages.count);
    let mut times = Vec::new();
    for round in 1..=bench.rounds {
        debezium.catch_up(&DOCUMENTED)?;
        let mut best: f64 = 0.0;
        for settings in [&DOCUMENTED, &TUNED] {
            terminal.draw(format_args!("round {round}: {} rows by Debezium, {}", messages.count, settings.name));
            let drained = debezium.drain(settings, &format!("{}-{round}", settings.name), &messages)?;
            results.records_read_back += messages.count;
            add(results, &case, settings, &messages, &drained);
            best = best.max(rate(&messages, drained.flowing));
        }
        debezium.stop()?;
        let drained = backlog::drain_on(bench, &servers, results, &messages)?;
        let relay = drained.rate(&messages);
        results.add(RATES, &case, RELAY, "messages/s", relay);
        results.add(PROCESSOR, &case, RELAY, "s a million", per_million(drained.processor, &messages));
        results.add(MEMORY, &case, RELAY, "MB", megabytes(drained.memory));
        times.push(relay / best);
        terminal
            .good(format_args!("round {round}: Debezium {best:.0}/s, relay {relay:.0}/s = {:.1} times", relay / best));
    }
    results.ratios.push(ratio(&times, &messages, &warm_up));
    annotate(results, &case);

    debezium.catch_up(&DOCUMENTED)?;
    servers.enable(true)?;
    let latencies = latency::measure(bench, &servers, bench.pick(200, 1_000))?;
    servers.enable(false)?;
    for (who, mut times) in [(who(&DOCUMENTED), latencies.debezium), (RELAY.to_owned(), latencies.relay)] {
        times.sort_unstable_by(f64::total_cmp);
        for percent in [50, 95, 99] {
            let sample = times[(times.len() * percent / 100).min(times.len() - 1)];
            results.add(LATENCY, &format!("p{percent}"), &who, "ms", sample);
        }
        results.note(LATENCY, "p50", &who, &format!("{} messages, in turns with both at work", times.len()));
    }
    Ok(())
}

/// What one of Debezium's drains adds.
fn add(results: &mut Results, case: &str, settings: &Settings, messages: &Messages, drained: &Drained) {
    let who = who(settings);
    let cost = &drained.cost;
    results.add(RATES, case, &who, "messages/s", rate(messages, drained.flowing));
    results.add(FROM_RESUME, case, &who, "messages/s", rate(messages, drained.from_resume));
    results.add(PROCESSOR, case, &who, "s a million", per_million(cost.connect, messages));
    let decoder = format!("{who}: in Postgres");
    results.add(PROCESSOR, case, &decoder, "s a million", per_million(cost.decoder, messages));
    results.add(MEMORY, case, &who, "MB", megabytes(cost.memory));
}

/// What speaks for Debezium, and what of the method does not do it justice.
fn annotate(results: &mut Results, case: &str) {
    for settings in [&DOCUMENTED, &TUNED] {
        let who = who(settings);
        results.note(
            RATES,
            case,
            &who,
            "from the first record's arrival in Kafka to the last one's: the start of its task and finding its place in the WAL \
             are left out, and it removes no rows. It is a general tool that needs no extension in the server and follows any \
             table; here it shares two cores with Postgres and Kafka, where it would usually have a machine of its own",
        );
        results.note(FROM_RESUME, case, &who, "from the request to resume the connector on");
        results.note(
            PROCESSOR,
            case,
            &who,
            "the Connect process, with what Java spends on compiling; on a machine of its own this costs the database nothing",
        );
        results.note(
            PROCESSOR,
            case,
            &format!("{who}: in Postgres"),
            "the process that decodes WAL: all that Debezium costs the database's machine while it drains. Here Debezium is better",
        );
        results.note(
            MEMORY,
            case,
            &who,
            "Java takes what it may have, 2 GB of heap by Kafka's default, and needs less",
        );
    }
    results.note(RATES, case, RELAY, "from the reload that enables it until the last row is removed");
    results.note(PROCESSOR, case, RELAY, "reading, sending and removing; always on the database's machine");
}

fn ratio(times: &[f64], messages: &Messages, warm_up: &Messages) -> Ratio {
    Ratio {
        id: "R2".to_owned(),
        what: "drain / Debezium's best drain of the same rows".to_owned(),
        value: median(times),
        unit: String::new(),
        good: Good::AtLeast,
        required: 6.0,
        aim: Some(10.0),
        method: format!(
            "{} rounds of {} rows of 200 B, 1,000 a commit, 4 partitions, in turns on one Postgres with wal_level = logical and \
             one Kafka; in each round the relay's rate by the higher of Debezium's two, the median of these. The relay's time runs \
             from the reload that enables it until the last row is removed; Debezium's only from the first record's arrival in \
             Kafka to the last one's, in the same Java process for all rounds, warmed up by twice {} rows, with all that the relay \
             wrote already read. Nothing is removed from Debezium's table meanwhile. All topics are read back",
            times.len(),
            messages.count,
            warm_up.count,
        ),
    }
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
        ("debezium settings, common", listed(COMMON)),
        ("debezium settings, documented", listed(DOCUMENTED.values)),
        ("debezium settings, tuned", listed(TUNED.values)),
    ];
    results.measured_with.extend(said.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}

fn who(settings: &Settings) -> String {
    format!("debezium, {}", settings.name)
}

fn rate(messages: &Messages, took: Duration) -> f64 {
    messages.count as f64 / took.as_secs_f64()
}

fn per_million(processor: Duration, messages: &Messages) -> f64 {
    processor.as_secs_f64() * 1e6 / messages.count as f64
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
