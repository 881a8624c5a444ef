//! How often to look for rows that no bell told of, and at how many buckets at a time.
//!
//! Reason: such a look wades through all that was removed and not yet cleaned away, and meanwhile nothing is published. That is
//! nothing, unless some transaction keeps vacuum from it for long: then it may be millions of rows, and seconds.
//!
//! Rule: a round of looks begins every interval and takes the buckets in turn, as many at a time as will take a tenth of a
//! second by what they took last and what was removed of them since, but a tenth of them at least. Then it waits, so that looks
//! take no more than a fiftieth of the time, but for six intervals at most: a round is over after sixty of them and the looks
//! themselves.

use std::mem;
use std::time::Duration;

use crate::bucket::Bucket;
use crate::clock::Time;

/// Looks may take this part of the time.
const PART: u32 = 50;
/// In intervals: the longest wait between two looks of a round, however long they take.
const BETWEEN_MAX: u32 = 6;
/// What looks without anything in between should take at most.
const AT_ONCE: Duration = Duration::from_millis(100);
/// What a removed row adds to the next look while nothing can clean it away. Measured: 0.35 us where the relay has a processor to
/// itself, up to 2.5 us beside writers that take them all.
const A_REMOVED_ROW: Duration = Duration::from_micros(2);
/// A round has no more parts than this.
const PARTS_MAX: usize = 10;

/// The looks of the round under way, or of the last one.
#[derive(Debug)]
pub(super) struct Looks {
    /// When the round began.
    round: Time,
    /// Where it goes on, unless it has been through all buckets.
    next: Option<Bucket>,
    /// When the last part of it began.
    begun: Time,
    /// What that took so far, and what is to come of it behind what is in flight.
    took: Duration,
    to_come: Duration,
}

/// What a look at a bucket may take: as long as the last one, and what was removed since.
#[derive(Debug, Default)]
pub(super) struct Cost {
    last: Duration,
    removed: u32,
    /// What is expected of a look that has begun and is still to come.
    to_come: Duration,
}

impl Cost {
    /// So many rows were removed.
    pub fn removed(&mut self, rows: usize) {
        self.removed = self.removed.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX));
    }

    /// A look has taken this long.
    pub fn looked(&mut self, took: Duration) {
        *self = Self { last: took, ..Self::default() };
    }

    /// A look begins, and comes as batches of the bucket are read. What it is expected to take.
    pub fn begin(&mut self) -> Duration {
        let to_come = self.expected();
        *self = Self { to_come, ..Self::default() };
        to_come
    }

    /// A batch of a look has taken this long. Returns what was to come: what was removed lies in front of the first batch.
    pub fn came(&mut self, is_first: bool, took: Duration) -> Duration {
        let to_come = mem::take(&mut self.to_come);
        if is_first {
            self.looked(took);
        } else {
            self.last += took;
        }
        to_come
    }

    pub fn expected(&self) -> Duration {
        self.last + A_REMOVED_ROW * self.removed
    }
}

/// Buckets to be looked at, and where the round goes on.
#[derive(Debug)]
pub(super) struct Next {
    pub buckets: Vec<Bucket>,
    then: Option<Bucket>,
}

impl Looks {
    /// The first round begins an interval from now: what was just gained is read from its beginning anyway.
    pub fn new(now: Time) -> Self {
        let nothing = Duration::ZERO;
        Self { round: now, next: None, begun: now, took: nothing, to_come: nothing }
    }

    /// When the next looks may come.
    pub fn due(&self, interval: Duration) -> Time {
        let took = self.took + self.to_come;
        let wait = took.saturating_mul(PART - 1).min(interval.saturating_mul(BETWEEN_MAX));
        let part = self.begun + took + wait;
        if self.next.is_some() { part } else { part.max(self.round + interval) }
    }

    /// Which buckets are to be looked at next: of all, in their order, each with what a look at it is expected to take.
    pub fn next(&self, all: impl ExactSizeIterator<Item = (Bucket, Duration)>) -> Next {
        let (least, first) = (all.len().div_ceil(PARTS_MAX), self.next.unwrap_or_default());
        let (mut buckets, mut sum) = (Vec::new(), Duration::ZERO);
        for (bucket, took) in all.filter(|(bucket, _)| *bucket >= first) {
            sum += took;
            if buckets.len() >= least && sum > AT_ONCE {
                return Next { buckets, then: Some(bucket) };
            }
            buckets.push(bucket);
        }
        Next { buckets, then: None }
    }

    /// These are being looked at since then, which has taken so long; that of `to_come` comes behind what is in flight.
    pub fn looked(&mut self, next: &Next, begun: Time, took: Duration, to_come: Duration) {
        if self.next.is_none() {
            self.round = begun;
        }
        let round = self.round;
        *self = Self { round, next: next.then, begun, took, to_come };
    }

