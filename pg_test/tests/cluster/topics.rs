//! A topic changes: it is deleted and created again, gets more partitions, or is not there until its first message comes.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::consumer::Record;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;
use uuid::Uuid;

use crate::scene::{DATABASE, PATIENCE, Scene, enqueue, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            deleted_topic_is_published_to_again_within_seconds_of_its_creation,
            keys_keep_their_order_while_partitions_are_added;
        (Own, Any):
            topic_that_the_broker_creates_by_itself_takes_its_first_messages_within_seconds,
    ]
}

/// From the creation of a topic to the last message that waited for it.
const SECONDS: Duration = Duration::from_secs(20);

fn start_load(scene: &Scene, topic: &str) -> Result<Load> {
    let plan = Plan { writers: 4, rest: Duration::from_millis(5), ..Plan::new(DATABASE, topic) };
    let load = Load::start(scene.cluster.address(), &plan)?;
    load.wait_for(500, PATIENCE)?;
    Ok(load)
}

/// Committed messages, and those of them that are still in the table, both as of one moment.
fn committed_and_waiting(client: &mut Client) -> Result<(HashSet<Uuid>, HashSet<Uuid>)> {
    let mut moment = client.build_transaction().isolation_level(postgres::IsolationLevel::RepeatableRead).start()?;
    let mut ids = |table: &str| -> Result<HashSet<Uuid>> {
        Ok(moment.query(&format!("select message_id from {table}"), &[])?.iter().map(|row| row.get(0)).collect())
    };
    Ok((ids("order_event")?, ids("outbox.message")?))
}

fn deleted_topic_is_published_to_again_within_seconds_of_its_creation(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("outbox_relay relay WARNING:");
    let mut client = scene.start(&[])?;
    let topic = scene.topic(4)?;
    let load = start_load(scene, &topic)?;
    scene.broker.delete_topic(&topic)?;
    wait::until_true("a failure is noted", PATIENCE, || {
        Ok(client.query_one("select exists (select from outbox.failure)", &[])?.get(0))
    })?;
    load.wait_for_more(1_000, PATIENCE)?;
    // By now what the broker took before the topic was gone is removed, whatever bucket it is of.
    let (committed, waiting) = committed_and_waiting(&mut client)?;

    scene.broker.create_topic(&topic, 4, &[])?;
    let since = Instant::now();
    let tally = load.stop()?;
    wait_until_published(&mut client, SECONDS)?;
    let took = since.elapsed();
    tally.check(&load::committed(&mut client)?)?;
    let figures = scene.compare(&mut client, &topic)?;
    scene.say(format_args!(
        "all published {took:?} after the topic's creation; {} messages waited when it was gone, {} are gone with it",
        waiting.len(),
        figures.missing.len()
    ));
    ensure!(figures.invented.is_empty() && figures.altered.is_empty() && figures.duplicates == 0, "{figures}");
    ensure!(figures.out_of_order.is_empty() && figures.scattered.is_empty(), "{figures}");
    // What is missing was acknowledged before: it was out of the table when the topic was gone.
    let lost = figures.missing.iter().filter(|id| waiting.contains(*id) || !committed.contains(*id)).count();
    ensure!(lost == 0, "{lost} messages were lost that had not been deleted with the topic");
    ensure!(!waiting.is_empty(), "nothing waited");
    require_gaps_only_in_front(&mut client, &figures.missing)?;
    wait::until_true("outbox.failure is empty", PATIENCE, || {
        Ok(client.query_one("select not exists (select from outbox.failure)", &[])?.get(0))
    })
}

/// Of each key, what is missing came before all that is there.
fn require_gaps_only_in_front(client: &mut Client, missing: &[Uuid]) -> Result<()> {
    let missing: HashSet<&Uuid> = missing.iter().collect();
    let mut keys: BTreeMap<Vec<u8>, Vec<(i64, bool)>> = BTreeMap::new();
    for message in load::committed(client)? {
        keys.entry(message.key).or_default().push((message.place, missing.contains(&message.message_id)));
    }
    for (key, mut places) in keys {
        places.sort_unstable();
        let in_front = places.iter().take_while(|(_, missing)| *missing).count();
        let behind = places[in_front..].iter().filter(|(_, missing)| *missing).count();
        ensure!(behind == 0, "{behind} messages of {} are missing between others", String::from_utf8_lossy(&key));
    }
    Ok(())
}

