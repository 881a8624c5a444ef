//! A broker outage is a delay, never an error: writers notice nothing, memory is bounded, and it resumes by itself.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::process::anonymous_memory;

use crate::scene::{DATABASE, PATIENCE, Scene, relay_processes, soak, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Own, Any):
            broker_that_is_stopped_for_a_while_is_only_a_delay,
            broker_that_freezes_for_a_while_is_only_a_delay,
    ]
}

const MEMORY_MAX: u64 = 256 << 20;

/// No transaction of a writer may take so long: it would have waited for Kafka.
const UNNOTICED: Duration = Duration::from_secs(2);

/// The length of an outage is the one length of time here that is meant, not waited for.
fn outage() -> Duration {
    Duration::from_secs(if soak() { 120 } else { 30 })
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
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    // Large values, so that a relay that reads on while it can't send would be seen.
    let plan = Plan { writers: 4, note_bytes: 4_000, rest: Duration::from_millis(1), ..Plan::new(DATABASE, &topic) };
    let load = Load::start(scene.cluster.address(), &plan)?;
    load.wait_for(500, PATIENCE)?;

    away(scene)?;
    let until = Instant::now() + outage();
    let before = load.committed();
    let mut highest = 0;
    while Instant::now() < until {
        for relay in relay_processes(&mut client)? {
            highest = highest.max(anonymous_memory(relay)?);
        }
        thread::sleep(Duration::from_millis(50));
    }
    let meanwhile = load.committed() - before;
    back(scene)?;
    load.wait_for_more(200, PATIENCE)?;
    let tally = load.stop()?;
    let since = Instant::now();
    wait_until_published(&mut client, PATIENCE)?;
    scene.say(format_args!(
        "{meanwhile} messages committed in {:?} without a broker, slowest transaction {:?}, RssAnon at most {} MB, all published {:?} after the last commit",
        outage(),
        tally.slowest,
        highest >> 20,
        since.elapsed()
    ));
    ensure!(meanwhile > 500, "only {meanwhile} messages were committed during the outage");
    ensure!(tally.lost_connections == 0 && tally.slowest < UNNOTICED, "a writer noticed: {:?}", tally.slowest);
    ensure!(highest < MEMORY_MAX, "the relay used {highest} bytes");
    tally.check(&load::committed(&mut client)?)?;
    scene.compare(&mut client, &topic)?.require_at_least_once()
}