    /// A look of which this was to come has taken so long.
    pub fn came(&mut self, to_come: Duration, took: Duration) {
        self.to_come = self.to_come.saturating_sub(to_come);
        self.took += took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const NOW: Time = Time::since_zero(Duration::from_secs(100));

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Looks at so many buckets, each of which takes so long: how many parts a round of them has when the costs are known, the
    /// longest, and the part of the time that they take.
    fn rounds(costs: &[u64]) -> (usize, Duration, f64) {
        let (mut looks, mut known) = (Looks::new(NOW), vec![Duration::ZERO; costs.len()]);
        let (mut parts, mut longest, mut spent, mut since) = (0, Duration::ZERO, Duration::ZERO, NOW);
        for round in 0..4 {
            loop {
                let now = looks.due(INTERVAL);
                if looks.next.is_none() {
                    (parts, longest) = (0, Duration::ZERO);
                }
                let next = looks.next(known.iter().enumerate().map(|(bucket, took)| (bucket as Bucket, *took)));
                let took: Duration = next.buckets.iter().map(|bucket| ms(costs[*bucket as usize])).sum();
                // As one statement tells it: what each has taken is not known.
                next.buckets.iter().for_each(|bucket| known[*bucket as usize] = took / next.buckets.len() as u32);
                looks.looked(&next, now, took, Duration::ZERO);
                (parts, longest) = (parts + 1, longest.max(took));
                if round > 0 {
                    spent += took;
                }
                if looks.next.is_none() {
                    break;
                }
            }
            if round == 0 {
                since = looks.due(INTERVAL);
            }
        }
        (parts, longest, spent.as_secs_f64() / looks.due(INTERVAL).since(since).as_secs_f64())
    }

    #[test]
    fn looks_that_take_nothing_come_every_interval_at_all_buckets() {
        assert_eq!(Looks::new(NOW).due(INTERVAL), NOW + INTERVAL);
        let (parts, longest, part) = rounds(&[1; 64]);
        assert_eq!((parts, longest), (1, ms(64)));
        assert!((part - 0.0064).abs() < 1e-6, "{part}");
    }

    #[test]
    fn looks_that_take_long_are_spread_and_take_a_fiftieth_of_the_time() {
        let dear_ones = |dear: &[usize], cost| {
            let mut costs = [0; 64];
            dear.iter().for_each(|bucket| costs[*bucket] = cost);
            costs
        };
        for costs in [&[600; 8][..], &[40; 64], &dear_ones(&[32], 1000), &dear_ones(&[0, 9, 21, 33, 41, 60], 500)] {
            let (parts, longest, part) = rounds(costs);
            assert!((1..=PARTS_MAX).contains(&parts), "{parts} parts");
            let dearest = ms(*costs.iter().max().expect("some"));
            assert!(longest <= dearest.max(AT_ONCE + dearest).max(ms(40 * 7)), "{longest:?} at once for {costs:?}");
            assert!(part < 0.0201, "{part} for {costs:?}");
        }
    }

    #[test]
    fn what_was_removed_since_the_last_look_is_expected_to_take_its_time() {
        let mut costs = <[Cost; 8]>::default();
        let buckets = |costs: &[Cost]| {
            let all = costs.iter().enumerate().map(|(bucket, cost)| (bucket as Bucket, cost.expected()));
            Looks::new(NOW).next(all).buckets.len()
        };
        assert_eq!(buckets(&costs), 8);
        costs.iter_mut().for_each(|cost| cost.removed(20_000));
        assert_eq!(buckets(&costs), 2, "40 ms each");
        costs.iter_mut().for_each(|cost| cost.looked(ms(1)));
        assert_eq!(buckets(&costs), 8, "what was removed has been cleaned away");
        costs.iter_mut().for_each(|cost| cost.looked(ms(80)));
        costs[0].removed(usize::MAX);
        assert_eq!(buckets(&costs), 1, "no overflow");
    }

    #[test]
    fn however_long_looks_take_a_round_ends_within_sixty_intervals() {
        for buckets in [1, 8, 64, 1024] {
            let (parts, ..) = rounds(&vec![3000; buckets]);
            assert!(parts <= PARTS_MAX, "{parts} parts of {buckets}");
        }
        let mut looks = Looks::new(NOW);
        let next = looks.next([(0, ms(0))].into_iter());
        looks.looked(&next, NOW, Duration::MAX / 2, ms(0));
        assert_eq!(looks.due(INTERVAL), NOW + Duration::MAX / 2 + INTERVAL * BETWEEN_MAX);
    }

    #[test]
    fn looks_behind_what_is_in_flight_count_by_what_is_expected_until_they_come_and_then_by_what_they_take() {
        let mut looks = Looks::new(NOW);
        let next = looks.next([(0, ms(300)), (1, ms(300))].into_iter());
        assert_eq!(next.buckets, [0]);
        looks.looked(&next, NOW, ms(0), ms(300));
        looks.came(ms(300), ms(200));
        assert_eq!(looks.due(INTERVAL), NOW + ms(10_000));
        looks.came(ms(0), ms(200));
        assert_eq!(looks.due(INTERVAL), NOW + ms(20_000));
    }

    #[test]
    fn buckets_that_were_lost_hold_up_no_round() {
        let mut looks = Looks::new(NOW);
        let next = looks.next([(0, ms(0)), (1, ms(200)), (7, ms(200))].into_iter());
        assert_eq!((&next.buckets[..], next.then), (&[0][..], Some(1)));
        looks.looked(&next, NOW, ms(0), ms(0));
        let nothing = looks.next([(0, ms(0))].into_iter());
        assert!(nothing.buckets.is_empty());
        looks.looked(&nothing, NOW + ms(5), ms(0), ms(0));
        assert_eq!(looks.due(INTERVAL), NOW + INTERVAL);
    }
}
