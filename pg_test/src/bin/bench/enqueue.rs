//! What it costs to save a message with outbox.enqueue instead of inserting a row by hand (R3).
//!
//! Reason: writers pay for an outbox with every transaction, so the price of the call itself must hardly show. The relay is
//! disabled: this is about the call, the other families are about the relay beside it.
//!
//! One message a commit is written by pgbench, each commit flushed to disk. A thousand a call go through a session of this
//! process: as arrays, against `insert ... select` from the same arrays; as an aggregate over a query, against `insert ...
//! select` of the same query. The raw table has the same shape, and its rows get a random id and a bucket too, but the
//! bucket is given instead of computed.
//!
//! The speed of a disk wanders. So a round is four short slices, raw, outbox, outbox, raw, in which a steady drift cancels;
//! both tables are emptied before each slice.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use postgres::Client;

use crate::Bench;
use crate::pgbench::{self, Load, Script, Until};
use crate::raw;
use crate::results::{Good, Ratio, Results, median_of_ratios};
use crate::servers::DATABASE;

const GROUP: &str = "enqueue";
const RAW: &str = "raw INSERT";
const VALUE_BYTES: usize = 200;
/// Messages a call.
const BULK: usize = 1_000;

/// All cases: one message a commit, then many a call.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let mut client = bench.servers.session()?;
    raw::make_table(&mut client)?;
    for (clients, id) in [(1, "R3a"), (8, "R3b")] {
        one_a_commit(bench, &mut client, clients, id, results)?;
    }
    for (way, id) in [(&ARRAYS, "R3c"), (&AGGREGATE, "R3d")] {
        bulk(bench, &mut client, way, id, results)?;
    }
    // Nothing of this is to be published.
    empty(&mut client)
}

/// What is compared with the raw table.
struct Case<'a> {
    id: &'a str,
    name: String,
    who: &'a str,
    required: f64,
    aim: f64,
    method: String,
}

/// All rounds of a case. A slice gets whether it is the raw table's turn and gives messages a second.
fn compare(
    bench: &Bench<'_>,
    client: &mut Client,
    results: &mut Results,
    case: &Case<'_>,
    mut slice: impl FnMut(&mut Client, bool) -> Result<f64>,
) -> Result<()> {
    let (mut enqueue, mut raw) = (Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        bench.terminal.draw(format_args!("{}, {}: round {round} of {}", case.name, case.who, bench.rounds));
        let mut sums = [0.0; 2];
        for is_raw in [true, false, false, true] {
            empty(client)?;
            sums[usize::from(is_raw)] += slice(client, is_raw)?;
        }
        enqueue.push(sums[0] / 2.0);
        raw.push(sums[1] / 2.0);
    }
    let value = median_of_ratios(&enqueue, &raw);
    bench.terminal.good(format_args!("{}: {} / {RAW} {value:.3}", case.name, case.who));
    for (who, samples) in [(case.who, enqueue), (RAW, raw)] {
        results.add_series(
            GROUP,
            &case.name,
            who,
            "messages/s",
            samples,
            &format!("{VALUE_BYTES} bytes, synchronous_commit on"),
        );
    }
    results.ratios.push(Ratio {
        id: case.id.into(),
        what: format!("{} / {RAW}, {}", case.who, case.name),
        value,
        unit: String::new(),
        good: Good::AtLeast,
        required: case.required,
        aim: Some(case.aim),
        method: format!(
            "{}, relay disabled; {} rounds of four slices in turns, median of their ratios",
            case.method, bench.rounds
        ),
    });
    Ok(())
}

