//! The bucket count is changed while messages are written and published: nothing is lost or invented, and a key keeps its
//! order though its messages lie in two buckets.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{DATABASE, PATIENCE, Scene, enqueue, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            order_holds_while_the_bucket_count_goes_up_and_down_under_load,
            new_buckets_are_leased_at_once_on_an_idle_system,
            changes_of_the_bucket_count_follow_one_another_and_wait_for_writers,
            restored_dump_goes_on_in_order_in_the_middle_of_a_change;
        (Own, Any):
            order_holds_when_the_bucket_count_changes_while_the_broker_is_away,
    ]
}

/// Far from lease_renew_interval and poll_interval, which are 10 s.
const AT_ONCE: Duration = Duration::from_secs(3);

/// What a writer may wait for one try to lock the table, and then some for a busy machine.
const UNNOTICED: Duration = Duration::from_secs(3);

const RELAYS: usize = 2;

fn start(scene: &mut Scene) -> Result<Client> {
    let mut client = scene.start(&[("outbox_relay.workers", "2")])?;
    wait_until_shared(&mut client, RELAYS, PATIENCE)?;
    Ok(client)
}

fn set_bucket_count(client: &mut Client, count: i32) -> Result<String> {
    Ok(client.query_one("select outbox.set_bucket_count($1)", &[&count]).context("set_bucket_count")?.get(0))
}

