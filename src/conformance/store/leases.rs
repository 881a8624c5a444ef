//! Acquiring: who gets which bucket, for how long, and what it is told.

use std::collections::BTreeSet;

use super::StoreFixture;
use super::fleet::Fleet;
use crate::conformance::{Outcome, Unmet, ensure};
use crate::lease::Lease;
use crate::relay::ports::{Round, StoreError};

/// Somebody has to publish every bucket.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_relay_alone_takes_every_bucket(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    let acquired = fleet.acquire("a")?;
    ensure!(fleet.buckets("a") == fleet.all_buckets(), "it got {:?}", acquired.leases);
    ensure!(!acquired.freed && !acquired.distant, "it freed nothing and waits for nothing, but got {acquired:?}");
    Ok(())
}

/// A relay that joins is served as soon as its peers have seen it.
///
/// # Errors
/// As [`Unmet`] says.
pub fn two_relays_share_within_two_rounds(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "b got {:?} while a held everything", fleet.buckets("b"));
    fleet.pass(1.0 / 3.0);
    fleet.acquire("a")?;
    fleet.acquire("b")?;
    require_fair(&fleet, &["a", "b"])
}

/// Everybody gets the share that everybody computes, so nobody starves and nobody is idle while others are loaded.
///
/// # Errors
/// As [`Unmet`] says.
pub fn shares_differ_by_one_at_most(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    // With five an incumbent may hold what rounds up, and a newcomer nothing, unless shares are dealt out one by one.
    let all = ["c", "a", "d", "b", "e"];
    for joined in 1..=all.len() {
        fleet.settle(&all[..joined], 3)?;
        require_fair(&fleet, &all[..joined])?;
        fleet.pass(1.0 / 3.0);
    }
    Ok(())
}

/// Two publishers of one bucket would mix up the order of its keys. So it is whatever joins, stays away, and comes
/// back.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_bucket_has_one_owner(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    let mut random = fastrand::Rng::with_seed(23);
    for _ in 0..40 {
        let relay = ["a", "b", "c", "d"][random.usize(..4)];
        // The fleet checks every answer.
        fleet.acquire(relay)?;
        fleet.pass(0.27 * random.f64());
    }
    Ok(())
}

/// What moves without need is work thrown away, and a refused write at every round costs for ever.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_settled_fleet_moves_nothing(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    let relays = ["b", "c", "a"];
    fleet.settle(&relays, 4)?;
    let settled: Vec<Vec<Lease>> = relays.iter().map(|relay| fleet.leases(relay)).collect();
    for _ in 0..3 {
        fleet.pass(1.0 / 3.0);
        for (relay, settled) in relays.iter().zip(&settled) {
            let acquired = fleet.acquire(relay)?;
            ensure!(fleet.leases(relay) == *settled, "{relay} had {settled:?}, now {:?}", acquired.leases);
            ensure!(!acquired.freed && acquired.leaving.is_empty(), "{relay} is told of a move: {acquired:?}");
        }
    }
    Ok(())
}

/// Else each new process whose id sorts early would take a bucket from one that is publishing it, at every rolling
/// update.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_newcomer_takes_nothing_that_an_incumbent_may_keep(fixture: &mut dyn StoreFixture) -> Outcome {
    if !fixture.counts_holdings() {
        return Err(Unmet::Skipped("shares do not follow holdings"));
    }
    let mut fleet = Fleet::new(fixture);
    let incumbents = names("m", fleet.bucket_count());
    let incumbents: Vec<&str> = incumbents.iter().map(String::as_str).collect();
    fleet.settle(&incumbents, 4)?;
    require_fair(&fleet, &incumbents)?;
    for _ in 0..3 {
        fleet.pass(1.0 / 3.0);
        for relay in ["a"].iter().chain(&incumbents) {
            fleet.acquire(relay)?;
        }
        ensure!(fleet.buckets("a").is_empty(), "the newcomer got {:?}", fleet.buckets("a"));
        require_fair(&fleet, &incumbents)?;
    }
    Ok(())
}

