//! What refused rows hold up in one bucket.
//!
//! A hold begins at a row that was refused, the first of its unit of order ([`crate::order`]): that row is tried alone, the
//! later ones of its unit are passed over when the bucket is read, and everything else flows. Where the topic's policy is
//! to block, everything behind the row waits.

use std::collections::BTreeMap;

use crate::broken::{Rule, broken};
use crate::clock::Time;
use crate::message::Message;
use crate::order::Unit;

use super::ports::FlightId;

/// Most rows of a bucket that are held for their own sake. Beyond that their topic is held as a whole.
pub(super) const HOLDS_MAX: usize = if cfg!(test) { 20 } else { 1000 };

/// The holds of a bucket, by the id of their first rows.
#[derive(Debug, Default)]
pub(super) struct Holds {
    holds: BTreeMap<i64, Hold>,
    units: BTreeMap<Unit<'static>, i64>,
    /// How many are whole topics.
    topics: usize,
}

/// A refused row and what waits for it.
#[derive(Debug, Clone)]
pub(super) struct Hold {
    pub unit: Unit<'static>,
    /// Its whole bucket waits behind it.
    pub blocks: bool,
    /// Refusals of the row; of a topic, attempts with it.
    pub attempts: u32,
    pub error: String,
    pub since: Time,
    /// None means that an operator has to act.
    pub retry_at: Option<Time>,
    /// The row is on its way, alone, or with others of its topic that were set aside.
    pub flight: Option<FlightId>,
    /// An operator has acted on the row since it set out: how it is refused says nothing of what it is now.
    pub forgotten: bool,
    /// The lowest row of the unit in front of it that was passed over meanwhile.
    pub passed: Option<i64>,
}

impl Holds {
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Hold)> {
        self.holds.iter().map(|(id, hold)| (*id, hold))
    }

    pub fn get(&self, first: i64) -> Option<&Hold> {
        self.holds.get(&first)
    }

    pub fn get_mut(&mut self, first: i64) -> Option<&mut Hold> {
        self.holds.get_mut(&first)
    }

    /// The first row of the hold on this unit.
    pub fn of(&self, unit: &Unit<'_>) -> Option<i64> {
        let units: &BTreeMap<Unit<'_>, i64> = &self.units;
        units.get(unit).copied()
    }

    /// Whether anything of the topic is held: a look that spares the rows of all other topics two.
    fn has_any_of(&self, topic: &str) -> bool {
        let units: &BTreeMap<Unit<'_>, i64> = &self.units;
        // The whole topic comes before its parts.
        units.range(Unit::topic(topic)..).next().is_some_and(|(unit, _)| unit.topic == topic)
    }

    /// Whether a refused row waits for its topic, too, of which an earlier row is refused.
    pub fn waits_for_topic(&self, first: i64, hold: &Hold) -> bool {
        self.topics > 0 && self.of(&Unit::topic(hold.topic())).is_some_and(|earlier| earlier < first)
    }

    /// Whether there is no room for another that is not a whole topic.
    pub fn full(&self) -> bool {
        self.holds.len() - self.topics >= HOLDS_MAX
    }

    /// Whether so many topics more may be held. Otherwise the bucket has to wait.
    pub fn room_for_topics(&self, more: usize) -> bool {
        self.topics + more <= HOLDS_MAX
    }

    /// Begins a hold at this row. One on the same unit, or at the same row, ends; says where that of the unit began, if at
    /// another row.
    pub fn begin(&mut self, first: i64, hold: Hold) -> Option<i64> {
        let replaced = self.of(&hold.unit).filter(|before| *before != first);
        if let Some(before) = replaced {
            self.end(before);
        }
        self.end(first);
        self.topics += usize::from(hold.unit.is_topic());
        self.units.insert(hold.unit.clone(), first);
        self.holds.insert(first, hold);
        replaced
    }

    /// Ends the hold that begins at this row.
    pub fn end(&mut self, first: i64) -> Option<Hold> {
        let hold = self.holds.remove(&first)?;
        self.units.remove(&hold.unit);
        self.topics -= usize::from(hold.unit.is_topic());
        Some(hold)
    }

    /// From this row on everything waits.
    pub fn blocked_from(&self) -> Option<i64> {
        // Mostly there are none; those there are were made for the few topics that block.
        self.holds.iter().find(|(_, hold)| hold.blocks).map(|(first, _)| *first)
    }

    /// Whether the row has to wait. Rows in front of a refused one do not, unless that is on its way: they would be behind it.
    pub fn cover(&mut self, row: &Message<'_>) -> bool {
        if !self.has_any_of(row.topic) {
            return false;
        }
        let own = self.of(&Unit::of(row));
        let topic = if self.topics > 0 { self.of(&Unit::topic(row.topic)) } else { None };
        [own, topic].into_iter().flatten().any(|first| {
            let hold = self.holds.get_mut(&first).expect("units are of holds");
            if row.id >= first {
                return true;
            }
            let on_its_way = hold.flight.is_some() && !broken(Rule::RetriesAreNotCrossed);
            if on_its_way {
                hold.passed = Some(hold.passed.map_or(row.id, |passed| passed.min(row.id)));
            }
            on_its_way
        })
    }
}

