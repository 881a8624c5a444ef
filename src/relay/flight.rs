//! A batch on its way: what was submitted, what has been reported, and whether it may still be acknowledged.

use crate::clock::Time;
use crate::lease::Lease;
use crate::message::Batch;
use crate::prefix::Prefix;

use super::ports::PublishError;

#[derive(Debug)]
pub(super) struct Flight {
    /// The lease under which it was started, and when.
    pub lease: Lease,
    pub started: Time,
    pub batch: Batch,
    /// Its only row was refused before.
    pub apart: bool,
    /// The lease was lost meanwhile: the reports are awaited, but the rows are kept, for a late success proves nothing.
    pub orphaned: bool,
    pub prefix: Prefix<PublishError>,
    /// The first row that was refused, and why; rows in front of it may have been given up.
    refusal: Option<(usize, String)>,
    /// Rows handed to the client, or refused by it at once.
    submitted: usize,
    /// Nothing more of it is submitted: a row has failed, and what was not sent waits behind it.
    closed: bool,
}

impl Flight {
    pub fn new(lease: Lease, started: Time, batch: Batch, apart: bool) -> Self {
        let prefix = Prefix::new(batch.len());
        Self { lease, started, batch, apart, orphaned: false, prefix, refusal: None, submitted: 0, closed: false }
    }

    /// The first row not yet handed over, if that is still to be done.
    pub fn next(&self) -> Option<usize> {
        (!self.closed && !self.orphaned && self.submitted < self.batch.len()).then_some(self.submitted)
    }

    pub fn handed_over(&mut self, rows: usize) {
        self.submitted += rows;
    }

    /// The client refused the next row for good.
    pub fn refused(&mut self, error: PublishError) {
        self.note_refusal(self.submitted, &error);
        self.prefix.fail(self.submitted, error);
        self.submitted += 1;
        self.closed = true;
    }

    fn note_refusal(&mut self, index: usize, error: &PublishError) {
        if let PublishError::Refused(reason) = error
            && self.refusal.as_ref().is_none_or(|(first, _)| index < *first)
        {
            self.refusal = Some((index, reason.clone()));
        }
    }

    /// The id of the first refused row, and why it was refused.
    pub fn refusal(&self) -> Option<(i64, &str)> {
        self.refusal.as_ref().map(|(index, reason)| (self.batch.id(*index), reason.as_str()))
    }

    /// Submits nothing more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// The client was told to give up what it has only queued. If something of this batch may be among that, what has not
    /// been handed over must not overtake it.
    pub fn queue_given_up(&mut self) {
        self.closed |= self.submitted > self.prefix.reported();
    }

    /// The report of a row. Says whether rows behind a failed one should be given up.
    pub fn report(&mut self, index: usize, outcome: Result<(), PublishError>) -> bool {
        match outcome {
            Ok(()) => {
                self.prefix.acknowledge(index);
                false
            }
            Err(error) => {
                let first = !self.closed;
                let refused = error != PublishError::GivenUp;
                self.closed = true;
                self.note_refusal(index, &error);
                self.prefix.fail(index, error);
                first && refused && !self.complete()
            }
        }
    }

    /// Whether every row handed over has been reported and no other will follow.
    pub fn complete(&self) -> bool {
        self.next().is_none() && self.prefix.reported() == self.submitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;
    use std::time::Duration;

    fn flight(rows: i64) -> Flight {
        let mut batch = Batch::default();
        for id in 1..=rows {
            batch.push(&Message {
                id,
                topic: "t",
                partition: None,
                key: None,
                value: None,
                headers: None,
                message_id: [0; 16],
                handle: &[],
            });
        }
        Flight::new(Lease { bucket: 0, token: 1 }, Time::since_zero(Duration::ZERO), batch, false)
    }

    fn refused() -> PublishError {
        PublishError::Refused("no".into())
    }

    #[test]
    fn is_complete_when_all_is_reported() {
        let mut flight = flight(2);
        flight.handed_over(1);
        flight.report(0, Ok(()));
        assert!(!flight.complete(), "a row is still to be submitted");
        flight.handed_over(1);
        assert!(!flight.complete());
        flight.report(1, Ok(()));
        assert!(flight.complete());
    }

    #[test]
    fn a_failure_stops_submission_and_gives_up_what_is_queued() {
        let mut flight = flight(4);
        flight.handed_over(3);
        assert!(flight.report(0, Err(refused())), "rows 1 and 2 may still be queued");
        assert_eq!(flight.next(), None);
        assert!(!flight.report(1, Err(PublishError::GivenUp)));
        assert!(!flight.complete());
        flight.report(2, Ok(()));
        assert!(flight.complete());
        assert_eq!(flight.prefix.len(), 0);
    }

    #[test]
    fn a_refusal_is_known_behind_a_row_that_was_given_up() {
        let mut flight = flight(3);
        flight.handed_over(3);
        flight.report(2, Err(refused()));
        flight.report(1, Err(PublishError::GivenUp));
        flight.report(0, Ok(()));
        assert_eq!(flight.prefix.len(), 1);
        assert_eq!(flight.refusal(), Some((3, "no")));
    }

    #[test]
    fn the_last_report_gives_up_nothing() {
        let mut flight = flight(1);
        flight.handed_over(1);
        assert!(!flight.report(0, Err(refused())));
        assert!(flight.complete());
    }

    #[test]
    fn a_row_refused_at_once_ends_the_flight() {
        let mut flight = flight(3);
        flight.handed_over(1);
        flight.refused(refused());
        assert!(!flight.complete(), "row 0 is awaited and counts");
        flight.report(0, Ok(()));
        assert!(flight.complete());
        assert_eq!(flight.prefix.len(), 1);
    }

    #[test]
    fn an_orphan_submits_nothing_more() {
        let mut flight = flight(2);
        flight.handed_over(1);
        flight.orphaned = true;
        assert_eq!(flight.next(), None);
        flight.report(0, Ok(()));
        assert!(flight.complete());
    }
}
