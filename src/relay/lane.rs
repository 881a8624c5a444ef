//! What a relay knows of one bucket it holds: how far it has read, whether there may be more, and what stands in the way.
//!
//! Reason for the position: reading from it passes over the dead rows of what was removed. It is a hint: a bell with a lower
//! id, an unknown bell and the safety rescan step it back, so a late commit costs time, never a message.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use crate::broken::{Rule, broken};
use crate::clock::Time;
use crate::lease::Lease;
use crate::message::Batch;
use crate::order::Unit;

use super::holds::{Hold, Holds};
use super::looks::Cost;
use super::ports::{Failure, FlightId};

/// Rows that may be read between two looks at the whole bucket at the usual pace; so many more, so much later the next look,
/// which has to pass over them, removed or held.
const READ_BETWEEN_LOOKS: usize = 100_000;
/// However many they are, the next look comes after so many intervals.
const LOOK_LATER_MAX: usize = 60;

/// One bucket of the relay.
#[derive(Debug)]
pub(super) struct Lane {
    pub lease: Lease,
    /// To be handed back as soon as nothing is in flight; starts nothing any more.
    pub leaving: bool,
    /// The batch in flight, and its first row: one at a time, or rows could overtake each other.
    pub flight: Option<(FlightId, i64)>,
    /// What is still out from when the bucket was held before. Nothing is started until all of it has landed.
    pub before: BTreeSet<FlightId>,
    /// What refused rows hold up; each first row may be in flight on its own.
    pub holds: Holds,
    /// Reading failed so many times in a row, and is not tried again before this.
    pub unreadable: Option<(u32, Time)>,
    /// When a refused row was last missing that was to be tried again.
    pub missing_at: Option<Time>,
    /// There may be rows above the position.
    ready: bool,
    /// Rows up to this id were read, and are removed, in flight or held.
    position: i64,
    /// Rows read since the last look at the whole bucket for safety's sake, when that was, and up to where it has to get
    /// before the next.
    read: usize,
    looked_at: Option<Time>,
    rescan_to: i64,
    /// What such a look takes.
    pub look: Cost,
}

impl Lane {
    /// A bucket just gained: nothing is known of it, and earlier flights of it may still be out.
    pub fn new(lease: Lease, before: BTreeSet<FlightId>) -> Self {
        Self {
            lease,
            leaving: false,
            flight: None,
            before,
            holds: Holds::default(),
            unreadable: None,
            missing_at: None,
            ready: true,
            position: 0,
            read: 0,
            looked_at: None,
            rescan_to: 0,
            look: Cost::default(),
        }
    }

    /// A row with this id was committed, and none with a lower one since the last bell. Where all was read that could be seen,
    /// what is unread begins there: the dead rows up to it need not be waded through.
    pub fn ring(&mut self, id: i64) {
        if broken(Rule::LateCommits) {
            self.ready = true;
        } else if self.ready {
            self.read_again_from(id);
        } else {
            self.position = id.saturating_sub(1);
            self.ready = true;
        }
    }

    /// Rows may have been committed anywhere.
    pub fn rescan(&mut self) {
        self.read_again_from(1);
    }

    /// The same for safety's sake only: not before the last one has been done, and later where very many rows were read since:
    /// what was removed of them is waded through, as is what is held. Returns what it is expected to take, if it comes now.
    pub fn rescan_for_safety(&mut self, now: Time, interval: Duration) -> Option<Duration> {
        let under_way = self.ready && self.looks_again() && !self.is_blocked();
        let later = interval.saturating_mul((self.read / READ_BETWEEN_LOOKS).min(LOOK_LATER_MAX) as u32);
        if under_way || self.looked_at.is_some_and(|at| now < at + later) {
            return None;
        }
        self.rescan_to = self.position;
        self.looked_at = Some(now);
        self.read = 0;
        self.rescan();
        Some(self.look.begin())
    }

    /// Whether what is read next has been read before.
    pub fn looks_again(&self) -> bool {
        self.position < self.rescan_to
    }

