//! How long to wait after the nth failure in a row.
//!
//! Reason: an outage must not be hammered, and relays that failed together must not come back together. Yet the wait must
//! stay below the renewal of the lease, or a relay would lose its buckets by being patient.
//!
//! Rule: the first wait is the floor `error_backoff`. The kth is drawn evenly from the floor to a ceiling
//! that doubles with k and ends at `lease_renew_interval`. The random numbers are seeded by the relay's id: relays are
//! out of step, one relay is repeatable.

use std::time::Duration;

/// Draws waits between a floor and a growing ceiling.
#[derive(Debug)]
pub struct Backoff {
    floor: Duration,
    ceiling: Duration,
    random: fastrand::Rng,
}

impl Backoff {
    /// `floor` is `error_backoff`, `ceiling` is `lease_renew_interval`.
    #[must_use]
    pub fn new(floor: Duration, ceiling: Duration, relay_id: &str) -> Self {
        Self { floor, ceiling, random: fastrand::Rng::with_seed(fnv1a(relay_id.as_bytes())) }
    }

    /// New limits, as after a reload; the sequence of random numbers goes on.
    pub fn set_limits(&mut self, floor: Duration, ceiling: Duration) {
        self.floor = floor;
        self.ceiling = ceiling;
    }

    /// The wait after `failures` failures in a row.
    pub fn after(&mut self, failures: u32) -> Duration {
        if failures <= 1 || self.ceiling <= self.floor {
            return self.floor;
        }
        let exponent = (failures - 1).min(30);
        let ceiling = self.floor.saturating_mul(1 << exponent).min(self.ceiling);
        self.floor + (ceiling - self.floor).mul_f64(self.random.f64())
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: Duration = Duration::from_secs(1);
    const I: Duration = Duration::from_secs(10);

    #[test]
    fn first_wait_is_the_floor() {
        assert_eq!(Backoff::new(E, I, "a").after(0), E);
        assert_eq!(Backoff::new(E, I, "a").after(1), E);
    }

    #[test]
    fn waits_lie_between_the_floor_and_a_doubling_ceiling() {
        let mut backoff = Backoff::new(E, I, "a");
        for k in 1..=100u32 {
            let ceiling = I.min(E * 2u32.pow((k - 1).min(10)));
            let wait = backoff.after(k);
            assert!(wait >= E && wait <= ceiling, "wait {wait:?} after {k} failures");
        }
    }

    #[test]
    fn waits_are_spread() {
        let mut backoff = Backoff::new(E, I, "a");
        let waits: std::collections::BTreeSet<_> = (0..20).map(|_| backoff.after(8)).collect();
        assert!(waits.len() > 15);
    }

    #[test]
    fn a_relay_is_repeatable_and_two_are_out_of_step() {
        let draw = |id| {
            let mut backoff = Backoff::new(E, I, id);
            [backoff.after(5), backoff.after(6), backoff.after(7)]
        };
        assert_eq!(draw("a"), draw("a"));
        assert_ne!(draw("a"), draw("b"));
    }

    #[test]
    fn a_floor_above_the_renewal_is_constant() {
        let mut backoff = Backoff::new(I, E, "a");
        assert_eq!(backoff.after(9), I);
    }
}
