//! A topic that gets no answer while brokers live must not hold up the others of its bucket.
//!
//! A partition without a leader, or with too few replicas, fails no row: the client waits. So when nothing is heard of a
//! batch for a while, brokers are asked for a sign of life. If they answer, and answer again a good while later, while the batch
//! is still silent, it is no outage, nor the end of one, nor a leader that changes: what is queued is called back, and the topics
//! without an answer are held (sooner if the brokers say themselves that there is no leader), each behind its first row, which is tried alone and gets through as soon as the topic does. In
//! an outage nobody answers, and everything stays where it is.

use std::time::Duration;

use crate::clock::Time;

use super::Relay;
use super::flight::{Flight, Suspicion};
use super::ports::{Bell, Clock, FlightId, PublishError, Publisher, Store};

/// Silence after which brokers are asked for a sign of life, and how long their answer is waited for.
const ASK_AFTER: Duration = Duration::from_secs(2);
/// How long brokers must have lived beside the silence of a topic that has no leader, as they say: longer than a change of leaders
/// and the return of brokers take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same if they don't say so: longer than a broker that is merely slow needs, or a network that loses answers. And after
/// as much again what was sent is given up too, for then its answer is lost.
const LAST_PATIENCE: Duration = Duration::from_secs(30);

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// Asks, and does what the answers suggest.
    pub(super) fn look_for_silent_topics(&mut self) {
        let now = self.clock.now();
        let mut answers = Vec::new();
        self.publisher.answers(&mut answers);
        let mut call_back = false;
        let mut abandon = false;
        for flight in self.flights.values_mut().filter(|flight| is_concerned(flight)) {
            let silent_for = now.since(flight.heard);
            match flight.suspicion {
                Suspicion::Nothing if silent_for >= ASK_AFTER => match flight.waits_for() {
                    Some(topic) => {
                        self.publisher.inquire(topic);
                        flight.suspicion = Suspicion::Asked { at: now, lived_at: None };
                    }
                    // It waits for room at the client.
                    None => flight.heard = now,
                },
                Suspicion::Asked { at, lived_at } if !answers.is_empty() && now > at => {
                    let topic = flight.waits_for();
                    let in_trouble = answers.iter().any(|answer| answer.in_trouble && Some(&*answer.topic) == topic);
                    let lived_at = lived_at.unwrap_or(now);
                    if now.since(lived_at) >= if in_trouble { PATIENCE } else { LAST_PATIENCE } {
                        let seconds = silent_for.as_secs();
                        let what = if in_trouble {
                            "brokers know of no leader"
                        } else {
                            "brokers answer, but not for this topic"
                        };
                        flight.blame_the_silent(&PublishError::Topic(format!("{what} for {seconds} s")));
                        flight.close();
                        flight.suspicion = Suspicion::CalledBack;
                        call_back = true;
                    } else {
                        flight.suspicion = Suspicion::Lived { lived_at, ask_at: now + PATIENCE };
                    }
                }
                Suspicion::Lived { lived_at, ask_at } if ask_at <= now => {
                    if let Some(topic) = flight.waits_for() {
                        self.publisher.inquire(topic);
                    }
                    flight.suspicion = Suspicion::Asked { at: now, lived_at: Some(lived_at) };
                }
                // Nobody is there, or not any more.
                Suspicion::Asked { at, .. } if now.since(at) >= ASK_AFTER => flight.suspicion = Suspicion::Nothing,
                Suspicion::CalledBack if silent_for >= LAST_PATIENCE * 2 => {
                    flight.suspicion = Suspicion::Abandoned;
                    abandon = true;
                }
                _ => {}
            }
        }
        if abandon {
            self.publisher.abandon();
            self.close_what_was_given_up();
        } else if call_back {
            self.give_up_queued();
        }
    }

    /// When to look again.
    pub(super) fn silence_due(&self) -> Option<Time> {
        let due = |flight: &Flight| match flight.suspicion {
            Suspicion::Nothing => Some(flight.heard + ASK_AFTER),
            Suspicion::Asked { at, .. } => Some(at + ASK_AFTER),
            Suspicion::Lived { ask_at, .. } => Some(ask_at),
            Suspicion::CalledBack => Some(flight.heard + LAST_PATIENCE * 2),
            Suspicion::Abandoned => None,
        };
        self.flights.values().filter(|flight| is_concerned(flight)).filter_map(due).min()
    }

    /// What waits for its topic alone is called back where its bucket is to be handed back: refused rows at once, what was set
    /// aside when nothing has been heard of it for a while.
    pub(super) fn call_back_alone(&mut self, ids: &[FlightId]) {
        let now = self.clock.now();
        let mut any = false;
        for id in ids {
            let Some(flight) = self.flights.get_mut(id) else { continue };
            if flight.is_called_back() || (flight.is_aside() && now.since(flight.heard) < ASK_AFTER) {
                continue;
            }
            flight.suspicion = Suspicion::CalledBack;
            // What was sent of it has its time from now on.
            flight.heard = now;
            any = true;
        }
        if any {
            self.give_up_queued();
        }
    }
}

/// Whether somebody waits behind it. A refused row that is tried alone may wait for its topic as long as it likes, unless it was
/// called back.
fn is_concerned(flight: &Flight) -> bool {
    (flight.retries.is_none() || flight.is_called_back()) && !flight.complete()
}
