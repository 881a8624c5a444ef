//! How fast a backlog is drained, beside the raw limits of the machine: the central case, around which others vary one factor.
//!
//! In each round all contestants take turns; what is compared are the rates of one round with each other.

use anyhow::{Context, Result};

use crate::Bench;
use crate::backlog::{self, Drained};
use crate::messages::{Headers, Messages};
use crate::numerals::thousands;
use crate::raw::{self, Produced};
use crate::read_back;
use crate::results::{Good, Ratio, Results, median_of_ratios};

/// The relay, among the contestants.
pub const RELAY: &str = "relay";
/// The raw producer that sends key and value only.
pub const RAW: &str = "raw producer";
/// The raw producer that sends the relay's bytes.
pub const RAW_WITH_ID: &str = "raw producer, with message id";

/// Unit of rates.
pub const RATE: &str = "messages/s";
const PROCESSOR: &str = "s per 1M messages";
/// Unit of memory.
pub const MEMORY: &str = "MB";

/// Group of the central case.
pub const CENTRAL: &str = "drain";
const COST: &str = "processor time of a drain";
/// Group of what was held in memory.
pub const HELD: &str = "memory during a drain";

/// The messages of the central case.
pub fn central_messages(bench: &Bench<'_>) -> Messages {
    Messages::central(bench.pick(200_000, 1_000_000))
}

/// How the central case is called in `results`.
pub fn central_case(bench: &Bench<'_>) -> String {
    let messages = central_messages(bench);
    format!("{} messages of {} B, {} partitions", thousands(messages.count), messages.value_bytes, messages.partitions)
}

/// R1 and R13, and the rates of everything that is a limit.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
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

/// One drain by the relay, and its sample.
pub fn relay(
    bench: &Bench<'_>,
    results: &mut Results,
    group: &str,
    case: &str,
    messages: &Messages,
) -> Result<Drained> {
    let drained = backlog::drain(bench, results, messages).with_context(|| format!("{group}: {case}"))?;
    results.add(group, case, RELAY, RATE, drained.rate(messages));
    Ok(drained)
}

/// One run of the raw producer to a topic of its own, read back.
pub fn produce(bench: &Bench<'_>, results: &mut Results, messages: &Messages, headers: Headers) -> Result<Produced> {
    let broker = &bench.servers.broker;
    let topic = bench.new_topic("raw", messages.partitions)?;
    bench.terminal.draw(format_args!("{topic}: producing {} messages", messages.count));
    let produced = raw::produce(broker, &topic, messages, headers)?;
    results.records_read_back += read_back::check(broker, &topic, messages, headers)?;
    broker.delete_topic(&topic)?;
    bench.terminal.wipe();
    Ok(produced)
}

/// Says how fast that was.
pub fn say(bench: &Bench<'_>, results: &Results, group: &str, case: &str) {
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

/// The samples of a series that must be there.
pub fn samples(results: &Results, group: &str, case: &str, who: &str) -> Result<Vec<f64>> {
    let figure =
        results.figure(group, case, who).with_context(|| format!("nothing measured of {group}, {case}, {who}"))?;
    Ok(figure.samples.clone())
}

fn last_sample(results: &Results, group: &str, case: &str, who: &str) -> Result<f64> {
    samples(results, group, case, who)?.last().copied().context("no sample")
}
