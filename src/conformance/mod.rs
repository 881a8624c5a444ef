//! Rules that every [`Store`](crate::relay::ports::Store) and every [`Publisher`](crate::relay::ports::Publisher) must
//! keep, as functions that the tests of another crate can call.
//!
//! Reason: the loop's guarantees hold only over ports that do what the contract says, and a port of one's own is
//! written by somebody who has read the contract once. Each rule here is one sentence of it, tried on the real thing.
//!
//! What the rules need beside the port itself, such as committing a message or letting time pass, comes from a fixture:
//! [`store::StoreFixture`] or [`publisher::PublisherFixture`]. Every rule is tried on a fresh one:
//!
//! ```
//! # use outbox_relay::conformance::store::{self, StoreFixture};
//! /// A test of the crate that has the store.
//! fn it_keeps_the_contract<F: StoreFixture>(fresh: fn() -> F) {
//!     let report = store::run_all(fresh);
//!     report.require();
//!     assert_eq!(report.skipped(), []);
//! }
//! ```
//!
//! A rule about an optional capability that is missing is skipped, and the report says so. A rule can also be tried
//! alone, by its function or from the table [`store::RULES`] or [`publisher::RULES`].
//!
//! The suite waits for nothing by itself: time passes through the fixture only.

pub mod publisher;
pub mod store;

#[cfg(test)]
mod tests;

use std::fmt;

/// Why a rule was not seen to hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// It does not hold: what was expected, and what came.
    #[error("{0}")]
    Broken(String),
    /// It was not tried, for lack of this optional capability.
    #[error("skipped: {0}")]
    Skipped(&'static str),
}

/// What came of trying a rule.
pub type Outcome = Result<(), Unmet>;

/// A rule as the tables list it; `check` tries it on a fresh fixture.
#[derive(Debug, Clone, Copy)]
pub struct Rule<C> {
    /// The name of its function, which documents the reason.
    pub name: &'static str,
    /// Tries it.
    pub check: C,
}

/// Outcomes of all rules, in the order of the table.
#[derive(Debug, Clone)]
pub struct Report {
    /// The name of each rule with its outcome.
    pub outcomes: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// Names of the rules that do not hold, with what came instead.
    #[must_use]
    pub fn broken(&self) -> Vec<(&'static str, &str)> {
        self.unmet(|unmet| if let Unmet::Broken(what) = unmet { Some(what.as_str()) } else { None })
    }

    /// Names of the rules that were not tried, with the capability that is missing.
    #[must_use]
    pub fn skipped(&self) -> Vec<(&'static str, &str)> {
        self.unmet(|unmet| if let Unmet::Skipped(what) = unmet { Some(*what) } else { None })
    }

    fn unmet<'a>(&'a self, of: impl Fn(&'a Unmet) -> Option<&'a str>) -> Vec<(&'static str, &'a str)> {
        self.outcomes.iter().filter_map(|(name, outcome)| Some((*name, of(outcome.as_ref().err()?)?))).collect()
    }

    /// Ends a test.
    ///
    /// # Panics
    /// When a rule does not hold, with all outcomes as text.
    pub fn require(&self) {
        assert!(self.broken().is_empty(), "the contract is broken\n{self}");
    }
}

/// A line for each rule.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outcomes.iter().try_for_each(|(name, outcome)| match outcome {
            Ok(()) => writeln!(f, "kept     {name}"),
            Err(Unmet::Skipped(what)) => writeln!(f, "skipped  {name}: {what}"),
            Err(Unmet::Broken(what)) => writeln!(f, "BROKEN   {name}: {what}"),
        })
    }
}

/// Lists rules by their functions: `rules![module: one, two; other: three]`.
macro_rules! rules {
    ($($module:ident: $($rule:ident),+ $(,)?);+ $(;)?) => {
        &[$($($crate::conformance::Rule { name: stringify!($rule), check: $module::$rule }),+),+]
    };
}

/// Ends a rule as broken unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err($crate::conformance::Unmet::Broken(format!($($text)+)));
        }
    };
}

use {ensure, rules};
