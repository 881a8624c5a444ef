//! G8: what is refused stays small. Other keys and topics flow, at full speed; what becomes of a refused message is what its
//! topic's policy says, through restarts too; and it is told once a minute.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::cluster::Shutdown;
use outbox_relay_pg_test::murmur2;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;
use uuid::Uuid;

use crate::scene::{PATIENCE, Scene, enqueue, soak, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, None):
            good_messages_flow_beside_refused_ones_and_a_missing_topic;
        (Shared, Any):
            refused_message_is_parked_through_a_restart_and_its_key_goes_on_in_order_once_retried,
            neighbours_in_the_batch_of_a_refused_message_arrive_once,
            dead_letter_tells_where_it_was_to_go_and_why,
            bucket_waits_where_its_topic_blocks,
            paused_topic_waits_through_a_restart_and_others_flow,
            missing_topic_costs_one_line_a_minute_and_holds_up_itself_only,
            many_missing_topics_cost_a_bounded_number_of_lines,
            deleted_topic_parks_nothing_though_partitions_were_given,
            call_of_an_operator_that_is_left_open_on_a_failing_message_stops_nothing_else,
    ]
}

const BUCKETS: i32 = 8;

/// What is parked is parked soon, and what is retried is retried soon.
const SOON: &[(&str, &str)] =
    &[("outbox_relay.max_attempts", "2"), ("outbox_relay.park_patience", "0"), ("outbox_relay.error_backoff", "100ms")];

/// A topic that takes nothing above 1,000 bytes.
fn narrow_topic(scene: &mut Scene, partitions: i32) -> Result<String> {
    let topic = scene.topic(partitions)?;
    scene.broker.set_topic(&topic, "max.message.bytes", "1000")?;
    Ok(topic)
}

fn enqueue_too_large(client: &mut impl postgres::GenericClient, topic: &str, key: &str) -> Result<Uuid> {
    let row = client.query_one("select outbox.enqueue($1::text, $2::text, repeat('x', 5000))", &[&topic, &key])?;
    Ok(row.get(0))
}

/// Waits until outbox.parked shows the message in this state with so many behind it, and returns its attempts.
fn wait_until_told(client: &mut Client, message_id: Uuid, state: &str, waiting: i64) -> Result<i32> {
    wait::until(format_args!("outbox.parked says {state}"), PATIENCE, || {
        let row = client.query_opt(
            "select state, attempts, waiting, error from outbox.parked where message_id = $1",
            &[&message_id],
        )?;
        let Some(row) = row else { return Ok(Seen::NotYet("nothing".into())) };
        let told = (row.get::<_, String>(0), row.get::<_, i64>(2));
        Ok(if told == (state.to_owned(), waiting) {
            Seen::Reached(row.get(1))
        } else {
            Seen::NotYet(format!("{row:?}"))
        })
    })
}

fn left(client: &mut Client) -> Result<i64> {
    Ok(client.query_one("select count(*) from outbox.message", &[])?.get(0))
}

/// One bucket after another: a key that lies there.
fn key_of(bucket: i32) -> String {
    (0..)
        .map(|n| format!("poison-{n}"))
        .find(|key| murmur2::partition(key.as_bytes(), BUCKETS) == bucket)
        .expect("some")
}

/// What good messages meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Beside {
    Nothing,
    /// Refused messages at the head of their buckets and a missing topic, known to the relay and tried again now and then.
    Known,
    /// The same, committed with the good ones: the relay has to find out.
    New,
}

