//! How fast a backlog is drained, beside the raw limits of the machine, with one factor varied at a time around a central case.
//!
//! In each round all contestants take turns; what is compared are the rates of one round with each other.

use anyhow::{Context, Result};

use crate::Bench;
use crate::backlog::{self, Drained};
use crate::messages::{Headers, Messages};
use crate::raw::{self, Produced};
use crate::read_back;
use crate::results::{Good, Ratio, Results, median, median_of_ratios};

/// The relay, among the contestants.
pub const RELAY: &str = "relay";
/// The raw producer that sends key and value only.
pub const RAW: &str = "raw producer";
/// The raw producer that sends the relay's bytes.
pub const RAW_WITH_ID: &str = "raw producer, with message id";

const RATE: &str = "messages/s";
const PROCESSOR: &str = "s per 1M messages";
const MEMORY: &str = "MB";

const CENTRAL: &str = "drain";
const COST: &str = "processor time of a drain";
const HELD: &str = "memory during a drain";

/// With key, header and overhead just below what `outbox_relay.max_message_bytes` allows by default.
const LARGE: usize = 999_000;

/// All cases.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    central(bench, results)?;
    if bench.pick(false, true) {
        by_payload(bench, results)?;
        by_partitions(bench, results)?;
        by_keys(bench, results)?;
        by_commit(bench, results)?;
        by_relays(bench, results)?;
    }
    by_backlog(bench, results)?;
    large_values(bench, results)
}

fn central_messages(bench: &Bench<'_>) -> Messages {
    Messages::central(bench.pick(200_000, 1_000_000))
}

/// How the central case is called in `results`.
pub fn central_case(bench: &Bench<'_>) -> String {
    let messages = central_messages(bench);
    format!("{} messages of {} B, {} partitions", thousands(messages.count), messages.value_bytes, messages.partitions)
}

/// R1 and R13, and the rates of everything that is a limit.
fn central(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let messages = central_messages(bench);
    let case = central_case(bench);
    let millions = messages.count as f64 / 1e6;
    let mut client = bench.servers.session()?;
    for round in 1..=bench.rounds {
        for (who, headers) in [(RAW, Headers::None), (RAW_WITH_ID, Headers::MessageId)] {
            let produced = produce(bench, results, &messages, headers)?;
            results.add(CENTRAL, &case, who, RATE, messages.count as f64 / produced.took.as_secs_f64());
            results.add(COST, &case, who, PROCESSOR, produced.processor.as_secs_f64() / millions);
        }
        bench.terminal.draw("inserting and reading without an outbox");
        raw::make_table(&mut client)?;
        let inserted = raw::insert(&mut client, "raw", &messages)?;
        results.add(CENTRAL, &case, "raw INSERT", RATE, messages.count as f64 / inserted.as_secs_f64());
        let read = raw::read(&mut client, &messages)?;
        results.add(CENTRAL, &case, "raw read", RATE, messages.count as f64 / read.as_secs_f64());
        raw::drop_table(&mut client)?;

        let drained = relay(bench, results, CENTRAL, &case, &messages)?;
        results.add(COST, &case, RELAY, PROCESSOR, drained.processor.as_secs_f64() / millions);
        results.add(HELD, &case, RELAY, MEMORY, drained.memory as f64 / 1e6);
        let last = |who: &str| last_sample(results, CENTRAL, &case, who);
        bench.terminal.good(format_args!(
            "round {round}: raw {:.0}/s, with message id {:.0}/s, INSERT {:.0}/s, read {:.0}/s, relay {:.0}/s = {:.2} of raw",
            last(RAW)?,
            last(RAW_WITH_ID)?,
            last("raw INSERT")?,
            last("raw read")?,
            last(RELAY)?,
            last(RELAY)? / last(RAW)?
        ));
    }
    results.note(CENTRAL, &case, RAW, "key and value alone: the limit that R1 is compared with");
    results.note(CENTRAL, &case, RAW_WITH_ID, "the relay's bytes: with a header in each record");
    results.note(CENTRAL, &case, "raw INSERT", "one INSERT ... SELECT of all rows into a table like outbox.message");
    results.note(
        CENTRAL,
        &case,
        "raw read",
        "the relay's pages of 5,000 rows by bucket and id, by a prepared plan inside of the server; nothing is sent",
    );
    let samples = |group: &str, who: &str| samples(results, group, &case, who);
    let rounds = bench.rounds;
    let r1 = Ratio {
        id: "R1".into(),
        what: "drain / raw producer that sends key and value alone".into(),
        value: median_of_ratios(&samples(CENTRAL, RELAY)?, &samples(CENTRAL, RAW)?),
        unit: String::new(),
        good: Good::AtLeast,
        required: 0.45,
        aim: Some(0.60),
        method: format!(
            "{case}; from enabling the relay to the last row removed; median of the ratios of {rounds} rounds, in each of which \
             both took turns; against the producer that sends the relay's bytes it is {:.2}",
            median_of_ratios(&samples(CENTRAL, RELAY)?, &samples(CENTRAL, RAW_WITH_ID)?)
        ),
    };
    let r13 = Ratio {
        id: "R13".into(),
        what: "processor seconds per 1M messages, relay / process of the raw producer".into(),
        value: median_of_ratios(&samples(COST, RELAY)?, &samples(COST, RAW)?),
        unit: String::new(),
        good: Good::AtMost,
        required: 2.5,
        aim: Some(1.8),
        method: format!(
            "user and system time of all threads of both processes in the drains of R1, median of the ratios of {rounds} rounds; \
             against the producer that sends the relay's bytes it is {:.2}",
            median_of_ratios(&samples(COST, RELAY)?, &samples(COST, RAW_WITH_ID)?)
        ),
    };
    results.ratios.extend([r1, r13]);
    Ok(())
}

