//! Publishers that each do one thing wrong, and the rule that notices.

use std::collections::BTreeSet;

use super::escapes;
use super::memory_publisher::Fixture;
use crate::conformance::publisher::{RULES, run_all};

/// What a publisher may do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Reorders,
    ReportsTwice,
    ForgetsAReport,
    AcknowledgesUnsent,
    ReportsNothingTwice,
    IgnoresTheIndex,
    LosesRowsApart,
    KeepsForgedIds,
    SortsHeaders,
    MakesEmptyNull,
    IgnoresThePartition,
    IgnoresTheKey,
    WaitsForRoom,
    GoesOnAfterAPurge,
    PurgesNothing,
    SendsWhatItGivesUp,
    TakesNothingAfterAPurge,
    BlamesAll,
    TakesWhatItCannotRead,
}

/// Each fault with a rule that must notice it; others may notice it too.
const CAUGHT_BY: [(Fault, &str); 19] = [
    (Fault::Reorders, "rows_arrive_in_the_order_of_their_submission"),
    (Fault::ReportsTwice, "every_row_is_reported_once"),
    (Fault::ForgetsAReport, "every_row_is_reported_once"),
    (Fault::AcknowledgesUnsent, "what_is_acknowledged_can_be_read"),
    (Fault::ReportsNothingTwice, "an_empty_batch_is_nothing"),
    (Fault::IgnoresTheIndex, "a_full_client_takes_fewer_rows_and_the_rest_later"),
    (Fault::LosesRowsApart, "a_row_apart_is_published_as_any_other"),
    (Fault::KeepsForgedIds, "the_message_id_is_the_last_header_and_the_only_one_of_its_name"),
    (Fault::SortsHeaders, "stored_headers_keep_their_order_and_duplicates"),
    (Fault::MakesEmptyNull, "null_and_empty_stay_different"),
    (Fault::IgnoresThePartition, "an_explicit_partition_wins_over_the_key"),
    (Fault::IgnoresTheKey, "rows_of_a_key_share_a_partition"),
    (Fault::WaitsForRoom, "a_full_client_takes_fewer_rows_and_the_rest_later"),
    (Fault::GoesOnAfterAPurge, "the_rest_of_a_batch_does_not_overtake_its_beginning"),
    (Fault::PurgesNothing, "a_purge_gives_up_what_was_only_queued"),
    (Fault::SendsWhatItGivesUp, "a_purge_gives_up_what_was_only_queued"),
    (Fault::TakesNothingAfterAPurge, "a_purge_spares_what_is_submitted_later"),
    (Fault::BlamesAll, "a_refused_row_is_blamed_alone"),
    (Fault::TakesWhatItCannotRead, "a_row_that_cannot_be_read_is_blamed_alone"),
];

#[test]
fn a_broken_publisher_is_caught_by_the_rule_that_it_breaks() {
    assert_eq!(escapes(CAUGHT_BY, |fault| run_all(|| Fixture::with(fault))), [""; 0]);
}

#[test]
fn every_rule_about_publishers_can_fail() {
    let rules: BTreeSet<_> = RULES.iter().map(|rule| rule.name).collect();
    let breakable: BTreeSet<_> = CAUGHT_BY.iter().map(|(_, rule)| *rule).collect();
    assert_eq!(breakable, rules);
}
