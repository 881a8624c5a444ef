//! What lies in Kafka is what was enqueued, byte for byte, where a Java producer would have put it.

use std::collections::HashMap;

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
            keyed_records_lie_on_the_partition_that_java_chooses,
            explicit_partition_wins_over_the_key,
            record_timestamp_is_the_time_of_publishing,
    ]
}

type Bytes = Option<Vec<u8>>;

fn null_empty_and_binary_arrive_byte_for_byte(scene: &mut Scene) -> Result<()> {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let kinds: [Bytes; 3] = [None, Some(Vec::new()), Some(all_bytes.clone())];
    let header_kinds = [
        (serde_json::Value::Null, vec![]),
        (
            serde_json::json!({"null": null, "empty": "", "text": "größer", "binary": {"base64": "AAH/AA=="}}),
            vec![
                ("null", None),
                ("empty", Some(vec![])),
                ("text", Some("größer".as_bytes().to_vec())),
                ("binary", Some(vec![0, 1, 255, 0])),
            ],
        ),
    ];
    let mut client = scene.start(&[])?;
    let topic = scene.topic(3)?;
    let mut sent: HashMap<Uuid, (Bytes, Bytes, usize)> = HashMap::new();
    for key in &kinds {
        for value in &kinds {
            for (number, (headers, _)) in header_kinds.iter().enumerate() {
                let headers = (!headers.is_null()).then_some(headers);
                let id = client
                    .query_one("select outbox.enqueue($1, $2::bytea, $3::bytea, $4)", &[&topic, key, value, &headers])?
                    .get(0);
                sent.insert(id, (key.clone(), value.clone(), number));
            }
        }
    }
    let records = scene.follow(&topic)?.take(sent.len(), PATIENCE)?;
    for record in &records {
        let (key, value, number) = sent.remove(&record.message_id()?).context("an unknown or repeated id")?;
        ensure!(record.key == key && record.value == value, "sent {key:?} {value:?}, arrived {record:?}");
        let mut headers: Vec<(&str, Bytes)> = record.headers[..record.headers.len() - 1]
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        let mut expected = header_kinds[number].1.clone();
        // An object keeps no order.
        headers.sort();
        expected.sort();
        ensure!(headers == expected, "sent {expected:?}, arrived {headers:?}");
    }
    Ok(())
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
