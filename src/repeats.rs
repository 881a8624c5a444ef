//! A failure that repeats is said once and then counted.
//!
//! Reason: a client that cannot reach its broker complains many times a second, and a log that nobody can read hides what
//! matters. Yet silence would hide that it goes on.
//!
//! Rule: the first occurrence of a kind is said at once. After that it is said once an interval, with the number of times
//! that it was not said in between. Where kinds can be many, such as topics, so many of them are said in an interval, and the
//! others are counted.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Time;

/// How often a failure of one kind is said.
pub const INTERVAL: Duration = Duration::from_secs(60);
/// Most kinds that are told apart; beyond that everything counts as already said.
const KINDS_MAX: usize = 1000;

/// What was said when, by kind.
#[derive(Debug)]
pub struct Repeats<K> {
    said: BTreeMap<K, Said>,
}

#[derive(Debug)]
struct Said {
    at: Time,
    unsaid: u64,
}

impl<K: Ord> Default for Repeats<K> {
    fn default() -> Self {
        Self { said: BTreeMap::new() }
    }
}

impl<K: Ord> Repeats<K> {
    /// A failure of this kind has occurred. `Some` means: say it, and that it went unsaid so many times before.
    pub fn note(&mut self, kind: K, now: Time) -> Option<u64> {
        if let Some(said) = self.said.get_mut(&kind) {
            if now.since(said.at) < INTERVAL {
                said.unsaid += 1;
                return None;
            }
            said.at = now;
            return Some(std::mem::take(&mut said.unsaid));
        }
        if self.said.len() >= KINDS_MAX {
            self.said.retain(|_, said| now.since(said.at) < INTERVAL);
            if self.said.len() >= KINDS_MAX {
                return None;
            }
        }
        self.said.insert(kind, Said { at: now, unsaid: 0 });
        Some(0)
    }

    /// The failure is over: the next one is a new one.
    pub fn forget(&mut self, kind: &K) {
        self.said.remove(kind);
    }
}

/// Most kinds that are said in an interval.
pub const SAID_MAX: u64 = 20;

/// Bounds what is said of many kinds together.
#[derive(Debug, Default)]
pub struct Budget {
    began: Option<Time>,
    said: u64,
    left_out: u64,
}

impl Budget {
    /// Something is to be said. `Some` means: say it, and that so much was left out in the interval before.
    pub fn spend(&mut self, now: Time) -> Option<u64> {
        if self.began.is_none_or(|began| now.since(began) >= INTERVAL) {
            self.began = Some(now);
            self.said = 0;
        }
        if self.said >= SAID_MAX {
            self.left_out += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::since_zero(Duration::from_secs(seconds))
    }

    #[test]
    fn said_once_and_then_counted() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.note("a", at(0)), Some(0));
        assert_eq!(repeats.note("a", at(1)), None);
        assert_eq!(repeats.note("b", at(1)), Some(0));
        assert_eq!(repeats.note("a", at(59)), None);
        assert_eq!(repeats.note("a", at(60)), Some(2));
        assert_eq!(repeats.note("a", at(61)), None);
        repeats.forget(&"a");
        assert_eq!(repeats.note("a", at(62)), Some(0));
    }

    #[test]
    fn so_much_is_said_in_an_interval_and_the_rest_counted() {
        let mut budget = Budget::default();
        for _ in 0..SAID_MAX {
            assert_eq!(budget.spend(at(0)), Some(0));
        }
        assert_eq!(budget.spend(at(1)), None);
        assert_eq!(budget.spend(at(59)), None);
        assert_eq!(budget.spend(at(60)), Some(2));
        assert_eq!(budget.spend(at(61)), Some(0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut repeats = Repeats::default();
        for kind in 0..KINDS_MAX {
            assert_eq!(repeats.note(kind, at(0)), Some(0));
        }
        assert_eq!(repeats.note(KINDS_MAX, at(1)), None);
        assert_eq!(repeats.note(KINDS_MAX, at(60)), Some(0), "old kinds made room");
    }
}
