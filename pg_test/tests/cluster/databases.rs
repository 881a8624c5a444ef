//! Relays come and go with the extension and its database, and stand in nobody's way.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{Load, Plan};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{
    DATABASE, PATIENCE, Scene, create_database, enqueue, enqueue_many, relay_processes, wait_until_deserted,
    wait_until_published, wait_until_shared,
};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            create_extension_starts_relays_within_a_second,
            two_databases_publish_at_the_same_time,
            drop_database_under_load_is_neither_blocked_nor_noisy,
            drop_database_with_force_under_load_is_neither_blocked_nor_noisy,
            rename_and_copy_of_a_database_with_relays_are_not_blocked,
            drop_extension_under_load_and_create_again;
        (Own, Any):
            drop_of_another_database_does_not_wait_for_a_frozen_broker,
    ]
}

/// Postgres itself gives up after 5 s: "is being accessed by other users".
const NOT_BLOCKED: Duration = Duration::from_secs(5);

/// Runs a command and requires that nothing held it up.
fn unblocked(client: &mut Client, command: &str) -> Result<()> {
    let since = Instant::now();
    client.batch_execute(command).with_context(|| command.to_owned())?;
    let took = since.elapsed();
    ensure!(took < NOT_BLOCKED, "{command}: took {took:?}");
    Ok(())
}

fn relays_of(client: &mut Client, database: &str) -> Result<i64> {
    Ok(client
        .query_one(
            "select count(*) from pg_stat_activity where backend_type = 'outbox_relay relay' and datname = $1",
            &[&database],
        )?
        .get(0))
}

/// A relay of this session's database publishes.
fn require_publishing(scene: &mut Scene, client: &mut Client) -> Result<()> {
    let topic = scene.topic(1)?;
    let id = enqueue(client, &topic, "k", "v")?;
    let records = scene.follow(&topic)?.take(1, PATIENCE)?;
    ensure!(records[0].message_id()? == id, "another message arrived");
    Ok(())
}

fn create_extension_starts_relays_within_a_second(scene: &mut Scene) -> Result<()> {
    scene.start(&[("outbox_relay.workers", "2")])?;
    let mut postgres = scene.cluster.connect("postgres")?;
    postgres.batch_execute("create database later")?;
    let mut later = scene.cluster.connect("later")?;
    later.batch_execute("create extension outbox_relay")?;
    wait::until("two relays run in the new database", Duration::from_secs(1), || {
        let relays = relay_processes(&mut later)?;
        Ok(if relays.len() == 2 { Seen::Reached(()) } else { Seen::NotYet(format!("{relays:?}")) })
    })?;
    require_publishing(scene, &mut later)
}

fn two_databases_publish_at_the_same_time(scene: &mut Scene) -> Result<()> {
    let mut first = scene.start(&[])?;
    let mut second = create_database(&scene.cluster, "second")?;
    let topics = [scene.topic(4)?, scene.topic(4)?];
    let loads = [
        Load::start(
            scene.cluster.address(),
            &Plan { writers: 2, until_committed: Some(1_000), ..Plan::new(DATABASE, &topics[0]) },
        )?,
        Load::start(
            scene.cluster.address(),
            &Plan { writers: 2, until_committed: Some(1_000), ..Plan::new("second", &topics[1]) },
        )?,
    ];
    for load in loads {
        load.finish()?;
    }
    for (client, topic) in [(&mut first, &topics[0]), (&mut second, &topics[1])] {
        wait_until_published(client, PATIENCE)?;
        scene.compare(client, topic)?.require_exactly_once()?;
    }
    Ok(())
}

fn drop_database_under_load_is_neither_blocked_nor_noisy(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("outbox_relay.workers", "2")])?;
    let topic = scene.topic(4)?;
    let mut postgres = scene.cluster.connect("postgres")?;
    wait_until_shared(&mut client, 2, PATIENCE)?;
    // More than is published in the time it takes to drop.
    enqueue_many(&mut client, &topic, 100_000)?;
    let pid: i32 = client.query_one("select pg_backend_pid()", &[])?.get(0);
    drop(client);
    wait::until_true("the writer has left", PATIENCE, || {
        Ok(postgres.query_one("select count(*) = 0 from pg_stat_activity where pid = $1", &[&pid])?.get(0))
    })?;
    ensure!(relays_of(&mut postgres, DATABASE)? == 2, "no relay is connected that could be in the way");
    unblocked(&mut postgres, "drop database app")?;
    ensure!(relays_of(&mut postgres, DATABASE)? == 0, "a relay outlived its database");

    let mut next = create_database(&scene.cluster, "next")?;
    require_publishing(scene, &mut next)
}

fn drop_database_with_force_under_load_is_neither_blocked_nor_noisy(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    scene.expect_complaint("FATAL:  database \"app\" does not exist");
    let topic = scene.topic(4)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let load = Load::start(scene.cluster.address(), &Plan { writers: 4, ..Plan::new(DATABASE, &topic) })?;
    load.wait_for(200, PATIENCE)?;
    unblocked(&mut scene.cluster.connect("postgres")?, "drop database app with (force)")?;
    load.stop()?;
    let complaint = "does not exist";
    let log = scene.cluster.log()?;
    let noisy: Vec<&str> = log.lines_with(complaint).filter(|line| line.contains("outbox_relay")).collect();
    ensure!(noisy.is_empty(), "a worker looked for the dropped database: {noisy:?}");
    Ok(())
}

fn rename_and_copy_of_a_database_with_relays_are_not_blocked(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    drop(client);
    let mut postgres = scene.cluster.connect("postgres")?;
    wait_until_deserted(&mut postgres)?;
    unblocked(&mut postgres, "create database copy template app")?;
    unblocked(&mut postgres, "alter database app rename to renamed")?;
    let mut renamed = scene.cluster.connect("renamed")?;
    require_publishing(scene, &mut renamed)
}

fn drop_extension_under_load_and_create_again(scene: &mut Scene) -> Result<()> {
    // That unsent messages go along is worth a warning.
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[("outbox_relay.workers", "2")])?;
    let topic = scene.topic(4)?;
    wait_until_shared(&mut client, 2, PATIENCE)?;
    enqueue_many(&mut client, &topic, 100_000)?;
    unblocked(&mut client, "drop extension outbox_relay")?;
    let warnings: Vec<String> = scene.cluster.log()?.lines_with("WARNING:").map(str::to_owned).collect();
    ensure!(warnings.iter().all(|line| line.contains("client backend")), "a worker complained: {warnings:?}");
    wait::until("no relay is left in the database", PATIENCE, || {
        let left = relays_of(&mut client, DATABASE)?;
        Ok(if left == 0 { Seen::Reached(()) } else { Seen::NotYet(format!("{left} are")) })
    })?;
    client.batch_execute("create extension outbox_relay")?;
    wait_until_shared(&mut client, 2, PATIENCE)?;
    require_publishing(scene, &mut client)
}

/// Every process must answer the server's barriers, also a relay whose broker does not answer it.
fn drop_of_another_database_does_not_wait_for_a_frozen_broker(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait_until_published(&mut client, PATIENCE)?;
    client.batch_execute("create database other")?;
    scene.broker.freeze()?;
    enqueue_many(&mut client, &topic, 1_000)?;
    unblocked(&mut client, "drop database other")?;
    scene.broker.thaw()?;
    wait_until_published(&mut client, PATIENCE)
}
