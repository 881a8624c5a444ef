//! What operators do with a message that the broker refuses takes effect at once, and loses nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;
use uuid::Uuid;

use crate::scene::{PATIENCE, Scene, enqueue, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            message_that_is_refused_is_tried_at_once_when_an_operator_says_so,
            message_that_is_refused_is_requeued_behind_those_that_waited_for_it,
            message_that_is_refused_is_sent_to_another_topic_with_its_id,
            message_that_somebody_keeps_locked_holds_up_its_bucket_and_no_other;
        (Own, Any):
            message_that_is_edited_in_flight_is_published_as_it_is_now,
    ]
}

/// Far below the wait for the next attempt.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A message too large for its topic, which is not tried again for a minute, and those of its key behind it.
struct Refused {
    client: Client,
    topic: String,
    bucket: i32,
    id: i64,
    message_id: Uuid,
    behind: Vec<Uuid>,
}

fn refused(scene: &mut Scene) -> Result<Refused> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[("outbox_relay.error_backoff", "60s")])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let topic = scene.topic(1)?;
    scene.broker.set_topic(&topic, "max.message.bytes", "1000")?;
    let mut poison = client.transaction()?;
    let message_id = poison.query_one("select outbox.enqueue($1::text, 'key', repeat('x', 5000))", &[&topic])?.get(0);
    let mut behind = Vec::new();
    for number in 0..10 {
        behind.push(enqueue(&mut poison, &topic, "key", &format!("behind {number}"))?);
    }
    poison.commit()?;
    let (bucket, id) = wait::until("the refusal is visible", PATIENCE, || {
        let row = client.query_opt(
            "select bucket, id from outbox.parked
             where message_id = $1 and state = 'failing' and attempts > 0 and error <> '' and waiting = 10
               and next_try_at > now() + interval '20 s'",
            &[&message_id],
        )?;
        Ok(row.map_or(Seen::NotYet("no such row".into()), |row| Seen::Reached((row.get(0), row.get(1)))))
    })?;
    Ok(Refused { client, topic, bucket, id, message_id, behind })
}

impl Refused {
    /// Calls a function of an operator, after which all must be published at once.
    fn call(&mut self, scene: &Scene, function: &str, logged: &str) -> Result<()> {
        let since = Instant::now();
        let said: String = self.client.query_one(function, &[&self.bucket, &self.id])?.get(0);
        wait_until_published(&mut self.client, AT_ONCE)?;
        scene.say(format_args!("published after {:?}: {said}", since.elapsed()));
        let notes: i64 = self.client.query_one("select count(*) from outbox.failure", &[])?.get(0);
        ensure!(notes == 0, "{notes} failures are noted");
        let line = format!("message {} of bucket {} {logged}", self.id, self.bucket);
        ensure!(scene.cluster.log()?.lines_with(&line).count() == 1, "not logged: {line}");
        Ok(())
    }
}

/// The messages of a topic, in the order of their first copies.
fn arrived(scene: &Scene, topic: &str) -> Result<Vec<Uuid>> {
    let mut arrived = Vec::new();
    for record in scene.follow(topic)?.rest(PATIENCE)? {
        let message_id = record.message_id()?;
        if !arrived.contains(&message_id) {
            arrived.push(message_id);
        }
    }
    Ok(arrived)
}

fn message_that_is_refused_is_tried_at_once_when_an_operator_says_so(scene: &mut Scene) -> Result<()> {
    let mut refused = refused(scene)?;
    scene.broker.set_topic(&refused.topic, "max.message.bytes", "1000000")?;
    refused.call(scene, "select outbox.retry_now($1, $2)", "is to be tried from commit on")?;
    // Of those behind it some may have been sent before it was refused: they are sent again.
    let mut records = Vec::new();
    for record in scene.follow(&refused.topic)?.rest(PATIENCE)? {
        records.push(record.message_id()?);
    }
    let place = records.iter().position(|id| *id == refused.message_id).context("it did not arrive")?;
    ensure!(records[place + 1..].ends_with(&refused.behind), "{records:?}, not followed by {:?}", refused.behind);
    Ok(())
}

fn message_that_is_refused_is_requeued_behind_those_that_waited_for_it(scene: &mut Scene) -> Result<()> {
    let mut refused = refused(scene)?;
    scene.broker.set_topic(&refused.topic, "max.message.bytes", "1000000")?;
    refused.call(scene, "select outbox.requeue($1, $2)", "is requeued at commit")?;
    let wanted: Vec<_> = refused.behind.iter().copied().chain([refused.message_id]).collect();
    let arrived = arrived(scene, &refused.topic)?;
    ensure!(arrived == wanted, "{arrived:?} arrived, not {wanted:?}");
    Ok(())
}

