//! Messages that writers number, as scripts for pgbench.
//!
//! Reason: loss, duplicates and order must be checked of every run, with little work, because the reader shares the cores
//! with what is measured (arrivals.rs). So a value begins with the message's number among those of its writer, and no two
//! writers share a key: keys are `key-K`, where K modulo [`WRITERS_MAX`] is the writer.

use std::time::Duration;

use anyhow::Result;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

/// Writers of a run at most; they are numbered from 0.
pub const WRITERS_MAX: u64 = 16;
/// Bytes of each value, give or take the digits of the number.
pub const VALUE_BYTES: usize = 200;
/// So many dots follow the number.
const DOTS: usize = VALUE_BYTES - 8;
/// The script's variable with the number of the last message before the run.
pub const BASE: &str = "n";

/// For the last rows to go once the writers have ended.
const EMPTY_AT_MOST: Duration = Duration::from_secs(120);

/// Where a script writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// This topic, by outbox.enqueue or outbox.enqueue_agg.
    Outbox(&'a str),
    /// The table of crate::raw, by INSERT.
    RawTable,
}

/// A transaction of so many messages, by one statement.
pub fn script(target: Target<'_>, a_commit: u64) -> String {
    let padding = ".".repeat(DOTS);
    // A single message has any of its writer's keys; in one statement each key comes once.
    let (draw, key, number, from) = if a_commit == 1 {
        let draw = format!("\\set k random(0, 9999) * {WRITERS_MAX} + :client_id\n");
        (draw, "'key-' || :k::bigint".to_owned(), ":n::bigint + 1", String::new())
    } else {
        let key = format!("'key-' || r * {WRITERS_MAX} + :client_id::bigint");
        (String::new(), key, ":n::bigint + r", format!(" from generate_series(1, {a_commit}) r"))
    };
    let value = format!("({number}) || '{padding}'");
    let statement = match target {
        Target::Outbox(topic) => {
            let function = if a_commit == 1 { "enqueue" } else { "enqueue_agg" };
            format!("select outbox.{function}('{topic}', {key}, {value}){from}")
        }
        Target::RawTable => format!(
            "insert into raw_message (bucket, topic, key, value, message_id) \
             select ({number}) % 8, 'raw', convert_to({key}, 'UTF8'), convert_to({value}, 'UTF8'), gen_random_uuid(){from}"
        ),
    };
    format!("{draw}{statement};\n\\set n :n + {a_commit}\n")
}

/// The number of a message whose value is as a script makes it.
pub fn number(value: &[u8]) -> Option<u64> {
    let (number, dots) = value.split_at_checked(value.len().checked_sub(DOTS)?)?;
    if dots.iter().any(|byte| *byte != b'.') {
        return None;
    }
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Waits until the relay has removed everything.
pub fn wait_until_empty(client: &mut Client) -> Result<()> {
    wait::until("outbox.message is empty", EMPTY_AT_MOST, || {
        let empty: bool = client.query_one("select not exists (select from outbox.message)", &[])?.get(0);
        Ok(if empty { Seen::Reached(()) } else { Seen::NotYet("there are rows".into()) })
    })
}
