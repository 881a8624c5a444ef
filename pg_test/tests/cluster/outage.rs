//! A broker outage is a delay, never an error: writers notice nothing, memory is bounded, and it resumes by itself.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::process::anonymous_memory;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{
    DATABASE, PATIENCE, Scene, enqueue, relay_processes, soak_outage, wait_until_published, wait_until_shared,
};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Own, Any):
            broker_that_is_stopped_for_a_while_is_only_a_delay,
            broker_that_freezes_for_a_while_is_only_a_delay,
            what_is_in_flight_is_bounded_by_settings_that_take_effect_by_a_reload,
            memory_for_many_small_messages_in_flight_is_bounded,
            memory_is_given_back_once_the_relay_has_nothing_to_do,
    ]
}

const MB: u64 = 1 << 20;

/// `max_in_flight_bytes`, as it is by default.
const BYTES: u64 = 32 * MB;

/// What a relay may need besides: the second copy of what is in flight, which is with the client, and itself.
const BASE: u64 = 64 * MB;

/// Memory for `rows` of together `bytes` in flight: a row lies in its batch and with the client, each time with what goes with it.
fn memory_of(rows: u64, bytes: u64) -> u64 {
    2 * bytes + rows * A_ROW
}

/// What goes with a row: numbers, lengths, and its message id as text in a header.
const A_ROW: u64 = 1_000;

/// No transaction of a writer may take so long: it would have waited for Kafka.
const UNNOTICED: Duration = Duration::from_secs(2);

/// Each kind of complaint once a minute; and there are two relays, one after the other.
const LINES_A_MINUTE: u64 = 10;

/// The length of an outage is the one length of time here that is meant, not waited for.
fn outage() -> Duration {
    soak_outage().unwrap_or(Duration::from_secs(30))
}

fn broker_that_is_stopped_for_a_while_is_only_a_delay(scene: &mut Scene) -> Result<()> {
    outage_is_only_a_delay(scene, |scene| scene.broker.stop(), |scene| scene.broker.start())
}

fn broker_that_freezes_for_a_while_is_only_a_delay(scene: &mut Scene) -> Result<()> {
    outage_is_only_a_delay(scene, |scene| scene.broker.freeze(), |scene| scene.broker.thaw())
}

fn outage_is_only_a_delay(
    scene: &mut Scene,
    away: fn(&Scene) -> Result<()>,
    back: fn(&Scene) -> Result<()>,
) -> Result<()> {
    scene.expect_lost_broker();
    scene.expect_complaint("FATAL:  terminating background worker \"outbox_relay relay");
    scene.expect_complaint("outbox_relay relay WARNING:  stopping without releasing leases");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    // Large values, so that a relay that reads on while it can't send would be seen.
    let plan = Plan { writers: 4, note_bytes: 4_000, rest: Duration::from_millis(1), ..Plan::new(DATABASE, &topic) };
    let load = Load::start(scene.cluster.address(), &plan)?;
    load.wait_for(500, PATIENCE)?;

    away(scene)?;
    let since = Instant::now();
    let before = load.committed();
    let (mut highest, mut ended) = (0, false);
    while since.elapsed() < outage() {
        for relay in relay_processes(&mut client)? {
            // One that has just ended uses none.
            highest = highest.max(anonymous_memory(relay).unwrap_or(0));
        }
        // Its successor begins with a backlog, and takes as much in hand as it may.
        if !ended && since.elapsed() > outage() / 2 {
            let state: String = client.query_one("select state from outbox.pg_stat_relay", &[])?.get(0);
            ensure!(state == "waiting for broker", "the relay says that it is {state}");
            ended =
                client.query_one("select bool_and(pg_terminate_backend(pid)) from outbox.pg_stat_relay", &[])?.get(0);
        }
        thread::sleep(Duration::from_millis(50));
    }
    ensure!(highest > BYTES, "only {highest} bytes were used: the relay did not take in hand what it may");
    let meanwhile = load.committed() - before;
    back(scene)?;
    load.wait_for_more(200, PATIENCE)?;
    let tally = load.stop()?;
    let since = Instant::now();
    wait_until_published(&mut client, PATIENCE + outage())?;
    scene.say(format_args!(
        "{meanwhile} messages committed in {:?} without a broker, slowest transaction {:?}, RssAnon at most {} MB, all published {:?} after the last commit",
        outage(),
        tally.slowest,
        highest >> 20,
        since.elapsed()
    ));
    ensure!(meanwhile > 500, "only {meanwhile} messages were committed during the outage");
    ensure!(tally.lost_connections == 0 && tally.slowest < UNNOTICED, "a writer noticed: {:?}", tally.slowest);
    ensure!(highest < BYTES + BASE, "the relay used {highest} bytes");
    tally.check(&load::committed(&mut client)?)?;
    let told = scene.cluster.log()?.lines_with("outbox_relay relay WARNING:  Kafka").count() as u64;
    let told_at_most = LINES_A_MINUTE * (outage().as_secs() / 60 + 1);
    scene.say(format_args!("{told} warnings of {told_at_most} at most"));
    ensure!(told <= told_at_most, "{told} warnings in the server log");
    scene.compare(&mut client, &topic)?.require_at_least_once()
}

