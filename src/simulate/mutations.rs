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
pub(crate) const MISSED: [Missed; 0] = [];

const fn missed(rule: Rule, promise: Promise, seed: u64) -> Missed {
    Missed { rule, promise, seed }
}

/// Every rule.
pub(crate) const RULES: [Rule; 40] = [
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
    Rule::PrefixOnly,
    Rule::PositionStepsBack,
    Rule::LateCommits,
    Rule::UnknownBells,
    Rule::SafetyRescan,
    Rule::HeadOnlyRetry,
    Rule::NoOvertaking,
    Rule::FairShare,
    Rule::ClaimOnlyTheShare,
    Rule::ExpiredLeasesAreFree,
    Rule::Fence,
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
    Rule::BellsOfTheListener,
    Rule::OneClientABatch,
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
