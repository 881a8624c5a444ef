//! Which part of a batch may be acknowledged.
//!
//! Reason: rows leave the table front to back, so that what is left is always a tail in order. A row whose follower was
//! acknowledged but which itself failed must be published again before anything behind it is removed.
//!
//! Rule: the acknowledged prefix ends at the first row that is not acknowledged. The first failed row freezes it: later
//! acknowledgements never extend it past that row.

use crate::broken::{Rule, broken};

/// Outcomes of one batch as they come in, in any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix<E> {
    acknowledged: Vec<bool>,
    len: usize,
    reported: usize,
    first_error: Option<(usize, E)>,
}

impl<E> Prefix<E> {
    /// A batch of `rows` rows of which nothing is known yet.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        Self { acknowledged: vec![false; rows], len: 0, reported: 0, first_error: None }
    }

    /// The broker acknowledged the row at `index`.
    pub fn acknowledge(&mut self, index: usize) {
        debug_assert!(!self.acknowledged[index], "one report a row");
        self.acknowledged[index] = true;
        self.reported += 1;
        if broken(Rule::PrefixOnly) {
            self.len += 1;
            return;
        }
        while self.len < self.acknowledged.len() && self.acknowledged[self.len] {
            self.len += 1;
        }
    }

    /// The row at `index` failed, or was given up before it was sent.
    pub fn fail(&mut self, index: usize, error: E) {
        debug_assert!(!self.acknowledged[index], "one report a row");
        self.reported += 1;
        if self.first_error.as_ref().is_none_or(|(first, _)| index < *first) {
            self.first_error = Some((index, error));
        }
    }

    /// Number of rows at the front that the broker acknowledged without a gap.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
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

    /// The first row without success, by position, and why.
    #[must_use]
    pub fn first_error(&self) -> Option<&(usize, E)> {
        self.first_error.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(rows: usize, outcomes: &[(usize, Result<(), &'static str>)]) -> Prefix<&'static str> {
        let mut prefix = Prefix::new(rows);
        for (index, outcome) in outcomes {
            match outcome {
                Ok(()) => prefix.acknowledge(*index),
                Err(error) => prefix.fail(*index, *error),
            }
        }
        prefix
    }

    #[test]
    fn all_acknowledged_is_the_whole_batch() {
        let prefix = settle(3, &[(2, Ok(())), (0, Ok(())), (1, Ok(()))]);
        assert_eq!((prefix.len(), prefix.reported()), (3, 3));
        assert_eq!(prefix.first_error(), None);
    }

    #[test]
    fn first_failure_means_nothing() {
        let prefix = settle(3, &[(0, Err("no")), (1, Ok(())), (2, Ok(()))]);
        assert!(prefix.is_empty());
        assert_eq!(prefix.first_error(), Some(&(0, "no")));
    }

    #[test]
    fn a_failure_freezes_the_prefix() {
        let prefix = settle(4, &[(3, Ok(())), (2, Err("later")), (0, Ok(())), (1, Err("earlier"))]);
        assert_eq!(prefix.len(), 1);
        assert_eq!(prefix.first_error(), Some(&(1, "earlier")));
    }

    #[test]
    fn a_row_without_report_ends_the_prefix() {
        let prefix = settle(3, &[(0, Ok(())), (2, Ok(()))]);
        assert_eq!((prefix.len(), prefix.reported()), (1, 2));
    }

    #[test]
    fn an_empty_batch_is_empty() {
        assert!(Prefix::<()>::new(0).is_empty());
    }
}
