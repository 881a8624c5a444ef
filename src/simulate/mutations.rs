//! Proof that the search can fail: every rule that is switched off breaks a promise in some run.
//!
//! The table says which seed is the first to miss a rule. A test runs those, and `make simulate-mutations` looks for the
//! seeds anew when plans have changed.

use crate::broken::{Rule, break_rule};

use super::plan::Plan;
use super::run::run;
use super::truth::Promise;

/// A rule, what goes wrong without it, and the first seed that shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Missed {
    pub rule: Rule,
    pub promise: Promise,
    pub seed: u64,
}

/// The table of docs/simulation.md.
pub(crate) const MISSED: [Missed; 47] = [
    missed(Rule::LeaseAfterFetch, Promise::PublishOnlyWithALease, 127),
    missed(Rule::LeaseBeforeTheRest, Promise::PublishOnlyWithALease, 762),
    missed(Rule::LeaseBeforeRemoval, Promise::RemoveOnlyWithALease, 643),
    missed(Rule::LeasesEndByThemselves, Promise::RelaysRest, 28),
    missed(Rule::AgeFromBeforeAcquisition, Promise::PublishOnlyWithALease, 181),
    missed(Rule::AgeFromBeforeRenewal, Promise::OneBatchABucket, 315552),
    missed(Rule::RefusedRenewal, Promise::PublishOnlyWithALease, 350),
    missed(Rule::LostLeaseKeepsRows, Promise::RemoveOnlyWithALease, 643),
    missed(Rule::RegainedBucketWaits, Promise::OneBatchABucket, 3784),
    missed(Rule::HandBackWhenQuiet, Promise::DuplicatesHaveACause, 3),
    missed(Rule::BusyBucketsAreKept, Promise::DuplicatesHaveACause, 3),
    missed(Rule::AcquireWhenQuiet, Promise::QuietBeforeRelease, 8),
    missed(Rule::BudgetFits, Promise::PublishOnlyWithALease, 45),
    missed(Rule::ReleaseWhenQuiet, Promise::QuietBeforeRelease, 113),
    missed(Rule::RemoveBeforeStop, Promise::DuplicatesHaveACause, 504),
    missed(Rule::OneBatchABucket, Promise::OneBatchABucket, 0),
    missed(Rule::Window, Promise::MemoryIsBounded, 8),
    missed(Rule::PrefixOnly, Promise::NewestIsLast, 9550),
    missed(Rule::UnitsAreIndependent, Promise::DuplicatesHaveACause, 24),
    missed(Rule::HeldRowsWait, Promise::DuplicatesHaveACause, 6),
    missed(Rule::RetriesInOrder, Promise::OneBatchABucket, 55597),
    missed(Rule::RetriesAreNotCrossed, Promise::OneBatchABucket, 79518),
    missed(Rule::AsideIsHeld, Promise::DuplicatesHaveACause, 6),
    missed(Rule::OneNoteAUnit, Promise::NotesEnd, 1013),
    missed(Rule::PositionStepsBack, Promise::OrderOfAKey, 388),
    missed(Rule::LateCommits, Promise::OrderOfAKey, 0),
    missed(Rule::UnknownBells, Promise::OrderOfAKey, 0),
    missed(Rule::SafetyRescan, Promise::EverythingDrains, 13),
    missed(Rule::NoOvertaking, Promise::OrderOfAKey, 16532),
    missed(Rule::FollowersLeave, Promise::OneBatchABucket, 72607),
    missed(Rule::FairShare, Promise::SharesSettle, 10),
    missed(Rule::ClaimOnlyTheShare, Promise::SharesSettle, 11079),
    missed(Rule::ExpiredLeasesAreFree, Promise::SharesSettle, 2),
    missed(Rule::Fence, Promise::OrderOfAKey, 460),
    missed(Rule::WithheldIsReadFirst, Promise::OrderOfAKey, 649),
    missed(Rule::DroppedIsReadAgain, Promise::OrderOfAKey, 18171),
    missed(Rule::OldBucketsAreLeased, Promise::NoBucketStarves, 393),
    missed(Rule::GuardedClaim, Promise::OneOwnerABucket, 2947),
    missed(Rule::NoClaimAfterStop, Promise::OneOwnerABucket, 112),
    missed(Rule::NoRevival, Promise::ClocksOnlyForward, 987),
    missed(Rule::OnlyForward, Promise::ClocksOnlyForward, 19),
    missed(Rule::TokenGrows, Promise::OneOwnerABucket, 0),
    missed(Rule::GuardedRemoval, Promise::RemoveOnlyWithALease, 7),
    missed(Rule::GuardedHandBack, Promise::OneOwnerABucket, 46702),
    missed(Rule::UntoldIsRead, Promise::OrderOfAKey, 1),
    missed(Rule::UntoldAfterSnapshot, Promise::OrderOfAKey, 3814),
    missed(Rule::UnknownIsUntold, Promise::OrderOfAKey, 25),
];

