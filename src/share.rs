//! How many buckets are mine.
//!
//! Reason: with the plain ceiling of N/R, incumbents that hold exactly the ceiling never hand anything back and a joiner
//! starves for ever. And shares by id alone would move buckets at every scale-out, for a newcomer whose id sorts early.
//!
//! Rule: everybody gets floor(N/R); the remainder goes first to relays that hold more than the floor, then
//! to the others, both in the order of their ids' bytes. Shares differ by at most one and do not change while any relay
//! moves towards its share. `assign` is an order for probing, never ownership: the guarded UPDATE is the only authority.

use std::collections::{BTreeMap, BTreeSet};

use crate::broken::{Rule, broken};

/// How many unexpired leases name each relay. A relay that is absent holds none.
pub type Held<'a> = BTreeMap<&'a str, u32>;

/// The shares of all relays in the order of their ids. Ids of `held` that are not active count for nothing.
#[must_use]
pub fn compute_all<'a>(bucket_count: u32, active: &BTreeSet<&'a str>, held: &Held<'_>) -> Vec<(&'a str, u32)> {
    let relays = active.len() as u32;
    if relays == 0 {
        return Vec::new();
    }
    let (floor, mut remainder) = if broken(Rule::FairShare) {
        (bucket_count.div_ceil(relays), 0)
    } else {
        (bucket_count / relays, bucket_count % relays)
    };
    let mut shares: Vec<_> = active.iter().map(|id| (*id, floor)).collect();
    for (id, share) in &mut shares {
        if remainder > 0 && held.get(id).copied().unwrap_or(0) > floor {
            *share += 1;
            remainder -= 1;
        }
    }
    for (_, share) in &mut shares {
        if remainder > 0 && *share == floor {
            *share += 1;
            remainder -= 1;
        }
    }
    shares
}

/// The share of `me`, which counts as active whether listed or not.
#[must_use]
pub fn compute<'a>(bucket_count: u32, active: &BTreeSet<&'a str>, held: &Held<'_>, me: &'a str) -> u32 {
    share_of(&shares_with(bucket_count, active, held, me), me)
}

/// The contiguous range of buckets that `me` probes first: the shares of all relays laid end to end.
#[must_use]
pub fn assign<'a>(bucket_count: u32, active: &BTreeSet<&'a str>, held: &Held<'_>, me: &'a str) -> std::ops::Range<u32> {
    let shares = shares_with(bucket_count, active, held, me);
    let start = shares.iter().take_while(|(id, _)| *id < me).map(|(_, share)| share).sum();
    start..start + share_of(&shares, me)
}

/// How many relays without a share come before `me`, or `None` when `me` has a share.
#[must_use]
pub fn standby_rank<'a>(bucket_count: u32, active: &BTreeSet<&'a str>, held: &Held<'_>, me: &'a str) -> Option<u32> {
    standby_rank_in(&shares_with(bucket_count, active, held, me), me)
}

/// As [`standby_rank`], from shares that were computed already.
pub(crate) fn standby_rank_in(shares: &[(&str, u32)], me: &str) -> Option<u32> {
    if share_of(shares, me) > 0 {
        return None;
    }
    Some(shares.iter().take_while(|(id, _)| *id < me).filter(|(_, share)| *share == 0).count() as u32)
}

fn shares_with<'a>(bucket_count: u32, active: &BTreeSet<&'a str>, held: &Held<'_>, me: &'a str) -> Vec<(&'a str, u32)> {
    let mut all = active.clone();
    all.insert(me);
    compute_all(bucket_count, &all, held)
}

