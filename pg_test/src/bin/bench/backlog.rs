//! A backlog of messages, and what it takes the relay to turn it into acknowledged records and an empty table.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::cluster;
use outbox_relay_pg_test::process;
use postgres::{Client, Statement};

use crate::Bench;
use crate::fill::{self, Filler};
use crate::memory;
use crate::messages::{Headers, Messages};
use crate::read_back;
use crate::results::Results;
use crate::servers::Servers;

/// Between two looks, at the counters in shared memory and at the memory of the relays.
const LOOK: Duration = Duration::from_millis(10);
/// A drain that is slower than both has failed: slow enough for a machine that has other things to do.
const MESSAGES_A_SECOND_AT_LEAST: u64 = 2_000;
const BYTES_A_SECOND_AT_LEAST: u64 = 10_000_000;
/// For its first moments.
const BEGIN_AT_MOST: Duration = Duration::from_secs(60);

/// What a drain took.
pub struct Drained {
    /// From the moment that it may begin until all messages are acknowledged and removed.
    pub took: Duration,
    /// Processor time of the relays meanwhile.
    pub processor: Duration,
    /// The most anonymous memory that one of the relays had meanwhile, in bytes.
    pub memory: u64,
    /// How many messages were removed when, by the looks.
    progress: Vec<(Duration, u64)>,
    /// The part of the messages that the least busy relay removed: 1 of one relay, a quarter at best of four.
    pub smallest_part: f64,
}

impl Drained {
    /// Messages a second.
    pub fn rate(&self, messages: &Messages) -> f64 {
        messages.count as f64 / self.took.as_secs_f64()
    }

    /// Messages a second from when `first` were removed until `past` were.
    pub fn rate_between(&self, first: u64, past: u64) -> Result<f64> {
        let at = |count| self.progress.iter().find(|(_, removed)| *removed >= count).context("it was not drained");
        let ((begun, first), (ended, past)) = (at(first)?, at(past)?);
        ensure!(begun < ended, "the drain was too short to be told in parts");
        Ok((past - first) as f64 / (*ended - *begun).as_secs_f64())
    }
}

/// Fills the outbox while the relays are disabled, lets them drain it, and reads the topic back. The topic is made for it and
/// deleted afterwards; the relays are disabled again.
pub fn drain(bench: &Bench<'_>, results: &mut Results, messages: &Messages) -> Result<Drained> {
    drain_on(bench, bench.servers, results, messages)
}

/// The same on other servers than those of the benchmark.
pub fn drain_on(bench: &Bench<'_>, servers: &Servers, results: &mut Results, messages: &Messages) -> Result<Drained> {
    let topic = &bench.new_topic("relay", messages.partitions)?;
    let mut client = servers.session()?;
    servers.enable(false)?;
    servers.vacuum()?;
    bench.terminal.draw(format_args!("{topic}: enqueueing {} messages", messages.count));
    fill::outbox(servers.session()?, topic, messages)?;
    // Of the fill nothing is left to be written while the clock runs; the price is a full image of each page that is touched.
    client.batch_execute("analyze outbox.message; checkpoint").context("analyze and checkpoint")?;
    memory::touch(messages)?;
    bench.terminal.draw(format_args!("{topic}: draining {} messages", messages.count));
    let drained = watch(servers, &mut client, messages, |client| {
        client.batch_execute("alter system set outbox_relay.enabled = on").context("alter system")?;
        let since = Instant::now();
        cluster::reload(client)?;
        Ok(since)
    })?;
    servers.enable(false)?;
    read_topic_back(bench, servers, results, topic, messages)?;
    Ok(drained)
}

