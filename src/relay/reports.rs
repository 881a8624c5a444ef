//! What came back: outcomes are taken in, what may be removed is removed, refused rows hold up their units.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use tracing::{info, warn};

use crate::broken::{Rule, broken};
use crate::bucket::Bucket;
use crate::clock::Time;
use crate::message::Batch;
use crate::order::{Part, Unit};
use crate::policy::{self, Next, Policy};

use super::Relay;
use super::flight::Flight;
use super::holds::Hold;
use super::ports::{
    Acknowledged, Bell, Clock, Failure, FailureNote, FlightId, PublishError, Publisher, Removed, Store, StoreError,
};

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// Takes in the outcomes that have arrived.
    pub(super) fn collect(&mut self) {
        let mut reports = mem::take(&mut self.reports);
        self.publisher.collect(&mut reports);
        let now = self.clock.now();
        let mut give_up = false;
        // What was given up is the client's own answer.
        if reports.iter().any(|report| report.outcome != Err(PublishError::GivenUp)) {
            self.heard_from_broker();
        }
        for report in reports.drain(..) {
            if let Some(flight) = self.flights.get_mut(&report.flight) {
                give_up |= flight.report(report.index as usize, report.outcome, now);
            }
        }
        self.reports = reports;
        if give_up {
            // Rows behind a refused one wait for it; those already sent cannot be called back.
            self.give_up_queued();
        }
    }

    /// Calls back what the client has only queued, of all batches.
    pub(super) fn give_up_queued(&mut self) {
        self.publisher.purge();
        self.close_what_was_given_up();
    }

    pub(super) fn close_what_was_given_up(&mut self) {
        if !broken(Rule::NoOvertaking) {
            self.flights.values_mut().for_each(Flight::queue_given_up);
        }
    }

    pub(super) fn heard_from_broker(&mut self) {
        self.silence.since = self.clock.now();
        if mem::take(&mut self.silence.told) {
            info!("Kafka answers again");
        }
    }

    /// Removes what may be removed of every batch whose reports are all in, as long as its lease lasts.
    pub(super) fn acknowledge(&mut self) -> Result<bool, StoreError> {
        // What came before in this turn may have been slow.
        if !broken(Rule::LeaseBeforeRemoval) {
            self.expire_leases();
        }
        let now = self.clock.now();
        let ends = |flight: &Flight| flight.complete() && flight.put_off().is_none_or(|until| until <= now);
        let mut complete: Vec<FlightId> =
            self.flights.iter().filter(|(_, flight)| ends(flight)).map(|(id, _)| *id).collect();
        if complete.is_empty() {
            return Ok(false);
        }
        let mut removed_any = false;
        let mut removals: Vec<Removal> = complete
            .iter()
            .filter(|id| !self.flights[*id].orphaned || broken(Rule::LostLeaseKeepsRows))
            .filter_map(|id| Removal::of(*id, &self.flights[id]))
            .collect();
        if !removals.is_empty() {
            let acknowledged: Vec<_> = removals.iter().map(|removal| removal.ask(&self.flights)).collect();
            let removed = self.store.acknowledge(&acknowledged)?;
            for (removal, removed) in removals.iter_mut().zip(removed) {
                match removed {
                    Removed::Gone => removed_any = true,
                    Removed::LeaseLost => {
                        removal.len = 0;
                        self.lose(self.flights[&removal.flight].lease, "another relay has taken it over");
                    }
                    Removed::Locked => {
                        complete.retain(|id| *id != removal.flight);
                        self.put_off(removal.flight);
                    }
                }
            }
            removals.retain(|removal| complete.contains(&removal.flight));
        }
        let any = !complete.is_empty();
        // The rows are gone whatever else fails, so every flight ends before an error is passed on.
        let mut failed = Vec::new();
        let mut removals = removals.into_iter().peekable();
        for id in complete {
            let removal = removals.next_if(|removal| removal.flight == id);
            self.land(id, removal.as_ref(), &mut failed);
        }
        if !failed.is_empty()
            && let Some(notes) = self.store.failure_notes()
        {
            notes.note_failures(&failed).inspect_err(|_| {
                // What is noted counts, for that is what an operator sees: it is read again, and tried again by that.
                self.unread.extend(failed.iter().map(|note| note.lease.bucket));
            })?;
        }
        match self.misconfigured.take() {
            Some(reason) => self.wait_with_everything(&reason),
            None if removed_any && mem::take(&mut self.refused_altogether) > 0 => {
                self.refusals.forget(&(String::new(), Told::Everything));
                info!("messages are accepted again");
            }
            None => {}
        }
        Ok(any)
    }

    /// Somebody keeps published rows locked: their bucket waits for him, and no other does.
    fn put_off(&mut self, id: FlightId) {
        let now = self.clock.now();
        let flight = self.flights.get_mut(&id).expect("the caller has just had it");
        flight.put_off_until(now + self.backoff.after((flight.locked() + 1).min(LOCKED_TRIES)));
        let (bucket, times) = (flight.lease.bucket, flight.locked());
        if self.locked.note(bucket, now).is_some() {
            warn!(
                detail = format!("Bucket {bucket}, {times} attempts."),
                hint = "They are removed, and the bucket goes on, once that transaction has ended; see pg_locks.",
                "messages that are published cannot be removed, for another transaction keeps some of them locked"
            );
        }
    }

    /// Nothing can be published as it is set up: tries again now and then, for somebody may mend it at the other end.
    fn wait_with_everything(&mut self, reason: &str) {
        let now = self.clock.now();
        self.refused_altogether = self.refused_altogether.saturating_add(1);
        let wait = self.backoff.after(self.refused_altogether);
        self.do_nothing_for(wait);
        if self.refusals.note((String::new(), Told::Everything), now).is_some() {
            warn!(
                detail = format!("Reported was: {reason}."),
                hint = "Messages are kept. Correct the settings, or the rights of the client at the broker.",
                "nothing can be published as it is set up"
            );
        }
    }

    /// Ends a flight, and adds what is to be noted of refused rows.
    fn land(&mut self, id: FlightId, removal: Option<&Removal>, failed: &mut Vec<FailureNote>) {
        let mut flight = self.flights.remove(&id).expect("only flights that exist are ended");
        self.window.remove(flight.batch.len(), flight.batch.bytes());
        let (bucket, notes) = (flight.lease.bucket, failed.len());
        if flight.locked() > 0 {
            self.locked.forget(&bucket);
            if !flight.orphaned {
                info!(bucket, attempts = flight.locked() + 1, "messages that were locked are removed");
            }
        }
        if let Some(lane) = self.lanes.get_mut(&bucket) {
            lane.look.removed(removal.map_or(0, |removal| removal.len));
            if flight.orphaned {
                // The bucket came back meanwhile, and the rows are still there.
                lane.landed(id, Some(flight.batch.id(0)));
            } else if let Some(first) = flight.retries {
                lane.landed(id, None);
                failed.extend(self.land_retry(bucket, first, &mut flight));
            } else {
                let kept = removal.map_or(Some(0), |removal| removal.first_kept(&flight.batch));
                let kept = kept.filter(|_| !broken(Rule::PositionStepsBack));
                let resume = kept.map(|index| flight.batch.id(index));
                if flight.is_aside() {
                    lane.landed_aside(id, resume);
                } else {
                    lane.landed(id, resume);
                }
                for (index, error) in flight.refusals() {
                    let row = flight.batch.message(index);
                    let refusal =
                        Refusal { bucket, id: row.id, unit: Unit::of(&row).into_owned(), letter_to: None, error };
                    failed.extend(self.refused(refusal));
                }
            }
        }
        if failed.len() > notes && self.called_at.is_some_and(|at| flight.started <= at) {
            // An operator may have acted on a refused row since it set out. If it is parked now, nobody would ever notice.
            self.unread.insert(bucket);
        }
        self.recycle(flight.batch);
    }

    /// The attempt with a refused row has ended.
    fn land_retry(&mut self, bucket: Bucket, first: i64, flight: &mut Flight) -> Option<FailureNote> {
        let lane = self.lanes.get_mut(&bucket).expect("the caller has just had it");
        let hold = lane.holds.get_mut(first)?;
        hold.flight = None;
        if let Some(passed) = hold.passed.take() {
            lane.read_again_from(passed);
        }
        if flight.prefix.is_empty() {
            if lane.holds.get(first)?.forgotten {
                lane.release(first);
                self.unread.insert(bucket);
                return None;
            }
            let (_, error) = flight.refusals().pop()?;
            let row = flight.batch.message(0);
            let hold = lane.holds.get(first)?;
            let letter_to = (row.topic != hold.topic()).then(|| row.topic.to_owned());
            let unit = if hold.unit.is_topic() { Unit::of(&row).into_owned() } else { hold.unit.clone() };
            return self.refused(Refusal { bucket, id: first, unit, letter_to, error });
        }
        let hold = lane.holds.get(first)?.clone();
        lane.release(first);
        let letter_to = flight.batch.message(0).topic;
        self.say_published(bucket, first, &hold, letter_to);
        if hold.unit.is_topic() {
            self.topic_goes_on(hold.topic());
        }
        None
    }

    /// A topic takes messages again: wherever it is held, it is tried now.
    fn topic_goes_on(&mut self, topic: &str) {
        let now = self.clock.now();
        for lane in self.lanes.values_mut() {
            if let Some(hold) = lane.holds.of(&Unit::topic(topic)).and_then(|first| lane.holds.get_mut(first)) {
                hold.retry_at = hold.retry_at.map(|at| at.min(now));
            }
        }
    }

    /// A row was refused: its unit, or its topic, waits until it gets through.
    fn refused(&mut self, refusal: Refusal) -> Option<FailureNote> {
        let Refusal { bucket, id, mut unit, letter_to, error } = refusal;
        let passing = matches!(error, PublishError::Transient(_));
        let (mut error, counts) = match error {
            PublishError::GivenUp => return None,
            PublishError::Misconfigured(reason) => {
                self.misconfigured = Some(reason);
                return None;
            }
            PublishError::Topic(error) | PublishError::Transient(error) => (error, false),
            PublishError::Invalid(error) => (error, true),
        };
        let now = self.clock.now();
        let lane = self.lanes.get_mut(&bucket).expect("the caller has just had it");
        let known = lane.holds.get(id).is_some_and(|hold| !hold.unit.is_topic());
        if !known && counts && lane.holds.full() {
            error = format!("too many messages of bucket {bucket} are refused, this one because of: {error}");
        }
        if !known && (!counts || lane.holds.full()) {
            unit.part = Part::Whole;
        }
        // What was refused before it covers it.
        if lane.holds.of(&unit).is_some_and(|first| first < id) {
            return None;
        }
        let before = lane.holds.get(id).filter(|hold| hold.unit == unit).cloned();
        let mut hold = before.unwrap_or_else(|| Hold::new(unit, now));
        let topic_fails = hold.unit.is_topic();
        if let Some(topic) = &letter_to {
            error = format!("dead-letter topic \"{topic}\": {error}");
        } else {
            // The time with a topic that takes nothing is no attempt of the row's own.
            hold.attempts = hold.attempts.saturating_add(u32::from(counts || topic_fails));
        }
        let rule = self.rules.of(hold.topic());
        hold.blocks = rule.policy == Policy::Block || !lane.holds.room_for_topics(1);
        let tries = if topic_fails { hold.attempts.min(TOPIC_TRIES) } else { hold.attempts.max(1) };
        let failing_for = now.since(hold.since);
        let wait = match policy::next(rule, self.settings.patience, hold.attempts, failing_for) {
            _ if topic_fails && tries == 1 => Some(self.settings.error_backoff.min(TOPIC_FIRST_WAIT)),
            _ if topic_fails || !counts => Some(self.backoff.after(tries)),
            Next::Park => None,
            // It can be sent to neither.
            Next::DeadLetter(_) if letter_to.is_some() => None,
            Next::DeadLetter(_) => Some(Duration::ZERO),
            Next::Retry => Some(self.backoff.after(tries)),
        };
        hold.error.clone_from(&error);
        hold.retry_at = wait.map(|wait| now + wait);
        // What passes by itself the client tells of.
        if !passing {
            self.say_refused(bucket, id, &hold);
        }
        let (attempts, unit) = (hold.attempts, hold.unit.clone());
        let lane = self.lanes.get_mut(&bucket).expect("the caller has just had it");
        // The topic takes messages, only not this one.
        let freed = !topic_fails && lane.holds.get(id).is_some_and(|before| before.unit.is_topic());
        if freed {
            lane.release(id);
        }
        let in_place_of = lane.holds.begin(id, hold).filter(|_| !broken(Rule::OneNoteAUnit));
        let lease = lane.lease;
        if freed {
            self.topic_goes_on(&unit.topic);
        }
        let failure = Failure { bucket, id, unit, attempts, error, failing_for, wait };
        Some(FailureNote { lease, failure, in_place_of })
    }

    /// Whether something may be said of a topic now, and a sentence on what was not said before.
    fn may_say(&mut self, topic: &str, told: Told, now: Time) -> Option<String> {
        let unsaid = self.refusals.note((topic.to_owned(), told), now)?;
        let of_others = self.topic_lines.spend(now)?;
        let mut words = String::new();
        if unsaid > 0 {
            words += &format!(" Not told since the last such line: {unsaid}.");
        }
        if of_others > 0 {
            words += &format!(" Lines about topics that were left out: {of_others}.");
        }
        Some(words)
    }

    fn say_published(&mut self, bucket: Bucket, id: i64, hold: &Hold, sent_to: &str) {
        let now = self.clock.now();
        let topic = hold.topic();
        let told = if sent_to != topic { Told::DeadLettered } else { Told::Published };
        let Some(unsaid) = self.may_say(topic, told, now) else { return };
        let attempts = hold.attempts;
        let detail = format!("Bucket {bucket}, id {id}, failed attempts: {attempts}.{unsaid}");
        if told == Told::DeadLettered {
            info!(detail, "a message to topic \"{topic}\" is published to dead-letter topic \"{sent_to}\"");
        } else if hold.unit.is_topic() {
            info!(detail, "topic \"{topic}\" takes messages again");
        } else {
            info!(detail, "a message to topic \"{topic}\" that was refused is published");
        }
    }

    fn say_refused(&mut self, bucket: Bucket, id: i64, hold: &Hold) {
        let now = self.clock.now();
        let told = match hold.retry_at {
            _ if hold.unit.is_topic() => Told::Topic,
            None => Told::Parked,
            Some(_) => Told::Refused,
        };
        let Some(unsaid) = self.may_say(hold.topic(), told, now) else { return };
        let (topic, attempts, error) = (hold.topic(), hold.attempts, &hold.error);
        let detail = format!("Bucket {bucket}, id {id}, attempt {attempts}: {error}.{unsaid}");
        match told {
            Told::Topic => warn!(
                detail,
                hint = "Its messages wait, those of other topics go on; see outbox.parked.",
                "topic \"{topic}\" takes no messages"
            ),
            Told::Refused => warn!(
                detail,
                hint = "It is tried again, and the later messages of its key wait; see outbox.parked.",
                "a message to topic \"{topic}\" is refused"
            ),
            _ => warn!(
                detail,
                hint = "It and the later messages of its key wait for an operator; see outbox.parked.",
                "a message to topic \"{topic}\" is parked"
            ),
        }
    }
}

