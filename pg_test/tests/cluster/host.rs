//! G7: the host is safe. Whatever Kafka does, the server stops, cleans up and counts as if the relay were not there.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::cluster::Shutdown;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{
    FAST_SHUTDOWN, PATIENCE, Scene, enqueue, enqueue_many, relay_processes, relays, wait_until_published,
    wait_until_shared,
};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Own, Any):
            fast_shutdown_does_not_wait_for_a_stopped_broker,
            fast_shutdown_does_not_wait_for_a_frozen_broker,
            no_transaction_stays_open_while_the_broker_is_away;
        (Shared, Any):
            deletes_are_reported_to_the_statistics,
            relay_is_visible_in_pg_stat_activity,
    ]
}

/// Publishes once, takes the broker away with `away`, and waits until the relay has rows that it can't get rid of.
fn with_rows_in_flight(scene: &mut Scene, away: fn(&Scene) -> Result<()>) -> Result<Client> {
    let mut client = scene.start(&[])?;
    scene.expect_lost_broker();
    let topic = scene.topic(4)?;
    enqueue_many(&mut client, &topic, 100)?;
    wait_until_published(&mut client, PATIENCE)?;
    away(scene)?;
    enqueue_many(&mut client, &topic, 2_000)?;
    wait::until("the relay has rows in flight", PATIENCE, || {
        let relays = relays(&mut client)?;
        let busy = relays.iter().any(|relay| relay.state == "publishing" || relay.state == "waiting for broker");
        Ok(if busy { Seen::Reached(()) } else { Seen::NotYet(format!("{relays:?}")) })
    })?;
    Ok(client)
}

fn shutdown_is_fast(scene: &mut Scene) -> Result<()> {
    // It could not wait for the reports, so a successor must not begin before the lease has run out.
    scene.expect_complaint("outbox_relay relay WARNING:  stopping without releasing leases");
    let took = scene.cluster.stop(Shutdown::Fast)?;
    scene.say(format_args!("fast shutdown took {took:?}"));
    ensure!(took < FAST_SHUTDOWN, "fast shutdown took {took:?}");

    scene.cluster.start()?;
    let rows: i64 = scene.session()?.query_one("select count(*) from outbox.message", &[])?.get(0);
    ensure!(rows == 2_000, "{rows} of 2000 rows are left, though no broker acknowledged any");
    Ok(())
}

fn fast_shutdown_does_not_wait_for_a_stopped_broker(scene: &mut Scene) -> Result<()> {
    with_rows_in_flight(scene, |scene| scene.broker.stop())?;
    shutdown_is_fast(scene)
}

fn fast_shutdown_does_not_wait_for_a_frozen_broker(scene: &mut Scene) -> Result<()> {
    with_rows_in_flight(scene, |scene| scene.broker.freeze())?;
    shutdown_is_fast(scene)
}

fn no_transaction_stays_open_while_the_broker_is_away(scene: &mut Scene) -> Result<()> {
    /// Looks, and how far they are apart: together longer than any single statement of a relay.
    const LOOKS: usize = 100;
    const APART: Duration = Duration::from_millis(20);
    /// A transaction that is seen in so many looks in a row waits for something.
    const SHORT: usize = 10;

    let mut client = with_rows_in_flight(scene, |scene| scene.broker.freeze())?;
    let mut row = (None, 0);
    let mut idle_looks = 0;
    for _ in 0..LOOKS {
        let seen = client.query_one(
            "select min(xact_start)::text, bool_and(backend_xmin is null and backend_xid is null)
             from pg_stat_activity where backend_type = 'outbox_relay relay'",
            &[],
        )?;
        let (since, free): (Option<String>, bool) = (seen.get(0), seen.get(1));
        if since.is_none() && free {
            idle_looks += 1;
        }
        row = if since.is_some() && since == row.0 { (since, row.1 + 1) } else { (since, 0) };
        ensure!(row.1 < SHORT, "a relay's transaction is open since {:?}", row.0);
        thread::sleep(APART);
    }
    ensure!(idle_looks > LOOKS / 2, "the relay was outside of a transaction in only {idle_looks} of {LOOKS} looks");
    scene.broker.thaw()?;
    wait_until_published(&mut client, PATIENCE)
}

/// Else autovacuum never comes to a table that lives from inserts and deletes.
fn deletes_are_reported_to_the_statistics(scene: &mut Scene) -> Result<()> {
    const MESSAGES: i32 = 3_000;
    let mut client = scene.start(&[])?;
    let topic = scene.topic(2)?;
    enqueue_many(&mut client, &topic, MESSAGES)?;
    wait_until_published(&mut client, PATIENCE)?;
    wait::until(format_args!("{MESSAGES} deletes are counted"), PATIENCE, || {
        let deleted: i64 = client
            .query_one("select n_tup_del from pg_stat_user_tables where relid = 'outbox.message'::regclass", &[])?
            .get(0);
        Ok(if deleted >= i64::from(MESSAGES) { Seen::Reached(()) } else { Seen::NotYet(format!("{deleted} are")) })
    })
}

fn relay_is_visible_in_pg_stat_activity(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait_until_published(&mut client, PATIENCE)?;
    let launchers: i64 = client
        .query_one("select count(*) from pg_stat_activity where backend_type = 'outbox_relay launcher'", &[])?
        .get(0);
    let processes = relay_processes(&mut client)?;
    let known: Vec<i32> = relays(&mut client)?.iter().map(|relay| relay.pid).collect();
    ensure!(launchers == 1 && processes.len() == 1, "{launchers} launchers, relays {processes:?}");
    ensure!(known == processes, "outbox.pg_stat_relay shows {known:?}, pg_stat_activity {processes:?}");
    let (messages, bytes): (i64, i64) = {
        let row = client.query_one("select messages, bytes from outbox.pg_stat_relay", &[])?;
        (row.get(0), row.get(1))
    };
    ensure!(messages == 1 && bytes > 0, "{messages} messages of {bytes} bytes counted");
    Ok(())
}
