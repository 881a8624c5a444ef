//! The conformance suite on the [`PgStore`] and its real statements, in a worker of a real server: test builds only.
//!
//! Reason: the store runs nowhere but in a background worker. So the worker tries the rules on itself when a test says so, and
//! writes what came of each into a table that the test reads. Time passes by making what is stored older.

use std::time::Duration;

use pgrx::pg_sys;

use crate::bucket::{BUCKET_COUNT_DEFAULT, Bucket};
use crate::conformance::store::{LateCommits, RULES, StoreFixture};
use crate::message::Message;
use crate::relay::ports::Store;

use super::bell;
use super::session::{self, Session, SqlError, Statement, arg};
use super::shared::{Database, Header, Slot};
use super::store::PgStore;

use pg_sys::{BYTEAOID, FLOAT8OID, INT4OID, INT8OID, TEXTOID, UUIDOID};

/// Prefix of no relay's id: nobody of this suite counts as a relay of this server that has died.
const INSTANCE: &str = "instance.";

macro_rules! statement {
    ($file:literal $(, $type:expr)*) => {
        Statement::new(include_str!(concat!("../../pg_test/hooks/conformance/", $file, ".sql")), &[$($type),*])
    };
}

/// Tries every rule and writes its outcome.
pub fn run(header: &'static Header, database: &'static Database, slot: &'static Slot) {
    let statements = Statements {
        clear: statement!("clear"),
        age: statement!("age", FLOAT8OID),
        insert: Statement::new(
            include_str!("../../sql/statements/insert_message.sql"),
            &[INT4OID, TEXTOID, INT4OID, BYTEAOID, BYTEAOID, BYTEAOID, UUIDOID],
        ),
        draw: statement!("draw"),
        insert_drawn: statement!(
            "insert_drawn",
            INT4OID,
            TEXTOID,
            INT4OID,
            BYTEAOID,
            BYTEAOID,
            BYTEAOID,
            UUIDOID,
            INT8OID
        ),
        ids: statement!("ids", INT4OID),
        cut: statement!("cut"),
        outcome: statement!("outcome", TEXTOID, TEXTOID),
    };
    let mut fixture = Fixture { header, database, slot, statements };
    for rule in RULES {
        fixture.clear();
        let outcome = match (rule.check)(&mut fixture) {
            Ok(()) => "kept".to_owned(),
            Err(unmet) => unmet.to_string(),
        };
        fixture.note(rule.name, &outcome);
    }
    // So that the test knows that there is no more to come.
    fixture.note("", "");
}

struct Fixture {
    header: &'static Header,
    database: &'static Database,
    slot: &'static Slot,
    statements: Statements,
}

struct Statements {
    clear: Statement,
    age: Statement,
    insert: Statement,
    draw: Statement,
    insert_drawn: Statement,
    ids: Statement,
    cut: Statement,
    outcome: Statement,
}

/// A transaction of the fixture, which cannot go on without it.
fn must<T>(work: impl FnOnce(&Session) -> T) -> T {
    session::run(c"preparing a rule", |session| Ok::<_, SqlError>(work(session))).expect("the fixture does its work")
}

impl Fixture {
    fn clear(&self) {
        must(|session| self.statements.clear.run(session, &[]));
        // No relay is at work, so the first place may listen for a moment: bells are heard by who listens.
        self.database.listen(self.header, 0, &(0..BUCKET_COUNT_DEFAULT).collect());
        for bucket in 0..BUCKET_COUNT_DEFAULT {
            self.database.take_bell(self.header, 0, bucket);
        }
        self.database.stop_listening_at_all(0);
    }

    fn note(&self, rule: &str, outcome: &str) {
        must(|session| self.statements.outcome.run(session, &[arg(rule), arg(outcome)]));
    }

    fn age(&self, seconds: f64) {
        must(|session| self.statements.age.run(session, &[arg(seconds)]));
    }

    fn insert(&self, session: &Session, bucket: Bucket, messages: &[Message<'_>]) -> Vec<i64> {
        let insert = |message| {
            let ids = self.statements.insert.rows(session, &values(bucket, message), |row| row.must::<i64>(1));
            ids[0]
        };
        messages.iter().map(insert).collect()
    }
}

fn values(bucket: Bucket, message: &Message<'_>) -> [Option<pg_sys::Datum>; 7] {
    [
        arg(bucket as i32),
        arg(message.topic),
        arg(message.partition),
        arg(message.key),
        arg(message.value),
        arg(message.headers),
        arg(pgrx::Uuid::from_bytes(message.message_id)),
    ]
}

impl StoreFixture for Fixture {
    fn open(&mut self, relay: &str) -> Box<dyn Store> {
        Box::new(PgStore::new(relay.to_owned(), INSTANCE.to_owned(), self.header, self.database, self.slot))
    }

    fn bucket_count(&self) -> u32 {
        BUCKET_COUNT_DEFAULT
    }

    fn lease_duration(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn pass(&mut self, time: Duration) {
        self.age(time.as_secs_f64());
    }

    /// As by enqueue, and the relay's bell is taken.
    fn commit(&mut self, bucket: Bucket, messages: &[Message<'_>]) -> Vec<i64> {
        must(|session| self.insert(session, bucket, messages))
    }

    fn roll_back(&mut self, bucket: Bucket, messages: &[Message<'_>]) {
        let rolled_back = session::run(c"rolling back", |session| {
            self.insert(session, bucket, messages);
            Err::<(), _>(RollBack::Wanted)
        });
        assert!(matches!(rolled_back, Err(RollBack::Wanted)), "the fixture does its work");
    }

    fn stored(&mut self, bucket: Bucket) -> Vec<i64> {
        must(|session| self.statements.ids.rows(session, &[arg(bucket as i32)], |row| row.must::<i64>(1)))
    }

    fn late_commits(&mut self) -> Option<&mut dyn LateCommits> {
        Some(self)
    }

    fn set_clock_back(&mut self, by: Duration) -> bool {
        self.age(-by.as_secs_f64());
        true
    }

    fn cut_releases_short(&mut self) -> bool {
        must(|session| self.statements.cut.run(session, &[]));
        true
    }
}

impl LateCommits for Fixture {
    fn draw(&mut self, _bucket: Bucket) -> i64 {
        must(|session| self.statements.draw.rows(session, &[], |row| row.must::<i64>(1))[0])
    }

    fn commit_drawn(&mut self, bucket: Bucket, id: i64, message: &Message<'_>) {
        must(|session| {
            let args: Vec<_> = values(bucket, message).into_iter().chain([arg(id)]).collect();
            self.statements.insert_drawn.run(session, &args);
            bell::wrote(bucket, id);
        });
    }
}

/// Why a transaction of the fixture is rolled back.
enum RollBack {
    Wanted,
    Failed,
}

impl From<SqlError> for RollBack {
    fn from(_: SqlError) -> Self {
        Self::Failed
    }
}
