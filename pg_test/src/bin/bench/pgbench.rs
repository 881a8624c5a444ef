//! pgbench, PostgreSQL's own load generator, as the writers of the measurements.
//!
//! Reason: it is cheap beside what it measures, everybody knows what its figures mean, and with a rate it is an open loop:
//! transactions begin on schedule whether or not the earlier ones were answered, and its log says of each how late it
//! began. Its times of day are those of this machine's clock, so they can be held against a consumer's in this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use outbox_relay_pg_test::cluster::SUPERUSER;
use outbox_relay_pg_test::process::{Launch, Lifetime, Process};
use outbox_relay_pg_test::state;

use crate::servers::Servers;

/// Beyond the time that a run was given.
const END_AT_MOST: Duration = Duration::from_secs(120);

/// What the clients do.
#[derive(Clone, Copy)]
pub enum Script<'a> {
    /// pgbench's own: three updates, a select and an insert, like TPC-B.
    TpcbLike,
    /// This text.
    Text(&'a str),
}

/// How long it goes on.
#[derive(Clone, Copy)]
pub enum Until {
    /// For so many seconds.
    Seconds(u64),
    /// Until each client has made so many transactions.
    Transactions(u64),
}

/// What is to be run; statements are prepared.
pub struct Load<'a> {
    /// Database.
    pub database: &'a str,
    /// What each client does again and again.
    pub script: Script<'a>,
    /// Sessions.
    pub clients: usize,
    /// How long.
    pub until: Until,
    /// Transactions a second of all clients together, at random times of that mean; none is as fast as they can.
    pub rate: Option<f64>,
    /// Variables of the script.
    pub variables: &'a [(&'a str, i64)],
    /// Settings of the sessions, as libpq's PGOPTIONS has them.
    pub options: &'a str,
    /// Whether to note each transaction, for [`Outcome::log`].
    pub log: bool,
}

impl<'a> Load<'a> {
    /// So many clients, as fast as they can.
    pub fn new(database: &'a str, script: Script<'a>, clients: usize, until: Until) -> Load<'a> {
        Load { database, script, clients, until, rate: None, variables: &[], options: "", log: false }
    }
}

/// One transaction of a run with a log.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// Client, from 0.
    pub client: usize,
    /// Which of that client's transactions, from 1.
    pub number: u64,
    /// From when it was due to the answer.
    pub took: Duration,
    /// How late after it was due it began.
    pub late: Duration,
    /// When the answer was there, since 1970.
    pub answered: Duration,
}

/// A run that goes on.
pub struct Running {
    process: Process,
    files: Files,
    at_most: Duration,
}

/// A run that has ended well.
pub struct Outcome {
    /// Transactions that were committed.
    pub transactions: u64,
    /// The same in a second, without the time to connect.
    pub rate: f64,
    files: Files,
}

/// The directory of a run's files; they go with it.
struct Files(PathBuf);

