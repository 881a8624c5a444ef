//! Whether a transaction that holds the horizon slows the relay down: nothing that was removed since it began can be
//! cleaned away, neither by vacuum nor by whoever passes by.
//!
//! The relay runs all the time, as it does in life: it knows how far it has read. One that starts wades through the dead rows
//! once; how long that takes is told beside.
//!
//! While nothing can be cleaned away the table grows, into shared buffers that the relay's process may never have touched; the first
//! touch of each page costs it a page fault. On a server that has been up for a while it has touched them all. So a larger
//! drain comes first, through as many buffers as will be filled later.
//!
//! The first two drains of each of the three phases are not measured: they are mostly the slower ones, whatever came before them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::wait;
use postgres::{Client, IsolationLevel};

use crate::Bench;
use crate::backlog;
use crate::fill::Filler;
use crate::messages::Messages;
use crate::numerals::thousands;
use crate::results::{Good, Ratio, Results, median};

const GROUP: &str = "drain beside an old transaction";
const COST: &str = "processor time beside an old transaction";
const STARTS: &str = "start beside an old transaction";
const HELD: &str = "horizon held";
const BEFORE: &str = "before";
const AFTER: &str = "after it has ended, and a vacuum";

/// What a writer commits at a time while the horizon is held, and how often.
const STEP: u64 = 100;
const BETWEEN_STEPS: Duration = Duration::from_millis(20);

/// Drains at the beginning of a phase that are not measured.
const UNMEASURED: usize = 2;

const ARRIVE_AT_MOST: Duration = Duration::from_secs(60);

/// Drains before, while and after the horizon is held.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let messages = Messages::central(bench.pick(200_000, 1_000_000));
    let hold = Duration::from_secs(bench.pick(15, 600));
    let flow_messages = STEP * (hold.as_millis() / BETWEEN_STEPS.as_millis()) as u64;
    let piled_up = flow_messages + messages.count * (UNMEASURED + bench.rounds) as u64;
    backlog::drain_of_one_commit(bench, results, &Messages::central(piled_up)).context("drain through the buffers")?;
    // Or what that has left to be written would be written beside the drains before.
    bench.servers.session()?.batch_execute("checkpoint").context("checkpoint")?;
    drains(bench, results, BEFORE, &messages)?;

    let mut holder = bench.servers.session()?;
    let mut transaction = holder
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .start()
        .context("could not begin the transaction that holds the horizon")?;
    transaction.query_one("select count(*) from outbox.lease", &[]).context("could not take a snapshot")?;
    let flowed = flow(bench, results, hold)?;
    drains(bench, results, HELD, &messages)?;
    starts(bench, results, HELD)?;
    let dead: i64 = bench
        .servers
        .session()?
        .query_one("select pg_relation_size('outbox.message')", &[])
        .context("could not ask for the size of the table")?
        .get(0);
    transaction.rollback().context("could not end the transaction that holds the horizon")?;

    bench.servers.vacuum()?;
    drains(bench, results, AFTER, &messages)?;
    starts(bench, results, AFTER)?;

    let case = |who: &str| -> Result<Vec<f64>> {
        Ok(results.figure(GROUP, who, "relay").with_context(|| format!("no drains {who}"))?.samples.clone())
    };
    let (held, without) = (case(HELD)?, [case(BEFORE)?, case(AFTER)?].concat());
    let ratio = Ratio {
        id: "R7".into(),
        what: format!("drain with the horizon held for {} s / without", hold.as_secs()),
        value: median(&held) / median(&without),
        unit: String::new(),
        good: Good::AtLeast,
        required: 0.95,
        aim: Some(1.0),
        method: format!(
            "a REPEATABLE READ snapshot in another session of the database; while it was held, {} messages went through the \
             relay ({:.0} a second) and then {} drains of {} after {UNMEASURED} that were not measured, each committed at once, which left a table of {} MB; medians of these drains and of {} without, \
             half before and half after a vacuum, each after {UNMEASURED} too; by the means, in which a look within a drain counts, \
             it is {:.2}",
            thousands(flowed),
            flowed as f64 / hold.as_secs_f64(),
            held.len(),
            thousands(messages.count),
            dead / 1_000_000,
            without.len(),
            mean_rate(&held) / mean_rate(&without)
        ),
    };
    bench.terminal.good(format_args!(
        "held {:.0}/s, without {:.0}/s = {:.2}",
        median(&held),
        median(&without),
        ratio.value
    ));
    results.ratios.push(ratio);
    Ok(())
}

fn drains(bench: &Bench<'_>, results: &mut Results, case: &str, messages: &Messages) -> Result<()> {
    for is_measured in bench.rounds_after(UNMEASURED) {
        let drained =
            backlog::drain_of_one_commit(bench, results, messages).with_context(|| format!("drain {case}"))?;
        if !is_measured {
            continue;
        }
        results.add(GROUP, case, "relay", "messages/s", drained.rate(messages));
        let millions = messages.count as f64 / 1e6;
        results.add(COST, case, "relay", "s per 1M messages", drained.processor.as_secs_f64() / millions);
        bench.terminal.good(format_args!("{case}: {:.0}/s", drained.rate(messages)));
    }
    Ok(())
}

/// How long a relay that starts takes to its first message.
fn starts(bench: &Bench<'_>, results: &mut Results, case: &str) -> Result<()> {
    for _ in 0..bench.rounds.min(3) {
        let drained = backlog::drain(bench, results, &Messages::central(1)).with_context(|| format!("start {case}"))?;
        results.add(STARTS, case, "relay", "ms", drained.took.as_secs_f64() * 1e3);
    }
    results.note(STARTS, case, "relay", "from the reload that enables it until one message is published and removed");
    Ok(())
}

/// A writer and the relay go on for a while; everything is read back. Returns the number of messages.
fn flow(bench: &Bench<'_>, results: &mut Results, length: Duration) -> Result<u64> {
    let mut messages = Messages { a_commit: STEP, ..Messages::central(0) };
    let topic = bench.new_topic("flow", messages.partitions)?;
    let mut filler = Filler::new(bench.servers.session()?, &messages)?;
    bench.servers.enable(true)?;
    let since = Instant::now();
    for step in 0.. {
        let due = BETWEEN_STEPS * step;
        if due >= length {
            break;
        }
        thread::sleep(due.saturating_sub(since.elapsed()));
        filler.rows(&topic, &messages, messages.count, messages.count + STEP)?;
        messages.count += STEP;
        if step % 50 == 0 {
            let seconds = since.elapsed().as_secs();
            bench.terminal.draw(format_args!("holding the horizon: {seconds} s of {} s", length.as_secs()));
        }
    }
    let mut client = bench.servers.session()?;
    wait::until_true("all messages have left the table", ARRIVE_AT_MOST, || is_empty(&mut client))?;
    let late = since.elapsed().saturating_sub(length);
    ensure!(late < ARRIVE_AT_MOST, "writer and relay fell {late:?} behind");
    backlog::read_topic_back(bench, bench.servers, results, &topic, &messages)?;
    Ok(messages.count)
}

/// Messages a second of all drains together, of the rates of each.
fn mean_rate(rates: &[f64]) -> f64 {
    rates.len() as f64 / rates.iter().map(|rate| 1.0 / rate).sum::<f64>()
}

fn is_empty(client: &mut Client) -> Result<bool> {
    Ok(client.query_one("select not exists (select from outbox.message)", &[])?.get(0))
}
