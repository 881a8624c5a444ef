//! The way out: which buckets may have rows, and a batch of each on its way.

use std::time::Duration;

use tracing::{debug, info, warn};

use crate::broken::{Rule, broken};
use crate::bucket::Bucket;
use crate::dead_letter::{self, Reason};
use crate::message::Batch;
use crate::policy::{self, Next, Policy};

use super::Relay;
use super::flight::Flight;
use super::ports::{Bell, Clock, FlightId, Limits, Publisher, Store, StoreError};

/// Memory that an idle batch buffer keeps.
const SPARE_BYTES: usize = 2 << 20;
/// Idle batch buffers that are kept.
const SPARE_MAX: usize = 16;
/// Refused rows of a bucket that are tried again in one turn.
const RETRIES_MAX: usize = 16;

/// What can be started.
#[derive(Debug, Clone, Copy)]
enum Start {
    /// A batch.
    Batch,
    /// The refused row of this id.
    Retry(i64),
}

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// Learns from bells, and now and then by looking, which buckets may have rows.
    pub(super) fn look_for_rows(&mut self) -> Result<(), StoreError> {
        let unknown = self.bell.take_unknown();
        for (bucket, lane) in &mut self.lanes {
            if let Some(id) = self.bell.take(*bucket) {
                lane.ring(id);
            }
            if unknown && !broken(Rule::UnknownBells) {
                lane.rescan();
            }
        }
        let now = self.clock.now();
        if self.lanes.is_empty() || now < self.looks.due(self.settings.poll_interval) {
            return Ok(());
        }
        let next = self.looks.next(self.lanes.iter().map(|(bucket, lane)| (*bucket, lane.look.expected())));
        // A busy bucket has rows anyway: what its batch has passed over is looked for behind it.
        let (busy, quiet): (Vec<Bucket>, Vec<Bucket>) =
            next.buckets.iter().partition(|bucket| self.lanes[*bucket].flight.is_some());
        let pending = self.store.pending(&quiet)?;
        let took = self.clock.now().since(now);
        for bucket in &quiet {
            let lane = self.lanes.get_mut(bucket).expect("looking changes no lanes");
            lane.look.looked(took / quiet.len() as u32);
        }
        let mut to_come = Duration::ZERO;
        for bucket in busy.iter().chain(&pending) {
            if let Some(lane) = self.lanes.get_mut(bucket).filter(|_| !broken(Rule::SafetyRescan)) {
                to_come += lane.rescan_for_safety(now, self.settings.poll_interval).unwrap_or_default();
            }
        }
        self.looks.looked(&next, now, took, to_come);
        Ok(())
    }

    /// Starts a batch of every bucket that may have one, and tries refused rows again whose time has come, bucket after
    /// bucket, as far as the window allows.
    pub(super) fn submit(&mut self) -> Result<bool, StoreError> {
        let mut any = self.submit_rest();
        let mut started = false;
        // Every bucket once a turn: a full one must not starve the others.
        let turn: Vec<Bucket> =
            self.lanes.range(self.next_lane..).chain(self.lanes.range(..self.next_lane)).map(|(b, _)| *b).collect();
        for bucket in turn {
            for start in self.startable(bucket) {
                if self.unread.contains(&bucket) {
                    // A refused row is not what it was: nothing is started before it is known what is.
                    any = true;
                    break;
                }
                let now = self.clock.now();
                if !self.window.open(self.settings.window) {
                    self.next_lane = bucket;
                    return Ok(any);
                }
                // A sweep over slow buckets must not outlast the lease: renew, then go on with this one. The first after a
                // renewal always goes, or a slow renewal would leave no time for anything.
                let due = self.leases_due().is_none_or(|due| due <= now);
                if (due && (started || self.waits_for_quiet())) || !self.may_publish(now) {
                    self.next_lane = bucket;
                    if self.budget.is_some() {
                        // Too old for a whole publish, though not yet due.
                        self.tenure.suspend();
                    }
                    return Ok(any || !self.waits_for_quiet());
                }
                started = true;
                self.next_lane = bucket + 1;
                let outcome = match start {
                    Start::Batch => self.start(bucket),
                    Start::Retry(first) => self.retry(bucket, first),
                };
                match outcome {
                    Ok(started) => any |= started,
                    Err(StoreError::Retry(error)) => {
                        self.unreadable(bucket, &error);
                        return Ok(any);
                    }
                    Err(leave) => return Err(leave),
                }
            }
        }
        Ok(any)
    }

    /// What may be started of a bucket now.
    fn startable(&self, bucket: Bucket) -> Vec<Start> {
        let (lane, now) = (&self.lanes[&bucket], self.clock.now());
        let batch = lane.can_start(now).then_some(Start::Batch);
        // Before the batch, which may begin in front of them.
        let retries = lane.due(now, self.rules.paused(), RETRIES_MAX).into_iter().map(Start::Retry);
        retries.chain(batch).collect()
    }

    /// A bucket could not be read: it waits longer each time, the others only this once.
    fn unreadable(&mut self, bucket: Bucket, error: &str) {
        let now = self.clock.now();
        let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
        let failures = lane.unreadable.map_or(1, |(failures, _)| failures + 1);
        lane.unreadable = Some((failures, now + self.backoff.after(failures)));
        self.do_nothing_for(self.settings.error_backoff);
        if self.unreadable.note(bucket, now).is_some() {
            warn!(
                detail = format!("Bucket {bucket}, {failures} attempts; reported was: {error}."),
                "could not read messages"
            );
        }
    }

    /// Hands over what the client had no room for before.
    pub(super) fn submit_rest(&mut self) -> bool {
        let waiting: Vec<FlightId> =
            self.flights.iter().filter(|(_, flight)| flight.next().is_some()).map(|(id, _)| *id).collect();
        if !self.may_go_on(self.clock.now()) && !broken(Rule::LeaseBeforeTheRest) {
            return false;
        }
        let mut any = false;
        for id in waiting {
            any |= self.hand_over(id);
        }
        any
    }

    /// Fetches a batch of the bucket and submits what need not wait.
    fn start(&mut self, bucket: Bucket) -> Result<bool, StoreError> {
        let limits = Limits { rows: self.settings.batch_size, bytes: self.settings.batch_bytes };
        let position = self.lanes[&bucket].position();
        let Some((mut batch, more)) = self.read(bucket, position, limits)? else { return Ok(true) };
        let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
        if batch.is_empty() {
            lane.found_empty();
            self.recycle(batch);
            return Ok(false);
        }
        let more = lane.admit(&mut batch, more, self.rules.paused());
        if batch.is_empty() {
            // All of it waits. Behind it there may be something that need not, unless the store has begun anew because of a
            // commit that a bell is about to tell of.
            let further = lane.position() > position;
            self.recycle(batch);
            return Ok(more && further);
        }
        let first = batch.id(0);
        let id = self.take_off(bucket, batch, None);
        self.lanes.get_mut(&bucket).expect("it was there").flight = Some((id, first));
        self.hand_over(id);
        Ok(true)
    }

    /// Tries a refused row again, alone.
    fn retry(&mut self, bucket: Bucket, first: i64) -> Result<bool, StoreError> {
        let limits = Limits { rows: 1, bytes: self.settings.batch_bytes };
        let Some((batch, _)) = self.read(bucket, first - 1, limits)? else { return Ok(true) };
        let now = self.clock.now();
        let later = now + self.settings.error_backoff;
        let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
        let row = batch.ids(batch.len()).next();
        let hold = lane.holds.get_mut(first).expect("it is due");
        match row {
            // A late one in front of it, of which a bell is about to tell.
            Some(id) if id < first => {
                hold.retry_at = Some(later);
                lane.read_again_from(id);
            }
            Some(id) if id == first && hold.unit.has(&batch.message(0)) => {
                let batch = self.letter(bucket, first, batch);
                let id = self.take_off(bucket, batch, Some(first));
                let lane = self.lanes.get_mut(&bucket).expect("it was there");
                lane.holds.get_mut(first).expect("it is due").flight = Some(id);
                self.hand_over(id);
                return Ok(true);
            }
            // So it was just before: what is noted of it says that it is there, but it cannot be read.
            _ if lane.missing_at.is_some_and(|at| now < at + self.settings.error_backoff) => {
                hold.retry_at = Some(later);
            }
            // Somebody has removed it, or sent it elsewhere, and what is noted of it means nothing or something else.
            _ => {
                lane.missing_at = Some(now);
                lane.release(first);
                self.unread.insert(bucket);
            }
        }
        self.recycle(batch);
        Ok(true)
    }

    /// The row as it is to be sent: if it was refused for too long, to its topic's dead-letter topic.
    fn letter(&self, bucket: Bucket, first: i64, batch: Batch) -> Batch {
        let now = self.clock.now();
        let hold = self.lanes[&bucket].holds.get(first).expect("it is due");
        let rule = self.rules.of(hold.topic());
        let failing_for = now.since(hold.since);
        let next = policy::next(rule, self.settings.patience, hold.attempts, failing_for);
        let Next::DeadLetter(topic) = next else { return batch };
        if hold.unit.is_topic() {
            return batch;
        }
        let now = self.clock.since_1970();
        let first_refused = now.saturating_sub(failing_for);
        let reason = Reason { error: &hold.error, attempts: hold.attempts, first_refused, now };
        dead_letter::letter(&batch.message(0), topic, reason)
    }

    /// Reads rows, if their lease outlasts that.
    fn read(&mut self, bucket: Bucket, after: i64, limits: Limits) -> Result<Option<(Batch, bool)>, StoreError> {
        let mut batch = self.spare.pop().unwrap_or_default();
        let begun = self.clock.now();
        let fetched = self.store.fetch(bucket, after, limits, &mut batch);
        if fetched.is_ok() {
            let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
            // From the beginning, as in a bucket that has just been gained, is a look too.
            if lane.looks_again() || after == 0 {
                let took = self.clock.now().since(begun);
                self.looks.came(lane.look.came(after == 0, took), took);
            }
            if let Some((attempts, _)) = lane.unreadable.take() {
                self.unreadable.forget(&bucket);
                info!(bucket, attempts, "messages can be read again");
            }
        }
        let lasts = self.may_publish(self.clock.now()) || broken(Rule::LeaseAfterFetch);
        match fetched {
            Ok(more) if lasts || batch.is_empty() => Ok(Some((batch, more))),
            Ok(_) => {
                // The store may have gone further back than it was asked to, and will not do so again.
                let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
                if !broken(Rule::DroppedIsReadAgain) {
                    lane.read_again_from(batch.id(0));
                }
                self.recycle(batch);
                warn!("reading a batch took too long for the lease; the batch is not published");
                self.tenure.suspend();
                Ok(None)
            }
            Err(error) => {
                // What it was told to go back to is not known, and another relay may be told from now on.
                let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
                if !broken(Rule::DroppedIsReadAgain) {
                    lane.rescan();
                }
                self.recycle(batch);
                Err(error)
            }
        }
    }

    /// A batch is on its way from now on.
    fn take_off(&mut self, bucket: Bucket, batch: Batch, retries: Option<i64>) -> FlightId {
        let now = self.clock.now();
        let id = self.next_flight;
        self.next_flight = self.next_flight.wrapping_add(1);
        if !self.batches_in_flight() {
            self.silence.since = now;
        }
        self.window.add(batch.len(), batch.bytes());
        let lease = self.lanes[&bucket].lease;
        self.flights.insert(id, Flight::new(lease, now, batch, retries));
        id
    }

    /// Whether anything is on its way but refused rows, which may wait for long, and what has arrived but cannot be removed.
    pub(super) fn batches_in_flight(&self) -> bool {
        self.flights.values().any(|flight| flight.retries.is_none() && flight.put_off().is_none())
    }

    /// Keeps a few buffers for the next batches.
    pub(super) fn recycle(&mut self, mut batch: Batch) {
        if self.spare.len() < SPARE_MAX {
            batch.clear(SPARE_BYTES);
            self.spare.push(batch);
        }
    }

    /// Hands over as many rows of a flight as the client takes, and says whether anything came of it.
    fn hand_over(&mut self, id: FlightId) -> bool {
        let flight = self.flights.get_mut(&id).expect("only flights that exist are submitted");
        let mut any = false;
        while let Some(from) = flight.next() {
            let submitted = if flight.retries.is_some() {
                self.publisher.submit_apart(id, &flight.batch)
            } else {
                self.publisher.submit(id, &flight.batch, from)
            };
            debug!(bucket = flight.lease.bucket, rows = submitted.rows, "submitted");
            flight.handed_over(submitted.rows);
            any |= submitted.rows > 0 || submitted.refused.is_some();
            let Some(error) = submitted.refused else { break };
            let row = flight.batch.message(from + submitted.rows);
            let blocks = self.rules.of(row.topic).policy == Policy::Block;
            let left = flight.refused(error);
            self.window.remove(left, 0);
            if blocks {
                flight.close();
            }
        }
        any
    }
}
