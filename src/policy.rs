//! What becomes of a message that the broker refuses for good.
//!
//! Reason: a message that can never be sent must not be tried for ever, nor vanish. Yet the cause may be cured in a minute
//! (a topic's limit is raised), and an outage is no fault of any message. So only refusals that would come again are counted,
//! and a message gets both a number of attempts and some time before anything is decided.
//!
//! Rule: after `max_attempts` such refusals, and not before `park_patience` has passed since the first, the policy of the
//! topic acts. `park_key`: the message waits for an operator, and with it the later ones of its key. `dead_letter`: it is
//! published to another topic. `block`: it is tried for ever, and its whole bucket waits behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What an operator has laid down for a topic; the default where nothing is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicRule {
    /// What to do in the end.
    pub policy: Policy,
    /// Attempts before that, at least 1; none means the setting.
    pub max_attempts: Option<u32>,
    /// Nothing is published to it for now.
    pub paused: bool,
}

/// The rules of all topics.
#[derive(Debug, Default)]
pub struct Rules {
    named: BTreeMap<String, TopicRule>,
    /// Of all others.
    default: TopicRule,
    paused: BTreeSet<String>,
}

impl Rules {
    /// These topics have rules of their own.
    #[must_use]
    pub fn new(named: BTreeMap<String, TopicRule>) -> Self {
        let paused = named.iter().filter(|(_, rule)| rule.paused).map(|(topic, _)| topic.clone()).collect();
        Self { named, paused, default: TopicRule::default() }
    }

    /// The rule of a topic.
    #[must_use]
    pub fn of(&self, topic: &str) -> &TopicRule {
        self.named.get(topic).unwrap_or(&self.default)
    }

    /// The topics to which nothing is published for now.
    #[must_use]
    pub fn paused(&self) -> &BTreeSet<String> {
        &self.paused
    }
}

/// What to do with a message that was refused for good.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Policy {
    /// The message and the later ones of its key wait for an operator.
    #[default]
    ParkKey,
    /// It is published to this topic instead.
    DeadLetter(String),
    /// It is tried for ever, and its bucket waits.
    Block,
}

/// Attempts and time that a refused message gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Refusals before the policy acts, at least 1.
    pub max_attempts: u32,
    /// Time from the first refusal before the policy acts.
    pub park_patience: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { max_attempts: 5, park_patience: Duration::from_secs(30) }
    }
}

/// What comes next for a refused message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<'a> {
    /// It is tried again after a wait.
    Retry,
    /// It waits for an operator.
    Park,
    /// It goes to this topic.
    DeadLetter(&'a str),
}

/// What comes next after so many refusals, the first of them so long ago.
#[must_use]
pub fn next<'a>(rule: &'a TopicRule, patience: Patience, attempts: u32, failing_for: Duration) -> Next<'a> {
    let enough = attempts >= rule.max_attempts.unwrap_or(patience.max_attempts).max(1);
    if !enough || failing_for < patience.park_patience {
        return Next::Retry;
    }
    match &rule.policy {
        Policy::ParkKey => Next::Park,
        Policy::DeadLetter(topic) => Next::DeadLetter(topic),
        Policy::Block => Next::Retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { max_attempts: 3, park_patience: Duration::from_secs(10) };
    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(9_999);

    #[test]
    fn the_policy_acts_after_both_attempts_and_time() {
        let rule = TopicRule::default();
        assert_eq!(next(&rule, PATIENCE, 2, LONG), Next::Retry);
        assert_eq!(next(&rule, PATIENCE, 3, SHORT), Next::Retry);
        assert_eq!(next(&rule, PATIENCE, 3, LONG), Next::Park);
        assert_eq!(next(&rule, PATIENCE, 99, LONG), Next::Park);
    }

    #[test]
    fn a_topic_may_have_its_own_number_of_attempts() {
        let rule = TopicRule { max_attempts: Some(1), ..TopicRule::default() };
        assert_eq!(next(&rule, PATIENCE, 1, LONG), Next::Park);
    }

    #[test]
    fn a_dead_letter_goes_to_its_topic_and_a_block_is_tried_for_ever() {
        let rule = TopicRule { policy: Policy::DeadLetter("dlq".to_owned()), ..TopicRule::default() };
        assert_eq!(next(&rule, PATIENCE, 3, LONG), Next::DeadLetter("dlq"));
        let rule = TopicRule { policy: Policy::Block, ..TopicRule::default() };
        assert_eq!(next(&rule, PATIENCE, 1000, LONG), Next::Retry);
    }
}
