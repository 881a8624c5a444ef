//! Relays on one storage, driven by a rule, and the first law of leases checked at every step: one owner a bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::StoreFixture;
use crate::bucket::Bucket;
use crate::conformance::{Outcome, Unmet, ensure};
use crate::lease::Lease;
use crate::message::{Batch, Message};
use crate::relay::ports::{
    Acknowledged, Acquired, FailureNotes, Limits, Ownership, Removed, Renewal, Round, Store, StoreError,
};

/// Limits that no rule reaches by chance.
pub(super) const AMPLE: Limits = Limits { rows: 1000, bytes: 1 << 20 };

pub(super) struct Fleet<'f> {
    pub fixture: &'f mut dyn StoreFixture,
    /// How long a lease lasts.
    pub duration: Duration,
    /// Time that has passed since the beginning.
    now: Duration,
    relays: BTreeMap<String, Member>,
}

struct Member {
    store: Box<dyn Store>,
    /// What the store has said of it last, and until when that counts.
    leases: BTreeMap<Bucket, i64>,
    until: Duration,
}

impl<'f> Fleet<'f> {
    pub fn new(fixture: &'f mut dyn StoreFixture) -> Self {
        let duration = fixture.lease_duration();
        Self { fixture, duration, now: Duration::ZERO, relays: BTreeMap::new() }
    }

    pub fn bucket_count(&self) -> u32 {
        self.fixture.bucket_count()
    }

    pub fn all_buckets(&self) -> BTreeSet<Bucket> {
        (0..self.bucket_count()).collect()
    }

    /// Lets a part of the lease duration pass.
    pub fn pass(&mut self, lease_durations: f64) {
        let time = self.duration.mul_f64(lease_durations);
        self.fixture.pass(time);
        self.now += time;
    }

    fn member(&mut self, relay: &str) -> &mut Member {
        let fixture = &mut *self.fixture;
        self.relays.entry(relay.to_owned()).or_insert_with(|| Member {
            store: fixture.open(relay),
            leases: BTreeMap::new(),
            until: Duration::ZERO,
        })
    }

    pub fn store(&mut self, relay: &str) -> &mut dyn Store {
        &mut *self.member(relay).store
    }

    /// The leases of a relay by the latest answer it got.
    pub fn leases(&self, relay: &str) -> Vec<Lease> {
        let leases = self.relays.get(relay).map(|member| &member.leases);
        leases.into_iter().flatten().map(|(bucket, token)| Lease { bucket: *bucket, token: *token }).collect()
    }

    /// The buckets of a relay by the latest answer it got.
    pub fn buckets(&self, relay: &str) -> BTreeSet<Bucket> {
        self.leases(relay).iter().map(|lease| lease.bucket).collect()
    }

    /// One round of a relay that has nothing on its way.
    pub fn acquire(&mut self, relay: &str) -> Result<Acquired, Unmet> {
        self.acquire_with(relay, self.duration, &BTreeSet::new())
    }

    /// One round, asking for leases of this duration.
    pub fn acquire_with(
        &mut self,
        relay: &str,
        lease_duration: Duration,
        busy: &BTreeSet<Bucket>,
    ) -> Result<Acquired, Unmet> {
        let previous = self.buckets(relay);
        self.acquire_from(relay, Round { lease_duration, previous: &previous, busy })
    }

    /// One round as it is.
    pub fn acquire_from(&mut self, relay: &str, round: Round<'_>) -> Result<Acquired, Unmet> {
        let now = self.now;
        let lasts = self.member(relay).until.max(now + round.lease_duration);
        let acquired = self.store(relay).acquire(round).map_err(|error| failed("acquire", &error))?;
        self.require_sound(relay, &acquired)?;
        let member = self.member(relay);
        member.leases = acquired.leases.iter().map(|lease| (lease.bucket, lease.token)).collect();
        member.until = lasts;
        Ok(acquired)
    }

    /// An answer names each bucket once, only buckets that exist, and none that another relay still relies on.
    fn require_sound(&self, relay: &str, acquired: &Acquired) -> Outcome {
        let buckets: BTreeSet<Bucket> = acquired.leases.iter().map(|lease| lease.bucket).collect();
        ensure!(buckets.len() == acquired.leases.len(), "{relay} got a bucket twice: {:?}", acquired.leases);
        ensure!(buckets.is_subset(&self.all_buckets()), "{relay} got a bucket that does not exist: {buckets:?}");
        ensure!(
            acquired.leaving.is_subset(&buckets),
            "{relay} is to hand back {:?}, but has {buckets:?}",
            acquired.leaving
        );
        for (peer, member) in self.relays.iter().filter(|(peer, member)| *peer != relay && member.until > self.now) {
            let both: Vec<_> = member.leases.keys().filter(|bucket| buckets.contains(bucket)).collect();
            ensure!(both.is_empty(), "{relay} got {both:?}, which {peer} still holds");
        }
        Ok(())
    }

    /// Every relay has this many rounds, a third of a lease duration apart, one after the other.
    pub fn settle(&mut self, relays: &[&str], rounds: u32) -> Outcome {
        for round in 0..rounds {
            if round > 0 {
                self.pass(1.0 / 3.0);
            }
            for relay in relays {
                self.acquire(relay)?;
            }
        }
        Ok(())
    }

