//! A broker behind a network that swallows everything, or the answers: connections stay open and nobody is told. The server
//! stops and cleans up as ever, and later everything is published.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::cluster::Shutdown;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::process;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{
    DATABASE, PATIENCE, Scene, create_database, enqueue_many, relay_processes, relays, wait_until_published,
};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Proxied, Any):
            nothing_waits_for_a_broker_that_swallows_everything,
            messages_go_out_within_seconds_of_the_return_of_a_network_that_forgot_its_connections,
            lost_answers_and_cut_connections_neither_lose_nor_double_messages,
    ]
}

const MESSAGES: i32 = 2_000;

/// `shutdown_timeout` of the relays here.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// What a relay may take beyond that, and Postgres for its own part.
const SMALL: Duration = Duration::from_secs(2);

/// How a relay's world ends while its broker swallows everything.
struct Ending {
    name: &'static str,
    end: fn(&mut Scene, &mut Client) -> Result<()>,
    /// Brings back what was ended.
    mend: fn(&mut Scene) -> Result<()>,
    /// How long the relay and what ended it may take.
    within: Duration,
    /// Whether the messages outlive it.
    kept: bool,
}

const ENDINGS: [Ending; 5] = [
    Ending {
        name: "fast shutdown",
        end: |scene, _| scene.cluster.stop(Shutdown::Fast).map(drop),
        mend: |scene| scene.cluster.start(),
        within: SHUTDOWN_TIMEOUT.saturating_add(SMALL),
        kept: true,
    },
    Ending {
        name: "immediate shutdown",
        end: |scene, _| scene.cluster.stop(Shutdown::Immediate).map(drop),
        mend: |scene| scene.cluster.start(),
        within: SMALL,
        kept: true,
    },
    Ending {
        name: "death of the postmaster",
        end: |scene, _| scene.cluster.kill(),
        mend: |scene| scene.cluster.start(),
        within: SHUTDOWN_TIMEOUT.saturating_add(SMALL),
        kept: true,
    },
    Ending {
        name: "drop extension",
        end: |_, client| Ok(client.batch_execute("drop extension outbox_relay cascade")?),
        mend: |scene| Ok(scene.session()?.batch_execute("create extension outbox_relay")?),
        within: SHUTDOWN_TIMEOUT.saturating_add(SMALL),
        kept: false,
    },
    Ending {
        name: "drop database",
        end: |scene, _| {
            let mut other = scene.cluster.connect("postgres")?;
            Ok(other.batch_execute(&format!("drop database {DATABASE} with (force)"))?)
        },
        mend: |scene| create_database(&scene.cluster, DATABASE).map(drop),
        within: SHUTDOWN_TIMEOUT.saturating_add(SMALL),
        kept: false,
    },
];

fn nothing_waits_for_a_broker_that_swallows_everything(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    scene.expect_crash();
    scene.expect_complaint("outbox_relay relay WARNING:  stopping without releasing leases");
    scene.expect_complaint("WARNING:  dropping outbox_relay with unsent messages");
    let timeout = format!("{}ms", SHUTDOWN_TIMEOUT.as_millis());
    let short = [
        ("outbox_relay.shutdown_timeout", timeout.as_str()),
        // What a relay that could not release its leases makes its successor wait for.
        ("outbox_relay.lease_duration", "3s"),
        ("outbox_relay.lease_renew_interval", "1s"),
    ];
    drop(scene.start(&short)?);
    for Ending { name, end, mend, within, kept } in &ENDINGS {
        let mut client = scene.session()?;
        let topic = scene.topic(4)?;
        enqueue_many(&mut client, &topic, 100)?;
        wait_until_published(&mut client, PATIENCE)?;
        scene.proxy()?.swallow();
        enqueue_many(&mut client, &topic, MESSAGES)?;
        wait_for_rows_in_flight(&mut client)?;
        let relay = *relay_processes(&mut client)?.first().context("no relay runs")?;

        let since = Instant::now();
        end(scene, &mut client).context(*name)?;
        let ended = since.elapsed();
        wait::until_true(format_args!("the relay is gone after {name}"), PATIENCE, || Ok(!process::alive(relay)))?;
        let gone = since.elapsed();
        scene.say(format_args!("{name}: {ended:?}, relay gone after {gone:?}"));
        ensure!(ended < *within && gone < *within, "{name} took {ended:?}, the relay {gone:?}, more than {within:?}");
        drop(client);

        scene.proxy()?.pass();
        mend(scene).with_context(|| format!("after {name}"))?;
        let mut client = scene.session()?;
        let left: i64 = client.query_one("select count(*) from outbox.message", &[])?.get(0);
        if *kept {
            // Some have been published by now.
            ensure!(left <= MESSAGES.into(), "{left} messages are left after {name}");
        } else {
            ensure!(left == 0, "{left} messages are left after {name}");
        }
        wait_until_published(&mut client, PATIENCE)?;
        let arrived = scene.follow(&topic)?.rest(PATIENCE)?;
        let mut ids = arrived.iter().map(|record| record.message_id()).collect::<Result<Vec<_>>>()?;
        let copies = ids.len();
        ids.sort_unstable();
        ids.dedup();
        let expected = if *kept { 100 + MESSAGES as usize } else { 100 };
        ensure!(ids.len() == expected, "{} of {expected} messages arrived after {name}", ids.len());
        // Nothing of the others reached the broker, so nothing was sent twice.
        ensure!(copies == ids.len(), "{copies} records of {} messages after {name}", ids.len());
    }
    Ok(())
}

