//! Names the rules that the tests break on purpose.
//!
//! Reason: a search that finds nothing proves nothing, unless it is known to find something. So the places that keep a rule
//! name it, `broken` says whether a test has switched it off there, and src/simulate/mutations.rs shows that each is missed.
//!
//! Outside of tests and the search nothing is ever broken, and the compiler removes the question.

/// A rule that can be broken, by what goes wrong without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    not(any(test, feature = "simulate")),
    allow(dead_code, reason = "some are kept by the simulated world only")
)]
pub enum Rule {
    /// A batch is published only if its lease outlasted the fetch.
    LeaseAfterFetch,
    /// The rest of a batch is handed over only under a lasting lease.
    LeaseBeforeTheRest,
    /// Leases are looked at before rows are removed.
    LeaseBeforeRemoval,
    /// A relay finds out by itself that its leases have ended.
    LeasesEndByThemselves,
    /// The age of leases counts from before the call that took them.
    AgeFromBeforeAcquisition,
    /// And from before the call that renewed them.
    AgeFromBeforeRenewal,
    /// When a renewal is refused all leases are lost.
    RefusedRenewal,
    /// Rows published under a lost lease are kept.
    LostLeaseKeepsRows,
    /// A bucket that comes back waits for what is still on its way.
    RegainedBucketWaits,
    /// A bucket is handed back only when nothing of it is on its way.
    HandBackWhenQuiet,
    /// An acquisition is told which buckets are busy.
    BusyBucketsAreKept,
    /// Without renewal leases are acquired only when nothing is on its way.
    AcquireWhenQuiet,
    /// Without renewal a publish begins only if the lease lasts for it.
    BudgetFits,
    /// Leases are released only when everything has been answered.
    ReleaseWhenQuiet,
    /// What was acknowledged is removed before a stop.
    RemoveBeforeStop,
    /// A bucket has one batch on its way.
    OneBatchABucket,
    /// What is in flight is bounded.
    Window,
    /// Of every unit rows are removed up to the first that was not acknowledged.
    PrefixOnly,
    /// What was acknowledged is removed, whatever became of other units in its batch.
    UnitsAreIndependent,
    /// What a refused row holds up is passed over.
    HeldRowsWait,
    /// A topic that was set aside is passed over until it is answered.
    AsideIsHeld,
    /// The note of a refused row that waits behind an earlier one of its unit ends.
    OneNoteAUnit,
    /// What was not removed is read again.
    PositionStepsBack,
    /// A bell with a lower id steps the position back.
    LateCommits,
    /// A bell that names no bucket makes all be read from the start.
    UnknownBells,
    /// Now and then buckets are looked at without a bell.
    SafetyRescan,
    /// A refused row is tried again only when what is in front of it has landed.
    RetriesInOrder,
    /// A row in front of a refused one waits while that is on its way.
    RetriesAreNotCrossed,
    /// What was called back is not overtaken by its own followers.
    NoOvertaking,
    /// What has to wait behind a row that the client refuses at once is not handed over.
    FollowersLeave,
    /// Shares differ by at most one.
    FairShare,
    /// Nobody claims more than it lacks.
    ClaimOnlyTheShare,
    /// The lease of a peer counts only while it lasts.
    ExpiredLeasesAreFree,
    /// Messages behind a fence wait.
    Fence,
    /// What a fence withheld is read before what comes behind it.
    WithheldIsReadFirst,
    /// What is read and not published is read again, from wherever the store had gone back to.
    DroppedIsReadAgain,
    /// Old buckets are leased until their fence is drained.
    OldBucketsAreLeased,
    /// Store: a bucket is claimed only if it is free when that is done.
    GuardedClaim,
    /// Store: a relay marked as stopped claims nothing.
    NoClaimAfterStop,
    /// Store: a renewal extends nothing that has expired.
    NoRevival,
    /// Store: a lease is never shortened.
    OnlyForward,
    /// Store: the token grows with every change of owner.
    TokenGrows,
    /// Store: rows are removed only under the lease that names them.
    GuardedRemoval,
    /// Store: a lease is handed back only by its owner.
    GuardedHandBack,
    /// Store: a fetch reads what nobody has rung for yet.
    UntoldIsRead,
    /// Store: who is about to ring is looked at after the snapshot.
    UntoldAfterSnapshot,
    /// Store: a bell that names no bucket counts as one for each.
    UnknownIsUntold,
}

/// Whether the rule is switched off.
#[cfg(not(any(test, feature = "simulate")))]
#[inline(always)]
#[must_use]
pub const fn broken(_rule: Rule) -> bool {
    false
}

#[cfg(any(test, feature = "simulate"))]
pub use switch::{break_rule, broken};

#[cfg(any(test, feature = "simulate"))]
mod switch {
    use std::cell::Cell;

    use super::Rule;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Whether this thread has switched the rule off.
    #[must_use]
    pub fn broken(rule: Rule) -> bool {
        BROKEN.get() == Some(rule)
    }

    /// Does something while the rule is switched off on this thread.
    pub fn break_rule<T>(rule: Rule, something: impl FnOnce() -> T) -> T {
        BROKEN.set(Some(rule));
        let done = something();
        BROKEN.set(None);
        done
    }
}
