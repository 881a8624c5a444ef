//! The witnesses themselves, without the extension: what they could not see they could not testify.

use std::time::Duration;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::broker::client_settings;
use outbox_relay_pg_test::cluster::Shutdown;
use outbox_relay_pg_test::load::{self, Load, Plan};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::scene::{PATIENCE, Scene};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            consumer_tells_null_from_empty,
            load_knows_what_was_committed_through_a_crash;
        (Own, Any):
            broker_keeps_its_records_through_stop_and_kill_and_is_silent_when_frozen,
    ]
}

fn produce(scene: &Scene, records: &[BaseRecord<'_, [u8], [u8]>]) -> Result<()> {
    let producer: BaseProducer = client_settings(&scene.broker.bootstrap()).set("acks", "all").create()?;
    for record in records {
        let copy = BaseRecord { headers: record.headers.clone(), delivery_opaque: (), ..*record };
        producer.send(copy).map_err(|(error, _)| error)?;
    }
    producer.flush(PATIENCE)?;
    Ok(())
}

fn consumer_tells_null_from_empty(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic(1)?;
    let headers = OwnedHeaders::new()
        .insert(Header { key: "null", value: None::<&[u8]> })
        .insert(Header { key: "empty", value: Some(&[][..]) })
        .insert(Header { key: "null", value: Some(&[0u8][..]) });
    produce(
        scene,
        &[
            BaseRecord::to(&topic),
            BaseRecord::to(&topic).key(&[][..]).payload(&[][..]),
            BaseRecord::to(&topic).key(&[0][..]).headers(headers),
        ],
    )?;
    let records = scene.follow(&topic)?.rest(PATIENCE)?;
    let seen: Vec<_> = records.iter().map(|record| (record.key.as_deref(), record.value.as_deref())).collect();
    ensure!(seen == [(None, None), (Some(&[][..]), Some(&[][..])), (Some(&[0][..]), None)], "{seen:?}");
    let headers: Vec<_> = records[2].headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
    ensure!(headers == [("null", None), ("empty", Some(&[][..])), ("null", Some(&[0][..]))], "{headers:?}");
    Ok(())
}

fn broker_keeps_its_records_through_stop_and_kill_and_is_silent_when_frozen(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic(3)?;
    let mut consumer = scene.follow(&topic)?;
    let one = [BaseRecord::to(&topic).payload(&b"v"[..])];
    produce(scene, &one)?;
    scene.broker.stop()?;
    scene.broker.start()?;
    produce(scene, &one)?;
    scene.broker.kill()?;
    scene.broker.start()?;
    produce(scene, &one)?;
    let followed = consumer.rest(PATIENCE)?.len();
    let read_anew = scene.follow(&topic)?.rest(PATIENCE)?.len();
    ensure!((followed, read_anew) == (3, 3), "3 records were written, {followed} followed, {read_anew} read anew");

    scene.broker.freeze()?;
    ensure!(consumer.count_within(Duration::from_millis(200)).is_err(), "a frozen broker answered");
    scene.broker.thaw()?;
    ensure!(consumer.count()? == 3, "the broker lost records in a freeze");
    Ok(())
}

/// With a stand-in for enqueue: writers survive a killed server and their notes agree with what it kept.
fn load_knows_what_was_committed_through_a_crash(scene: &mut Scene) -> Result<()> {
    scene.expect_crash();
    scene.cluster.start()?;
    let mut client = scene.cluster.connect("postgres")?;
    load::create_tables(&mut client)?;
    client.batch_execute(
        "create schema outbox;
         create function outbox.enqueue(text, text, text) returns uuid language sql as 'select gen_random_uuid()'",
    )?;
    let load = Load::start(scene.cluster.address(), &Plan { writers: 4, ..Plan::new("postgres", "topic") })?;
    load.wait_for(200, PATIENCE)?;
    scene.cluster.kill()?;
    scene.cluster.start()?;
    load.wait_for_more(200, PATIENCE)?;
    scene.cluster.stop(Shutdown::Immediate)?;
    scene.expect_complaint("WARNING:  terminating connection due to immediate shutdown command");
    scene.cluster.start()?;
    load.wait_for_more(200, PATIENCE)?;
    let tally = load.stop()?;
    ensure!(tally.lost_connections >= 4, "{} connections were lost in two crashes", tally.lost_connections);
    let mut committed = load::committed(&mut scene.cluster.connect("postgres")?)?;
    tally.check(&committed)?;
    scene.say(format_args!(
        "{} confirmed, {} rolled back, {} unknown; {} are there",
        tally.committed.len(),
        tally.rolled_back.len(),
        tally.unknown.len(),
        committed.len()
    ));
    // It would see a lost one.
    committed.retain(|message| !tally.committed.contains(&message.message_id));
    ensure!(tally.check(&committed).is_err(), "lost messages were not noticed");
    Ok(())
}