fn message_that_is_refused_is_sent_to_another_topic_with_its_id(scene: &mut Scene) -> Result<()> {
    let mut refused = refused(scene)?;
    let other = scene.topic(1)?;
    let edit = format!("select outbox.edit($1, $2, topic => '{other}', headers => '{{\"was\": \"too large\"}}')");
    refused.call(scene, &edit, "is changed at commit")?;
    let behind = arrived(scene, &refused.topic)?;
    ensure!(behind == refused.behind, "{behind:?} arrived, not {:?}", refused.behind);
    let records = scene.follow(&other)?.rest(PATIENCE)?;
    let [record] = &records[..] else { anyhow::bail!("{} records in the other topic", records.len()) };
    ensure!(record.message_id()? == refused.message_id, "it has another id");
    ensure!(record.headers[0] == ("was".to_owned(), Some(b"too large".to_vec())), "{:?}", record.headers);
    Ok(())
}

/// Once it is delivered it cannot be removed before the other transaction ends.
fn message_that_somebody_keeps_locked_holds_up_its_bucket_and_no_other(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("keeps some of them locked");
    let mut refused = refused(scene)?;
    scene.broker.set_topic(&refused.topic, "max.message.bytes", "1000000")?;
    let mut operator = scene.session()?;
    let mut open = operator.transaction()?;
    let lock = "select from outbox.message where bucket = $1 and id = $2 for update";
    open.execute(lock, &[&refused.bucket, &refused.id])?;
    // A third session has it tried, and succeeds.
    refused.client.execute("update outbox.failure set next_try_at = now()", &[])?;
    refused.client.execute("select outbox.announce()", &[])?;
    wait::until("the relay says that the message is locked", PATIENCE, || {
        let lines = scene.cluster.log()?.lines_with("keeps some of them locked").count();
        Ok(if lines > 0 { Seen::Reached(()) } else { Seen::NotYet("no such line".into()) })
    })?;
    let topic = scene.topic(1)?;
    let mut others = 0;
    for number in 0..100 {
        let key = format!("key {number}");
        let bucket: i32 = refused.client.query_one("select outbox.bucket_for($1::text)", &[&key])?.get(0);
        if bucket != refused.bucket {
            enqueue(&mut refused.client, &topic, &key, "beside it")?;
            others += 1;
        }
    }
    wait::until("the messages of other buckets are published", AT_ONCE, || {
        let left: i64 =
            refused.client.query_one("select count(*) from outbox.message where topic = $1", &[&topic])?.get(0);
        Ok(if left == 0 { Seen::Reached(()) } else { Seen::NotYet(format!("{left} are left")) })
    })?;
    ensure!(scene.follow(&topic)?.rest(PATIENCE)?.len() == others, "not each of them once");
    open.commit()?;
    wait_until_published(&mut refused.client, PATIENCE)?;
    let copies = scene.follow(&refused.topic)?.rest(PATIENCE)?;
    let of_it =
        copies.iter().map(|record| record.message_id()).filter(|id| matches!(id, Ok(id) if *id == refused.message_id));
    ensure!(of_it.count() == 1, "the message that was locked arrived more than once");
    Ok(())
}

/// The broker has the message as it was and has not answered. It is acknowledged as it was, and published as it is.
fn message_that_is_edited_in_flight_is_published_as_it_is_now(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    scene.expect_complaint("is not standing still");
    scene.expect_complaint("the order of a key is not kept");
    let (topic, other) = (scene.topic(1)?, scene.topic(1)?);
    let mut client = scene.start(&[])?;
    enqueue(&mut client, &topic, "key", "to open the way")?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.broker.freeze()?;
    let in_flight = enqueue(&mut client, &topic, "key", "in flight")?;
    wait::until("the relay waits for the broker", PATIENCE, || {
        let row = client.query_one("select string_agg(state, ',') from outbox.pg_stat_relay", &[])?;
        let state: Option<String> = row.get(0);
        let waits = matches!(state.as_deref(), Some("publishing" | "waiting for broker"));
        Ok(if waits { Seen::Reached(()) } else { Seen::NotYet(format!("{state:?}")) })
    })?;
    // Nobody may change it unless its topic is paused.
    let edit = "select outbox.edit(bucket, id, topic => $1) from outbox.message";
    ensure!(client.query_one(edit, &[&other]).is_err(), "a message in flight was changed");
    client.query_one("select outbox.pause_topic($1, 'to be put right')", &[&topic])?;
    client.query_one(edit, &[&other])?;
    client.query_one("select outbox.resume_topic($1)", &[&topic])?;
    scene.broker.thaw()?;
    wait_until_published(&mut client, PATIENCE)?;
    let sent = arrived(scene, &other)?;
    ensure!(sent == [in_flight], "{sent:?} arrived, not {in_flight}");
    Ok(())
}