fn one_a_commit(bench: &Bench<'_>, client: &mut Client, clients: usize, id: &str, results: &mut Results) -> Result<()> {
    let value = ".".repeat(VALUE_BYTES);
    // The same work for pgbench, whichever of the two is sent.
    let draw = "\\set k random(0, 99999)\n\\set b random(0, 7)\n";
    let enqueue = format!("{draw}select outbox.enqueue('enqueue', :k, '{value}');\n");
    let raw = format!(
        "{draw}insert into raw_message (bucket, topic, key, value, message_id)
         values (:b, 'enqueue', :k, '{value}', gen_random_uuid());\n"
    );
    let seconds = bench.pick(1, 5);
    let case = Case {
        id,
        name: format!("one a commit, {clients} client{}", if clients == 1 { "" } else { "s" }),
        who: "outbox.enqueue",
        required: 0.90,
        aim: 0.97,
        method: format!("pgbench, prepared statements, {seconds} s a slice"),
    };
    compare(bench, client, results, &case, |_, is_raw| {
        let script = Script::Text(if is_raw { &raw } else { &enqueue });
        Ok(pgbench::run(bench.servers, &Load::new(DATABASE, script, clients, Until::Seconds(seconds)))?.rate)
    })
}

/// A way of saving many at a time, and what is held against it.
struct Way {
    name: &'static str,
    how: &'static str,
    enqueue: &'static str,
    raw: &'static str,
    arrays: bool,
}

const ARRAYS: Way = Way {
    name: "outbox.enqueue_many",
    how: "as arrays",
    // Both get the same three arrays, needed or not.
    enqueue: "select outbox.enqueue_many('enqueue', $2::bytea[], $3::bytea[]), cardinality($1::integer[])",
    raw: "insert into raw_message (bucket, topic, key, value, message_id)
          select b, 'enqueue', k, v, gen_random_uuid()
          from unnest($1::integer[], $2::bytea[], $3::bytea[]) r (b, k, v)",
    arrays: true,
};

const AGGREGATE: Way = Way {
    name: "outbox.enqueue_agg",
    how: "from a query",
    enqueue: "select outbox.enqueue_agg('enqueue', k, v) from pg_temp.source",
    raw: "insert into raw_message (bucket, topic, key, value, message_id)
          select b, 'enqueue', k, v, gen_random_uuid() from pg_temp.source",
    arrays: false,
};

fn bulk(bench: &Bench<'_>, client: &mut Client, way: &Way, id: &str, results: &mut Results) -> Result<()> {
    let calls = bench.pick(50, 250);
    let keys: Vec<Vec<u8>> = (0..BULK).map(|row| format!("key-{row}").into_bytes()).collect();
    let values = vec![vec![b'.'; VALUE_BYTES]; BULK];
    let buckets: Vec<i32> = (0..BULK).map(|row| (row % 8) as i32).collect();
    client
        .batch_execute(
            "drop table if exists pg_temp.source;
             create temporary table source (b integer not null, k bytea not null, v bytea not null)",
        )
        .context("could not make the table of what is to be saved")?;
    client
        .execute(
            "insert into pg_temp.source select * from unnest($1::integer[], $2::bytea[], $3::bytea[])",
            &[&buckets, &keys, &values],
        )
        .context("could not fill the table of what is to be saved")?;
    client.batch_execute("analyze pg_temp.source").context("analyze")?;
    let (enqueue, raw) = (client.prepare(way.enqueue)?, client.prepare(way.raw)?);
    let case = Case {
        id,
        name: format!("{BULK} a call, {}", way.how),
        who: way.name,
        required: 0.85,
        aim: 0.95,
        method: format!("{calls} calls of {BULK} messages a slice, a commit each, one session"),
    };
    compare(bench, client, results, &case, |client, is_raw| {
        let statement = if is_raw { &raw } else { &enqueue };
        let since = Instant::now();
        for _ in 0..calls {
            if way.arrays {
                client.execute(statement, &[&buckets, &keys, &values])?;
            } else {
                client.execute(statement, &[])?;
            }
        }
        let took = since.elapsed();
        let table = if is_raw { "raw_message" } else { "outbox.message" };
        let rows: i64 = client.query_one(&format!("select count(*) from {table}"), &[])?.get(0);
        ensure!(rows as usize == calls * BULK, "{table} holds {rows} rows, {} were saved", calls * BULK);
        Ok(rows as f64 / took.as_secs_f64())
    })
}

fn empty(client: &mut Client) -> Result<()> {
    client.batch_execute("truncate outbox.message; truncate raw_message").context("could not empty the tables")
}