/// The same, but all messages are committed at once, before the eyes of a relay that runs and has nothing to do; it runs on
/// afterwards. The clock starts with the commit.
pub fn drain_of_one_commit(bench: &Bench<'_>, results: &mut Results, messages: &Messages) -> Result<Drained> {
    let servers = bench.servers;
    let topic = &bench.new_topic("relay", messages.partitions)?;
    let mut client = servers.session()?;
    servers.vacuum()?;
    servers.enable(true)?;
    bench.terminal.draw(format_args!("{topic}: enqueueing {} messages in one transaction", messages.count));
    let mut filler = Filler::new(servers.session()?, messages)?;
    filler.uncommitted(topic, messages)?;
    memory::touch(messages)?;
    let drained = watch(servers, &mut client, messages, |_| {
        let since = Instant::now();
        filler.commit()?;
        Ok(since)
    })?;
    read_topic_back(bench, servers, results, topic, messages)?;
    Ok(drained)
}

/// Reads a topic back that holds all messages, and deletes it.
pub fn read_topic_back(
    bench: &Bench<'_>,
    servers: &Servers,
    results: &mut Results,
    topic: &str,
    messages: &Messages,
) -> Result<()> {
    bench.terminal.draw(format_args!("{topic}: reading {} messages back", messages.count));
    results.records_read_back += read_back::check(&servers.broker, topic, messages, Headers::MessageId)?;
    servers.broker.delete_topic(topic)?;
    bench.terminal.wipe();
    Ok(())
}

/// Watches a drain until all messages are removed. What begins it tells since when the clock runs.
fn watch(
    servers: &Servers,
    client: &mut Client,
    messages: &Messages,
    begin: impl FnOnce(&mut Client) -> Result<Instant>,
) -> Result<Drained> {
    let count = messages.count;
    let bytes = count * messages.value_bytes as u64;
    let seconds = count / MESSAGES_A_SECOND_AT_LEAST + bytes / BYTES_A_SECOND_AT_LEAST;
    let at_most = BEGIN_AT_MOST + Duration::from_secs(seconds);
    let relays = servers.relays()?;
    ensure!(!relays.is_empty(), "there is no relay");
    let counters = counters(client)?;
    let before = removed(client, &counters)?;
    let (mut memory, mut progress) = (0, Vec::new());
    let processor = processor_time(&relays)?;
    let since = begin(client)?;
    let (took, parts) = loop {
        let now = removed(client, &counters)?;
        let took = since.elapsed();
        for relay in &relays {
            memory = process::anonymous_memory(*relay)?.max(memory);
        }
        ensure!(now.len() == before.len(), "of {} relays {} are left", before.len(), now.len());
        let parts: Vec<u64> = now.iter().zip(&before).map(|(now, before)| (now - before) as u64).collect();
        let done: u64 = parts.iter().sum();
        progress.push((took, done));
        if done >= count {
            break (took, parts);
        }
        ensure!(took < at_most, "only {done} of {count} messages were drained in {at_most:?}");
        thread::sleep(LOOK);
    };
    let processor = processor_time(&relays)? - processor;
    let empty: bool = client.query_one("select not exists (select from outbox.message)", &[])?.get(0);
    ensure!(empty, "{count} messages were counted as removed, but outbox.message is not empty");
    let smallest_part = parts.into_iter().min().unwrap_or_default() as f64 / count as f64;
    Ok(Drained { took, processor, memory, progress, smallest_part })
}

/// What all relays have removed since they started.
pub fn removed_so_far(client: &mut Client) -> Result<i64> {
    let counters = counters(client)?;
    Ok(removed(client, &counters)?.into_iter().sum())
}

fn counters(client: &mut Client) -> Result<Statement> {
    client
        .prepare("select messages from outbox.relay_status() where pid is not null order by pid")
        .context("could not ask for the counters of the relays")
}

/// What each relay has removed since it started.
fn removed(client: &mut Client, counters: &Statement) -> Result<Vec<i64>> {
    let rows = client.query(counters, &[]).context("could not read the counters of the relays")?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn processor_time(relays: &[i32]) -> Result<Duration> {
    relays.iter().map(|relay| process::processor_time(*relay)).sum()
}
