//! What a [`Store`] owes the relay, and the fixture that the rules are tried on.
//!
//! The rules are grouped as the contract is: [`leases`] about [`Store::acquire`], [`messages`] about
//! [`Store::pending`], [`Store::fetch`] and [`Store::acknowledge`], and one module for each optional capability:
//! [`renewal`], [`ownership`], [`failures`].

pub mod failures;
mod fleet;
pub mod leases;
pub mod messages;
pub mod ownership;
pub mod renewal;

use std::time::Duration;

use super::{Outcome, Report, Rule, rules};
use crate::bucket::Bucket;
use crate::message::Message;
use crate::relay::ports::Store;

/// A storage that is empty at first: no messages, no relays, no leases; and what the rules need of it beside its
/// stores.
///
/// A method that cannot do its work panics: the fault is the fixture's then, and says nothing of the store.
pub trait StoreFixture {
    /// The store of the relay of this id. Rules open several relays on the one storage, and each once.
    fn open(&mut self, relay: &str) -> Box<dyn Store>;

    /// Number of buckets, from 4 to 16, and the same as long as the fixture lasts.
    fn bucket_count(&self) -> u32;

    /// The lease duration that rules ask for. A rule makes up to 200 calls in what is one moment to it; they must not
    /// take more than a twentieth of this. So a storage whose clock cannot be moved gets some seconds.
    fn lease_duration(&self) -> Duration;

    /// Lets time pass for leases, heartbeats and noted waits: on a virtual clock, by making all that is stored older,
    /// or by sleeping. At least this long, and at most a twentieth of the lease duration longer. A rule lets up to six
    /// lease durations pass.
    fn pass(&mut self, time: Duration);

    /// Stores messages in this bucket, in this order, in one transaction that commits, and returns their ids. `id` and
    /// `handle` of the arguments mean nothing: both are the storage's to give.
    fn commit(&mut self, bucket: Bucket, messages: &[Message<'_>]) -> Vec<i64>;

    /// The same, but the transaction is rolled back.
    fn roll_back(&mut self, bucket: Bucket, messages: &[Message<'_>]);

    /// Ids of the messages that the storage has in this bucket, ascending, read without a store.
    fn stored(&mut self, bucket: Bucket) -> Vec<i64>;

    /// Whether shares follow what the relays hold, as [`crate::share::compute`] with all held counts does. A storage
    /// that cannot read the leases of others says no; then rules that rest on it are skipped.
    fn counts_holdings(&self) -> bool {
        true
    }

    /// Transactions that commit in another order than that of their ids, where ids are drawn before the commit.
    fn late_commits(&mut self) -> Option<&mut dyn LateCommits> {
        None
    }

    /// Sets the clock that leases are measured on back, and says whether it could.
    fn set_clock_back(&mut self, by: Duration) -> bool {
        let _ = by;
        false
    }

    /// From now on every release fails between its two halves, the mark and the freeing. Says whether that can be
    /// arranged.
    fn cut_releases_short(&mut self) -> bool {
        false
    }

    /// Commits a message to a bucket that no relay can own, past all checks, and says whether that can be arranged.
    fn strand_message(&mut self) -> bool {
        false
    }

    /// Whether somebody was told of stranded messages since, other than by [`StoreError::Misconfigured`].
    ///
    /// [`StoreError::Misconfigured`]: crate::relay::ports::StoreError::Misconfigured
    fn told_of_stranded(&mut self) -> bool {
        false
    }
}

/// Ids that are drawn before the transaction commits.
pub trait LateCommits {
    /// Draws the next id for a message of this bucket, as a transaction does that commits later.
    fn draw(&mut self, bucket: Bucket) -> i64;

    /// Commits the message with an id that was drawn, and lets the relay's [`Bell`](crate::relay::ports::Bell) know,
    /// which nobody asks here.
    fn commit_drawn(&mut self, bucket: Bucket, id: i64, message: &Message<'_>);
}

/// A rule about stores.
pub type StoreRule = Rule<fn(&mut dyn StoreFixture) -> Outcome>;

/// All rules about stores.
pub static RULES: &[StoreRule] = rules![
    leases:
        a_relay_alone_takes_every_bucket,
        two_relays_share_within_two_rounds,
        shares_differ_by_one_at_most,
        a_bucket_has_one_owner,
        a_settled_fleet_moves_nothing,
        a_newcomer_takes_nothing_that_an_incumbent_may_keep,
        a_standby_owns_nothing_until_a_bucket_gets_free,
        only_a_standby_far_back_may_rest,
        what_was_freed_for_peers_is_told,
        a_kept_lease_is_extended,
        a_lease_that_lasts_is_not_claimed,
        an_expired_lease_is_claimed,
        an_own_expired_lease_is_kept,
        a_shorter_duration_shortens_no_lease,
        a_clock_set_back_shortens_no_lease,
        the_token_grows_at_a_change_of_owner_and_only_then,
        the_hint_is_no_proof_of_ownership,
        a_message_that_no_relay_can_own_is_reported;
    messages:
        pending_finds_the_buckets_with_messages,
        rolled_back_messages_never_appear,
        messages_come_oldest_first_and_of_one_bucket,
        messages_come_back_as_they_were_stored,
        only_messages_above_the_position_come,
        fetching_removes_nothing,
        a_batch_ends_at_the_limit_of_rows,
        a_batch_ends_with_the_message_that_passes_the_limit_of_bytes,
        a_message_larger_than_the_limit_comes_alone,
        a_batch_is_appended_to,
        a_late_commit_comes_before_what_followed_it,
        exactly_the_acknowledged_prefix_is_removed,
        acknowledging_again_is_no_error,
        acknowledging_leaves_what_was_committed_into_a_gap,
        batches_of_several_buckets_are_acknowledged_at_once,
        a_lost_lease_acknowledges_nothing,
        an_earlier_lease_of_the_same_relay_acknowledges_nothing;
    renewal:
        a_renewal_extends_the_leases,
        a_renewal_says_that_the_relay_lives,
        a_renewal_extends_all_or_none,
        a_renewal_never_claims,
        a_renewal_never_revives,
        a_renewal_shortens_no_lease,
        busy_buckets_above_the_share_are_kept_and_come_back_as_leaving,
        handing_back_frees_the_named_leases_only,
        handing_back_a_lost_lease_takes_nothing_from_its_owner;
    ownership:
        a_release_frees_everything_at_once,
        a_release_needs_no_hint,
        a_release_after_a_takeover_changes_nothing,
        a_released_relay_does_not_count,
        a_claim_after_the_release_is_refused,
        a_release_marks_the_relay_before_it_frees;
    failures:
        a_noted_failure_is_read_by_the_next_owner,
        a_later_note_replaces_the_earlier,
        a_note_ends_the_one_that_it_takes_the_place_of,
        a_note_under_a_lost_lease_changes_nothing,
        all_noted_messages_that_still_exist_count,
        a_note_on_a_topic_is_read_as_one,
        a_parked_message_stays_parked,
        the_time_since_the_first_refusal_goes_on,
        the_noted_wait_runs_out,
        the_end_of_a_failure_leaves_later_notes;
];

/// Tries every rule on a fixture of its own.
pub fn run_all<F: StoreFixture>(mut fixture: impl FnMut() -> F) -> Report {
    let outcomes = RULES.iter().map(|rule| (rule.name, (rule.check)(&mut fixture()))).collect();
    Report { outcomes }
}
