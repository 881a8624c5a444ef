//! What lies in Kafka is what was enqueued, byte for byte, where a Java producer would have put it.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::consumer::Record;
use outbox_relay_pg_test::murmur2;
use uuid::Uuid;

use crate::scene::{PATIENCE, Scene, enqueue, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            null_empty_and_binary_arrive_byte_for_byte,
            a_hundred_headers_arrive_in_order_with_duplicates,
            trace_context_of_the_transaction_arrives_behind_the_messages_own_headers,
            messages_enqueued_many_at_a_time_arrive_in_order,
            keyed_records_lie_on_the_partition_that_java_chooses,
            keys_lie_where_javas_own_producer_puts_them,
            explicit_partition_wins_over_the_key,
            record_timestamp_is_the_time_of_publishing,
    ]
}

type Bytes = Option<Vec<u8>>;

fn null_empty_and_binary_arrive_byte_for_byte(scene: &mut Scene) -> Result<()> {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let kinds: [Bytes; 3] = [None, Some(Vec::new()), Some(all_bytes)];
    // Header values of the same three kinds, and text.
    let headers = serde_json::json!([
        ["null", null],
        ["empty", ""],
        ["binary", {"base64": "AAH/AA=="}],
        ["text", "größer"],
        ["", ""],
        ["null", null]
    ]);
    let expected: Vec<(&str, Bytes)> = vec![
        ("null", None),
        ("empty", Some(vec![])),
        ("binary", Some(vec![0, 1, 255, 0])),
        ("text", Some("größer".as_bytes().to_vec())),
        ("", Some(vec![])),
        ("null", None),
    ];
    let mut client = scene.start(&[])?;
    let topic = scene.topic(3)?;
    let mut sent: HashMap<Uuid, (Bytes, Bytes, bool)> = HashMap::new();
    for key in &kinds {
        for value in &kinds {
            for with_headers in [false, true] {
                let headers = with_headers.then_some(&headers);
                let id = client
                    .query_one("select outbox.enqueue($1, $2::bytea, $3::bytea, $4)", &[&topic, key, value, &headers])?
                    .get(0);
                sent.insert(id, (key.clone(), value.clone(), with_headers));
            }
        }
    }
    let records = scene.follow(&topic)?.take(sent.len(), PATIENCE)?;
    for record in &records {
        let (key, value, with_headers) = sent.remove(&record.message_id()?).context("an unknown or repeated id")?;
        ensure!(record.key == key && record.value == value, "sent {key:?} {value:?}, arrived {record:?}");
        let expected = if with_headers { &expected[..] } else { &[] };
        let headers = own_headers(record);
        ensure!(headers == expected, "sent {expected:?}, arrived {headers:?}");
    }
    Ok(())
}

/// The headers in their order, without the message id, which is the last.
fn own_headers(record: &Record) -> Vec<(&str, Bytes)> {
    let own = &record.headers[..record.headers.len() - 1];
    own.iter().map(|(name, value)| (name.as_str(), value.clone())).collect()
}

fn a_hundred_headers_arrive_in_order_with_duplicates(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    // Ten names, ten times each, in no order that a sort would make.
    let pairs: Vec<(String, String)> =
        (0..100).map(|n: i32| (format!("h{}", (n * 7) % 10), format!("value {n}"))).collect();
    let headers = serde_json::to_value(&pairs)?;
    client.execute("select outbox.enqueue($1, 'k', 'v', $2)", &[&topic, &headers])?;
    let records = scene.follow(&topic)?.take(1, PATIENCE)?;
    records[0].message_id()?;
    let arrived = own_headers(&records[0]);
    let expected: Vec<(&str, Bytes)> =
        pairs.iter().map(|(name, value)| (name.as_str(), Some(value.as_bytes().to_vec()))).collect();
    ensure!(arrived == expected, "arrived {arrived:?}");
    Ok(())
}

fn trace_context_of_the_transaction_arrives_behind_the_messages_own_headers(scene: &mut Scene) -> Result<()> {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    client.batch_execute(&format!(
        "begin;
        set local outbox_relay.traceparent = '{PARENT}';
        set local outbox_relay.tracestate = 'vendor=1';
        select outbox.enqueue('{topic}', 'k', 'none');
        select outbox.enqueue('{topic}', 'k', 'own', '{{\"traceparent\": \"own\"}}');
        select outbox.enqueue('{topic}', 'k', 'other', '{{\"a\": \"1\"}}');
        commit;
        select outbox.enqueue('{topic}', 'k', 'after');"
    ))?;
    let records = scene.follow(&topic)?.take(4, PATIENCE)?;
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    let (parent, state) = (("traceparent", bytes(PARENT)), ("tracestate", bytes("vendor=1")));
    let expected = [
        vec![parent.clone(), state.clone()],
        vec![("traceparent", bytes("own"))],
        vec![("a", bytes("1")), parent, state],
        vec![],
    ];
    for (record, expected) in records.iter().zip(&expected) {
        let arrived = own_headers(record);
        ensure!(arrived == *expected, "{}: arrived {arrived:?}", record.text());
    }
    Ok(())
}

