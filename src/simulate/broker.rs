//! The clients of the relays and the broker behind them: rows are queued, sent, appended or refused, and reported.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::message::Batch;
use crate::relay::ports::{Answer, FlightId, PublishError, Publisher, Report, Submitted};

use super::Seat;
use super::database::Label;
use super::plan::START;
use super::truth::{Promise, Serial};
use super::world::{Actor, Verb, World};

#[derive(Debug)]
pub(crate) struct Broker {
    /// What consumers see, in order.
    pub log: Vec<Appended>,
    /// How long a client queues a row before it sends it.
    pub linger: Duration,
    /// From sending to the report.
    pub delay: Duration,
    /// Most rows that a client holds, from submission until the report is collected.
    pub capacity: usize,
    /// Most rows that a client has sent without a report; the others stay queued.
    pub pipeline: usize,
    /// Reports come one by one and in any order.
    pub shuffled: Option<fastrand::Rng>,
    /// While it is away nothing is sent or reported.
    pub away: Option<Range<Time>>,
    /// Where chance rules: most from sending to the log, and from there to the report.
    pub(super) transit: Duration,
    refused: BTreeMap<(Bucket, i64), (Refuser, Time)>,
    /// Topics that have trouble, which, and until when.
    troubles: BTreeMap<&'static str, (Trouble, Time)>,
    /// Those that had any at any time.
    pub(super) troubled: BTreeSet<&'static str>,
    appended: BTreeSet<(Bucket, i64)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Appended {
    pub at: Time,
    pub relay: String,
    pub bucket: Bucket,
    pub id: i64,
}

/// Who says no to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refuser {
    /// The broker, after a delay.
    Broker,
    /// The client, at once.
    Client,
}

/// What is the matter with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The broker takes no messages of it.
    Refuses,
    /// It has no leader: the client keeps its messages and says nothing.
    Silent,
    /// The broker says that nothing can be published by this client.
    Misconfigured,
}

/// What one relay has with its client.
#[derive(Debug)]
pub(crate) struct Client {
    /// Rows not yet reported to the relay, and their bytes.
    pub rows: usize,
    pub bytes: usize,
    /// The most there ever was.
    pub most_rows: usize,
    pub most_bytes: usize,
    /// Rows that were handed over apart from all others.
    pub apart: Vec<(Bucket, i64)>,
    /// What is out, by unit of order: of which flight, and how many rows.
    out: BTreeMap<(Bucket, Label), (FlightId, usize)>,
    queued: VecDeque<Row>,
    sent: usize,
    reports: Vec<Outcome>,
    /// Where chance rules: rows on their way to the broker, and those that arrived and are not reported yet.
    on_the_way: VecDeque<(Row, Time)>,
    unreported: Vec<Row>,
    last_report: Time,
    /// Grows with every replacement: reports of an older client are nobody's.
    generation: u32,
    /// The generation that a flight began with.
    begun: BTreeMap<FlightId, u32>,
    /// Its process has ended.
    pub gone: bool,
    /// What brokers have answered to inquiries.
    answers: Vec<Answer>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    flight: FlightId,
    index: usize,
    bucket: Bucket,
    id: i64,
    label: Label,
    serial: Serial,
    bytes: usize,
    send_at: Time,
}

type Outcome = (Row, Result<(), PublishError>);

impl Default for Client {
    fn default() -> Self {
        Self {
            rows: 0,
            bytes: 0,
            most_rows: 0,
            most_bytes: 0,
            out: BTreeMap::new(),
            queued: VecDeque::new(),
            sent: 0,
            reports: Vec::new(),
            on_the_way: VecDeque::new(),
            unreported: Vec::new(),
            last_report: START,
            generation: 0,
            begun: BTreeMap::new(),
            gone: false,
            answers: Vec::new(),
            apart: Vec::new(),
        }
    }
}

impl Default for Broker {
    fn default() -> Self {
        Self {
            log: Vec::new(),
            linger: Duration::from_millis(5),
            delay: Duration::from_millis(50),
            capacity: usize::MAX,
            pipeline: usize::MAX,
            shuffled: None,
            away: None,
            transit: Duration::ZERO,
            refused: BTreeMap::new(),
            troubles: BTreeMap::new(),
            troubled: BTreeSet::new(),
            appended: BTreeSet::new(),
        }
    }
}

impl Broker {
    /// The row is refused until this time.
    pub fn refuse(&mut self, bucket: Bucket, id: i64, by: Refuser, until: Time) {
        self.refused.insert((bucket, id), (by, until));
    }

