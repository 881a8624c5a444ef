//! A topic whose only replica is away has no leader: what is for it waits, and nothing else does.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::wait::{self, Seen};
use uuid::Uuid;

use crate::scene::{PATIENCE, Scene, enqueue, enqueue_many, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![(Three, Any): topic_without_a_leader_holds_up_no_other_topic_of_its_bucket]
}

/// Far below the time after which a topic counts as silent.
const AT_ONCE: Duration = Duration::from_secs(3);

const OTHERS: i32 = 1_000;

fn topic_without_a_leader_holds_up_no_other_topic_of_its_bucket(scene: &mut Scene) -> Result<()> {
    const NODE: i32 = 2;
    scene.expect_lost_broker();
    scene.expect_complaint("outbox_relay relay WARNING:");
    let mut client = scene.start(&[])?;
    client.execute("select outbox.set_bucket_count(1)", &[])?;
    let led = scene.topic(3)?;
    let alone = scene.topic_name();
    scene.broker.create_topic_on(&alone, NODE)?;
    let mut first = Vec::new();
    first.push(enqueue(&mut client, &alone, "key", "while it has a leader")?);
    enqueue(&mut client, &led, "key", "while both have leaders")?;
    wait_until_published(&mut client, PATIENCE)?;
    let mut others = scene.follow(&led)?;
    others.take(1, PATIENCE)?;

    scene.brokers()?.member(NODE)?.kill()?;
    scene.brokers()?.wait_until_led(&led, Some(NODE))?;
    ensure!(scene.brokers()?.leaders(&alone)? == [-1], "the topic still has a leader");
    // The relay's client finds the other topic's new leaders in a second or two, which is not what this is about.
    enqueue_many(&mut client, &led, OTHERS)?;
    others.take(OTHERS as usize, PATIENCE)?;
    // Of one transaction, so that all are of one batch at first.
    let mut transaction = client.transaction()?;
    let mut waiting: Vec<Uuid> = Vec::new();
    for number in 0..10 {
        waiting.push(enqueue(&mut transaction, &alone, "key", &format!("waits {number}"))?);
        enqueue(&mut transaction, &led, "key", &format!("flows {number}"))?;
    }
    transaction.commit()?;
    let since = Instant::now();
    others.take(10, AT_ONCE)?;
    scene.say(format_args!("others of the same batch arrived after {:?}", since.elapsed()));
    for round in 0..3 {
        let since = Instant::now();
        waiting.push(enqueue(&mut client, &alone, "key", &format!("waits in round {round}"))?);
        enqueue_many(&mut client, &led, OTHERS)?;
        others.take(OTHERS as usize, AT_ONCE)?;
        scene.say(format_args!("round {round}: {OTHERS} others arrived after {:?}", since.elapsed()));
    }
    wait::until("only what is for the topic is left", PATIENCE, || {
        let rows = client.query("select message_id from outbox.message order by id", &[])?;
        let left: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        Ok(if left == waiting { Seen::Reached(()) } else { Seen::NotYet(format!("{} rows", left.len())) })
    })?;
    wait::until_true("outbox.parked tells of the topic", PATIENCE, || {
        let told = "select count(*) > 0 from outbox.parked where topic = $1 and state = 'topic'";
        Ok(client.query_one(told, &[&alone])?.get(0))
    })?;
    let parked: i64 = client.query_one("select count(*) from outbox.failure where parked_at is not null", &[])?.get(0);
    ensure!(parked == 0, "{parked} messages were parked by an outage");

    scene.brokers()?.start_all()?;
    let since = Instant::now();
    wait_until_published(&mut client, PATIENCE)?;
    scene.say(format_args!("the topic's own were published {:?} after its leader's return", since.elapsed()));
    let arrived = scene.follow(&alone)?.rest(PATIENCE)?;
    let mut ids = Vec::new();
    for record in &arrived {
        let id = record.message_id()?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    first.extend(waiting);
    ensure!(ids == first, "{ids:?} arrived, not {first:?}");
    Ok(())
}
