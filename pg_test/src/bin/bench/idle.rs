//! What a database pays for a relay that has nothing to do: its transactions a minute (R10).
//!
//! Reason: on a server with many databases, relays that poll would be felt by all. `pg_stat_database` counts every
//! transaction in the database; sessions of the benchmark are in another one. Autovacuum is off meanwhile: it would work off
//! what earlier cases have left behind. For the tables that relays write to while idle it comes every few hours, which the
//! thresholds of sql/tables.sql see to. An empty database without the extension is counted beside it and taken off.
//!
//! The clock runs from one change of the count to another: the relay works every ten seconds, and a minute begun anywhere
//! would hold seven of such moments as well as six.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::Bench;
use crate::results::{Good, Ratio, Results};
use crate::servers::DATABASE;

const GROUP: &str = "idle";
const CASE: &str = "nothing to do";
const BARE: &str = "bare";
/// By which the wait for the last change begins before the time is over.
const BEFORE_THE_END: Duration = Duration::from_secs(5);
/// For what came before to be counted: an idle relay works every ten seconds, and then only reports what it did before.
const SETTLE: Duration = Duration::from_secs(12);

/// Counts for a while.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let seconds = bench.pick(30, 120);
    let mut elsewhere = bench.servers.cluster.connect("postgres")?;
    elsewhere.batch_execute(&format!("create database {BARE}")).context("could not make a database")?;
    // What earlier drains left behind would put off the first look at it, and with it the moment of all later ones.
    bench.servers.vacuum()?;
    bench.servers.enable(true)?;
    bench.servers.cluster.set("autovacuum", "off")?;
    thread::sleep(SETTLE);

    bench.terminal.draw(format_args!("doing nothing for {seconds} s"));
    let (begun, before) = next_change(&mut elsewhere)?;
    let bare_before = transactions(&mut elsewhere, BARE)?;
    thread::sleep(Duration::from_secs(seconds) - BEFORE_THE_END);
    let (ended, after) = next_change(&mut elsewhere)?;
    let bare_after = transactions(&mut elsewhere, BARE)?;
    bench.servers.cluster.set("autovacuum", "on")?;
    let minutes = ended.duration_since(begun).as_secs_f64() / 60.0;
    let relays = bench.servers.relays()?;
    ensure!(!relays.is_empty(), "no relay was there to be idle");
    bench.servers.enable(false)?;
    elsewhere.batch_execute(&format!("drop database {BARE}")).context("could not drop a database")?;

    let rates = [after - before, bare_after - bare_before].map(|count| count as f64 / minutes);
    bench.terminal.good(format_args!("{:.1} transactions a minute, {:.1} without the extension", rates[0], rates[1]));
    for (who, rate) in [("with an idle relay", rates[0]), ("without the extension", rates[1])] {
        results.add(GROUP, CASE, who, "transactions/min", rate);
        results.note(GROUP, CASE, who, &format!("over {seconds} s, autovacuum off"));
    }
    results.ratios.push(Ratio {
        id: "R10".into(),
        what: "transactions a minute of a database with an idle relay, above one without the extension".into(),
        value: rates[0] - rates[1],
        unit: "/min".into(),
        good: Good::AtMost,
        required: 12.0,
        aim: None,
        method: format!(
            "pg_stat_database over {seconds} s, from one change to another, without any session in the database, autovacuum off"
        ),
    });
    Ok(())
}

/// Waits until the count changes, and says when and to what.
fn next_change(client: &mut Client) -> Result<(Instant, i64)> {
    let before = transactions(client, DATABASE)?;
    wait::until("the relay has done its round", SETTLE * 3, || {
        let count = transactions(client, DATABASE)?;
        Ok(if count > before { Seen::Reached((Instant::now(), count)) } else { Seen::NotYet(count.to_string()) })
    })
}

fn transactions(client: &mut Client, database: &str) -> Result<i64> {
    let row = client
        .query_one("select xact_commit + xact_rollback from pg_stat_database where datname = $1", &[&database])
        .context("could not read pg_stat_database")?;
    Ok(row.get(0))
}
