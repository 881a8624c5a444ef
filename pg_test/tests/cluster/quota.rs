//! A broker that throttles producers is a delay: who enqueues does not feel it, and everything arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;
use uuid::Uuid;

use crate::scene::{PATIENCE, Scene, enqueue, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            producer_quota_is_only_a_delay,
            quota_that_takes_longer_over_a_batch_than_the_client_waits_is_only_a_delay,
            batches_of_two_seconds_of_a_small_quota_keep_the_client_patient,
    ]
}

const SIZE: usize = 4_000;

/// Seconds of which a quota is the average: so much passes at once.
const WINDOW: u32 = 10;

/// As long as a message may take to be enqueued while others are throttled.
const AT_ONCE: Duration = Duration::from_secs(1);

const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// As long as is looked on while more is enqueued.
const LOOKED_ON: Duration = Duration::from_secs(4);

fn producer_quota_is_only_a_delay(scene: &mut Scene) -> Result<()> {
    let given_up = throttled(scene, 400_000, 1_600, "")?;
    ensure!(given_up == 0, "the client gave up {given_up} requests");
    Ok(())
}

/// The broker does not read from a connection until what it has got is within the quota.
fn quota_that_takes_longer_over_a_batch_than_the_client_waits_is_only_a_delay(scene: &mut Scene) -> Result<()> {
    let given_up = throttled(scene, 10_000, 150, "")?;
    ensure!(given_up > 0, "the client gave up no request");
    Ok(())
}

fn batches_of_two_seconds_of_a_small_quota_keep_the_client_patient(scene: &mut Scene) -> Result<()> {
    let given_up = throttled(scene, 10_000, 60, "batch.size=20000")?;
    ensure!(given_up == 0, "the client gave up {given_up} requests");
    Ok(())
}

/// Publishes so many messages at so many bytes a second, and returns how many times the client gave up waiting.
fn throttled(scene: &mut Scene, rate: u32, messages: usize, properties: &str) -> Result<usize> {
    scene.expect_lost_broker();
    let topic = scene.topic(1)?;
    // A quota of its own beside the tests that share the broker.
    let properties = format!("client.id={topic} {properties}");
    scene.broker.limit_producers(&topic, rate)?;
    let settings = [
        ("outbox_relay.kafka_properties", properties.as_str()),
        ("outbox_relay.max_attempts", "1"),
        ("outbox_relay.park_patience", "0"),
    ];
    let mut client = scene.start(&settings)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let value = "v".repeat(SIZE);
    let since = Instant::now();
    let mut states: BTreeMap<String, u32> = BTreeMap::new();
    let mut slowest = Duration::ZERO;
    let mut look = |client: &mut Client| -> Result<i64> {
        let row = client.query_one(
            "select (select count(*) from outbox.message), (select count(*) from outbox.failure), state
             from outbox.pg_stat_relay",
            &[],
        )?;
        ensure!(row.get::<_, i64>(1) == 0, "the quota is taken for the fault of a message");
        *states.entry(row.get(2)).or_default() += 1;
        std::thread::sleep(BETWEEN_LOOKS);
        Ok(row.get(0))
    };
    let mut enqueue = |client: &mut Client, key: &str, value: &str| -> Result<()> {
        let before = Instant::now();
        enqueue(client, &topic, key, value)?;
        slowest = slowest.max(before.elapsed());
        Ok(())
    };
    client.execute(
        "select outbox.enqueue($1::text, 'key-' || n % 50, $2::text) from generate_series(1, $3::integer) n",
        &[&topic, &value, &i32::try_from(messages)?],
    )?;
    let looked_on = Instant::now();
    while looked_on.elapsed() < LOOKED_ON {
        enqueue(&mut client, "meanwhile", "small")?;
        look(&mut client)?;
    }
    // The second time for a message that comes while the broker makes all others wait.
    for more in [true, false] {
        wait::until("outbox.message is empty", PATIENCE, || {
            let left = look(&mut client)?;
            Ok(if left == 0 { Seen::Reached(()) } else { Seen::NotYet(format!("{left} rows wait")) })
        })?;
        if more {
            enqueue(&mut client, "meanwhile", "small")?;
        }
    }
    let took = since.elapsed();
    let error: Option<String> = client.query_one("select last_error from outbox.pg_stat_relay", &[])?.get(0);
    let log = scene.cluster.log()?;
    let given_up = log.lines_with("Timed out ProduceRequest").count();
    scene.say(format_args!(
        "{} kB at {rate} bytes a second took {took:?}; the slowest enqueue took {slowest:?}; looks at the state: {states:?}; \
         {given_up} requests were given up; last error {error:?}",
        messages * SIZE / 1000
    ));
    let records = scene.follow(&topic)?.rest(PATIENCE)?;
    let arrived: BTreeSet<Uuid> = records.iter().map(|record| record.message_id()).collect::<Result<_>>()?;
    ensure!(arrived.len() == records.len(), "some arrived twice");
    ensure!(records.iter().filter(|record| record.text() == value).count() == messages, "not all arrived");
    ensure!(slowest < AT_ONCE, "an enqueue took {slowest:?}");
    ensure!(took > Duration::from_secs(u64::from(WINDOW) / 2), "nothing was throttled");
    ensure!(states.contains_key("publishing") || states.contains_key("waiting for broker"), "{states:?}");
    Ok(given_up)
}
