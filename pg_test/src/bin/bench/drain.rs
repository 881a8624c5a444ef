//! A backlog of rows, and the time in which the relay turns it into acknowledged records and an empty table.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::process;
use outbox_relay_pg_test::terminal::Terminal;
use outbox_relay_pg_test::wait;
use postgres::Client;

use crate::Options;
use crate::raw::{self, Headers, KEYS, PARTITIONS, VALUE_BYTES};
use crate::servers::Servers;

const AT_MOST: Duration = Duration::from_secs(300);
/// Between two looks at Kafka; a look costs one question a partition.
const LOOK: Duration = Duration::from_millis(10);

/// What was measured, in rows a second.
#[derive(Default)]
pub struct Drains {
    /// The relay.
    pub relay: Vec<f64>,
    /// The raw producer.
    pub raw: Vec<f64>,
    /// The raw producer that adds a message id to each record, as the relay does.
    pub raw_with_header: Vec<f64>,
    /// The highest anonymous memory of the relay, in bytes.
    pub memory: u64,
}

/// All rounds, interleaved.
pub fn measure(terminal: &Terminal, servers: &Servers, options: &Options) -> Result<Drains> {
    let mut drains = Drains::default();
    let rows = options.rows;
    let rate = |took: Duration| rows as f64 / took.as_secs_f64();
    for round in 1..=options.rounds {
        for (headers, rates) in [(Headers::None, &mut drains.raw), (Headers::MessageId, &mut drains.raw_with_header)] {
            let topic = format!("raw-{round}-{}", usize::from(headers == Headers::MessageId));
            let took = raw::produce(&servers.broker, &topic, rows, headers)?;
            require_count(servers, &topic, rows)?;
            servers.broker.delete_topic(&topic)?;
            rates.push(rate(took));
        }
        let topic = format!("relay-{round}");
        servers.broker.create_topic(&topic, PARTITIONS, &[])?;
        let took = drain(terminal, servers, &topic, rows, &mut drains.memory)?;
        // Every drain is counted; the last one is also read.
        require_count(servers, &topic, rows)?;
        if round == options.rounds {
            read_back(terminal, servers, &topic, rows)?;
        }
        servers.broker.delete_topic(&topic)?;
        drains.relay.push(rate(took));
        terminal.good(format_args!(
            "round {round}: raw {:.0}/s, with header {:.0}/s, relay {:.0}/s = {:.2} of raw",
            drains.raw[round - 1],
            drains.raw_with_header[round - 1],
            drains.relay[round - 1],
            drains.relay[round - 1] / drains.raw[round - 1]
        ));
    }
    Ok(drains)
}

/// Fills the table while the relay is disabled, then measures from enabling it to the empty table.
fn drain(terminal: &Terminal, servers: &Servers, topic: &str, rows: u64, memory: &mut u64) -> Result<Duration> {
    let mut client = servers.session()?;
    enable(servers, &mut client, false)?;
    client.batch_execute("vacuum outbox.message")?;
    terminal.draw(format_args!("filling the table with {rows} rows"));
    client.execute(
        "select count(outbox.enqueue($1::text, 'key-' || n % $2::bigint, rpad(n::text, $3::integer, '.')))
         from generate_series(0, $4::bigint - 1) n",
        &[&topic, &(KEYS as i64), &(VALUE_BYTES as i32), &(rows as i64)],
    )?;
    client.batch_execute("analyze outbox.message; checkpoint")?;
    let consumer = Consumer::follow(&servers.broker.bootstrap(), &[topic])?;
    ensure!(consumer.count()? == 0, "the relay published while it was disabled");
    let relay = servers.relay(&mut client)?;

    let since = Instant::now();
    servers.cluster.set("outbox_relay.enabled", "on")?;
    loop {
        let published = consumer.count()?;
        *memory = process::anonymous_memory(relay)?.max(*memory);
        terminal.draw(format_args!("draining: {published} of {rows}"));
        if published >= rows {
            break;
        }
        if since.elapsed() > AT_MOST {
            bail!("only {published} of {rows} rows were drained in {AT_MOST:?}");
        }
        thread::sleep(LOOK);
    }
    // All acknowledged by the broker; now the rows must go.
    wait::until_true("outbox.message is empty", AT_MOST, || is_empty(&mut client))?;
    let took = since.elapsed();
    terminal.wipe();
    Ok(took)
}

fn is_empty(client: &mut Client) -> Result<bool> {
    Ok(client.query_one("select not exists (select from outbox.message)", &[])?.get(0))
}

/// Enables or disables the relay and waits until it says so.
pub fn enable(servers: &Servers, client: &mut Client, on: bool) -> Result<()> {
    servers.cluster.set("outbox_relay.enabled", if on { "on" } else { "off" })?;
    wait::until_true(format_args!("the relay is {}", if on { "enabled" } else { "disabled" }), AT_MOST, || {
        let row = client.query_opt("select state from outbox.pg_stat_relay", &[])?;
        let state: Option<String> = row.and_then(|row| row.get(0));
        Ok(state.is_some_and(|state| if on { state == "idle" } else { state == "disabled" }))
    })
}

fn require_count(servers: &Servers, topic: &str, rows: u64) -> Result<()> {
    let count = Consumer::follow(&servers.broker.bootstrap(), &[topic])?.count()?;
    ensure!(count == rows, "the topic holds {count} records, {rows} were expected");
    Ok(())
}

/// Reads the whole topic: every row once, no other, and each key in order.
fn read_back(terminal: &Terminal, servers: &Servers, topic: &str, rows: u64) -> Result<()> {
    terminal.draw("reading all of it back");
    let mut consumer = Consumer::follow(&servers.broker.bootstrap(), &[topic])?;
    let mut ids = HashSet::with_capacity(rows as usize);
    let mut last: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut seen = 0;
    while seen < rows {
        let record = consumer.next(AT_MOST)?.with_context(|| format!("only {seen} of {rows} records could be read"))?;
        seen += 1;
        ensure!(ids.insert(record.message_id()?), "{record:?} is a duplicate");
        let row: u64 = record.text().trim_end_matches('.').parse().context("the value is no row number")?;
        let key = record.key.context("a record without a key")?;
        ensure!(key == raw::key(row).into_bytes(), "row {row} has another key");
        if let Some(before) = last.insert(key, row) {
            ensure!(before < row, "row {row} came after row {before} of the same key");
        }
    }
    terminal.wipe();
    terminal.good(format_args!("read {rows} records back: 0 missing, 0 invented, 0 duplicates, order per key right"));
    Ok(())
}
