//! Stores that each leave one guard out, and the rule that notices.

use std::collections::BTreeSet;

use super::escapes;
use super::memory_store::Fixture;
use crate::conformance::store::{RULES, run_all};

/// What a store may do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    LeavesABucketOut,
    HandsNothingBack,
    SharesByCeiling,
    SharesById,
    GrantsToTwo,
    MovesLeasesAbout,
    ForgetsTheStandbys,
    LetsEveryStandbyRest,
    TellsNobodyOfWhatGotFree,
    ExtendsNothing,
    ClaimsTooEarly,
    ClaimsTooLate,
    ForgetsItsExpiredLeases,
    ShortensLeases,
    GivesOldTokens,
    GivesNewTokensToTheKept,
    TakesTheHintForOwnership,
    IgnoresStrandedMessages,
    FindsEveryBucket,
    KeepsWhatWasRolledBack,
    MixesBuckets,
    MakesEmptyNull,
    ReadsFromTheStart,
    SaysThatThereIsMore,
    FetchingRemoves,
    IgnoresTheLimitOfRows,
    SaysThatThereIsNoMore,
    IgnoresTheLimitOfBytes,
    SkipsLargeMessages,
    ReplacesTheBatch,
    PassesLateCommitsOver,
    RemovesTheWholeBatch,
    RefusesWhatIsGone,
    RemovesByRange,
    AnswersForAllAtOnce,
    AcknowledgesWithoutALease,
    IgnoresTheToken,
    RenewalOnlySaysYes,
    RenewalIsNoHeartbeat,
    RenewsWhatItCan,
    RenewalClaims,
    RenewalRevives,
    TakesBusyBuckets,
    HandsEverythingBack,
    ReleasesNothing,
    ReleasesTheHintOnly,
    ReleasesWhoeverHoldsIt,
    CountsTheReleased,
    LetsTheStoppedClaim,
    FreesBeforeItMarks,
    NotesForItselfOnly,
    KeepsTheFirstNote,
    TellsTheLastNote,
    TellsNotesOfWhatIsGone,
    WaitsAnew,
    EndsLaterNotes,
}

