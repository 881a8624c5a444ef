//! Writers: sessions that change business rows and enqueue messages in the same transactions.
//!
//! The truth is kept twice. The database's: every transaction writes a row beside each message, so a message was committed
//! exactly if that row is there, also when the connection died before the answer to COMMIT. The writers' own: they note
//! what the server confirmed and what they rolled back, and [`Tally::check`] holds the database to it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use fastrand::Rng;
use postgres::{Client, Statement};
use uuid::Uuid;

use crate::checker::Committed;
use crate::cluster::Address;
use crate::wait::{self, Seen};

/// The tables of the writers' business: orders that change, and every change as it was told to Kafka.
pub const TABLES: &str = "\
create table orders (
    id text primary key,
    version bigint not null default 0
);
create table order_event (
    message_id uuid primary key,
    order_id text not null,
    version bigint not null,
    event text not null
);";

/// What the writers do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Database.
    pub database: String,
    /// Topic.
    pub topic: String,
    /// Sessions at the same time.
    pub writers: usize,
    /// Orders they share; every transaction locks the row of its order first. The order's id is the message's key.
    pub orders: usize,
    /// At most so many messages a transaction.
    pub messages_a_transaction: i64,
    /// Transactions in a hundred that are rolled back.
    pub rollbacks_percent: u32,
    /// Transactions in a hundred that roll back a savepoint in their middle.
    pub savepoints_percent: u32,
    /// Each message carries a note of so many bytes.
    pub note_bytes: usize,
    /// They end when so many messages are committed; without it they go on until they are told.
    pub until_committed: Option<u64>,
    /// Each writer rests so long after a transaction.
    pub rest: Duration,
    /// Half of the transactions stay open for up to so long before they commit, so that ids are not in commit order.
    pub linger: Duration,
    /// What each session sets first.
    pub session: &'static str,
    /// Seed of all choices.
    pub seed: u64,
}

impl Plan {
    /// Eight writers on forty orders, a tenth of the transactions rolled back.
    pub fn new(database: &str, topic: &str) -> Plan {
        Plan {
            database: database.into(),
            topic: topic.into(),
            writers: 8,
            orders: 40,
            messages_a_transaction: 4,
            rollbacks_percent: 10,
            savepoints_percent: 10,
            note_bytes: 20,
            until_committed: None,
            rest: Duration::ZERO,
            linger: Duration::ZERO,
            session: "",
            seed: 7,
        }
    }
}

/// Makes the tables of the writers' business.
pub fn create_tables(client: &mut Client) -> Result<()> {
    client.batch_execute(TABLES).context("could not make the business tables")
}

/// The messages that the database says were committed.
pub fn committed(client: &mut Client) -> Result<Vec<Committed>> {
    let rows = client
        .query("select message_id, order_id, version, event from order_event", &[])
        .context("could not read the business rows")?;
    Ok(rows
        .iter()
        .map(|row| Committed {
            message_id: row.get(0),
            key: row.get::<_, String>(1).into_bytes(),
            place: row.get(2),
            value: row.get::<_, String>(3).into_bytes(),
        })
        .collect())
}

/// What writers noted.
#[derive(Debug, Default)]
pub struct Tally {
    /// Messages whose COMMIT was confirmed.
    pub committed: HashSet<Uuid>,
    /// Messages whose transaction or savepoint was rolled back.
    pub rolled_back: HashSet<Uuid>,
    /// Messages whose COMMIT was sent and not answered.
    pub unknown: HashSet<Uuid>,
    /// Times a writer lost its connection.
    pub lost_connections: u64,
    /// The slowest transaction that was confirmed.
    pub slowest: Duration,
}

impl Tally {
    /// Adds what others noted.
    pub fn add(&mut self, other: Tally) {
        self.committed.extend(other.committed);
        self.rolled_back.extend(other.rolled_back);
        self.unknown.extend(other.unknown);
        self.lost_connections += other.lost_connections;
        self.slowest = self.slowest.max(other.slowest);
    }

