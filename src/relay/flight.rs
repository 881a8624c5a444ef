//! A batch on its way: what was submitted, what has been reported, and whether it may still be acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use crate::broken::{Rule, broken};
use crate::clock::Time;
use crate::lease::Lease;
use crate::message::Batch;
use crate::order::{Part, Unit};
use crate::prefix::Prefix;

use super::ports::PublishError;

/// Rows of a batch that the client may refuse before it has taken any of them; behind so many the rest waits.
const REFUSED_AT_ONCE_MAX: usize = 16;

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
    refused_at_once: usize,
    /// Nothing more of it is submitted: a row has failed, and what was not sent waits behind it.
    closed: bool,
    /// Where its rows were in the batch as it was submitted, if it is what was set aside of one.
    places: Option<Vec<usize>>,
    /// It was looked at whether something is to be set aside, and nothing has been heard since then.
    looked_through: bool,
    /// Somebody kept its rows locked so many times in a row, and their removal is not tried again before this.
    put_off: Option<(u32, Time)>,
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
            refused_at_once: 0,
            closed: false,
            places: None,
            looked_through: false,
            put_off: None,
        }
    }

    /// The first row not yet handed over, if that is still to be done.
    pub fn next(&self) -> Option<usize> {
        (!self.closed && !self.orphaned && self.submitted < self.batch.len()).then_some(self.submitted)
    }

    pub fn handed_over(&mut self, rows: usize) {
        self.submitted += rows;
    }

    /// The client refused the next row for good. Later rows that have to wait behind it leave the batch, and are read again
    /// behind it; the others may go on. Says how many left.
    pub fn refused(&mut self, error: PublishError) -> usize {
        let index = self.submitted;
        self.prefix.fail(index);
        self.submitted += 1;
        self.refused_at_once += 1;
        let (row, id) = (self.batch.message(index), self.batch.id(index));
        let waits = match &error {
            PublishError::Topic(_) => Some(Unit::topic(row.topic).into_owned()),
            PublishError::Invalid(_) => Some(Unit::of(&row).into_owned()),
            PublishError::GivenUp | PublishError::Transient(_) | PublishError::Misconfigured(_) => None,
        };
        self.note(index, error);
        let Some(unit) = waits.filter(|_| self.refused_at_once < REFUSED_AT_ONCE_MAX) else {
            self.closed = true;
            return 0;
        };
        let left = self.batch.retain(|row| row.id <= id || !unit.has(row) || broken(Rule::FollowersLeave));
        self.prefix.truncate(self.batch.len());
        left
    }

    fn note(&mut self, index: usize, error: PublishError) {
        if error != PublishError::GivenUp {
            self.refusals.push((index, error));
        }
    }

    /// The rows that were refused, in order, and why.
    pub fn refusals(&mut self) -> Vec<(usize, PublishError)> {
        let mut refusals = mem::take(&mut self.refusals);
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
    pub fn report(&mut self, place: usize, outcome: Result<(), PublishError>, now: Time) -> bool {
        let index = match &self.places {
            None => place,
            Some(places) => places.binary_search(&place).expect("the others have had their report"),
        };
        self.looked_through = false;
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

    /// When to look whether topics are to be set aside, if ever: nothing has been heard for so long behind an answer.
    pub fn splits_at(&self, silence: Duration) -> Option<Time> {
        let begun = self.next().is_none() && self.prefix.reported() > 0 && !self.complete();
        (begun && !self.is_called_back() && !self.looked_through).then(|| self.heard + silence)
    }

    /// Whether what the client had of it was called back, or given up altogether.
    pub fn is_called_back(&self) -> bool {
        matches!(self.suspicion, Suspicion::CalledBack | Suspicion::Abandoned)
    }

    /// The topics of which no row is answered, and their first rows, if every row of all others is, and those are not fewer.
    pub fn silent_topics(&mut self) -> Option<Vec<(i64, Unit<'static>)>> {
        self.looked_through = true;
        let mut firsts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut answered: BTreeSet<&str> = BTreeSet::new();
        if !self.is_aside() && self.prefix.reported() * 2 < self.submitted {
            return None;
        }
        for index in 0..self.submitted {
            let topic = self.batch.message(index).topic;
            if self.prefix.is_reported(index) {
                answered.insert(topic);
            } else {
                firsts.entry(topic).or_insert(index);
            }
        }
        let apart = firsts.keys().all(|topic| !answered.contains(topic));
        let first = |(topic, index)| (self.batch.id(index), Unit::topic(topic).into_owned());
        apart.then(|| firsts.into_iter().map(first).collect())
    }

    /// Keeps the rows without an answer, set aside. The others become a flight of their own, which is complete.
    pub fn split(&mut self) -> Self {
        let silent = |index: &usize| *index < self.submitted && !self.prefix.is_reported(*index);
        let (silent, others): (Vec<usize>, Vec<usize>) = (0..self.batch.len()).partition(silent);
        let mut answered = Self::new(self.lease, self.started, self.batch.select(&others), None);
        answered.heard = self.heard;
        answered.prefix = self.prefix.select(&others);
        answered.submitted = answered.prefix.reported();
        answered.closed = true;
        answered.refusals = mem::take(&mut self.refusals)
            .into_iter()
            .map(|(index, error)| (others.binary_search(&index).expect("what was refused is answered"), error))
            .collect();
        self.batch = self.batch.select(&silent);
        self.prefix = Prefix::new(silent.len());
        self.submitted = silent.len();
        if let Some(places) = &self.places {
            answered.places = Some(others.iter().map(|index| places[*index]).collect());
            self.places = Some(silent.iter().map(|index| places[*index]).collect());
        } else {
            self.places = Some(silent);
        }
        answered
    }

    /// Whether it is what was set aside of a batch.
    pub fn is_aside(&self) -> bool {
        self.places.is_some()
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

    /// When the removal of its rows is to be tried again, if somebody keeps them locked.
    pub fn put_off(&self) -> Option<Time> {
        self.put_off.map(|(_, until)| until).filter(|_| !self.orphaned)
    }

    /// Somebody keeps rows of it locked: how often in a row that was so.
    pub fn locked(&self) -> u32 {
        self.put_off.map_or(0, |(times, _)| times)
    }

    /// Somebody keeps rows of it locked, once more.
    pub fn put_off_until(&mut self, until: Time) {
        self.put_off = Some((self.locked() + 1, until));
    }

    /// If somebody kept rows of it locked: their removal may be tried at this time.
    pub fn try_again_at(&mut self, time: Time) {
        self.put_off = self.put_off.map(|(times, until)| (times, until.min(time)));
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

    fn of_topics(topics: &[&'static str]) -> Flight {
        let mut flight = flight(topics.len());
        let mut batch = Batch::default();
        for (index, topic) in topics.iter().enumerate() {
            batch.push(&Message { topic, ..flight.batch.message(index) });
        }
        flight.batch = batch;
        flight.handed_over(topics.len());
        flight
    }

    #[test]
    fn topics_without_an_answer_are_told_from_those_with_nothing_but_answers() {
        let mut flight = of_topics(&["a", "slow", "a", "slow"]);
        assert_eq!(flight.silent_topics(), None, "nothing is answered");
        flight.report(0, Ok(()), NOW);
        flight.report(1, Ok(()), NOW);
        assert_eq!(flight.silent_topics(), None, "a part of each is still awaited");
        let mut flight = of_topics(&["a", "slow", "a", "slow"]);
        flight.report(0, Ok(()), NOW);
        flight.report(2, Err(refused()), NOW);
        assert_eq!(flight.silent_topics(), Some(vec![(2, Unit::topic("slow"))]));
        let mut flight = of_topics(&["a", "slow", "slow"]);
        flight.report(0, Ok(()), NOW);
        assert_eq!(flight.silent_topics(), None, "most of it is awaited");
    }

    #[test]
    fn is_looked_through_once_after_an_answer() {
        const SILENCE: Duration = Duration::from_millis(20);
        let mut flight = of_topics(&["a", "slow", "a"]);
        assert_eq!(flight.splits_at(SILENCE), None, "nothing is answered");
        flight.report(0, Ok(()), NOW);
        assert_eq!(flight.splits_at(SILENCE), Some(NOW + SILENCE));
        flight.silent_topics();
        assert_eq!(flight.splits_at(SILENCE), None);
        flight.report(2, Ok(()), NOW + SILENCE);
        assert_eq!(flight.splits_at(SILENCE), Some(NOW + SILENCE * 2));
        flight.suspicion = Suspicion::CalledBack;
        assert_eq!(flight.splits_at(SILENCE), None);
    }

    #[test]
    fn a_split_parts_the_answered_rows_from_the_others() {
        let mut flight = of_topics(&["a", "slow", "b", "a", "slow"]);
        flight.report(0, Ok(()), NOW);
        flight.report(3, Ok(()), NOW);
        flight.report(2, Err(refused()), NOW);
        let ids = |flight: &Flight| flight.batch.ids(flight.batch.len()).collect::<Vec<_>>();
        let mut answered = flight.split();
        assert_eq!((ids(&answered), answered.complete(), answered.is_aside()), (vec![1, 3, 4], true, false));
        assert_eq!((answered.refusals(), answered.removable()), (vec![(1, refused())], Some(vec![0, 2])));
        assert_eq!((ids(&flight), flight.complete(), flight.is_aside()), (vec![2, 5], false, true));
        flight.report(4, Err(refused()), NOW);
        assert!(!flight.complete());
        flight.report(1, Ok(()), NOW);
        assert!(flight.complete());
        assert_eq!((flight.refusals(), flight.prefix.len()), (vec![(1, refused())], 1));
    }

    #[test]
    fn what_was_not_handed_over_stays_with_the_answered_rows() {
        let mut flight = of_topics(&["a", "slow"]);
        let mut batch = flight.batch.clone();
        batch.push(&Message { id: 3, ..flight.batch.message(1) });
        (flight.batch, flight.prefix) = (batch, Prefix::new(3));
        flight.report(0, Err(PublishError::GivenUp), NOW);
        let answered = flight.split();
        assert_eq!((answered.batch.len(), answered.complete(), flight.batch.len()), (2, true, 1));
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
    fn a_row_refused_at_once_is_left_by_what_has_to_wait_for_it() {
        let mut flight = flight_of(&["a", "b", "a", "c"]);
        flight.handed_over(1);
        assert_eq!(flight.refused(refused()), 0, "the row of its key is in front of it");
        assert_eq!(flight.next(), Some(2));
        let mut flight = flight_of(&["a", "b", "a", "c"]);
        assert_eq!(flight.refused(refused()), 1);
        flight.handed_over(2);
        (1..3).for_each(|index| assert!(!flight.report(index, Ok(()), NOW)));
        assert!(flight.complete());
        assert_eq!((flight.batch.ids(3).collect(), flight.removable()), (vec![1, 2, 4], Some(vec![1, 2])));
        let mut flight = flight_of(&["a", "b", "c"]);
        assert_eq!(flight.refused(PublishError::Topic("gone".into())), 2, "all of its topic");
        assert!(flight.complete());
    }

    #[test]
    fn what_is_refused_at_once_for_no_fault_of_its_own_ends_the_submission() {
        let mut flight = flight_of(&["a", "b"]);
        assert_eq!(flight.refused(PublishError::GivenUp), 0);
        assert_eq!((flight.next(), flight.batch.len()), (None, 2));
    }

    #[test]
    fn the_rest_waits_behind_many_rows_that_are_refused_at_once() {
        let keys: Vec<String> = (0..REFUSED_AT_ONCE_MAX + 1).map(|key| key.to_string()).collect();
        let keys: Vec<&'static str> = keys.into_iter().map(|key| &*key.leak()).collect();
        let mut flight = flight_of(&keys);
        for _ in 0..REFUSED_AT_ONCE_MAX {
            assert!(flight.next().is_some());
            flight.refused(refused());
        }
        assert_eq!(flight.next(), None);
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
