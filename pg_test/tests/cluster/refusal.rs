//! G8: what only the broker can refuse holds up its own bucket, is visible, and resumes by itself.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::murmur2;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;
use uuid::Uuid;

use crate::scene::{PATIENCE, Scene, enqueue, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            unknown_topic_holds_up_only_its_bucket_until_it_is_created,
            partition_beyond_the_topic_holds_up_only_its_bucket_until_the_topic_grows,
            message_too_large_for_its_topic_holds_up_only_its_bucket_until_the_limit_is_raised,
            bucket_goes_on_at_once_when_the_message_that_is_refused_is_skipped,
    ]
}

const BUCKETS: i32 = 8;

/// The key of the message that is refused.
const REFUSED: &str = "refused";

/// Keys of all buckets but that of the refused message.
fn keys_elsewhere() -> Vec<String> {
    let bucket = murmur2::partition(REFUSED.as_bytes(), BUCKETS);
    (0..100)
        .map(|number| format!("key-{number}"))
        .filter(|key| murmur2::partition(key.as_bytes(), BUCKETS) != bucket)
        .collect()
}

/// With one message refused: all other buckets flow, and the views tell what stands and why.
fn require_that_only_its_bucket_stands(scene: &mut Scene, client: &mut Client) -> Result<()> {
    let topic = scene.topic(2)?;
    let mut consumer = scene.follow(&topic)?;
    let keys = keys_elsewhere();
    for key in &keys {
        enqueue(client, &topic, key, "flows")?;
    }
    consumer.take(keys.len(), PATIENCE).context("other buckets do not flow")?;

    let bucket = murmur2::partition(REFUSED.as_bytes(), BUCKETS);
    wait::until("the refusal is visible in table and view", PATIENCE, || {
        let row = client.query_opt(
            "select f.attempts, f.error, b.last_error, b.backlog
             from outbox.failure f join outbox.pg_stat_bucket b on b.bucket = f.bucket and b.failing_id = f.id
             where b.bucket = $1 and b.state = 'failing' and b.next_try_at is not null",
            &[&bucket],
        )?;
        let Some(row) = row else { return Ok(Seen::NotYet("no such row".into())) };
        let (attempts, error, shown, backlog): (i32, String, String, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        ensure!(attempts >= 1 && !error.is_empty() && shown == error && backlog == 1, "{row:?}");
        scene.say(format_args!("attempt {attempts}: {error}"));
        Ok(Seen::Reached(()))
    })
}

/// After the cause is gone it is published without anybody's help, and nothing reminds of it.
fn require_recovery(scene: &mut Scene, client: &mut Client, topic: &str) -> Result<()> {
    wait_until_published(client, PATIENCE)?;
    let records = scene.follow(topic)?.rest(PATIENCE)?;
    ensure!(records.iter().any(|record| record.key.as_deref() == Some(REFUSED.as_bytes())), "it did not arrive");
    let failing: i64 =
        client.query_one("select count(*) from outbox.pg_stat_bucket where state <> 'empty'", &[])?.get(0);
    ensure!(failing == 0, "{failing} buckets still stand");
    wait::until_true("outbox.failure is empty", PATIENCE, || {
        Ok(client.query_one("select count(*) = 0 from outbox.failure", &[])?.get(0))
    })
}

fn unknown_topic_holds_up_only_its_bucket_until_it_is_created(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let missing = scene.topic_name();
    enqueue(&mut client, &missing, REFUSED, "too early")?;
    require_that_only_its_bucket_stands(scene, &mut client)?;
    scene.broker.create_topic(&missing, 1, &[])?;
    require_recovery(scene, &mut client, &missing)
}

fn partition_beyond_the_topic_holds_up_only_its_bucket_until_the_topic_grows(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let topic = scene.topic(2)?;
    // The explicit partition decides the bucket, so it is chosen to be that of the key.
    let partition = murmur2::partition(REFUSED.as_bytes(), BUCKETS);
    ensure!(partition >= 2, "choose another key: partition {partition} exists");
    client
        .execute("select outbox.enqueue($1::text, $2::text, 'v', partition => $3)", &[&topic, &REFUSED, &partition])?;
    require_that_only_its_bucket_stands(scene, &mut client)?;
    scene.broker.grow_topic(&topic, 8)?;
    require_recovery(scene, &mut client, &topic)
}

fn message_too_large_for_its_topic_holds_up_only_its_bucket_until_the_limit_is_raised(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let topic = scene.topic(2)?;
    scene.broker.set_topic(&topic, "max.message.bytes", "1000")?;
    client.execute("select outbox.enqueue($1::text, $2::text, repeat('x', 5000))", &[&topic, &REFUSED])?;
    require_that_only_its_bucket_stands(scene, &mut client)?;
    // Small neighbours of the same topic are not blamed for it.
    for key in keys_elsewhere() {
        enqueue(&mut client, &topic, &key, "small")?;
    }
    wait::until("only the large message is left", PATIENCE, || {
        let left: i64 = client.query_one("select count(*) from outbox.message", &[])?.get(0);
        Ok(if left == 1 { Seen::Reached(()) } else { Seen::NotYet(format!("{left} rows")) })
    })?;
    scene.broker.set_topic(&topic, "max.message.bytes", "1000000")?;
    require_recovery(scene, &mut client, &topic)
}

/// Far below the wait for the next attempt.
const AT_ONCE: Duration = Duration::from_secs(2);

fn bucket_goes_on_at_once_when_the_message_that_is_refused_is_skipped(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[("outbox_relay.error_backoff", "60s")])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let topic = scene.topic(2)?;
    scene.broker.set_topic(&topic, "max.message.bytes", "1000")?;
    let mut poison = client.transaction()?;
    let poisoned: Uuid =
        poison.query_one("select outbox.enqueue($1::text, $2::text, repeat('x', 5000))", &[&topic, &REFUSED])?.get(0);
    let mut behind = Vec::new();
    for number in 0..10 {
        behind.push(enqueue(&mut poison, &topic, REFUSED, &format!("behind {number}"))?);
    }
    poison.commit()?;
    let (bucket, id): (i32, i64) = wait::until("the refusal is visible", PATIENCE, || {
        let row =
            client.query_opt("select bucket, failing_id from outbox.pg_stat_bucket where state = 'failing'", &[])?;
        Ok(row.map_or(Seen::NotYet("no such row".into()), |row| Seen::Reached((row.get(0), row.get(1)))))
    })?;

    let since = Instant::now();
    let skip = "select outbox.skip($1, $2, 'too large')";
    let said: String = client.query_one(skip, &[&bucket, &id])?.get(0);
    wait_until_published(&mut client, AT_ONCE)?;
    scene.say(format_args!("published {:?} after the skip: {said}", since.elapsed()));
    let mut arrived = Vec::new();
    for record in scene.follow(&topic)?.rest(PATIENCE)? {
        let message_id = record.message_id()?;
        if !arrived.contains(&message_id) {
            arrived.push(message_id);
        }
    }
    ensure!(arrived == behind, "{arrived:?} arrived, not {behind:?}");
    let kept: Uuid = client.query_one("select message_id from outbox.skipped where reason = 'too large'", &[])?.get(0);
    ensure!(kept == poisoned, "{kept} was kept, not {poisoned}");
    let notes: i64 = client.query_one("select count(*) from outbox.failure", &[])?.get(0);
    ensure!(notes == 0, "{notes} failures are noted");
    let log = scene.cluster.log()?;
    ensure!(
        log.lines_with(&format!("message {id} of bucket {bucket} is skipped at commit")).count() == 1,
        "not logged"
    );
    Ok(())
}