/// What is said of refused rows, at most once a minute for each topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    /// Not of a topic, but of all.
    Everything,
    Topic,
    Refused,
    Parked,
    Published,
    DeadLettered,
}

/// A row that was refused.
struct Refusal {
    bucket: Bucket,
    id: i64,
    unit: Unit<'static>,
    /// It was sent as a dead letter to this topic.
    letter_to: Option<String>,
    error: PublishError,
}

/// A topic is tried again at least as often as after so many failures: once it works it goes on within seconds.
const TOPIC_TRIES: u32 = 3;

/// And the first time sooner: a broker that creates a topic when it is asked for takes a moment.
const TOPIC_FIRST_WAIT: Duration = Duration::from_millis(200);

/// What was locked is tried to be removed at least as often as after so many failures.
const LOCKED_TRIES: u32 = 2;

/// What is to be removed of a flight.
struct Removal {
    flight: FlightId,
    /// The first rows of the batch, or of those selected.
    len: usize,
    selected: Option<(Vec<usize>, Batch)>,
    ends_failure: bool,
}

impl Removal {
    fn of(id: FlightId, flight: &Flight) -> Option<Self> {
        let selected = flight.removable().map(|indices| {
            let batch = flight.batch.select(&indices);
            (indices, batch)
        });
        let len = selected.as_ref().map_or(flight.prefix.len(), |(indices, _)| indices.len());
        (len > 0).then_some(Self { flight: id, len, selected, ends_failure: flight.retries.is_some() })
    }

    fn ask<'a>(&'a self, flights: &'a BTreeMap<FlightId, Flight>) -> Acknowledged<'a> {
        let flight = &flights[&self.flight];
        let batch = self.selected.as_ref().map_or(&flight.batch, |(_, batch)| batch);
        Acknowledged { lease: flight.lease, batch, len: self.len, ends_failure: self.ends_failure }
    }

    /// The index of the first row that stays.
    fn first_kept(&self, batch: &Batch) -> Option<usize> {
        match &self.selected {
            Some((indices, _)) if self.len > 0 => {
                let gone: BTreeSet<usize> = indices.iter().copied().collect();
                (0..batch.len()).find(|index| !gone.contains(index))
            }
            _ => (self.len < batch.len()).then_some(self.len),
        }
    }
}