    /// The ids that consumers of the bucket see, in order.
    pub fn published(&self, bucket: Bucket) -> Vec<i64> {
        self.log.iter().filter(|row| row.bucket == bucket).map(|row| row.id).collect()
    }

    /// When the row was first appended.
    pub fn published_at(&self, bucket: Bucket, id: i64) -> Option<Time> {
        self.log.iter().find(|row| (row.bucket, row.id) == (bucket, id)).map(|row| row.at)
    }

    /// A row that nobody published may be removed all the same.
    #[cfg(test)]
    pub(super) fn pretend_to_have(&mut self, row: (Bucket, i64)) {
        self.appended.insert(row);
    }

    pub(super) fn has(&self, row: (Bucket, i64)) -> bool {
        self.appended.contains(&row)
    }

    fn refuses(&self, row: (Bucket, i64), who: Refuser, now: Time) -> bool {
        self.refused.get(&row).is_some_and(|(by, until)| *by == who && now < *until)
    }

    fn trouble(&self, topic: &str, now: Time) -> Option<Trouble> {
        self.troubles.get(topic).filter(|(_, until)| now < *until).map(|(trouble, _)| *trouble)
    }

    /// What the broker says to a row that arrives.
    fn verdict(&self, row: &Row, now: Time) -> Result<(), PublishError> {
        match self.trouble(row.label.topic, now) {
            Some(Trouble::Refuses) => return Err(no_such_topic()),
            Some(Trouble::Misconfigured) => return Err(PublishError::Misconfigured("not allowed to write".to_owned())),
            Some(Trouble::Silent) | None => {}
        }
        if self.refuses((row.bucket, row.id), Refuser::Broker, now) && row.label.topic != LETTERS {
            return Err(refused());
        }
        Ok(())
    }

    /// The first moment from `time` on at which it answers.
    fn reachable(&self, time: Time) -> Time {
        self.away.as_ref().filter(|away| away.contains(&time)).map_or(time, |away| away.end)
    }
}

/// Where dead letters go in this world; nothing is refused there.
pub(crate) const LETTERS: &str = "letters";

fn refused() -> PublishError {
    PublishError::Invalid("it is too large".to_owned())
}

fn no_such_topic() -> PublishError {
    PublishError::Topic("there is no such topic".to_owned())
}

impl World {
    /// Until then the topic has this trouble.
    pub fn trouble(&mut self, topic: &'static str, trouble: Trouble, until: Time) {
        self.broker.troubles.insert(topic, (trouble, until));
        self.broker.troubled.insert(topic);
        self.schedule(until, |world| (0..world.actors.len()).for_each(|relay| world.send(relay)));
    }

    /// What the relay has with its client.
    pub fn client(&self, relay: &str) -> &Client {
        &self.actors.iter().find(|actor| actor.id == relay).expect("a relay of that name").client
    }

    pub(super) fn broker_has_work_of(&self, relay: &str) -> bool {
        let client = self.client(relay);
        !client.queued.is_empty() || client.sent > 0
    }

    /// Sends what has been queued for long enough.
    fn send(&mut self, relay: usize) {
        let back = self.broker.reachable(self.now);
        if back > self.now {
            return self.schedule(back, move |world| world.send(relay));
        }
        if self.chance.is_some() {
            return self.send_by_chance(relay);
        }
        let mut outcomes = Vec::new();
        let Actor { id, client, .. } = &mut self.actors[relay];
        while client.sent < self.broker.pipeline
            && let Some(row) = client.next(&self.broker, self.now)
        {
            client.sent += 1;
            let named = (row.bucket, row.id);
            if let Err(error) = self.broker.verdict(&row, self.now) {
                outcomes.push((row, Err(error)));
                continue;
            }
            self.broker.appended.insert(named);
            self.broker.log.push(Appended { at: self.now, relay: id.clone(), bucket: row.bucket, id: row.id });
            outcomes.push((row, Ok(())));
        }
        let due = self.broker.reachable(self.now + self.broker.delay);
        let delay = self.broker.delay;
        match &mut self.broker.shuffled {
            Some(random) => {
                let late: Vec<_> = outcomes.iter().map(|_| delay.mul_f64(random.f64())).collect();
                for (outcome, late) in outcomes.into_iter().zip(late) {
                    self.schedule(due + late, move |world| world.report(relay, vec![outcome]));
                }
            }
            None if outcomes.is_empty() => {}
            None => self.schedule(due, move |world| world.report(relay, outcomes)),
        }
    }