fn good_messages_flow_beside_refused_ones_and_a_missing_topic(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[("outbox_relay.max_attempts", "1000")])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let (good, narrow, missing) = (scene.topic(4)?, narrow_topic(scene, 4)?, scene.topic_name());
    let messages: i64 = if soak() { 600_000 } else { 100_000 };
    let (arrivals, mut expected) = (scene.follow(&good)?, 0);
    let mut rates: BTreeMap<Beside, Vec<f64>> = BTreeMap::new();
    // There and back, so that what comes and goes with every second round falls on all.
    let turn = [Beside::Nothing, Beside::Known, Beside::New, Beside::New, Beside::Known, Beside::Nothing];
    let rounds = if soak() { 10 } else { 6 };
    // The first round warms up.
    for (round, beside) in [Beside::New].iter().chain(turn.iter().cycle().take(3 * rounds)).enumerate() {
        let mut all = client.transaction()?;
        if *beside != Beside::Nothing {
            for bucket in 0..4 {
                enqueue_too_large(&mut all, &narrow, &key_of(bucket))?;
            }
            for key in 0..100 {
                enqueue(&mut all, &missing, &format!("key-{key}"), "nobody takes it")?;
            }
        }
        if *beside == Beside::Known {
            all.commit()?;
            wait::until_true("what is refused is known", PATIENCE, || {
                let known = "select count(*) filter (where kind = 'message') = 4 \
                             and count(*) filter (where kind = 'topic') = 8 from outbox.failure";
                Ok(client.query_one(known, &[])?.get(0))
            })?;
            all = client.transaction()?;
        }
        all.execute(
            "select outbox.enqueue_agg($1, 'key-' || n, repeat('v', 200)) from generate_series(1, $2::bigint) n",
            &[&good, &messages],
        )?;
        let rows: i64 = all.query_one("select count(*) from outbox.message", &[])?.get(0);
        let waits = rows - messages;
        all.commit()?;
        let since = Instant::now();
        expected += messages as u64;
        // The broker is asked, for a look at the table would read all of it, again and again.
        wait::until("the good messages are published", Duration::from_secs(300), || {
            let arrived = arrivals.count()?;
            Ok(if arrived >= expected { Seen::Reached(()) } else { Seen::NotYet(format!("{arrived} of {expected}")) })
        })?;
        if round > 0 {
            rates.entry(*beside).or_default().push(messages as f64 / since.elapsed().as_secs_f64());
        }
        wait::until_true("the good messages are removed", PATIENCE, || {
            let gone = "select not exists (select from outbox.message where topic = $1)";
            Ok(client.query_one(gone, &[&good])?.get(0))
        })?;
        ensure!(left(&mut client)? == waits, "what is refused has vanished");
        for (topic, of) in [(&narrow, "refused"), (&missing, "missing")] {
            let skip = "select outbox.skip(bucket, id, 'end of the round') from outbox.message where topic = $1";
            let skipped = client.query(skip, &[topic])?.len();
            ensure!(skipped > 0 || *beside == Beside::Nothing, "no {of} messages were left");
        }
    }
    let median = |beside| {
        let mut rates = rates[&beside].clone();
        rates.sort_by(f64::total_cmp);
        (rates[(rates.len() - 1) / 2] + rates[rates.len() / 2]) / 2.0
    };
    let without = median(Beside::Nothing);
    let (known, new) = (median(Beside::Known) / without, median(Beside::New) / without);
    scene.say(format_args!(
        "{without:.0} a second; beside refused ones {known:.2} of it, if they are new {new:.2}; medians of {rounds}"
    ));
    // Finding out costs some 50 ms, once.
    let (known_min, new_min) = if soak() { (0.9, 0.9) } else { (0.7, 0.6) };
    ensure!(known > known_min && new > new_min, "good messages are slowed down to {known:.2}, or {new:.2}");
    Ok(())
}

fn refused_message_is_parked_through_a_restart_and_its_key_goes_on_in_order_once_retried(
    scene: &mut Scene,
) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(SOON)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let topic = narrow_topic(scene, 1)?;
    let mut poison = client.transaction()?;
    let refused = enqueue_too_large(&mut poison, &topic, "key")?;
    let behind: Vec<Uuid> =
        (0..3).map(|n| enqueue(&mut poison, &topic, "key", &format!("behind {n}"))).collect::<Result<_>>()?;
    poison.commit()?;
    let attempts = wait_until_told(&mut client, refused, "parked", 3)?;
    ensure!(attempts == 2, "it was parked after {attempts} attempts");
    ensure!(scene.cluster.log()?.lines_with("is parked").count() == 1, "it is told once that it is parked");

    scene.cluster.stop(Shutdown::Fast)?;
    scene.cluster.start()?;
    let mut client = scene.session()?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    // Others of its bucket are published, so the relay has come past it.
    let other = (0..)
        .map(|n| format!("other-{n}"))
        .find(|key| murmur2::partition(key.as_bytes(), BUCKETS) == murmur2::partition(b"key", BUCKETS))
        .context("some key")?;
    enqueue(&mut client, &topic, &other, "flows")?;
    wait::until_true("four messages are left", PATIENCE, || Ok(left(&mut client)? == 4))?;
    ensure!(wait_until_told(&mut client, refused, "parked", 3)? == 2, "it was tried again");

    scene.broker.set_topic(&topic, "max.message.bytes", "1000000")?;
    client.execute("select outbox.retry_now($1)", &[&topic])?;
    wait_until_published(&mut client, PATIENCE)?;
    let arrived: Vec<Uuid> =
        scene.follow(&topic)?.rest(PATIENCE)?.iter().map(|record| record.message_id()).collect::<Result<_>>()?;
    let place = arrived.iter().position(|id| *id == refused).context("it did not arrive")?;
    ensure!(arrived[place + 1..] == behind, "{arrived:?}, not {behind:?} behind {refused}");
    Ok(())
}

