//! The clients of the relays and the broker behind them: rows are queued, sent, appended or refused, and reported.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::message::Batch;
use crate::relay::ports::{FlightId, PublishError, Publisher, Report, Submitted};

use super::Seat;
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
    refused: BTreeMap<(Bucket, i64), (Refuser, Time)>,
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

/// What one relay has with its client.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// Rows not yet reported to the relay, and their bytes.
    pub rows: usize,
    pub bytes: usize,
    /// The most there ever was.
    pub most_rows: usize,
    pub most_bytes: usize,
    /// Rows that were handed over apart from all others.
    pub apart: Vec<(Bucket, i64)>,
    flights: BTreeMap<Bucket, (FlightId, usize)>,
    queued: VecDeque<Row>,
    sent: usize,
    reports: Vec<(Row, Result<(), PublishError>)>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    flight: FlightId,
    index: usize,
    bucket: Bucket,
    id: i64,
    bytes: usize,
    send_at: Time,
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
            refused: BTreeMap::new(),
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

    pub(super) fn has(&self, row: (Bucket, i64)) -> bool {
        self.appended.contains(&row)
    }

    fn refuses(&self, row: (Bucket, i64), who: Refuser, now: Time) -> bool {
        self.refused.get(&row).is_some_and(|(by, until)| *by == who && now < *until)
    }

    /// The first moment from `time` on at which it answers.
    fn reachable(&self, time: Time) -> Time {
        self.away.as_ref().filter(|away| away.contains(&time)).map_or(time, |away| away.end)
    }
}

fn refused() -> PublishError {
    PublishError::Refused("it is too large".to_owned())
}

impl World {
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
        let mut outcomes = Vec::new();
        let Actor { id, client, .. } = &mut self.actors[relay];
        while client.sent < self.broker.pipeline
            && let Some(row) = client.queued.front().copied().filter(|row| row.send_at <= self.now)
        {
            client.queued.pop_front();
            client.sent += 1;
            let named = (row.bucket, row.id);
            if self.broker.refuses(named, Refuser::Broker, self.now) {
                outcomes.push((row, Err(refused())));
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

    fn report(&mut self, relay: usize, outcomes: Vec<(Row, Result<(), PublishError>)>) {
        let actor = &mut self.actors[relay];
        actor.client.sent -= outcomes.len();
        actor.client.reports.extend(outcomes);
        actor.latch = true;
        if !actor.client.queued.is_empty() {
            self.send(relay);
        }
    }
}

impl Client {
    /// Rows of this bucket that the relay waits for.
    pub fn rows_of(&self, bucket: Bucket) -> usize {
        self.flights.get(&bucket).map_or(0, |(_, rows)| *rows)
    }

    fn take(&mut self, row: Row) {
        let (flight, rows) = self.flights.entry(row.bucket).or_insert((row.flight, 0));
        assert_eq!(*flight, row.flight, "two batches of bucket {} are on their way", row.bucket);
        *rows += 1;
        self.rows += 1;
        self.bytes += row.bytes;
        self.most_rows = self.most_rows.max(self.rows);
        self.most_bytes = self.most_bytes.max(self.bytes);
        self.queued.push_back(row);
    }

    fn collect(&mut self) -> Vec<Report> {
        let reports = std::mem::take(&mut self.reports);
        let report = |(row, outcome): (Row, Result<(), PublishError>)| {
            self.rows -= 1;
            self.bytes -= row.bytes;
            let (_, rows) = self.flights.get_mut(&row.bucket).expect("it was taken");
            *rows -= 1;
            if *rows == 0 {
                self.flights.remove(&row.bucket);
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
        let mut rows = Vec::new();
        for index in from..batch.len() {
            let actor = &mut world.actors[relay];
            if actor.client.rows >= world.broker.capacity {
                break;
            }
            let message = batch.message(index);
            let bucket = message.partition.expect("rows of this world name their bucket") as Bucket;
            let owns = world.database.is_owner(&actor.id, bucket, world.now);
            assert!(owns, "{} submits to bucket {bucket} without a lease at {:?}", actor.id, world.now);
            if world.broker.refuses((bucket, message.id), Refuser::Client, world.now) {
                submitted.refused = Some(refused());
                break;
            }
            actor.client.take(Row { flight, index, bucket, id: message.id, bytes: message.bytes(), send_at });
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
            let bucket = message.partition.expect("rows of this world name their bucket") as Bucket;
            self.world().actors[self.me].client.apart.push((bucket, message.id));
        }
        submitted
    }

    fn collect(&mut self, reports: &mut Vec<Report>) {
        reports.extend(self.world().actors[self.me].client.collect());
    }

    fn purge(&mut self) {
        let mut world = self.world();
        let world = &mut *world;
        world.record(self.me, Verb::Purge, Vec::new(), true);
        let actor = &mut world.actors[self.me];
        let queued = std::mem::take(&mut actor.client.queued);
        actor.latch |= !queued.is_empty();
        actor.client.reports.extend(queued.into_iter().map(|row| (row, Err(PublishError::GivenUp))));
    }
}
