//! Every knob of a relay as a plain value, checked together.

use std::time::Duration;

use crate::lease::LeaseTimes;
use crate::policy::Patience;
use crate::window;

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
    /// What may be in flight at a time.
    pub window: window::Size,
    /// What a message that is refused for good gets before its topic's policy acts.
    pub patience: Patience,
    /// How often buckets are looked at without a bell.
    pub poll_interval: Duration,
    /// First wait after a failure.
    pub error_backoff: Duration,
    /// Longest time that a stopping relay waits for Kafka.
    pub shutdown_timeout: Duration,
    /// Longest time from handing a batch to the client until its last report: a promise that a store without renewal needs,
    /// and no timeout. A relay that sees it broken ends. Without use where the store renews.
    pub max_publish_duration: Option<Duration>,
}

/// Settings that a relay can't work with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// A lease would end before it is renewed.
    #[error(
        "outbox_relay.lease_renew_interval ({renew_interval:?}) must be less than outbox_relay.lease_duration ({duration:?})"
    )]
    RenewalTooLate {
        /// `lease_renew_interval`.
        renew_interval: Duration,
        /// `lease_duration`.
        duration: Duration,
    },
    /// No lease would be young enough to begin a publish.
    #[error(
        "max_publish_duration ({budget:?}) must be more than zero and less than lease_duration less lease_renew_interval ({room:?})"
    )]
    PublishTooLong {
        /// `max_publish_duration`.
        budget: Duration,
        /// What it must stay below.
        room: Duration,
    },
    /// Nothing would keep a lease alive while messages are on their way.
    #[error("a store without renewal needs max_publish_duration")]
    NoPublishDuration,
}

impl Settings {
    /// Checks the rules that concern more than one setting.
    ///
    /// # Errors
    /// When a lease would end before it is renewed, or could never begin a publish.
    pub fn check(&self) -> Result<(), Contradiction> {
        let LeaseTimes { duration, renew_interval } = self.lease;
        if renew_interval >= duration {
            return Err(Contradiction::RenewalTooLate { renew_interval, duration });
        }
        let room = duration - renew_interval;
        match self.max_publish_duration {
            Some(budget) if budget.is_zero() || budget >= room => Err(Contradiction::PublishTooLong { budget, room }),
            _ => Ok(()),
        }
    }

    /// As [`Self::check`], for a relay whose store does not renew leases.
    ///
    /// # Errors
    /// As [`Self::check`], and when there is no `max_publish_duration`.
    pub fn check_without_renewal(&self) -> Result<Duration, Contradiction> {
        self.check()?;
        self.max_publish_duration.ok_or(Contradiction::NoPublishDuration)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            lease: LeaseTimes { duration: Duration::from_secs(30), renew_interval: Duration::from_secs(10) },
            batch_size: 5000,
            batch_bytes: 4 << 20,
            window: window::Size::default(),
            patience: Patience::default(),
            poll_interval: Duration::from_secs(10),
            error_backoff: Duration::from_secs(1),
            shutdown_timeout: Duration::from_secs(3),
            max_publish_duration: None,
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

    #[test]
    fn a_publish_must_fit_between_renewals_where_leases_are_not_renewed() {
        let check = |budget| Settings { max_publish_duration: budget, ..Settings::default() }.check_without_renewal();
        let seconds = Duration::from_secs;
        assert_eq!(check(Some(seconds(19))), Ok(seconds(19)));
        for budget in [seconds(0), seconds(20), seconds(40)] {
            assert_eq!(check(Some(budget)), Err(Contradiction::PublishTooLong { budget, room: seconds(20) }));
        }
        assert_eq!(check(None), Err(Contradiction::NoPublishDuration));
    }
}
