//! G2: nothing is invented. What was rolled back, or undone by a crash, never reaches Kafka.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::cluster::Shutdown;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::process::{self, Signal};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{DATABASE, PATIENCE, Scene, enqueue, enqueue_many, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            rolled_back_work_is_never_published,
            commit_that_a_crash_undid_was_never_published,
            asynchronous_commit_on_an_idle_server_is_made_durable_and_published,
            commit_that_waits_for_a_standby_is_not_published_when_the_postmaster_dies,
    ]
}

fn rolled_back_work_is_never_published(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("ERROR:  division by zero");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;

    // Rolled back on purpose.
    let mut transaction = client.transaction()?;
    enqueue(&mut transaction, &topic, "key", "rolled back")?;
    transaction.rollback()?;
    // A savepoint only.
    let mut transaction = client.transaction()?;
    let before = enqueue(&mut transaction, &topic, "key", "before the savepoint")?;
    let mut inner = transaction.savepoint("doubt")?;
    enqueue(&mut inner, &topic, "key", "after the savepoint")?;
    inner.rollback()?;
    let after = enqueue(&mut transaction, &topic, "key", "after the rollback to it")?;
    transaction.commit()?;
    // An error.
    let mut transaction = client.transaction()?;
    enqueue(&mut transaction, &topic, "key", "before an error")?;
    ensure!(transaction.batch_execute("select 1 / 0").is_err(), "an error was expected");
    drop(transaction);
    // An exception that the function itself catches.
    client.batch_execute(&format!(
        "do $$
         begin
             perform outbox.enqueue('{topic}', 'key', 'in a block that fails');
             perform 1 / 0;
         exception when division_by_zero then null;
         end
         $$"
    ))?;
    // A session that is gone before its commit.
    let mut gone = scene.session()?;
    let pid: i32 = gone.query_one("select pg_backend_pid()", &[])?.get(0);
    gone.batch_execute("begin")?;
    enqueue(&mut gone, &topic, "key", "of a lost session")?;
    drop(gone);
    wait::until_true("the lost session has ended", PATIENCE, || {
        Ok(client.query_one("select count(*) = 0 from pg_stat_activity where pid = $1", &[&pid])?.get(0))
    })?;

    // Everything that could still come out of any bucket comes out before these do.
    enqueue_many(&mut client, &topic, 100)?;
    wait_until_published(&mut client, PATIENCE)?;
    let records = scene.follow(&topic)?.rest(PATIENCE)?;
    let strange: Vec<String> =
        records.iter().map(|record| record.text()).filter(|text| !text.starts_with("value ")).collect();
    ensure!(strange == ["before the savepoint", "after the rollback to it"], "published: {strange:?}");
    ensure!(records.len() == 102, "{} records", records.len());
    let ids = [records[0].message_id()?, records[1].message_id()?];
    ensure!(ids.contains(&before) && ids.contains(&after), "other ids than enqueue returned");
    Ok(())
}

/// Nothing writes WAL out but who waits for it: so much of it is lost with the server's memory as with a machine's.
const WAL_STAYS_IN_MEMORY: &[(&str, &str)] = &[
    ("wal_buffers", "16MB"),
    ("wal_writer_delay", "10s"),
    ("wal_writer_flush_after", "1GB"),
    // A page is written after its WAL.
    ("bgwriter_lru_maxpages", "0"),
    ("autovacuum", "off"),
];

/// Rows written under synchronous_commit = off are visible before they are durable. A relay that publishes what it sees
/// would publish what a crash then undoes.
fn commit_that_a_crash_undid_was_never_published(scene: &mut Scene) -> Result<()> {
    const ROUNDS: usize = 4;
    let mut client = scene.start(WAL_STAYS_IN_MEMORY)?;
    let topic = scene.topic(2)?;
    scene.expect_crash();
    let in_kafka = scene.follow(&topic)?;
    let mut undone = 0;
    for round in 0..ROUNDS {
        let plan = Plan {
            writers: 3,
            rest: Duration::from_millis(1),
            session: "set synchronous_commit = off",
            seed: round as u64 * 100,
            ..Plan::new(DATABASE, &topic)
        };
        // Each page that is full would wake it, and what it hands to the kernel outlives every process.
        let wal_writer = stop_wal_writer(&mut client)?;
        let published = in_kafka.count()?;
        let load = Load::start(scene.cluster.address(), &plan)?;
        load.wait_for(300, PATIENCE)?;
        wait::until_true("the relay publishes", PATIENCE, || Ok(in_kafka.count()? > published))?;
        // The server ends all its processes, forgets what they share, and starts again.
        process::send(wal_writer, Signal::KILL)?;
        wait::until_true("the session has noticed the crash", PATIENCE, || {
            Ok(client.batch_execute("select").is_err())
        })?;
        let tally = load.stop()?;
        scene.cluster.wait_for_answer()?;
        client = scene.session()?;
        let left: Vec<uuid::Uuid> = load::committed(&mut client)?.iter().map(|message| message.message_id).collect();
        undone += tally.committed.iter().filter(|id| !left.contains(id)).count();
    }
    wait_until_published(&mut client, PATIENCE)?;
    scene.say(format_args!("{undone} confirmed messages undone by {ROUNDS} crashes"));
    ensure!(undone > 0, "the crashes undid nothing that could have been published");
    scene.compare(&mut client, &topic)?.require_at_least_once()
}