/// Each fault with a rule that must notice it; others may notice it too.
const CAUGHT_BY: [(Fault, &str); 59] = [
    (Fault::LeavesABucketOut, "a_relay_alone_takes_every_bucket"),
    (Fault::HandsNothingBack, "two_relays_share_within_two_rounds"),
    (Fault::SharesByCeiling, "shares_differ_by_one_at_most"),
    (Fault::GrantsToTwo, "a_bucket_has_one_owner"),
    (Fault::MovesLeasesAbout, "a_settled_fleet_moves_nothing"),
    (Fault::SharesById, "a_newcomer_takes_nothing_that_an_incumbent_may_keep"),
    (Fault::ForgetsTheStandbys, "a_standby_owns_nothing_until_a_bucket_gets_free"),
    (Fault::LetsEveryStandbyRest, "only_a_standby_far_back_may_rest"),
    (Fault::TellsNobodyOfWhatGotFree, "what_was_freed_for_peers_is_told"),
    (Fault::ExtendsNothing, "a_kept_lease_is_extended"),
    (Fault::ClaimsTooEarly, "a_lease_that_lasts_is_not_claimed"),
    (Fault::ClaimsTooLate, "an_expired_lease_is_claimed"),
    (Fault::ForgetsItsExpiredLeases, "an_own_expired_lease_is_kept"),
    (Fault::ShortensLeases, "a_shorter_duration_shortens_no_lease"),
    (Fault::ShortensLeases, "a_clock_set_back_shortens_no_lease"),
    (Fault::GivesOldTokens, "the_token_grows_at_a_change_of_owner_and_only_then"),
    (Fault::GivesNewTokensToTheKept, "the_token_grows_at_a_change_of_owner_and_only_then"),
    (Fault::TakesTheHintForOwnership, "the_hint_is_no_proof_of_ownership"),
    (Fault::IgnoresStrandedMessages, "a_message_that_no_relay_can_own_is_reported"),
    (Fault::FindsEveryBucket, "pending_finds_the_buckets_with_messages"),
    (Fault::KeepsWhatWasRolledBack, "rolled_back_messages_never_appear"),
    (Fault::MixesBuckets, "messages_come_oldest_first_and_of_one_bucket"),
    (Fault::MakesEmptyNull, "messages_come_back_as_they_were_stored"),
    (Fault::ReadsFromTheStart, "only_messages_above_the_position_come"),
    (Fault::SaysThatThereIsMore, "only_messages_above_the_position_come"),
    (Fault::FetchingRemoves, "fetching_removes_nothing"),
    (Fault::IgnoresTheLimitOfRows, "a_batch_ends_at_the_limit_of_rows"),
    (Fault::SaysThatThereIsNoMore, "a_batch_ends_at_the_limit_of_rows"),
    (Fault::IgnoresTheLimitOfBytes, "a_batch_ends_with_the_message_that_passes_the_limit_of_bytes"),
    (Fault::SkipsLargeMessages, "a_message_larger_than_the_limit_comes_alone"),
    (Fault::ReplacesTheBatch, "a_batch_is_appended_to"),
    (Fault::PassesLateCommitsOver, "a_late_commit_comes_before_what_followed_it"),
    (Fault::RemovesTheWholeBatch, "exactly_the_acknowledged_prefix_is_removed"),
    (Fault::RefusesWhatIsGone, "acknowledging_again_is_no_error"),
    (Fault::RemovesByRange, "acknowledging_leaves_what_was_committed_into_a_gap"),
    (Fault::AnswersForAllAtOnce, "batches_of_several_buckets_are_acknowledged_at_once"),
    (Fault::AcknowledgesWithoutALease, "a_lost_lease_acknowledges_nothing"),
    (Fault::IgnoresTheToken, "an_earlier_lease_of_the_same_relay_acknowledges_nothing"),
    (Fault::RenewalOnlySaysYes, "a_renewal_extends_the_leases"),
    (Fault::RenewalIsNoHeartbeat, "a_renewal_says_that_the_relay_lives"),
    (Fault::RenewsWhatItCan, "a_renewal_extends_all_or_none"),
    (Fault::RenewalClaims, "a_renewal_never_claims"),
    (Fault::RenewalRevives, "a_renewal_never_revives"),
    (Fault::ShortensLeases, "a_renewal_shortens_no_lease"),
    (Fault::TakesBusyBuckets, "busy_buckets_above_the_share_are_kept_and_come_back_as_leaving"),
    (Fault::HandsEverythingBack, "handing_back_frees_the_named_leases_only"),
    (Fault::IgnoresTheToken, "handing_back_a_lost_lease_takes_nothing_from_its_owner"),
    (Fault::ReleasesNothing, "a_release_frees_everything_at_once"),
    (Fault::ReleasesTheHintOnly, "a_release_needs_no_hint"),
    (Fault::ReleasesWhoeverHoldsIt, "a_release_after_a_takeover_changes_nothing"),
    (Fault::CountsTheReleased, "a_released_relay_does_not_count"),
    (Fault::LetsTheStoppedClaim, "a_claim_after_the_release_is_refused"),
    (Fault::FreesBeforeItMarks, "a_release_marks_the_relay_before_it_frees"),
    (Fault::NotesForItselfOnly, "a_noted_failure_is_read_by_the_next_owner"),
    (Fault::KeepsTheFirstNote, "a_later_note_replaces_the_earlier"),
    (Fault::TellsTheLastNote, "the_first_noted_message_that_still_exists_counts"),
    (Fault::TellsNotesOfWhatIsGone, "the_first_noted_message_that_still_exists_counts"),
    (Fault::WaitsAnew, "the_noted_wait_runs_out"),
    (Fault::EndsLaterNotes, "the_end_of_a_failure_leaves_later_notes"),
];

#[test]
fn a_broken_store_is_caught_by_the_rule_that_it_breaks() {
    assert_eq!(escapes(CAUGHT_BY, |fault| run_all(|| Fixture::with(fault))), [""; 0]);
}

#[test]
fn every_rule_about_stores_can_fail() {
    let rules: BTreeSet<_> = RULES.iter().map(|rule| rule.name).collect();
    let breakable: BTreeSet<_> = CAUGHT_BY.iter().map(|(_, rule)| *rule).collect();
    assert_eq!(breakable, rules);
}