    fn report(&mut self, relay: usize, outcomes: Vec<Outcome>) {
        let actor = &mut self.actors[relay];
        actor.client.sent -= outcomes.len();
        actor.client.reports.extend(outcomes);
        actor.latch = true;
        if !actor.client.queued.is_empty() {
            self.send(relay);
        }
    }
}

/// The same with every row on its own way. The order of a client's rows is kept.
impl World {
    fn send_by_chance(&mut self, relay: usize) {
        let now = self.now;
        let frozen = self.actors[relay].frozen;
        if frozen > now {
            // Once its process goes on, the client may well be quicker than the relay.
            self.count("clients that wake up with something to send");
            return self.schedule(frozen, move |world| world.send(relay));
        }
        let client = &mut self.actors[relay].client;
        if client.gone {
            return;
        }
        let random = &mut self.chance.as_mut().expect("it is there").random;
        let mut arrivals = Vec::new();
        while client.sent < self.broker.pipeline
            && let Some(row) = client.next(&self.broker, now)
        {
            client.sent += 1;
            let at = now + self.broker.transit.mul_f64(random.f64() * random.f64());
            let at = client.on_the_way.back().map_or(at, |(_, before)| at.max(*before));
            client.on_the_way.push_back((row, at));
            arrivals.push(at);
        }
        for at in arrivals {
            self.schedule(at, move |world| world.arrive(relay));
        }
    }

    fn arrive(&mut self, relay: usize) {
        let back = self.broker.reachable(self.now);
        if back > self.now {
            return self.schedule(back, move |world| world.arrive(relay));
        }
        let now = self.now;
        let client = &mut self.actors[relay].client;
        let Some((row, _)) = client.on_the_way.pop_front_if(|(_, at)| *at <= now) else { return };
        let outcome = self.append(relay, row);
        let client = &mut self.actors[relay].client;
        client.unreported.push(row);
        let (generation, last) = (client.generation, client.last_report);
        let random = &mut self.chance.as_mut().expect("it is there").random;
        let mut due = now + self.broker.delay + self.broker.transit.mul_f64(random.f64() * random.f64());
        if self.broker.shuffled.is_none() {
            due = due.max(last);
            self.actors[relay].client.last_report = due;
        }
        self.schedule(due, move |world| world.report_one(relay, generation, (row, outcome)));
    }

    fn append(&mut self, relay: usize, row: Row) -> Result<(), PublishError> {
        let named = (row.bucket, row.id);
        if let Err(error) = self.broker.verdict(&row, self.now) {
            self.truth_let_go(row.serial, false);
            self.truth_refuses(relay, row.serial, row.flight, row.index);
            self.note(Some(relay), &[11, row.id as u64], || format!("the broker refuses {named:?}: {error}"));
            return Err(error);
        }
        self.note(Some(relay), &[12, row.id as u64], || format!("the broker appends {named:?}"));
        self.broker.appended.insert(named);
        self.truth_let_go(row.serial, true);
        self.truth_appends(row.serial, row.label.topic == LETTERS);
        Ok(())
    }

    fn report_one(&mut self, relay: usize, generation: u32, outcome: Outcome) {
        let back = self.broker.reachable(self.now);
        if back > self.now {
            return self.schedule(back, move |world| world.report_one(relay, generation, outcome));
        }
        let client = &mut self.actors[relay].client;
        if client.generation == generation && !client.gone {
            client.unreported.retain(|row| (row.flight, row.index) != (outcome.0.flight, outcome.0.index));
            self.report(relay, vec![outcome]);
        }
    }

    /// The client has to be replaced. Of what it has sent, only the first may have arrived, and nobody will say so.
    pub(super) fn replace_client(&mut self, relay: usize) {
        self.lose_what_is_on_its_way(relay);
        while let Some((row, _)) = self.actors[relay].client.on_the_way.pop_front() {
            let arrived = self.append(relay, row);
            self.note(Some(relay), &[13], || format!("arrived before the client is replaced: {arrived:?}"));
            self.actors[relay].client.unreported.push(row);
        }
        let actor = &mut self.actors[relay];
        let queued: Vec<Row> = actor.client.queued.drain(..).collect();
        let unreported = std::mem::take(&mut actor.client.unreported);
        actor.client.sent = 0;
        actor.client.generation += 1;
        // The old client says so when it ends, which takes a while.
        let given_up: Vec<Outcome> =
            unreported.iter().chain(&queued).map(|row| (*row, Err(PublishError::GivenUp))).collect();
        let random = &mut self.chance.as_mut().expect("it is there").random;
        let due = self.now + self.broker.transit.mul_f64(2.0 * random.f64());
        self.schedule(due, move |world| {
            let actor = &mut world.actors[relay];
            actor.client.reports.extend(given_up);
            actor.latch = true;
        });
        for row in unreported {
            self.truth_replaced(relay, row.serial, row.flight, row.index);
        }
        for row in queued {
            self.truth_let_go(row.serial, false);
        }
        self.count("replaced clients");
    }