fn share_of(shares: &[(&str, u32)], me: &str) -> u32 {
    shares.iter().find(|(id, _)| *id == me).map_or(0, |(_, share)| *share)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row of the table: buckets, active ids, held leases, expected shares, expected standbys with their rank.
    type Row<'a> = (u32, &'a str, &'a str, &'a str, &'a str);

    const TABLE: [Row<'static>; 33] = [
        (1, "a", "", "a=1", ""),
        (8, "a", "", "a=8", ""),
        (8, "a b", "", "a=4 b=4", ""),
        (8, "c a b", "", "a=3 b=3 c=2", ""),
        (8, "a b c d e", "", "a=2 b=2 c=2 d=1 e=1", ""),
        (8, "a b c d e f g h", "", "a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1", ""),
        (7, "a b c d", "", "a=2 b=2 c=2 d=1", ""),
        (3, "a b c d e", "", "a=1 b=1 c=1 d=0 e=0", "d=0 e=1"),
        (4, "a c b", "", "a=2 b=1 c=1", ""),
        (2, "a b c", "", "a=1 b=1 c=0", "c=0"),
        (1, "a b c", "", "a=1 b=0 c=0", "b=0 c=1"),
        (16, "a b c d e", "", "a=4 b=3 c=3 d=3 e=3", ""),
        (8, "B a A b", "", "A=2 B=2 a=2 b=2", ""),
        (3, "r10 r2 r1", "", "r1=1 r10=1 r2=1", ""),
        (2, "a b x y", "x=1 y=1", "a=0 b=0 x=1 y=1", "a=0 b=1"),
        (2, "a b y", "y=1", "a=1 b=0 y=1", "b=0"),
        (10, "a b c d", "a=2 b=0 c=3 d=5", "a=2 b=2 c=3 d=3", ""),
        (2, "a m b n c", "m=1 n=1", "a=0 b=0 c=0 m=1 n=1", "a=0 b=1 c=2"),
        (8, "a m b n c", "m=1 n=1", "a=2 b=2 c=2 m=1 n=1", ""),
        (8, "m b", "m=8", "b=4 m=4", ""),
        (8, "a b c", "a=4 b=4", "a=3 b=3 c=2", ""),
        (8, "a b c", "b=4 c=4", "a=2 b=3 c=3", ""),
        (8, "a b c", "a=2 b=3 c=3", "a=2 b=3 c=3", ""),
        (4, "a b c", "a=2 b=2", "a=2 b=1 c=1", ""),
        (4, "a b c", "b=2 c=2", "a=1 b=2 c=1", ""),
        (8, "a b c d e", "b=2 c=2 d=2 e=2", "a=1 b=2 c=2 d=2 e=1", ""),
        (8, "a b c d e f", "b=2 c=2 d=2 e=1 f=1", "a=1 b=2 c=2 d=1 e=1 f=1", ""),
        (4, "m n o p q a", "m=1 n=1 o=1 p=1", "a=0 m=1 n=1 o=1 p=1 q=0", "a=0 q=1"),
        (4, "m n p q a", "m=1 n=1 p=1", "a=1 m=1 n=1 p=1 q=0", "q=0"),
        (2, "a b c", "c=2", "a=1 b=0 c=1", "b=0"),
        (16, "a c d", "a=4 c=4 d=4", "a=6 c=5 d=5", ""),
        (8, "a b c", "ghost=8", "a=3 b=3 c=2", ""),
        (5, "a b", "b=3", "a=2 b=3", ""),
    ];

    fn pairs(text: &str) -> Vec<(&str, u32)> {
        text.split_whitespace()
            .map(|pair| pair.split_once('=').expect("id=number"))
            .map(|(id, number)| (id, number.parse().expect("a number")))
            .collect()
    }

    #[test]
    fn shares_follow_holdings() {
        for (n, active, held, expected, standbys) in TABLE {
            let active: BTreeSet<_> = active.split_whitespace().collect();
            let held: Held<'_> = pairs(held).into_iter().collect();
            assert_eq!(compute_all(n, &active, &held), pairs(expected), "{n} buckets, {active:?} holding {held:?}");
            let mut start = 0;
            for (id, share) in pairs(expected) {
                assert_eq!(compute(n, &active, &held, id), share);
                assert_eq!(assign(n, &active, &held, id), start..start + share);
                start += share;
                let rank = pairs(standbys).into_iter().find(|(standby, _)| *standby == id).map(|(_, rank)| rank);
                assert_eq!(standby_rank(n, &active, &held, id), rank, "standby rank of {id}");
            }
            assert_eq!(start, n);
        }
    }

    #[test]
    fn the_caller_counts_though_not_listed() {
        let active = BTreeSet::from(["a", "c"]);
        assert_eq!(compute(4, &active, &Held::new(), "b"), 1);
        assert_eq!(assign(4, &active, &Held::new(), "b"), 2..3);
    }

    #[test]
    fn without_relays_or_buckets_there_are_no_shares() {
        assert_eq!(compute_all(8, &BTreeSet::new(), &Held::new()), []);
        assert_eq!(compute_all(0, &BTreeSet::from(["a", "b"]), &Held::new()), [("a", 0), ("b", 0)]);
        assert_eq!(compute(8, &BTreeSet::new(), &Held::new(), "a"), 8);
    }

    #[test]
    fn shares_sum_to_the_buckets_and_differ_by_one() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let (n, active, held) = random_fleet(&mut random);
            let shares = compute_all(n, &active, &held);
            let shares: Vec<_> = shares.into_iter().map(|(_, share)| share).collect();
            assert_eq!(shares.iter().sum::<u32>(), n);
            assert!(shares.iter().max().expect("a relay") - shares.iter().min().expect("a relay") <= 1);
        }
    }

    #[test]
    fn shares_stay_put_while_relays_move_towards_them() {
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..2000 {
            let (n, active, mut held) = random_fleet(&mut random);
            let before = compute_all(n, &active, &held);
            for (id, share) in &before {
                let holding = held.entry(id).or_insert(0);
                *holding = if *holding < *share { *holding + 1 } else { holding.saturating_sub(1).max(*share) };
                assert_eq!(compute_all(n, &active, &held), before);
            }
        }
    }

    const IDS: [&str; 11] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"];

    fn random_fleet(random: &mut fastrand::Rng) -> (u32, BTreeSet<&'static str>, Held<'static>) {
        let n = random.u32(1..40);
        let active: BTreeSet<_> = IDS[..random.usize(1..=IDS.len())].iter().copied().collect();
        let mut held = Held::new();
        for _ in 0..n {
            if random.bool() {
                let ids: Vec<_> = active.iter().copied().collect();
                *held.entry(ids[random.usize(..ids.len())]).or_insert(0) += 1;
            }
        }
        (n, active, held)
    }
}