fn neighbours_in_the_batch_of_a_refused_message_arrive_once(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(SOON)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let topic = narrow_topic(scene, 4)?;
    let mut batch = client.transaction()?;
    let mut good = Vec::new();
    let mut refused = Vec::new();
    for number in 0..400 {
        if number % 100 == 50 {
            refused.push(enqueue_too_large(&mut batch, &topic, &format!("large-{number}"))?);
        }
        good.push(enqueue(&mut batch, &topic, &format!("key-{number}"), "small")?);
    }
    batch.commit()?;
    for message_id in &refused {
        wait_until_told(&mut client, *message_id, "parked", 0)?;
    }
    wait::until_true("only the refused are left", PATIENCE, || Ok(left(&mut client)? == refused.len() as i64))?;
    let mut copies: BTreeMap<Uuid, u32> = BTreeMap::new();
    for record in scene.follow(&topic)?.rest(PATIENCE)? {
        *copies.entry(record.message_id()?).or_default() += 1;
    }
    let more: Vec<_> = copies.iter().filter(|(_, copies)| **copies > 1).collect();
    ensure!(more.is_empty(), "{} messages arrived more than once", more.len());
    ensure!(good.iter().all(|id| copies.contains_key(id)) && copies.len() == good.len(), "{} arrived", copies.len());
    Ok(())
}

fn dead_letter_tells_where_it_was_to_go_and_why(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(SOON)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let (topic, letters) = (narrow_topic(scene, 1)?, scene.topic(1)?);
    let set = "select outbox.set_topic($1, policy => 'dead_letter', dead_letter_topic => $2)";
    client.execute(set, &[&topic, &letters])?;
    let mut poison = client.transaction()?;
    let refused: Uuid = poison
        .query_one(
            "select outbox.enqueue($1::text, 'key', repeat('x', 5000), headers => '[[\"own\", null]]', partition => 0)",
            &[&topic],
        )?
        .get(0);
    poison.commit()?;
    let behind = enqueue(&mut client, &topic, "key", "behind")?;
    wait_until_published(&mut client, PATIENCE)?;
    let records = scene.follow(&letters)?.rest(PATIENCE)?;
    let [letter] = &records[..] else { anyhow::bail!("{} dead letters", records.len()) };
    ensure!(letter.message_id()? == refused, "it has another id");
    ensure!(letter.key.as_deref() == Some(b"key") && letter.text() == "x".repeat(5000), "key or value has changed");
    let text = |name: &str| {
        let value = letter.headers.iter().find(|(of, _)| of == name).and_then(|(_, value)| value.clone());
        value.map(|value| String::from_utf8_lossy(&value).into_owned()).with_context(|| format!("no header {name}"))
    };
    ensure!(letter.headers[0] == ("own".to_owned(), None), "{:?}", letter.headers);
    ensure!(
        (text("x-outbox-topic")?, text("x-outbox-partition")?) == (topic.clone(), "0".to_owned()),
        "not from there"
    );
    ensure!(text("x-outbox-attempts")? == "2" && text("x-outbox-error")?.contains("MSG_SIZE_TOO_LARGE"), "{letter:?}");
    let now: f64 = client.query_one("select extract(epoch from now())::float8 * 1000", &[])?.get(0);
    for name in ["x-outbox-first-refused-at", "x-outbox-dead-lettered-at"] {
        let time: f64 = text(name)?.parse()?;
        ensure!((now - 60_000.0..=now + 1000.0).contains(&time), "{name} is {time}, now is {now}");
    }
    let last = scene.follow(&topic)?.rest(PATIENCE)?.pop().context("what was behind it did not arrive")?;
    ensure!(last.message_id()? == behind, "its key does not go on");
    let notes: i64 = client.query_one("select count(*) from outbox.failure", &[])?.get(0);
    ensure!(notes == 0, "{notes} failures are noted");
    Ok(())
}

