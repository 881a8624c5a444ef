//! The demo's two servers: they live on when the demo has ended, until they are stopped.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_relay_pg_test::broker::{self, Broker, Purpose};
use outbox_relay_pg_test::cluster::{self, Cluster, SUPERUSER};
use outbox_relay_pg_test::consumer::{Consumer, Record};
use outbox_relay_pg_test::process::Lifetime;
use outbox_relay_pg_test::state;
use outbox_relay_pg_test::terminal::Terminal;

/// The database of the demo.
pub const DATABASE: &str = "shop";
/// Its topic.
pub const TOPIC: &str = "orders";
/// Partitions of the topic.
pub const PARTITIONS: i32 = 4;

/// Both servers, running.
pub struct Servers {
    /// Postgres.
    pub cluster: Cluster,
    /// Kafka.
    pub broker: Broker,
}

fn directory() -> Result<PathBuf> {
    Ok(state::directory()?.join("demo"))
}

/// Starts both servers in fresh directories, after those of an earlier demo have been stopped.
pub fn start(terminal: &Terminal) -> Result<Servers> {
    let directory = directory()?;
    if end_left_behind()? {
        terminal.good("stopped the servers of an earlier demo");
    }
    if directory.exists() {
        fs::remove_dir_all(&directory).with_context(|| format!("could not remove {directory:?}"))?;
    }
    fs::create_dir_all(&directory).with_context(|| format!("could not make {directory:?}"))?;
    let mut cluster = Cluster::create(&directory.join("pg"), Lifetime::Beyond)?;
    // Before the servers run, so that `stop` finds them even if we get no further.
    let environment = format!(
        "PGHOST={}\nPGPORT={}\nPGDATABASE={DATABASE}\nPGUSER={SUPERUSER}\n",
        cluster.address().host().display(),
        cluster.address().port()
    );
    fs::write(directory.join("env"), environment).context("could not write the file env")?;

    terminal.during("starting PostgreSQL and Apache Kafka", || {
        let broker = Broker::start_in(&directory.join("kafka"), Purpose::Test, Lifetime::Beyond)?;
        cluster.configure(&[
            ("shared_preload_libraries", "outbox_relay"),
            ("outbox_relay.bootstrap_servers", &broker.bootstrap()),
            ("outbox_relay.workers", "2"),
            ("max_worker_processes", "16"),
        ])?;
        cluster.start()?;
        broker.create_topic(TOPIC, PARTITIONS, &[])?;
        Ok(Servers { cluster, broker })
    })
}

/// Stops the servers of an earlier demo.
pub fn stop(terminal: &Terminal) -> Result<()> {
    if end_left_behind()? {
        terminal.good("PostgreSQL and Kafka are stopped");
    } else {
        terminal.say("The servers of the demo are not running.");
    }
    Ok(())
}

fn end_left_behind() -> Result<bool> {
    let directory = directory()?;
    let postgres = cluster::stop_left_behind(&directory.join("pg"))?;
    let kafka = broker::stop_left_behind(&directory.join("kafka"))?;
    let environment = directory.join("env");
    if environment.exists() {
        fs::remove_file(&environment).context("could not remove the file env")?;
    }
    Ok(postgres || kafka)
}

/// Prints what reaches the topic, from now on, until it is interrupted.
pub fn listen(terminal: &Terminal) -> Result<()> {
    let bootstrap = broker::bootstrap_left_behind(&directory()?.join("kafka"))
        .context("the servers of the demo are not running; start them with \"make demo\"")?;
    let mut consumer = Consumer::follow(&bootstrap, &[TOPIC])?;
    let before = consumer.rest(Duration::from_secs(60))?.len();
    terminal.say(format_args!("The topic \"{TOPIC}\" holds {before} records; new ones follow. End with Ctrl-C."));
    loop {
        if let Some(record) = consumer.next(Duration::from_secs(3600))? {
            show(terminal, &record);
        }
    }
}

/// Prints a record.
pub fn show(terminal: &Terminal, record: &Record) {
    let text = |bytes: &Option<Vec<u8>>| match bytes {
        Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        None => "null".to_owned(),
    };
    terminal.code(&format!(
        "topic {}, partition {}, offset {}\n  key     {}\n  value   {}",
        record.topic,
        record.partition,
        record.offset,
        text(&record.key),
        text(&record.value)
    ));
    for (name, value) in &record.headers {
        terminal.code(&format!("  header  {name}: {}", text(value)));
    }
}