fn by_payload(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain by payload";
    let with = |value_bytes, count| Messages { count, value_bytes, ..central_messages(bench) };
    beside_raw(bench, results, group, "100 B", &with(100, 1_000_000))?;
    copy_central(bench, results, group, "200 B");
    beside_raw(bench, results, group, "1,000 B", &with(1_000, 1_000_000))?;
    beside_raw(bench, results, group, "10,000 B", &with(10_000, 100_000))?;
    results.note(group, "10,000 B", RELAY, "100,000 messages, incompressible: PostgreSQL stores them out of line");
    Ok(())
}

fn by_partitions(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain by partitions";
    let with = |partitions| Messages { partitions, ..central_messages(bench) };
    beside_raw(bench, results, group, "1", &with(1))?;
    copy_central(bench, results, group, "4");
    beside_raw(bench, results, group, "12", &with(12))
}

fn by_keys(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain by keys";
    beside_raw(bench, results, group, "10", &Messages { keys: 10, ..central_messages(bench) })?;
    copy_central(bench, results, group, "100,000");
    Ok(())
}

fn by_commit(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain by messages a commit";
    for a_commit in [1, 10] {
        let messages = Messages { a_commit, ..central_messages(bench) };
        for _ in 0..bench.rounds {
            relay(bench, results, group, &a_commit.to_string(), &messages)?;
        }
        say(bench, results, group, &a_commit.to_string());
    }
    copy_central(bench, results, group, "1,000");
    Ok(())
}

fn by_relays(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain by relays";
    copy_central(bench, results, group, "1");
    for relays in [2, 4] {
        bench.servers.set_relays(relays)?;
        for _ in 0..bench.rounds {
            relay(bench, results, group, &relays.to_string(), &central_messages(bench))?;
        }
        say(bench, results, group, &relays.to_string());
    }
    bench.servers.set_relays(1)
}

/// R11, and the first half of R12.
fn by_backlog(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain by backlog";
    let (small, large) = bench.pick((100_000, 1_000_000), (100_000, 10_000_000));
    let (small_case, large_case) = (thousands(small), thousands(large));
    if bench.pick(false, true) {
        for _ in 0..bench.rounds {
            relay(bench, results, group, "10,000", &Messages::central(10_000))?;
        }
        results.note(group, "10,000", RELAY, "shorter than the first moments of an enabled relay count for little");
        say(bench, results, group, "10,000");
    }
    // A large drain is as long as a hundred small ones, so it needs fewer rounds to be told from chance.
    let rounds = bench.rounds.min(3);
    for _ in 0..rounds {
        for _ in 0..3 {
            relay(bench, results, group, &small_case, &Messages::central(small))?;
        }
        let drained = relay(bench, results, group, &large_case, &Messages::central(large))?;
        results.add(HELD, &format!("{large_case} x 200 B"), RELAY, MEMORY, drained.memory as f64 / 1e6);
    }
    say(bench, results, group, &small_case);
    if bench.pick(false, true) {
        copy_central(bench, results, group, "1,000,000");
    }
    say(bench, results, group, &large_case);
    let r11 = Ratio {
        id: "R11".into(),
        what: format!("drain rate of a backlog of {large_case} / of {small_case}"),
        value: median(&samples(results, group, &large_case, RELAY)?)
            / median(&samples(results, group, &small_case, RELAY)?),
        unit: String::new(),
        good: Good::AtLeast,
        required: 0.95,
        aim: Some(1.0),
        method: format!("medians of {rounds} large and {} small drains, three small before each large one", 3 * rounds),
    };
    let r12 = memory_ratio(results, "R12a", &format!("{large_case} x 200 B"), rounds)?;
    results.ratios.extend([r11, r12]);
    Ok(())
}

