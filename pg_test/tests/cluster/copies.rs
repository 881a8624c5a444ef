//! A copy of a database does not publish until an operator says so, and an operator can pause any database.

use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::wait::{self, Seen};
use outbox_relay_pg_test::{load, state};
use postgres::Client;

use crate::scene::{DATABASE, PATIENCE, Scene, enqueue, enqueue_many, wait_until_deserted, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            database_made_from_a_template_is_paused_until_it_is_resumed,
            plain_dump_is_paused_until_it_is_resumed,
            custom_dump_is_paused_until_it_is_resumed,
            directory_dump_restored_in_parallel_is_paused_until_it_is_resumed,
            dump_restored_section_by_section_is_paused_until_it_is_resumed,
            dump_of_data_alone_is_paused_until_it_is_resumed,
            dump_of_the_schema_alone_publishes_what_is_enqueued_there,
            paused_database_keeps_its_messages_through_a_restart,
            pause_in_the_middle_of_a_drain_publishes_nothing_twice;
    ]
}

const COPY: &str = "this database is a copy and does not publish";

fn wait_for_state(client: &mut Client, state: &str) -> Result<()> {
    wait::until(format!("the relay is {state}"), Duration::from_secs(10), || {
        let states: Vec<String> =
            client.query("select state from outbox.pg_stat_relay", &[])?.iter().map(|row| row.get(0)).collect();
        Ok(if states == [state] { Seen::Reached(()) } else { Seen::NotYet(format!("{states:?}")) })
    })
}

fn waiting(client: &mut Client) -> Result<i64> {
    Ok(client.query_one("select count(*) from outbox.message", &[])?.get(0))
}

/// The copy publishes nothing of its three messages before it is resumed, and all of them after.
fn require_paused_until_resumed(scene: &mut Scene, copy: &mut Client, topic: &str) -> Result<()> {
    wait_for_state(copy, "paused as a copy")?;
    enqueue(copy, topic, "k", "a fourth one")?;
    ensure!(waiting(copy)? == 4, "a copy accepts and keeps messages");
    copy.query_one("select outbox.resume()", &[])?;
    wait_until_published(copy, PATIENCE)?;
    let records = scene.follow(topic)?.take(4, PATIENCE)?;
    ensure!(records.len() == 4, "each message arrived once");
    Ok(())
}

fn database_made_from_a_template_is_paused_until_it_is_resumed(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint(COPY);
    let mut original = scene.start(&[])?;
    let topic = scene.topic(1)?;
    original.query_one("select outbox.pause('to be copied')", &[])?;
    wait_for_state(&mut original, "paused")?;
    enqueue_many(&mut original, &topic, 3)?;
    drop(original);
    let mut postgres = scene.cluster.connect("postgres")?;
    wait_until_deserted(&mut postgres)?;
    postgres.batch_execute(&format!("create database copy template {DATABASE}"))?;
    let mut copy = scene.cluster.connect("copy")?;
    // It was copied as paused: lifting that alone does not make it the original.
    copy.execute("update outbox.publishing set paused_at = null", &[])?;
    copy.query_one("select outbox.announce()", &[])?;
    require_paused_until_resumed(scene, &mut copy, &topic)
}

/// How many messages the original of a dump has not sent.
const UNSENT: i64 = 20;
/// A setting of the original, and not the default.
const BUCKETS: &str = "5";
const RESTORED: &str = "restored";

/// A database with unsent messages of one key, which is not to send them while it is copied.
fn original_of_dumps(scene: &mut Scene, topic: &str) -> Result<Client> {
    let mut original = scene.start(&[("outbox_relay.poll_interval", "500ms")])?;
    original.execute("insert into outbox.setting values ('bucket_count', $1)", &[&BUCKETS])?;
    original.query_one("select outbox.pause()", &[])?;
    wait_for_state(&mut original, "paused")?;
    enqueue_in_turn(&mut original, topic, 0..UNSENT)?;
    original.execute("update outbox.publishing set paused_at = null", &[])?;
    scene.cluster.connect("postgres")?.batch_execute(&format!("create database {RESTORED}"))?;
    Ok(original)
}

fn enqueue_in_turn(client: &mut Client, topic: &str, numbers: std::ops::Range<i64>) -> Result<()> {
    numbers.map(|number| number.to_string()).try_for_each(|text| enqueue(client, topic, "k", &text).map(|_| ()))
}

