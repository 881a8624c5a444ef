//! A batch on its way: what was submitted, what has been reported, and whether it may still be acknowledged.

use crate::broken::{Rule, broken};
use crate::clock::Time;
use crate::lease::Lease;
use crate::message::Batch;
use crate::order::{Part, Unit};
use crate::prefix::Prefix;

use super::ports::PublishError;

#[derive(Debug)]
pub(super) struct Flight {
    /// The lease under which it was started, and when.
    pub lease: Lease,
    pub started: Time,
    pub batch: Batch,
    /// The refused row that it tries again, which is all it has.
    pub retries: Option<i64>,
    /// The lease was lost meanwhile: the reports are awaited, but the rows are kept, for a late success proves nothing.
    pub orphaned: bool,
    pub prefix: Prefix,
    /// The last report, or the start.
    pub heard: Time,
    pub suspicion: Suspicion,
    /// The rows that were refused, and why.
    refusals: Vec<(usize, PublishError)>,
    /// Rows handed to the client, or refused by it at once.
    submitted: usize,
    /// Nothing more of it is submitted: a row has failed, and what was not sent waits behind it.
    closed: bool,
}

/// What was done about a flight of which nothing is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspicion {
    Nothing,
    /// Brokers were asked for a sign of life; since when it is known that they live.
    Asked {
        at: Time,
        lived_at: Option<Time>,
    },
    /// They live, as they said then; when to ask again.
    Lived {
        lived_at: Time,
        ask_at: Time,
    },
    /// They still do: what is queued was called back.
    CalledBack,
    /// What was sent was given up too.
    Abandoned,
}

impl Flight {
    pub fn new(lease: Lease, started: Time, batch: Batch, retries: Option<i64>) -> Self {
        let prefix = Prefix::new(batch.len());
        Self {
            lease,
            started,
            batch,
            retries,
            orphaned: false,
            prefix,
            heard: started,
            suspicion: Suspicion::Nothing,
            refusals: Vec::new(),
            submitted: 0,
            closed: false,
        }
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
        self.prefix.fail(self.submitted);
        self.note(self.submitted, error);
        self.submitted += 1;
        self.closed = true;
    }

    fn note(&mut self, index: usize, error: PublishError) {
        if error != PublishError::GivenUp {
            self.refusals.push((index, error));
        }
    }

