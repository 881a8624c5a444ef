//! A standby publishes nothing and runs no relay; once it is promoted it publishes by itself. Leases of the old primary's
//! relays end by time only, for the old primary may still live.

use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::cluster::Cluster;
use outbox_relay_pg_test::load::{self, Load, Plan, Tally};
use outbox_relay_pg_test::process::{self, Signal};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{DATABASE, PATIENCE, Scene, enqueue, relay_processes, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            standby_publishes_nothing_until_it_is_promoted_and_then_by_itself,
            standby_is_promoted_beside_a_primary_that_is_frozen_and_wakes,
    ]
}

/// Long enough for a promotion, with much of it left.
const LEASE: Duration = Duration::from_secs(6);
const RENEWAL: Duration = Duration::from_secs(1);
/// Relays look once in a renewal.
const AFTER_EXPIRY: Duration = Duration::from_secs(3);

/// A primary whose relays publish under load, and its standby. What is confirmed, or visible at all, is on the standby too.
fn pair(scene: &mut Scene, topic: &str) -> Result<(Cluster, Load)> {
    // A primary that is gone, and the promotion, end what streams from it.
    scene.expect_complaint(" walreceiver FATAL:  ");
    let mut client = scene.start(&[
        ("outbox_relay.workers", "2"),
        ("outbox_relay.lease_duration", &format!("{}s", LEASE.as_secs())),
        ("outbox_relay.lease_renew_interval", &format!("{}s", RENEWAL.as_secs())),
    ])?;
    wait_until_shared(&mut client, 2, PATIENCE)?;
    let mut standby = scene.cluster.copy_as_standby(&scene.directory().join("standby"))?;
    standby.start()?;
    scene.cluster.set("synchronous_standby_names", "*")?;
    wait::until_true("the standby is synchronous", PATIENCE, || {
        let statement = "select exists (select from pg_stat_replication where sync_state = 'sync')";
        Ok(client.query_one(statement, &[])?.get(0))
    })?;
    let load = Load::start(scene.cluster.address(), &Plan { writers: 4, ..Plan::new(DATABASE, topic) })?;
    load.wait_for(500, PATIENCE)?;
    Ok((standby, load))
}

fn require_no_worker(standby: &Cluster) -> Result<()> {
    let statement =
        "select pg_is_in_recovery(), count(*) from pg_stat_activity where backend_type like 'outbox_relay%'";
    let row = standby.connect(DATABASE)?.query_one(statement, &[])?;
    let (in_recovery, workers): (bool, i64) = (row.get(0), row.get(1));
    ensure!(in_recovery && workers == 0, "in recovery: {in_recovery}, workers of ours: {workers}");
    Ok(())
}

/// A lease as the table has it.
struct Lease {
    relay_id: String,
    token: i64,
    expires_at: SystemTime,
}

fn leases(client: &mut Client) -> Result<BTreeMap<i32, Lease>> {
    let statement = "select bucket, relay_id, token, expires_at from outbox.lease where relay_id is not null";
    let rows = client.query(statement, &[])?;
    Ok(rows
        .iter()
        .map(|row| (row.get(0), Lease { relay_id: row.get(1), token: row.get(2), expires_at: row.get(3) }))
        .collect())
}

/// Promotes, and sees each lease of the old primary's relays end by time and go over soon after.
fn promote(scene: &Scene, standby: &Cluster) -> Result<Client> {
    let mut client = standby.connect(DATABASE)?;
    let old = leases(&mut client)?;
    ensure!(old.len() == 8, "{} of 8 leases are held", old.len());
    let promoted: bool = client.query_one("select pg_promote(wait => true)", &[])?.get(0);
    ensure!(promoted, "the standby was not promoted");
    let row = client.query_one("select clock_timestamp(), pg_is_in_recovery()", &[])?;
    let now: SystemTime = row.get(0);
    let first = old.values().map(|lease| lease.expires_at).min().context("there are leases")?;
    let left = first.duration_since(now).context("the promotion outlasted the leases")?;

    let mut waited = Duration::ZERO;
    let mut taken = BTreeMap::new();
    wait::until("relays of the new primary hold all buckets", PATIENCE, || {
        let now: SystemTime = client.query_one("select clock_timestamp()", &[])?.get(0);
        for (bucket, lease) in leases(&mut client)? {
            let before = &old[&bucket];
            if lease.relay_id == before.relay_id {
                ensure!(lease.token == before.token, "somebody wrote a lease of the old primary's");
            } else if taken.insert(bucket, lease.relay_id).is_none() {
                // A lease that was renewed since was claimed later than this.
                let claimed = lease.expires_at - LEASE;
                ensure!(claimed >= before.expires_at, "bucket {bucket} was claimed before its lease had ended");
                waited = waited.max(now.duration_since(before.expires_at).unwrap_or_default());
            }
        }
        Ok(if taken.len() == old.len() { Seen::Reached(()) } else { Seen::NotYet(format!("{} of 8", taken.len())) })
    })?;
    scene.say(format_args!(
        "leases had {left:?} to run when the standby was promoted; all were taken {waited:?} after their end"
    ));
    ensure!(waited < AFTER_EXPIRY, "buckets whose leases had ended had nobody for {waited:?}");
    Ok(client)
}

