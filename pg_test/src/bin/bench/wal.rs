//! How much WAL a message costs over its whole life, beside a raw INSERT of the same row (R9).
//!
//! Reason: WAL is what replicas, archives and disks pay for an outbox, and no rate shows it.
//!
//! A message's life is its enqueue, the statements of the relay around its publication, its removal, and the vacuum that
//! takes the dead row away; all that the server writes from the first to the last counts, whoever wrote it. The raw table
//! has the same shape, gets rows of the same size in as many commits, and keeps them: it needs no vacuum. The relay
//! publishes while the writers write, as it would.
//!
//! Both tables are truncated before each turn, so that their pages are new. No checkpoint falls inside, which is checked,
//! and a first turn is not counted: so no full image of a page that was there before is written in any other.

use anyhow::{Context, Result, ensure};
use postgres::Client;

use crate::Bench;
use crate::arrivals::Arrivals;
use crate::numbered::{self, Target, VALUE_BYTES};
use crate::pgbench::{self, Load, Script, Until};
use crate::raw;
use crate::results::{Good, Ratio, Results, median_of_ratios};
use crate::servers::DATABASE;

const GROUP: &str = "wal";
const TOPIC: &str = "wal";
const PARTITIONS: i32 = 4;
const RAW: &str = "raw INSERT";
const RELAY: &str = "relay, whole life";
const CLIENTS: u64 = 8;

/// Rows one a commit, and a thousand a commit.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let servers = bench.servers;
    servers.broker.create_topic(TOPIC, PARTITIONS, &[])?;
    let mut turns =
        Turns { bench, client: servers.session()?, arrivals: Arrivals::follow(&servers.broker.bootstrap(), TOPIC)? };
    raw::make_table(&mut turns.client)?;
    servers.enable(true)?;
    turns.client.batch_execute("checkpoint").context("checkpoint")?;
    let redo = redo(&mut turns.client)?;
    for (a_commit, commits, id) in [(1, bench.pick(500, 5_000), "R9a"), (1_000, bench.pick(5, 50), "R9b")] {
        let case = if a_commit == 1 { "one a commit".to_owned() } else { format!("{a_commit} a commit") };
        let (mut relay, mut raw) = (Vec::new(), Vec::new());
        for round in 0..=bench.rounds {
            bench.terminal.draw(format_args!("{case}: round {round} of {}", bench.rounds));
            let (of_raw, of_relay) = (turns.raw(a_commit, commits)?, turns.relay(a_commit, commits)?);
            if round > 0 {
                raw.push(of_raw);
                relay.push(of_relay);
            }
        }
        let value = median_of_ratios(&relay, &raw);
        bench.terminal.good(format_args!("WAL of a message / of a raw row, {case}: {value:.3}"));
        results.ratios.push(Ratio {
            id: id.into(),
            what: format!("WAL of a message over its whole life / of a raw INSERT, {case}"),
            value,
            unit: String::new(),
            good: Good::AtMost,
            required: 1.25,
            aim: Some(1.15),
            method: format!(
                "bytes of WAL around {} messages of {VALUE_BYTES} bytes by {CLIENTS} clients, with publication, removal and \
                 a vacuum; wal_level replica, no checkpoint inside; {} rounds in turns, median of their ratios",
                CLIENTS * commits * a_commit,
                bench.rounds
            ),
        });
        for (who, samples) in [(RELAY, relay), (RAW, raw)] {
            results.add_series(
                GROUP,
                &case,
                who,
                "bytes/message",
                samples,
                &format!("{VALUE_BYTES} bytes, wal_level replica, no compression"),
            );
        }
    }
    ensure!(redo == self::redo(&mut turns.client)?, "a checkpoint fell inside");
    results.records_read_back += turns.arrivals.read();
    servers.enable(false)
}

struct Turns<'a> {
    bench: &'a Bench<'a>,
    client: Client,
    arrivals: Arrivals,
}

impl Turns<'_> {
    /// Bytes of WAL for each row of the raw table.
    fn raw(&mut self, a_commit: u64, commits: u64) -> Result<f64> {
        let before = self.begin()?;
        let rows = self.write(Target::RawTable, a_commit, commits, 0)?;
        self.written_since(before, rows)
    }

    /// Bytes of WAL for each message.
    fn relay(&mut self, a_commit: u64, commits: u64) -> Result<f64> {
        let base = self.arrivals.next_base();
        let before = self.begin()?;
        let rows = self.write(Target::Outbox(TOPIC), a_commit, commits, base)?;
        numbered::wait_until_empty(&mut self.client)?;
        self.bench.servers.vacuum()?;
        let written = self.written_since(before, rows)?;
        self.arrivals.read_run(base, || Some(rows))?;
        Ok(written)
    }

    /// The position in the WAL from which it counts.
    fn begin(&mut self) -> Result<i64> {
        self.client.batch_execute("truncate outbox.message; truncate raw_message").context("could not empty tables")?;
        self.position()
    }

    fn write(&self, target: Target<'_>, a_commit: u64, commits: u64, base: u64) -> Result<u64> {
        let script = numbered::script(target, a_commit);
        let variables = [(numbered::BASE, base as i64)];
        let mut load = Load::new(DATABASE, Script::Text(&script), CLIENTS as usize, Until::Transactions(commits));
        load.variables = &variables;
        Ok(pgbench::run(self.bench.servers, &load)?.transactions * a_commit)
    }

    fn written_since(&mut self, before: i64, rows: u64) -> Result<f64> {
        Ok((self.position()? - before) as f64 / rows as f64)
    }

    fn position(&mut self) -> Result<i64> {
        let row = self.client.query_one("select (pg_current_wal_insert_lsn() - '0/0')::bigint", &[]);
        Ok(row.context("could not ask for the position in the WAL")?.get(0))
    }
}

/// Where the last checkpoint began.
fn redo(client: &mut Client) -> Result<String> {
    let row = client.query_one("select redo_lsn::text from pg_control_checkpoint()", &[]);
    Ok(row.context("could not ask for the last checkpoint")?.get(0))
}
