//! The [`Store`] on the tables of this database. Each verb is one short transaction; the statements are sql/statements.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pgrx::pg_sys;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use tracing::{debug, warn};

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::fence::Withheld;
use crate::lease::{self, Lease, LeaseRow};
use crate::message::{Batch, Message};
use crate::order::Unit;
use crate::policy::{Policy, TopicRule};
use crate::relay::ports::{
    Acknowledged, Acquired, Clock as _, Failure, FailureNote, FailureNotes, Limits, Ownership, Removed, Renewal, Round,
    Store, StoreError, TopicRules,
};
use crate::repeats::{self, Repeats};

use super::clock::BootClock;
use super::fences::Fences;
use super::fetch;
use super::now;
use super::removal::{self, Removal};
use super::rest;
use super::row_version::RowVersion;
use super::session::{self, Session, SqlError, Statement, arg};
use super::shared::{Database, Header, Slot};
use super::stamp::{self, Permission};
use super::test_hooks;

use pg_sys::{FLOAT8OID, INT4ARRAYOID, INT4OID, INT8ARRAYOID, INT8OID, TEXTARRAYOID, TEXTOID};

/// Makes the struct of the statements, each named as its file in sql/statements, with the types of its parameters.
macro_rules! statements {
    ($($name:ident($($type:expr),*)),+ $(,)?) => {
        struct Statements {
            $($name: Statement),+
        }

        impl Statements {
            fn new() -> Self {
                Self {
                    $($name: Statement::new(
                        include_str!(concat!("../../sql/statements/", stringify!($name), ".sql")),
                        &[$($type),*],
                    )),+
                }
            }
        }
    };
}

statements! {
    heartbeat(TEXTOID, INT4OID),
    lock_round(),
    prune_relays(TEXTOID, FLOAT8OID),
    stop_dead_relays(TEXTOID, TEXTARRAYOID),
    free_dead_leases(TEXTOID, TEXTARRAYOID),
    seed_leases(INT4OID),
    leases(INT4OID),
    active_relays(FLOAT8OID),
    keep_leases(TEXTOID, INT4ARRAYOID, INT8ARRAYOID, FLOAT8OID),
    claim_leases(TEXTOID, INT4ARRAYOID, FLOAT8OID),
    hand_back_leases(TEXTOID, INT4ARRAYOID, INT8ARRAYOID),
    renew_leases(TEXTOID, INT4ARRAYOID, INT8ARRAYOID, FLOAT8OID),
    pending_buckets(INT4ARRAYOID),
    fetch_batch(INT4OID, INT8OID, INT8OID, INT8OID, TEXTOID),
    acknowledge_list(INT4OID, INT8ARRAYOID, INT8ARRAYOID, TEXTOID, INT8OID),
    locked_by_others(INT4OID, INT8ARRAYOID, INT8ARRAYOID),
    holds_lease(INT4OID, TEXTOID, INT8OID),
    note_failure(INT4OID, INT8OID, TEXTOID, INT4OID, TEXTOID, FLOAT8OID, TEXTOID, INT8OID, INT8OID),
    end_failures(INT4OID, INT8ARRAYOID),
    failures(INT4ARRAYOID),
    topic_rules(),
    drop_stale_failures(INT4ARRAYOID),
    stop_relay(TEXTOID),
    release_leases(TEXTOID),
    stranded_messages(INT4OID),
    free_leases_beyond(TEXTOID, INT4OID),
}

/// Heartbeat rows are pruned once in so many rounds.
const PRUNE_EVERY: u32 = 10;

