//! Settings take effect by a reload.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{PATIENCE, Scene, enqueue, relay_processes, relays, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            relays_idle_without_bootstrap_servers_until_a_reload_sets_them,
            wrong_bootstrap_servers_are_corrected_by_a_reload,
            client_that_cannot_be_made_is_reported_once,
            reload_with_a_client_that_cannot_be_made_keeps_the_old_one,
            pipe_in_place_of_the_properties_file_does_not_hold_up_a_relay,
            number_of_workers_follows_the_setting,
            nothing_is_published_while_disabled,
            batch_size_takes_effect_by_a_reload,
            kafka_properties_take_effect_by_a_reload_once_a_broker_has_answered,
            lease_renew_interval_that_is_not_below_the_lease_duration_is_reported,
    ]
}

fn wait_for_state(client: &mut Client, state: &str) -> Result<()> {
    wait::until(format_args!("the relay is in state {state:?}"), PATIENCE, || {
        let relays = relays(client)?;
        let reached = !relays.is_empty() && relays.iter().all(|relay| relay.state == state);
        Ok(if reached { Seen::Reached(()) } else { Seen::NotYet(format!("{relays:?}")) })
    })
}

fn relays_idle_without_bootstrap_servers_until_a_reload_sets_them(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start_without_broker(&[])?;
    let topic = scene.topic(1)?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait_for_state(&mut client, "not configured")?;
    let relay = relay_processes(&mut client)?;
    // A reload that changes nothing for it is no reason to say it again.
    scene.cluster.set("work_mem", "5MB")?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait_for_state(&mut client, "not configured")?;
    scene.cluster.set("outbox_relay.bootstrap_servers", &scene.broker.bootstrap())?;
    wait_until_published(&mut client, PATIENCE)?;
    ensure!(relay_processes(&mut client)? == relay, "the relay was started anew instead of idling");
    let log = scene.cluster.log()?;
    let said: Vec<&str> =
        log.lines_with("bootstrap_servers").filter(|line| line.contains("outbox_relay relay")).collect();
    ensure!(said.len() == 1, "one log line was expected, not {said:?}");
    Ok(())
}

fn wrong_bootstrap_servers_are_corrected_by_a_reload(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    // Nobody listens on port 1.
    let mut client = scene.start_without_broker(&[("outbox_relay.bootstrap_servers", "127.0.0.1:1")])?;
    let topic = scene.topic(1)?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait::until("the view shows an error of the Kafka client", PATIENCE, || {
        let row = client.query_opt("select last_error from outbox.pg_stat_relay where last_error is not null", &[])?;
        Ok(if row.is_some() { Seen::Reached(()) } else { Seen::NotYet("no error".into()) })
    })?;
    scene.cluster.set("outbox_relay.bootstrap_servers", &scene.broker.bootstrap())?;
    wait_until_published(&mut client, PATIENCE)?;
    let records = scene.follow(&topic)?.rest(PATIENCE)?;
    ensure!(records.len() == 1, "{} records", records.len());
    Ok(())
}

/// Such a client is refused only when it is made, not when the setting is checked.
const IMPOSSIBLE: &str = "security.protocol=ssl ssl.ca.location=/nonexistent";

fn client_that_cannot_be_made_is_reported_once(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("outbox_relay does not publish");
    let mut client = scene.start(&[("outbox_relay.kafka_properties", IMPOSSIBLE)])?;
    let topic = scene.topic(1)?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait::until("the view says that the client cannot be made", PATIENCE, || {
        let row = client.query_opt("select last_error from outbox.pg_stat_relay where state = 'misconfigured'", &[])?;
        Ok(if row.is_some() { Seen::Reached(()) } else { Seen::NotYet("no".into()) })
    })?;
    // Whatever wakes the relay, it has said it.
    for _ in 0..20 {
        client.query_one("select outbox.announce()", &[])?;
    }
    scene.cluster.set("outbox_relay.kafka_properties", "")?;
    wait_until_published(&mut client, PATIENCE)?;
    let said = scene.cluster.log()?.lines_with("outbox_relay does not publish").count();
    ensure!(said == 1, "said {said} times");
    Ok(())
}

fn reload_with_a_client_that_cannot_be_made_keeps_the_old_one(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("new settings are not used");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.cluster.set("outbox_relay.kafka_properties", IMPOSSIBLE)?;
    wait::until("the view says that the new client cannot be made", PATIENCE, || {
        let row = client.query_opt("select last_error from outbox.pg_stat_relay where last_error is not null", &[])?;
        Ok(if row.is_some() { Seen::Reached(()) } else { Seen::NotYet("no error".into()) })
    })?;
    enqueue(&mut client, &topic, "k", "w")?;
    wait_until_published(&mut client, PATIENCE)
}

fn pipe_in_place_of_the_properties_file_does_not_hold_up_a_relay(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("new settings are not used");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let pipe = scene.cluster.log_path().with_extension("pipe");
    // Made by the server's user, as the relay requires.
    client.batch_execute(&format!("copy (select 1) to program 'mkfifo -m 600 {}'", pipe.display()))?;
    scene.cluster.set("outbox_relay.kafka_properties_file", &pipe.display().to_string())?;
    wait::until("the view says that it is no file", PATIENCE, || {
        let row =
            client.query_opt("select last_error from outbox.pg_stat_relay where last_error ~ 'regular file'", &[])?;
        Ok(if row.is_some() { Seen::Reached(()) } else { Seen::NotYet("no".into()) })
    })?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait_until_published(&mut client, PATIENCE)
}