    /// What has this id, or one above it, is read again.
    pub fn read_again_from(&mut self, id: i64) {
        self.position = self.position.min(id.saturating_sub(1));
        self.ready = true;
    }

    /// Whether a batch may be started now.
    pub fn can_start(&self, now: Time) -> bool {
        self.may_read(now) && self.is_open()
    }

    fn may_read(&self, now: Time) -> bool {
        self.unreadable.is_none_or(|(_, until)| until <= now)
    }

    fn is_quiet(&self) -> bool {
        (self.flight.is_none() && self.before.is_empty()) || broken(Rule::OneBatchABucket)
    }

    fn is_open(&self) -> bool {
        self.ready && !self.leaving && !self.is_blocked() && self.is_quiet()
    }

    /// Whether what comes next waits behind a refused row, whatever it is.
    fn is_blocked(&self) -> bool {
        self.holds.blocked_from().is_some_and(|first| self.position >= first - 1)
    }

    /// Whether nothing of the bucket is in flight.
    pub fn has_landed(&self) -> bool {
        self.flight.is_none() && self.before.is_empty() && self.holds.iter().all(|(_, hold)| hold.flight.is_none())
    }

    /// The refused rows that are on their way.
    pub fn retrying(&self) -> impl Iterator<Item = FlightId> {
        self.holds.iter().filter_map(|(_, hold)| hold.flight)
    }

    /// What is noted of refused rows takes the place of what was known. A hold whose row is on its way lasts until that has
    /// landed, whatever an operator did to it meanwhile.
    pub fn take_over(&mut self, noted: Vec<Failure>, now: Time, blocks: impl Fn(&str) -> bool) {
        let mut before = mem::take(&mut self.holds);
        for failure in noted {
            // What is on its way lasts until that has landed, whatever an old note says of its first row.
            if before.get(failure.id).is_some_and(|hold| hold.flight.is_some() && hold.unit != failure.unit) {
                continue;
            }
            let retry_at = failure.wait.map(|wait| now + wait);
            let known = before.end(failure.id).filter(|hold| hold.unit == failure.unit);
            let hold = Hold {
                blocks: blocks(&failure.unit.topic),
                attempts: failure.attempts,
                error: failure.error,
                // The clocks of this process and of the store begin anywhere.
                since: now.before(failure.failing_for),
                retry_at,
                ..known.unwrap_or_else(|| Hold::new(failure.unit, now))
            };
            if self.holds.of(&hold.unit).is_none() {
                self.holds.begin(failure.id, hold);
            }
        }
        let rest: Vec<i64> = before.iter().map(|(first, _)| first).collect();
        for first in rest {
            let hold = before.end(first).expect("it was there");
            if hold.flight.is_some() {
                self.holds.begin(first, Hold { retry_at: Some(now), forgotten: true, ..hold });
            } else {
                self.read_again_from(hold.passed.unwrap_or(first).min(first));
            }
        }
    }

    /// The refused rows that may be tried when their time comes, and when that is. What is in front of them must have been
    /// read and have landed, or they would overtake it.
    fn retries(&self, paused: &BTreeSet<String>) -> impl Iterator<Item = (i64, Time)> {
        let open = !self.leaving && self.before.is_empty();
        let in_order = |first: i64| self.position >= first - 1 && self.flight.is_none_or(|(_, sent)| sent > first);
        let waits = move |(first, hold): &(i64, &Hold)| {
            let waits = paused.contains(hold.topic()) || self.holds.waits_for_topic(*first, hold);
            open && hold.flight.is_none() && (in_order(*first) || broken(Rule::RetriesInOrder)) && !waits
        };
        self.holds.iter().filter(waits).filter_map(|(first, hold)| hold.retry_at.map(|at| (first, at)))
    }

    /// The refused rows whose time has come, at most so many.
    pub fn due(&self, now: Time, paused: &BTreeSet<String>, most: usize) -> Vec<i64> {
        if !self.may_read(now) {
            return Vec::new();
        }
        self.retries(paused).filter(|(_, at)| *at <= now).map(|(first, _)| first).take(most).collect()
    }

