//! The clock and the bell of a relay in the world.

use std::collections::BTreeSet;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::relay::ports::{Bell, Clock, Order, Wait};

use super::Seat;
use super::world::{Rest, Verb, Whereabouts};

impl Clock for Seat<'_> {
    fn now(&self) -> Time {
        self.world().now
    }
}

impl Bell for Seat<'_> {
    fn take(&mut self, bucket: Bucket) -> Option<i64> {
        let mut world = self.world();
        if world.listeners.get(&bucket) != Some(&self.me) {
            return None;
        }
        world.bells.remove(&bucket)
    }

    fn take_unknown(&mut self) -> bool {
        std::mem::take(&mut self.world().actors[self.me].unknown)
    }

    fn listen_for(&mut self, buckets: &BTreeSet<Bucket>) {
        let mut world = self.world();
        world.listeners.extend(buckets.iter().map(|bucket| (*bucket, self.me)));
    }

    fn stop_listening_for(&mut self, buckets: &BTreeSet<Bucket>) {
        self.world().listeners.retain(|bucket, listener| *listener != self.me || !buckets.contains(bucket));
    }

    fn call_peers(&mut self) {
        let mut world = self.world();
        world.record(self.me, Verb::CallPeers, Vec::new(), true);
        if !world.calls_heard {
            return world.count("lost calls of peers");
        }
        for (peer, actor) in world.actors.iter_mut().enumerate() {
            if peer != self.me {
                actor.order(Order::LookAgain);
            }
        }
    }

    fn order(&mut self) -> Option<Order> {
        let actor = &mut self.world().actors[self.me];
        let orders = &mut actor.orders;
        if orders.stop {
            return Some(Order::Stop);
        }
        if let Some(settings) = orders.settings.take() {
            actor.settings = (*settings).clone();
            return Some(Order::Settings(settings));
        }
        std::mem::take(&mut orders.look_again).then_some(Order::LookAgain)
    }

    fn rest(&mut self, wait: Wait, until: Time) {
        let mut world = self.world();
        if world.truth.is_none() {
            let rest = Rest { at: world.now, relay: world.actors[self.me].id.clone(), wait, until };
            world.rests.push(rest);
        }
        world.note(Some(self.me), &[9, wait as u64], || format!("rests: {wait:?}"));
        drop(world);
        self.pause(Whereabouts::Resting(until));
    }
}
