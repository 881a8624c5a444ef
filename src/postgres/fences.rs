//! The fences of this database, as one relay sees them.
//!
//! Reason: every fetch has to know them, in the very snapshot that shows it the messages, and nearly always there are none.
//! So the empty table is scanned without any statement. When there is one, it is asked whether a message is left; such a
//! search goes on where the last one found something, since messages at or below a fence only go away.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::bucket::Bucket;
use crate::fence::{self, Change};

use super::session::{self, Session, Statement, arg};
use super::stamp::{self, Permission};
use super::tables;

use pg_sys::{INT4OID, INT8OID};

/// What a relay knows of the fences.
pub struct Fences {
    first_left: Statement,
    bucket_counts: Statement,
    forget_changes: Statement,
    /// Where the last search found a message.
    found: Cell<Found>,
    /// What the last look said.
    limit: Cell<Option<i64>>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Found {
    fence_id: i64,
    bucket: Bucket,
    id: i64,
}

/// What a round of acquisition has learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learnt {
    /// Buckets to be leased.
    pub leased_buckets: u32,
    /// A fence was drained and has been forgotten: what waited for it may be read.
    pub opened: bool,
}

impl Fences {
    pub fn new() -> Self {
        Self {
            first_left: Statement::new(
                include_str!("../../sql/statements/first_left.sql"),
                &[INT4OID, INT8OID, INT4OID, INT8OID],
            ),
            bucket_counts: Statement::new(include_str!("../../sql/statements/bucket_counts.sql"), &[]),
            forget_changes: Statement::new(include_str!("../../sql/statements/forget_changes.sql"), &[INT8OID]),
            found: Cell::default(),
            limit: Cell::default(),
        }
    }

    /// The highest id that may be read in the snapshot of this transaction.
    pub fn limit(&self, session: &Session) -> Option<i64> {
        let changes = seen(session);
        let limit = fence::limit(fence::undrained(&changes, |buckets, fence_id| self.left(session, buckets, fence_id)));
        self.limit.set(limit);
        limit
    }

    /// Whether messages had to wait at the last look.
    pub fn were_closed(&self) -> bool {
        self.limit.get().is_some()
    }

    /// Whether messages that had to wait at the last look may be read now.
    pub fn have_opened(&self, session: &Session) -> bool {
        let before = self.limit.get();
        before.is_some() && self.limit(session) != before
    }

    /// Learns the bucket counts and forgets the changes that are over.
    pub fn round(&self, session: &Session, publishing: &Statement) -> Learnt {
        let rows = self.bucket_counts.rows(session, &[], |row| {
            let change = row.get(2).zip(row.get::<i32>(3));
            let change = change.map(|(fence_id, bucket_count)| Change { fence_id, bucket_count: bucket_count as u32 });
            (row.must::<i32>(1) as u32, change)
        });
        let bucket_count = rows[0].0;
        let changes: Vec<Change> = rows.into_iter().filter_map(|(_, change)| change).collect();
        // A dump may bring the changes before the messages; then nobody may publish yet.
        let undrained = if changes.is_empty() || stamp::permission(session, publishing) != Permission::Granted {
            &changes[..]
        } else {
            fence::undrained(&changes, |buckets, fence_id| self.left(session, buckets, fence_id))
        };
        let drained = &changes[..changes.len() - undrained.len()];
        if let Some(last) = drained.last() {
            self.forget_changes.run(session, &[arg(last.fence_id)]);
        }
        self.limit.set(fence::limit(undrained));
        Learnt { leased_buckets: fence::leased_buckets(bucket_count, undrained), opened: !drained.is_empty() }
    }

    /// Whether a message at or below the fence is left in the buckets below `buckets`.
    fn left(&self, session: &Session, buckets: u32, fence_id: i64) -> bool {
        let found = self.found.get();
        let from = if found.fence_id == fence_id { found } else { Found { fence_id, ..Found::default() } };
        let args = [arg(buckets as i32), arg(fence_id), arg(from.bucket as i32), arg(from.id)];
        let first = self
            .first_left
            .rows(session, &args, |row| Found { fence_id, bucket: row.must::<i32>(1) as u32, id: row.must(2) })
            .pop();
        // Nothing: the next search begins behind the last bucket.
        self.found.set(first.unwrap_or(Found { fence_id, bucket: buckets, id: 0 }));
        first.is_some()
    }
}

/// The changes in the snapshot of this transaction, in the order of their fences.
fn seen(session: &Session) -> Vec<Change> {
    let table = tables::named(c"bucket_change");
    let mut changes = Vec::new();
    session::each_row_seen(session, table, |tuple, columns| {
        let mut null = false;
        // SAFETY: a row of the table, whose first columns are a bigint and an integer, neither of them null.
        changes.push(unsafe {
            Change {
                fence_id: pg_sys::heap_getattr(tuple, 1, columns, &mut null).value() as i64,
                bucket_count: pg_sys::heap_getattr(tuple, 2, columns, &mut null).value() as i32 as u32,
            }
        });
    });
    changes.sort_unstable_by_key(|change| change.fence_id);
    changes
}
