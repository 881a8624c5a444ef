//! What a broker knows of an idempotent producer may be gone or wrong: then the relay goes on, if need be with a new client.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::wait::{self, Seen};
use outbox_relay_pg_test::{broker, checker, state};
use postgres::Client;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Code};
use uuid::Uuid;

use crate::scene::{DATABASE, PATIENCE, Scene, enqueue, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Own, Any): messages_go_on_after_the_broker_has_forgotten_the_producer;
        (Shared, Any):
            key_keeps_its_order_when_the_client_fails_for_good,
            client_that_fails_for_good_under_load_loses_nothing,
    ]
}

fn publish_some(scene: &mut Scene, topic: &str, seed: u64) -> Result<()> {
    let plan = Plan { writers: 4, until_committed: Some(1_000), seed, ..Plan::new(DATABASE, topic) };
    Load::start(scene.cluster.address(), &plan)?.finish()?;
    wait_until_published(&mut scene.session()?, PATIENCE)
}

fn messages_go_on_after_the_broker_has_forgotten_the_producer(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    publish_some(scene, &topic, 1)?;
    ensure!(known_producers(scene, &topic)? == 1, "the broker knows {} producers", known_producers(scene, &topic)?);
    // It looks every half second, see its properties.
    scene.broker.set_node("producer.id.expiration.ms", "1000")?;
    for round in 2..4 {
        wait::until("the broker has forgotten the producer", PATIENCE, || {
            let known = known_producers(scene, &topic)?;
            Ok(if known == 0 { Seen::Reached(()) } else { Seen::NotYet(format!("it knows {known}")) })
        })?;
        publish_some(scene, &topic, round)?;
    }
    let failures: i64 = client.query_one("select count(*) from outbox.failure", &[])?.get(0);
    ensure!(failures == 0, "{failures} messages are noted as refused");
    scene.compare(&mut client, &topic)?.require_exactly_once()
}

/// How many producers the only partition of a topic remembers: nobody but Kafka's own tool can ask.
fn known_producers(scene: &Scene, topic: &str) -> Result<usize> {
    let printed = state::run(
        Command::new("java")
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp", &broker::class_path()?])
            .args(["org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", &scene.broker.bootstrap()])
            .args(["describe-producers", "--topic", topic, "--partition", "0"]),
    )?;
    let mut lines = printed.lines().filter(|line| !line.trim().is_empty());
    let header = lines.next().unwrap_or_default();
    ensure!(header.starts_with("ProducerId"), "the tool printed {printed:?}");
    Ok(lines.count())
}

/// What a broker says of a producer that it takes for another, or does not know.
const FATAL: [(&str, Code); 3] = [
    ("out of order sequence number", Code::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("unknown producer id", Code::RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID),
    ("invalid producer epoch", Code::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH),
];

/// How often each comes.
const TIMES: usize = 3;

/// A simulated broker that says such things.
fn contradicting_broker(scene: &mut Scene) -> Result<(MockCluster<'static, DefaultProducerContext>, Client)> {
    scene.expect_complaint("outbox_relay relay WARNING:  Kafka client reports a problem");
    // A client that fails at once is not replaced at once.
    scene.expect_complaint("takes no messages");
    let kafka = MockCluster::new(1)?;
    let client = scene.start_without_broker(&[
        ("outbox_relay.bootstrap_servers", kafka.bootstrap_servers().as_str()),
        // Messages of one commit go in one request.
        ("outbox_relay.kafka_properties", "linger.ms=100"),
    ])?;
    Ok((kafka, client))
}

/// One request at a time: unlike a real broker, the simulated one takes what comes behind a request that it has refused.
fn key_keeps_its_order_when_the_client_fails_for_good(scene: &mut Scene) -> Result<()> {
    const MESSAGES: i32 = 20;
    let (kafka, mut client) = contradicting_broker(scene)?;
    let bootstrap = kafka.bootstrap_servers();
    for (name, code) in FATAL {
        let topic = scene.topic_name();
        kafka.create_topic(&topic, 2, 1)?;
        let mut sent = Vec::new();
        for round in 0..TIMES {
            kafka.request_errors(RDKafkaApiKey::Produce, &[code]);
            let mut transaction = client.transaction()?;
            for number in 0..MESSAGES {
                sent.push(enqueue(&mut transaction, &topic, "one key", &format!("{round}, {number}"))?);
            }
            transaction.commit()?;
            wait_until_published(&mut client, PATIENCE).with_context(|| format!("after {name}"))?;
        }
        let mut arrived: Vec<Uuid> = Vec::new();
        for record in Consumer::follow(&bootstrap, &[&topic])?.rest(PATIENCE)? {
            let id = record.message_id()?;
            if !arrived.contains(&id) {
                arrived.push(id);
            }
        }
        ensure!(arrived == sent, "after {name} {arrived:?} arrived, not {sent:?}");
    }
    // Told once a minute, though it has happened again and again.
    let log = scene.cluster.log()?;
    for (name, _) in FATAL {
        let code = name.to_uppercase().replace(' ', "_");
        let told = log.lines_with(&format!("DETAIL:  {code} (")).count();
        ensure!(told <= 1, "{told} log lines tell of {code}");
    }
    Ok(())
}

fn client_that_fails_for_good_under_load_loses_nothing(scene: &mut Scene) -> Result<()> {
    let (kafka, mut client) = contradicting_broker(scene)?;
    let bootstrap = kafka.bootstrap_servers();
    for (name, code) in FATAL {
        let topic = scene.topic_name();
        kafka.create_topic(&topic, 2, 1)?;
        client.batch_execute("truncate order_event")?;
        let plan = Plan { writers: 4, rest: Duration::from_millis(2), ..Plan::new(DATABASE, &topic) };
        let load = Load::start(scene.cluster.address(), &plan)?;
        load.wait_for(200, PATIENCE)?;
        for _ in 0..TIMES {
            // Of a request, and of the one behind it, which may be on its way.
            kafka.request_errors(RDKafkaApiKey::Produce, &[code, code]);
            load.wait_for_more(500, PATIENCE)?;
            wait_until_present_is_published(&mut client).with_context(|| format!("after {name}"))?;
        }
        let tally = load.stop()?;
        wait_until_published(&mut client, PATIENCE)?;
        let committed = load::committed(&mut client)?;
        tally.check(&committed)?;
        let figures = checker::compare(&committed, &Consumer::follow(&bootstrap, &[&topic])?.rest(PATIENCE)?);
        scene.say(format_args!("{name}: {figures}"));
        ensure!(figures.missing.is_empty() && figures.invented.is_empty() && figures.altered.is_empty(), "{figures}");
    }
    let failures: i64 = client.query_one("select count(*) from outbox.failure", &[])?.get(0);
    ensure!(failures == 0, "{failures} messages are noted as refused");
    Ok(())
}

fn wait_until_present_is_published(client: &mut Client) -> Result<()> {
    let last: i64 = client.query_one("select coalesce(max(id), 0) from outbox.message", &[])?.get(0);
    wait::until_true("what was committed is published", PATIENCE, || {
        let left = client.query_one("select not exists (select from outbox.message where id <= $1)", &[&last])?;
        Ok(left.get(0))
    })
}