/// A lease guard that did not hold, or a batch that changed: the transaction is rolled back.
#[derive(Debug)]
enum Undo {
    Sql(SqlError),
    Refused,
    /// The relay has to end, for this reason.
    Leave(&'static str),
    /// The database may not publish any more: the relay has to stop in its own order.
    Forbidden,
}

impl From<SqlError> for Undo {
    fn from(error: SqlError) -> Self {
        Self::Sql(error)
    }
}

/// The store of one relay.
pub struct PgStore {
    relay_id: String,
    /// Prefix of the ids of all relays of this server instance.
    instance: String,
    header: &'static Header,
    database: &'static Database,
    slot: &'static Slot,
    rounds: u32,
    /// Since when messages are waiting for a stamp.
    without_stamp_since: Option<Time>,
    repeats: Repeats<&'static str>,
    clock: BootClock,
    fences: Fences,
    withheld: Withheld,
    publishing: Statement,
    statements: Statements,
}

impl PgStore {
    /// A store for the relay of this id.
    pub fn new(
        relay_id: String,
        instance: String,
        header: &'static Header,
        database: &'static Database,
        slot: &'static Slot,
    ) -> Self {
        Self {
            relay_id,
            instance,
            header,
            database,
            slot,
            rounds: 0,
            without_stamp_since: None,
            repeats: Repeats::default(),
            clock: BootClock,
            fences: Fences::new(),
            withheld: Withheld::default(),
            publishing: stamp::statement(),
            statements: Statements::new(),
        }
    }

    fn me(&self) -> Option<pg_sys::Datum> {
        arg(self.relay_id.as_str())
    }

    /// Runs one transaction and says what to do about its error.
    fn transaction<T>(
        &self,
        activity: &CStr,
        work: impl FnOnce(&Session) -> Result<T, Undo>,
    ) -> Result<Option<T>, StoreError> {
        let result =
            session::run(
                activity,
                |session| if session.extension_exists() { work(session).map(Some) } else { Ok(None) },
            );
        match result {
            Ok(Some(done)) => Ok(Some(done)),
            Ok(None) => Err(gone()),
            Err(Undo::Refused) => Ok(None),
            Err(Undo::Leave(reason)) => Err(StoreError::Leave(reason.to_owned())),
            Err(Undo::Forbidden) => {
                // As if whoever forbade it had called already, which comes right after the commit.
                self.slot.called.store(true, Ordering::Release);
                Err(StoreError::Interrupted)
            }
            // Whatever the statement met: if the extension is gone, that is the reason.
            Err(Undo::Sql(error)) => {
                let exists = session::run(activity, |session| Ok::<_, SqlError>(session.extension_exists()));
                if matches!(exists, Ok(false)) {
                    return Err(gone());
                }
                if error.code == PgSqlErrorCode::ERRCODE_QUERY_CANCELED && rest::stop_requested() {
                    return Err(StoreError::Interrupted);
                }
                self.slot.note_error(&error.message, now());
                Err(StoreError::Retry(error.message))
            }
        }
    }

    /// As [`Self::transaction`], for work that refuses nothing.
    fn must<T>(&self, activity: &CStr, work: impl FnOnce(&Session) -> Result<T, Undo>) -> Result<T, StoreError> {
        self.transaction(activity, work).map(|done| done.expect("the work refuses nothing"))
    }

    /// For a while messages without a stamp are nothing unusual: a dump that is being restored brings the stamp later.
    fn shout_no_stamp(&mut self) {
        let now = self.clock.now();
        let since = *self.without_stamp_since.get_or_insert(now);
        if now.since(since) >= repeats::INTERVAL && self.repeats.note("no stamp", now).is_some() {
            warn!(
                detail = "Messages were found, but none was enqueued in this database: they came with a dump that is not complete yet, or were not written by outbox.enqueue.",
                hint = "To publish them call outbox.resume().",
                "messages in a database without a stamp are not published"
            );
        }
    }

