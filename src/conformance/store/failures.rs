//! Refused messages, remembered for the next owner.

use std::time::Duration;

use super::StoreFixture;
use super::fleet::{Fleet, failed, messages};
use crate::bucket::Bucket;
use crate::conformance::{Outcome, Unmet, ensure};
use crate::message::Batch;
use crate::order::Unit;
use crate::relay::ports::{Acknowledged, Failure, FailureNote};

/// A restart or a change of owner must not begin anew with a message that has failed for hours.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_noted_failure_is_read_by_the_next_owner(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    let noted = failure(&fleet, &batch, 0, 3, "it is too large");
    note(&mut fleet, &noted)?;
    fleet.pass(0.1);
    let read = read(&mut fleet, "b", &[0, 1, 2])?;
    ensure!(read.len() == 1, "one failure was noted, read were {read:?}");
    let expected = Failure { wait: read[0].wait, failing_for: read[0].failing_for, ..noted.clone() };
    ensure!(read[0] == expected && read[0].wait <= noted.wait, "noted was {noted:?}, read {:?}", read[0]);
    ensure!(read[0].wait.is_some(), "it is to be tried again");
    let elsewhere = self::read(&mut fleet, "b", &[0, 2])?;
    ensure!(elsewhere.is_empty(), "other buckets have {elsewhere:?}");
    ensure!(self::read(&mut fleet, "b", &[])?.is_empty(), "no bucket has a failure");
    Ok(())
}

/// Attempts are counted on, and what was reported last is what helps.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_later_note_replaces_the_earlier(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    for (attempts, error) in [(1, "no such topic"), (2, "not authorized")] {
        let noted = failure(&fleet, &batch, 0, attempts, error);
        note(&mut fleet, &noted)?;
    }
    let read = read(&mut fleet, "a", &[1])?;
    let told: Vec<_> = read.iter().map(|failure| (failure.attempts, failure.error.as_str())).collect();
    ensure!(told == [(2, "not authorized")], "the second note counts, read were {read:?}");
    Ok(())
}

/// An earlier message of the unit is refused, for which the later one now waits; what was noted of that one is over.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_note_ends_the_one_that_it_takes_the_place_of(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    for index in [1, 2] {
        let noted = failure(&fleet, &batch, index, 1, "refused");
        note(&mut fleet, &noted)?;
    }
    let earlier = failure(&fleet, &batch, 0, 1, "refused");
    note_in_place_of(&mut fleet, &earlier, Some(batch.id(1)))?;
    let read: Vec<i64> = read(&mut fleet, "b", &[1])?.iter().map(|failure| failure.id).collect();
    ensure!(read == [batch.id(0), batch.id(2)], "the note of {} is to end and no other, read is {read:?}", batch.id(1));
    Ok(())
}

/// Who does not know yet that it has lost a bucket must not overwrite what the new owner has noted.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_note_under_a_lost_lease_changes_nothing(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    let parked = Failure { wait: None, ..failure(&fleet, &batch, 0, 2, "refused") };
    let lost = fleet.lease("a", 1)?;
    fleet.pass(1.5);
    fleet.acquire("b")?;
    let theirs = FailureNote { lease: fleet.lease("b", 1)?, failure: parked.clone(), in_place_of: None };
    fleet.notes("b")?.note_failures(&[theirs]).map_err(|error| failed("note_failures", &error))?;
    for (index, in_place_of) in [(0, None), (1, Some(parked.id))] {
        let late = FailureNote { lease: lost, failure: failure(&fleet, &batch, index, 1, "refused"), in_place_of };
        fleet.notes("a")?.note_failures(&[late]).map_err(|error| failed("note_failures", &error))?;
    }
    let told: Vec<_> = read(&mut fleet, "b", &[1])?.iter().map(|failure| (failure.id, failure.wait)).collect();
    ensure!(told == [(parked.id, None)], "only the owner's note counts, read is {told:?}");
    Ok(())
}

/// Every one of them holds something up; notes of messages that are gone mean nothing.
///
/// # Errors
/// As [`Unmet`] says.
pub fn all_noted_messages_that_still_exist_count(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    for index in [2, 1, 0] {
        let noted = failure(&fleet, &batch, index, 1, "refused");
        note(&mut fleet, &noted)?;
    }
    for done in 0..=batch.len() {
        if done > 0 {
            let lease = fleet.lease("a", 1)?;
            ensure!(fleet.acknowledge("a", lease, &batch, done)?, "the lease holds, but the store says no");
        }
        let read: Vec<i64> = read(&mut fleet, "b", &[1])?.iter().map(|failure| failure.id).collect();
        let expected: Vec<i64> = (done..batch.len()).map(|index| batch.id(index)).collect();
        ensure!(read == expected, "the first {done} messages are gone, read is {read:?} and not {expected:?}");
    }
    Ok(())
}