fn bucket_waits_where_its_topic_blocks(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(SOON)?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let (topic, free) = (narrow_topic(scene, 1)?, scene.topic(1)?);
    client.execute("select outbox.set_topic($1, policy => 'block')", &[&topic])?;
    let refused = enqueue_too_large(&mut client, &topic, &key_of(3))?;
    wait_until_told(&mut client, refused, "failing", 0)?;
    let same = enqueue(&mut client, &free, &key_of(3), "the same bucket")?;
    let other = enqueue(&mut client, &free, &key_of(4), "another bucket")?;
    let mut consumer = scene.follow(&free)?;
    ensure!(consumer.take(1, PATIENCE)?[0].message_id()? == other, "the wrong one came first");
    // It is tried for ever, however often that is.
    wait::until_true("it has been tried often", PATIENCE, || {
        Ok(client.query_one("select attempts > 4 and parked_at is null from outbox.failure", &[])?.get(0))
    })?;
    ensure!(left(&mut client)? == 2, "the bucket does not wait");
    scene.broker.set_topic(&topic, "max.message.bytes", "1000000")?;
    wait_until_published(&mut client, PATIENCE)?;
    ensure!(consumer.take(1, PATIENCE)?[0].message_id()? == same, "something else came");
    Ok(())
}

fn paused_topic_waits_through_a_restart_and_others_flow(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let (paused, free) = (scene.topic(1)?, scene.topic(1)?);
    client.execute("select outbox.pause_topic($1, 'for a test')", &[&paused])?;
    scene.cluster.stop(Shutdown::Fast)?;
    scene.cluster.start()?;
    let mut client = scene.session()?;
    let mut both = client.transaction()?;
    let waits = enqueue(&mut both, &paused, "key", "waits")?;
    enqueue(&mut both, &free, "key", "flows")?;
    both.commit()?;
    scene.follow(&free)?.take(1, PATIENCE).context("the other topic does not flow")?;
    ensure!(scene.follow(&paused)?.count()? == 0 && left(&mut client)? == 1, "a paused topic was published to");
    client.execute("select outbox.resume_topic($1)", &[&paused])?;
    wait_until_published(&mut client, PATIENCE)?;
    ensure!(scene.follow(&paused)?.take(1, PATIENCE)?[0].message_id()? == waits, "something else came");
    Ok(())
}

fn missing_topic_costs_one_line_a_minute_and_holds_up_itself_only(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[("outbox_relay.error_backoff", "100ms")])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let (free, missing) = (scene.topic(2)?, scene.topic_name());
    let mut both = client.transaction()?;
    let mut wanted: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
    for number in 0..500 {
        let key = format!("key-{}", number % 50);
        wanted.entry(key.clone()).or_default().push(enqueue(&mut both, &missing, &key, "too early")?);
        enqueue(&mut both, &free, &key, "flows")?;
    }
    both.commit()?;
    scene.follow(&free)?.take(500, PATIENCE).context("the other topic does not flow")?;
    wait::until_true("it was tried several times in every bucket", PATIENCE, || {
        let tried = "select count(*) = 8 and bool_and(attempts > 5 and kind = 'topic') from outbox.failure";
        Ok(client.query_one(tried, &[])?.get(0))
    })?;
    let log = scene.cluster.log()?;
    let lines: Vec<&str> = log.lines_with(&missing).filter(|line| !line.contains("STATEMENT")).collect();
    ensure!(lines.len() == 1 && lines[0].contains("takes no messages"), "it is told so:\n{}", lines.join("\n"));
    scene.broker.create_topic(&missing, 3, &[])?;
    let since = Instant::now();
    wait_until_published(&mut client, PATIENCE)?;
    scene.say(format_args!("published {:?} after its topic was created", since.elapsed()));
    ensure!(since.elapsed() < Duration::from_secs(15), "it did not go on within seconds");
    let mut arrived: BTreeMap<String, Vec<Uuid>> = BTreeMap::new();
    for record in scene.follow(&missing)?.rest(PATIENCE)? {
        let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned();
        arrived.entry(key).or_default().push(record.message_id()?);
    }
    ensure!(arrived == wanted, "not all arrived once and in order");
    Ok(())
}