fn messages_enqueued_many_at_a_time_arrive_in_order(scene: &mut Scene) -> Result<()> {
    const MESSAGES: i32 = 3_000;
    // Nothing but their bells tells of them.
    let mut client = scene.start(&[("outbox_relay.poll_interval", "1h")])?;
    let topic = scene.topic(1)?;
    client.execute(
        "select outbox.enqueue_many($1, array_agg(null::text), array_agg(n::text order by n), partitions => array_agg(0))
        from generate_series(1, $2::integer) n",
        &[&topic, &MESSAGES],
    )?;
    client.execute(
        "select outbox.enqueue_agg($1, null::text, n::text, null, 0 order by n) from generate_series($2::integer + 1, 2 * $2) n",
        &[&topic, &MESSAGES],
    )?;
    let records = scene.follow(&topic)?.take(2 * MESSAGES as usize, PATIENCE)?;
    for (n, record) in (1..).zip(&records) {
        ensure!(record.text() == n.to_string(), "in the place of {n} arrived {}", record.text());
    }
    Ok(())
}

/// Compares with Kafka's own code: its console producer is the Java client with nothing set.
fn keys_lie_where_javas_own_producer_puts_them(scene: &mut Scene) -> Result<()> {
    const KEYS: usize = 1_000;
    let mut client = scene.start(&[])?;
    // Of any length from none to some dozens of bytes, with one, two, three and four of them a character.
    let keys: Vec<String> = (0..KEYS)
        .map(|n| ["", "k", "ключ", "注文", "😀"][n % 5].repeat(n % 7) + &"x".repeat(n % 11) + &n.to_string())
        .collect();
    let keys: Vec<String> = std::iter::once(String::new()).chain(keys.into_iter().skip(1)).collect();
    for partitions in [7, 12, 50] {
        let by_relay = scene.topic(partitions)?;
        let by_java = scene.topic(partitions)?;
        let records: Vec<(String, String)> = keys.iter().map(|key| (key.clone(), "v".to_owned())).collect();
        scene.broker.produce_by_java(&by_java, &records)?;
        client.execute("select outbox.enqueue_many($1, $2::text[], null::text[])", &[&by_relay, &keys])?;
        let java = places(scene, &by_java, KEYS)?;
        let relay = places(scene, &by_relay, KEYS)?;
        ensure!(
            java.len() == KEYS && java == relay,
            "of {partitions} partitions Java chose {java:?}, the relay {relay:?}"
        );
        let told: HashMap<Vec<u8>, i32> = client
            .query(
                "select convert_to(key, 'UTF8'), outbox.partition_for(key, $2) from unnest($1::text[]) key",
                &[&keys, &partitions],
            )?
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
        ensure!(java == told, "of {partitions} partitions Java chose {java:?}, outbox.partition_for says {told:?}");
        let used: HashSet<i32> = java.values().copied().collect();
        ensure!(used.len() == partitions as usize, "only {} of {partitions} partitions were used", used.len());
    }
    Ok(())
}

/// On which partition each key of a topic lies.
fn places(scene: &Scene, topic: &str, count: usize) -> Result<HashMap<Vec<u8>, i32>> {
    let records = scene.follow(topic)?.take(count, PATIENCE)?;
    records.into_iter().map(|record| Ok((record.key.context("a record without a key")?, record.partition))).collect()
}

fn keyed_records_lie_on_the_partition_that_java_chooses(scene: &mut Scene) -> Result<()> {
    const PARTITIONS: i32 = 7;
    let mut client = scene.start(&[])?;
    let topic = scene.topic(PARTITIONS)?;
    let mut keys: Vec<Vec<u8>> = ["", "order-12345", "stable-key", "order-1", "some-key", "foobar", "abc", "a", "ключ"]
        .iter()
        .map(|key| key.as_bytes().to_vec())
        .collect();
    keys.extend([vec![0], vec![0, 0, 0, 0], vec![255; 33]]);
    keys.extend((0..200).map(|number| format!("key-{number}").into_bytes()));
    for key in &keys {
        client.execute("select outbox.enqueue($1, $2::bytea, 'v'::bytea)", &[&topic, key])?;
    }
    let records = scene.follow(&topic)?.take(keys.len(), PATIENCE)?;
    for Record { key, partition, .. } in &records {
        let key = key.as_deref().context("a record without a key")?;
        let expected = murmur2::partition(key, PARTITIONS);
        ensure!(*partition == expected, "key {key:?} lies on partition {partition}, Java chooses {expected}");
    }
    Ok(())
}

fn explicit_partition_wins_over_the_key(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(3)?;
    for partition in 0..3 {
        client.execute("select outbox.enqueue($1, 'one key', 'v', partition => $2)", &[&topic, &partition])?;
    }
    let records = scene.follow(&topic)?.take(3, PATIENCE)?;
    let mut partitions: Vec<i32> = records.iter().map(|record| record.partition).collect();
    partitions.sort_unstable();
    ensure!(partitions == [0, 1, 2], "partitions {partitions:?}");
    Ok(())
}

/// An old time stamp could let retention delete a record before anybody has read it.
fn record_timestamp_is_the_time_of_publishing(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("outbox_relay.enabled", "off")])?;
    let topic = scene.topic(1)?;
    enqueue(&mut client, &topic, "k", "v")?;
    client.execute("update outbox.message set created_at = '2001-01-01'", &[])?;
    let before: i64 = client.query_one("select (extract(epoch from clock_timestamp()) * 1000)::bigint", &[])?.get(0);
    scene.cluster.set("outbox_relay.enabled", "on")?;
    wait_until_published(&mut client, PATIENCE)?;
    let records = scene.follow(&topic)?.take(1, PATIENCE)?;
    ensure!(records[0].timestamp >= before, "time stamp {} is before {before}", records[0].timestamp);
    Ok(())
}
