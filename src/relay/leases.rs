//! Which buckets are ours, since when, and what becomes of them when they are not any more.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use tracing::{info, warn};

use crate::broken::{Rule, broken};
use crate::bucket::Bucket;
use crate::clock::Time;
use crate::lease::{Lease, LeaseTimes};
use crate::policy::{Policy, Rules};

use super::Relay;
use super::flight::Flight;
use super::lane::Lane;
use super::looks::Looks;
use super::ports::{Acquired, Bell, Clock, Failure, FlightId, Publisher, Round, Store, StoreError};

/// Since when leases are held. The times are from before the call that the store answered.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tenure {
    /// The latest acquisition or renewal that succeeded, and the times that it was made with.
    confirmed: Option<(Time, LeaseTimes)>,
    /// The latest acquisition that succeeded; none forces the next, and until then nothing new is published.
    rebalanced: Option<Time>,
    /// Whether an acquisition was ever tried: its answer may be lost and its effect to be undone.
    tried: bool,
    /// By the latest acquisition the relay stands so far back that it skips rounds.
    distant: bool,
}

impl Tenure {
    /// Nothing new is published until leases are acquired again.
    pub(super) fn suspend(&mut self) {
        self.rebalanced = None;
    }

    /// When the leases end unless they are renewed.
    pub(super) fn expiry(&self) -> Option<Time> {
        self.confirmed.map(|(confirmed, times)| confirmed + times.duration)
    }

    /// When to look at the fair share again; none means at once.
    fn rebalance_due(&self, wanted: &LeaseTimes) -> Option<Time> {
        let begun = self.rebalanced?;
        Some(if self.distant { wanted.standby_due(begun) } else { wanted.rebalance_due(begun) })
    }

    /// A standby that rests has nothing to renew.
    fn renewal_due(&self) -> Option<Time> {
        self.confirmed.filter(|_| !self.distant).map(|(confirmed, times)| times.renewal_due(confirmed))
    }

    /// Until when a publish that takes this long may begin, if nobody renews.
    fn publish_until(&self, budget: Duration) -> Option<Time> {
        self.confirmed.map(|(confirmed, times)| times.publish_until(confirmed, budget))
    }

    fn unexpired(&self, now: Time) -> bool {
        self.confirmed.is_some_and(|(confirmed, times)| !times.expired(confirmed, now))
    }

    /// Whether an acquisition was ever tried, and so is to be undone at the end.
    pub(super) fn tried(&self) -> bool {
        self.tried
    }
}

fn buckets_of(leases: &[Lease]) -> BTreeSet<Bucket> {
    leases.iter().map(|lease| lease.bucket).collect()
}

impl<S: Store, P: Publisher, C: Clock, B: Bell> Relay<S, P, C, B> {
    /// Takes, keeps, renews or gives up leases, whatever is due.
    pub(super) fn hold_leases(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        if self.budget.is_some() {
            if !self.waits_for_quiet() && self.leases_due().is_none_or(|due| due <= now) {
                self.acquire()?;
            }
        } else if self.tenure.rebalance_due(&self.settings.lease).is_none_or(|due| due <= now) {
            self.acquire()?;
        } else if self.tenure.renewal_due().is_some_and(|due| due <= now) {
            self.renew()?;
        }
        self.read_failures()
    }

    /// Peers or an operator have changed something: looks at the fair share and at what is noted of refused rows.
    pub(super) fn look_again(&mut self) {
        self.tenure.suspend();
        self.unread.extend(self.lanes.keys().copied());
        let now = self.clock.now();
        self.called_at = Some(now);
        // The operator's transaction may be what kept rows locked.
        self.flights.values_mut().for_each(|flight| flight.try_again_at(now));
    }

    /// When to acquire or renew; none means at once.
    pub(super) fn leases_due(&self) -> Option<Time> {
        let rebalance = self.tenure.rebalance_due(&self.settings.lease)?;
        let renewal = self.tenure.renewal_due().filter(|_| self.budget.is_none());
        Some(renewal.map_or(rebalance, |renewal| rebalance.min(renewal)))
    }

    /// Whether something on its way has to be answered before leases are acquired again, for nobody renews them meanwhile.
    pub(super) fn waits_for_quiet(&self) -> bool {
        let quiet = self.flights.values().all(|flight| flight.put_off().is_some());
        self.budget.is_some() && !quiet && !broken(Rule::AcquireWhenQuiet)
    }

    /// What ends the wait for quiet if the answers do not come.
    pub(super) fn budget_ends(&self) -> Option<Time> {
        let budget = self.budget?;
        self.unanswered().map(|flight| flight.started + budget).min()
    }

    fn unanswered(&self) -> impl Iterator<Item = &Flight> {
        self.flights.values().filter(|flight| !flight.complete())
    }