/// Runs pg_dump or another program of Postgres.
fn run(scene: &Scene, program: &str, arguments: &[&str]) -> Result<()> {
    state::run(scene.cluster.program(program).args(arguments)).map(|_| ())
}

fn dump_file(scene: &Scene) -> String {
    scene.directory().join("dump").to_string_lossy().into_owned()
}

/// Restored is what has to be, the relay finds out by itself that it is not to publish, and says so once. Resumed, it
/// publishes what came with the dump and what was added since, in this order.
fn require_restored_and_paused(scene: &mut Scene, topic: &str) -> Result<()> {
    let mut restored = scene.cluster.connect(RESTORED)?;
    wait_for_state(&mut restored, "paused as a copy")?;
    ensure!(waiting(&mut restored)? == UNSENT, "unsent messages come with the dump");
    let buckets: i32 = restored.query_one("select outbox.bucket_count()", &[])?.get(0);
    ensure!(buckets.to_string() == BUCKETS, "settings come with the dump, but there are {buckets} buckets");
    let highest = highest_id(&mut restored)?;
    enqueue_in_turn(&mut restored, topic, UNSENT..UNSENT + 1)?;
    ensure!(highest_id(&mut restored)? > highest, "ids go on above those of the dump");
    let published = scene.follow(topic)?.count()?;
    ensure!(published == 0, "{published} messages were published before the copy was resumed");
    let lines = scene.cluster.log()?.lines_with(COPY).count();
    ensure!(lines == 1, "{lines} log lines say that the database is a copy");

    restored.query_one("select outbox.resume()", &[])?;
    enqueue_in_turn(&mut restored, topic, UNSENT + 1..UNSENT + 2)?;
    wait_until_published(&mut restored, PATIENCE)?;
    let records: Vec<String> = scene.follow(topic)?.rest(PATIENCE)?.iter().map(|record| record.text()).collect();
    let wanted: Vec<String> = (0..UNSENT + 2).map(|number| number.to_string()).collect();
    ensure!(records == wanted, "published: {records:?}");
    Ok(())
}

fn highest_id(client: &mut Client) -> Result<i64> {
    Ok(client.query_one("select max(id) from outbox.message", &[])?.get(0))
}

fn plain_dump_is_paused_until_it_is_resumed(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint(COPY);
    let topic = scene.topic(1)?;
    let _original = original_of_dumps(scene, &topic)?;
    let file = dump_file(scene);
    run(scene, "pg_dump", &["--format=plain", "--file", &file, DATABASE])?;
    run(scene, "psql", &["--set=ON_ERROR_STOP=1", "--quiet", "--output=/dev/null", "--file", &file, RESTORED])?;
    require_restored_and_paused(scene, &topic)
}

fn custom_dump_is_paused_until_it_is_resumed(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint(COPY);
    let topic = scene.topic(1)?;
    let _original = original_of_dumps(scene, &topic)?;
    let file = dump_file(scene);
    run(scene, "pg_dump", &["--format=custom", "--file", &file, DATABASE])?;
    run(scene, "pg_restore", &["--exit-on-error", "--dbname", RESTORED, &file])?;
    require_restored_and_paused(scene, &topic)
}

fn directory_dump_restored_in_parallel_is_paused_until_it_is_resumed(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint(COPY);
    let topic = scene.topic(1)?;
    let _original = original_of_dumps(scene, &topic)?;
    let file = dump_file(scene);
    run(scene, "pg_dump", &["--format=directory", "--jobs=3", "--file", &file, DATABASE])?;
    run(scene, "pg_restore", &["--exit-on-error", "--jobs=3", "--dbname", RESTORED, &file])?;
    require_restored_and_paused(scene, &topic)
}

/// Between the sections relays run already, and see a database that is not complete.
fn dump_restored_section_by_section_is_paused_until_it_is_resumed(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint(COPY);
    let topic = scene.topic(1)?;
    let _original = original_of_dumps(scene, &topic)?;
    let file = dump_file(scene);
    run(scene, "pg_dump", &["--format=custom", "--file", &file, DATABASE])?;
    run(scene, "pg_restore", &["--exit-on-error", "--section=pre-data", "--dbname", RESTORED, &file])?;
    wait_for_state(&mut scene.cluster.connect(RESTORED)?, "idle")?;
    run(scene, "pg_restore", &["--exit-on-error", "--section=data", "--dbname", RESTORED, &file])?;
    run(scene, "pg_restore", &["--exit-on-error", "--section=post-data", "--dbname", RESTORED, &file])?;
    require_restored_and_paused(scene, &topic)
}