    fn shout_stranded(&mut self, rows: i64, bucket_count: u32) {
        if rows > 0 && self.repeats.note("stranded", self.clock.now()).is_some() {
            let counted = if rows < 1000 { rows.to_string() } else { "1000 or more".to_owned() };
            warn!(
                detail = format!("Messages: {counted}; buckets are numbered 0 to {}.", bucket_count - 1),
                hint = "They were not written by outbox.enqueue, or came with a dump whose bucket count did not, or outbox.setting was changed by hand. Update outbox.message.bucket of these rows, or raise the count by outbox.set_bucket_count().",
                "messages lie in buckets that no relay can own"
            );
        }
    }
}

fn gone() -> StoreError {
    StoreError::Leave("the extension was dropped".to_owned())
}

fn split(leases: &[Lease]) -> (Vec<i32>, Vec<i64>) {
    leases.iter().map(|lease| (lease.bucket as i32, lease.token)).unzip()
}

fn ints(buckets: &[Bucket]) -> Vec<i32> {
    buckets.iter().map(|bucket| *bucket as i32).collect()
}

impl Store for PgStore {
    fn acquire(&mut self, round: Round<'_>) -> Result<Acquired, StoreError> {
        self.rounds = self.rounds.wrapping_add(1);
        let prune = self.rounds.is_multiple_of(PRUNE_EVERY);
        let (acquired, stranded, learnt) = self.must(c"acquiring leases", |session| {
            let s = &self.statements;
            let me = self.me();
            let duration = round.lease_duration.as_secs_f64();
            s.lock_round.rows(session, &[], |_| ());
            // Only now: a relay shows its id before its first round, and no round is under way.
            let live: Vec<String> =
                self.database.slots.iter().map(Slot::relay_id).filter(|relay_id| !relay_id.is_empty()).collect();
            if s.heartbeat.run(session, &[me, arg(std::process::id() as i32)]) == 0 {
                return Err(Undo::Leave("it was marked as stopped"));
            }
            if prune {
                s.prune_relays.run(session, &[me, arg(duration)]);
            }
            s.stop_dead_relays.run(session, &[arg(self.instance.as_str()), arg(live.clone())]);
            let freed_dead = s.free_dead_leases.run(session, &[arg(self.instance.as_str()), arg(live.clone())]);
            let learnt = self.fences.round(session, &self.publishing);
            let bucket_count = learnt.leased_buckets as i32;
            s.seed_leases.run(session, &[arg(bucket_count)]);
            s.free_leases_beyond.run(session, &[me, arg(bucket_count)]);
            let mut tokens = BTreeMap::new();
            let rows = s.leases.rows(session, &[arg(bucket_count)], |row| {
                let lease =
                    LeaseRow { bucket: row.must::<i32>(1) as u32, relay_id: row.get(2), unexpired: row.must(4) };
                (lease, row.must::<i64>(3))
            });
            let rows: Vec<LeaseRow> = rows
                .into_iter()
                .map(|(row, token)| {
                    tokens.insert(row.bucket, token);
                    row
                })
                .collect();
            let active = s.active_relays.rows(session, &[arg(duration)], |row| row.must::<String>(1));
            let active: BTreeSet<&str> = active.iter().map(String::as_str).collect();
            let plan = lease::plan(learnt.leased_buckets, &rows, &active, &self.relay_id);

            let (leaving, hand_back): (Vec<_>, Vec<_>) =
                plan.hand_back.into_iter().partition(|bucket| round.busy.contains(bucket));
            let named = |buckets: &[Bucket]| -> Vec<Lease> {
                buckets.iter().map(|bucket| Lease { bucket: *bucket, token: tokens[bucket] }).collect()
            };
            let read = |row: &session::Row| Lease { bucket: row.must::<i32>(1) as u32, token: row.must(2) };

            let keep: Vec<_> = plan.keep.iter().chain(&leaving).copied().collect();
            let mut leases = Vec::new();
            if !keep.is_empty() {
                let (buckets, held) = split(&named(&keep));
                leases = s.keep_leases.rows(session, &[me, arg(buckets), arg(held), arg(duration)], read);
            }
            if !hand_back.is_empty() {
                let (buckets, held) = split(&named(&hand_back));
                s.hand_back_leases.run(session, &[me, arg(buckets), arg(held)]);
            }
            if !plan.claim.is_empty() {
                leases.extend(s.claim_leases.rows(session, &[me, arg(ints(&plan.claim)), arg(duration)], read));
            }
            let stranded = s.stranded_messages.rows(session, &[arg(bucket_count)], |row| row.must::<i64>(1))[0];
            leases.sort_unstable();
            let freed = !hand_back.is_empty() || freed_dead > 0;
            let acquired = Acquired { leases, leaving: leaving.into_iter().collect(), freed, distant: plan.distant };
            test_hooks::reach("in_acquire");
            Ok((acquired, stranded, learnt))
        })?;
        self.shout_stranded(stranded, learnt.leased_buckets);
        if learnt.opened {
            self.database.call_all();
        }
        test_hooks::reach("after_acquire");
        Ok(acquired)
    }