fn keys_keep_their_order_while_partitions_are_added(scene: &mut Scene) -> Result<()> {
    const BEFORE: i32 = 2;
    const AFTER: i32 = 6;
    // By default the client looks at its topics once a minute.
    let mut client = scene.start(&[("outbox_relay.kafka_properties", "topic.metadata.refresh.interval.ms=1000")])?;
    let topic = scene.topic(BEFORE)?;
    let load = start_load(scene, &topic)?;
    scene.broker.grow_topic(&topic, AFTER as usize)?;
    let consumer = wait::until("the topic has grown", PATIENCE, || {
        let consumer = scene.follow(&topic)?;
        let partitions = consumer.partitions();
        Ok(if partitions == AFTER as usize { Seen::Reached(consumer) } else { Seen::NotYet(partitions.to_string()) })
    })?;
    wait::until_true("all partitions have messages", PATIENCE, || {
        Ok(consumer.counts()?.iter().all(|count| *count > 0))
    })?;
    load.wait_for_more(1_000, PATIENCE)?;
    let tally = load.stop()?;
    wait_until_published(&mut client, PATIENCE)?;
    let committed = load::committed(&mut client)?;
    tally.check(&committed)?;
    let figures = scene.compare(&mut client, &topic)?;
    ensure!(
        figures.missing.is_empty()
            && figures.invented.is_empty()
            && figures.altered.is_empty()
            && figures.duplicates == 0,
        "{figures}"
    );
    let places = committed.into_iter().map(|message| (message.message_id, message.place)).collect();
    let moved = require_sent_in_order(&scene.follow(&topic)?.rest(PATIENCE)?, &places)?;
    scene.say(format_args!("{moved} keys have moved to another partition"));
    ensure!(moved > 0, "no key has moved");
    Ok(())
}

/// Offset in the partition and place among the messages of the key.
type Placed = (i64, i64);

/// Within a partition a key's places ascend, and all that is on its later partition comes behind all on its earlier one.
/// Returns how many keys are on more than one.
fn require_sent_in_order(records: &[Record], places: &BTreeMap<Uuid, i64>) -> Result<usize> {
    let mut placed: BTreeMap<(&[u8], i32), Vec<Placed>> = BTreeMap::new();
    for record in records {
        let place = *places.get(&record.message_id()?).context("an invented message")?;
        let key = record.key.as_deref().context("a record without a key")?;
        placed.entry((key, record.partition)).or_default().push((record.offset, place));
    }
    let mut keys: BTreeMap<&[u8], Vec<(i64, i64)>> = BTreeMap::new();
    for ((key, partition), mut on_it) in placed {
        on_it.sort_unstable();
        let ascend = on_it.windows(2).all(|pair| pair[0].1 < pair[1].1);
        ensure!(ascend, "partition {partition} has key {} out of order", String::from_utf8_lossy(key));
        let range = on_it.first().zip(on_it.last()).map(|(first, last)| (first.1, last.1));
        keys.entry(key).or_default().extend(range);
    }
    for (key, ranges) in &mut keys {
        ranges.sort_unstable();
        let apart = ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
        ensure!(apart, "key {} went to and fro: places {ranges:?}", String::from_utf8_lossy(key));
    }
    Ok(keys.values().filter(|ranges| ranges.len() > 1).count())
}

/// A client asks for a topic that is not there, and by that alone such a broker creates it.
fn topic_that_the_broker_creates_by_itself_takes_its_first_messages_within_seconds(scene: &mut Scene) -> Result<()> {
    const TOPICS: usize = 5;
    const MESSAGES: usize = 40;
    scene.expect_complaint("takes no messages");
    scene.broker.restart_with("auto.create.topics.enable", "true")?;
    let mut client = scene.start(&[
        // Whatever were taken for the fault of a message would park it at once.
        ("outbox_relay.max_attempts", "1"),
        ("outbox_relay.park_patience", "0"),
        ("outbox_relay.kafka_properties", "allow.auto.create.topics=false"),
    ])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    enqueue(&mut client, &scene.topic_name(), "key", "not yet")?;
    wait::until_true("a topic is missing that must not be created", PATIENCE, || {
        let missing = "select exists (select from outbox.failure where kind = 'topic' and attempts > 3)";
        Ok(client.query_one(missing, &[])?.get(0))
    })?;
    scene.cluster.set("outbox_relay.kafka_properties", "")?;
    wait_until_published(&mut client, SECONDS)?;

    let mut took = Vec::new();
    for round in 0..TOPICS {
        let topic = scene.topic_name();
        // The last one gets its messages for a partition that nobody has heard of yet.
        let partition = (round == TOPICS - 1).then_some(0);
        let mut all = client.transaction()?;
        let mut wanted: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
        for number in 0..MESSAGES {
            let key = format!("key-{}", number % 10);
            let enqueue = "select outbox.enqueue($1::text, $2::text, 'v'::text, partition => $3::integer)";
            wanted.entry(key.clone()).or_default().push(all.query_one(enqueue, &[&topic, &key, &partition])?.get(0));
        }
        let since = Instant::now();
        all.commit()?;
        wait_until_published(&mut client, SECONDS)?;
        took.push(since.elapsed());
        let mut arrived: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
        for record in scene.follow(&topic)?.rest(PATIENCE)? {
            let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned();
            arrived.entry(key).or_default().push(record.message_id()?);
        }
        ensure!(arrived == wanted, "not all arrived once and in order");
    }
    let told = scene.cluster.log()?.lines_with("takes no messages").count();
    scene.say(format_args!("published {took:?} after the commit; {told} lines tell of topics"));
    Ok(())
}
