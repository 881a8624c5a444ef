//! The relay's clock: monotonic, and it counts the time that the host is suspended, as a lease on the server's clock does.

use std::time::Duration;

use crate::clock::Time;
use crate::relay::ports::Clock;

/// CLOCK_BOOTTIME.
#[derive(Debug, Clone, Copy)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Time {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills the struct; this clock exists since Linux 2.6.39.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
        assert_eq!(status, 0, "the system has no CLOCK_BOOTTIME");
        Time::since_zero(Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32))
    }
}