    fn pending(&mut self, buckets: &[Bucket]) -> Result<Vec<Bucket>, StoreError> {
        if buckets.is_empty() {
            return Ok(Vec::new());
        }
        self.must(c"looking for messages", |session| {
            Ok(self.statements.pending_buckets.rows(session, &[arg(ints(buckets))], |row| row.must::<i32>(1) as u32))
        })
    }

    fn fetch(&mut self, bucket: Bucket, after: i64, limits: Limits, batch: &mut Batch) -> Result<bool, StoreError> {
        test_hooks::reach("before_fetch");
        let before = batch.len();
        let after = self.withheld.after(bucket, after);
        let fetched = self.must(c"reading messages", |session| {
            session.with_messages(|| {
                // The transaction has its snapshot: whatever that may show of late commits is read in its place.
                let after = after.min(self.database.lowest_untold(self.header, self.slot, bucket).saturating_sub(1));
                let limit = self.fences.limit(session);
                let highest = limit.unwrap_or(i64::MAX);
                let fetched =
                    fetch::batch(session, &self.statements.fetch_batch, bucket, after, highest, limits, batch);
                if batch.len() > before {
                    return Ok((Some(fetched), limit));
                }
                match stamp::permission(session, &self.publishing) {
                    Permission::Granted => Ok((Some(fetched), limit)),
                    Permission::NoStamp => {
                        let args = [arg(ints(&[bucket]))];
                        let none = self.statements.pending_buckets.run(session, &args) == 0;
                        Ok((none.then_some(fetched), Some(after)))
                    }
                    Permission::Paused(_) | Permission::Copy(_) => Err(Undo::Forbidden),
                }
            })
        });
        match fetched {
            Ok((None, limit)) => {
                self.withheld.was_read(bucket, limit);
                self.shout_no_stamp();
                Ok(false)
            }
            Ok((Some(fetched), limit)) => {
                // Without a postmaster sessions wait for standbys no longer: what they committed is visible, and a standby that
                // is promoted in place of this server may lack it.
                rest::end_with_the_postmaster();
                self.withheld.was_read(bucket, limit);
                // Outside the transaction: what is read must be safe on disk, but no snapshot need wait for that.
                fetch::flush_commits(fetched.commits);
                Ok(fetched.more)
            }
            Err(error) => {
                batch.clear(0);
                Err(error)
            }
        }
    }

    fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<Removed>, StoreError> {
        test_hooks::reach("before_acknowledge");
        // If any row was changed or locked meanwhile the whole transaction is done again by statements, which spare such rows.
        let done =
            match self.transaction(c"removing acknowledged messages", |session| self.remove(session, acknowledged))? {
                Some(done) => done,
                None => self
                    .must(c"removing acknowledged messages", |session| Ok(self.remove_lists(session, acknowledged)))?,
            };
        test_hooks::reach("after_acknowledge");
        for (one, _) in acknowledged.iter().zip(&done).filter(|(_, done)| **done == Removed::Gone) {
            let bucket = one.lease.bucket as usize;
            self.database.acknowledged[bucket].fetch_add(one.len as u64, Ordering::Relaxed);
            self.database.acknowledged_at[bucket].store(now(), Ordering::Relaxed);
            self.slot.batches.fetch_add(1, Ordering::Relaxed);
            self.slot.messages.fetch_add(one.len as u64, Ordering::Relaxed);
            self.slot.bytes.fetch_add(one.batch.payload_bytes(one.len), Ordering::Relaxed);
        }
        if done.contains(&Removed::Locked) {
            self.slot.note_error("another transaction keeps messages locked that are published", now());
        }
        self.open_fences();
        Ok(done)
    }

