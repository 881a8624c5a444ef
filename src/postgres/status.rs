//! What the views read from shared memory, and the functions for operators.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use pgrx::{IntoDatum, pg_sys};

use crate::relay::ports::Wait;

use super::shared::{self, Database};
use super::{bell, now, stamp};

/// What a relay does or waits for, as outbox.pg_stat_relay shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Starting = 0,
    Idle,
    Standby,
    Publishing,
    WaitingForBroker,
    BackingOff,
    Stopping,
    Paused,
    Copy,
    Disabled,
    NotConfigured,
    Misconfigured,
    VersionMismatch,
}

impl State {
    const ALL: [(Self, &'static str); 13] = [
        (Self::Starting, "starting"),
        (Self::Idle, "idle"),
        (Self::Standby, "standby"),
        (Self::Publishing, "publishing"),
        (Self::WaitingForBroker, "waiting for broker"),
        (Self::BackingOff, "backing off"),
        (Self::Stopping, "stopping"),
        (Self::Paused, "paused"),
        (Self::Copy, "paused as a copy"),
        (Self::Disabled, "disabled"),
        (Self::NotConfigured, "not configured"),
        (Self::Misconfigured, "misconfigured"),
        (Self::VersionMismatch, "version mismatch"),
    ];

    fn name(code: u8) -> &'static str {
        Self::ALL.iter().find(|(state, _)| *state as u8 == code).map_or("unknown", |(_, name)| name)
    }
}

impl From<Wait> for State {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Idle => Self::Idle,
            Wait::Standby => Self::Standby,
            Wait::Publishing => Self::Publishing,
            Wait::Broker => Self::WaitingForBroker,
            Wait::BackingOff => Self::BackingOff,
            Wait::Stopping => Self::Stopping,
        }
    }
}

fn my_database() -> Option<&'static Database> {
    // SAFETY: reads the id of the database of this session.
    shared::header().and_then(|header| header.database(unsafe { pg_sys::MyDatabaseId }))
}

/// A counter as SQL shows it.
fn number(counter: &AtomicU64) -> Option<pg_sys::Datum> {
    i64::try_from(counter.load(Ordering::Relaxed)).unwrap_or(i64::MAX).into_datum()
}

/// A time as SQL shows it; 0 is null.
fn time(at: &AtomicI64) -> Option<pg_sys::Datum> {
    Some(at.load(Ordering::Relaxed)).filter(|at| *at != 0).map(pg_sys::Datum::from)
}

fn text(text: &str) -> Option<pg_sys::Datum> {
    if text.is_empty() { None } else { text.into_datum() }
}

super::sql_function! {
    /// outbox.relay_status
    fn outbox_relay_status / pg_finfo_outbox_relay_status(function) {
        let slots = my_database().map(|database| &database.slots[..]).unwrap_or_default();
        function.return_rows(slots.iter().filter(|slot| slot.pid.load(Ordering::Acquire) != 0).map(|slot| {
            vec![
                text(&slot.relay_id()),
                slot.pid.load(Ordering::Acquire).into_datum(),
                text(State::name(slot.state.load(Ordering::Relaxed))),
                time(&slot.state_since),
                number(&slot.batches),
                number(&slot.messages),
                number(&slot.bytes),
                number(&slot.errors),
                text(&slot.last_error()),
                time(&slot.last_error_at),
                time(&slot.stats_reset),
            ]
        }))
    }
}

super::sql_function! {
    /// outbox.bucket_status
    fn outbox_bucket_status / pg_finfo_outbox_bucket_status(function) {
        let database = my_database();
        let buckets = database.into_iter().flat_map(|database| {
            (0..database.acknowledged.len())
                .filter(|bucket| database.acknowledged[*bucket].load(Ordering::Relaxed) > 0)
                .map(|bucket| {
                    vec![
                        (bucket as i32).into_datum(),
                        number(&database.acknowledged[bucket]),
                        time(&database.acknowledged_at[bucket]),
                    ]
                })
        });
        function.return_rows(buckets)
    }
}

super::sql_function! {
    /// outbox.reset_stats
    fn outbox_reset_stats / pg_finfo_outbox_reset_stats(_function) {
        let now = now();
        if let Some(database) = my_database() {
            for slot in &database.slots {
                for counter in [&slot.batches, &slot.messages, &slot.bytes, &slot.errors] {
                    counter.store(0, Ordering::Relaxed);
                }
                slot.stats_reset.store(now, Ordering::Relaxed);
            }
            for bucket in 0..database.acknowledged.len() {
                database.acknowledged[bucket].store(0, Ordering::Relaxed);
                database.acknowledged_at[bucket].store(0, Ordering::Relaxed);
            }
        }
        pg_sys::Datum::from(now)
    }
}

super::sql_function! {
    /// outbox.version
    fn outbox_version / pg_finfo_outbox_version(_function) {
        env!("CARGO_PKG_VERSION").into_datum().expect("a text is not null")
    }
}

super::sql_function! {
    /// outbox.own_stamp
    fn outbox_own_stamp / pg_finfo_outbox_own_stamp(_function) {
        stamp::own().into_datum().expect("a text is not null")
    }
}

super::sql_function! {
    /// outbox.announce
    fn outbox_announce / pg_finfo_outbox_announce(function) {
        bell::announce_at_commit();
        bell::call_at_commit();
        function.return_void()
    }
}