/// What is tried again only when the answer to a request is overdue, and the way from there.
const SECONDS: Duration = Duration::from_secs(15);

fn messages_go_out_within_seconds_of_the_return_of_a_network_that_forgot_its_connections(
    scene: &mut Scene,
) -> Result<()> {
    scene.expect_lost_broker();
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    enqueue_many(&mut client, &topic, 100)?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.proxy()?.swallow();
    enqueue_many(&mut client, &topic, MESSAGES)?;
    wait_for_rows_in_flight(&mut client)?;
    scene.proxy()?.pass();
    let since = Instant::now();
    wait_until_published(&mut client, SECONDS)?;
    scene.say(format_args!("all published {:?} after the network's return", since.elapsed()));
    let arrived = scene.follow(&topic)?.count()?;
    ensure!(arrived == 100 + MESSAGES as u64, "{arrived} messages arrived");
    Ok(())
}

fn wait_for_rows_in_flight(client: &mut Client) -> Result<()> {
    wait::until("the relay has rows in flight", PATIENCE, || {
        let relays = relays(client)?;
        let busy = relays.iter().any(|relay| relay.state == "publishing" || relay.state == "waiting for broker");
        Ok(if busy { Seen::Reached(()) } else { Seen::NotYet(format!("{relays:?}")) })
    })
}

/// How often answers get lost.
const LOSSES: usize = 10;

/// Far longer than the way from an answer to the removal of its messages.
const A_WHILE: Duration = Duration::from_millis(200);

/// Looks that find the same, behind which nothing is on its way.
const LOOKS_AT_MOST: usize = 15;

/// Messages that were committed and are not in the table any more.
fn removed(client: &mut Client) -> Result<i64> {
    let both = "select (select count(*) from order_event) - (select count(*) from outbox.message)";
    Ok(client.query_one(both, &[])?.get(0))
}

/// The client sends again what was not answered, under its old numbers, and the broker knows them.
fn lost_answers_and_cut_connections_neither_lose_nor_double_messages(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    let plan = Plan { writers: 4, rest: Duration::from_millis(2), ..Plan::new(DATABASE, &topic) };
    let load = Load::start(scene.cluster.address(), &plan)?;
    load.wait_for(200, PATIENCE)?;
    let consumer = scene.follow(&topic)?;
    let (mut losses, mut cuts) = (0, 0);
    while losses < LOSSES {
        cuts += 1;
        ensure!(cuts <= LOSSES * 3, "only {losses} of {cuts} cuts met messages whose answer was lost");
        scene.proxy()?.swallow_answers();
        let (mut before, mut looks) = ((0, -1), 0);
        losses += wait::until("messages have arrived of which the relay hears nothing", PATIENCE, || {
            let now = (consumer.count()?, removed(&mut client)?);
            looks = if now == before { looks + 1 } else { 0 };
            before = now;
            Ok(if looks > 0 && now.0 as i64 > now.1 {
                Seen::Reached(1)
            } else if looks > LOOKS_AT_MOST {
                // It was another request's answer that was lost, and nothing is sent before that is given up.
                Seen::Reached(0)
            } else {
                thread::sleep(A_WHILE);
                Seen::NotYet(format!("{} have arrived, {} are removed", now.0, now.1))
            })
        })?;
        scene.proxy()?.pass();
        scene.proxy()?.cut();
        wait::until("the relay goes on", PATIENCE, || {
            let removed = removed(&mut client)?;
            Ok(if removed > before.1 { Seen::Reached(()) } else { Seen::NotYet(format!("{removed} are removed")) })
        })?;
    }
    scene.say(format_args!("{losses} of {cuts} cuts met messages whose answer was lost"));
    let tally = load.stop()?;
    wait_until_published(&mut client, PATIENCE)?;
    tally.check(&load::committed(&mut client)?)?;
    scene.compare(&mut client, &topic)?.require_exactly_once()
}