    /// Its process has ended: what it has sent may arrive, or the first of it.
    pub(super) fn end_client(&mut self, relay: usize) {
        self.lose_what_is_on_its_way(relay);
        let client = &mut self.actors[relay].client;
        client.gone = true;
        for row in std::mem::take(&mut client.queued) {
            self.truth_let_go(row.serial, false);
        }
    }

    fn lose_what_is_on_its_way(&mut self, relay: usize) {
        let client = &mut self.actors[relay].client;
        let random = &mut self.chance.as_mut().expect("it is there").random;
        let mut lost = Vec::new();
        if random.bool() && !client.on_the_way.is_empty() {
            let arrive = random.usize(..client.on_the_way.len());
            lost.extend(client.on_the_way.drain(arrive..).map(|(row, _)| row));
        }
        // Of a client that is replaced they are reported as given up.
        client.unreported.extend(lost.iter().copied());
        for row in lost {
            self.truth_let_go(row.serial, false);
        }
    }
}

impl Client {
    /// The next row to be sent.
    fn next(&mut self, broker: &Broker, now: Time) -> Option<Row> {
        let may_go = |row: &Row| broker.trouble(row.label.topic, now) != Some(Trouble::Silent);
        let place = self.queued.iter().position(may_go).filter(|place| self.queued[*place].send_at <= now)?;
        self.queued.remove(place)
    }

    /// Whether something of the bucket may still be published.
    pub(super) fn may_publish(&self, bucket: Bucket) -> bool {
        self.queued.iter().chain(self.on_the_way.iter().map(|(row, _)| row)).any(|row| row.bucket == bucket)
    }

    /// Rows of this bucket that the relay waits for.
    pub fn rows_of(&self, bucket: Bucket) -> usize {
        self.out.iter().filter(|((of, _), _)| *of == bucket).map(|(_, (_, rows))| rows).sum()
    }

    /// Rows whose acknowledgement the relay is about to see.
    fn answered(&self) -> impl Iterator<Item = Serial> + '_ {
        self.reports.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(row, _)| row.serial)
    }

    /// Whether no other batch with rows of its unit is on its way.
    fn take(&mut self, row: Row) -> bool {
        let (flight, rows) = self.out.entry((row.bucket, row.label)).or_insert((row.flight, 0));
        let only = *flight == row.flight;
        *rows += 1;
        self.rows += 1;
        self.bytes += row.bytes;
        self.most_rows = self.most_rows.max(self.rows);
        self.most_bytes = self.most_bytes.max(self.bytes);
        self.queued.push_back(row);
        only
    }

    fn collect(&mut self) -> Vec<Report> {
        let reports = std::mem::take(&mut self.reports);
        let report = |(row, outcome): (Row, Result<(), PublishError>)| {
            self.rows -= 1;
            self.bytes -= row.bytes;
            let unit = (row.bucket, row.label);
            let (_, rows) = self.out.get_mut(&unit).expect("it was taken");
            *rows -= 1;
            if *rows == 0 {
                self.out.remove(&unit);
            }
            Report { flight: row.flight, index: row.index as u32, outcome }
        };
        reports.into_iter().map(report).collect()
    }
}