impl Files {
    fn make(servers: &Servers) -> Result<Files> {
        static RUNS: AtomicU64 = AtomicU64::new(1);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let directory = servers.directory.join(format!("pgbench-{run}"));
        fs::create_dir_all(&directory).with_context(|| format!("could not make {directory:?}"))?;
        Ok(Files(directory))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // What is left is removed with the whole directory of the servers before the next benchmark.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a run; its files lie in the directory of the servers.
pub fn start(servers: &Servers, load: &Load<'_>) -> Result<Running> {
    let files = Files::make(servers)?;
    let directory = &files.0;
    let address = servers.cluster.address();
    let mut args: Vec<String> = ["--no-vacuum", "--protocol=prepared"].map(String::from).into();
    if load.log {
        args.push(format!("--log-prefix={}", directory.join("log").display()));
        args.push("--log".into());
    }
    args.push(format!("--host={}", address.host().display()));
    args.push(format!("--port={}", address.port()));
    args.push(format!("--username={SUPERUSER}"));
    args.push(format!("--client={}", load.clients));
    // Two threads at most: the cores are the servers' too.
    args.push(format!("--jobs={}", load.clients.min(2)));
    args.push(match load.until {
        Until::Seconds(seconds) => format!("--time={seconds}"),
        Until::Transactions(count) => format!("--transactions={count}"),
    });
    args.extend(load.rate.map(|rate| format!("--rate={rate:.3}")));
    args.extend(load.variables.iter().map(|(name, value)| format!("--define={name}={value}")));
    match load.script {
        Script::TpcbLike => args.push("--builtin=tpcb-like".into()),
        Script::Text(text) => {
            let path = directory.join("script.sql");
            fs::write(&path, text).with_context(|| format!("could not write {path:?}"))?;
            args.push(format!("--file={}", path.display()));
        }
    }
    args.push(format!("dbname={} options='{}'", load.database, load.options));
    let process = launch(directory, &args)?;
    let planned = match load.until {
        Until::Seconds(seconds) => Duration::from_secs(seconds),
        Until::Transactions(_) => Duration::ZERO,
    };
    Ok(Running { process, files, at_most: planned + END_AT_MOST })
}

/// Runs it to its end.
pub fn run(servers: &Servers, load: &Load<'_>) -> Result<Outcome> {
    start(servers, load)?.finish()
}

/// Makes the tables of [`Script::TpcbLike`], 100,000 accounts for each unit of `scale`.
pub fn create_tables(servers: &Servers, database: &str, scale: u32) -> Result<()> {
    let mut pgbench = servers.cluster.program("pgbench");
    pgbench.args(["--initialize", "--quiet", &format!("--scale={scale}"), database]);
    state::run(pgbench).context("could not make the tables of pgbench")?;
    Ok(())
}

fn launch(directory: &Path, args: &[String]) -> Result<Process> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Process::start(&Launch {
        program: &state::postgres_programs()?.join("pgbench"),
        args: &args,
        as_server_user: false,
        log: &directory.join("output"),
        lifetime: Lifetime::WithUs,
        orphan_signal: "KILL",
    })
}

impl Running {
    /// Whether it still goes on.
    pub fn goes_on(&mut self) -> Result<bool> {
        Ok(self.process.ended()?.is_none())
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Result<Outcome> {
        let status = self.process.wait_for_end(self.at_most).context("pgbench")?;
        let path = self.files.0.join("output");
        let output = fs::read_to_string(&path).with_context(|| format!("could not read {path:?}"))?;
        ensure!(status.success(), "pgbench ended with {status}: {}", output.trim());
        let number = |before: &str| -> Result<f64> {
            let line = output.lines().find_map(|line| line.strip_prefix(before));
            let Some(text) = line.and_then(|rest| rest.split([' ', '/']).next()) else {
                bail!("pgbench did not say {before:?}: {}", output.trim());
            };
            text.parse().with_context(|| format!("pgbench said {before:?} and no number"))
        };
        ensure!(number("number of failed transactions: ")? == 0.0, "transactions failed: {}", output.trim());
        Ok(Outcome {
            transactions: number("number of transactions actually processed: ")? as u64,
            rate: number("tps = ")?,
            files: self.files,
        })
    }
}

impl Outcome {
    /// What its log says of every transaction.
    pub fn log(&self) -> Result<Vec<Transaction>> {
        let mut transactions = Vec::with_capacity(self.transactions as usize);
        let mut made: Vec<u64> = Vec::new();
        for entry in fs::read_dir(&self.files.0).context("the log of pgbench")? {
            let path = entry.context("the log of pgbench")?.path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log.")) {
                continue;
            }
            // All of a client's lines are in one file, in their order.
            for line in fs::read_to_string(&path).with_context(|| format!("could not read {path:?}"))?.lines() {
                let fields = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
                let fields = fields.with_context(|| format!("pgbench logged {line:?}"))?;
                let (&[client, _, took, _, seconds, micros], rest) = fields.split_at(6) else {
                    bail!("pgbench logged {line:?}");
                };
                let client = client as usize;
                if made.len() <= client {
                    made.resize(client + 1, 0);
                }
                made[client] += 1;
                transactions.push(Transaction {
                    client,
                    number: made[client],
                    took: Duration::from_micros(took),
                    late: Duration::from_micros(rest.first().copied().unwrap_or(0)),
                    answered: Duration::from_secs(seconds) + Duration::from_micros(micros),
                });
            }
        }
        ensure!(
            transactions.len() as u64 == self.transactions,
            "pgbench logged {} of {} transactions",
            transactions.len(),
            self.transactions
        );
        Ok(transactions)
    }
}
