//! Processes die; nothing is lost, nothing is invented, and all is back by itself.

use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::process;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{DATABASE, PATIENCE, Scene, kill_a_relay, relays, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            sigkill_of_the_postmaster_loses_and_invents_nothing,
            sigkill_of_a_relay_restarts_the_server_and_loses_nothing,
            terminated_relay_is_back_within_seconds_and_loses_nothing,
            terminated_launcher_is_back_within_seconds,
            relay_that_crashes_at_any_point_loses_nothing,
            restart_under_load_loses_nothing,
    ]
}

const SECONDS: Duration = Duration::from_secs(5);

fn start_load(scene: &Scene, topic: &str) -> Result<Load> {
    let load = Load::start(scene.cluster.address(), &Plan { writers: 4, ..Plan::new(DATABASE, topic) })?;
    load.wait_for(500, PATIENCE)?;
    Ok(load)
}

/// The writers go on; then all that was committed is in Kafka, and nothing else.
fn require_nothing_lost(scene: &Scene, load: Load, topic: &str) -> Result<()> {
    load.wait_for_more(500, PATIENCE)?;
    let tally = load.stop()?;
    let mut client = scene.session()?;
    tally.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.compare(&mut client, topic)?.require_at_least_once()
}

fn sigkill_of_the_postmaster_loses_and_invents_nothing(scene: &mut Scene) -> Result<()> {
    scene.start(&[("outbox_relay.workers", "2")])?;
    scene.expect_crash();
    let topic = scene.topic(4)?;
    let load = start_load(scene, &topic)?;
    for _ in 0..3 {
        scene.cluster.kill()?;
        scene.cluster.start()?;
        load.wait_for_more(200, PATIENCE)?;
    }
    require_nothing_lost(scene, load, &topic)
}

fn sigkill_of_a_relay_restarts_the_server_and_loses_nothing(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("outbox_relay.workers", "2")])?;
    scene.expect_crash();
    let topic = scene.topic(4)?;
    let load = start_load(scene, &topic)?;
    wait_until_shared(&mut client, 2, PATIENCE)?;
    let mut client = kill_a_relay(scene, client)?;
    // Leases of before the crash are void: nobody waits until they expire.
    wait_until_shared(&mut client, 2, SECONDS)?;
    require_nothing_lost(scene, load, &topic)
}

fn terminated_relay_is_back_within_seconds_and_loses_nothing(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("FATAL:  terminating background worker \"outbox_relay relay");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    let load = start_load(scene, &topic)?;
    for _ in 0..3 {
        let victim = wait_until_shared(&mut client, 1, PATIENCE)?[0].pid;
        client.execute("select pg_terminate_backend($1)", &[&victim])?;
        wait::until("another relay holds all buckets", SECONDS, || {
            let relays = relays(&mut client)?;
            let back = matches!(&relays[..], [relay] if relay.pid != victim && relay.leased_buckets == 8);
            Ok(if back { Seen::Reached(()) } else { Seen::NotYet(format!("{relays:?}")) })
        })?;
        load.wait_for_more(200, PATIENCE)?;
    }
    require_nothing_lost(scene, load, &topic)
}

fn launcher(client: &mut Client) -> Result<Option<i32>> {
    let row = client.query_opt("select pid from pg_stat_activity where backend_type = 'outbox_relay launcher'", &[])?;
    Ok(row.map(|row| row.get(0)))
}

fn terminated_launcher_is_back_within_seconds(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("FATAL:  terminating background worker \"outbox_relay launcher\"");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    let load = start_load(scene, &topic)?;
    let victim = launcher(&mut client)?;
    ensure!(victim.is_some(), "there is no launcher");
    client.execute("select pg_terminate_backend($1)", &[&victim])?;
    wait::until("another launcher runs", Duration::from_secs(15), || {
        let now = launcher(&mut client)?;
        Ok(if now.is_some() && now != victim { Seen::Reached(()) } else { Seen::NotYet(format!("{now:?}")) })
    })?;
    // It does its work: it knows the relays that run and adds one.
    scene.cluster.set("outbox_relay.workers", "2")?;
    wait_until_shared(&mut client, 2, PATIENCE)?;
    require_nothing_lost(scene, load, &topic)
}

/// A relay reads what it was told to reload between two heartbeats; the first may have been under way.
fn wait_until_settings_are_read(client: &mut Client, relay: i32) -> Result<()> {
    let mut since: SystemTime = client.query_one("select clock_timestamp()", &[])?.get(0);
    for _ in 0..2 {
        since = wait::until(format!("relay {relay} says that it lives"), PATIENCE, || {
            let statement = "select last_seen from outbox.relay where pid = $1 and last_seen > $2";
            let seen = client.query_opt(statement, &[&relay, &since])?;
            Ok(seen.map_or(Seen::NotYet(format!("not since {since:?}")), |row| Seen::Reached(row.get(0))))
        })?;
    }
    Ok(())
}

/// The points are those of src/postgres/test_hooks.rs.
fn relay_that_crashes_at_any_point_loses_nothing(scene: &mut Scene) -> Result<()> {
    const POINTS: [&str; 7] = [
        "in_acquire",
        "after_acquire",
        "after_submit",
        "before_acknowledge",
        "in_acknowledge",
        "after_acknowledge",
        "in_release",
    ];
    scene.expect_complaint("FATAL:  crash wanted by a test: ");
    scene.cluster.use_test_hooks()?;
    // Leases outlast the test: who waits for their end does not come back in time.
    let mut client = scene.start(&[
        ("outbox_relay.workers", "4"),
        ("outbox_relay.lease_duration", "10min"),
        ("outbox_relay.lease_renew_interval", "500ms"),
    ])?;
    let topic = scene.topic(4)?;
    let load = start_load(scene, &topic)?;
    for point in POINTS {
        // By turns, since a worker that crashes again and again is started ever later.
        let victim = wait_until_shared(&mut client, 4, PATIENCE)?[0].pid;
        scene.cluster.set("outbox_relay.test_crash", &format!("{point}:{victim}"))?;
        if point == "in_release" {
            // A stop that comes first would be in order, for nothing is read any more then.
            wait_until_settings_are_read(&mut client, victim)?;
            client.execute("select pg_terminate_backend($1)", &[&victim])?;
        }
        wait::until_true(format!("relay {victim} has crashed {point}"), PATIENCE, || Ok(!process::alive(victim)))?;
        wait::until(format!("all buckets have another relay after the crash {point}"), SECONDS, || {
            let relays = relays(&mut client)?;
            let held: i64 = relays.iter().filter(|relay| relay.pid != victim).map(|relay| relay.leased_buckets).sum();
            Ok(if held == 8 { Seen::Reached(()) } else { Seen::NotYet(format!("{relays:?}")) })
        })?;
        load.wait_for_more(100, PATIENCE)?;
    }
    let log = scene.cluster.log()?;
    for point in POINTS {
        let crashes = log.lines_with("crash wanted by a test: ").filter(|line| line.ends_with(point)).count();
        ensure!(crashes == 1, "{crashes} crashes {point}");
    }
    wait_until_shared(&mut client, 4, PATIENCE)?;
    require_nothing_lost(scene, load, &topic)
}

fn restart_under_load_loses_nothing(scene: &mut Scene) -> Result<()> {
    scene.start(&[])?;
    let topic = scene.topic(4)?;
    let load = start_load(scene, &topic)?;
    scene.cluster.restart()?;
    let mut client = scene.session()?;
    wait_until_shared(&mut client, 1, SECONDS)?;
    require_nothing_lost(scene, load, &topic)
}