/// More relays than buckets: those behind own nothing, and the first of them takes over what gets free.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_standby_owns_nothing_until_a_bucket_gets_free(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    let owners = names("m", fleet.bucket_count());
    let mut relays: Vec<&str> = owners.iter().map(String::as_str).collect();
    relays.push("z");
    fleet.settle(&relays, 4)?;
    ensure!(fleet.buckets("z").is_empty(), "the standby got {:?}", fleet.buckets("z"));
    let crashed = fleet.buckets(&owners[0]);
    for _ in 0..4 {
        fleet.pass(1.0 / 3.0);
        for relay in &relays[1..] {
            fleet.acquire(relay)?;
        }
    }
    ensure!(fleet.buckets("z") == crashed, "{crashed:?} got free, but the standby has {:?}", fleet.buckets("z"));
    Ok(())
}

/// A relay that is told that it may skip rounds is not there to take what gets free, so those in front must not be told
/// so.
///
/// # Errors
/// As [`Unmet`] says.
pub fn only_a_standby_far_back_may_rest(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    let near = 2 * fleet.bucket_count() as usize;
    let relays = names("r", 2 * fleet.bucket_count() + 2);
    let relays: Vec<&str> = relays.iter().map(String::as_str).collect();
    fleet.settle(&relays, 3)?;
    fleet.pass(1.0 / 3.0);
    for (place, relay) in relays.iter().enumerate() {
        let acquired = fleet.acquire(relay)?;
        ensure!(!acquired.distant || acquired.leases.is_empty(), "{relay} holds buckets and may rest");
        ensure!(!acquired.distant || place >= near, "{relay} may rest, but waits in place {place} of {near} in front");
    }
    Ok(())
}

/// The relay wakes its peers when there is something for them to take, and only then.
///
/// # Errors
/// As [`Unmet`] says.
pub fn what_was_freed_for_peers_is_told(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    ensure!(!fleet.acquire("a")?.freed, "a freed nothing at its first round");
    ensure!(!fleet.acquire("b")?.freed, "b has nothing to free");
    fleet.pass(1.0 / 3.0);
    ensure!(fleet.acquire("a")?.freed, "a went down to {:?} and did not say so", fleet.buckets("a"));
    ensure!(!fleet.acquire("b")?.freed, "b has freed nothing");
    Ok(())
}

/// A round is also the renewal of what the relay keeps.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_kept_lease_is_extended(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    fleet.pass(0.6);
    fleet.acquire("a")?;
    fleet.pass(0.7);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "b took {:?} from a lease that was kept", fleet.buckets("b"));
    fleet.pass(0.5);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == fleet.all_buckets(), "kept leases have ended, but b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// The owner may be publishing.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_lease_that_lasts_is_not_claimed(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    fleet.pass(0.85);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "b took {:?} before it was free", fleet.buckets("b"));
    Ok(())
}

/// A relay that crashed holds up its buckets for one lease duration, and counts no longer than that either.
///
/// # Errors
/// As [`Unmet`] says.
pub fn an_expired_lease_is_claimed(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    fleet.pass(1.1);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == fleet.all_buckets(), "all was free, but b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// A relay that was slow while nobody else came goes on with what it had.
///
/// # Errors
/// As [`Unmet`] says.
pub fn an_own_expired_lease_is_kept(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    fleet.pass(1.2);
    fleet.acquire("a")?;
    ensure!(fleet.buckets("a") == fleet.all_buckets(), "it got {:?}", fleet.buckets("a"));
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "it was not extended: b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// The relay still relies on the longer one; a lease moves only forward.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_shorter_duration_shortens_no_lease(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let shorter = fleet.duration.mul_f64(0.25);
    fleet.acquire_with("a", shorter, &BTreeSet::new())?;
    fleet.pass(0.6);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "b took {:?} from a lease that was shortened", fleet.buckets("b"));
    Ok(())
}