/// Earlier counts that messages wait for.
fn waited_for(client: &mut Client) -> Result<Vec<i32>> {
    let rows = client.query("select bucket_count from outbox.pg_stat_bucket_change order by fence_id", &[])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn wait_until_forgotten(client: &mut Client) -> Result<()> {
    wait::until("outbox.bucket_change is empty", AT_ONCE, || {
        let left: i64 = client.query_one("select count(*) from outbox.bucket_change", &[])?.get(0);
        Ok(if left == 0 { Seen::Reached(()) } else { Seen::NotYet(format!("{left} changes")) })
    })
}

fn order_holds_while_the_bucket_count_goes_up_and_down_under_load(scene: &mut Scene) -> Result<()> {
    let mut client = start(scene)?;
    let topic = scene.topic(4)?;
    let load = Load::start(scene.cluster.address(), &Plan::new(DATABASE, &topic))?;
    for count in [64, 3, 8, 1024, 8] {
        load.wait_for_more(500, PATIENCE)?;
        let since = Instant::now();
        let said = set_bucket_count(&mut client, count)?;
        let changed = since.elapsed();
        wait_until_shared(&mut client, RELAYS, AT_ONCE)?;
        let shared = since.elapsed();
        wait_until_forgotten(&mut client)?;
        scene.say(format_args!("changed in {changed:?}, leased after {shared:?}: {said}"));
    }
    load.wait_for_more(500, PATIENCE)?;
    let tally = load.stop()?;
    scene.say(format_args!("slowest transaction of a writer {:?}", tally.slowest));
    ensure!(tally.slowest < UNNOTICED, "a writer waited for {:?}", tally.slowest);
    tally.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.compare(&mut client, &topic)?.require_exactly_once()
}

/// No message is removed that would tell the relays.
fn new_buckets_are_leased_at_once_on_an_idle_system(scene: &mut Scene) -> Result<()> {
    let mut client = start(scene)?;
    for count in [64, 3] {
        set_bucket_count(&mut client, count)?;
        wait_until_shared(&mut client, RELAYS, AT_ONCE)?;
        wait_until_forgotten(&mut client)?;
    }
    Ok(())
}

/// The rows of four counts wait when the broker comes back, and all relays read at once.
fn order_holds_when_the_bucket_count_changes_while_the_broker_is_away(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    let mut client = start(scene)?;
    let topic = scene.topic(4)?;
    let load = Load::start(scene.cluster.address(), &Plan::new(DATABASE, &topic))?;
    load.wait_for(500, PATIENCE)?;
    scene.broker.stop()?;
    for count in [64, 3, 8] {
        load.wait_for_more(1_000, PATIENCE)?;
        set_bucket_count(&mut client, count)?;
    }
    load.wait_for_more(1_000, PATIENCE)?;
    ensure!(waited_for(&mut client)? == [8, 64, 3], "{:?}", waited_for(&mut client)?);
    // Forty keys lie in 8 buckets, then in 64: some of those have new messages only.
    let fenced: i64 =
        client.query_one("select count(*) from outbox.pg_stat_bucket where state = 'fenced'", &[])?.get(0);
    ensure!(fenced > 0, "no bucket is shown as fenced");
    scene.broker.start()?;
    load.wait_for_more(500, PATIENCE)?;
    let tally = load.stop()?;
    scene.say(format_args!("slowest transaction of a writer {:?}", tally.slowest));
    ensure!(tally.slowest < UNNOTICED, "a writer waited for {:?}", tally.slowest);
    tally.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    wait_until_forgotten(&mut client)?;
    wait_until_shared(&mut client, RELAYS, AT_ONCE)?;
    scene.compare(&mut client, &topic)?.require_at_least_once()
}

/// Two callers at the same time, and a transaction that has written and not ended: each waits for its turn, writers don't.
fn changes_of_the_bucket_count_follow_one_another_and_wait_for_writers(scene: &mut Scene) -> Result<()> {
    let mut client = start(scene)?;
    let topic = scene.topic(1)?;
    let mut writer = scene.session()?;
    let mut open = writer.transaction()?;
    let first = enqueue(&mut open, &topic, "key", "first")?;
    let callers: Vec<_> = [16, 32]
        .into_iter()
        .map(|count| {
            let address = scene.cluster.address().clone();
            thread::spawn(move || set_bucket_count(&mut address.connect(DATABASE)?, count))
        })
        .collect();
    wait::until("both have tried in vain", PATIENCE, || {
        let sleeping: i64 = client
            .query_one(
                "select count(*) from pg_stat_activity
                 where query like 'select outbox.set_bucket_count%' and wait_event = 'PgSleep'",
                &[],
            )?
            .get(0);
        Ok(if sleeping == 2 { Seen::Reached(()) } else { Seen::NotYet(format!("{sleeping} sleep")) })
    })?;
    let since = Instant::now();
    let second = enqueue(&mut client, &topic, "key", "second")?;
    ensure!(since.elapsed() < UNNOTICED, "another writer waited for {:?}", since.elapsed());
    open.commit()?;
    let mut said = Vec::new();
    for caller in callers {
        said.push(caller.join().map_err(|_| anyhow!("a caller panicked"))??);
    }
    let (from_8, other): (Vec<_>, Vec<_>) = said.iter().partition(|said| said.contains("from 8 to"));
    ensure!(from_8.len() == 1 && other.len() == 1, "{said:?}");
    let follows = if from_8[0].contains("to 16") { "from 16 to 32" } else { "from 32 to 16" };
    ensure!(other[0].contains(follows), "{said:?}");
    let third = enqueue(&mut client, &topic, "key", "third")?;
    wait_until_published(&mut client, AT_ONCE)?;
    let mut ids = Vec::new();
    for record in scene.follow(&topic)?.take(3, PATIENCE)? {
        ids.push(record.message_id()?);
    }
    // The two writers were not coordinated: only what was written after their commits has a place.
    ensure!(ids[2] == third && ids.contains(&first) && ids.contains(&second), "{ids:?}");
    Ok(())
}

/// The fences travel with the messages.
fn restored_dump_goes_on_in_order_in_the_middle_of_a_change(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("this database is a copy and does not publish");
    let mut original = start(scene)?;
    let topic = scene.topic(4)?;
    original.query_one("select outbox.pause('to be moved')", &[])?;
    let write = |scene: &Scene, database: &str, seed| -> Result<()> {
        let plan = Plan { until_committed: Some(1_000), seed, orders: 10, ..Plan::new(database, &topic) };
        Load::start(scene.cluster.address(), &plan)?.finish()?;
        Ok(())
    };
    for (count, seed) in [(64, 1), (3, 2)] {
        write(scene, DATABASE, seed)?;
        set_bucket_count(&mut original, count)?;
    }
    write(scene, DATABASE, 3)?;
    original.execute("update outbox.publishing set paused_at = null, pause_reason = null", &[])?;

    let dump = scene.cluster.log_path().with_extension("sql");
    let status = scene.cluster.program("pg_dump").arg("-f").arg(&dump).arg(DATABASE).status().context("pg_dump")?;
    ensure!(status.success(), "pg_dump failed");
    scene.cluster.connect("postgres")?.batch_execute("create database restored")?;
    let mut psql = scene.cluster.psql("restored");
    let status = psql.args(["-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-f"]).arg(&dump).status()?;
    ensure!(status.success(), "psql failed");

    let mut restored = scene.cluster.connect("restored")?;
    ensure!(waited_for(&mut restored)? == [8, 64], "{:?}", waited_for(&mut restored)?);
    let count: i32 = restored.query_one("select outbox.bucket_count()", &[])?.get(0);
    ensure!(count == 3, "the restored count is {count}");
    write(scene, "restored", 4)?;
    restored.query_one("select outbox.resume()", &[])?;
    wait_until_published(&mut restored, PATIENCE)?;
    wait_until_forgotten(&mut restored)?;
    scene.compare(&mut restored, &topic)?.require_exactly_once()
}