fn number_of_workers_follows_the_setting(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    for workers in [3, 0, 1] {
        scene.cluster.set("outbox_relay.workers", &workers.to_string())?;
        wait::until(format_args!("{workers} relays run"), PATIENCE, || {
            let running = relay_processes(&mut client)?;
            Ok(if running.len() == workers { Seen::Reached(()) } else { Seen::NotYet(format!("{running:?}")) })
        })?;
        if workers > 0 {
            wait_until_shared(&mut client, workers, PATIENCE)?;
        }
        enqueue(&mut client, &topic, "k", &format!("with {workers} workers"))?;
    }
    wait_until_published(&mut client, PATIENCE)
}

fn nothing_is_published_while_disabled(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    let mut consumer = scene.follow(&topic)?;
    enqueue(&mut client, &topic, "k", "before")?;
    consumer.take(1, PATIENCE)?;

    scene.cluster.set("outbox_relay.enabled", "off")?;
    wait_for_state(&mut client, "disabled")?;
    enqueue(&mut client, &topic, "k", "while disabled")?;
    wait_for_state(&mut client, "disabled")?;
    ensure!(consumer.rest(PATIENCE)?.is_empty(), "a disabled relay published");

    scene.cluster.set("outbox_relay.enabled", "on")?;
    let records = consumer.take(1, PATIENCE)?;
    ensure!(records[0].text() == "while disabled", "arrived: {records:?}");
    Ok(())
}

fn batch_size_takes_effect_by_a_reload(scene: &mut Scene) -> Result<()> {
    const MESSAGES: i64 = 100;
    let mut client = scene.start(&[("outbox_relay.batch_size", "1000")])?;
    let topic = scene.topic(1)?;
    // All in one bucket and one commit.
    let batches = |client: &mut Client| -> Result<i64> {
        let count = "select sum(batches)::bigint from outbox.pg_stat_relay";
        let before: i64 = client.query_one(count, &[])?.get(0);
        client.execute(
            "select outbox.enqueue($1::text, 'one key', 'v') from generate_series(1, $2::bigint)",
            &[&topic, &MESSAGES],
        )?;
        wait_until_published(client, PATIENCE)?;
        Ok(client.query_one(count, &[])?.get::<_, i64>(0) - before)
    };
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let large = batches(&mut client)?;
    scene.cluster.set("outbox_relay.batch_size", "10")?;
    wait::until("the reload is done", PATIENCE, || {
        // A batch in flight may still be of the old size: look again.
        let small = batches(&mut client)?;
        Ok(if small >= MESSAGES / 10 { Seen::Reached(()) } else { Seen::NotYet(format!("{small} batches")) })
    })?;
    ensure!(large <= 2, "{large} batches of at most 1000 for {MESSAGES} messages");
    Ok(())
}

fn kafka_properties_take_effect_by_a_reload_once_a_broker_has_answered(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:  new settings are not used");
    let mut client = scene.start(&[("outbox_relay.lease_renew_interval", "1s")])?;
    let topic = scene.topic(1)?;
    // None while one relay has left and the next is about to come.
    let publish = |client: &mut Client| -> Result<Option<String>> {
        enqueue(client, &topic, "k", "v")?;
        wait_until_published(client, PATIENCE)?;
        Ok(client.query_opt("select relay_id from outbox.pg_stat_relay", &[])?.and_then(|row| row.get(0)))
    };
    let first = publish(&mut client)?;
    ensure!(first.is_some(), "no relay is there");
    let process = relay_processes(&mut client)?;
    // The broker speaks no TLS: with the new settings nothing would get through.
    scene.cluster.set("outbox_relay.kafka_properties", "security.protocol=ssl")?;
    let error: String = wait::until("the view shows why they are not used", PATIENCE, || {
        let row = client.query_opt("select last_error from outbox.pg_stat_relay where last_error is not null", &[])?;
        Ok(row.map_or(Seen::NotYet("no error".into()), |row| Seen::Reached(row.get(0))))
    })?;
    scene.say(error);
    ensure!(publish(&mut client)? == first, "the relay changed over to what does not work");
    scene.cluster.set("outbox_relay.kafka_properties", "linger.ms=1")?;
    wait::until("another client publishes", PATIENCE, || {
        let now = publish(&mut client)?;
        Ok(if now.is_none() || now == first { Seen::NotYet(format!("{now:?}")) } else { Seen::Reached(()) })
    })?;
    ensure!(relay_processes(&mut client)? == process, "the process was started anew");
    let said = scene.cluster.log()?.lines_with("new settings are not used").count();
    ensure!(said == 1, "said {said} times");
    Ok(())
}

fn lease_renew_interval_that_is_not_below_the_lease_duration_is_reported(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("lease_renew_interval");
    scene.expect_complaint("outbox_relay relay WARNING:  new settings are not used");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    // Refused at once, or reported when the server reads it.
    match scene.cluster.set("outbox_relay.lease_renew_interval", "40s") {
        Err(error) => ensure!(format!("{error:?}").contains("lease_duration"), "refused for another reason: {error:?}"),
        Ok(()) => wait::until("the log reports the contradiction", PATIENCE, || {
            let log = scene.cluster.log()?;
            let reported = log.lines_with("must be less than").any(|line| line.contains("lease_duration"));
            Ok(if reported { Seen::Reached(()) } else { Seen::NotYet("nothing".into()) })
        })?,
    }
    enqueue(&mut client, &topic, "k", "v")?;
    wait_until_published(&mut client, PATIENCE)
}
