//! G3: rows of one bucket are published in id order; with writers that lock their row that is commit order per key.

use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::wait;

use crate::scene::{DATABASE, PATIENCE, Scene, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            order_per_key_holds_with_eight_writers_that_lock_their_row,
            order_per_key_holds_with_small_batches,
            order_per_key_holds_when_lower_ids_commit_later,
            order_per_key_holds_while_buckets_change_hands,
            order_per_key_holds_while_the_table_is_rewritten,
    ]
}

const MESSAGES: u64 = 5_000;

fn order_per_key_holds_with_eight_writers_that_lock_their_row(scene: &mut Scene) -> Result<()> {
    order_holds(scene, &[])
}

fn order_per_key_holds_with_small_batches(scene: &mut Scene) -> Result<()> {
    order_holds(scene, &[("outbox_relay.batch_size", "7")])
}

/// Few keys, so that the writers really wait for one another.
fn order_holds(scene: &mut Scene, settings: &[(&str, &str)]) -> Result<()> {
    let mut client = scene.start(settings)?;
    let topic = scene.topic(4)?;
    let plan = Plan { orders: 5, until_committed: Some(MESSAGES), ..Plan::new(DATABASE, &topic) };
    let tally = Load::start(scene.cluster.address(), &plan)?.finish()?;
    tally.check(&load::committed(&mut client)?)?;
    ensure!(!tally.rolled_back.is_empty(), "the load rolled nothing back");
    wait_until_published(&mut client, PATIENCE)?;
    scene.compare(&mut client, &topic)?.require_exactly_once()
}

/// Transactions of other orders carry the position of the bucket past the ids of one that lingers. When it commits, the
/// next change of its order follows at once, and must not be seen without it.
fn order_per_key_holds_when_lower_ids_commit_later(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    let plan = Plan {
        writers: 24,
        orders: 16,
        linger: Duration::from_millis(10),
        until_committed: Some(4 * MESSAGES),
        ..Plan::new(DATABASE, &topic)
    };
    let tally = Load::start(scene.cluster.address(), &plan)?.finish()?;
    tally.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.compare(&mut client, &topic)?.require_exactly_once()
}

/// A handover by the rules is no fault: the old owner waits for its reports before the new one begins.
fn order_per_key_holds_while_buckets_change_hands(scene: &mut Scene) -> Result<()> {
    // Short renewals, for handovers happen at them.
    let mut client =
        scene.start(&[("outbox_relay.lease_duration", "6s"), ("outbox_relay.lease_renew_interval", "500ms")])?;
    let topic = scene.topic(4)?;
    let load = Load::start(scene.cluster.address(), &Plan { writers: 4, ..Plan::new(DATABASE, &topic) })?;
    for workers in [3, 1, 4, 2] {
        scene.cluster.set("outbox_relay.workers", &workers.to_string())?;
        wait_until_shared(&mut client, workers, PATIENCE)?;
        load.wait_for_more(300, PATIENCE)?;
    }
    load.stop()?.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.compare(&mut client, &topic)?.require_exactly_once()
}

/// A rewrite gives all rows to a new transaction: they are published again, but none is hidden from a relay that waited for it.
fn order_per_key_holds_while_the_table_is_rewritten(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("canceling statement due to lock timeout");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    let load = Load::start(scene.cluster.address(), &Plan { orders: 5, ..Plan::new(DATABASE, &topic) })?;
    // It gives way to writers before one of them is taken for part of a deadlock.
    client.batch_execute("set lock_timeout = '100ms'")?;
    for _ in 0..20 {
        for rewrite in ["alter table outbox.message set unlogged", "alter table outbox.message set logged"] {
            wait::until_true("the table is rewritten", PATIENCE, || Ok(client.batch_execute(rewrite).is_ok()))?;
        }
        load.wait_for_more(50, PATIENCE)?;
    }
    client.batch_execute("reset lock_timeout")?;
    load.stop()?.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.compare(&mut client, &topic)?.require_at_least_once()
}