    /// The relay has stopped in order: what it held counts no longer.
    pub fn release(&mut self, relay: &str, hint: &BTreeSet<Bucket>) -> Outcome {
        self.ownership(relay)?.release(hint).map_err(|error| failed("release", &error))?;
        self.member(relay).until = Duration::ZERO;
        Ok(())
    }

    /// Renews leases for this long. What is confirmed to the relay counts for the check of the fleet.
    pub fn renew(&mut self, relay: &str, leases: &[Lease], duration: Duration) -> Result<bool, Unmet> {
        let renewed = self.renewal(relay)?.renew(leases, duration).map_err(|error| failed("renew", &error))?;
        let until = self.now + duration;
        let member = self.member(relay);
        if renewed && !leases.is_empty() {
            member.until = member.until.max(until);
        }
        Ok(renewed)
    }

    /// Hands leases back.
    pub fn hand_back(&mut self, relay: &str, leases: &[Lease]) -> Outcome {
        self.renewal(relay)?.hand_back(leases).map_err(|error| failed("hand_back", &error))?;
        let member = self.member(relay);
        member.leases.retain(|bucket, token| !leases.contains(&Lease { bucket: *bucket, token: *token }));
        Ok(())
    }

    /// What lies above `after`, and whether there may be more.
    pub fn fetch(&mut self, relay: &str, bucket: Bucket, after: i64, limits: Limits) -> Result<(Batch, bool), Unmet> {
        let mut batch = Batch::default();
        let more = self.fetch_into(relay, bucket, after, limits, &mut batch)?;
        Ok((batch, more))
    }

    /// All that lies above `after`. A batch may end before the limits, and then says that there may be more.
    pub fn read(&mut self, relay: &str, bucket: Bucket, after: i64) -> Result<Batch, Unmet> {
        let (mut batch, mut last) = (Batch::default(), after);
        while self.fetch_into(relay, bucket, last, AMPLE, &mut batch)? {
            let reached = batch.ids(batch.len()).last().filter(|id| *id != last);
            last =
                reached.ok_or_else(|| Unmet::Broken(format!("there may be more above {last}, and nothing comes")))?;
        }
        Ok(batch)
    }

    pub fn fetch_into(
        &mut self,
        relay: &str,
        bucket: Bucket,
        after: i64,
        limits: Limits,
        batch: &mut Batch,
    ) -> Result<bool, Unmet> {
        self.store(relay).fetch(bucket, after, limits, batch).map_err(|error| failed("fetch", &error))
    }

    /// Acknowledges the first `len` messages of a batch of this lease.
    pub fn acknowledge(&mut self, relay: &str, lease: Lease, batch: &Batch, len: usize) -> Result<bool, Unmet> {
        let one = Acknowledged { lease, batch, len, ends_failure: false };
        let removed = self.acknowledge_all(relay, &[one])?;
        Ok(removed[0] == Removed::Gone)
    }

    pub fn acknowledge_all(&mut self, relay: &str, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<Removed>, Unmet> {
        for one in acknowledged {
            ensure!(one.len <= one.batch.len(), "{} messages were expected, {} fetched", one.len, one.batch.len());
        }
        let removed = self.store(relay).acknowledge(acknowledged).map_err(|error| failed("acknowledge", &error))?;
        ensure!(removed.len() == acknowledged.len(), "{} batches, {} answers", acknowledged.len(), removed.len());
        Ok(removed)
    }

    /// The lease of a bucket that the relay holds.
    pub fn lease(&self, relay: &str, bucket: Bucket) -> Result<Lease, Unmet> {
        let lease = self.leases(relay).into_iter().find(|lease| lease.bucket == bucket);
        lease.ok_or_else(|| Unmet::Broken(format!("{relay} has no lease of bucket {bucket}")))
    }

    pub fn renewal(&mut self, relay: &str) -> Result<&mut dyn Renewal, Unmet> {
        self.store(relay).renewal().ok_or(Unmet::Skipped("the store has no renewal"))
    }

    pub fn ownership(&mut self, relay: &str) -> Result<&mut dyn Ownership, Unmet> {
        self.store(relay).ownership().ok_or(Unmet::Skipped("the store has no ownership"))
    }

    pub fn notes(&mut self, relay: &str) -> Result<&mut dyn FailureNotes, Unmet> {
        self.store(relay).failure_notes().ok_or(Unmet::Skipped("the store has no failure notes"))
    }
}

/// No verb of a store that nothing hinders may fail.
pub(super) fn failed(verb: &str, error: &StoreError) -> Unmet {
    Unmet::Broken(format!("{verb} failed: {error}"))
}

/// A message that nothing is special about; the number tells it from others.
pub(super) fn message(number: u8) -> Message<'static> {
    Message {
        id: 0,
        topic: "conformance",
        partition: None,
        key: Some(b"key"),
        value: Some(b"value"),
        headers: None,
        message_id: [number; 16],
        handle: &[],
    }
}

/// That many of them.
pub(super) fn messages(count: u8) -> Vec<Message<'static>> {
    (1..=count).map(message).collect()
}
