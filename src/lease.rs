//! Who may publish a bucket: how old a lease is, and what to keep, hand back and claim.
//!
//! Reason for the age: a relay that was slow must find out by itself, so the age counts from *before* the call that took
//! the leases, and a slow call ages them. Reason for the plan: relays that see the same rows plan disjoint claims, so
//! nobody's guarded UPDATE is refused in a settled fleet.
//!
//! Rule for the plan: keep own leases inside the own range first, then the others from the
//! lowest bucket, up to the share; hand back the rest. Free buckets are dealt in two passes: every relay takes those of its
//! own range, then the rest goes upwards to relays still short, in the order of their ids. Only the own part is carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::broken::{Rule, broken};
use crate::bucket::Bucket;
use crate::clock::Time;
use crate::share::{self, Held};

/// The right to publish one bucket, as the table names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// The bucket.
    pub bucket: Bucket,
    /// Grows by one at every change of owner; every statement of the owner names it.
    pub token: i64,
}

/// How long leases last and how often they are renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// A lease not renewed for this long may be claimed by anyone.
    pub duration: Duration,
    /// Leases are renewed and the fair share is looked at this often.
    pub renew_interval: Duration,
}

impl LeaseTimes {
    /// Whether leases confirmed at `confirmed` can no longer be relied on at `now`.
    #[must_use]
    pub fn expired(&self, confirmed: Time, now: Time) -> bool {
        now.since(confirmed) >= self.duration
    }

    /// When to renew leases confirmed at `confirmed`: at the interval, but never later than half of what the lease lasts.
    #[must_use]
    pub fn renewal_due(&self, confirmed: Time) -> Time {
        confirmed + self.renew_interval.min(self.duration / 2)
    }

    /// When to look at the fair share again after a round that began at `begun`.
    #[must_use]
    pub fn rebalance_due(&self, begun: Time) -> Time {
        begun + self.renew_interval
    }

    /// The same for a standby so far back that it need only stay counted: it skips rounds as long as the next comes within
    /// three quarters of the time for which peers count it.
    #[must_use]
    pub fn standby_due(&self, begun: Time) -> Time {
        let rounds = (self.duration * 3 / 4).as_nanos() / self.renew_interval.as_nanos().max(1);
        begun + self.renew_interval * u32::try_from(rounds).unwrap_or(u32::MAX).max(1)
    }

    /// Until when a publish that may take `budget` may begin, under leases confirmed at `confirmed` that nobody renews
    /// meanwhile: one interval is left for the acquisition that follows it.
    #[must_use]
    pub fn publish_until(&self, confirmed: Time, budget: Duration) -> Time {
        confirmed + self.duration.saturating_sub(budget).saturating_sub(self.renew_interval)
    }
}

/// A row of the lease table as one round sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRow {
    /// The bucket.
    pub bucket: Bucket,
    /// The relay it names.
    pub relay_id: Option<String>,
    /// Whether it has not expired on the database's clock.
    pub unexpired: bool,
}

/// What one relay does with its leases in one round.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Own leases to renew.
    pub keep: Vec<Bucket>,
    /// Own leases above the share.
    pub hand_back: Vec<Bucket>,
    /// Free buckets to claim.
    pub claim: Vec<Bucket>,
    /// Whether the relay holds nothing and waits further back than one standby a bucket: those in front are handed what
    /// gets free, so it may skip rounds.
    pub distant: bool,
}

