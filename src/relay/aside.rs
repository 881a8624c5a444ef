//! A topic that is late with its answers must not hold up the others of its bucket.
//!
//! Reason: a bucket has one batch on its way, which ends with its last answer. Mostly answers come together, but not of a topic
//! that brokers are still asked about, of one whose partition has no leader, or of messages that are sent again alone
//! because of a refused one among them; and all else of the bucket would wait for those.
//!
//! Rule: once nothing was heard of a batch for a while behind some answers, and every row of some topics is answered and
//! none of the others, it is split. What is answered ends as a batch does, and the bucket goes on. The rest stays on
//! its way, and its topics are held: their other rows are passed over, and read when all of it has been answered. It is split
//! again in the same way, so that its topics do not wait for each other.
//! A topic whose policy is to block, or that is held already, is not set aside, nor is the greater part of a batch: reading on
//! would be for nothing then.

use std::time::Duration;

use crate::clock::Time;
use crate::order::Unit;
use crate::policy::Policy;

use super::Relay;
use super::flight::Flight;
use super::ports::{Bell, Clock, FlightId, Publisher, Store};

/// Silence after which a batch is split: more than lies between the answers of brokers that are well. Too early costs a look at
/// rows that are passed over.
const SILENCE: Duration = Duration::from_millis(20);

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// Splits the batches that wait for some of their topics.
    pub(super) fn set_aside_slow_topics(&mut self) {
        let now = self.clock.now();
        let waiting: Vec<FlightId> = self.splitting().filter(|(_, at)| *at <= now).map(|(id, _)| id).collect();
        for id in waiting {
            self.set_aside(id, now);
        }
    }

    /// When to look again.
    pub(super) fn aside_due(&self) -> Option<Time> {
        self.splitting().map(|(_, at)| at).min()
    }

    /// What may be split, and when. A bucket that leaves begins nothing, and waits for all of it.
    fn splitting(&self) -> impl Iterator<Item = (FlightId, Time)> {
        let stays = |flight: &Flight| self.lanes.get(&flight.lease.bucket).is_some_and(|lane| !lane.leaving);
        let may = move |flight: &Flight| flight.retries.is_none() && !flight.orphaned && stays(flight);
        let flights = self.flights.iter().filter(move |(_, flight)| may(flight));
        flights.filter_map(|(id, flight)| flight.splits_at(SILENCE).map(|at| (*id, at)))
    }

    fn set_aside(&mut self, id: FlightId, now: Time) {
        let answered_id = self.next_flight;
        let flight = self.flights.get_mut(&id).expect("the caller has just had it");
        let Some(topics) = flight.silent_topics() else { return };
        let lane = self.lanes.get_mut(&flight.lease.bucket).expect("the caller has just had it");
        let may_wait =
            |unit: &Unit<'_>| self.rules.of(&unit.topic).policy != Policy::Block && lane.holds.of(unit).is_none();
        let was_aside = flight.is_aside();
        let room = lane.holds.room_for_topics(topics.len());
        if !was_aside && (!room || topics.iter().any(|(_, unit)| !may_wait(unit))) {
            return;
        }
        self.window.remove(flight.batch.len(), flight.batch.bytes());
        let answered = flight.split();
        for part in [&*flight, &answered] {
            self.window.add(part.batch.len(), part.batch.bytes());
        }
        if was_aside {
            lane.part_aside(id, &topics, answered_id);
        } else {
            lane.set_aside(topics, answered_id, answered.batch.id(0), now);
        }
        self.flights.insert(answered_id, answered);
        self.next_flight = answered_id.wrapping_add(1);
    }
}
