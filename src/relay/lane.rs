//! What a relay knows of one bucket it holds: how far it has read, whether there may be more, and what stands in the way.
//!
//! Reason for the position: reading from it passes over the dead rows of what was removed. It is a hint: a bell with a lower
//! id, an unknown bell and the safety rescan step it back, so a late commit costs time, never a message.

use crate::broken::{Rule, broken};
use crate::clock::Time;
use crate::lease::Lease;

use super::ports::FlightId;

/// One bucket of the relay.
#[derive(Debug)]
pub(super) struct Lane {
    pub lease: Lease,
    /// To be handed back as soon as nothing is in flight; starts nothing any more.
    pub leaving: bool,
    /// The batch in flight: one at a time, or rows could overtake each other.
    pub flight: Option<FlightId>,
    /// The refused first message, which is tried alone.
    pub failing: Option<Failing>,
    /// Reading failed so many times in a row, and is not tried again before this.
    pub unreadable: Option<(u32, Time)>,
    /// There may be rows above the position.
    ready: bool,
    /// Rows up to this id were read, and are removed or in flight.
    position: i64,
}

/// The state of a refused message at the head of its bucket, keyed by that message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failing {
    pub id: i64,
    pub attempts: u32,
    pub retry_at: Time,
}

impl Lane {
    /// A bucket just gained: nothing is known of it, and an earlier flight of it may still be out.
    pub fn new(lease: Lease, flight: Option<FlightId>) -> Self {
        Self { lease, leaving: false, flight, failing: None, unreadable: None, ready: true, position: 0 }
    }

    /// A row with this id was committed.
    pub fn ring(&mut self, id: i64) {
        if broken(Rule::LateCommits) {
            self.ready = true;
        } else {
            self.step_back(id.saturating_sub(1));
        }
    }

    /// Rows may have been committed anywhere.
    pub fn rescan(&mut self) {
        self.step_back(0);
    }

    fn step_back(&mut self, position: i64) {
        self.position = self.position.min(position);
        self.ready = true;
    }

    /// Whether a batch may be started now.
    pub fn can_start(&self, now: Time) -> bool {
        self.is_open() && self.waits_until().is_none_or(|until| until <= now)
    }

    /// When a batch may be started, if only time stands in the way.
    pub fn waits_until(&self) -> Option<Time> {
        if !self.is_open() {
            return None;
        }
        let refused = self.failing.filter(|failing| self.is_next(*failing)).map(|failing| failing.retry_at);
        refused.max(self.unreadable.map(|(_, until)| until))
    }

    fn is_open(&self) -> bool {
        self.ready && !self.leaving && (self.flight.is_none() || broken(Rule::OneBatchABucket))
    }

    /// Whether there is nothing in front of the refused row any more.
    fn is_next(&self, failing: Failing) -> bool {
        self.position >= failing.id - 1
    }

    /// How many rows to read: of a refused one that is next, that one alone.
    pub fn rows(&self, batch_size: usize) -> usize {
        let alone = self.failing.is_some_and(|failing| self.is_next(failing)) && !broken(Rule::HeadOnlyRetry);
        if alone { 1 } else { batch_size }
    }

    /// How many of the rows that were read may be sent now: those in front of a refused one, or, when it is due, that one
    /// alone. `ids` are the ids of the rows.
    pub fn admit(&mut self, ids: impl ExactSizeIterator<Item = i64>, now: Time) -> usize {
        let rows = ids.len();
        let Some(failing) = self.failing else { return rows };
        let mut ids = ids.peekable();
        match ids.peek() {
            Some(first) if *first == failing.id => {
                self.position = failing.id - 1;
                if broken(Rule::HeadOnlyRetry) { rows } else { usize::from(failing.retry_at <= now) }
            }
            // Somebody has removed the refused row: what comes now has not failed yet.
            Some(first) if *first > failing.id => {
                self.failing = None;
                rows
            }
            _ => ids.take_while(|id| *id < failing.id).count(),
        }
    }

    pub fn position(&self) -> i64 {
        self.position
    }

    /// A batch up to `last_id` was read and started.
    pub fn started(&mut self, flight: FlightId, last_id: i64, more: bool) {
        self.flight = Some(flight);
        self.position = last_id;
        self.ready = more;
    }

    /// Nothing was found above the position.
    pub fn found_empty(&mut self) {
        self.ready = false;
        self.failing = None;
    }

    /// The batch in flight has ended; what was not acknowledged begins at `resume`, if anything.
    pub fn landed(&mut self, resume: Option<i64>) {
        self.flight = None;
        if let Some(id) = resume {
            self.step_back(id.saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Time = Time::since_zero(Duration::from_secs(100));

    fn lane() -> Lane {
        Lane::new(Lease { bucket: 1, token: 1 }, None)
    }

    #[test]
    fn a_late_commit_steps_the_position_back() {
        let mut lane = lane();
        lane.started(1, 40, false);
        lane.landed(None);
        assert!(!lane.can_start(NOW));
        lane.ring(41);
        assert_eq!((lane.position(), lane.can_start(NOW)), (40, true));
        lane.ring(7);
        assert_eq!(lane.position(), 6);
        lane.rescan();
        assert_eq!(lane.position(), 0);
    }

    #[test]
    fn one_batch_at_a_time() {
        let mut lane = lane();
        lane.started(1, 40, true);
        lane.ring(3);
        assert!(!lane.can_start(NOW), "rows would overtake");
        lane.landed(None);
        assert_eq!((lane.position(), lane.can_start(NOW)), (2, true));
    }

    #[test]
    fn what_was_not_acknowledged_is_read_again() {
        let mut lane = lane();
        lane.started(1, 40, false);
        lane.landed(Some(17));
        assert_eq!((lane.position(), lane.can_start(NOW)), (16, true));
    }

    const LATER: Time = Time::since_zero(Duration::from_secs(101));

    #[test]
    fn a_refused_row_waits_for_its_time_and_goes_alone() {
        let mut lane = lane();
        lane.failing = Some(Failing { id: 5, attempts: 1, retry_at: LATER });
        assert_eq!(lane.admit([5, 6].into_iter(), NOW), 0);
        assert!(!lane.can_start(NOW));
        assert_eq!(lane.waits_until(), Some(LATER));
        assert_eq!((lane.can_start(LATER), lane.rows(500)), (true, 1));
        assert_eq!(lane.admit([5, 6].into_iter(), LATER), 1);
    }

    #[test]
    fn rows_in_front_of_a_refused_one_go_on() {
        let mut lane = lane();
        lane.failing = Some(Failing { id: 5, attempts: 1, retry_at: LATER });
        assert_eq!((lane.can_start(NOW), lane.rows(500), lane.waits_until()), (true, 500, None));
        assert_eq!(lane.admit([2, 4, 5, 6].into_iter(), NOW), 2);
        assert_eq!(lane.admit([2, 4].into_iter(), NOW), 2);
    }

    #[test]
    fn a_refused_row_that_is_gone_holds_up_nothing() {
        let mut lane = lane();
        lane.failing = Some(Failing { id: 5, attempts: 1, retry_at: LATER });
        assert_eq!(lane.admit([6, 7].into_iter(), NOW), 2);
        assert!(lane.failing.is_none());
    }

    #[test]
    fn a_leaving_bucket_starts_nothing() {
        let mut lane = lane();
        lane.leaving = true;
        assert!(!lane.can_start(NOW));
        assert_eq!(lane.waits_until(), None);
    }
}