/// The plan of `me`, from the lease rows of buckets 0 to `bucket_count` less one and the ids of the active relays.
#[must_use]
pub fn plan<'a>(bucket_count: u32, rows: &'a [LeaseRow], active: &BTreeSet<&'a str>, me: &'a str) -> Plan {
    let mut active = active.clone();
    active.insert(me);

    // An own lease counts though expired while it still names us; a peer's counts only while it lasts.
    let mut mine = Vec::new();
    let mut free = BTreeSet::new();
    let mut held = Held::new();
    for row in rows.iter().filter(|row| row.bucket < bucket_count) {
        match row.relay_id.as_deref() {
            Some(owner) if owner == me => mine.push(row.bucket),
            Some(owner) if row.unexpired || broken(Rule::ExpiredLeasesAreFree) => *held.entry(owner).or_insert(0) += 1,
            _ => {
                free.insert(row.bucket);
            }
        }
    }
    mine.sort_unstable();
    held.insert(me, mine.len() as u32);

    let shares = share::compute_all(bucket_count, &active, &held);
    let mut ranges = BTreeMap::new();
    let mut start = 0;
    for (id, share) in &shares {
        ranges.insert(*id, start..start + share);
        start += share;
    }

    let my_share = ranges[me].len();
    let distant = mine.is_empty() && share::standby_rank_in(&shares, me).is_some_and(|rank| rank >= bucket_count);
    mine.sort_by_key(|bucket| (!ranges[me].contains(bucket), *bucket));
    let hand_back = mine.split_off(my_share.min(mine.len()));
    let mut keep = mine;
    keep.sort_unstable();

    let mut claim = Vec::new();
    let mut deficits: BTreeMap<_, _> =
        shares.iter().map(|(id, share)| (*id, share.saturating_sub(held.get(id).copied().unwrap_or(0)))).collect();
    let mut deal = |id: &str, bucket: Bucket, deficit: &mut u32| {
        *deficit -= 1;
        if id == me {
            claim.push(bucket);
        }
    };
    for (id, deficit) in &mut deficits {
        let own: Vec<_> = free.range(ranges[id].clone()).copied().take(*deficit as usize).collect();
        for bucket in own {
            free.remove(&bucket);
            deal(id, bucket, deficit);
        }
    }
    for bucket in free {
        if let Some((id, deficit)) = deficits.iter_mut().find(|(_, deficit)| **deficit > 0) {
            deal(id, bucket, deficit);
        }
    }
    if broken(Rule::ClaimOnlyTheShare) {
        claim = rows.iter().filter(|row| row.bucket < bucket_count && !row.unexpired).map(|row| row.bucket).collect();
    }
    claim.sort_unstable();
    Plan { keep, hand_back, claim, distant }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Duration = Duration::from_secs(30);
    const I: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Time {
        Time::since_zero(Duration::from_secs(seconds))
    }

    /// Rows from text such as `a:0-3 b:4,5 dead:7!`, where ! marks expired leases; buckets not named are free.
    fn rows(n: u32, text: &str) -> Vec<LeaseRow> {
        let mut rows: Vec<_> = (0..n).map(|bucket| LeaseRow { bucket, relay_id: None, unexpired: false }).collect();
        for part in text.split_whitespace() {
            let (id, buckets) = part.split_once(':').expect("id:buckets");
            for range in buckets.split(',') {
                let unexpired = !range.ends_with('!');
                let range = range.trim_end_matches('!');
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                for bucket in from.parse::<u32>().expect("bucket")..=to.parse().expect("bucket") {
                    rows[bucket as usize] = LeaseRow { bucket, relay_id: Some(id.to_owned()), unexpired };
                }
            }
        }
        rows
    }

    fn plan_of(n: u32, leases: &str, active: &str, me: &str) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let plan = plan(n, &rows(n, leases), &active.split_whitespace().collect(), me);
        (plan.keep, plan.hand_back, plan.claim)
    }

    #[test]
    fn plans_are_those_of_the_table() {
        assert_eq!(plan_of(8, "a:0-3 b:4-7", "a b", "a"), (vec![0, 1, 2, 3], vec![], vec![]));
        assert_eq!(plan_of(8, "m:0-7", "m b", "m"), (vec![4, 5, 6, 7], vec![0, 1, 2, 3], vec![]));
        assert_eq!(plan_of(8, "a:0-2,7 b:4-6", "a b", "a"), (vec![0, 1, 2, 7], vec![], vec![]));
        assert_eq!(plan_of(8, "a:0-3", "a b", "b"), (vec![], vec![], vec![4, 5, 6, 7]));
        let three = "a:0-3 c:8-11 d:12-15";
        assert_eq!(plan_of(16, three, "a c d", "a").2, vec![4, 5]);
        assert_eq!(plan_of(16, three, "a c d", "c").2, vec![6]);
        assert_eq!(plan_of(16, three, "a c d", "d").2, vec![7]);
        let expired = "a:0!,1! b:2 dead:3!";
        assert_eq!(plan_of(4, expired, "a b", "a"), (vec![0, 1], vec![], vec![]));
        assert_eq!(plan_of(4, expired, "a b", "b"), (vec![2], vec![], vec![3]));
        assert_eq!(plan_of(4, "gone:0-3", "a", "a"), (vec![], vec![], vec![]));
        assert_eq!(plan_of(2, "c:0,1", "a b c", "c"), (vec![1], vec![0], vec![]));
        assert_eq!(plan_of(2, "c:1", "a b c", "a").2, vec![0]);
        assert_eq!(plan_of(2, "c:1", "a b c", "b").2, Vec::<u32>::new());
        assert_eq!(plan_of(8, "a:0-3", "a", "b").2, vec![4, 5, 6, 7]);
    }

    #[test]
    fn rows_of_a_larger_bucket_count_are_ignored() {
        assert_eq!(plan_of(12, "x:8-11", "a", "a").2, (0..8).collect::<Vec<_>>());
        let all = rows(12, "a:8-11");
        assert_eq!(plan(4, &all, &BTreeSet::from(["a"]), "a").claim, [0, 1, 2, 3]);
    }

    #[test]
    fn no_two_relays_plan_the_same_write() {
        let mut random = fastrand::Rng::with_seed(3);
        let ids = ["a", "b", "c", "d", "e", "f", "gone"];
        for _ in 0..2000 {
            let n = random.u32(1..20);
            let active: BTreeSet<_> = ids[..random.usize(1..ids.len())].iter().copied().collect();
            let rows: Vec<_> = (0..n)
                .map(|bucket| LeaseRow {
                    bucket,
                    relay_id: random.bool().then(|| ids[random.usize(..ids.len())].to_owned()),
                    // An expired lease of a live relay is planned by itself and by its peers: the guard decides there.
                    unexpired: true,
                })
                .collect();
            let mut claimed = BTreeSet::new();
            for me in &active {
                let plan = plan(n, &rows, &active, me);
                let mine: BTreeSet<_> =
                    rows.iter().filter(|row| row.relay_id.as_deref() == Some(me)).map(|row| row.bucket).collect();
                let kept: BTreeSet<_> = plan.keep.iter().chain(&plan.hand_back).copied().collect();
                assert_eq!(kept, mine);
                let held = rows.iter().filter_map(|row| row.relay_id.as_deref()).fold(Held::new(), |mut held, id| {
                    *held.entry(id).or_insert(0) += 1;
                    held
                });
                let share = share::compute(n, &active, &held, me) as usize;
                assert!(plan.keep.len() + plan.claim.len() <= share, "{plan:?} of {share}");
                assert_eq!(plan.hand_back.len(), mine.len().saturating_sub(share), "nothing is swapped");
                for bucket in plan.claim {
                    assert!(rows[bucket as usize].relay_id.is_none());
                    assert!(claimed.insert(bucket), "two relays claim {bucket}");
                }
            }
        }
    }

    #[test]
    fn a_fleet_settles_in_three_rounds_and_then_writes_nothing() {
        let mut random = fastrand::Rng::with_seed(5);
        let ids = ["a", "b", "c", "d", "e"];
        for _ in 0..200 {
            let n = random.u32(1..30);
            let active: BTreeSet<_> = ids[..random.usize(1..=ids.len())].iter().copied().collect();
            let held: Vec<_> = active.iter().copied().collect();
            let mut rows: Vec<_> = (0..n)
                .map(|bucket| LeaseRow {
                    bucket,
                    relay_id: random.bool().then(|| held[random.usize(..held.len())].to_owned()),
                    unexpired: true,
                })
                .collect();
            let mut writes = 0;
            for _round in 0..4 {
                writes = 0;
                for me in &active {
                    let plan = plan(n, &rows, &active, me);
                    writes += plan.hand_back.len() + plan.claim.len();
                    for bucket in plan.hand_back {
                        rows[bucket as usize].relay_id = None;
                    }
                    for bucket in plan.claim {
                        rows[bucket as usize].relay_id = Some((*me).to_owned());
                    }
                }
            }
            assert_eq!(writes, 0, "{n} buckets, {active:?}");
            let mut held = Held::new();
            for row in &rows {
                *held.entry(row.relay_id.as_deref().expect("every bucket has an owner")).or_insert(0) += 1;
            }
            for (id, share) in share::compute_all(n, &active, &held) {
                assert_eq!(held.get(id).copied().unwrap_or(0), share);
            }
        }
    }

    /// Relays that see old rows and know only some of each other, as when heartbeats and leases of several hosts are read at
    /// different times. Only the guard of the write, that the bucket is free, keeps them apart.
    #[test]
    fn relays_that_disagree_settle_without_a_refused_write_once_they_agree() {
        let mut random = fastrand::Rng::with_seed(7);
        let ids = ["a", "b", "c", "d", "e"];
        let mut refused_while_they_disagreed = 0;
        for _ in 0..200 {
            let n = random.u32(1..20);
            let active: BTreeSet<_> = ids[..random.usize(2..=ids.len())].iter().copied().collect();
            let mut rows = rows(n, "");
            let mut old = rows.clone();
            for round in 0..12 {
                let agree = round >= 6;
                let (mut writes, mut refused) = (0, 0);
                for me in &active {
                    let seen: BTreeSet<_> = active.iter().copied().filter(|_| agree || random.bool()).collect();
                    // What a relay holds it knows; what others hold it may have read long ago.
                    let mut stale: Vec<_> = rows.clone();
                    for (row, old) in stale.iter_mut().zip(&old) {
                        if !agree && row.relay_id.as_deref() != Some(me) && old.relay_id.as_deref() != Some(me) {
                            row.relay_id.clone_from(&old.relay_id);
                        }
                    }
                    let plan = plan(n, &stale, &seen, me);
                    for bucket in plan.hand_back {
                        assert_eq!(rows[bucket as usize].relay_id.as_deref(), Some(*me));
                        rows[bucket as usize].relay_id = None;
                        writes += 1;
                    }
                    for bucket in plan.claim {
                        let row = &mut rows[bucket as usize];
                        row.unexpired = true;
                        writes += 1;
                        match &row.relay_id {
                            Some(_) => refused += 1,
                            None => row.relay_id = Some((*me).to_owned()),
                        }
                    }
                    if random.bool() {
                        old = rows.clone();
                    }
                }
                if !agree {
                    refused_while_they_disagreed += refused;
                    continue;
                }
                assert_eq!(refused, 0, "{n} buckets, {active:?}, round {round}");
                assert!(round < 9 || writes == 0, "{n} buckets, {active:?} do not settle");
            }
            assert!(rows.iter().all(|row| row.relay_id.is_some()));
        }
        assert!(refused_while_they_disagreed > 100, "they did disagree: {refused_while_they_disagreed}");
    }

    #[test]
    fn a_standby_further_back_than_the_buckets_may_rest() {
        let distant =
            |n, leases: &str, active: &str, me| plan(n, &rows(n, leases), &active.split(' ').collect(), me).distant;
        assert!(!distant(1, "a:0", "a b c", "a"));
        assert!(!distant(1, "a:0", "a b c", "b"), "next in line");
        assert!(distant(1, "a:0", "a b c", "c"));
        assert!(!distant(2, "a:0,1", "a b c d", "d"), "c and d are one standby a bucket");
        assert!(distant(1, "a:0", "a b", "z"), "not listed yet, but counted");
        let gone = plan(1, &rows(1, "z:0"), &BTreeSet::from(["a", "b", "c"]), "z");
        assert!(!gone.distant, "it holds a bucket");
    }

    #[test]
    fn a_resting_standby_skips_rounds_but_stays_counted() {
        let due = |duration: u64, interval: u64| {
            let [duration, renew_interval] = [duration, interval].map(Duration::from_secs);
            LeaseTimes { duration, renew_interval }.standby_due(at(100))
        };
        assert_eq!(due(30, 10), at(120), "20 s are below three quarters of 30 s, 30 s are not");
        assert_eq!(due(12, 10), at(110), "never less than a round");
        assert_eq!(due(60, 10), at(140));
    }

    #[test]
    fn without_renewal_a_publish_begins_only_early_in_a_lease() {
        let times = LeaseTimes { duration: D, renew_interval: I };
        assert_eq!(times.publish_until(at(5), Duration::from_secs(12)), at(13));
        assert_eq!(times.publish_until(at(5), Duration::from_secs(60)), at(5));
    }

    #[test]
    fn a_lease_expires_at_its_duration() {
        let times = LeaseTimes { duration: D, renew_interval: I };
        assert!(!times.expired(at(5), at(34)));
        assert!(times.expired(at(5), at(35)));
        assert!(!times.expired(at(5), at(1)), "a clock behind the lease does not expire it");
    }

    #[test]
    fn renewal_is_never_later_than_half_of_the_lease() {
        let times = LeaseTimes { duration: D, renew_interval: I };
        assert_eq!(times.renewal_due(at(0)), at(10));
        let times = LeaseTimes { duration: Duration::from_secs(12), renew_interval: I };
        assert_eq!(times.renewal_due(at(0)), at(6));
        assert_eq!(times.rebalance_due(at(0)), at(10));
    }
}