    /// Holds the database to what it confirmed: all of that is there, nothing rolled back is.
    pub fn check(&self, committed: &[Committed]) -> Result<()> {
        let there: HashSet<Uuid> = committed.iter().map(|message| message.message_id).collect();
        let lost = self.committed.difference(&there).count();
        let undead = self.rolled_back.intersection(&there).count();
        let strange = there.iter().filter(|id| !self.committed.contains(*id) && !self.unknown.contains(*id)).count();
        ensure!(
            lost == 0 && undead == 0 && strange == 0,
            "the database itself lost {lost} confirmed messages, kept {undead} rolled-back ones and holds {strange} unheard-of ones"
        );
        Ok(())
    }
}

/// Writers at work.
pub struct Load {
    writers: Vec<JoinHandle<Result<Tally>>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Messages whose COMMIT was confirmed.
    committed: AtomicU64,
}

impl Load {
    /// Starts the writers; the orders are made first.
    pub fn start(address: &Address, plan: &Plan) -> Result<Load> {
        let mut client = address.connect(&plan.database)?;
        client
            .execute(
                "insert into orders (id) select 'order-' || n from generate_series(1, $1::bigint) n on conflict do nothing",
                &[&(plan.orders as i64)],
            )
            .context("could not make the orders")?;
        let shared = Arc::new(Shared::default());
        let writers = (0..plan.writers)
            .map(|number| {
                let (address, plan, shared) = (address.clone(), plan.clone(), Arc::clone(&shared));
                let rng = Rng::with_seed(plan.seed.wrapping_add(number as u64));
                thread::spawn(move || Writer { address, plan, shared, rng, tally: Tally::default() }.work())
            })
            .collect();
        Ok(Load { writers, shared })
    }

    /// Messages committed so far.
    pub fn committed(&self) -> u64 {
        self.shared.committed.load(Ordering::Relaxed)
    }

    /// Waits until the writers have committed so many messages in all.
    pub fn wait_for(&self, messages: u64, at_most: Duration) -> Result<()> {
        wait::until(format_args!("{messages} messages are committed"), at_most, || {
            let committed = self.committed();
            Ok(if committed >= messages {
                Seen::Reached(())
            } else if self.writers.iter().any(JoinHandle::is_finished) {
                anyhow::bail!("a writer ended after {committed} messages were committed")
            } else {
                Seen::NotYet(format!("{committed} are"))
            })
        })
    }

    /// Waits until the writers go on after what was just done to the servers.
    pub fn wait_for_more(&self, messages: u64, at_most: Duration) -> Result<()> {
        self.wait_for(self.committed() + messages, at_most)
    }

    /// Lets the writers end after the transaction they are in.
    pub fn stop(self) -> Result<Tally> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.finish()
    }

    /// Waits until the writers have done what was planned.
    pub fn finish(self) -> Result<Tally> {
        let mut tally = Tally::default();
        for writer in self.writers {
            tally.add(writer.join().map_err(|_| anyhow!("a writer panicked"))??);
        }
        Ok(tally)
    }
}

struct Writer {
    address: Address,
    plan: Plan,
    shared: Arc<Shared>,
    rng: Rng,
    tally: Tally,
}

/// What a transaction enqueued so far.
#[derive(Default)]
struct Noted {
    kept: Vec<Uuid>,
    undone: Vec<Uuid>,
    commit_sent: bool,
}

