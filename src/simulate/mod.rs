//! A small world in memory, on a virtual clock, in which real relay loops run against a database and a broker that can be
//! slow, away, or wrong.
//!
//! Every relay is a coroutine, because its loop waits inside [`crate::relay::ports::Bell::rest`]; it gives the turn away
//! where it rests or where a call is slow. Who comes next is decided in one place ([`World::next_turn`]), so a run is the
//! same every time. A crash is a coroutine that is dropped.
//!
//! Three rules are checked at every step, whatever the script: only the owner of an unexpired lease submits, one batch of
//! a bucket at a time, and only what the broker has is removed.

mod bell;
mod broker;
#[cfg(test)]
mod conformance;
mod database;
mod mutations;
mod plan;
mod run;
mod search;
mod shrink;
#[cfg(test)]
mod tests;
mod trace;
mod truth;
mod world;
mod writers;

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::mem;
use std::rc::Rc;
use std::time::Duration;

use corosensei::{Coroutine, Yielder};

use crate::clock::Time;
use crate::relay::Relay;
use crate::settings::Settings;

pub use mutations::find_mutations;
pub use search::{replay, search};

#[cfg(test)]
pub(crate) use broker::{LETTERS, Refuser, Trouble};
#[cfg(test)]
pub(crate) use database::{Failing, Hindrance, Label, Ring};
pub(crate) use world::World;
#[cfg(test)]
pub(crate) use world::{Call, Verb};

use world::Whereabouts;

/// Relays, a world and a script, before they run.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// Those of every relay. Nothing is parked unless a script wants it.
    pub settings: Settings,
    pub world: World,
}

impl Simulation {
    pub fn new() -> Self {
        let mut settings = Settings::default();
        settings.patience.max_attempts = u32::MAX;
        Self { settings, world: World::new() }
    }

    /// A relay that begins at this time.
    pub fn relay(&mut self, id: &str, begins: Time) {
        self.world.enter(id, begins);
    }

    /// Something that happens at this time, or a look at the world.
    pub fn at(&mut self, time: Time, event: impl FnOnce(&mut World) + 'static) {
        self.world.schedule(time, event);
    }

    /// Lets the relays run, stops at `end` those that still do, and gives the world back.
    pub fn run(mut self, end: Time) -> World {
        self.world.schedule(end, World::stop_all);
        self.world.database.seed(self.settings.lease.duration);
        self.world.settings = self.settings;
        let world = Rc::new(RefCell::new(self.world));
        play(&world);
        Rc::into_inner(world).expect("the relays have ended").into_inner()
    }
}

/// A relay from its beginning to its end. Whenever it is resumed it goes on to its next rest or call.
type Life = Coroutine<(), (), ()>;

/// Lets the relays take turns until all have ended, or a promise was broken.
fn play(world: &Rc<RefCell<World>>) {
    let mut relays: Vec<Option<Life>> = Vec::new();
    loop {
        let next = world.borrow_mut().next_turn();
        let crashed = mem::take(&mut world.borrow_mut().crashed);
        for me in &crashed {
            // Wherever it is, it gets no further.
            relays.get_mut(*me).and_then(Option::take);
        }
        if let Some(me) = next {
            while relays.len() <= me {
                relays.push(Some(live(Rc::clone(world), relays.len())));
            }
            relays[me].as_mut().expect("a crashed relay is not ready").resume(());
        } else if crashed.is_empty() {
            return;
        }
    }
}

fn live(world: Rc<RefCell<World>>, me: usize) -> Life {
    Coroutine::new(move |yielder, ()| {
        let seat = Seat { yielder, world, me };
        let (id, settings) = {
            let mut world = seat.world();
            let settings = world.settings.clone();
            world.actors[me].settings = settings.clone();
            world.note(Some(me), &[10], || "begins".to_owned());
            (world.actors[me].id.clone(), settings)
        };
        let relay = Relay::new(seat.clone(), seat.clone(), seat.clone(), seat.clone(), settings, &id);
        let ended = relay.expect("settings that agree").run();
        seat.world().leave(me, ended);
    })
}

/// The place of one relay in the world; it is all four ports of its loop.
#[derive(Clone)]
pub(crate) struct Seat<'y> {
    yielder: &'y Yielder<(), ()>,
    world: Rc<RefCell<World>>,
    me: usize,
}

impl Seat<'_> {
    /// Not to be kept over a pause.
    fn world(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    /// Lets the others go on until this relay's turn comes again.
    fn pause(&self, whereabouts: Whereabouts) {
        self.world().actors[self.me].whereabouts = whereabouts;
        self.yielder.suspend(());
    }

    /// A call takes this long, and where chance rules a little longer: anything may happen meanwhile.
    fn take_time(&self, duration: Duration) {
        let mut world = self.world();
        let now = world.now;
        let until = match &mut world.chance {
            None if duration.is_zero() => return,
            None => now + duration,
            Some(chance) => {
                let latency = if chance.random.bool() { Duration::ZERO } else { chance.latency };
                now + duration.min(chance.calm.since(now)) + latency.mul_f64(chance.random.f64())
            }
        };
        drop(world);
        self.pause(Whereabouts::Busy(until));
    }
}

impl fmt::Debug for Seat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("me", &self.me).finish_non_exhaustive()
    }
}
