//! The same drain with one factor varied at a time: bytes, partitions, keys, commits, relays.

use anyhow::Result;

use crate::drain::{CENTRAL, RATE, RAW, RELAY, central_case, central_messages, produce, relay, say};
use crate::messages::{Headers, Messages};
use crate::results::Results;
use crate::{Bench, Mode};

/// All factors; none in the short mode.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    if bench.mode == Mode::Short {
        bench.terminal.say("in the full mode only");
        return Ok(());
    }
    by_payload(bench, results)?;
    by_partitions(bench, results)?;
    by_keys(bench, results)?;
    by_commit(bench, results)?;
    by_relays(bench, results)
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
        let case = relays.to_string();
        let mut smallest_part: f64 = 1.0;
        for _ in 0..bench.rounds {
            let drained = relay(bench, results, group, &case, &central_messages(bench))?;
            smallest_part = smallest_part.min(drained.smallest_part);
        }
        let note = format!("the least busy one did at least {:.0} % of a drain", 100.0 * smallest_part);
        results.note(group, &case, RELAY, &note);
        say(bench, results, group, &case);
    }
    bench.servers.set_relays(1)
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