/// A topic that takes nothing holds up more than a key does, and the next owner must know which of the two it is.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_note_on_a_topic_is_read_as_one(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    let topic = Unit::topic(batch.message(0).topic).into_owned();
    let noted = Failure { unit: topic, ..failure(&fleet, &batch, 0, 1, "no such topic") };
    note(&mut fleet, &noted)?;
    let read = read(&mut fleet, "b", &[1])?;
    ensure!(read.len() == 1 && read[0].unit == noted.unit, "noted was {noted:?}, read {read:?}");
    Ok(())
}

/// A message that waits for an operator is not tried again by the next owner.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_parked_message_stays_parked(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    let noted = Failure { wait: None, ..failure(&fleet, &batch, 0, 5, "too large") };
    note(&mut fleet, &noted)?;
    fleet.pass(1.5);
    let read = read(&mut fleet, "b", &[1])?;
    ensure!(read.len() == 1 && read[0].wait.is_none(), "noted was {noted:?}, read {read:?}");
    Ok(())
}

/// How long a message has been failing decides with the attempts when it is parked.
///
/// # Errors
/// As [`Unmet`] says.
pub fn the_time_since_the_first_refusal_goes_on(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    for attempts in [1, 2] {
        let noted = failure(&fleet, &batch, 0, attempts, "refused");
        note(&mut fleet, &noted)?;
        fleet.pass(0.4);
    }
    let read = read(&mut fleet, "b", &[1])?;
    let least = fleet.duration.mul_f64(0.8);
    ensure!(read.len() == 1 && read[0].failing_for >= least, "it fails for {least:?}, read is {read:?}");
    Ok(())
}

/// The next attempt comes when it was to come, not a whole wait after the change of owner.
///
/// # Errors
/// As [`Unmet`] says.
pub fn the_noted_wait_runs_out(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    let noted = failure(&fleet, &batch, 0, 1, "refused");
    note(&mut fleet, &noted)?;
    for passed in [0.3, 0.3, 0.6] {
        let before = wait_left(&mut fleet)?;
        fleet.pass(passed);
        let after = wait_left(&mut fleet)?;
        let most = before.saturating_sub(fleet.duration.mul_f64(passed));
        ensure!(after <= most, "of {before:?} should be left {most:?} at most, but {after:?} is");
        ensure!(passed > 0.5 || !after.is_zero(), "of {before:?} nothing is left too soon");
    }
    Ok(())
}

/// A message behind it may have been refused as well, and waits on.
///
/// # Errors
/// As [`Unmet`] says.
pub fn the_end_of_a_failure_leaves_later_notes(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    for index in [0, 2] {
        let noted = failure(&fleet, &batch, index, 1, "refused");
        note(&mut fleet, &noted)?;
    }
    let lease = fleet.lease("a", 1)?;
    fleet.acknowledge_all("a", &[Acknowledged { lease, batch: &batch, len: 1, ends_failure: true }])?;
    let read: Vec<i64> = read(&mut fleet, "b", &[1])?.iter().map(|failure| failure.id).collect();
    ensure!(read == [batch.id(2)], "the note of {} is to stay and no other, read is {read:?}", batch.id(2));
    Ok(())
}

/// A relay that holds everything, and three messages in bucket 1, if the store remembers failures.
fn begin(fixture: &mut dyn StoreFixture) -> Result<(Fleet<'_>, Batch), Unmet> {
    let mut fleet = Fleet::new(fixture);
    fleet.notes("a")?;
    fleet.acquire("a")?;
    fleet.fixture.commit(1, &messages(3));
    let batch = fleet.read("a", 1, 0)?;
    ensure!(batch.len() == 3, "three messages are committed, read is {batch:?}");
    Ok((fleet, batch))
}

/// A failure in bucket 1 whose next attempt comes after a lease duration.
fn failure(fleet: &Fleet<'_>, batch: &Batch, index: usize, attempts: u32, error: &str) -> Failure {
    let unit = Unit::of(&batch.message(index)).into_owned();
    let (error, wait) = (error.to_owned(), Some(fleet.duration));
    Failure { bucket: 1, id: batch.id(index), unit, attempts, error, failing_for: Duration::ZERO, wait }
}

/// What is left of the wait that is noted in bucket 1, as another relay reads it.
fn wait_left(fleet: &mut Fleet<'_>) -> Result<Duration, Unmet> {
    let noted = read(fleet, "b", &[1])?.pop();
    noted.and_then(|failure| failure.wait).ok_or_else(|| Unmet::Broken("the note is gone".to_owned()))
}

fn note(fleet: &mut Fleet<'_>, failure: &Failure) -> Outcome {
    note_in_place_of(fleet, failure, None)
}

fn note_in_place_of(fleet: &mut Fleet<'_>, failure: &Failure, in_place_of: Option<i64>) -> Outcome {
    let noted = FailureNote { lease: fleet.lease("a", failure.bucket)?, failure: failure.clone(), in_place_of };
    fleet.notes("a")?.note_failures(&[noted]).map_err(|error| failed("note_failures", &error))
}

fn read(fleet: &mut Fleet<'_>, relay: &str, buckets: &[Bucket]) -> Result<Vec<Failure>, Unmet> {
    fleet.notes(relay)?.failures(buckets).map_err(|error| failed("failures", &error))
}
