//! A changed bucket count, and which messages have to wait because of it.
//!
//! Reason: a message keeps the bucket that it was stored with, so after a change a key has old messages in one bucket and
//! new ones in another, which another relay may hold. The change is made while no writer is under way. It puts up a fence:
//! the last id given out until then. Messages at or below have buckets of the old count, messages above those of the new.
//!
//! Rule: a message may be read only if no message of an earlier count is left, in whatever bucket. So a read ends at the
//! lowest fence that has a message at or below it. Such a fence is drained once and for all when that is gone: no id at or
//! below it can come any more. Several changes may wait for each other, and going back to an earlier count is one like
//! any other.
//!
//! Until its fence is drained, relays lease the buckets of the old count as well: the largest count of all counts.

use std::collections::BTreeMap;

use crate::broken::{Rule, broken};
use crate::bucket::Bucket;

/// Most changes that may wait at a time; a further one is refused (by sql/bucket_count.sql in Postgres).
pub const CHANGES_MAX: usize = 16;

/// A change of the bucket count whose old messages may not all be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The last id that was given out before the change.
    pub fence_id: i64,
    /// The count until then: messages at or below the fence, and above the one before, are in buckets below it.
    pub bucket_count: u32,
}

/// The changes that still have messages at or below their fence: all from the first such on. `changes` ascend by their
/// fence. `left` says whether in the buckets from 0 to its first argument less one there is a message with an id up to its
/// second; it is asked in the order of the fences, and not again once it has said yes.
pub fn undrained(changes: &[Change], mut left: impl FnMut(u32, i64) -> bool) -> &[Change] {
    let mut bucket_count = 0;
    let drained = changes
        .iter()
        .take_while(|change| {
            // Whoever forgot to forget an earlier one: its buckets are looked at again, for nothing.
            bucket_count = change.bucket_count.max(bucket_count);
            !left(bucket_count, change.fence_id)
        })
        .count();
    &changes[drained..]
}

/// The highest id that may be read; `None` for no limit.
#[must_use]
pub fn limit(undrained: &[Change]) -> Option<i64> {
    undrained.first().filter(|_| !broken(Rule::Fence)).map(|change| change.fence_id)
}

/// How many buckets are leased: beyond them a message is stranded. `bucket_count` is the count of new messages.
#[must_use]
pub fn leased_buckets(bucket_count: u32, undrained: &[Change]) -> u32 {
    let undrained = undrained.iter().filter(|_| !broken(Rule::OldBucketsAreLeased));
    undrained.map(|change| change.bucket_count).fold(bucket_count, u32::max)
}

/// Where each bucket was last read only up to a fence. What lies behind it rang its bell long ago, so whoever knows bells only
/// would begin to read behind it, once the fence is drained.
#[derive(Debug, Default)]
pub struct Withheld(BTreeMap<Bucket, i64>);

impl Withheld {
    /// From where to read a bucket that is to be read from `after` on.
    #[must_use]
    pub fn after(&self, bucket: Bucket, after: i64) -> i64 {
        let fence = self.0.get(&bucket).filter(|_| !broken(Rule::WithheldIsReadFirst));
        fence.map_or(after, |fence| after.min(*fence))
    }