/// The data of a dump pause even a database that has published messages of its own.
fn dump_of_data_alone_is_paused_until_it_is_resumed(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint(COPY);
    let topic = scene.topic(1)?;
    let own_topic = scene.topic(1)?;
    let _original = original_of_dumps(scene, &topic)?;
    let mut restored = scene.cluster.connect(RESTORED)?;
    restored.batch_execute("create extension outbox_relay")?;
    load::create_tables(&mut restored)?;
    enqueue(&mut restored, &own_topic, "k", "its own")?;
    wait_until_published(&mut restored, PATIENCE)?;
    let file = dump_file(scene);
    run(scene, "pg_dump", &["--format=custom", "--data-only", "--file", &file, DATABASE])?;
    // Its relays run: that nothing is published takes the data to become visible at once.
    run(scene, "pg_restore", &["--exit-on-error", "--single-transaction", "--dbname", RESTORED, &file])?;
    require_restored_and_paused(scene, &topic)
}

/// It holds nothing of the original's, so it is a database of its own.
fn dump_of_the_schema_alone_publishes_what_is_enqueued_there(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic(1)?;
    let _original = original_of_dumps(scene, &topic)?;
    let file = dump_file(scene);
    run(scene, "pg_dump", &["--format=custom", "--schema-only", "--file", &file, DATABASE])?;
    run(scene, "pg_restore", &["--exit-on-error", "--dbname", RESTORED, &file])?;
    let mut restored = scene.cluster.connect(RESTORED)?;
    ensure!(waiting(&mut restored)? == 0, "messages came with a dump of the schema");
    let id = enqueue(&mut restored, &topic, "k", "its own")?;
    let records = scene.follow(&topic)?.take(1, PATIENCE)?;
    ensure!(records[0].message_id()? == id, "another message arrived");
    wait_until_published(&mut restored, PATIENCE)
}

fn pause_in_the_middle_of_a_drain_publishes_nothing_twice(scene: &mut Scene) -> Result<()> {
    const MESSAGES: i32 = 300_000;
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    enqueue(&mut client, &topic, "k", "to open the way")?;
    wait_until_published(&mut client, PATIENCE)?;
    let arrivals = scene.follow(&topic)?;
    enqueue_many(&mut client, &topic, MESSAGES)?;
    wait::until_true("the first ones have arrived", PATIENCE, || Ok(arrivals.count()? > 1))?;
    client.query_one("select outbox.pause('maintenance')", &[])?;
    wait_for_state(&mut client, "paused")?;
    let (left, arrived) = (waiting(&mut client)?, arrivals.count()?);
    ensure!(left > 0, "everything was published before the pause");
    ensure!(left as u64 + arrived == MESSAGES as u64 + 1, "{arrived} have arrived, {left} are left");
    client.query_one("select outbox.resume()", &[])?;
    wait_until_published(&mut client, PATIENCE)?;
    let arrived = arrivals.count()?;
    ensure!(arrived == MESSAGES as u64 + 1, "{arrived} arrived");
    Ok(())
}

fn paused_database_keeps_its_messages_through_a_restart(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    let first = enqueue(&mut client, &topic, "k", "before")?;
    wait_until_published(&mut client, PATIENCE)?;
    client.query_one("select outbox.pause('maintenance')", &[])?;
    wait_for_state(&mut client, "paused")?;
    let second = enqueue(&mut client, &topic, "k", "meanwhile")?;
    drop(client);
    scene.cluster.restart()?;
    let mut client = scene.session()?;
    wait_for_state(&mut client, "paused")?;
    ensure!(waiting(&mut client)? == 1, "nothing is published while paused");
    client.query_one("select outbox.resume()", &[])?;
    let records = scene.follow(&topic)?.take(2, PATIENCE)?;
    let ids = [records[0].message_id()?, records[1].message_id()?];
    ensure!(ids == [first, second], "{ids:?} arrived, not {first} and {second}");
    Ok(())
}