    fn renewal(&mut self) -> Option<&mut dyn Renewal> {
        Some(self)
    }

    fn ownership(&mut self) -> Option<&mut dyn Ownership> {
        Some(self)
    }

    fn failure_notes(&mut self) -> Option<&mut dyn FailureNotes> {
        Some(self)
    }

    fn topic_rules(&mut self) -> Option<&mut dyn TopicRules> {
        Some(self)
    }
}

impl Renewal for PgStore {
    fn renew(&mut self, leases: &[Lease], duration: Duration) -> Result<bool, StoreError> {
        let renewed = self.transaction(c"renewing leases", |session| {
            let (buckets, tokens) = split(leases);
            let args = [self.me(), arg(buckets), arg(tokens), arg(duration.as_secs_f64())];
            if !leases.is_empty() && self.statements.renew_leases.run(session, &args) != leases.len() as u64 {
                return Err(Undo::Refused);
            }
            self.statements.heartbeat.run(session, &[self.me(), arg(std::process::id() as i32)]);
            Ok(())
        })?;
        Ok(renewed.is_some())
    }

    fn hand_back(&mut self, leases: &[Lease]) -> Result<(), StoreError> {
        self.must(c"handing back leases", |session| {
            let (buckets, tokens) = split(leases);
            self.statements.hand_back_leases.run(session, &[self.me(), arg(buckets), arg(tokens)]);
            Ok(())
        })
    }
}

impl FailureNotes for PgStore {
    fn note_failures(&mut self, notes: &[FailureNote]) -> Result<(), StoreError> {
        if let Some(latest) = notes.last() {
            self.slot.note_error(&latest.failure.error, now());
        }
        self.must(c"noting failures", |session| {
            for FailureNote { lease, failure, in_place_of } in notes {
                let args = [
                    arg(failure.bucket as i32),
                    arg(failure.id),
                    arg(if failure.unit.is_topic() { "topic" } else { "message" }),
                    arg(i32::try_from(failure.attempts).unwrap_or(i32::MAX)),
                    arg(failure.error.as_str()),
                    arg(failure.wait.map(|wait| wait.as_secs_f64())),
                    self.me(),
                    arg(lease.token),
                    arg(*in_place_of),
                ];
                self.statements.note_failure.run(session, &args);
            }
            Ok(())
        })
    }

    fn failures(&mut self, buckets: &[Bucket]) -> Result<Vec<Failure>, StoreError> {
        self.must(c"reading failures", |session| {
            self.statements.drop_stale_failures.run(session, &[arg(ints(buckets))]);
            Ok(self.statements.failures.rows(session, &[arg(ints(buckets))], |row| {
                let topic = row.must::<String>(4);
                let key = row.get::<Vec<u8>>(6);
                let message = Message {
                    id: row.must(2),
                    topic: &topic,
                    partition: row.get(5),
                    key: key.as_deref(),
                    value: None,
                    headers: None,
                    message_id: [0; 16],
                    handle: &[],
                };
                let unit = if row.must(3) { Unit::topic(&topic) } else { Unit::of(&message) };
                Failure {
                    bucket: row.must::<i32>(1) as u32,
                    id: message.id,
                    unit: unit.into_owned(),
                    attempts: row.must::<i32>(7) as u32,
                    error: row.must(8),
                    failing_for: seconds(row.must(9)),
                    wait: row.get(10).map(seconds),
                }
            }))
        })
    }
}

/// Seconds of the database's clock, which may have been set meanwhile.
fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, 100.0 * 365.0 * 86_400.0))
}

