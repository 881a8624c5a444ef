//! New settings are tried before a relay changes over to them.
//!
//! Reason: a wrong password, a mistyped host or an expired certificate would end publishing that works. So a client is made with
//! the new settings and must get an answer from a broker. If it gets none while the old client has a broker that answers, the old
//! one goes on. If the old one has none either, nothing is lost by changing over.
//!
//! All of that takes its time, and happens on threads of a caretaker of its own.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::properties::Properties;

use super::caretaker::Caretaker;
use super::inquiry::{self, Contact};
use super::producer;
use super::ring::Ring;
use super::telling;

/// Longest time that a broker may take to answer the new client.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time that a broker may take to answer the old client, which has a connection if it has a broker.
const OLD_PATIENCE: Duration = Duration::from_secs(2);

/// What came of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A broker has answered the new client.
    Answered,
    /// Nobody answers, neither the new client nor the old one. The reason is that of the new one.
    NobodyAnswers(String),
    /// Only the old client is answered, or the new one cannot be made. Says why, in a sentence.
    Refused(String),
}

/// A trial under way. Dropping it forgets it.
pub struct Trial {
    properties: Properties,
    outcome: Arc<Mutex<Option<Outcome>>>,
    /// Ends its thread when it is dropped and what it was given is done.
    _caretaker: Caretaker,
}

impl fmt::Debug for Trial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The properties hold secrets.
        formatter.debug_struct("Trial").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

impl Trial {
    /// Tries these properties, beside the client that is reached by `old`. Rings when there is an outcome.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(properties: Properties, old: Contact, ring: Ring) -> std::io::Result<Self> {
        let caretaker = Caretaker::start(ring.clone())?;
        let outcome = Arc::new(Mutex::new(None));
        let (tried, result) = (properties.clone(), outcome.clone());
        caretaker.ask(move || {
            let outcome = attempt(&tried, &old);
            *result.lock().expect("no panic while it is held") = Some(outcome);
            ring.ring();
        });
        Ok(Self { properties, outcome, _caretaker: caretaker })
    }

    /// What is tried.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// What came of it, once it is over.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome.lock().expect("no panic while it is held").clone()
    }
}

fn attempt(properties: &Properties, old: &Contact) -> Outcome {
    let causes = Arc::new(Mutex::new(Causes::default()));
    let client = match producer::client_for_a_trial(properties, causes.clone()) {
        Ok(client) => client,
        Err(reason) => return Outcome::Refused(format!("{}.", reason.trim().trim_end_matches('.'))),
    };
    let answer = inquiry::ask_for_brokers(&client, PATIENCE);
    if answer.is_ok() {
        return Outcome::Answered;
    }
    // Serves the events that the client has left, which tell of some causes.
    client.poll(Duration::ZERO);
    let told = causes.lock().expect("no panic while it is held").told();
    let reason = told.unwrap_or_else(|| format!("No broker answers within {} s.", PATIENCE.as_secs()));
    if old.answers(OLD_PATIENCE) { Outcome::Refused(reason) } else { Outcome::NobodyAnswers(reason) }
}

/// The most telling line of a client's log so far.
#[derive(Debug, Default)]
pub(super) struct Causes {
    line: Option<String>,
}

impl Causes {
    /// A line that tells of a problem.
    pub fn hear(&mut self, text: &str) {
        let known = |text: &str| telling::meaning(text).is_some();
        if self.line.as_deref().is_none_or(|line| known(text) || !known(line)) {
            self.line = Some(text.to_owned());
        }
    }

    fn told(&self) -> Option<String> {
        self.line.as_deref().map(telling::told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_not_hidden_by_what_follows_from_it() {
        let mut causes = Causes::default();
        assert_eq!(causes.told(), None);
        causes.hear("h:1/bootstrap: Disconnected");
        assert_eq!(causes.told().as_deref(), Some("h:1/bootstrap: Disconnected."));
        causes.hear("h:1/bootstrap: SASL authentication error: no");
        causes.hear("h:1/bootstrap: Disconnected");
        assert!(causes.told().is_some_and(|told| told.starts_with("The broker refuses the user")));
    }
}
