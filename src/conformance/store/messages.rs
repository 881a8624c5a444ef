//! Finding, reading and removing messages.

use std::collections::BTreeSet;

use super::StoreFixture;
use super::fleet::{AMPLE, Fleet, failed, message, messages};
use crate::bucket::Bucket;
use crate::conformance::{Outcome, Unmet, ensure};
use crate::headers::{self, Header};
use crate::lease::Lease;
use crate::message::{Batch, Message};
use crate::relay::ports::{Acknowledged, Limits, Removed};

/// A relay reads only buckets that were found, so one that is missed waits, and one too many is read in vain.
///
/// # Errors
/// As [`Unmet`] says.
pub fn pending_finds_the_buckets_with_messages(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    fleet.fixture.commit(0, &messages(3));
    fleet.fixture.commit(2, &messages(1));
    let cases: [(&[Bucket], &[Bucket]); 5] =
        [(&[0, 1, 2, 3], &[0, 2]), (&[1, 3], &[]), (&[2], &[2]), (&[1, 0], &[0]), (&[], &[])];
    for (asked, expected) in cases {
        let found = fleet.store("a").pending(asked).map_err(|error| failed("pending", &error))?;
        let found_once: BTreeSet<Bucket> = found.iter().copied().collect();
        ensure!(
            found.len() == found_once.len() && found_once.iter().eq(expected),
            "of {asked:?} it found {found:?} and not {expected:?}"
        );
    }
    Ok(())
}

/// What the application took back was never said.
///
/// # Errors
/// As [`Unmet`] says.
pub fn rolled_back_messages_never_appear(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    fleet.fixture.roll_back(1, &messages(2));
    let found = fleet.store("a").pending(&[1]).map_err(|error| failed("pending", &error))?;
    ensure!(found.is_empty(), "the bucket is found");
    ensure!(fleet.fetch("a", 1, 0, AMPLE)?.0.is_empty(), "a message is read");
    let ids = fleet.fixture.commit(1, &messages(2));
    fleet.fixture.roll_back(1, &messages(2));
    let (batch, more) = fleet.fetch("a", 1, 0, AMPLE)?;
    ensure!(batch.ids(batch.len()).eq(ids.iter().copied()) && !more, "{ids:?} are committed, {} read", batch.len());
    Ok(())
}

/// The order of storing is the order of publishing, bucket by bucket.
///
/// # Errors
/// As [`Unmet`] says.
pub fn messages_come_oldest_first_and_of_one_bucket(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let mut numbers: [Vec<u8>; 2] = Default::default();
    for number in 1..=20 {
        let bucket = usize::from(number % 3 == 0);
        fleet.fixture.commit(bucket as Bucket, &[message(number)]);
        numbers[bucket].push(number);
    }
    for (bucket, numbers) in (0..).zip(&numbers) {
        let batch = fleet.read("a", bucket, 0)?;
        ensure!(batch.ids(batch.len()).is_sorted_by(|a, b| a < b), "ids do not ascend: {batch:?}");
        ensure!(numbers_of(&batch) == *numbers, "{numbers:?} were committed, {:?} read", numbers_of(&batch));
    }
    Ok(())
}

/// Bytes are the application's; null and empty are two things to a consumer.
///
/// # Errors
/// As [`Unmet`] says.
pub fn messages_come_back_as_they_were_stored(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let every_byte: Vec<u8> = (0..=255).collect();
    let stored_headers =
        headers::encode([Some(&b"v"[..]), Some(b""), None].into_iter().map(|value| Header { name: "n", value }));
    let mut stored = Vec::new();
    for key in [None, Some(&b""[..]), Some(&every_byte)] {
        for value in [None, Some(&b""[..]), Some(&every_byte)] {
            for (headers, partition) in [(None, None), (stored_headers.as_deref(), Some(1))] {
                let topic = if partition.is_some() { "a.topic" } else { "another_topic" };
                let number = stored.len() as u8 + 1;
                stored.push(Message { topic, partition, key, value, headers, ..message(number) });
            }
        }
    }
    let ids = fleet.fixture.commit(1, &stored);
    let batch = fleet.read("a", 1, 0)?;
    ensure!(batch.len() == stored.len(), "{} were stored, {} read", stored.len(), batch.len());
    for (index, (stored, id)) in stored.iter().zip(ids).enumerate() {
        let read = batch.message(index);
        let expected = Message { id, handle: read.handle, ..*stored };
        ensure!(read == expected, "stored was {expected:?}, read {read:?}");
    }
    Ok(())
}