fn many_missing_topics_cost_a_bounded_number_of_lines(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[("outbox_relay.error_backoff", "100ms")])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let (free, missing) = (scene.topic(1)?, scene.topic_name());
    client.execute(
        "select outbox.enqueue($1::text || '-' || n, 'key-' || n, 'too early') from generate_series(1, 200) n",
        &[&missing],
    )?;
    wait::until_true("all are known to be missing", PATIENCE, || {
        Ok(client.query_one("select count(*) = 200 from outbox.failure where kind = 'topic'", &[])?.get(0))
    })?;
    for key in 0..8 {
        enqueue(&mut client, &free, &format!("key-{key}"), "flows")?;
    }
    scene.follow(&free)?.take(8, PATIENCE).context("another topic does not flow")?;
    let lines = scene.cluster.log()?.lines_with("takes no messages").count();
    ensure!((1..=20).contains(&lines), "{lines} lines tell of topics");
    Ok(())
}

fn deleted_topic_parks_nothing_though_partitions_were_given(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let mut client = scene.start(&[("outbox_relay.max_attempts", "1"), ("outbox_relay.park_patience", "0")])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let topic = scene.topic(3)?;
    let enqueue_all =
        "select outbox.enqueue($1::text, 'key-' || n, 'v', partition => n % 3) from generate_series(1, 30) n";
    client.execute(enqueue_all, &[&topic])?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.broker.delete_topic(&topic)?;
    client.execute(enqueue_all, &[&topic])?;
    wait::until_true("the topic is known to be gone", PATIENCE, || {
        let gone = "select count(*) > 0 and bool_and(attempts > 2 and kind = 'topic') from outbox.failure";
        Ok(client.query_one(gone, &[])?.get(0))
    })?;
    let parked: i64 = client.query_one("select count(*) from outbox.failure where parked_at is not null", &[])?.get(0);
    ensure!(parked == 0, "{parked} messages are parked");
    scene.broker.create_topic(&topic, 3, &[])?;
    wait_until_published(&mut client, PATIENCE)?;
    ensure!(scene.follow(&topic)?.count()? == 30, "not all arrived once");
    Ok(())
}

fn call_of_an_operator_that_is_left_open_on_a_failing_message_stops_nothing_else(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("takes no messages");
    let mut client = scene.start(&[("outbox_relay.error_backoff", "100ms")])?;
    wait_until_shared(&mut client, 1, PATIENCE)?;
    let (free, missing) = (scene.topic(1)?, scene.topic_name());
    enqueue(&mut client, &missing, "key", "too early")?;
    let attempts = |client: &mut Client| -> Result<i32> {
        Ok(client.query_opt("select attempts from outbox.failure", &[])?.map_or(0, |row| row.get(0)))
    };
    wait::until_true("it was refused", PATIENCE, || Ok(attempts(&mut client)? > 1))?;
    let mut operator = scene.session()?;
    let mut open = operator.transaction()?;
    open.execute("select outbox.retry_now($1)", &[&missing])?;
    let (since, before) = (Instant::now(), attempts(&mut client)?);
    let mut consumer = scene.follow(&free)?;
    // Longer than the wait for the next attempt, which is to be noted meanwhile.
    while since.elapsed() < Duration::from_secs(6) {
        for key in 0..8 {
            enqueue(&mut client, &free, &format!("key-{key}"), "flows")?;
        }
        let round = Instant::now();
        consumer.take(8, PATIENCE)?;
        ensure!(round.elapsed() < Duration::from_secs(1), "others waited {:?}", round.elapsed());
    }
    ensure!(attempts(&mut client)? == before, "a note that is locked was changed");
    open.commit()?;
    wait::until_true("attempts are noted again", PATIENCE, || Ok(attempts(&mut client)? > before))?;
    scene.broker.create_topic(&missing, 1, &[])?;
    wait_until_published(&mut client, PATIENCE)
}