impl Writer {
    /// Works until told to stop. A lost connection is not the end: crashes are what some tests are about.
    fn work(mut self) -> Result<Tally> {
        while !self.done() {
            let Ok(session) = self.open() else {
                // The server is down or starts: look again soon, or be told to stop.
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            self.write_until_lost(session)?;
        }
        Ok(self.tally)
    }

    fn done(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
            || self.plan.until_committed.is_some_and(|enough| self.shared.committed.load(Ordering::Relaxed) >= enough)
    }

    fn open(&self) -> Result<Session> {
        let mut client = self.address.connect(&self.plan.database)?;
        client.batch_execute(self.plan.session)?;
        Ok(Session {
            lock: client.prepare("update orders set version = version + $2 where id = $1 returning version")?,
            write: client.prepare(
                "insert into order_event select outbox.enqueue($1::text, $2::text, $4::text), $2, $3, $4 returning message_id",
            )?,
            client,
        })
    }

    fn write_until_lost(&mut self, mut session: Session) -> Result<()> {
        while !self.done() {
            let since = Instant::now();
            let mut noted = Noted::default();
            match self.transaction(&mut session, &mut noted) {
                Ok(committed) => {
                    self.tally.rolled_back.extend(noted.undone);
                    if committed {
                        self.tally.slowest = self.tally.slowest.max(since.elapsed());
                        self.shared.committed.fetch_add(noted.kept.len() as u64, Ordering::Relaxed);
                        self.tally.committed.extend(noted.kept);
                    } else {
                        self.tally.rolled_back.extend(noted.kept);
                    }
                }
                Err(error) if lost_its_connection(&session.client, &error) => {
                    self.tally.lost_connections += 1;
                    self.tally.rolled_back.extend(noted.undone);
                    if noted.commit_sent {
                        self.tally.unknown.extend(noted.kept);
                    } else {
                        self.tally.rolled_back.extend(noted.kept);
                    }
                    return Ok(());
                }
                Err(error) => return Err(error).context("a writer's transaction failed"),
            }
            if !self.plan.rest.is_zero() {
                thread::sleep(self.plan.rest);
            }
        }
        Ok(())
    }

    /// One transaction; whether it was committed.
    fn transaction(&mut self, session: &mut Session, noted: &mut Noted) -> Result<bool, postgres::Error> {
        let key = format!("order-{}", self.rng.usize(1..=self.plan.orders));
        let messages = self.rng.i64(1..=self.plan.messages_a_transaction);
        let savepoint = self.rng.u32(0..100) < self.plan.savepoints_percent;
        let roll_back = self.rng.u32(0..100) < self.plan.rollbacks_percent;

        let mut transaction = session.client.transaction()?;
        // The row lock is what makes the key's commits come one after the other.
        let last: i64 = transaction.query_one(&session.lock, &[&key, &messages])?.get(0);
        for place in last - messages + 1..=last {
            if savepoint {
                let mut inner = transaction.savepoint("doubt")?;
                noted.undone.push(enqueue(&mut inner, &session.write, &self.plan, &key, -place)?);
                inner.rollback()?;
            }
            noted.kept.push(enqueue(&mut transaction, &session.write, &self.plan, &key, place)?);
        }
        if !self.plan.linger.is_zero() && self.rng.bool() {
            thread::sleep(self.plan.linger.mul_f64(self.rng.f64()));
        }
        if roll_back {
            transaction.rollback()?;
            return Ok(false);
        }
        noted.commit_sent = true;
        transaction.commit()?;
        Ok(true)
    }
}

struct Session {
    client: Client,
    lock: Statement,
    write: Statement,
}

fn enqueue(
    transaction: &mut postgres::Transaction<'_>,
    write: &Statement,
    plan: &Plan,
    key: &str,
    place: i64,
) -> Result<Uuid, postgres::Error> {
    let value = format!(
        "{{\"order\": \"{key}\", \"version\": {place}, \"note\": \"{:.<width$}\"}}",
        "",
        width = plan.note_bytes
    );
    Ok(transaction.query_one(write, &[&plan.topic, &key, &place, &value])?.get(0))
}

/// A server that crashes or stops tells sessions so before it closes them (class 57), or closes without a word.
fn lost_its_connection(client: &Client, error: &postgres::Error) -> bool {
    client.is_closed() || error.is_closed() || error.code().is_some_and(|code| code.code().starts_with("57P0"))
}