/// The relay reads on from where it stands, past what is on its way.
///
/// # Errors
/// As [`Unmet`] says.
pub fn only_messages_above_the_position_come(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let ids = fleet.fixture.commit(1, &messages(5));
    for (index, after) in ids.iter().enumerate() {
        let (batch, more) = fleet.fetch("a", 1, *after, AMPLE)?;
        let rest = &ids[index + 1..];
        ensure!(batch.ids(batch.len()).eq(rest.iter().copied()), "above {after} lie {rest:?}, read was {batch:?}");
        ensure!(!more, "nothing lies behind what was read, but the store says so");
    }
    Ok(())
}

/// A relay that read and then crashed leaves everything to the next.
///
/// # Errors
/// As [`Unmet`] says.
pub fn fetching_removes_nothing(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let ids = fleet.fixture.commit(1, &messages(3));
    let first = fleet.fetch("a", 1, 0, AMPLE)?;
    let second = fleet.fetch("a", 1, 0, AMPLE)?;
    ensure!(first == second && first.0.len() == 3, "read were {first:?}, then {second:?}");
    let left = fleet.fixture.stored(1);
    ensure!(left == ids, "{ids:?} were stored, {left:?} are left");
    Ok(())
}

/// Memory is bounded; and the relay comes again only if it is told that there is more.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_batch_ends_at_the_limit_of_rows(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let ids = fleet.fixture.commit(1, &messages(10));
    let limits = Limits { rows: 4, ..AMPLE };
    let mut after = 0;
    for (expected, expect_more) in [(&ids[..4], true), (&ids[4..8], true), (&ids[8..], false)] {
        let (batch, more) = fleet.fetch("a", 1, after, limits)?;
        ensure!(batch.ids(batch.len()).eq(expected.iter().copied()), "expected {expected:?}, read was {batch:?}");
        ensure!(more == expect_more, "behind {expected:?} the store says {more}");
        after = expected[expected.len() - 1];
    }
    Ok(())
}

/// The same for bytes: the message that passes the limit is the last, and no batch ends before.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_batch_ends_with_the_message_that_passes_the_limit_of_bytes(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let value = vec![b'x'; 1000];
    let large: Vec<_> = messages(10).into_iter().map(|one| Message { value: Some(&value), ..one }).collect();
    fleet.fixture.commit(1, &large);
    let limits = Limits { bytes: 2500, ..AMPLE };
    let (batch, more) = fleet.fetch("a", 1, 0, limits)?;
    ensure!(more, "{} of 10 messages were read, and the store says that there are no more", batch.len());
    ensure!(batch.bytes() >= limits.bytes, "the batch ends at {} bytes, the limit is {}", batch.bytes(), limits.bytes);
    let before_last = batch.payload_bytes(batch.len() - 1);
    ensure!(
        before_last < limits.bytes as u64,
        "the batch went on at {before_last} bytes, the limit is {}",
        limits.bytes
    );
    Ok(())
}

/// Else it would hold up its bucket for ever.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_message_larger_than_the_limit_comes_alone(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let value = vec![b'x'; 5000];
    let large = Message { value: Some(&value), ..message(1) };
    fleet.fixture.commit(1, &[large, message(2)]);
    let (batch, more) = fleet.fetch("a", 1, 0, Limits { bytes: 100, ..AMPLE })?;
    ensure!(numbers_of(&batch) == [1] && more, "read were {:?}, more: {more}", numbers_of(&batch));
    Ok(())
}

