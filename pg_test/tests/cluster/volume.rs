//! The large run: one hundred thousand messages from eight sessions with a tenth rolled back, without and with faults.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{self, Load, Plan};

use crate::scene::{DATABASE, Scene, kill_a_relay, relay_processes, soak, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, None): hundred_thousand_messages_arrive_once_and_in_order;
        (Own, None): hundred_thousand_messages_survive_a_broker_restart_and_killed_relays,
    ]
}

const LONG: Duration = Duration::from_secs(600);

fn messages() -> u64 {
    if soak() { 1_000_000 } else { 100_000 }
}

fn plan(topic: &str) -> Plan {
    Plan { orders: 500, messages_a_transaction: 10, until_committed: Some(messages()), ..Plan::new(DATABASE, topic) }
}

fn hundred_thousand_messages_arrive_once_and_in_order(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    let since = Instant::now();
    let tally = Load::start(scene.cluster.address(), &plan(&topic))?.finish()?;
    let written = since.elapsed();
    wait_until_published(&mut client, LONG)?;
    let published = since.elapsed();
    tally.check(&load::committed(&mut client)?)?;
    scene.say(format_args!(
        "{} committed and {} rolled back in {written:.1?}, all published after {published:.1?}",
        tally.committed.len(),
        tally.rolled_back.len()
    ));
    ensure!(tally.rolled_back.len() as u64 > messages() / 20, "only {} were rolled back", tally.rolled_back.len());
    let figures = scene.compare(&mut client, &topic)?;
    ensure!(figures.committed as u64 >= messages(), "only {} were committed", figures.committed);
    figures.require_exactly_once()
}

fn hundred_thousand_messages_survive_a_broker_restart_and_killed_relays(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("FATAL:  terminating background worker \"outbox_relay relay");
    scene.expect_lost_broker();
    scene.expect_crash();
    let mut client = scene.start(&[("outbox_relay.workers", "2")])?;
    let topic = scene.topic(4)?;
    let load = Load::start(scene.cluster.address(), &plan(&topic))?;
    load.wait_for(messages() / 5, LONG)?;
    scene.broker.kill()?;
    load.wait_for(messages() / 5 * 2, LONG)?;
    let victim = *relay_processes(&mut client)?.first().context("no relay runs")?;
    client.execute("select pg_terminate_backend($1)", &[&victim])?;
    load.wait_for(messages() / 5 * 3, LONG)?;
    scene.broker.start()?;
    let mut client = kill_a_relay(scene, client)?;
    let tally = load.finish()?;
    wait_until_published(&mut client, LONG)?;
    tally.check(&load::committed(&mut client)?)?;
    let figures = scene.compare(&mut client, &topic)?;
    ensure!(figures.committed as u64 >= messages(), "only {} were committed", figures.committed);
    figures.require_at_least_once()
}