    /// A publish that takes longer than was promised breaks the assumption on which leases are relied on.
    pub(super) fn keep_budget(&self) -> Result<(), StoreError> {
        let Some(budget) = self.budget else { return Ok(()) };
        let now = self.clock.now();
        match self.unanswered().find(|flight| now.since(flight.started) >= budget) {
            None => Ok(()),
            Some(flight) => Err(StoreError::Misconfigured(format!(
                "publishing a batch of bucket {} took longer than max_publish_duration ({budget:?})",
                flight.lease.bucket
            ))),
        }
    }

    /// Finds out by itself that leases have ended, whatever else fails.
    pub(super) fn expire_leases(&mut self) {
        let now = self.clock.now();
        let expired = self.tenure.confirmed.is_some_and(|(confirmed, times)| times.expired(confirmed, now));
        if expired && !broken(Rule::LeasesEndByThemselves) {
            self.lose_all("they were not renewed in time");
        }
    }

    /// Whether leases are held and young enough to begin something.
    pub(super) fn may_publish(&self, now: Time) -> bool {
        let young = |budget| self.tenure.publish_until(budget).is_some_and(|until| now < until);
        let in_time = self.budget.is_none_or(young) || broken(Rule::BudgetFits);
        self.tenure.rebalanced.is_some() && self.tenure.unexpired(now) && in_time
    }

    /// Whether the rest of a batch that was begun may be handed over.
    pub(super) fn may_go_on(&self, now: Time) -> bool {
        if self.budget.is_some() { self.tenure.unexpired(now) } else { self.may_publish(now) }
    }

    pub(super) fn acquire(&mut self) -> Result<(), StoreError> {
        let before = self.clock.now();
        self.tenure.tried = true;
        let busy = self.flights.values().filter(|_| !broken(Rule::BusyBucketsAreKept));
        let busy: BTreeSet<Bucket> = busy.map(|flight| flight.lease.bucket).collect();
        let times = self.settings.lease;
        let round = Round { lease_duration: times.duration, previous: &self.previous, busy: &busy };
        let acquired = self.store.acquire(round).inspect_err(|_| self.tenure.suspend())?;
        let before = if broken(Rule::AgeFromBeforeAcquisition) { self.clock.now() } else { before };
        if times.expired(before, self.clock.now()) {
            self.lose_all("acquiring them took longer than they last");
            return Err(StoreError::Retry("acquiring leases took longer than they last".to_owned()));
        }
        let joined = self.tenure.confirmed.replace((before, times)).is_none();
        self.tenure.rebalanced = Some(before);
        self.tenure.distant = acquired.distant;
        if joined || acquired.freed {
            self.bell.call_peers();
        }
        self.adopt(&acquired);
        let now = self.clock.now();
        if !self.lanes.is_empty() && self.budget.is_some() && !self.may_publish(now) {
            return Err(StoreError::Retry(
                "acquiring leases took so long that too little of them is left for max_publish_duration".to_owned(),
            ));
        }
        Ok(())
    }

    pub(super) fn renew(&mut self) -> Result<(), StoreError> {
        let before = self.clock.now();
        let leases: Vec<Lease> = self.lanes.values().map(|lane| lane.lease).collect();
        let times = self.settings.lease;
        let Some(renewal) = self.store.renewal() else { return Ok(()) };
        let renewed = renewal.renew(&leases, times.duration).inspect_err(|_| self.tenure.suspend())?;
        let before = if broken(Rule::AgeFromBeforeRenewal) { self.clock.now() } else { before };
        if !renewed && !broken(Rule::RefusedRenewal) {
            self.lose_all("the renewal was refused");
            return Err(StoreError::Retry("the renewal of leases was refused".to_owned()));
        }
        if !self.tenure.unexpired(self.clock.now()) {
            // Whatever the answer says: what was acknowledged meanwhile was not covered by a lease that we knew of.
            self.lose_all("the renewal was answered after they had ended");
            return Err(StoreError::Retry("the renewal of leases was answered after they had ended".to_owned()));
        }
        self.tenure.confirmed = Some((before, times));
        Ok(())
    }