/// A relay of so many buckets that has published once, its memory, and a broker that does not answer.
fn many_buckets(scene: &mut Scene, settings: &[(&str, &str)]) -> Result<(Client, String, Growth)> {
    /// A bucket has one batch in flight, so there must be many for much to be in flight.
    const BUCKETS: i32 = 256;
    scene.expect_lost_broker();
    let mut client = scene.start(settings)?;
    let topic = scene.topic(4)?;
    client.query_one("select outbox.set_bucket_count($1)", &[&BUCKETS]).context("set_bucket_count")?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    enqueue(&mut client, &topic, "key", "to open the way")?;
    wait_until_published(&mut client, PATIENCE)?;
    let relay = *relay_processes(&mut client)?.first().context("no relay runs")?;
    let growth = Growth { relay, before: anonymous_memory(relay)?, highest: 0 };
    scene.broker.freeze()?;
    Ok((client, topic, growth))
}

/// What a relay uses more than before.
struct Growth {
    relay: i32,
    before: u64,
    highest: u64,
}

impl Growth {
    /// Waits until it uses no more than so much.
    fn falls_to(&mut self, bytes: u64) -> Result<()> {
        wait::until(format_args!("{bytes} bytes more are used at most"), PATIENCE, || {
            let used = self.look()?;
            Ok(if used <= bytes { Seen::Reached(()) } else { Seen::NotYet(format!("{used} are")) })
        })
    }

    fn look(&mut self) -> Result<u64> {
        let now = anonymous_memory(self.relay)?.saturating_sub(self.before);
        self.highest = self.highest.max(now);
        Ok(now)
    }

    /// Waits until it uses so much, and a while longer: whatever would come on top comes at once.
    fn reaches(&mut self, bytes: u64) -> Result<u64> {
        wait::until(format_args!("{bytes} bytes more are used"), PATIENCE, || {
            let used = self.look()?;
            Ok(if used >= bytes { Seen::Reached(()) } else { Seen::NotYet(format!("{used} are")) })
        })?;
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(50));
            self.look()?;
        }
        Ok(self.highest)
    }
}

const VALUE: u64 = 100_000;

fn what_is_in_flight_is_bounded_by_settings_that_take_effect_by_a_reload(scene: &mut Scene) -> Result<()> {
    const BATCH: u64 = 5;
    // Each allows more than the one before, for what is in flight stays there.
    const STAGES: [(&str, &str, u64); 3] = [
        // Messages, bytes, and how many of these large messages that is.
        ("100000", "1MB", MB / VALUE),
        ("200", "1GB", 200),
        ("200000", "80MB", 80 * MB / VALUE),
    ];
    let (messages, bytes, _) = STAGES[0];
    let (mut client, topic, mut growth) = many_buckets(
        scene,
        &[
            ("outbox_relay.batch_size", &BATCH.to_string()),
            ("outbox_relay.max_in_flight_messages", messages),
            ("outbox_relay.max_in_flight_bytes", bytes),
        ],
    )?;
    client.execute(
        "select count(outbox.enqueue($1::text, 'key-' || n, repeat('x', $2::integer))) from generate_series(1, 3000) n",
        &[&topic, &(VALUE as i32)],
    )?;
    for (messages, bytes, rows) in STAGES {
        // Both by one reload.
        client.batch_execute(&format!("alter system set outbox_relay.max_in_flight_messages = {messages}"))?;
        scene.cluster.set("outbox_relay.max_in_flight_bytes", bytes)?;
        let most = memory_of(rows + BATCH, (rows + BATCH) * VALUE) + 8 * MB;
        // Both copies of them.
        let highest = growth.reaches(2 * rows * VALUE)?;
        scene.say(format_args!("{messages} messages, {bytes}: {} MB used, {} MB allowed", highest / MB, most / MB));
        ensure!(highest <= most, "{highest} bytes used with {messages} messages and {bytes} in flight at most");
    }
    scene.broker.thaw()?;
    wait_until_published(&mut client, PATIENCE)?;
    let arrived = scene.follow(&topic)?.count()?;
    ensure!(arrived == 3_001, "{arrived} messages arrived");
    Ok(())
}

fn memory_for_many_small_messages_in_flight_is_bounded(scene: &mut Scene) -> Result<()> {
    /// Of `max_in_flight_messages` and `batch_size`, as they are by default.
    const MOST: u64 = 100_000 + 5_000;
    let (mut client, topic, mut growth) = many_buckets(scene, &[])?;
    client.execute(
        "select count(outbox.enqueue($1::text, 'key-' || n % 10000, 'small')) from generate_series(1, 200000) n",
        &[&topic],
    )?;
    let highest = growth.reaches(50_000 * A_ROW / 2)?;
    scene.say(format_args!(
        "{} MB used, {} MB allowed, {} a message",
        highest / MB,
        memory_of(MOST, 0) / MB,
        highest / MOST
    ));
    ensure!(highest <= memory_of(MOST, 0), "{highest} bytes used");
    scene.broker.thaw()?;
    wait_until_published(&mut client, PATIENCE)?;
    let arrived = scene.follow(&topic)?.count()?;
    ensure!(arrived == 200_001, "{arrived} messages arrived");
    Ok(())
}

fn memory_is_given_back_once_the_relay_has_nothing_to_do(scene: &mut Scene) -> Result<()> {
    let (mut client, topic, mut growth) = many_buckets(scene, &[])?;
    client.execute(
        "select count(outbox.enqueue($1::text, 'key-' || n, repeat('x', n * 37 % 30000))) from generate_series(1, 20000) n",
        &[&topic],
    )?;
    let highest = growth.reaches(BYTES)?;
    scene.broker.thaw()?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.say(format_args!("{} MB used", highest / MB));
    growth.falls_to(8 * MB)
}
