//! What came back: outcomes are taken in, acknowledged prefixes removed, refused rows set to be tried again.

use tracing::{info, warn};

use std::collections::BTreeMap;
use std::mem;

use crate::broken::{Rule, broken};
use crate::bucket::Bucket;

use super::Relay;
use super::flight::Flight;
use super::lane::{Failing, Lane};
use super::ports::{Acknowledged, Bell, Clock, Failure, FlightId, PublishError, Publisher, Store, StoreError};

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// Takes in the outcomes that have arrived.
    pub(super) fn collect(&mut self) {
        let mut reports = mem::take(&mut self.reports);
        self.publisher.collect(&mut reports);
        let mut give_up = false;
        // What was given up is the client's own answer.
        if reports.iter().any(|report| report.outcome != Err(PublishError::GivenUp)) {
            self.heard_from_broker();
        }
        for report in reports.drain(..) {
            if let Some(flight) = self.flights.get_mut(&report.flight) {
                give_up |= flight.report(report.index as usize, report.outcome);
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

    /// Removes the acknowledged prefix of every batch whose reports are all in, as long as its lease lasts.
    pub(super) fn acknowledge(&mut self) -> Result<bool, StoreError> {
        // What came before in this turn may have been slow.
        if !broken(Rule::LeaseBeforeRemoval) {
            self.expire_leases();
        }
        let complete: Vec<FlightId> =
            self.flights.iter().filter(|(_, flight)| flight.complete()).map(|(id, _)| *id).collect();
        if complete.is_empty() {
            return Ok(false);
        }
        let to_remove: Vec<FlightId> = complete
            .iter()
            .copied()
            .filter(|id| !self.flights[id].orphaned || broken(Rule::LostLeaseKeepsRows))
            .filter(|id| !self.flights[id].prefix.is_empty())
            .collect();
        if !to_remove.is_empty() {
            let acknowledged: Vec<_> =
                to_remove.iter().map(|id| acknowledged_of(&self.flights[id], &self.lanes)).collect();
            let removed = self.store.acknowledge(&acknowledged)?;
            for (id, removed) in to_remove.iter().zip(removed) {
                if !removed {
                    self.lose(self.flights[id].lease, "another relay has taken it over");
                }
            }
        }
        // The rows are gone whatever else fails, so every flight ends before an error is passed on.
        let failed: Vec<_> = complete.into_iter().filter_map(|id| self.land(id)).collect();
        if let Some(notes) = self.store.failure_notes() {
            for failure in failed {
                notes.note_failure(&failure)?;
            }
        }
        Ok(true)
    }

    /// Ends a flight and says whether its bucket now begins with a refused row.
    pub(super) fn land(&mut self, id: FlightId) -> Option<Failure> {
        let flight = self.flights.remove(&id).expect("only flights that exist are ended");
        self.window.remove(flight.batch.len(), flight.batch.bytes());
        let bucket = flight.lease.bucket;
        let done = flight.prefix.len();
        let failure = match self.lanes.get_mut(&bucket) {
            Some(lane) if flight.orphaned => {
                // The bucket came back meanwhile, and the rows are still there.
                lane.landed(Some(flight.batch.id(0)));
                None
            }
            Some(lane) => {
                let kept = done < flight.batch.len() && !broken(Rule::PositionStepsBack);
                lane.landed(kept.then(|| flight.batch.id(done)));
                let last = done.checked_sub(1).map(|last| flight.batch.id(last));
                if let Some(failing) = lane.failing.take_if(|failing| last.is_some_and(|last| failing.id <= last)) {
                    info!(bucket, id = failing.id, attempts = failing.attempts, "published a message that had failed");
                    self.refusals.forget(&(bucket, failing.id));
                }
                flight.refusal().map(|(id, reason)| self.refused(bucket, id, reason.to_owned()))
            }
            None => None,
        };
        self.recycle(flight.batch);
        failure
    }

    /// A row was refused: it is tried again alone, after a wait that grows.
    pub(super) fn refused(&mut self, bucket: Bucket, id: i64, error: String) -> Failure {
        let now = self.clock.now();
        let lane = self.lanes.get_mut(&bucket).expect("the caller has just had it");
        let attempts = match lane.failing {
            Some(failing) if failing.id == id => failing.attempts.saturating_add(1),
            _ => 1,
        };
        let wait = self.backoff.after(attempts);
        lane.failing = Some(Failing { id, attempts, retry_at: now + wait });
        if self.refusals.note((bucket, id), now).is_some() {
            warn!(
                detail = format!("Bucket {bucket}, id {id}, attempt {attempts}: {error}."),
                hint = "The bucket waits for this message; see outbox.pg_stat_bucket.",
                "could not publish a message"
            );
        }
        Failure { bucket, id, attempts, error, wait }
    }
}

/// What a flight asks the store to remove.
fn acknowledged_of<'a>(flight: &'a Flight, lanes: &BTreeMap<Bucket, Lane>) -> Acknowledged<'a> {
    let len = flight.prefix.len();
    let failing = lanes.get(&flight.lease.bucket).and_then(|lane| lane.failing);
    let ends_failure = failing.is_some_and(|failing| failing.id <= flight.batch.id(len - 1));
    Acknowledged { lease: flight.lease, batch: &flight.batch, len, ends_failure }
}