/// The buffer is the relay's, and may hold messages already.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_batch_is_appended_to(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let ids = fleet.fixture.commit(1, &messages(5));
    let (mut batch, _) = fleet.fetch("a", 1, 0, Limits { rows: 2, ..AMPLE })?;
    ensure!(batch.ids(batch.len()).eq(ids[..2].iter().copied()), "two of {ids:?} were asked for, read is {batch:?}");
    fleet.fetch_into("a", 1, ids[1], AMPLE, &mut batch)?;
    ensure!(batch.ids(batch.len()).eq(ids.iter().copied()), "expected {ids:?}, the batch is {batch:?}");
    Ok(())
}

/// Its id was drawn early, it committed late, and a message that was written with it in sight must not overtake it.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_late_commit_comes_before_what_followed_it(fixture: &mut dyn StoreFixture) -> Outcome {
    let early = draw(fixture)?;
    let passed = fixture.commit(1, &[message(2)])[0];
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let batch = fleet.read("a", 1, 0)?;
    ensure!(numbers_of(&batch) == [2], "one message is committed, read are {:?}", numbers_of(&batch));
    commit_drawn(fleet.fixture, early, 1);
    fleet.fixture.commit(1, &[message(3)]);
    let batch = fleet.read("a", 1, passed)?;
    // What was read before may come again.
    let read: Vec<u8> = numbers_of(&batch).into_iter().filter(|number| *number != 2).collect();
    ensure!(read == [1, 3], "1 was committed before 3 began, and read above 2 are {read:?}");
    Ok(())
}

/// What is not acknowledged stays, whatever lies beside it.
///
/// # Errors
/// As [`Unmet`] says.
pub fn exactly_the_acknowledged_prefix_is_removed(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let beside = fleet.fixture.commit(2, &messages(5));
    let ids = fleet.fixture.commit(1, &messages(5));
    let later = fleet.fixture.commit(2, &messages(1));
    let batch = fleet.read("a", 1, 0)?;
    let lease = fleet.lease("a", 1)?;
    ensure!(fleet.acknowledge("a", lease, &batch, 3)?, "the lease holds, but the store says no");
    let left = fleet.fixture.stored(1);
    ensure!(left == ids[3..], "the first 3 of {ids:?} were acknowledged, {left:?} are left");
    let left = fleet.fixture.stored(2);
    ensure!(left == [beside, later].concat(), "in another bucket {left:?} are left");
    Ok(())
}

/// The answer to an earlier call may have been lost.
///
/// # Errors
/// As [`Unmet`] says.
pub fn acknowledging_again_is_no_error(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let ids = fleet.fixture.commit(1, &messages(4));
    let batch = fleet.read("a", 1, 0)?;
    let lease = fleet.lease("a", 1)?;
    for len in [2, 2, 3] {
        ensure!(fleet.acknowledge("a", lease, &batch, len)?, "the lease holds, but the store says no");
        let left = fleet.fixture.stored(1);
        ensure!(left == ids[len..], "the first {len} of {ids:?} were acknowledged, {left:?} are left");
    }
    Ok(())
}

/// It was not there when the batch was read, so it was not published.
///
/// # Errors
/// As [`Unmet`] says.
pub fn acknowledging_leaves_what_was_committed_into_a_gap(fixture: &mut dyn StoreFixture) -> Outcome {
    fixture.commit(1, &[message(2)]);
    let gap = draw(fixture)?;
    fixture.commit(1, &[message(3)]);
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let batch = fleet.read("a", 1, 0)?;
    ensure!(numbers_of(&batch) == [2, 3], "two messages are committed, read are {:?}", numbers_of(&batch));
    commit_drawn(fleet.fixture, gap, 1);
    let lease = fleet.lease("a", 1)?;
    ensure!(fleet.acknowledge("a", lease, &batch, 2)?, "the lease holds, but the store says no");
    let left = fleet.fixture.stored(1);
    ensure!(left == [gap], "{gap} was not published, {left:?} are left");
    Ok(())
}

