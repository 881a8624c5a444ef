//! What reached Kafka from writers that number their messages.
//!
//! Each writer's numbers must come without gap and repetition, and each key's in rising order (numbered.rs says how they are
//! written). It is checked as they come, so a run can be read while it goes on.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::consumer::{Consumer, Record};

use crate::numbered::{self, WRITERS_MAX};

/// At a time; after each it is asked again how many there are.
const LOOK: Duration = Duration::from_millis(100);
/// Without a record.
const ARRIVE_AT_MOST: Duration = Duration::from_secs(120);

/// Reads a topic from where it was left, run by run.
pub struct Arrivals {
    consumer: Consumer,
    topic: String,
    /// The highest number of each key.
    last: HashMap<Vec<u8>, u64>,
    /// The highest number of each writer, up to which all have come.
    complete: Vec<u64>,
    /// Records in all.
    read: u64,
}

/// One message of a run.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Who wrote it.
    pub writer: usize,
    /// Its number among those of its writer in this run, from 1.
    pub number: u64,
    /// When the consumer handed it out, since 1970.
    pub at: Duration,
}

impl Arrivals {
    /// Follows a topic, which is empty.
    pub fn follow(bootstrap: &str, topic: &str) -> Result<Arrivals> {
        Ok(Arrivals {
            consumer: Consumer::follow(bootstrap, &[topic])?,
            topic: topic.to_owned(),
            last: HashMap::new(),
            complete: vec![0; WRITERS_MAX as usize],
            read: 0,
        })
    }

    /// The numbers from which writers begin in the next run: none has reached them.
    pub fn next_base(&self) -> u64 {
        self.complete.iter().copied().max().unwrap_or(0)
    }

    /// Records that were read and found right.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Leaves broker and processors alone until [`Self::read_past_run`].
    pub fn pause(&self) -> Result<()> {
        self.consumer.pause()
    }

    /// Reads a run that is over, paused before and after it.
    pub fn read_past_run(&mut self, base: u64, total: u64) -> Result<()> {
        self.consumer.resume()?;
        self.read_run(base, || Some(total))?;
        self.pause()
    }

    /// Follows again.
    pub fn resume(&self) -> Result<()> {
        self.consumer.resume()
    }

    /// Reads a run whose writers began above `base`, as it happens. Ends when `total` says how many there are and all have
    /// been read; an error tells what was lost, repeated or out of order.
    pub fn read_run(&mut self, base: u64, mut total: impl FnMut() -> Option<u64>) -> Result<Vec<Arrival>> {
        let mut arrivals = Vec::new();
        let mut idle = Duration::ZERO;
        while total().is_none_or(|total| (arrivals.len() as u64) < total) {
            let Some(record) = self.consumer.next(LOOK)? else {
                idle += LOOK;
                ensure!(
                    total().is_none() || idle < ARRIVE_AT_MOST,
                    "{} records of {:?} have not arrived",
                    total().unwrap_or(0) - arrivals.len() as u64,
                    self.topic
                );
                continue;
            };
            idle = Duration::ZERO;
            let at = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
            let (writer, number) = self.take_in(record, base)?;
            arrivals.push(Arrival { writer, number, at });
        }
        self.close_run(base, &arrivals)?;
        Ok(arrivals)
    }

    fn take_in(&mut self, record: Record, base: u64) -> Result<(usize, u64)> {
        let number = record.value.as_deref().and_then(numbered::number).context("a value that nobody wrote")?;
        let key = record.key.context("a record without a key")?;
        let writer = writer(&key).context("a record with another key")?;
        ensure!(number > base, "message {number} of writer {writer} is one of an earlier run");
        if let Some(before) = self.last.insert(key, number) {
            ensure!(before < number, "message {number} of writer {writer} came after message {before} of the same key");
        }
        self.read += 1;
        Ok((writer as usize, number - base))
    }

    /// Each writer's numbers, all of them once.
    fn close_run(&mut self, base: u64, arrivals: &[Arrival]) -> Result<()> {
        let mut seen: Vec<Vec<bool>> = vec![Vec::new(); WRITERS_MAX as usize];
        for arrival in arrivals {
            let seen = &mut seen[arrival.writer];
            let place = arrival.number as usize - 1;
            if seen.len() <= place {
                seen.resize(place + 1, false);
            }
            ensure!(!seen[place], "message {} of writer {} came twice", arrival.number, arrival.writer);
            seen[place] = true;
        }
        for (writer, seen) in seen.iter().enumerate() {
            let lost = seen.iter().filter(|seen| !**seen).count();
            ensure!(lost == 0, "{lost} of {} messages of writer {writer} were lost", seen.len());
            self.complete[writer] = base + seen.len() as u64;
        }
        Ok(())
    }
}

fn writer(key: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(key.strip_prefix(b"key-")?).ok()?.parse().ok()?;
    Some(number % WRITERS_MAX)
}
