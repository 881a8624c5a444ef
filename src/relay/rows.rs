//! The way out: which buckets may have rows, and a batch of each on its way.

use tracing::{debug, info, warn};

use crate::broken::{Rule, broken};
use crate::bucket::Bucket;
use crate::message::Batch;

use super::Relay;
use super::flight::Flight;
use super::ports::{Bell, Clock, FlightId, Limits, Publisher, Store, StoreError};

/// Memory that an idle batch buffer keeps.
const SPARE_BYTES: usize = 1 << 20;
/// Idle batch buffers that are kept.
const SPARE_MAX: usize = 16;

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
        if self.lanes.is_empty() || self.discover_at.is_some_and(|at| now < at) {
            return Ok(());
        }
        // A busy bucket has rows anyway: what its batch has passed over is looked for behind it.
        let (busy, quiet): (Vec<Bucket>, Vec<Bucket>) =
            self.lanes.keys().copied().partition(|bucket| self.lanes[bucket].flight.is_some());
        let pending = self.store.pending(&quiet)?;
        for bucket in busy.into_iter().chain(pending) {
            if let Some(lane) = self.lanes.get_mut(&bucket).filter(|_| !broken(Rule::SafetyRescan)) {
                lane.rescan();
            }
        }
        self.discover_at = Some(now + self.settings.poll_interval);
        Ok(())
    }

    /// Starts a batch of every bucket that may have one, in turn, as far as the window allows.
    pub(super) fn submit(&mut self) -> Result<bool, StoreError> {
        let mut any = self.submit_rest();
        let mut started = false;
        // Every bucket once a turn: a full one must not starve the others.
        let turn: Vec<Bucket> =
            self.lanes.range(self.next_lane..).chain(self.lanes.range(..self.next_lane)).map(|(b, _)| *b).collect();
        for bucket in turn {
            let now = self.clock.now();
            if !self.lanes[&bucket].can_start(now) {
                continue;
            }
            if !self.window.open(self.settings.window) {
                self.next_lane = bucket;
                break;
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
            match self.start(bucket) {
                Ok(started) => any |= started,
                Err(StoreError::Retry(error)) => {
                    self.unreadable(bucket, &error);
                    break;
                }
                Err(leave) => return Err(leave),
            }
        }
        Ok(any)
    }

    /// A bucket could not be read: it waits longer each time, the others only this once.
    fn unreadable(&mut self, bucket: Bucket, error: &str) {
        let now = self.clock.now();
        let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
        let failures = lane.unreadable.map_or(1, |(failures, _)| failures + 1);
        lane.unreadable = Some((failures, now + self.backoff.after(failures)));
        self.wait_until = Some(now + self.settings.error_backoff);
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

    /// Fetches a batch of the bucket and submits it.
    pub(super) fn start(&mut self, bucket: Bucket) -> Result<bool, StoreError> {
        let lane = &self.lanes[&bucket];
        let limits = Limits { rows: lane.rows(self.settings.batch_size), bytes: self.settings.batch_bytes };
        let mut batch = self.spare.pop().unwrap_or_default();
        let fetched = self.store.fetch(bucket, lane.position(), limits, &mut batch);
        if fetched.is_ok() {
            let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
            if let Some((attempts, _)) = lane.unreadable.take() {
                self.unreadable.forget(&bucket);
                info!(bucket, attempts, "messages can be read again");
            }
        }
        let lasts = self.may_publish(self.clock.now()) || broken(Rule::LeaseAfterFetch);
        let usable = fetched.is_ok() && !batch.is_empty() && lasts;
        if !usable {
            let empty = batch.is_empty();
            self.recycle(batch);
            fetched?;
            if empty {
                self.lanes.get_mut(&bucket).expect("fetching changes no lanes").found_empty();
                return Ok(false);
            }
            warn!("reading a batch took too long for the lease; the batch is not published");
            self.tenure.suspend();
            return Ok(true);
        }
        let more = fetched?;
        let now = self.clock.now();
        let lane = self.lanes.get_mut(&bucket).expect("fetching changes no lanes");
        let admitted = lane.admit(batch.ids(batch.len()), now);
        let more = more || admitted < batch.len();
        batch.truncate(admitted);
        let Some(last_id) = batch.last_id() else {
            self.recycle(batch);
            return Ok(false);
        };
        let id = self.next_flight;
        self.next_flight = self.next_flight.wrapping_add(1);
        let apart = lane.failing.is_some_and(|failing| failing.id == batch.id(0));
        lane.started(id, last_id, more);
        if self.flights.is_empty() {
            self.silence.since = self.clock.now();
        }
        self.window.add(batch.len(), batch.bytes());
        self.flights.insert(id, Flight::new(lane.lease, now, batch, apart));
        self.hand_over(id);
        Ok(true)
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
        let Some(from) = flight.next() else { return false };
        let submitted = if flight.apart {
            self.publisher.submit_apart(id, &flight.batch)
        } else {
            self.publisher.submit(id, &flight.batch, from)
        };
        debug!(bucket = flight.lease.bucket, rows = submitted.rows, "submitted");
        flight.handed_over(submitted.rows);
        let refused = submitted.refused.is_some();
        if let Some(error) = submitted.refused {
            flight.refused(error);
        }
        submitted.rows > 0 || refused
    }
}
