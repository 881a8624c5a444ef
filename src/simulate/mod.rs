//! A small world in memory, on a virtual clock, in which real relay loops run against a database and a broker that can be
//! slow, away, or wrong.
//!
//! Every relay has a thread, because its loop waits inside [`crate::relay::ports::Bell::rest`]; but only one of them has
//! the turn, and passes it on where it rests or where a call is slow. Who comes next is decided in one place
//! ([`World::pass_turn`]), so a run is the same every time, and a seeded choice of the next relay, or more places to pass
//! the turn at, is all that it takes to explore interleavings.
//!
//! Three rules are checked at every step, whatever the script: only the owner of an unexpired lease submits, one batch of
//! a bucket at a time, and only what the broker has is removed.

mod bell;
mod broker;
mod database;
mod world;

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::clock::Time;
use crate::relay::Relay;
use crate::settings::Settings;

pub(crate) use broker::Refuser;
pub(crate) use database::{Failing, Hindrance, Ring};
pub(crate) use world::{Call, Verb, World};

use world::Whereabouts;

/// Relays, a world and a script, before they run.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// Those of every relay.
    pub settings: Settings,
    pub world: World,
}

impl Simulation {
    pub fn new() -> Self {
        Self { settings: Settings::default(), world: World::new() }
    }

    /// A relay that begins at this time.
    pub fn relay(&mut self, id: &str, begins: Time) {
        self.world.enter(id, begins);
    }

    /// Something that happens at this time, or a look at the world.
    pub fn at(&mut self, time: Time, event: impl FnOnce(&mut World) + Send + 'static) {
        self.world.schedule(time, event);
    }

    /// Lets the relays run, stops at `end` those that still do, and gives the world back.
    pub fn run(mut self, end: Time) -> World {
        self.world.schedule(end, World::stop_all);
        self.world.database.seed(self.settings.lease.duration);
        self.world.pass_turn();
        let relays = self.world.actors.len();
        let stage = Arc::new(Stage { world: Mutex::new(self.world), turn: Condvar::new() });
        thread::scope(|scope| {
            for me in 0..relays {
                let seat = Seat { stage: Arc::clone(&stage), me };
                let settings = self.settings.clone();
                scope.spawn(move || seat.live(settings));
            }
        });
        let stage = Arc::into_inner(stage).expect("the relays have ended");
        let mut world = stage.world.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(panic) = world.wreck.take() {
            panic::resume_unwind(panic);
        }
        world
    }
}

/// The world and who has the turn in it.
#[derive(Debug)]
struct Stage {
    world: Mutex<World>,
    turn: Condvar,
}

/// The place of one relay in the world; it is all four ports of its loop.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    stage: Arc<Stage>,
    me: usize,
}

impl Seat {
    fn world(&self) -> MutexGuard<'_, World> {
        self.stage.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(self, settings: Settings) {
        let life = panic::catch_unwind(AssertUnwindSafe(|| {
            self.await_turn(self.world());
            let id = self.world().actors[self.me].id.clone();
            let relay = Relay::new(self.clone(), self.clone(), self.clone(), self.clone(), settings, &id);
            let ended = relay.expect("settings that agree").run();
            let mut world = self.world();
            world.leave(self.me, ended);
            world.pass_turn();
        }));
        let mut world = self.world();
        if let Err(panic) = life {
            world.wreck.get_or_insert(panic);
            world.turn = None;
        }
        self.stage.turn.notify_all();
    }

    /// Lets the others go on until this relay's turn comes again.
    fn pause(&self, whereabouts: Whereabouts) {
        let mut world = self.world();
        world.actors[self.me].whereabouts = whereabouts;
        world.pass_turn();
        self.stage.turn.notify_all();
        self.await_turn(world);
    }

    /// A call takes this long.
    fn be_busy(&self, duration: Duration) {
        if !duration.is_zero() {
            let until = self.world().now + duration;
            self.pause(Whereabouts::Busy(until));
        }
    }

    fn await_turn(&self, mut world: MutexGuard<'_, World>) {
        while world.turn != Some(self.me) {
            if world.wreck.is_some() {
                drop(world);
                // Another relay has failed the test: end this one without a word.
                let silent: Box<dyn Any + Send> = Box::new(());
                panic::resume_unwind(silent);
            }
            world = self.stage.turn.wait(world).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
