//! Every knob of a relay as a plain value, checked together.

use std::time::Duration;

use crate::lease::LeaseTimes;

/// Most relays of one database.
pub const WORKERS_MAX: usize = 16;

/// The settings of one relay; src/postgres/gucs.rs describes them to users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Publish at all.
    pub enabled: bool,
    /// Lease duration and renewal.
    pub lease: LeaseTimes,
    /// Rows of a batch, at least 1.
    pub batch_size: usize,
    /// Bytes of a batch; the row that passes the limit is the batch's last.
    pub batch_bytes: usize,
    /// How often buckets are looked at without a bell.
    pub poll_interval: Duration,
    /// First wait after a failure.
    pub error_backoff: Duration,
    /// Longest time that a stopping relay waits for Kafka.
    pub shutdown_timeout: Duration,
}

/// Settings that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "outbox_relay.lease_renew_interval ({renew_interval:?}) must be less than outbox_relay.lease_duration ({duration:?})"
)]
pub struct Contradiction {
    renew_interval: Duration,
    duration: Duration,
}

impl Settings {
    /// Checks the rules that concern more than one setting.
    ///
    /// # Errors
    /// When a lease would end before it is renewed.
    pub fn check(&self) -> Result<(), Contradiction> {
        let LeaseTimes { duration, renew_interval } = self.lease;
        if renew_interval < duration { Ok(()) } else { Err(Contradiction { renew_interval, duration }) }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            lease: LeaseTimes { duration: Duration::from_secs(30), renew_interval: Duration::from_secs(10) },
            batch_size: 5000,
            batch_bytes: 4 << 20,
            poll_interval: Duration::from_secs(10),
            error_backoff: Duration::from_secs(1),
            shutdown_timeout: Duration::from_secs(3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_agree() {
        assert_eq!(Settings::default().check(), Ok(()));
    }

    #[test]
    fn a_lease_must_outlast_its_renewal() {
        let mut settings = Settings::default();
        settings.lease.renew_interval = settings.lease.duration;
        let error = settings.check().expect_err("equal is too late");
        assert_eq!(
            error.to_string(),
            "outbox_relay.lease_renew_interval (30s) must be less than outbox_relay.lease_duration (30s)"
        );
    }
}
