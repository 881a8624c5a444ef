//! Several brokers: while one is away or partitions change their leader, messages go on by the others; once all are back
//! after they were all away, everything goes out at once.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::brokers::Brokers;
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::load::{self, Load, Plan, Tally};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{DATABASE, PATIENCE, Scene, soak, soak_outage, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Three, Any):
            rolling_restart_and_leader_elections_go_unnoticed,
            messages_go_on_while_one_of_three_brokers_is_dead,
            messages_go_on_while_one_of_three_brokers_is_frozen,
            backlog_goes_out_at_full_rate_when_all_three_brokers_are_back,
    ]
}

/// No transaction of a writer may take so long: it would have waited for Kafka.
const UNNOTICED: Duration = Duration::from_secs(2);

/// As many as the brokers, so that each leads some.
const PARTITIONS: i32 = 6;

/// How long one broker is away, and how long all are: lengths of time that are meant, not waited for.
fn one_away() -> Duration {
    Duration::from_secs(if soak() { 60 } else { 20 })
}

fn all_away() -> Duration {
    soak_outage().unwrap_or(Duration::from_secs(30))
}

fn start_load(scene: &Scene, topic: &str) -> Result<Load> {
    // The brokers need the cores too.
    let plan = Plan { writers: 4, rest: Duration::from_millis(5), ..Plan::new(DATABASE, topic) };
    let load = Load::start(scene.cluster.address(), &plan)?;
    load.wait_for(500, PATIENCE)?;
    Ok(load)
}

/// Ends the load; what was committed is published, and no writer noticed anything.
fn finish(client: &mut Client, load: Load) -> Result<Tally> {
    let tally = load.stop()?;
    wait_until_published(client, PATIENCE)?;
    tally.check(&load::committed(client)?)?;
    ensure!(tally.lost_connections == 0 && tally.slowest < UNNOTICED, "a writer noticed: {:?}", tally.slowest);
    Ok(tally)
}

/// Waits until everything committed by now has gone out: a relay that is stuck with some partition shows here.
fn wait_until_present_is_published(client: &mut Client, at_most: Duration) -> Result<Duration> {
    let since = Instant::now();
    let last: i64 = client.query_one("select coalesce(max(id), 0) from outbox.message", &[])?.get(0);
    wait::until(format_args!("messages up to {last} are published"), at_most, || {
        let left: i64 = client.query_one("select count(*) from outbox.message where id <= $1", &[&last])?.get(0);
        Ok(if left == 0 { Seen::Reached(()) } else { Seen::NotYet(format!("{left} wait")) })
    })?;
    Ok(since.elapsed())
}

fn rolling_restart_and_leader_elections_go_unnoticed(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    let mut client = scene.start(&[])?;
    let topic = scene.topic(PARTITIONS)?;
    let preferred = scene.brokers()?.leaders(&topic)?;
    let load = start_load(scene, &topic)?;
    let mut slowest = Duration::ZERO;
    for id in 1..=Brokers::COUNT {
        scene.brokers()?.restart(id)?;
        slowest = slowest.max(wait_until_present_is_published(&mut client, PATIENCE)?);
        load.wait_for_more(200, PATIENCE)?;
    }
    let moved = scene.brokers()?.leaders(&topic)?;
    ensure!(moved != preferred, "no partition changed its leader in the rolling restart");
    scene.brokers()?.elect_preferred_leaders()?;
    ensure!(scene.brokers()?.leaders(&topic)? == preferred, "the preferred leaders were not elected");
    load.wait_for_more(500, PATIENCE)?;
    let tally = finish(&mut client, load)?;
    scene.say(format_args!(
        "slowest transaction {:?}, published {slowest:?} after a restart at most, leaders {preferred:?} and {moved:?}",
        tally.slowest
    ));
    let failures: i64 = client.query_one("select count(*) from outbox.failure", &[])?.get(0);
    ensure!(failures == 0, "{failures} messages are noted as refused");
    // Leaders that change in order are no fault.
    scene.compare(&mut client, &topic)?.require_exactly_once()
}

/// Once the brokers have agreed on new leaders. What is on its way to the old one must be overdue first, which takes 10 s.
const AFTER_ELECTION: Duration = Duration::from_secs(20);

fn messages_go_on_while_one_of_three_brokers_is_dead(scene: &mut Scene) -> Result<()> {
    messages_go_on_without_one(scene, |brokers, id| brokers.member(id)?.kill())
}

fn messages_go_on_while_one_of_three_brokers_is_frozen(scene: &mut Scene) -> Result<()> {
    messages_go_on_without_one(scene, |brokers, id| brokers.member(id)?.freeze())
}

