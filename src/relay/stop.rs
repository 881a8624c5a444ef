//! A graceful stop: give up what was not sent, wait for what was, acknowledge it, and only then let others have the buckets.

use std::time::Duration;

use tracing::warn;

use crate::broken::{Rule, broken};

use super::Relay;
use super::flight::Flight;
use super::ports::{Bell, Clock, Publisher, Store, StoreError, Wait};

/// Part of the shutdown time that is left for the last acknowledgement and the release.
const RELEASE_RESERVE: Duration = Duration::from_millis(500);

/// How often a last call is made if orders interrupt it.
const ATTEMPTS: u32 = 3;

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// Gives up what was not sent, waits a bounded time for what was, acknowledges it, then releases.
    pub(super) fn stop(&mut self) {
        let deadline = self.clock.now() + self.settings.shutdown_timeout;
        let patience = deadline.since(self.clock.now()).saturating_sub(RELEASE_RESERVE);
        let wait_until = self.clock.now() + patience;
        self.flights.values_mut().for_each(Flight::close);
        loop {
            self.publisher.purge();
            self.collect();
            if self.flights.values().all(Flight::complete) || self.clock.now() >= wait_until {
                break;
            }
            self.bell.rest(Wait::Stopping, wait_until);
        }
        let now = self.clock.now();
        self.flights.values_mut().for_each(|flight| flight.try_again_at(now));
        if !broken(Rule::RemoveBeforeStop) {
            let kept = match self.insist(Self::acknowledge) {
                Err(error) => Some(error.to_string()),
                Ok(_) => self
                    .flights
                    .values()
                    .any(|flight| flight.put_off().is_some())
                    .then(|| "another transaction keeps some of them locked".to_owned()),
            };
            if let Some(reason) = kept {
                warn!(
                    detail = format!("{reason}."),
                    hint = "They are published once more.",
                    "could not remove acknowledged messages before stopping"
                );
            }
        }
        if !self.tenure.tried() {
            return;
        }
        let unanswered = self.flights.values().filter(|flight| !flight.complete()).count();
        if unanswered > 0 && !broken(Rule::ReleaseWhenQuiet) {
            warn!(
                detail = format!("Batches without an answer from Kafka: {unanswered}."),
                hint = "Their messages are kept; they may be published twice.",
                "stopping without releasing leases"
            );
            return;
        }
        let released = self.insist(|relay| match relay.store.ownership() {
            Some(ownership) => ownership.release(&relay.previous).map(|()| true),
            None => Ok(false),
        });
        match released {
            Ok(true) => self.bell.call_peers(),
            Ok(false) => {}
            Err(error) => warn!(detail = format!("{error}."), "could not release leases; they will expire"),
        }
    }

    /// An order that comes once more does not cut short what the first one has begun.
    fn insist<T>(&mut self, work: impl Fn(&mut Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        for _ in 1..ATTEMPTS {
            match work(self) {
                Err(StoreError::Interrupted) => {}
                done => return done,
            }
        }
        work(self)
    }
}
