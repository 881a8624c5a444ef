//! The store on a real server and the publisher on a real broker keep the contract of the relay's ports.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay::conformance::publisher::{self, PublisherFixture, Record};
use outbox_relay::conformance::store;
use outbox_relay::kafka::{Caretaker, KafkaPublisher, Ring};
use outbox_relay::properties;
use outbox_relay::relay::ports::Publisher;
use outbox_relay_pg_test::broker::Broker;
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::wait;
use rustix::event::{PollFd, PollFlags, poll};

use crate::scene::{PATIENCE, Scene};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            publisher_keeps_every_rule_on_a_real_broker,
            store_keeps_every_rule_on_a_real_server,
    ]
}

/// Rows that a client takes at most until some are answered.
const CAPACITY: usize = 300;

/// Bytes above which the broker refuses a request: more than those of as many small rows as a client takes.
const REQUEST_BYTES_MAX: usize = 100_000;

/// A publisher with a topic of its own, which takes no large records.
struct Kafka {
    broker: Arc<Broker>,
    topic: String,
    /// Until it is closed, elsewhere: dropping it here would wait for its client each time.
    publisher: Option<KafkaPublisher>,
    ring: Ring,
}

impl Kafka {
    fn new(scene: &Scene) -> Result<Kafka> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let topic = format!("conformance-{}-{number}", std::process::id());
        scene.broker.create_topic(&topic, 2, &[("max.message.bytes", &REQUEST_BYTES_MAX.to_string())])?;
        // Rows stay queued for a moment, so that a purge finds them there.
        let setting = format!("linger.ms=100 queue.buffering.max.messages={CAPACITY}");
        let setting = properties::parse_setting(&setting)?;
        let properties = properties::effective(&scene.broker.bootstrap(), &setting, &properties::Properties::new());
        let ring = Ring::new()?;
        let publisher = KafkaPublisher::new(properties, ring.clone(), Caretaker::start(ring.clone())?);
        let publisher = Some(publisher.map_err(anyhow::Error::msg)?);
        Ok(Kafka { broker: Arc::clone(&scene.broker), topic, publisher, ring })
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        let _closed = self.publisher.take().map(KafkaPublisher::close);
    }
}

impl PublisherFixture for Kafka {
    fn publisher(&mut self) -> &mut dyn Publisher {
        self.publisher.as_mut().expect("it is closed at the end")
    }

    fn topic(&self) -> String {
        self.topic.clone()
    }

    fn rest(&mut self) -> bool {
        let patience = PATIENCE.try_into().expect("a minute");
        let rung = poll(&mut [PollFd::new(&self.ring, PollFlags::IN)], Some(&patience));
        self.ring.silence();
        rung.expect("a descriptor can be waited for") > 0
    }

    fn read(&mut self) -> Vec<Record> {
        let records = Consumer::follow(&self.broker.bootstrap(), &[&self.topic]).and_then(|mut all| all.rest(PATIENCE));
        let records = records.expect("the topic can be read").into_iter();
        records
            .map(|one| Record { partition: one.partition, key: one.key, value: one.value, headers: one.headers })
            .collect()
    }

    fn capacity(&self) -> Option<usize> {
        Some(CAPACITY)
    }

    fn refused_value(&self) -> Option<Vec<u8>> {
        Some(vec![b'x'; 2 * REQUEST_BYTES_MAX])
    }

    fn queues(&self) -> bool {
        true
    }
}

fn publisher_keeps_every_rule_on_a_real_broker(scene: &mut Scene) -> Result<()> {
    let report = publisher::run_all(|| Kafka::new(scene).expect("a publisher can be made"));
    scene.say(format_args!("rules tried: {}", report.outcomes.len()));
    ensure!(report.broken().is_empty() && report.skipped().is_empty(), "the contract is broken\n{report}");
    Ok(())
}

/// The rules are tried by a worker, on its own store and statements.
fn store_keeps_every_rule_on_a_real_server(scene: &mut Scene) -> Result<()> {
    scene.cluster.use_test_hooks()?;
    let mut client = scene.start_without_broker(&[])?;
    client.batch_execute(include_str!("../../hooks/conformance/setup.sql")).context("the tables of the suite")?;
    // Without a stamp of its own a database publishes nothing.
    client.execute("select outbox.resume()", &[])?;
    scene.cluster.set("outbox_relay.test_conformance", "on")?;
    wait::until_true("the suite has ended", PATIENCE, || {
        Ok(client.query_one("select exists (select from conformance.outcome where rule = '')", &[])?.get(0))
    })?;
    let rows = client.query("select rule, outcome from conformance.outcome where rule <> '' order by ctid", &[])?;
    let outcomes: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let listing: String = outcomes.iter().map(|(rule, outcome)| format!("{rule}: {outcome}\n")).collect();
    scene.say(format_args!("rules tried: {}", outcomes.len()));
    ensure!(outcomes.iter().map(|(rule, _)| rule).eq(store::RULES.iter().map(|rule| rule.name)), "other rules");
    let unmet: Vec<_> = outcomes.iter().filter(|(_, outcome)| outcome != "kept").map(|(rule, _)| rule).collect();
    // Whoever is told of stranded messages reads the server log: a test of its own.
    ensure!(unmet == ["a_message_that_no_relay_can_own_is_reported"], "the contract is broken\n{listing}");
    Ok(())
}