impl Hold {
    /// Of a row that has just been refused.
    pub fn new(unit: Unit<'_>, now: Time) -> Self {
        Self {
            unit: unit.into_owned(),
            blocks: false,
            attempts: 0,
            error: String::new(),
            since: now,
            retry_at: Some(now),
            flight: None,
            forgotten: false,
            passed: None,
        }
    }

    pub fn topic(&self) -> &str {
        &self.unit.topic
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Time = Time::since_zero(Duration::from_secs(100));

    fn row(id: i64, topic: &'static str, key: Option<&'static [u8]>) -> Message<'static> {
        let (partition, value, headers) = (None, None, None);
        Message { id, topic, partition, key, value, headers, message_id: [0; 16], handle: &[] }
    }

    fn hold(unit: Unit<'_>) -> Hold {
        Hold::new(unit, NOW)
    }

    #[test]
    fn a_refused_row_holds_up_later_rows_of_its_key_only() {
        let mut holds = Holds::default();
        holds.begin(5, hold(Unit::of(&row(5, "t", Some(b"k")))));
        assert!(holds.cover(&row(5, "t", Some(b"k"))) && holds.cover(&row(6, "t", Some(b"k"))));
        assert!(!holds.cover(&row(4, "t", Some(b"k"))), "it is in front");
        assert!(!holds.cover(&row(6, "t", Some(b"other"))));
        assert!(!holds.cover(&row(6, "u", Some(b"k"))));
        assert!(!holds.cover(&row(6, "t", None)));
        holds.end(5);
        assert_eq!(holds.iter().count(), 0);
        assert!(!holds.cover(&row(6, "t", Some(b"k"))));
    }

    #[test]
    fn a_topic_that_takes_nothing_holds_up_its_own_rows_only() {
        let mut holds = Holds::default();
        holds.begin(5, hold(Unit::topic("t")));
        assert!(holds.cover(&row(6, "t", Some(b"k"))) && holds.cover(&row(7, "t", None)));
        assert!(!holds.cover(&row(6, "u", Some(b"k"))));
    }

    #[test]
    fn a_late_row_waits_while_the_refused_one_is_on_its_way_and_is_remembered() {
        let mut holds = Holds::default();
        holds.begin(5, Hold { flight: Some(1), ..hold(Unit::of(&row(5, "t", Some(b"k")))) });
        assert!(holds.cover(&row(3, "t", Some(b"k"))));
        assert!(holds.cover(&row(4, "t", Some(b"k"))));
        assert_eq!(holds.end(5).and_then(|hold| hold.passed), Some(3));
    }

    #[test]
    fn a_unit_has_one_hold_and_a_row_begins_one() {
        let mut holds = Holds::default();
        holds.begin(5, hold(Unit::topic("t")));
        holds.begin(3, hold(Unit::topic("t")));
        assert_eq!(holds.of(&Unit::topic("t")), Some(3));
        holds.begin(3, hold(Unit::of(&row(3, "t", Some(b"k")))));
        assert_eq!(holds.iter().map(|(first, _)| first).collect::<Vec<_>>(), [3]);
        assert!(!holds.cover(&row(9, "t", None)), "the topic is free again");
    }

    #[test]
    fn a_refused_row_waits_for_its_topic_too() {
        let mut holds = Holds::default();
        holds.begin(5, hold(Unit::of(&row(5, "t", Some(b"k")))));
        holds.begin(3, hold(Unit::topic("t")));
        let waits = |holds: &Holds, first| holds.waits_for_topic(first, holds.get(first).expect("it is held"));
        assert!(waits(&holds, 5) && !waits(&holds, 3));
        holds.end(3);
        holds.begin(7, hold(Unit::topic("t")));
        assert!(!waits(&holds, 5), "it is in front");
    }

    #[test]
    fn memory_is_bounded() {
        let mut holds = Holds::default();
        for id in 0..HOLDS_MAX as i64 {
            assert!(!holds.full());
            holds.begin(id, hold(Unit::of(&row(id, "t", None))));
        }
        assert!(holds.full());
        holds.end(0);
        assert!(!holds.full());
    }
}