/// Each batch is answered for itself: one lost bucket holds up no other.
///
/// # Errors
/// As [`Unmet`] says.
pub fn batches_of_several_buckets_are_acknowledged_at_once(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let held = fleet.leases("a");
    for lease in &held {
        fleet.fixture.commit(lease.bucket, &messages(2));
    }
    // Half of the leases go to a relay that joins.
    fleet.acquire("b")?;
    fleet.pass(1.0 / 3.0);
    fleet.acquire("a")?;
    let kept = fleet.leases("a");
    let batches: Vec<Batch> =
        held.iter().map(|lease| fleet.read("a", lease.bucket, 0)).collect::<Result<_, Unmet>>()?;
    let all: Vec<Acknowledged<'_>> = held
        .iter()
        .zip(&batches)
        .map(|(lease, batch)| Acknowledged { lease: *lease, batch, len: 1, ends_failure: false })
        .collect();
    let removed = fleet.acknowledge_all("a", &all)?;
    for (lease, removed) in held.iter().zip(removed) {
        let left = fleet.fixture.stored(lease.bucket).len();
        let holds = kept.contains(lease);
        ensure!((removed == Removed::Gone) == holds, "{lease:?} holds: {holds}, and the answer is {removed:?}");
        ensure!(left == if holds { 1 } else { 2 }, "{lease:?} holds: {holds}, and {left} of 2 messages are left");
    }
    Ok(())
}

/// The new owner may have read them already, and answers for them.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_lost_lease_acknowledges_nothing(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let ids = fleet.fixture.commit(1, &messages(3));
    let batch = fleet.read("a", 1, 0)?;
    let lease = fleet.lease("a", 1)?;
    fleet.pass(1.1);
    fleet.acquire("b")?;
    require_refusal(&mut fleet, lease, &batch, &ids)
}

/// A request that was held up somewhere must not act under the lease that the relay got since.
///
/// # Errors
/// As [`Unmet`] says.
pub fn an_earlier_lease_of_the_same_relay_acknowledges_nothing(fixture: &mut dyn StoreFixture) -> Outcome {
    let mut fleet = Fleet::new(fixture);
    fleet.acquire("a")?;
    let ids = fleet.fixture.commit(1, &messages(3));
    let batch = fleet.read("a", 1, 0)?;
    let earlier = fleet.lease("a", 1)?;
    for owner in ["b", "a"] {
        fleet.pass(1.1);
        fleet.acquire(owner)?;
    }
    require_refusal(&mut fleet, earlier, &batch, &ids)?;
    let present = fleet.lease("a", 1)?;
    ensure!(fleet.acknowledge("a", present, &batch, 3)?, "the present lease holds, but the store says no");
    Ok(())
}

/// Relay a acknowledges, is told no, and everything is still there.
fn require_refusal(fleet: &mut Fleet<'_>, lease: Lease, batch: &Batch, ids: &[i64]) -> Outcome {
    ensure!(
        !fleet.acknowledge("a", lease, batch, batch.len())?,
        "{lease:?} is not the owner's, and the store says yes"
    );
    let left = fleet.fixture.stored(lease.bucket);
    ensure!(left == ids, "of {ids:?} only {left:?} are left");
    Ok(())
}

/// An id of bucket 1 for message 1, which commits later.
fn draw(fixture: &mut dyn StoreFixture) -> Result<i64, Unmet> {
    let late = fixture.late_commits().ok_or(Unmet::Skipped("ids are not drawn before the commit"))?;
    Ok(late.draw(1))
}

fn commit_drawn(fixture: &mut dyn StoreFixture, id: i64, number: u8) {
    fixture.late_commits().expect("an id was drawn from it").commit_drawn(1, id, &message(number));
}

fn numbers_of(batch: &Batch) -> Vec<u8> {
    (0..batch.len()).map(|index| batch.message(index).message_id[0]).collect()
}
