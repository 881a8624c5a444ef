//! Time as the rules see it.
//!
//! Reason: a lease's age must not jump when somebody sets the host's clock, and must go on while the host sleeps. So it is
//! measured on a monotonic clock that counts suspended time, and in pure code time is always a parameter.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment on the relay's monotonic clock, comparable within one process only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Duration);

impl Time {
    /// The moment this long after the clock's zero.
    #[must_use]
    pub const fn since_zero(duration: Duration) -> Self {
        Self(duration)
    }

    /// How long ago `earlier` was; nothing when it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment so long before this one, or the clock's zero if that is later.
    #[must_use]
    pub fn before(self, duration: Duration) -> Time {
        Time(self.0.saturating_sub(duration))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(duration))
    }
}

impl Sub<Time> for Time {
    type Output = Duration;
    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}
