//! Refused messages, remembered for the next owner.

use std::time::Duration;

use super::StoreFixture;
use super::fleet::{AMPLE, Fleet, failed, messages};
use crate::bucket::Bucket;
use crate::conformance::{Outcome, Unmet, ensure};
use crate::message::Batch;
use crate::relay::ports::{Acknowledged, Failure};

/// A restart or a change of owner must not begin anew with a message that has failed for hours.
///
/// # Errors
/// As [`Unmet`] says.
pub fn a_noted_failure_is_read_by_the_next_owner(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    let noted = failure(&fleet, batch.id(0), 3, "it is too large");
    note(&mut fleet, &noted)?;
    fleet.pass(0.1);
    let read = read(&mut fleet, "b", &[0, 1, 2])?;
    ensure!(read.len() == 1, "one failure was noted, read were {read:?}");
    let expected = Failure { wait: read[0].wait, ..noted.clone() };
    ensure!(read[0] == expected && read[0].wait <= noted.wait, "noted was {noted:?}, read {:?}", read[0]);
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
        let noted = failure(&fleet, batch.id(0), attempts, error);
        note(&mut fleet, &noted)?;
    }
    let read = read(&mut fleet, "a", &[1])?;
    let told: Vec<_> = read.iter().map(|failure| (failure.attempts, failure.error.as_str())).collect();
    ensure!(told == [(2, "not authorized")], "the second note counts, read were {read:?}");
    Ok(())
}

/// It stands at the head of its bucket; notes of messages that are gone mean nothing.
///
/// # Errors
/// As [`Unmet`] says.
pub fn the_first_noted_message_that_still_exists_counts(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    for index in [2, 1, 0] {
        let noted = failure(&fleet, batch.id(index), 1, "refused");
        note(&mut fleet, &noted)?;
    }
    for done in 0..=batch.len() {
        if done > 0 {
            let lease = fleet.lease("a", 1)?;
            ensure!(fleet.acknowledge("a", lease, &batch, done)?, "the lease holds, but the store says no");
        }
        let read: Vec<i64> = read(&mut fleet, "b", &[1])?.iter().map(|failure| failure.id).collect();
        let expected: Vec<i64> = (done..batch.len()).take(1).map(|index| batch.id(index)).collect();
        ensure!(read == expected, "the first {done} messages are gone, read is {read:?} and not {expected:?}");
    }
    Ok(())
}

/// The next attempt comes when it was to come, not a whole wait after the change of owner.
///
/// # Errors
/// As [`Unmet`] says.
pub fn the_noted_wait_runs_out(fixture: &mut dyn StoreFixture) -> Outcome {
    let (mut fleet, batch) = begin(fixture)?;
    let noted = failure(&fleet, batch.id(0), 1, "refused");
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
        let noted = failure(&fleet, batch.id(index), 1, "refused");
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
    let (batch, _) = fleet.fetch("a", 1, 0, AMPLE)?;
    ensure!(batch.len() == 3, "three messages are committed, read is {batch:?}");
    Ok((fleet, batch))
}

/// A failure in bucket 1 whose next attempt comes after a lease duration.
fn failure(fleet: &Fleet<'_>, id: i64, attempts: u32, error: &str) -> Failure {
    let wait: Duration = fleet.duration;
    Failure { bucket: 1, id, attempts, error: error.to_owned(), wait }
}

/// What is left of the wait that is noted in bucket 1, as another relay reads it.
fn wait_left(fleet: &mut Fleet<'_>) -> Result<Duration, Unmet> {
    let noted = read(fleet, "b", &[1])?.pop();
    noted.map(|failure| failure.wait).ok_or_else(|| Unmet::Broken("the note is gone".to_owned()))
}

fn note(fleet: &mut Fleet<'_>, failure: &Failure) -> Outcome {
    fleet.notes("a")?.note_failure(failure).map_err(|error| failed("note_failure", &error))
}

fn read(fleet: &mut Fleet<'_>, relay: &str, buckets: &[Bucket]) -> Result<Vec<Failure>, Unmet> {
    fleet.notes(relay)?.failures(buckets).map_err(|error| failed("failures", &error))
}
