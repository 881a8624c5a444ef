//! How often to look for rows that no bell told of.
//!
//! Reason: such a look wades through all that was removed and not yet cleaned away. That is nothing, unless some transaction
//! keeps vacuum from it for long: then it may be millions of rows, and looking would take more time than publishing does.
//!
//! Rule: looks take no more than a fiftieth of the time, but come at least every sixth interval. One slow look alone changes
//! nothing: it may have met a slow disk.

use std::time::Duration;

use crate::clock::Time;

/// Looks may take this part of the time.
const PART: u32 = 50;
/// In intervals: the longest time between two looks, however long they take.
const BETWEEN_MAX: u32 = 6;

/// The last looks.
#[derive(Debug, Default)]
pub(super) struct Looks {
    begun: Option<Time>,
    /// What the last one has taken so far, and the one before it.
    last: Duration,
    before: Duration,
}

impl Looks {
    /// When the next look may come, if it is not to take too large a part of the time.
    pub fn not_before(&self, interval: Duration) -> Option<Time> {
        let took = self.last.min(self.before);
        self.begun.map(|begun| begun + took.saturating_mul(PART).min(interval * BETWEEN_MAX))
    }

    /// A look begins.
    pub fn begin(&mut self, now: Time) {
        self.before = self.last;
        self.last = Duration::ZERO;
        self.begun = Some(now);
    }

    /// Some of it has taken this long.
    pub fn took(&mut self, time: Duration) {
        self.last += time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const NOW: Time = Time::since_zero(Duration::from_secs(100));

    fn after(looks: &[u64]) -> Duration {
        let mut last = Looks::default();
        for milliseconds in looks {
            last.begin(NOW);
            last.took(Duration::from_millis(*milliseconds));
        }
        last.not_before(INTERVAL).map_or(Duration::ZERO, |at| at.since(NOW))
    }

    #[test]
    fn looks_that_take_long_come_less_often() {
        assert_eq!(after(&[]), Duration::ZERO);
        assert_eq!(after(&[2, 2]), Duration::from_millis(100), "no matter");
        assert_eq!(after(&[5, 900, 500]), Duration::from_secs(25));
        assert_eq!(after(&[5, 900]), Duration::from_millis(250), "only once");
        assert_eq!(after(&[60_000, 60_000]), INTERVAL * BETWEEN_MAX);
    }

    #[test]
    fn all_parts_of_a_look_count() {
        let mut looks = Looks::default();
        for _ in 0..2 {
            looks.begin(NOW);
            (0..4).for_each(|_| looks.took(Duration::from_millis(100)));
        }
        assert_eq!(looks.not_before(INTERVAL), Some(NOW + Duration::from_secs(20)));
    }
}