    /// When something may be started, if only time stands in the way.
    pub fn waits_until(&self, paused: &BTreeSet<String>) -> Option<Time> {
        let unreadable = self.unreadable.map(|(_, until)| until);
        let batch = if self.is_open() { unreadable } else { None };
        let retry = self.retries(paused).map(|(_, at)| unreadable.map_or(at, |until| at.max(until))).min();
        batch.into_iter().chain(retry).min()
    }

    /// Takes from a batch that was read what has to wait, and notes how far was read. Says whether there may be more.
    pub fn admit(&mut self, batch: &mut Batch, more: bool, paused: &BTreeSet<String>) -> bool {
        let Some(mut last) = batch.last_id() else {
            self.ready = false;
            return false;
        };
        let mut more = more;
        if let Some(first) = self.holds.blocked_from() {
            let in_front = batch.ids(batch.len()).take_while(|id| *id < first).count();
            if in_front < batch.len() {
                batch.truncate(in_front);
                last = first - 1;
                more = true;
            }
        }
        self.read += batch.len();
        if !broken(Rule::HeldRowsWait) {
            batch.retain(|row| !paused.contains(row.topic) && !self.holds.cover(row));
        }
        self.position = last;
        self.ready = more;
        more
    }

    pub fn position(&self) -> i64 {
        self.position
    }

    /// Nothing was found above the position.
    pub fn found_empty(&mut self) {
        self.ready = false;
    }

    /// The batch in flight, or one from before, has ended; what was not removed begins at `resume`, if anything.
    pub fn landed(&mut self, flight: FlightId, resume: Option<i64>) {
        self.before.remove(&flight);
        self.flight.take_if(|(own, _)| *own == flight);
        if let Some(id) = resume {
            self.read_again_from(id);
        }
    }