/// The second half of R12.
fn large_values(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain of large values";
    let (count, rounds) = bench.pick((500, bench.rounds.min(3)), (10_000, 1));
    let messages = Messages { value_bytes: LARGE, a_commit: 10, ..Messages::central(count) };
    let case = format!("{} x 1 MB", thousands(count));
    for _ in 0..rounds {
        let drained = relay(bench, results, group, &case, &messages)?;
        results.add(HELD, &case, RELAY, MEMORY, drained.memory as f64 / 1e6);
    }
    results.note(group, &case, RELAY, &format!("values of {LARGE} B, incompressible; rounds: {rounds}"));
    say(bench, results, group, &case);
    let r12 = memory_ratio(results, "R12b", &case, rounds)?;
    results.ratios.push(r12);
    Ok(())
}

fn memory_ratio(results: &Results, id: &str, case: &str, rounds: usize) -> Result<Ratio> {
    Ok(Ratio {
        id: id.into(),
        what: format!("memory of the relay while it drains {case}"),
        value: samples(results, HELD, case, RELAY)?.into_iter().fold(0.0, f64::max),
        unit: " MB".into(),
        good: Good::AtMost,
        required: 128.0,
        aim: Some(64.0),
        method: format!("highest RssAnon, looked at every 10 ms, of all rounds: {rounds}"),
    })
}

/// A drain and its raw producer, taking turns.
fn beside_raw(bench: &Bench<'_>, results: &mut Results, group: &str, case: &str, messages: &Messages) -> Result<()> {
    for _ in 0..bench.rounds {
        let produced = produce(bench, results, messages, Headers::None)?;
        results.add(group, case, RAW, RATE, messages.count as f64 / produced.took.as_secs_f64());
        relay(bench, results, group, case, messages)?;
    }
    say(bench, results, group, case);
    Ok(())
}

/// One drain by the relay, and its sample.
fn relay(bench: &Bench<'_>, results: &mut Results, group: &str, case: &str, messages: &Messages) -> Result<Drained> {
    let drained = backlog::drain(bench, results, messages).with_context(|| format!("{group}: {case}"))?;
    results.add(group, case, RELAY, RATE, drained.rate(messages));
    Ok(drained)
}

/// One run of the raw producer to a topic of its own, read back.
fn produce(bench: &Bench<'_>, results: &mut Results, messages: &Messages, headers: Headers) -> Result<Produced> {
    let broker = &bench.servers.broker;
    let topic = bench.new_topic("raw", messages.partitions)?;
    bench.terminal.draw(format_args!("{topic}: producing {} messages", messages.count));
    let produced = raw::produce(broker, &topic, messages, headers)?;
    results.records_read_back += read_back::check(broker, &topic, messages, headers)?;
    broker.delete_topic(&topic)?;
    bench.terminal.wipe();
    Ok(produced)
}

/// The samples of the central case, where a group has it among its cases.
fn copy_central(bench: &Bench<'_>, results: &mut Results, group: &str, case: &str) {
    for who in [RAW, RELAY] {
        if let Some(figure) = results.figure(CENTRAL, &central_case(bench), who) {
            let mut figure = figure.clone();
            figure.group = group.to_owned();
            figure.case = case.to_owned();
            figure.note = "the central case".to_owned();
            results.figures.push(figure);
        }
    }
}

fn say(bench: &Bench<'_>, results: &Results, group: &str, case: &str) {
    let rate = |who: &str| results.figure(group, case, who).map(|figure| figure.median());
    match (rate(RELAY), rate(RAW)) {
        (Some(relay), Some(raw)) => {
            bench
                .terminal
                .good(format_args!("{group}: {case}: relay {relay:.0}/s, raw {raw:.0}/s = {:.2}", relay / raw));
        }
        (Some(relay), None) => bench.terminal.good(format_args!("{group}: {case}: relay {relay:.0}/s")),
        _ => {}
    }
}

fn samples(results: &Results, group: &str, case: &str, who: &str) -> Result<Vec<f64>> {
    let figure =
        results.figure(group, case, who).with_context(|| format!("nothing measured of {group}, {case}, {who}"))?;
    Ok(figure.samples.clone())
}

fn last_sample(results: &Results, group: &str, case: &str, who: &str) -> Result<f64> {
    samples(results, group, case, who)?.last().copied().context("no sample")
}

/// A number with commas.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or_default()).collect();
    groups.join(",")
}
