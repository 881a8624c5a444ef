//! Leases while messages are on their way.

use std::collections::BTreeSet;

use super::StoreFixture;
use super::fleet::Fleet;
use crate::conformance::{Outcome, Unmet, ensure};
use crate::lease::Lease;

/// A publish may take longer than a lease lasts.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_renewal_extends_the_leases(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = alone(fixture)?;
    for _ in 0..2 {
        fleet.pass(0.7);
        let (leases, duration) = (fleet.leases("a"), fleet.duration);
        ensure!(fleet.renew("a", &leases, duration)?, "the leases last, but the renewal was refused");
    }
    fleet.pass(0.7);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "b took {:?} from leases that were renewed", fleet.buckets("b"));
    fleet.pass(0.5);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == fleet.all_buckets(), "leases have ended, but b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// Else the shares of a busy relay would be dealt to others while it publishes. A renewal of no lease does that too.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_renewal_says_that_the_relay_lives(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.renewal("a")?;
    fleet.settle(&["a", "b", "c", "d"], 4)?;
    // All but a are gone; a only renews.
    for _ in 0..2 {
        fleet.pass(0.7);
        let (leases, duration) = (fleet.leases("a"), fleet.duration);
        ensure!(fleet.renew("a", &leases, duration)?, "the leases last, but the renewal was refused");
        ensure!(fleet.renew("a", &[], duration)?, "a renewal of no lease was refused");
    }
    fleet.acquire("e")?;
    let (all, got) = (fleet.bucket_count() as usize, fleet.buckets("e").len());
    ensure!(got <= all.div_ceil(2), "two relays live, and the one that came got {got} of {all} buckets");
    Ok(())
}

/// The relay goes on with all that it holds, or with nothing.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_renewal_extends_all_or_none(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = alone(fixture)?;
    let before = fleet.leases("a");
    let kept = hand_half_to_a_peer(&mut fleet)?;
    fleet.pass(0.5);
    let duration = fleet.duration;
    ensure!(!fleet.renew("a", &before, duration)?, "half of the leases are another's, and the renewal was granted");
    fleet.pass(0.6);
    fleet.acquire("b")?;
    let missing: Vec<_> = kept.difference(&fleet.buckets("b")).copied().collect();
    ensure!(missing.is_empty(), "the refused renewal has extended the leases of {missing:?}");
    Ok(())
}

/// What was given up is not the relay's any more, though nobody else has taken it yet.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_renewal_never_claims(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = alone(fixture)?;
    let before = fleet.leases("a");
    fleet.acquire("b")?;
    fleet.pass(1.0 / 3.0);
    fleet.acquire("a")?;
    let kept = fleet.leases("a");
    let freed: Vec<Lease> = before.into_iter().filter(|lease| !kept.contains(lease)).collect();
    ensure!(!freed.is_empty(), "a kept everything, so there is nothing to see");
    let duration = fleet.duration;
    ensure!(!fleet.renew("a", &freed, duration)?, "free buckets were renewed");
    fleet.acquire("b")?;
    let expected: BTreeSet<_> = freed.iter().map(|lease| lease.bucket).collect();
    ensure!(fleet.buckets("b") == expected, "{expected:?} were free, b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// While it was expired another relay may have come and gone.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_renewal_never_revives(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = alone(fixture)?;
    let (leases, duration) = (fleet.leases("a"), fleet.duration);
    fleet.pass(1.1);
    ensure!(!fleet.renew("a", &leases, duration)?, "expired leases were renewed");
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == fleet.all_buckets(), "all was free, but b got {:?}", fleet.buckets("b"));
    ensure!(!fleet.renew("a", &leases, duration)?, "leases of another were renewed");
    let leases = fleet.leases("b");
    ensure!(fleet.renew("b", &leases, duration)?, "that has cost the owner its leases");
    Ok(())
}

/// The relay still relies on the longer one; a lease moves only forward.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_renewal_shortens_no_lease(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = alone(fixture)?;
    let (leases, shorter) = (fleet.leases("a"), fleet.duration.mul_f64(0.2));
    ensure!(fleet.renew("a", &leases, shorter)?, "the leases last, but the renewal was refused");
    fleet.pass(0.6);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "b took {:?} from leases that were shortened", fleet.buckets("b"));
    Ok(())
}

/// A bucket with messages on their way is not given up under them.
///
/// # Errors
/// As [`Unmet`] says.
pub fn busy_buckets_above_the_share_are_kept_and_come_back_as_leaving(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = alone(fixture)?;
    let (before, busy, duration) = (fleet.leases("a"), fleet.all_buckets(), fleet.duration);
    fleet.acquire("b")?;
    fleet.pass(0.6);
    let acquired = fleet.acquire_with("a", duration, &busy)?;
    ensure!(fleet.leases("a") == before, "a had {before:?} busy, and now has {:?}", acquired.leases);
    let (all, leaving) = (busy.len(), acquired.leaving.len());
    ensure!(leaving == all / 2, "{leaving} of {all} buckets are above the share, says the store");
    ensure!(!acquired.freed, "nothing was freed");
    // All of them were extended.
    fleet.pass(0.7);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "b got {:?}, which is busy", fleet.buckets("b"));
    Ok(())
}

/// Only what has become quiet is given up.
///
/// # Errors
/// As [`Unmet`] says.
pub fn handing_back_frees_the_named_leases_only(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = alone(fixture)?;
    let (busy, duration) = (fleet.all_buckets(), fleet.duration);
    fleet.acquire("b")?;
    let leaving = fleet.acquire_with("a", duration, &busy)?.leaving;
    let first = *leaving.first().ok_or_else(|| Unmet::Broken("nothing is leaving".to_owned()))?;
    let lease = fleet.lease("a", first)?;
    fleet.hand_back("a", &[lease])?;
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == BTreeSet::from([first]), "{first} was free, b got {:?}", fleet.buckets("b"));
    let rest = fleet.leases("a");
    ensure!(fleet.renew("a", &rest, duration)?, "a has lost more than it handed back");
    Ok(())
}

/// A request that was held up somewhere must not free what has another owner, or another lease, by now.
///
/// # Errors
/// As [`Unmet`] says.
pub fn handing_back_a_lost_lease_takes_nothing_from_its_owner(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = alone(fixture)?;
    let (earlier, duration) = (fleet.leases("a"), fleet.duration);
    for owner in ["b", "a"] {
        fleet.pass(1.1);
        fleet.acquire(owner)?;
        let leases = fleet.leases(owner);
        fleet.hand_back("a", &earlier)?;
        ensure!(fleet.renew(owner, &leases, duration)?, "{owner} has lost leases that it holds since");
    }
    Ok(())
}

/// A fleet of a relay that holds everything, if the store renews.
fn alone(fixture: &mut dyn StoreFixture) -> Result<Fleet<'_>, Unmet> {
    let mut fleet = Fleet::new(fixture);
    fleet.renewal("a")?;
    fleet.acquire("a")?;
    Ok(fleet)
}

/// Relay b joins and gets its share. Returns the buckets that a has kept.
fn hand_half_to_a_peer(fleet: &mut Fleet<'_>) -> Result<BTreeSet<crate::bucket::Bucket>, Unmet> {
    fleet.acquire("b")?;
    fleet.pass(1.0 / 3.0);
    fleet.acquire("a")?;
    fleet.acquire("b")?;
    Ok(fleet.buckets("a"))
}
