//! The servers under measurement, and what is to be said of them beside every figure.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use outbox_relay_pg_test::broker::{Broker, Purpose};
use outbox_relay_pg_test::cluster::Cluster;
use outbox_relay_pg_test::process::Lifetime;
use outbox_relay_pg_test::state;
use outbox_relay_pg_test::terminal::Terminal;
use postgres::Client;

/// The database.
pub const DATABASE: &str = "bench";

/// What the cluster is set to; everything else is at its default.
pub const SETTINGS: &[(&str, &str)] = &[
    ("shared_preload_libraries", "outbox_relay"),
    ("outbox_relay.enabled", "off"),
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "30min"),
];

/// Both servers, running.
pub struct Servers {
    /// Postgres.
    pub cluster: Cluster,
    /// Kafka.
    pub broker: Broker,
    /// Where results go.
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
        let mut cluster = Cluster::create(&directory.join("pg"), Lifetime::WithUs)?;
        cluster.configure(SETTINGS)?;
        cluster.configure(&[("outbox_relay.bootstrap_servers", &broker.bootstrap())])?;
        cluster.start()?;
        cluster.connect("postgres")?.batch_execute(&format!("create database {DATABASE}"))?;
        cluster.connect(DATABASE)?.batch_execute("create extension outbox_relay").context("create extension")?;
        Ok(Servers { cluster, broker, directory })
    })
}

impl Servers {
    /// A session in the database.
    pub fn session(&self) -> Result<Client> {
        self.cluster.connect(DATABASE)
    }

    /// The process id of the one relay.
    pub fn relay(&self, client: &mut Client) -> Result<i32> {
        let row = client
            .query_one("select pid from pg_stat_activity where backend_type = 'outbox_relay relay'", &[])
            .context("one relay was expected")?;
        Ok(row.get(0))
    }
}
