//! Which rows of a batch may be removed.
//!
//! Reason: a row that failed is published again, and what comes behind it in its unit of order ([`crate::order`]) has to
//! follow it once more, or a consumer would be left with the older message as the last. So the rows of a unit leave the
//! table front to back, and what is left of it is always a tail in order. Units have nothing to do with each other.
//!
//! Rule: of every unit the rows up to the first that is not acknowledged. Mostly that is the whole batch, so the prefix
//! without a gap, which needs no look at the units, is known at any time.

use std::collections::BTreeSet;

use crate::broken::{Rule, broken};

/// Outcomes of one batch as they come in, in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    rows: Vec<Outcome>,
    len: usize,
    reported: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Unknown,
    Acknowledged,
    Failed,
}

impl Prefix {
    /// A batch of `rows` rows of which nothing is known yet.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        Self { rows: vec![Outcome::Unknown; rows], len: 0, reported: 0 }
    }

    /// The broker acknowledged the row at `index`.
    pub fn acknowledge(&mut self, index: usize) {
        self.settle(index, Outcome::Acknowledged);
        while self.rows.get(self.len) == Some(&Outcome::Acknowledged) {
            self.len += 1;
        }
    }

    /// The row at `index` failed, or was given up before it was sent.
    pub fn fail(&mut self, index: usize) {
        self.settle(index, Outcome::Failed);
    }

    /// What is known of the rows at these ascending indices, as of a batch of its own.
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Self {
        let rows: Vec<Outcome> = indices.iter().map(|index| self.rows[*index]).collect();
        let len = rows.iter().take_while(|outcome| **outcome == Outcome::Acknowledged).count();
        let reported = rows.iter().filter(|outcome| **outcome != Outcome::Unknown).count();
        Self { rows, len, reported }
    }

    /// The rows from `rows` on, of which nothing is known, are not of the batch any more.
    pub fn truncate(&mut self, rows: usize) {
        debug_assert!(
            self.rows[rows..].iter().all(|outcome| *outcome == Outcome::Unknown),
            "their reports would be lost"
        );
        self.rows.truncate(rows);
    }

    fn settle(&mut self, index: usize, outcome: Outcome) {
        debug_assert_eq!(self.rows[index], Outcome::Unknown, "one report a row");
        self.rows[index] = outcome;
        self.reported += 1;
    }

    /// Number of rows at the front that the broker acknowledged without a gap.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the row at `index` was acknowledged.
    #[must_use]
    pub fn has(&self, index: usize) -> bool {
        self.rows[index] == Outcome::Acknowledged
    }

    /// Whether the row at `index` has an outcome.
    #[must_use]
    pub fn is_reported(&self, index: usize) -> bool {
        self.rows[index] != Outcome::Unknown
    }

    /// Whether there are acknowledged rows behind the prefix.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        self.rows[self.len..].contains(&Outcome::Acknowledged)
    }

    /// The indices of the rows that may be removed: in every unit those in front of the first that is not acknowledged.
    pub fn removable<U: Ord>(&self, unit: impl Fn(usize) -> U) -> Vec<usize> {
        let mut waiting = BTreeSet::new();
        let mut removable: Vec<usize> = (0..self.len).collect();
        for index in self.len..self.rows.len() {
            let unit = unit(index);
            if !self.has(index) {
                waiting.insert(unit);
            } else if !waiting.contains(&unit) || broken(Rule::PrefixOnly) {
                removable.push(index);
            }
        }
        removable
    }

    /// Whether no row at the front is acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of rows with an outcome.
    #[must_use]
    pub fn reported(&self) -> usize {
        self.reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(rows: usize, outcomes: &[(usize, bool)]) -> Prefix {
        let mut prefix = Prefix::new(rows);
        for (index, acknowledged) in outcomes {
            if *acknowledged {
                prefix.acknowledge(*index);
            } else {
                prefix.fail(*index);
            }
        }
        prefix
    }

    #[test]
    fn all_acknowledged_is_the_whole_batch() {
        let prefix = settle(3, &[(2, true), (0, true), (1, true)]);
        assert_eq!((prefix.len(), prefix.reported(), prefix.has_gap()), (3, 3, false));
    }

    #[test]
    fn first_failure_means_nothing() {
        let prefix = settle(3, &[(0, false), (1, true), (2, true)]);
        assert!(prefix.is_empty() && prefix.has_gap());
        assert_eq!(prefix.removable(|_| "the same"), [] as [usize; 0]);
    }

    #[test]
    fn a_failure_freezes_the_prefix() {
        let prefix = settle(4, &[(3, true), (2, false), (0, true), (1, false)]);
        assert_eq!(prefix.len(), 1);
        assert_eq!(prefix.removable(|_| "the same"), [0]);
    }

    #[test]
    fn a_row_without_report_ends_the_prefix() {
        let prefix = settle(3, &[(0, true), (2, true)]);
        assert_eq!((prefix.len(), prefix.reported()), (1, 2));
        assert_eq!(prefix.removable(|_| "the same"), [0]);
    }

    #[test]
    fn a_failure_keeps_later_rows_of_its_unit_only() {
        let unit = |index: usize| ["a", "b", "a", "b", "c", "a"][index];
        let prefix = settle(6, &[(0, true), (1, false), (2, true), (3, true), (4, false), (5, true)]);
        assert_eq!(prefix.removable(unit), [0, 2, 5]);
        let prefix = settle(6, &[(0, false), (1, true), (2, true), (3, true), (4, true), (5, false)]);
        assert_eq!(prefix.removable(unit), [1, 3, 4]);
    }

    #[test]
    fn a_part_of_a_batch_is_as_a_batch_of_its_own() {
        let prefix = settle(6, &[(0, true), (1, false), (2, true), (5, true)]);
        assert_eq!(prefix.select(&[0, 2, 3, 5]), settle(4, &[(0, true), (1, true), (3, true)]));
        assert_eq!(prefix.select(&[1, 2]), settle(2, &[(0, false), (1, true)]));
    }

    #[test]
    fn an_empty_batch_is_empty() {
        assert!(Prefix::new(0).is_empty());
    }
}