    /// Of the batch in flight only `answered`, which begins at `first`, ends; the rest goes on, and its topics, which begin at
    /// these rows, are held until it has landed.
    pub fn set_aside(&mut self, topics: Vec<(i64, Unit<'static>)>, answered: FlightId, first: i64, now: Time) {
        let Some((rest, _)) = self.flight.replace((answered, first)) else { return };
        for (first, topic) in topics {
            if !broken(Rule::AsideIsHeld) {
                self.holds.begin(first, Hold { retry_at: None, flight: Some(rest), ..Hold::new(topic, now) });
            }
        }
    }

    /// Of what was set aside only these topics go on; the others are `answered`.
    pub fn part_aside(&mut self, aside: FlightId, topics: &[(i64, Unit<'static>)], answered: FlightId) {
        let over = |hold: &Hold| hold.flight == Some(aside) && topics.iter().all(|(_, unit)| *unit != hold.unit);
        let over: Vec<i64> = self.holds.iter().filter(|(_, hold)| over(hold)).map(|(first, _)| first).collect();
        for first in over {
            self.holds.get_mut(first).expect("it was just there").flight = Some(answered);
        }
    }

    /// What was set aside has landed, and what was not removed of it begins at `resume`, if anything: its topics go on.
    pub fn landed_aside(&mut self, flight: FlightId, resume: Option<i64>) {
        self.landed(flight, resume);
        let firsts: Vec<i64> =
            self.holds.iter().filter(|(_, hold)| hold.flight == Some(flight)).map(|(first, _)| first).collect();
        firsts.into_iter().for_each(|first| self.release(first));
    }

    /// The hold at this row is over: what waited behind it is read again.
    pub fn release(&mut self, first: i64) {
        if let Some(hold) = self.holds.end(first) {
            self.read_again_from(hold.passed.unwrap_or(first).min(first));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;

    const NOW: Time = Time::since_zero(Duration::from_secs(100));
    const LATER: Time = Time::since_zero(Duration::from_secs(101));

    fn lane() -> Lane {
        Lane::new(Lease { bucket: 1, token: 1 }, BTreeSet::new())
    }

    fn row(id: i64, key: &'static [u8]) -> Message<'static> {
        let (partition, value, headers) = (None, None, None);
        Message { id, topic: "t", partition, key: Some(key), value, headers, message_id: [0; 16], handle: &[] }
    }

    fn batch(rows: &[(i64, &'static [u8])]) -> Batch {
        let mut batch = Batch::default();
        rows.iter().for_each(|(id, key)| batch.push(&row(*id, key)));
        batch
    }

    /// What may be sent of a batch, and whether there may be more.
    fn admitted(lane: &mut Lane, rows: &[(i64, &'static [u8])]) -> (Vec<i64>, bool) {
        let mut batch = batch(rows);
        let more = lane.admit(&mut batch, false, &BTreeSet::new());
        (batch.ids(batch.len()).collect(), more)
    }

    /// A lane that has read and sent everything up to 40.
    fn read_to_40() -> Lane {
        let mut lane = lane();
        assert_eq!(admitted(&mut lane, &[(40, b"x")]), (vec![40], false));
        lane
    }

    /// As that, with row 5 of key k refused.
    fn refused(blocks: bool) -> Lane {
        let mut lane = read_to_40();
        let hold = Hold { blocks, retry_at: Some(LATER), ..Hold::new(Unit::of(&row(5, b"k")), NOW) };
        lane.holds.begin(5, hold);
        lane
    }

    #[test]
    fn a_late_commit_steps_the_position_back() {
        let mut lane = read_to_40();
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
        let mut lane = read_to_40();
        lane.flight = Some((1, 41));
        lane.ring(3);
        assert!(!lane.can_start(NOW), "rows would overtake");
        lane.landed(1, None);
        assert_eq!((lane.position(), lane.can_start(NOW)), (2, true));
    }

    #[test]
    fn what_is_out_from_before_is_waited_for() {
        let mut lane = Lane::new(Lease { bucket: 1, token: 2 }, BTreeSet::from([3, 4]));
        lane.landed(3, None);
        assert!(!lane.can_start(NOW));
        lane.landed(4, Some(9));
        assert!(lane.can_start(NOW));
    }

    #[test]
    fn what_was_not_removed_is_read_again() {
        let mut lane = read_to_40();
        lane.flight = Some((1, 41));
        lane.landed(1, Some(17));
        assert_eq!((lane.position(), lane.can_start(NOW)), (16, true));
    }

    #[test]
    fn later_rows_of_a_refused_one_are_passed_over_and_others_go_on() {
        let mut lane = refused(false);
        lane.rescan();
        assert_eq!(
            admitted(&mut lane, &[(2, b"k"), (4, b"a"), (5, b"k"), (6, b"k"), (7, b"a")]),
            (vec![2, 4, 7], false)
        );
        assert_eq!(lane.position(), 7);
    }

    fn due(lane: &Lane, now: Time) -> Vec<i64> {
        lane.due(now, &BTreeSet::new(), 9)
    }

    fn waits_until(lane: &Lane) -> Option<Time> {
        lane.waits_until(&BTreeSet::new())
    }

    #[test]
    fn a_refused_row_waits_for_its_time() {
        let lane = refused(false);
        assert_eq!((due(&lane, NOW), waits_until(&lane)), (vec![], Some(LATER)));
        assert_eq!(due(&lane, LATER), [5]);
    }

    #[test]
    fn a_refused_row_waits_for_what_is_in_front_of_it() {
        let mut lane = refused(false);
        lane.flight = Some((1, 4));
        assert_eq!((due(&lane, LATER), waits_until(&lane)), (vec![], None), "row 4 is on its way");
        lane.flight = Some((1, 6));
        assert_eq!(due(&lane, LATER), [5]);
        lane.landed(1, Some(3));
        assert_eq!((due(&lane, LATER), waits_until(&lane)), (vec![], None), "row 3 is still to be read");
    }

    #[test]
    fn a_parked_row_is_not_tried() {
        let mut lane = refused(false);
        lane.holds.get_mut(5).expect("it is held").retry_at = None;
        assert_eq!((due(&lane, LATER), waits_until(&lane)), (vec![], None));
    }

    #[test]
    fn behind_a_row_that_blocks_everything_waits() {
        let mut lane = refused(true);
        lane.rescan();
        assert!(lane.can_start(NOW));
        assert_eq!(admitted(&mut lane, &[(4, b"a"), (5, b"k"), (6, b"a")]), (vec![4], true));
        assert_eq!((lane.position(), lane.can_start(LATER)), (4, false));
        lane.ring(9);
        assert!(!lane.can_start(LATER), "what is committed behind it needs no look");
        lane.release(5);
        assert!(lane.can_start(NOW));
    }

    #[test]
    fn what_was_passed_over_is_read_again_when_the_hold_ends() {
        let mut lane = refused(false);
        lane.release(5);
        assert_eq!((lane.position(), lane.can_start(NOW)), (4, true));
        let mut lane = refused(false);
        lane.holds.get_mut(5).expect("it is held").flight = Some(1);
        lane.rescan();
        assert_eq!(admitted(&mut lane, &[(3, b"k"), (5, b"k")]), (vec![], false));
        lane.release(5);
        assert_eq!(lane.position(), 2);
    }

    #[test]
    fn what_is_on_its_way_outlasts_an_old_note_of_its_first_row() {
        let mut lane = read_to_40();
        lane.flight = Some((7, 5));
        lane.set_aside(vec![(5, Unit::topic("t"))], 8, 6, NOW);
        let (unit, error, wait) = (Unit::of(&row(5, b"k")).into_owned(), String::new(), Some(Duration::ZERO));
        let note = Failure { bucket: 1, id: 5, unit, attempts: 1, error, failing_for: Duration::ZERO, wait };
        lane.landed(8, None);
        lane.take_over(vec![note], NOW, |_| false);
        assert!(!lane.has_landed());
        lane.rescan();
        assert_eq!(admitted(&mut lane, &[(4, b"a"), (5, b"k"), (9, b"a")]), (vec![], false));
        lane.landed_aside(7, None);
        assert!(lane.has_landed());
        assert_eq!(lane.position(), 3, "what was passed over is read again");
    }

    #[test]
    fn rows_of_a_paused_topic_are_passed_over() {
        let paused = BTreeSet::from(["t".to_owned()]);
        let mut lane = refused(false);
        assert_eq!((lane.due(LATER, &paused, 9), lane.waits_until(&paused)), (vec![], None));
        let mut batch = batch(&[(41, b"a")]);
        lane.admit(&mut batch, false, &paused);
        assert_eq!((batch.len(), lane.position()), (0, 41));
    }

    #[test]
    fn where_all_was_read_the_next_bell_tells_where_to_begin() {
        let mut lane = read_to_40();
        lane.rescan();
        assert_eq!(lane.position(), 0);
        lane.ring(50);
        assert_eq!(lane.position(), 0, "not all was read");
        lane.found_empty();
        lane.ring(60);
        assert_eq!(lane.position(), 59);
        lane.ring(50);
        assert_eq!(lane.position(), 49, "a late commit");
        lane.ring(70);
        assert_eq!(lane.position(), 49);
    }

    #[test]
    fn very_many_rows_are_looked_at_again_less_often() {
        const INTERVAL: Duration = Duration::from_secs(10);
        let mut lane = read_to_40();
        let looks_again = |lane: &mut Lane, at: u32| {
            lane.rescan_for_safety(NOW + INTERVAL * at, INTERVAL);
            let looks = lane.position() == 0;
            admitted(lane, &[(40, b"x")]);
            looks
        };
        assert!(looks_again(&mut lane, 0));
        assert!(looks_again(&mut lane, 1), "few were read");
        lane.read = 3 * READ_BETWEEN_LOOKS;
        assert!(!looks_again(&mut lane, 3));
        assert!(looks_again(&mut lane, 4));
        assert!(looks_again(&mut lane, 5), "counted anew");
        lane.read = usize::MAX / 2;
        assert!(!looks_again(&mut lane, 64));
        assert!(looks_again(&mut lane, 65), "not put off for ever");
    }

    #[test]
    fn a_leaving_bucket_starts_nothing() {
        let mut lane = refused(false);
        lane.leaving = true;
        lane.rescan();
        assert!(!lane.can_start(NOW));
        assert_eq!((due(&lane, LATER), waits_until(&lane)), (vec![], None));
    }
}