    /// A bucket was read, up to this id if not to its end.
    pub fn was_read(&mut self, bucket: Bucket, limit: Option<i64>) {
        match limit {
            Some(limit) => self.0.insert(bucket, limit),
            None => self.0.remove(&bucket),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::bucket_of;

    const GROWN: Change = Change { fence_id: 100, bucket_count: 8 };
    const SHRUNK: Change = Change { fence_id: 200, bucket_count: 64 };

    fn left(rows: &[(Bucket, i64)]) -> impl FnMut(u32, i64) -> bool {
        |buckets, fence_id| rows.iter().any(|(bucket, id)| *bucket < buckets && *id <= fence_id)
    }

    #[test]
    fn without_a_change_everything_may_be_read() {
        let none = undrained(&[], |_, _| unreachable!("there is no fence to ask for"));
        assert_eq!((limit(none), leased_buckets(8, none)), (None, 8));
    }

    #[test]
    fn a_message_waits_until_none_of_an_earlier_count_is_left_in_any_bucket() {
        let changes = [GROWN, SHRUNK];
        let rest = undrained(&changes, left(&[(7, 100), (63, 150), (2, 300)]));
        assert_eq!((rest, limit(rest)), (&changes[..], Some(100)));
        let rest = undrained(&changes, left(&[(63, 150), (2, 300)]));
        assert_eq!((rest, limit(rest)), (&changes[1..], Some(200)));
        let rest = undrained(&changes, left(&[(2, 300)]));
        assert_eq!((rest, limit(rest)), (&[][..], None));
    }

    #[test]
    fn a_fence_with_a_message_is_the_last_to_be_asked_for() {
        let mut asked = Vec::new();
        let rest = undrained(&[GROWN, SHRUNK], |buckets, fence_id| {
            asked.push((buckets, fence_id));
            true
        })
        .len();
        assert_eq!((asked, rest), (vec![(8, 100)], 2));
    }

    #[test]
    fn all_buckets_of_the_counts_so_far_are_looked_at() {
        // From 64 to 8, and on to 3: the second fence counts messages in all 64 buckets too.
        let changes = [Change { fence_id: 100, bucket_count: 64 }, Change { fence_id: 200, bucket_count: 8 }];
        let mut asked = Vec::new();
        let rest = undrained(&changes, |buckets, fence_id| {
            asked.push((buckets, fence_id));
            false
        })
        .len();
        assert_eq!((asked, rest), (vec![(64, 100), (64, 200)], 0));
    }

    #[test]
    fn a_stranded_message_holds_up_nobody() {
        let rest = undrained(&[GROWN], left(&[(500, 7)])).len();
        assert_eq!(rest, 0);
    }

    #[test]
    fn buckets_of_every_undrained_count_are_leased() {
        let changes = [GROWN, SHRUNK];
        assert_eq!(leased_buckets(3, &changes), 64);
        assert_eq!(leased_buckets(3, &changes[..1]), 8);
        assert_eq!(leased_buckets(3, &[]), 3);
        assert_eq!(leased_buckets(1024, &changes), 1024);
    }

    /// Messages of a few keys, stored while the count changes up and down, and published bucket by bucket in random turns
    /// with reads of random length.
    #[test]
    fn keys_keep_their_order_over_any_changes() {
        let mut random = fastrand::Rng::with_seed(11);
        for _ in 0..300 {
            let mut rows: BTreeMap<(Bucket, i64), u8> = BTreeMap::new();
            let mut changes: Vec<Change> = Vec::new();
            let (mut bucket_count, mut last_id) = (8, 0);
            let mut published: BTreeMap<u8, Vec<i64>> = BTreeMap::new();
            let mut storing = 60;
            while storing > 0 || !rows.is_empty() {
                let change = random.u8(0..10);
                if storing > 0 && change == 0 {
                    // Without an id in between there is nothing in between: the earlier fence stands for both.
                    if changes.last().is_none_or(|last| last.fence_id < last_id) {
                        changes.push(Change { fence_id: last_id, bucket_count });
                    }
                    bucket_count = random.u32(1..=16);
                } else if storing > 0 && change < 5 {
                    storing -= 1;
                    last_id += 1;
                    let key = random.u8(0..4);
                    rows.insert((bucket_of(None, Some(&[key]), &[0; 16], bucket_count), last_id), key);
                }
                let kept: Vec<(Bucket, i64)> = rows.keys().copied().collect();
                let rest = undrained(&changes, left(&kept));
                let leased = leased_buckets(bucket_count, rest);
                assert!(kept.iter().all(|(bucket, _)| *bucket < leased), "{kept:?} with {leased} buckets");
                let (bucket, highest) = (random.u32(0..leased), limit(rest).unwrap_or(i64::MAX));
                let read: Vec<_> =
                    rows.range((bucket, 0)..=(bucket, highest)).map(|(place, key)| (*place, *key)).collect();
                for ((bucket, id), key) in read.into_iter().take(random.usize(1..5)) {
                    published.entry(key).or_default().push(id);
                    rows.remove(&(bucket, id));
                }
                // Relays forget drained changes now and then, in whatever order they come to it.
                if random.bool() {
                    changes = undrained(&changes, left(&rows.keys().copied().collect::<Vec<_>>())).to_vec();
                }
            }
            assert_eq!(published.values().map(Vec::len).sum::<usize>(), 60);
            for (key, ids) in published {
                assert!(ids.is_sorted(), "key {key}: {ids:?}");
            }
        }
    }

    #[test]
    fn what_a_fence_has_withheld_is_read_first_once_it_is_drained() {
        let mut withheld = Withheld::default();
        assert_eq!(withheld.after(1, 70), 70);
        withheld.was_read(1, Some(50));
        assert_eq!((withheld.after(1, 70), withheld.after(1, 40), withheld.after(2, 70)), (50, 40, 70));
        withheld.was_read(1, Some(60));
        assert_eq!(withheld.after(1, 70), 60, "the next fence");
        withheld.was_read(1, None);
        assert_eq!(withheld.after(1, 70), 70);
    }
}