fn messages_go_on_without_one(scene: &mut Scene, take: fn(&Brokers, i32) -> Result<()>) -> Result<()> {
    scene.expect_lost_broker();
    let mut client = scene.start(&[])?;
    let topic = scene.topic(PARTITIONS)?;
    let load = start_load(scene, &topic)?;
    // Or it is the first request of the client that goes to the victim, and is given up only after 10 s.
    wait_until_present_is_published(&mut client, PATIENCE)?;
    let leaders = scene.brokers()?.leaders(&topic)?;
    let victim = *leaders.first().context("the topic has no partition")?;
    let gone = Instant::now();
    take(scene.brokers()?, victim)?;
    scene.brokers()?.wait_until_led(&topic, Some(victim))?;
    let elected = gone.elapsed();
    let took = wait_until_present_is_published(&mut client, AFTER_ELECTION)?;
    let mut slowest = Duration::ZERO;
    while gone.elapsed() < one_away() {
        slowest = slowest.max(wait_until_present_is_published(&mut client, AFTER_ELECTION)?);
        thread::sleep(Duration::from_millis(200));
    }
    scene.brokers()?.start_all()?;
    load.wait_for_more(500, PATIENCE)?;
    finish(&mut client, load)?;
    scene.say(format_args!(
        "new leaders after {elected:?}, all published {took:?} later, further waits were {slowest:?} at most"
    ));
    let failures: i64 = client.query_one("select count(*) from outbox.failure", &[])?.get(0);
    ensure!(failures == 0, "{failures} messages are noted as refused");
    scene.compare(&mut client, &topic)?.require_at_least_once()
}

/// So many messages go out when the brokers are back, and before, for comparison: enough for more than a second at full rate.
const BACKLOG: usize = 300_000;
/// Brokers are found again one by one: the relay tries each of them once a second.
const FLOWS_WITHIN: Duration = Duration::from_secs(5);

fn backlog_goes_out_at_full_rate_when_all_three_brokers_are_back(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    let mut client = scene.start(&[])?;
    let topic = scene.topic(PARTITIONS)?;
    let mut consumer = scene.follow(&topic)?;
    // For comparison: brokers that have just started as well, and a relay that waits for nothing.
    scene.cluster.set("outbox_relay.enabled", "off")?;
    wait_for_state(&mut client, "disabled")?;
    enqueue_backlog(&mut client, &topic, "before")?;
    scene.brokers()?.kill_all()?;
    scene.brokers()?.start_all()?;
    scene.cluster.set("outbox_relay.enabled", "on")?;
    let before = drain(&mut consumer)?.rate;

    scene.brokers()?.kill_all()?;
    let until = Instant::now() + all_away();
    enqueue_backlog(&mut client, &topic, "outage")?;
    wait_for_state(&mut client, "waiting for broker")?;
    // The end of the outage.
    thread::sleep(until.saturating_duration_since(Instant::now()));
    let brokers = scene.brokers()?;
    let (led, drained) = thread::scope(|scope| {
        let drains = scope.spawn(|| drain(&mut consumer));
        let led = brokers.launch_all().and_then(|()| brokers.wait_until_led(&topic, None)).map(|()| Instant::now());
        (led, drains.join())
    });
    let drained = drained.map_err(|_| anyhow!("the consumer panicked"))??;
    let led = led?;
    let (first, flows) = (drained.first.saturating_duration_since(led), drained.flows.saturating_duration_since(led));
    let after = drained.rate;
    wait_until_published(&mut client, PATIENCE)?;
    scene.say(format_args!(
        "first message {first:?} after the brokers' return, the first of the last partition {flows:?} after it, then {after:.0} \
         messages a second; {before:.0} without an outage"
    ));
    ensure!(flows < FLOWS_WITHIN, "the first message of some partition arrived {flows:?} after the brokers' return");
    // Far below what is seen, for others may be at work on the machine meanwhile.
    ensure!(after > before / 3.0, "{after:.0} messages a second after the outage, {before:.0} without");
    brokers.wait_until_whole()
}

fn enqueue_backlog(client: &mut Client, topic: &str, value: &str) -> Result<()> {
    client.execute(
        "select count(outbox.enqueue($1::text, 'key-' || n % 1000, $2::text)) from generate_series(1, $3::bigint) n",
        &[&topic, &value, &(BACKLOG as i64)],
    )?;
    Ok(())
}

/// How the backlog arrived.
struct Drained {
    first: Instant,
    /// When each partition had given one.
    flows: Instant,
    /// Messages a second from then on.
    rate: f64,
}

fn drain(consumer: &mut Consumer) -> Result<Drained> {
    let (mut partitions, mut arrived, mut first) = (BTreeSet::new(), 0, None);
    while partitions.len() < PARTITIONS as usize {
        partitions.insert(consumer.next(PATIENCE)?.context("some partition gave nothing")?.partition);
        first.get_or_insert_with(Instant::now);
        arrived += 1;
    }
    let (flows, left) = (Instant::now(), BACKLOG - arrived);
    consumer.take(left, PATIENCE)?;
    let first = first.context("a topic has a partition")?;
    Ok(Drained { first, flows, rate: left as f64 / flows.elapsed().as_secs_f64() })
}

fn wait_for_state(client: &mut Client, state: &str) -> Result<()> {
    wait::until(format_args!("the relay is in state {state:?}"), PATIENCE, || {
        let seen: Option<String> =
            client.query_one("select string_agg(state, ',') from outbox.pg_stat_relay", &[])?.get(0);
        Ok(if seen.as_deref() == Some(state) { Seen::Reached(()) } else { Seen::NotYet(format!("{seen:?}")) })
    })
}
