//! G5: one publisher per bucket, fair shares, and no bucket without one for long.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{
    DATABASE, PATIENCE, Scene, enqueue, relay_processes, relays, wait_until_published, wait_until_shared,
};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            two_workers_share_the_buckets_and_one_that_is_terminated_is_replaced_at_once,
            four_workers_share_the_buckets_and_the_others_take_over_from_one_that_leaves,
            more_workers_than_buckets_leave_the_rest_on_standby,
            messages_in_buckets_that_no_relay_can_own_are_shouted_and_hold_up_nobody,
    ]
}

/// Takeover from a relay that died while the server lives: the lease has many seconds to run.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Each bucket has one unexpired lease, all of running relays, and each of those has at least one.
fn require_one_owner_a_bucket(client: &mut Client, relay_count: usize) -> Result<()> {
    let rows = client.query(
        "select l.bucket, r.pid
         from outbox.lease l join outbox.relay r using (relay_id)
         where l.expires_at > clock_timestamp() and r.stopped_at is null
         order by l.bucket",
        &[],
    )?;
    let buckets: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    ensure!(buckets == (0..8).collect::<Vec<_>>(), "leased buckets: {buckets:?}");
    let owners: HashSet<i32> = rows.iter().map(|row| row.get(1)).collect();
    let running: HashSet<i32> = relay_processes(client)?.into_iter().collect();
    ensure!(owners == running && owners.len() == relay_count, "owners {owners:?}, running {running:?}");
    Ok(())
}

fn two_workers_share_the_buckets_and_one_that_is_terminated_is_replaced_at_once(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("FATAL:  terminating background worker \"outbox_relay relay");
    let mut client = scene.start(&[("outbox_relay.workers", "2")])?;
    let topic = scene.topic(4)?;
    let shared = wait_until_shared(&mut client, 2, PATIENCE)?;
    require_one_owner_a_bucket(&mut client, 2)?;
    let load = Load::start(scene.cluster.address(), &Plan { writers: 4, ..Plan::new(DATABASE, &topic) })?;
    load.wait_for(500, PATIENCE)?;

    let victim = shared[0].pid;
    client.execute("select pg_terminate_backend($1)", &[&victim])?;
    wait::until("all buckets are leased by other processes", AT_ONCE, || {
        let relays = relays(&mut client)?;
        let held: i64 = relays.iter().filter(|relay| relay.pid != victim).map(|relay| relay.leased_buckets).sum();
        Ok(if held == 8 { Seen::Reached(()) } else { Seen::NotYet(format!("{relays:?}")) })
    })?;
    wait_until_shared(&mut client, 2, PATIENCE)?;
    require_one_owner_a_bucket(&mut client, 2)?;

    load.wait_for_more(500, PATIENCE)?;
    load.stop()?.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.compare(&mut client, &topic)?.require_at_least_once()
}

fn four_workers_share_the_buckets_and_the_others_take_over_from_one_that_leaves(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("outbox_relay.workers", "4")])?;
    let topic = scene.topic(4)?;
    wait_until_shared(&mut client, 4, PATIENCE)?;
    require_one_owner_a_bucket(&mut client, 4)?;
    let load = Load::start(scene.cluster.address(), &Plan { writers: 4, ..Plan::new(DATABASE, &topic) })?;
    load.wait_for(500, PATIENCE)?;

    scene.cluster.set("outbox_relay.workers", "3")?;
    wait_until_shared(&mut client, 3, PATIENCE)?;
    require_one_owner_a_bucket(&mut client, 3)?;

    load.wait_for_more(500, PATIENCE)?;
    load.stop()?.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    // Leaving is no fault.
    scene.compare(&mut client, &topic)?.require_exactly_once()
}

fn more_workers_than_buckets_leave_the_rest_on_standby(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("outbox_relay.workers", "10")])?;
    wait_until_shared(&mut client, 10, PATIENCE)?;
    wait::until("eight relays own one bucket each and two are on standby", PATIENCE, || {
        let relays = relays(&mut client)?;
        let owners = relays.iter().filter(|relay| relay.leased_buckets == 1).count();
        let standbys = relays.iter().filter(|relay| relay.state == "standby").count();
        Ok(if (owners, standbys) == (8, 2) { Seen::Reached(()) } else { Seen::NotYet(format!("{relays:?}")) })
    })
}

/// Somebody has written rows by hand. Each round sees them, and the log has them once a minute, not once a round.
fn messages_in_buckets_that_no_relay_can_own_are_shouted_and_hold_up_nobody(scene: &mut Scene) -> Result<()> {
    const SHOUT: &str = "messages lie in buckets that no relay can own";
    scene.expect_complaint(SHOUT);
    let mut client = scene.start(&[("outbox_relay.lease_renew_interval", "200ms")])?;
    let topic = scene.topic(1)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let insert = "insert into outbox.message (bucket, topic, message_id) values (500, $1, gen_random_uuid())";
    for _ in 0..3 {
        client.execute(insert, &[&topic])?;
    }
    wait::until("the log tells of them", PATIENCE, || {
        let said = scene.cluster.log()?.lines_with(SHOUT).count();
        Ok(if said > 0 { Seen::Reached(()) } else { Seen::NotYet("nothing".into()) })
    })?;
    let state = "select state, backlog from outbox.pg_stat_bucket where bucket = 500";
    let row = client.query_one(state, &[])?;
    let (state, backlog): (String, i64) = (row.get(0), row.get(1));
    ensure!((state.as_str(), backlog) == ("unowned", 3), "the view says {state}, {backlog}");

    // Ten rounds later the others are as they were.
    let seen = "select last_seen from outbox.relay where stopped_at is null";
    let ten_rounds: SystemTime = client.query_one(seen, &[])?.get::<_, SystemTime>(0) + Duration::from_secs(2);
    wait::until_true("the relay has made ten more rounds", PATIENCE, || {
        Ok(client.query_one(seen, &[])?.get::<_, SystemTime>(0) > ten_rounds)
    })?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait::until_true("only the rows without a relay are left", PATIENCE, || {
        let left = client.query_one("select count(*) from outbox.message where bucket < 8", &[])?;
        Ok(left.get::<_, i64>(0) == 0)
    })?;
    ensure!(scene.follow(&topic)?.rest(PATIENCE)?.len() == 1, "rows of no bucket were published");
    let log = scene.cluster.log()?;
    let said: Vec<&str> = log.lines_with(SHOUT).collect();
    ensure!(said.len() == 1, "said {} times", said.len());
    let detail = log.lines_with("buckets are numbered 0 to 7").next();
    ensure!(detail.is_some(), "the log names neither rows nor buckets:\n{}", log.tail(10));

    // The cure that the hint names.
    client.execute("update outbox.message set bucket = 0 where bucket = 500", &[])?;
    wait_until_published(&mut client, PATIENCE)
}