/// The new primary goes on; then all that was committed anywhere is in Kafka.
fn require_nothing_missing(
    scene: &Scene,
    mut tally: Tally,
    client: &mut Client,
    new: &Cluster,
    topic: &str,
) -> Result<()> {
    // Other choices than the first writers made.
    let plan = Plan { writers: 4, until_committed: Some(500), seed: 1000, ..Plan::new(DATABASE, topic) };
    tally.add(Load::start(new.address(), &plan)?.finish()?);
    tally.check(&load::committed(client)?)?;
    wait_until_published(client, PATIENCE)?;
    scene.compare(client, topic)?.require_at_least_once()
}

fn standby_publishes_nothing_until_it_is_promoted_and_then_by_itself(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic(4)?;
    let (standby, load) = pair(scene, &topic)?;
    require_no_worker(&standby)?;
    scene.cluster.kill()?;
    let tally = load.stop()?;
    require_no_worker(&standby)?;
    let published = scene.follow(&topic)?.count()?;
    let mut client = promote(scene, &standby)?;
    let more = scene.follow(&topic)?.count()?;
    scene
        .say(format_args!("{published} records of the old primary, {} by the new one from its rows", more - published));
    ensure!(relay_processes(&mut client)?.len() == 2, "as many relays as before");
    require_nothing_missing(scene, tally, &mut client, &standby, &topic)?;
    drop(client);
    // Its log is looked at in the end.
    drop(mem::replace(&mut scene.cluster, standby));
    Ok(())
}

fn standby_is_promoted_beside_a_primary_that_is_frozen_and_wakes(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic(4)?;
    let (standby, load) = pair(scene, &topic)?;
    // The postmaster first: it starts nothing more, and what ends meanwhile keeps its id.
    process::send(scene.cluster.pid()?, Signal::STOP)?;
    let frozen = scene.cluster.processes()?;
    frozen.iter().try_for_each(|pid| process::send(*pid, Signal::STOP))?;
    let mut client = promote(scene, &standby)?;
    wait_until_published(&mut client, PATIENCE)?;
    let last = enqueue(&mut client, &topic, "of the new primary", "while the old one sleeps")?;
    wait_until_published(&mut client, PATIENCE)?;

    // Awake, its relays find that their leases have ended, by their own clocks, and what they had in their hands is late.
    // The postmaster last: it forgets at once who had ended.
    frozen.iter().rev().try_for_each(|pid| process::send(*pid, Signal::CONT))?;
    wait::until_true("the old primary has noticed", PATIENCE, || {
        Ok(scene.cluster.log()?.lines_with("lost all leases").next().is_some())
    })?;
    scene.cluster.kill()?;
    let mut tally = load.stop()?;
    let records = scene.follow(&topic)?.rest(PATIENCE)?;
    let arrived = records.iter().filter(|record| record.message_id().is_ok_and(|id| id == last)).count();
    ensure!(arrived == 1, "the message of the new primary arrived {arrived} times");
    // What the writers do beside each message.
    tally.committed.insert(last);
    client.execute(
        "insert into order_event values ($1, 'of the new primary', 1, 'while the old one sleeps')",
        &[&last],
    )?;
    require_nothing_missing(scene, tally, &mut client, &standby, &topic)?;
    drop(client);
    drop(mem::replace(&mut scene.cluster, standby));
    Ok(())
}
