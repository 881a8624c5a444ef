//! G1: nothing is lost. A row leaves `outbox.message` only after the broker acknowledged that very row.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::process::anonymous_memory;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;
use uuid::Uuid;

use crate::scene::{PATIENCE, Scene, enqueue, enqueue_many, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            late_commit_with_a_lower_id_is_published,
            prepared_transaction_is_published_when_it_is_committed,
            prepared_transaction_that_outlived_a_crash_is_published,
            row_that_rang_no_bell_is_published,
            trigger_on_the_table_fires_for_each_removed_row,
            one_transaction_of_many_messages_is_published_in_bounded_memory;
        (Own, Any):
            row_that_was_given_the_id_of_one_in_flight_is_published,
            row_that_was_changed_in_flight_is_published_again,
            rows_that_were_truncated_in_flight_hold_up_nothing,
    ]
}

/// Far beyond [`BY_THE_BELL`]: what arrives in time was not found by looking now and then.
const SELDOM: (&str, &str) = ("outbox_relay.poll_interval", "60s");
const BY_THE_BELL: Duration = Duration::from_secs(1);

/// The next record must be this message.
fn arrives(consumer: &mut Consumer, id: Uuid, at_most: Duration) -> Result<()> {
    let record = consumer.next(at_most)?.with_context(|| format!("message {id} did not arrive within {at_most:?}"))?;
    let arrived = record.message_id()?;
    ensure!(arrived == id, "message {arrived} arrived instead of {id}");
    Ok(())
}

fn late_commit_with_a_lower_id_is_published(scene: &mut Scene) -> Result<()> {
    let mut late = scene.start(&[SELDOM])?;
    let topic = scene.topic(1)?;
    let mut early = scene.session()?;
    let mut consumer = scene.follow(&topic)?;
    wait_until_shared(&mut early, 1, PATIENCE)?;

    let mut transaction = late.transaction()?;
    let lower = enqueue(&mut transaction, &topic, "one key", "lower id, later commit")?;
    let higher = enqueue(&mut early, &topic, "one key", "higher id, earlier commit")?;
    arrives(&mut consumer, higher, PATIENCE)?;
    wait_until_published(&mut early, PATIENCE)?;

    transaction.commit()?;
    arrives(&mut consumer, lower, BY_THE_BELL)?;
    wait_until_published(&mut early, PATIENCE)
}

/// Five messages are with the client, which waits for a broker that does not answer.
fn five_in_flight(scene: &mut Scene, topic: &str) -> Result<(Client, Vec<Uuid>)> {
    scene.expect_lost_broker();
    let mut client = scene.start(&[])?;
    enqueue(&mut client, topic, "one key", "to open the way")?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.broker.freeze()?;
    // Of one transaction, so that they are of one batch.
    let mut transaction = client.transaction()?;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(enqueue(&mut transaction, topic, "one key", "in flight")?);
    }
    transaction.commit()?;
    wait::until("the relay waits for the broker", PATIENCE, || {
        let row = client.query_one("select string_agg(state, ',') from outbox.pg_stat_relay", &[])?;
        let state: Option<String> = row.get(0);
        let waits = matches!(state.as_deref(), Some("publishing" | "waiting for broker"));
        Ok(if waits { Seen::Reached(()) } else { Seen::NotYet(format!("{state:?}")) })
    })?;
    Ok((client, ids))
}

fn row_that_was_given_the_id_of_one_in_flight_is_published(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic(1)?;
    let (mut client, first) = five_in_flight(scene, &topic)?;
    client.batch_execute("truncate outbox.message; select setval('outbox.message_id_seq', 1)")?;
    let mut second = Vec::new();
    for _ in 0..5 {
        second.push(enqueue(&mut client, &topic, "one key", "with a used id")?);
    }
    scene.broker.thaw()?;
    wait_until_published(&mut client, PATIENCE)?;
    let arrived = ids_of(scene, &topic)?;
    ensure!(
        first.iter().chain(&second).all(|id| arrived.contains(id)),
        "{arrived:?} arrived of {first:?} and {second:?}"
    );
    Ok(())
}

/// The table is shorter than where they lay.
fn rows_that_were_truncated_in_flight_hold_up_nothing(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic(1)?;
    let (mut client, _) = five_in_flight(scene, &topic)?;
    client.batch_execute("truncate outbox.message")?;
    scene.broker.thaw()?;
    let next = enqueue(&mut client, &topic, "one key", "the next")?;
    wait_until_published(&mut client, PATIENCE)?;
    let arrived = ids_of(scene, &topic)?;
    ensure!(arrived.last() == Some(&next), "{arrived:?} arrived, {next} not behind them");
    Ok(())
}

fn row_that_was_changed_in_flight_is_published_again(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic(1)?;
    let (mut client, _) = five_in_flight(scene, &topic)?;
    client
        .execute("update outbox.message set value = 'changed' where id = (select max(id) from outbox.message)", &[])?;
    scene.broker.thaw()?;
    wait_until_published(&mut client, PATIENCE)?;
    let records = scene.follow(&topic)?.rest(PATIENCE)?;
    let last = records.last().context("nothing arrived")?;
    ensure!(last.value.as_deref() == Some(b"changed"), "the change did not arrive");
    Ok(())
}