/// A clock that somebody corrects must not end a lease that a relay relies on.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_clock_set_back_shortens_no_lease(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    if !fleet.fixture.set_clock_back(fleet.duration.mul_f64(0.8)) {
        return Err(Unmet::Skipped("the clock of the storage cannot be set"));
    }
    fleet.acquire("a")?;
    ensure!(fleet.buckets("a") == fleet.all_buckets(), "a lost leases by it and has {:?}", fleet.buckets("a"));
    // The lease ended at 1 by the old clock, which is 1.8 by the new one.
    fleet.pass(1.5);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "b took {:?} from a lease that was shortened", fleet.buckets("b"));
    Ok(())
}

/// The token is what tells a late request of an earlier owner from one of the present owner.
///
/// # Errors
/// As [`Unmet`] says.
pub fn the_token_grows_at_a_change_of_owner_and_only_then(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    let mut before: Vec<Lease> = Vec::new();
    for owner in ["a", "b", "a"] {
        fleet.acquire(owner)?;
        let leases = fleet.leases(owner);
        ensure!(fleet.buckets(owner) == fleet.all_buckets(), "{owner} got {leases:?}");
        for (old, new) in before.iter().zip(&leases) {
            ensure!(new.token > old.token, "{owner} got {new:?}, and its predecessor had {old:?}");
        }
        fleet.acquire(owner)?;
        ensure!(fleet.leases(owner) == leases, "keeping {leases:?} made them {:?}", fleet.leases(owner));
        before = leases;
        fleet.pass(1.1);
    }
    Ok(())
}

/// The hint is kept over failures and expired leases, and may name what a peer holds by now, or what does not exist.
///
/// # Errors
/// As [`Unmet`] says.
pub fn the_hint_is_no_proof_of_ownership(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let (lease_duration, busy) = (fleet.duration, BTreeSet::new());
    let everything: BTreeSet<_> = (0..fleet.bucket_count() + 3).collect();
    fleet.acquire_from("b", Round { lease_duration, previous: &everything, busy: &busy })?;
    ensure!(fleet.buckets("b").is_empty(), "b got {:?} for naming it", fleet.buckets("b"));
    fleet.pass(1.0 / 3.0);
    fleet.acquire_from("a", Round { lease_duration, previous: &BTreeSet::new(), busy: &busy })?;
    fleet.acquire("b")?;
    require_fair(&fleet, &["a", "b"])
}

/// A message in a bucket beyond the last would wait for ever.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_message_that_no_relay_can_own_is_reported(fixture: &mut dyn StoreFixture) -> Outcome {
    if !fixture.strand_message() {
        return Err(Unmet::Skipped("the storage takes no such message, or it is not seen who is told"));
    }
    let mut fleet = Fleet::new(fixture);
    let (lease_duration, nothing) = (fleet.duration, BTreeSet::new());
    match fleet.store("a").acquire(Round { lease_duration, previous: &nothing, busy: &nothing }) {
        Err(StoreError::Misconfigured(_)) => Ok(()),
        Err(other) => Err(Unmet::Broken(format!("acquire failed with {other:?}"))),
        Ok(_) => {
            ensure!(fleet.fixture.told_of_stranded(), "nobody was told");
            Ok(())
        }
    }
}

/// Together the relays hold every bucket, and nobody holds two more than another.
fn require_fair(fleet: &Fleet<'_>, relays: &[&str]) -> Outcome {
    let (buckets, count) = (fleet.bucket_count() as usize, relays.len());
    let held: Vec<usize> = relays.iter().map(|relay| fleet.buckets(relay).len()).collect();
    let fair = held.iter().all(|held| (buckets / count..=buckets.div_ceil(count)).contains(held));
    ensure!(fair && held.iter().sum::<usize>() == buckets, "{relays:?} hold {held:?} of {buckets} buckets");
    Ok(())
}

/// Ids that sort as their numbers.
fn names(prefix: &str, count: u32) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:02}")).collect()
}
