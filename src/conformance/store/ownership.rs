//! Giving up everything when the relay stops in order.

use std::collections::BTreeSet;

use super::StoreFixture;
use super::fleet::Fleet;
use crate::conformance::{Outcome, Unmet, ensure};
use crate::relay::ports::Round;

/// A restart should not hold up anything for a lease duration.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_release_frees_everything_at_once(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = two(fixture)?;
    let hint = fleet.buckets("a");
    fleet.release("a", &hint)?;
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == fleet.all_buckets(), "a has released, and b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// The hint may be stale: what the relay holds is freed by owner.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_release_needs_no_hint(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = two(fixture)?;
    fleet.release("a", &BTreeSet::new())?;
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == fleet.all_buckets(), "a has released, and b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// A relay that slept past its leases and stops now frees nothing of those who took over.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_release_after_a_takeover_changes_nothing(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.ownership("a")?;
    fleet.acquire("a")?;
    let hint = fleet.buckets("a");
    fleet.pass(1.1);
    fleet.acquire("b")?;
    let taken = fleet.leases("b");
    fleet.release("a", &hint)?;
    fleet.acquire("c")?;
    ensure!(fleet.buckets("c").is_empty(), "c got {:?}, which b holds", fleet.buckets("c"));
    fleet.release("c", &BTreeSet::new())?;
    fleet.acquire("b")?;
    ensure!(fleet.leases("b") == taken, "b held {taken:?}, and has {:?}", fleet.leases("b"));
    Ok(())
}

/// Shares are for those who are there.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_released_relay_does_not_count(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.ownership("a")?;
    fleet.settle(&["a", "b", "c"], 4)?;
    fleet.release("b", &BTreeSet::new())?;
    fleet.release("c", &BTreeSet::new())?;
    fleet.acquire("d")?;
    fleet.pass(1.0 / 3.0);
    fleet.acquire("a")?;
    fleet.acquire("d")?;
    let all = fleet.bucket_count() as usize;
    for relay in ["a", "d"] {
        let got = fleet.buckets(relay).len();
        ensure!((all / 2..=all.div_ceil(2)).contains(&got), "two relays are left, and {relay} has {got} of {all}");
    }
    Ok(())
}

/// It was sent before the release and has arrived after it; the relay is gone, and its claim would stand for a whole
/// lease.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_claim_after_the_release_is_refused(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = two(fixture)?;
    let previous = fleet.buckets("a");
    fleet.release("a", &previous)?;
    require_refusal(&mut fleet)?;
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == fleet.all_buckets(), "a counts again: b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// If the release is cut short, leases that run out are better than free buckets which peers reserve for a ghost.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_release_marks_the_relay_before_it_frees(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.ownership("a")?;
    fleet.acquire("a")?;
    if !fleet.fixture.cut_releases_short() {
        return Err(Unmet::Skipped("a release cannot be cut short"));
    }
    let answer = fleet.ownership("a")?.release(&BTreeSet::new());
    ensure!(answer.is_err(), "the release was cut short, and the store says that it is done");
    require_refusal(&mut fleet)?;
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b").is_empty(), "it had freed {:?} already", fleet.buckets("b"));
    fleet.pass(1.1);
    fleet.acquire("b")?;
    ensure!(fleet.buckets("b") == fleet.all_buckets(), "the leases have ended, and b got {:?}", fleet.buckets("b"));
    Ok(())
}

/// Relay a is marked as stopped: what it asks for now comes too late.
fn require_refusal(fleet: &mut Fleet<'_>) -> Outcome {
    let round = Round { lease_duration: fleet.duration, previous: &fleet.all_buckets(), busy: &BTreeSet::new() };
    // Whether that is an error is the store's choice.
    if let Ok(acquired) = fleet.store("a").acquire(round) {
        ensure!(acquired.leases.is_empty(), "a has released and claimed {:?}", acquired.leases);
    }
    Ok(())
}

/// Two relays with their shares, if the store has ownership.
fn two(fixture: &mut dyn StoreFixture) -> Result<Fleet<'_>, Unmet> {
    let mut fleet = Fleet::new(fixture);
    fleet.ownership("a")?;
    fleet.settle(&["a", "b"], 3)?;
    ensure!(!fleet.buckets("a").is_empty() && !fleet.buckets("b").is_empty(), "the buckets are not shared");
    Ok(fleet)
}
