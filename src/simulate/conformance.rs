//! The store of the simulated world keeps the contract that the loop is simulated against.
//!
//! Its database knows ids only, so what messages hold is kept beside it here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use corosensei::{CoroutineResult, ScopedCoroutine};

use super::{Ring, Seat, World};
use crate::bucket::Bucket;
use crate::clock::Time;
use crate::conformance::store::{LateCommits, StoreFixture, run_all};
use crate::lease::Lease;
use crate::message::{Batch, Message};
use crate::relay::ports::{
    Acknowledged, Acquired, Failure, FailureNote, FailureNotes, Limits, Ownership, Removed, Renewal, Round, Store,
    StoreError,
};

#[test]
fn the_simulated_store_keeps_every_rule() {
    let report = run_all(Fixture::new);
    report.require();
    let skipped: Vec<_> = report.skipped().iter().map(|(rule, _)| *rule).collect();
    assert_eq!(
        skipped,
        ["a_message_that_no_relay_can_own_is_reported", "a_release_marks_the_relay_before_it_frees"],
        "messages of other buckets and half a release are no part of the simulated world"
    );
}

const DURATION: Duration = Duration::from_secs(30);

struct Fixture {
    world: Rc<RefCell<World>>,
    contents: Rc<RefCell<BTreeMap<(Bucket, i64), Batch>>>,
    next_id: i64,
}

impl Fixture {
    fn new() -> Self {
        let mut world = World::new();
        world.database.seed(DURATION);
        // So that the clock can be set back.
        world.now = Time::since_zero(Duration::from_secs(1000));
        Self { world: Rc::new(RefCell::new(world)), contents: Rc::default(), next_id: 1 }
    }

    fn insert(&mut self, bucket: Bucket, id: i64, message: &Message<'_>, ring: Ring) {
        let mut world = self.world.borrow_mut();
        world.database.value_size = world.database.value_size.max(message.bytes());
        world.commit(bucket, [id], ring);
        // Nothing is published here, and yet acknowledged.
        world.broker.pretend_to_have((bucket, id));
        let mut content = Batch::default();
        content.push(&Message { id, ..*message });
        self.contents.borrow_mut().insert((bucket, id), content);
    }
}

impl StoreFixture for Fixture {
    fn open(&mut self, relay: &str) -> Box<dyn Store> {
        let mut world = self.world.borrow_mut();
        let begins = world.now;
        world.enter(relay, begins);
        let me = world.actors.len() - 1;
        Box::new(Actor { world: Rc::clone(&self.world), contents: Rc::clone(&self.contents), me })
    }

    fn bucket_count(&self) -> u32 {
        self.world.borrow().database.bucket_count
    }

    fn lease_duration(&self) -> Duration {
        DURATION
    }

    fn pass(&mut self, time: Duration) {
        let mut world = self.world.borrow_mut();
        world.now = world.now + time;
    }

    fn commit(&mut self, bucket: Bucket, messages: &[Message<'_>]) -> Vec<i64> {
        let mut commit = |message| {
            let id = self.draw(bucket);
            // As if the relay had taken the bell.
            self.insert(bucket, id, message, Ring::Silent);
            id
        };
        messages.iter().map(&mut commit).collect()
    }

    fn roll_back(&mut self, _bucket: Bucket, messages: &[Message<'_>]) {
        self.next_id += messages.len() as i64;
    }

    fn stored(&mut self, bucket: Bucket) -> Vec<i64> {
        self.world.borrow().database.rows(bucket)
    }

    fn late_commits(&mut self) -> Option<&mut dyn LateCommits> {
        Some(self)
    }

    fn set_clock_back(&mut self, by: Duration) -> bool {
        self.world.borrow_mut().clock_set -= by.as_millis() as i64;
        true
    }
}

impl LateCommits for Fixture {
    fn draw(&mut self, _bucket: Bucket) -> i64 {
        self.next_id += 1;
        self.next_id - 1
    }

    fn commit_drawn(&mut self, bucket: Bucket, id: i64, message: &Message<'_>) {
        self.insert(bucket, id, message, Ring::Bucket);
    }
}

/// One relay of the world, of which only the store is used. In a world without chance no call takes time, so each runs from
/// its beginning to its end.
struct Actor {
    world: Rc<RefCell<World>>,
    contents: Rc<RefCell<BTreeMap<(Bucket, i64), Batch>>>,
    me: usize,
}

impl Actor {
    fn sit<T>(&self, call: impl FnOnce(&mut Seat<'_>) -> T) -> T {
        let life =
            ScopedCoroutine::new(|yielder, ()| call(&mut Seat { yielder, world: Rc::clone(&self.world), me: self.me }));
        life.scope(|mut life| match life.as_mut().resume(()) {
            CoroutineResult::Return(answer) => answer,
            CoroutineResult::Yield(()) => panic!("nothing hinders this call"),
        })
    }
}

impl Store for Actor {
    fn acquire(&mut self, round: Round<'_>) -> Result<Acquired, StoreError> {
        self.sit(|seat| seat.acquire(round))
    }

    fn pending(&mut self, buckets: &[Bucket]) -> Result<Vec<Bucket>, StoreError> {
        self.sit(|seat| seat.pending(buckets))
    }

    fn fetch(&mut self, bucket: Bucket, after: i64, limits: Limits, batch: &mut Batch) -> Result<bool, StoreError> {
        let mut fetched = Batch::default();
        let more = self.sit(|seat| seat.fetch(bucket, after, limits, &mut fetched))?;
        let contents = self.contents.borrow();
        for (id, handle) in fetched.handles(fetched.len()) {
            batch.push(&Message { handle, ..contents[&(bucket, id)].message(0) });
        }
        Ok(more)
    }

    fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<Removed>, StoreError> {
        self.sit(|seat| seat.acknowledge(acknowledged))
    }

    fn renewal(&mut self) -> Option<&mut dyn Renewal> {
        Some(self)
    }

    fn ownership(&mut self) -> Option<&mut dyn Ownership> {
        Some(self)
    }

    fn failure_notes(&mut self) -> Option<&mut dyn FailureNotes> {
        Some(self)
    }
}

impl Renewal for Actor {
    fn renew(&mut self, leases: &[Lease], duration: Duration) -> Result<bool, StoreError> {
        self.sit(|seat| seat.renew(leases, duration))
    }

    fn hand_back(&mut self, leases: &[Lease]) -> Result<(), StoreError> {
        self.sit(|seat| seat.hand_back(leases))
    }
}

impl Ownership for Actor {
    fn release(&mut self, previous: &BTreeSet<Bucket>) -> Result<(), StoreError> {
        self.sit(|seat| seat.release(previous))
    }
}

impl FailureNotes for Actor {
    fn note_failures(&mut self, notes: &[FailureNote]) -> Result<(), StoreError> {
        self.sit(|seat| seat.note_failures(notes))
    }

    fn failures(&mut self, buckets: &[Bucket]) -> Result<Vec<Failure>, StoreError> {
        self.sit(|seat| seat.failures(buckets))
    }
}