    /// The rows that were refused, in order, and why.
    pub fn refusals(&mut self) -> Vec<(usize, PublishError)> {
        let mut refusals = std::mem::take(&mut self.refusals);
        refusals.retain(|(index, _)| !self.prefix.has(*index));
        refusals.sort_by_key(|(index, _)| *index);
        refusals
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

    /// Of every topic of which rows have no report the first such row counts as refused.
    pub fn blame_the_silent(&mut self, error: &PublishError) {
        let mut topics: Vec<&str> = Vec::new();
        for index in 0..self.submitted {
            let topic = self.batch.message(index).topic;
            if !self.prefix.is_reported(index) && !topics.contains(&topic) {
                topics.push(topic);
                self.refusals.push((index, error.clone()));
            }
        }
    }

    /// The topic of the first row without a report.
    pub fn waits_for(&self) -> Option<&str> {
        (0..self.submitted).find(|index| !self.prefix.is_reported(*index)).map(|index| self.batch.message(index).topic)
    }

    /// The report of a row. Says whether what the client has queued should be given up: rows that would overtake this one.
    pub fn report(&mut self, index: usize, outcome: Result<(), PublishError>, now: Time) -> bool {
        let Err(error) = outcome else {
            self.prefix.acknowledge(index);
            self.hears(now);
            return false;
        };
        self.prefix.fail(index);
        self.closed = true;
        if error == PublishError::GivenUp {
            return false;
        }
        self.hears(now);
        let overtaken = self.is_followed(index, &error);
        self.note(index, error);
        overtaken
    }

    /// Whether rows of its unit behind a refused one are with the client.
    fn is_followed(&self, index: usize, error: &PublishError) -> bool {
        let unit = Unit::of(&self.batch.message(index));
        // Where a topic takes nothing, it takes none of them.
        if matches!(unit.part, Part::Row(_)) || matches!(error, PublishError::Topic(_)) {
            return false;
        }
        (index + 1..self.submitted).any(|later| !self.prefix.is_reported(later) && unit.has(&self.batch.message(later)))
    }

    fn hears(&mut self, now: Time) {
        self.heard = now;
        if matches!(self.suspicion, Suspicion::Asked { .. } | Suspicion::Lived { .. }) {
            self.suspicion = Suspicion::Nothing;
        }
    }

    /// The rows that may be removed, if that is not all, nor simply the first of them.
    pub fn removable(&self) -> Option<Vec<usize>> {
        let gap = self.prefix.has_gap() && !broken(Rule::UnitsAreIndependent);
        gap.then(|| self.prefix.removable(|index| Unit::of(&self.batch.message(index))))
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

    fn flight_of(keys: &[&'static str]) -> Flight {
        let mut batch = Batch::default();
        for (id, key) in (1..).zip(keys) {
            batch.push(&Message {
                id,
                topic: "t",
                partition: None,
                key: Some(key.as_bytes()),
                value: None,
                headers: None,
                message_id: [0; 16],
                handle: &[],
            });
        }
        Flight::new(Lease { bucket: 0, token: 1 }, NOW, batch, None)
    }

    /// All of one key.
    fn flight(rows: usize) -> Flight {
        flight_of(&vec!["k"; rows])
    }

    const NOW: Time = Time::since_zero(Duration::ZERO);

    fn refused() -> PublishError {
        PublishError::Invalid("no".into())
    }

    #[test]
    fn is_complete_when_all_is_reported() {
        let mut flight = flight(2);
        flight.handed_over(1);
        flight.report(0, Ok(()), NOW);
        assert!(!flight.complete(), "a row is still to be submitted");
        flight.handed_over(1);
        assert!(!flight.complete());
        flight.report(1, Ok(()), NOW);
        assert!(flight.complete());
    }

    #[test]
    fn a_failure_stops_submission_and_gives_up_what_is_queued() {
        let mut flight = flight(4);
        flight.handed_over(3);
        assert!(flight.report(0, Err(refused()), NOW), "rows 1 and 2 may still be queued");
        assert_eq!(flight.next(), None);
        assert!(!flight.report(1, Err(PublishError::GivenUp), NOW));
        assert!(!flight.complete());
        flight.report(2, Ok(()), NOW);
        assert!(flight.complete());
        assert_eq!(flight.prefix.len(), 0);
        assert_eq!(flight.removable(), Some(vec![]), "row 2 has to follow row 0 once more");
    }

    #[test]
    fn a_failure_calls_back_nothing_where_nobody_would_overtake() {
        let mut flight = flight_of(&["a", "b", "a"]);
        flight.handed_over(3);
        assert!(!flight.report(1, Err(refused()), NOW), "row 1 is the only one of its key");
        flight.report(2, Ok(()), NOW);
        assert!(!flight.report(0, Err(refused()), NOW), "row 2 is there already");
        let mut flight = flight_of(&["a", "a"]);
        flight.handed_over(2);
        assert!(!flight.report(0, Err(PublishError::Topic("gone".into())), NOW), "row 1 will fail too");
    }

    #[test]
    fn rows_of_other_keys_may_be_removed_beside_a_failure() {
        let mut flight = flight_of(&["a", "b", "a", "c"]);
        flight.handed_over(4);
        flight.report(0, Err(refused()), NOW);
        (1..4).for_each(|index| assert!(!flight.report(index, Ok(()), NOW)));
        assert_eq!(flight.removable(), Some(vec![1, 3]));
    }

    #[test]
    fn all_refusals_are_known_in_order() {
        let mut flight = flight_of(&["a", "b", "c"]);
        flight.handed_over(3);
        flight.report(2, Err(refused()), NOW);
        flight.report(1, Err(PublishError::GivenUp), NOW);
        flight.report(0, Err(refused()), NOW);
        assert_eq!(flight.refusals(), [(0, refused()), (2, refused())]);
    }

    #[test]
    fn the_first_row_of_every_silent_topic_is_blamed_unless_it_is_answered_after_all() {
        let mut flight = flight_of(&["a", "b", "c"]);
        flight.handed_over(3);
        flight.report(0, Ok(()), NOW);
        assert_eq!(flight.waits_for(), Some("t"));
        let silent = PublishError::Topic("silent".into());
        flight.blame_the_silent(&silent);
        flight.report(2, Err(PublishError::GivenUp), NOW);
        assert_eq!(flight.refusals(), [(1, silent.clone())]);
        flight.blame_the_silent(&silent);
        flight.report(1, Ok(()), NOW);
        assert_eq!(flight.refusals(), []);
    }

    #[test]
    fn the_last_report_gives_up_nothing() {
        let mut flight = flight(1);
        flight.handed_over(1);
        assert!(!flight.report(0, Err(refused()), NOW));
        assert!(flight.complete());
    }

    #[test]
    fn a_row_refused_at_once_ends_the_flight() {
        let mut flight = flight(3);
        flight.handed_over(1);
        flight.refused(refused());
        assert!(!flight.complete(), "row 0 is awaited and counts");
        flight.report(0, Ok(()), NOW);
        assert!(flight.complete());
        assert_eq!(flight.prefix.len(), 1);
    }

    #[test]
    fn an_orphan_submits_nothing_more() {
        let mut flight = flight(2);
        flight.handed_over(1);
        flight.orphaned = true;
        assert_eq!(flight.next(), None);
        flight.report(0, Ok(()), NOW);
        assert!(flight.complete());
    }
}