impl TopicRules for PgStore {
    fn topic_rules(&mut self) -> Result<BTreeMap<String, TopicRule>, StoreError> {
        self.must(c"reading the rules of topics", |session| {
            let rules = self.statements.topic_rules.rows(session, &[], |row| {
                let policy = match row.must::<String>(2).as_str() {
                    "dead_letter" => row.get::<String>(3).map_or(Policy::ParkKey, Policy::DeadLetter),
                    "block" => Policy::Block,
                    _ => Policy::ParkKey,
                };
                let max_attempts = row.get::<i32>(4).map(|attempts| attempts.max(1) as u32);
                (row.must(1), TopicRule { policy, max_attempts, paused: row.must(5) })
            });
            Ok(rules.into_iter().collect())
        })
    }
}

impl Ownership for PgStore {
    fn release(&mut self, _previous: &BTreeSet<Bucket>) -> Result<(), StoreError> {
        self.must(c"marking the relay as stopped", |session| {
            self.statements.stop_relay.run(session, &[self.me()]);
            Ok(())
        })?;
        test_hooks::reach("in_release");
        self.must(c"releasing leases", |session| {
            self.statements.release_leases.run(session, &[self.me()]);
            Ok(())
        })
    }
}

impl PgStore {
    /// If what was just removed was the last message that others had to wait for, their relays are told. Whoever removes
    /// the last one has looked at the fence before: when he read it, or, if the change came after that, in a round.
    fn open_fences(&self) {
        if !self.fences.were_closed() {
            return;
        }
        match self
            .must(c"looking for messages of an earlier bucket count", |session| Ok(self.fences.have_opened(session)))
        {
            Ok(true) => self.database.call_all(),
            Ok(false) => {}
            // The next round looks again; the messages are removed whatever comes of this.
            Err(error) => {
                debug!(detail = format!("{error}."), "could not look for messages of an earlier bucket count")
            }
        }
    }

    /// Removes the rows where they lie.
    fn remove(&self, session: &Session, acknowledged: &[Acknowledged<'_>]) -> Result<Vec<Removed>, Undo> {
        let mut done = Vec::with_capacity(acknowledged.len());
        for one in acknowledged {
            if !self.holds(session, one.lease) {
                done.push(Removed::LeaseLost);
                continue;
            }
            match removal::rows(session, one.lease.bucket, one.batch, one.len) {
                Removal::Done => self.end_failures(session, one),
                Removal::Changed | Removal::NeedsStatement => return Err(Undo::Refused),
            }
            done.push(Removed::Gone);
        }
        test_hooks::reach("in_acknowledge");
        Ok(done)
    }

    /// The same by statements. Locks first what it removes, so that it waits for nobody in between.
    fn remove_lists(&self, session: &Session, acknowledged: &[Acknowledged<'_>]) -> Vec<Removed> {
        let mut done = Vec::with_capacity(acknowledged.len());
        for one in acknowledged {
            if !self.holds(session, one.lease) {
                done.push(Removed::LeaseLost);
                continue;
            }
            let (ids, versions): (Vec<i64>, Vec<i64>) =
                one.batch.handles(one.len).map(|(id, handle)| (id, i64::from(RowVersion::of(handle).xmin))).unzip();
            let rows = [arg(one.lease.bucket as i32), arg(ids), arg(versions)];
            if self.statements.locked_by_others.rows(session, &rows, |row| row.must::<bool>(1))[0] {
                done.push(Removed::Locked);
                continue;
            }
            let [bucket, ids, versions] = rows;
            let args = [bucket, ids, versions, self.me(), arg(one.lease.token)];
            self.statements.acknowledge_list.run(session, &args);
            self.end_failures(session, one);
            done.push(Removed::Gone);
        }
        done
    }

    fn holds(&self, session: &Session, lease: Lease) -> bool {
        let args = [arg(lease.bucket as i32), self.me(), arg(lease.token)];
        self.statements.holds_lease.rows(session, &args, |row| row.must::<bool>(1))[0]
    }

    fn end_failures(&self, session: &Session, one: &Acknowledged<'_>) {
        if one.ends_failure {
            let args = [arg(one.lease.bucket as i32), arg(one.batch.ids(one.len).collect::<Vec<i64>>())];
            self.statements.end_failures.run(session, &args);
        }
    }
}
