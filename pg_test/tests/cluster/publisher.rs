//! The publisher alone on a real broker: of a request that is refused only the culprits are blamed, and a topic that comes to be is
//! seen soon.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use libtest_mimic::Trial;
use outbox_relay::kafka::{Caretaker, KafkaPublisher, Ring};
use outbox_relay::message::{Batch, Message};
use outbox_relay::properties::{self, Properties};
use outbox_relay::relay::ports::{PublishError, Publisher as _, Report, Submitted};
use rustix::event::{PollFd, PollFlags, poll};

use crate::scene::{PATIENCE, Scene};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            record_that_a_topic_does_not_take_is_blamed_alone_and_its_neighbours_are_sent_again,
            record_too_large_for_its_topic_is_blamed_alone,
            topic_that_is_created_takes_its_rows_within_seconds,
    ]
}

/// A publisher, closed elsewhere when it is dropped.
struct Sender {
    publisher: Option<KafkaPublisher>,
    ring: Ring,
    flights: u32,
}

impl Sender {
    fn new(scene: &Scene) -> Result<Sender> {
        let properties = properties::effective(
            &scene.broker.bootstrap(),
            &properties::parse_setting("linger.ms=50")?,
            &Properties::new(),
        );
        let ring = Ring::new()?;
        let publisher = KafkaPublisher::new(properties, ring.clone(), Caretaker::start(ring.clone())?);
        Ok(Sender { publisher: Some(publisher.map_err(anyhow::Error::msg)?), ring, flights: 0 })
    }

    /// Submits rows of one batch and returns their outcomes, or that of the first if it is refused at once.
    fn publish(&mut self, rows: &[Message<'_>]) -> Result<Vec<Result<(), PublishError>>> {
        let publisher = self.publisher.as_mut().expect("it is closed at the end");
        let mut batch = Batch::default();
        rows.iter().for_each(|row| batch.push(row));
        self.flights += 1;
        let submitted = publisher.submit(self.flights, &batch, 0);
        if let Submitted { rows: 0, refused: Some(error) } = submitted {
            return Ok(vec![Err(error)]);
        }
        ensure!(submitted == Submitted { rows: rows.len(), refused: None }, "{submitted:?}");
        let mut reports: Vec<Report> = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            publisher.collect(&mut reports);
            if reports.len() == rows.len() {
                reports.sort_by_key(|report| report.index);
                return Ok(reports.into_iter().map(|report| report.outcome).collect());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("{} rows, only {} reports: {reports:?}", rows.len(), reports.len());
            }
            poll(&mut [PollFd::new(&self.ring, PollFlags::IN)], Some(&left.try_into()?))?;
            self.ring.silence();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _closed = self.publisher.take().map(KafkaPublisher::close);
    }
}

fn row<'a>(topic: &'a str, key: Option<&'a [u8]>, value: &'a [u8]) -> Message<'a> {
    let (id, message_id) = (1, [7; 16]);
    Message { id, topic, partition: Some(0), key, value: Some(value), headers: None, message_id, handle: &[] }
}

/// The error of the only row that is blamed.
fn blamed(outcomes: &[Result<(), PublishError>], index: usize) -> Result<String> {
    let blamed: Vec<usize> = outcomes
        .iter()
        .enumerate()
        .filter(|(_, outcome)| !matches!(outcome, Ok(()) | Err(PublishError::GivenUp)))
        .map(|(index, _)| index)
        .collect();
    ensure!(blamed == [index], "row {index} is at fault, blamed are {blamed:?} of {outcomes:?}");
    match &outcomes[index] {
        Err(error) => Ok(error.to_string()),
        Ok(()) => bail!("row {index} was acknowledged"),
    }
}

const ROWS: usize = 100;
const CULPRIT: usize = 40;

fn record_that_a_topic_does_not_take_is_blamed_alone_and_its_neighbours_are_sent_again(
    scene: &mut Scene,
) -> Result<()> {
    let topic = scene.topic_name();
    scene.broker.create_topic(&topic, 1, &[("cleanup.policy", "compact")])?;
    let mut sender = Sender::new(scene)?;
    let keys: Vec<String> = (0..ROWS).map(|number| format!("key-{number}")).collect();
    let mut rows: Vec<Message<'_>> = keys.iter().map(|key| row(&topic, Some(key.as_bytes()), b"v")).collect();
    rows[CULPRIT].key = None;
    let outcomes = sender.publish(&rows)?;
    let error = blamed(&outcomes, CULPRIT)?;
    scene.say(&error);
    ensure!(error.contains("INVALID_RECORD") && error.contains("without a key"), "{error}");
    let acknowledged = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let arrived = scene.follow(&topic)?.rest(PATIENCE)?.len();
    ensure!(acknowledged == arrived, "{acknowledged} acknowledged, {arrived} arrived");
    rows.remove(CULPRIT);
    let outcomes = sender.publish(&rows)?;
    ensure!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    Ok(())
}

fn record_too_large_for_its_topic_is_blamed_alone(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic_name();
    scene.broker.create_topic(&topic, 1, &[("max.message.bytes", "20000")])?;
    let mut sender = Sender::new(scene)?;
    let keys: Vec<String> = (0..ROWS).map(|number| format!("key-{number}")).collect();
    let mut rows: Vec<Message<'_>> = keys.iter().map(|key| row(&topic, Some(key.as_bytes()), b"v")).collect();
    let large = vec![b'x'; 30_000];
    rows[CULPRIT].value = Some(&large);
    let outcomes = sender.publish(&rows)?;
    let error = blamed(&outcomes, CULPRIT)?;
    scene.say(&error);
    ensure!(error.contains("MSG_SIZE_TOO_LARGE") && error.contains("max.message.bytes"), "{error}");
    let acknowledged = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let arrived = scene.follow(&topic)?.rest(PATIENCE)?.len();
    ensure!(acknowledged == arrived, "{acknowledged} acknowledged, {arrived} arrived");
    Ok(())
}

/// How soon a topic that has been created must be seen.
const SOON: Duration = Duration::from_secs(10);

fn topic_that_is_created_takes_its_rows_within_seconds(scene: &mut Scene) -> Result<()> {
    let topic = scene.topic_name();
    let mut sender = Sender::new(scene)?;
    let since = Instant::now();
    let outcomes = sender.publish(&[row(&topic, None, b"too early")])?;
    let error = blamed(&outcomes, 0)?;
    scene.say(format_args!("{error}; after {:?}", since.elapsed()));
    ensure!(error.contains("_UNKNOWN_TOPIC") || error.contains("UNKNOWN_TOPIC_OR_PART"), "{error}");
    scene.broker.create_topic(&topic, 1, &[])?;
    let created = Instant::now();
    loop {
        let since = Instant::now();
        let outcomes = sender.publish(&[row(&topic, None, b"v")])?;
        if outcomes == [Ok(())] {
            scene.say(format_args!("acknowledged {:?} after its creation", created.elapsed()));
            return Ok(());
        }
        ensure!(created.elapsed() < SOON, "{outcomes:?} after {:?}", since.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
}