/// Stops the WAL writer while it waits for work. If it were stopped while it writes, it would keep the lock that everybody needs
/// who flushes, and nothing could be committed any more.
fn stop_wal_writer(client: &mut Client) -> Result<i32> {
    wait::until("the WAL writer is stopped while it waits for work", PATIENCE, || {
        let find = "select pid from pg_stat_activity where backend_type = 'walwriter'";
        let Some(row) = client.query_opt(find, &[])? else { return Ok(Seen::NotYet("there is none".into())) };
        let pid: i32 = row.get(0);
        process::send(pid, Signal::STOP)?;
        wait::until_true("the WAL writer is stopped", PATIENCE, || Ok(process::stopped(pid)))?;
        let waits_for = "select coalesce(wait_event, 'nothing') from pg_stat_activity where pid = $1";
        let waits_for: String = client.query_one(waits_for, &[&pid])?.get(0);
        if waits_for == "WalWriterMain" {
            return Ok(Seen::Reached(pid));
        }
        process::send(pid, Signal::CONT)?;
        Ok(Seen::NotYet(format!("it waited for {waits_for}")))
    })
}

/// Nothing else flushes WAL on an idle server, so the relay must, or it would wait for ever.
fn asynchronous_commit_on_an_idle_server_is_made_durable_and_published(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("wal_writer_delay", "10s"), ("wal_writer_flush_after", "1GB")])?;
    let topic = scene.topic(1)?;
    let mut consumer = scene.follow(&topic)?;
    scene.expect_complaint("WARNING:  terminating connection due to immediate shutdown command");
    client.batch_execute("set synchronous_commit = off")?;
    let mut transaction = client.transaction()?;
    let id = enqueue(&mut transaction, &topic, "key", "asynchronous")?;
    transaction.execute("insert into order_event values ($1, 'key', 1, 'asynchronous')", &[&id])?;
    transaction.commit()?;
    let record = consumer.next(Duration::from_secs(5))?.context("the asynchronous commit did not arrive")?;
    ensure!(record.message_id()? == id, "another message arrived");
    scene.cluster.stop(Shutdown::Immediate)?;

    scene.cluster.start()?;
    let rows = load::committed(&mut scene.session()?)?;
    ensure!(rows.len() == 1, "the message was published and its business row is gone");
    Ok(())
}

/// A session that waits for a standby ends its wait when the postmaster dies. From then on what it has committed is visible, and
/// the standby that is promoted next may never have had it.
fn commit_that_waits_for_a_standby_is_not_published_when_the_postmaster_dies(scene: &mut Scene) -> Result<()> {
    const ROWS: i32 = 5_000;
    scene.expect_crash();
    scene.cluster.use_test_hooks()?;
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    // The client knows its way from now on, and would lose no time.
    enqueue(&mut client, &topic, "key", "first")?;
    wait_until_published(&mut client, PATIENCE)?;
    let relay = wait_until_shared(&mut client, 1, PATIENCE)?[0].pid;
    scene.cluster.set("outbox_relay.test_stop", &format!("before_fetch:{relay}"))?;
    scene.cluster.set("synchronous_standby_names", "nobody")?;
    client.batch_execute("set synchronous_commit = local")?;
    enqueue(&mut client, &topic, "key", "rings")?;
    wait::until_true("the relay has stopped before it reads", PATIENCE, || Ok(process::stopped(relay)))?;

    let mut session = scene.session()?;
    let waits: i32 = session.query_one("select pg_backend_pid()", &[])?.get(0);
    let commit = thread::spawn({
        let topic = topic.clone();
        let enqueue = "select count(outbox.enqueue($1::text, 'key', 'waits')) from generate_series(1, $2::integer)";
        move || session.query(enqueue, &[&topic, &ROWS]).is_ok()
    });
    wait::until_true("a commit waits for a standby", PATIENCE, || {
        let statement = "select wait_event is not distinct from 'SyncRep' from pg_stat_activity where pid = $1";
        Ok(client.query_one(statement, &[&waits])?.get(0))
    })?;
    process::send(scene.cluster.pid()?, Signal::KILL)?;
    wait::until_true("it waits no longer", PATIENCE, || Ok(!process::alive(waits)))?;
    ensure!(!commit.join().expect("it does not panic"), "the commit was confirmed");
    process::send(relay, Signal::CONT)?;
    scene.cluster.kill()?;
    let published = scene.follow(&topic)?.count()?;
    ensure!(published == 1, "{} messages were published that no standby has", published - 1);

    scene.cluster.start()?;
    wait_until_published(&mut scene.session()?, PATIENCE)?;
    let records = scene.follow(&topic)?.rest(PATIENCE)?.len();
    ensure!(records == 2 + ROWS as usize, "{records} records");
    Ok(())
}
