//! What a database pays for a relay that has nothing to do: its transactions a minute (R10).
//!
//! Reason: on a server with many databases, relays that poll would be felt by all. `pg_stat_database` counts every
//! transaction in the database, the relay's and autovacuum's; sessions of the benchmark are in another database. An empty
//! database without the extension is counted beside it: its transactions, which are autovacuum's visits, are taken off.
//! What autovacuum does for the relay's own tables stays in.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use postgres::Client;

use crate::Bench;
use crate::results::{Good, Ratio, Results};
use crate::servers::DATABASE;

const GROUP: &str = "idle";
const CASE: &str = "nothing to do";
const BARE: &str = "bare";
/// For what came before to be counted: an idle relay works every ten seconds, and then only reports what it did before.
const SETTLE: Duration = Duration::from_secs(12);

/// Counts for a while.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    // Whole minutes: autovacuum visits each database once a minute.
    let seconds = bench.pick(60, 120);
    let mut elsewhere = bench.servers.cluster.connect("postgres")?;
    elsewhere.batch_execute(&format!("create database {BARE}")).context("could not make a database")?;
    bench.servers.enable(true)?;
    // Else autovacuum does, for what went before.
    bench.servers.session()?.batch_execute("vacuum analyze").context("vacuum analyze")?;
    thread::sleep(SETTLE);

    let since = Instant::now();
    let before = [DATABASE, BARE].map(|database| transactions(&mut elsewhere, database));
    while since.elapsed() < Duration::from_secs(seconds) {
        bench.terminal.draw(format_args!("doing nothing for {} of {seconds} s", since.elapsed().as_secs()));
        thread::sleep(Duration::from_millis(200));
    }
    let minutes = since.elapsed().as_secs_f64() / 60.0;
    let after = [DATABASE, BARE].map(|database| transactions(&mut elsewhere, database));
    let relays = bench.servers.relays()?;
    ensure!(!relays.is_empty(), "no relay was there to be idle");
    bench.servers.enable(false)?;
    elsewhere.batch_execute(&format!("drop database {BARE}")).context("could not drop a database")?;

    let mut rates = Vec::new();
    for (before, after) in before.into_iter().zip(after) {
        rates.push((after? - before?) as f64 / minutes);
    }
    bench.terminal.good(format_args!("{:.1} transactions a minute, {:.1} without the extension", rates[0], rates[1]));
    for (who, rate) in [("with an idle relay", rates[0]), ("without the extension", rates[1])] {
        results.add(GROUP, CASE, who, "transactions/min", rate);
        results.note(GROUP, CASE, who, &format!("over {seconds} s, autovacuum's included"));
    }
    results.ratios.push(Ratio {
        id: "R10".into(),
        what: "transactions a minute of a database with an idle relay, above one without the extension".into(),
        value: rates[0] - rates[1],
        unit: "/min".into(),
        good: Good::AtMost,
        required: 12.0,
        aim: None,
        method: format!("pg_stat_database over {seconds} s without any session in the database; autovacuum of the relay's tables included"),
    });
    Ok(())
}

fn transactions(client: &mut Client, database: &str) -> Result<i64> {
    let row = client
        .query_one("select xact_commit + xact_rollback from pg_stat_database where datname = $1", &[&database])
        .context("could not read pg_stat_database")?;
    Ok(row.get(0))
}