    /// Takes over what the store says is ours now.
    fn adopt(&mut self, acquired: &Acquired) {
        let held: BTreeMap<Bucket, Lease> = acquired.leases.iter().map(|lease| (lease.bucket, *lease)).collect();
        self.previous = held.keys().copied().collect();
        let gone: Vec<Lease> =
            self.lanes.values().map(|lane| lane.lease).filter(|lease| held.get(&lease.bucket) != Some(lease)).collect();
        for lease in &gone {
            self.lanes.remove(&lease.bucket);
            self.orphan(*lease);
        }
        let gained: BTreeSet<Bucket> = held.keys().copied().filter(|bucket| !self.lanes.contains_key(bucket)).collect();
        if self.lanes.is_empty() {
            self.looks = Looks::new(self.clock.now());
        }
        for bucket in &gained {
            let out = self.flights.iter().filter(|(_, flight)| flight.lease.bucket == *bucket).map(|(id, _)| *id);
            let out = out.filter(|_| !broken(Rule::RegainedBucketWaits)).collect();
            self.lanes.insert(*bucket, Lane::new(held[bucket], out));
        }
        for (bucket, lane) in &mut self.lanes {
            lane.leaving = acquired.leaving.contains(bucket);
        }
        self.unread.extend(gained.iter().copied());
        self.unread.retain(|bucket| held.contains_key(bucket));
        if gone.is_empty() && gained.is_empty() {
            return;
        }
        info!(buckets = self.lanes.len(), gained = gained.len(), handed_back = gone.len(), "leases changed");
        self.bell.stop_listening_for(&buckets_of(&gone));
        self.bell.listen_for(&gained);
    }

    /// Takes over what operators have laid down for topics and what is noted of refused rows, by earlier owners or changed by
    /// an operator. Nothing is started before that.
    fn read_failures(&mut self) -> Result<(), StoreError> {
        if self.unread.is_empty() {
            return Ok(());
        }
        self.read_topic_rules()?;
        let unread: Vec<Bucket> = self.unread.iter().copied().collect();
        if let Some(notes) = self.store.failure_notes() {
            let mut failures: BTreeMap<Bucket, Vec<Failure>> = BTreeMap::new();
            for failure in notes.failures(&unread)? {
                failures.entry(failure.bucket).or_default().push(failure);
            }
            let now = self.clock.now();
            for bucket in unread {
                if let Some(lane) = self.lanes.get_mut(&bucket) {
                    let noted = failures.remove(&bucket).unwrap_or_default();
                    let blocks = |topic: &str| self.rules.of(topic).policy == Policy::Block;
                    lane.take_over(noted, now, blocks);
                }
            }
        }
        self.unread.clear();
        Ok(())
    }

    fn read_topic_rules(&mut self) -> Result<(), StoreError> {
        let Some(rules) = self.store.topic_rules() else { return Ok(()) };
        let before = mem::replace(&mut self.rules, Rules::new(rules.topic_rules()?));
        if !before.paused().is_subset(self.rules.paused()) {
            self.lanes.values_mut().for_each(Lane::rescan);
        }
        Ok(())
    }

    /// Frees the buckets above the share that have become quiet.
    pub(super) fn hand_back(&mut self) -> Result<(), StoreError> {
        let waiting: Vec<FlightId> =
            self.lanes.values().filter(|lane| lane.leaving && lane.flight.is_none()).flat_map(Lane::retrying).collect();
        self.call_back_alone(&waiting);
        let is_quiet = |lane: &Lane| lane.has_landed() || broken(Rule::HandBackWhenQuiet);
        let quiet: Vec<Lease> =
            self.lanes.values().filter(|lane| lane.leaving && is_quiet(lane)).map(|lane| lane.lease).collect();
        if quiet.is_empty() {
            return Ok(());
        }
        let Some(renewal) = self.store.renewal() else { return Ok(()) };
        renewal.hand_back(&quiet)?;
        for lease in &quiet {
            self.lanes.remove(&lease.bucket);
        }
        info!(buckets = self.lanes.len(), gained = 0, handed_back = quiet.len(), "leases changed");
        self.bell.stop_listening_for(&buckets_of(&quiet));
        self.bell.call_peers();
        Ok(())
    }

    pub(super) fn lose(&mut self, lease: Lease, reason: &str) {
        warn!(detail = format!("Bucket {}: {reason}.", lease.bucket), "lost a lease");
        self.lanes.remove(&lease.bucket);
        self.bell.stop_listening_for(&buckets_of(&[lease]));
        self.orphan(lease);
        self.tenure.suspend();
    }

    pub(super) fn lose_all(&mut self, reason: &str) {
        self.tenure.suspend();
        self.tenure.confirmed = None;
        if self.lanes.is_empty() {
            return;
        }
        warn!(detail = format!("Buckets: {}; {reason}.", self.lanes.len()), "lost all leases");
        let lost: Vec<Lease> = mem::take(&mut self.lanes).into_values().map(|lane| lane.lease).collect();
        self.bell.stop_listening_for(&buckets_of(&lost));
        for lease in lost {
            self.orphan(lease);
        }
    }

    /// What is in flight under a lost lease is only waited for; what the client has only queued is called back.
    pub(super) fn orphan(&mut self, lease: Lease) {
        let mut unanswered = false;
        for flight in self.flights.values_mut().filter(|flight| flight.lease == lease && !flight.orphaned) {
            flight.orphaned = true;
            unanswered |= !flight.complete();
        }
        if unanswered {
            self.give_up_queued();
        }
    }
}
