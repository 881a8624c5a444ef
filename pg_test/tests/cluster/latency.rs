//! A commit wakes the relay; polling is only the safety net.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::scene::{PATIENCE, Scene, enqueue, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![(Shared, Any): commit_on_an_idle_system_arrives_without_polling]
}

/// Very far from poll_interval and far from any benchmark: this is about the bell, not about speed.
const SOON: Duration = Duration::from_millis(500);

fn commit_on_an_idle_system_arrives_without_polling(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("outbox_relay.poll_interval", "60s"), ("outbox_relay.workers", "2")])?;
    let topic = scene.topic(1)?;
    let mut consumer = scene.follow(&topic)?;
    wait_until_shared(&mut client, 2, PATIENCE)?;
    // The first message of a topic waits for its metadata.
    enqueue(&mut client, &topic, "key", "warm")?;
    consumer.next(PATIENCE)?.context("the first message did not arrive")?;

    let mut waits = Vec::new();
    for number in 0..50 {
        let id = enqueue(&mut client, &topic, &format!("key-{number}"), "v")?;
        let since = Instant::now();
        let record = consumer.next(PATIENCE)?.context("a message did not arrive")?;
        waits.push(since.elapsed());
        ensure!(record.message_id()? == id, "another message arrived");
    }
    waits.sort_unstable();
    let (median, worst) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    scene.say(format_args!("commit to consumer: median {median:?}, worst {worst:?}"));
    ensure!(worst < SOON, "one commit took {worst:?} to arrive");
    Ok(())
}