impl Publisher for Seat<'_> {
    fn submit(&mut self, flight: FlightId, batch: &Batch, from: usize) -> Submitted {
        let mut world = self.world();
        let world = &mut *world;
        let relay = self.me;
        let send_at = world.now + world.broker.linger;
        let mut submitted = Submitted { rows: 0, refused: None };
        let client = &mut world.actors[relay].client;
        if from == 0 {
            client.begun.insert(flight, client.generation);
        } else if client.begun.get(&flight) != Some(&client.generation) {
            // What the client before it had of the batch may be lost: the rest must not overtake that.
            world.count("batches that their client did not outlive");
            return Submitted { rows: 0, refused: Some(PublishError::GivenUp) };
        }
        let mut rows = Vec::new();
        for index in from..batch.len() {
            let actor = &mut world.actors[relay];
            if actor.client.rows >= world.broker.capacity {
                break;
            }
            let message = batch.message(index);
            let bucket = u128::from_be_bytes(message.message_id) as Bucket;
            let serial = message.handle.try_into().map(Serial::from_be_bytes).expect("handles of this world");
            if world.truth.is_none() {
                let owns = world.database.is_owner(&world.actors[relay].id, bucket, world.database_now());
                let actor = &world.actors[relay];
                assert!(owns, "{} submits to bucket {bucket} without a lease at {:?}", actor.id, world.now);
            }
            if world.broker.refuses((bucket, message.id), Refuser::Client, world.now) {
                submitted.refused = Some(refused());
                world.truth_refuses(relay, serial, flight, index);
                world.note(Some(relay), &[14, message.id as u64], || {
                    format!("its client refuses ({bucket}, {})", message.id)
                });
                break;
            }
            let topic =
                if message.topic == LETTERS { LETTERS } else { world.database.label_of((bucket, message.id)).topic };
            // A client that was told that a topic is unknown says so itself for a while.
            if world.broker.trouble(topic, world.now) == Some(Trouble::Refuses) && message.id % 2 == 0 {
                submitted.refused = Some(no_such_topic());
                world.truth_refuses(relay, serial, flight, index);
                break;
            }
            world.truth_submits(relay, serial, flight, index);
            let label = Label { topic, ..world.database.label_of((bucket, message.id)) };
            let row = Row { flight, index, bucket, id: message.id, label, serial, bytes: message.bytes(), send_at };
            if !world.actors[relay].client.take(row) {
                let words = format!("{}: two batches of bucket {bucket}", world.actors[relay].id);
                world.breach(Promise::OneBatchABucket, words);
            }
            rows.push((bucket, message.id));
            submitted.rows += 1;
        }
        if submitted.rows > 0 {
            world.record(relay, Verb::Submit, rows, true);
            world.schedule(send_at, move |world| world.send(relay));
        }
        submitted
    }

    fn submit_apart(&mut self, flight: FlightId, batch: &Batch) -> Submitted {
        assert_eq!(batch.len(), 1, "one row a request");
        let submitted = self.submit(flight, batch, 0);
        if submitted.rows > 0 {
            let message = batch.message(0);
            let bucket = u128::from_be_bytes(message.message_id) as Bucket;
            self.world().actors[self.me].client.apart.push((bucket, message.id));
        }
        submitted
    }

    fn collect(&mut self, reports: &mut Vec<Report>) {
        let mut world = self.world();
        let answered: Vec<Serial> = world.actors[self.me].client.answered().collect();
        answered.into_iter().for_each(|serial| world.truth_answers(serial));
        reports.extend(world.actors[self.me].client.collect());
    }

    fn purge(&mut self) {
        let mut world = self.world();
        let world = &mut *world;
        world.record(self.me, Verb::Purge, Vec::new(), true);
        let queued = std::mem::take(&mut world.actors[self.me].client.queued);
        queued.iter().for_each(|row| world.truth_let_go(row.serial, false));
        let given_up = queued.into_iter().map(|row| (row, Err(PublishError::GivenUp)));
        let actor = &mut world.actors[self.me];
        actor.latch |= given_up.len() > 0;
        actor.client.reports.extend(given_up);
    }

    /// What was sent is answered all the same, as late as it may be.
    fn abandon(&mut self) {
        self.world().record(self.me, Verb::Abandon, Vec::new(), true);
        self.purge();
    }

    fn inquire(&mut self, topic: &str) {
        let topic = topic.to_owned();
        let mut world = self.world();
        let relay = self.me;
        world.record(relay, Verb::Inquire, Vec::new(), true);
        let at = world.now + world.broker.delay;
        world.schedule(at, move |world| {
            if world.broker.reachable(world.now) == world.now {
                let in_trouble = world.broker.trouble(&topic, world.now) == Some(Trouble::Silent);
                let actor = &mut world.actors[relay];
                actor.client.answers.push(Answer { topic, in_trouble });
                actor.latch = true;
            }
        });
    }

    fn answers(&mut self, answers: &mut Vec<Answer>) {
        answers.append(&mut self.world().actors[self.me].client.answers);
    }
}