const fn missed(rule: Rule, promise: Promise, seed: u64) -> Missed {
    Missed { rule, promise, seed }
}

/// Every rule.
pub(crate) const RULES: [Rule; 47] = [
    Rule::LeaseAfterFetch,
    Rule::LeaseBeforeTheRest,
    Rule::LeaseBeforeRemoval,
    Rule::LeasesEndByThemselves,
    Rule::AgeFromBeforeAcquisition,
    Rule::AgeFromBeforeRenewal,
    Rule::RefusedRenewal,
    Rule::LostLeaseKeepsRows,
    Rule::RegainedBucketWaits,
    Rule::HandBackWhenQuiet,
    Rule::BusyBucketsAreKept,
    Rule::AcquireWhenQuiet,
    Rule::BudgetFits,
    Rule::ReleaseWhenQuiet,
    Rule::RemoveBeforeStop,
    Rule::OneBatchABucket,
    Rule::Window,
    Rule::PrefixOnly,
    Rule::UnitsAreIndependent,
    Rule::HeldRowsWait,
    Rule::RetriesInOrder,
    Rule::RetriesAreNotCrossed,
    Rule::AsideIsHeld,
    Rule::OneNoteAUnit,
    Rule::PositionStepsBack,
    Rule::LateCommits,
    Rule::UnknownBells,
    Rule::SafetyRescan,
    Rule::NoOvertaking,
    Rule::FollowersLeave,
    Rule::FairShare,
    Rule::ClaimOnlyTheShare,
    Rule::ExpiredLeasesAreFree,
    Rule::Fence,
    Rule::WithheldIsReadFirst,
    Rule::DroppedIsReadAgain,
    Rule::OldBucketsAreLeased,
    Rule::GuardedClaim,
    Rule::NoClaimAfterStop,
    Rule::NoRevival,
    Rule::OnlyForward,
    Rule::TokenGrows,
    Rule::GuardedRemoval,
    Rule::GuardedHandBack,
    Rule::UntoldIsRead,
    Rule::UntoldAfterSnapshot,
    Rule::UnknownIsUntold,
];

/// The first seed below `seeds` in which the rule is missed, and the promise that is broken.
fn first_missed(rule: Rule, seeds: u64) -> Option<Missed> {
    break_rule(rule, || {
        (0..seeds).find_map(|seed| {
            let breach = run(&Plan::of(seed), false).breach?;
            Some(Missed { rule, promise: breach.promise, seed })
        })
    })
}

/// Looks for the first seed that misses each rule, prints the table, and says whether all were found.
#[must_use]
pub fn find_mutations(seeds: u64) -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    let next = std::sync::Mutex::new(RULES.iter());
    let all = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let rule = next.lock().expect("nobody panics with it").next().copied();
                    let Some(rule) = rule else { return };
                    match first_missed(rule, seeds) {
                        Some(Missed { rule, promise, seed }) => {
                            println!("    missed(Rule::{rule:?}, Promise::{promise:?}, {seed}),");
                        }
                        None => {
                            println!("    // not missed in {seeds} seeds: Rule::{rule:?}");
                            all.store(false, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    all.into_inner()
}
