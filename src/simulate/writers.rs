//! Transactions of the applications: they lock keys, draw ids, become visible and ring, each in its own time.
//!
//! As in the server: ids are drawn from one sequence when a message is written, so unrelated transactions become visible
//! out of the order of their ids; who wants the order of a key kept, locks it. A transaction declares that it will ring
//! before it is visible, and the next writer of its key may begin before it has rung.

use std::collections::{BTreeMap, BTreeSet};

use crate::bucket::{Bucket, bucket_of};

use super::plan::{Ends, SILENT_KEYS, Transaction};
use super::truth::Serial;
use super::world::World;

#[derive(Debug, Default)]
pub(super) struct Writers {
    transactions: Vec<Transaction>,
    locked: BTreeSet<u8>,
    waiting: Vec<usize>,
    last_id: i64,
    /// Messages of the transactions under way.
    written: BTreeMap<usize, Vec<(Bucket, i64, Serial)>>,
    /// Who may have made rows visible without having rung yet, and the lowest id of those.
    declared: BTreeMap<usize, i64>,
}

impl Writers {
    /// The lowest id of rows that may be visible without having been rung for.
    pub fn lowest_unrung(&self) -> i64 {
        self.declared.values().copied().min().unwrap_or(i64::MAX)
    }
}

impl World {
    /// Whether a transaction is under way that has written.
    pub(super) fn some_writer(&self) -> bool {
        !self.writers.written.is_empty()
    }

    /// The last id that was given out.
    pub(super) fn last_id(&self) -> i64 {
        self.writers.last_id
    }

    pub(super) fn add_transaction(&mut self, transaction: Transaction) {
        if transaction.keys.is_empty() {
            // Left out; it keeps its number.
            return self.writers.transactions.push(transaction);
        }
        let number = self.writers.transactions.len();
        let begins = transaction.begins;
        self.writers.transactions.push(transaction);
        self.schedule(begins, move |world| world.begin_transaction(number));
    }

    fn begin_transaction(&mut self, number: usize) {
        let Transaction { keys, works, ends, .. } = self.writers.transactions[number].clone();
        let orderly = ends != Ends::Silent;
        if orderly && keys.iter().any(|key| self.writers.locked.contains(key)) {
            self.writers.waiting.push(number);
            return;
        }
        if orderly {
            self.writers.locked.extend(keys.iter().copied());
        }
        // Some of its messages are written at its beginning, the others at its end.
        let early = keys.len().div_ceil(2);
        self.write(number, 0..early);
        let now = self.now;
        self.schedule(now + works, move |world| world.end_transaction(number, early));
    }

    fn write(&mut self, number: usize, rows: std::ops::Range<usize>) {
        for row in rows {
            let key = self.writers.transactions[number].keys[row];
            self.writers.last_id += 1;
            let id = self.writers.last_id;
            let bucket = bucket_of(None, Some(&[key]), &[0; 16], self.database.bucket_count);
            let serial = self.truth_wrote(key, bucket, id, key < SILENT_KEYS);
            self.refuse_as_planned(number, row, bucket, id);
            self.note(None, &[1, u64::from(key), id as u64], || {
                format!("transaction {number} writes {id} of key {key} to bucket {bucket}")
            });
            self.writers.written.entry(number).or_default().push((bucket, id, serial));
        }
    }

    fn end_transaction(&mut self, number: usize, early: usize) {
        let transaction = self.writers.transactions[number].clone();
        self.write(number, early..transaction.keys.len());
        let now = self.now;
        let lowest =
            self.writers.written.entry(number).or_default().iter().map(|(_, id, _)| *id).min().unwrap_or(i64::MAX);
        match transaction.ends {
            Ends::RollsBack => {
                self.note(None, &[2, number as u64], || format!("transaction {number} rolls back"));
                for (_, _, serial) in self.writers.written.remove(&number).unwrap_or_default() {
                    self.truth_rolled_back(serial);
                }
                self.unlock(number);
                self.count("rollbacks");
            }
            Ends::Silent => {
                self.become_visible(number);
                self.count("commits without a bell");
            }
            Ends::Rings | Ends::RingsUnknown => {
                self.writers.declared.insert(number, lowest);
                self.schedule(now + transaction.becomes_visible, move |world| world.become_visible(number));
            }
            Ends::Prepared(committed) => {
                self.note(None, &[3, number as u64], || format!("transaction {number} is prepared"));
                self.schedule(now + committed, move |world| {
                    world.writers.declared.insert(number, 0);
                    let now = world.now;
                    world.schedule(now + transaction.becomes_visible, move |world| world.become_visible(number));
                });
                self.count("prepared transactions");
            }
        }
    }

    fn become_visible(&mut self, number: usize) {
        let Transaction { rings, ends, .. } = self.writers.transactions[number].clone();
        let rows = self.writers.written[&number].clone();
        self.note(None, &[4, number as u64], || format!("transaction {number} is visible: {rows:?}"));
        for (bucket, id, serial) in rows {
            self.database.insert(bucket, id, serial);
            self.database.label(bucket, id, self.truth_label(serial));
            self.truth_visible(serial);
        }
        self.unlock(number);
        if ends != Ends::Silent {
            let now = self.now;
            self.schedule(now + rings, move |world| world.ring(number));
        }
    }

    fn ring(&mut self, number: usize) {
        let rows = self.writers.written.remove(&number).unwrap_or_default();
        self.note(None, &[5, number as u64], || format!("transaction {number} rings"));
        if self.writers.transactions[number].ends == Ends::Rings {
            for (bucket, id, _) in rows {
                self.ring_bell(bucket, id);
            }
        } else {
            self.ring_unknown();
            self.count("unknown bells");
        }
        self.writers.declared.remove(&number);
    }

    /// Its locks are gone: whoever waited for one of them tries again, in the order in which they came.
    fn unlock(&mut self, number: usize) {
        if self.writers.transactions[number].ends == Ends::Silent {
            return;
        }
        for key in self.writers.transactions[number].keys.clone() {
            self.writers.locked.remove(&key);
        }
        for waiting in std::mem::take(&mut self.writers.waiting) {
            self.begin_transaction(waiting);
        }
    }
}
