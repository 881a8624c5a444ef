//! A copy of a database does not publish until an operator says so, and an operator can pause any database.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{DATABASE, PATIENCE, Scene, enqueue, enqueue_many, wait_until_deserted, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            database_made_from_a_template_is_paused_until_it_is_resumed,
            restored_dump_is_paused_until_it_is_resumed,
            paused_database_keeps_its_messages_through_a_restart;
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

fn restored_dump_is_paused_until_it_is_resumed(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint(COPY);
    let mut original = scene.start(&[])?;
    let topic = scene.topic(1)?;
    original.query_one("select outbox.pause()", &[])?;
    wait_for_state(&mut original, "paused")?;
    enqueue_many(&mut original, &topic, 3)?;
    original.execute("update outbox.publishing set paused_at = null", &[])?;
    let dump = scene.cluster.log_path().with_extension("dump");
    let mut command = scene.cluster.program("pg_dump");
    let status = command.args(["-Fc", "-f"]).arg(&dump).arg(DATABASE).status().context("pg_dump")?;
    ensure!(status.success(), "pg_dump failed");
    scene.cluster.connect("postgres")?.batch_execute("create database restored")?;
    let mut command = scene.cluster.program("pg_restore");
    let status = command.args(["-j", "2", "-d", "restored"]).arg(&dump).status().context("pg_restore")?;
    ensure!(status.success(), "pg_restore failed");
    let mut restored = scene.cluster.connect("restored")?;
    ensure!(waiting(&mut restored)? == 3, "unsent messages come with the dump");
    restored.query_one("select outbox.announce()", &[])?;
    require_paused_until_resumed(scene, &mut restored, &topic)
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