/// Rows are removed where they lie, past the statements that heed triggers; but not where there are any.
fn trigger_on_the_table_fires_for_each_removed_row(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    client.batch_execute(
        "create table public.removed (message_id uuid);
         create function public.note_removed() returns trigger language plpgsql as $$
         begin
             insert into public.removed values (old.message_id);
             return old;
         end
         $$;
         create trigger note_removed after delete on outbox.message for each row execute function public.note_removed();",
    )?;
    enqueue_many(&mut client, &topic, 500)?;
    wait_until_published(&mut client, PATIENCE)?;
    let arrived = ids_of(scene, &topic)?;
    let noted: i64 =
        client.query_one("select count(*) from public.removed where message_id = any($1)", &[&arrived])?.get(0);
    ensure!(noted == 500 && arrived.len() == 500, "{} arrived, the trigger noted {noted}", arrived.len());
    Ok(())
}

fn ids_of(scene: &Scene, topic: &str) -> Result<Vec<Uuid>> {
    scene.follow(topic)?.rest(PATIENCE)?.iter().map(|record| record.message_id()).collect()
}

fn prepared_transaction_is_published_when_it_is_committed(scene: &mut Scene) -> Result<()> {
    let mut late = scene.start(&[SELDOM])?;
    let topic = scene.topic(1)?;
    let mut early = scene.session()?;
    let mut consumer = scene.follow(&topic)?;
    wait_until_shared(&mut early, 1, PATIENCE)?;

    late.batch_execute("begin")?;
    let lower = enqueue(&mut late, &topic, "one key", "prepared")?;
    late.batch_execute("prepare transaction 'kept'; begin")?;
    let never = enqueue(&mut late, &topic, "one key", "prepared, then rolled back")?;
    late.batch_execute("prepare transaction 'given up'")?;
    let higher = enqueue(&mut early, &topic, "one key", "higher id, earlier commit")?;
    arrives(&mut consumer, higher, PATIENCE)?;

    // Another session than the one that prepared.
    early.batch_execute("commit prepared 'kept'")?;
    arrives(&mut consumer, lower, BY_THE_BELL)?;
    early.batch_execute("rollback prepared 'given up'")?;
    let last = enqueue(&mut early, &topic, "one key", "last")?;
    arrives(&mut consumer, last, BY_THE_BELL).with_context(|| format!("{never} was rolled back"))
}

fn prepared_transaction_that_outlived_a_crash_is_published(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[SELDOM])?;
    scene.expect_crash();
    let topic = scene.topic(1)?;
    let mut consumer = scene.follow(&topic)?;
    client.batch_execute("begin")?;
    let prepared = enqueue(&mut client, &topic, "one key", "prepared before the crash")?;
    client.batch_execute("prepare transaction 'kept'")?;

    scene.cluster.kill()?;
    scene.cluster.start()?;
    let mut client = scene.session()?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let higher = enqueue(&mut client, &topic, "one key", "after the crash")?;
    arrives(&mut consumer, higher, PATIENCE)?;
    client.batch_execute("commit prepared 'kept'")?;
    arrives(&mut consumer, prepared, BY_THE_BELL)
}

/// A read position is only a hint: rows that a restore or a superuser put behind it are found too.
fn row_that_rang_no_bell_is_published(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("outbox_relay.poll_interval", "1s")])?;
    let topic = scene.topic(1)?;
    let mut consumer = scene.follow(&topic)?;
    for number in 0..10 {
        let id = enqueue(&mut client, &topic, "one key", &format!("value {number}"))?;
        arrives(&mut consumer, id, PATIENCE)?;
    }
    wait_until_published(&mut client, PATIENCE)?;
    for bucket in 0..8 {
        let id = Uuid::new_v4();
        client.execute(
            "insert into outbox.message (bucket, id, topic, key, value, message_id) values ($1, 1, $2, 'k', 'v', $3)",
            &[&bucket, &topic, &id],
        )?;
        arrives(&mut consumer, id, PATIENCE)?;
    }
    wait_until_published(&mut client, PATIENCE)
}

fn one_transaction_of_many_messages_is_published_in_bounded_memory(scene: &mut Scene) -> Result<()> {
    const MESSAGES: i64 = 200_000;
    const MEMORY_MAX: u64 = 256 << 20;
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    let relay = wait_until_shared(&mut client, 1, PATIENCE)?[0].pid;
    client.execute(
        "select count(outbox.enqueue($1::text, 'key-' || n % 1000, repeat('x', 500))) from generate_series(1, $2::bigint) n",
        &[&topic, &MESSAGES],
    )?;
    let mut highest = 0;
    wait::until_true("outbox.message is empty", PATIENCE, || {
        highest = highest.max(anonymous_memory(relay)?);
        Ok(client.query_one("select not exists (select from outbox.message)", &[])?.get(0))
    })?;
    let published = scene.follow(&topic)?.count()?;
    scene.say(format_args!("{published} published, RssAnon at most {} MB", highest >> 20));
    ensure!(published == MESSAGES as u64, "{published} of {MESSAGES} arrived");
    ensure!(highest < MEMORY_MAX, "the relay used {highest} bytes");
    Ok(())
}
