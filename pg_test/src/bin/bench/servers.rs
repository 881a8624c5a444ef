//! The servers under measurement, and what is to be said of them beside every figure.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_relay_pg_test::broker::{Broker, Purpose};
use outbox_relay_pg_test::cluster::Cluster;
use outbox_relay_pg_test::process::Lifetime;
use outbox_relay_pg_test::state;
use outbox_relay_pg_test::terminal::Terminal;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::raw;

/// The database.
pub const DATABASE: &str = "bench";

/// What the cluster is set to, beside [`shared_buffers`]; everything else is at its default.
pub const SETTINGS: &[(&str, &str)] = &[
    ("shared_preload_libraries", "outbox_relay"),
    ("outbox_relay.enabled", "off"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "30min"),
];

/// For a relay to come to rest, with whatever it still had to do.
const REST_AT_MOST: Duration = Duration::from_secs(300);

/// Both servers, running.
pub struct Servers {
    /// Postgres.
    pub cluster: Cluster,
    /// Kafka.
    pub broker: Arc<Broker>,
    /// Where everything of this run lies, results too.
    pub directory: PathBuf,
}

/// Starts both in fresh directories.
pub fn start(terminal: &Terminal) -> Result<Servers> {
    let directory = state::directory()?.join("bench");
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("could not remove {directory:?}"))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("could not make {directory:?}"))?;
    terminal.during("starting both servers", || {
        let broker = Broker::start_in(&directory.join("kafka"), Purpose::Benchmark, Lifetime::WithUs)?;
        with_postgres(Arc::new(broker), &directory, "pg", &[])
    })
}

fn with_postgres(broker: Arc<Broker>, directory: &Path, name: &str, settings: &[(&str, &str)]) -> Result<Servers> {
    let mut cluster = Cluster::create(&directory.join(name), Lifetime::WithUs)?;
    cluster.configure(SETTINGS)?;
    cluster.configure(&[("shared_buffers", &shared_buffers()?)])?;
    cluster.configure(&[("outbox_relay.bootstrap_servers", &broker.bootstrap())])?;
    cluster.configure(settings)?;
    cluster.start()?;
    cluster.connect("postgres")?.batch_execute(&format!("create database {DATABASE}"))?;
    cluster.connect(DATABASE)?.batch_execute("create extension outbox_relay").context("create extension")?;
    Ok(Servers { cluster, broker, directory: directory.to_owned() })
}

impl Servers {
    /// Another Postgres on the same Kafka, in a fresh directory of this name, for what needs other settings from its start on.
    /// It ends when it is dropped; the relays of the first are to be disabled as long as it lives.
    pub fn beside(&self, name: &str, settings: &[(&str, &str)]) -> Result<Servers> {
        with_postgres(Arc::clone(&self.broker), &self.directory, name, settings)
    }

    /// A session in the database.
    pub fn session(&self) -> Result<Client> {
        self.cluster.connect(DATABASE)
    }

    /// Cleans away what was removed from the outbox.
    pub fn vacuum(&self) -> Result<()> {
        self.session()?.batch_execute("vacuum outbox.message").context("vacuum")
    }

    /// The process ids of the relays.
    pub fn relays(&self) -> Result<Vec<i32>> {
        let rows = self
            .session()?
            .query("select pid from outbox.relay_status() where pid is not null order by pid", &[])
            .context("could not ask for the relays")?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Enables or disables the relays and waits until all say so, and have nothing left to do.
    pub fn enable(&self, on: bool) -> Result<()> {
        self.cluster.set("outbox_relay.enabled", if on { "on" } else { "off" })?;
        self.wait_for_state(if on { "idle" } else { "disabled" }, None)
    }

    /// Has this many relays, disabled.
    pub fn set_relays(&self, number: usize) -> Result<()> {
        self.cluster.set("outbox_relay.enabled", "off")?;
        self.cluster.set("outbox_relay.workers", &number.to_string())?;
        self.wait_for_state("disabled", Some(number))
    }

    fn wait_for_state(&self, wanted: &str, number: Option<usize>) -> Result<()> {
        let mut client = self.session()?;
        wait::until(format_args!("all relays are {wanted}"), REST_AT_MOST, || {
            let rows = client.query("select state from outbox.relay_status()", &[])?;
            let states: Vec<Option<String>> = rows.iter().map(|row| row.get(0)).collect();
            let all = states.iter().all(|state| state.as_deref() == Some(wanted));
            let enough = number.map_or(!states.is_empty(), |number| states.len() == number);
            Ok(if all && enough { Seen::Reached(()) } else { Seen::NotYet(format!("{states:?}")) })
        })
    }

    /// The day, as `2026-11-30`.
    pub fn today(&self) -> Result<String> {
        Ok(self.session()?.query_one("select current_date::text", &[]).context("could not ask for the day")?.get(0))
    }

    /// Machine, versions and settings.
    pub fn described(&self) -> Result<BTreeMap<String, String>> {
        let row = self
            .session()?
            .query_one(
                "select split_part(version(), ' on ', 1), outbox.version(),
                        (select string_agg(name || '=' || current_setting(name), ' ' order by name)
                         from pg_settings
                         where name like 'outbox_relay.%'
                           and name not in ('outbox_relay.bootstrap_servers', 'outbox_relay.enabled')
                           and current_setting(name) <> '')",
                &[],
            )
            .context("could not ask for versions and settings")?;
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let processor = first_value("/proc/cpuinfo", "model name")?;
        let memory = memory_kb()?;
        let settings = listed(SETTINGS.iter().filter(|(name, _)| !name.contains('.')));
        let described = [
            (
                "machine",
                format!("{cores} cores, {processor}, {} GB; all servers and the benchmark share it", memory >> 20),
            ),
            ("postgres", row.get(0)),
            ("postgres settings", format!("{settings} shared_buffers={}", shared_buffers()?)),
            ("outbox_relay", row.get(1)),
            ("outbox_relay settings", row.get(2)),
            ("kafka", self.broker.version()?),
            ("librdkafka", rdkafka::util::get_rdkafka_version().1),
            ("raw producer settings", listed(raw::SETTINGS)),
        ];
        Ok(described.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

fn listed<'a>(settings: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> String {
    let texts: Vec<String> = settings.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    texts.join(" ")
}

/// A quarter of the machine's memory, with which PostgreSQL's documentation begins.
fn shared_buffers() -> Result<String> {
    Ok(format!("{}MB", memory_kb()? / 4 / 1024))
}

fn memory_kb() -> Result<u64> {
    let memory = first_value("/proc/meminfo", "MemTotal")?;
    memory.trim_end_matches(" kB").parse().context("MemTotal of /proc/meminfo is no number")
}

/// The value of the first line of this name in a file of the kernel's.
fn first_value(path: &str, name: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("could not read {path}"))?;
    let value =
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned()));
    value.with_context(|| format!("{path} has no {name}"))
}
