//! The acts of the demo, one function each, in their order.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_relay_pg_test::checker;
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::load::{self, Load, Plan, Tally};
use outbox_relay_pg_test::process::{self, Signal};
use outbox_relay_pg_test::terminal::Terminal;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;
use uuid::Uuid;

use crate::servers::{self, DATABASE, Servers, TOPIC};

const PATIENCE: Duration = Duration::from_secs(60);

/// Messages that the sessions commit in the second act.
const MESSAGES: u64 = 3_000;
/// How long the broker is away in the third.
const OUTAGE: Duration = Duration::from_secs(3);
/// Rest of a session after each transaction: a shop, not a benchmark.
const REST: Duration = Duration::from_millis(5);

/// Plays all of it.
pub fn play(terminal: &Terminal) -> Result<()> {
    let since = Instant::now();
    terminal.title("Two servers: PostgreSQL with outbox_relay, and Apache Kafka");
    let servers = servers::start(terminal)?;
    let mut client = create_shop(terminal, &servers)?;
    let mut all = Tally::default();
    one_message(terminal, &servers, &mut client, &mut all)?;
    many_messages(terminal, &servers, &mut client, &mut all)?;
    outage(terminal, &servers, &mut client, &mut all)?;
    crash(terminal, &servers, client, &mut all)?;
    closing(terminal, &servers, &all, since.elapsed());
    Ok(())
}

fn create_shop(terminal: &Terminal, servers: &Servers) -> Result<Client> {
    servers
        .cluster
        .connect("postgres")?
        .batch_execute(&format!("create database {DATABASE}"))
        .context("create database")?;
    let mut client = servers.cluster.connect(DATABASE)?;
    let version: String = client.query_one("select split_part(version(), ' ', 2)", &[])?.get(0);
    terminal.good(format_args!(
        "PostgreSQL {version} with a new database \"{DATABASE}\", Kafka on {}",
        servers.broker.bootstrap()
    ));
    terminal.say("In the database:");
    terminal.code("create extension outbox_relay;");
    client.batch_execute("create extension outbox_relay").context("create extension")?;
    terminal.code(load::TABLES);
    load::create_tables(&mut client)?;
    let relays = wait_for_relays(&mut client)?;
    terminal.say("Two background workers, the relays, have started and share the buckets by leases:");
    for (pid, buckets) in relays {
        terminal.good(format_args!("relay {pid} leased buckets {buckets}"));
    }
    Ok(client)
}

/// Waits until two relays have leased all buckets; returns their process ids and buckets.
fn wait_for_relays(client: &mut Client) -> Result<Vec<(i32, String)>> {
    wait::until("two relays have leased all buckets", PATIENCE, || {
        let rows = client.query(
            "select r.pid, string_agg(l.bucket::text, ' ' order by l.bucket), count(*)
             from outbox.lease l join outbox.relay r using (relay_id)
             join pg_stat_activity a on a.pid = r.pid
             where l.expires_at > clock_timestamp() and r.stopped_at is null
             group by r.pid order by r.pid",
            &[],
        )?;
        let leased: i64 = rows.iter().map(|row| row.get::<_, i64>(2)).sum();
        Ok(if rows.len() == 2 && leased == 8 {
            Seen::Reached(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
        } else {
            Seen::NotYet(format!("{} relays with {leased} buckets", rows.len()))
        })
    })
}

fn one_message(terminal: &Terminal, servers: &Servers, client: &mut Client, all: &mut Tally) -> Result<()> {
    terminal.title("1. One message");
    let mut consumer = Consumer::follow(&servers.broker.bootstrap(), &[TOPIC])?;
    let order = "insert into orders values ('order-0', 1);";
    let enqueue = |version: i32| {
        format!(
            "select outbox.enqueue('{TOPIC}', 'order-0', '{{\"order\": \"order-0\", \"version\": {version}}}', headers => '{{\"source\": \"demo\"}}');"
        )
    };
    terminal.say("An application changes its own table and enqueues a message, in one transaction:");
    terminal.code(&format!("begin;\n{order}\n{}\ncommit;", enqueue(1)));
    let mut transaction = client.transaction()?;
    transaction.batch_execute(order)?;
    let id: Uuid = transaction.query_one(enqueue(1).trim_end_matches(';'), &[])?.get(0);
    // What the demo compares with later.
    transaction.execute(
        "insert into order_event select $1, 'order-0', 1, '{\"order\": \"order-0\", \"version\": 1}'",
        &[&id],
    )?;
    transaction.commit()?;
    all.committed.insert(id);
    let since = Instant::now();
    let record = consumer.next(PATIENCE)?.context("no message arrived")?;
    terminal.say(format_args!("{} after the commit a Kafka consumer has it:", milliseconds(since.elapsed())));
    servers::show(terminal, &record);
    ensure!(record.message_id()? == id, "another message arrived than enqueue returned");

    terminal.say("The same with a change of mind:");
    terminal.code(&format!("begin;\n{}\nrollback;", enqueue(2)));
    let mut transaction = client.transaction()?;
    transaction.batch_execute(&enqueue(2))?;
    transaction.rollback()?;
    wait_until_published(terminal, client)?;
    ensure!(consumer.rest(PATIENCE)?.is_empty(), "a rolled-back message was published");
    terminal.good("nothing reaches Kafka");
    Ok(())
}

fn many_messages(terminal: &Terminal, servers: &Servers, client: &mut Client, all: &mut Tally) -> Result<()> {
    terminal.title("2. Many messages: eight sessions on forty orders, a tenth of the transactions rolled back");
    let since = Instant::now();
    let load = Load::start(servers.cluster.address(), &Plan { until_committed: Some(MESSAGES), ..plan(2) })?;
    terminal.bar("committed", || Ok((load.committed(), MESSAGES, String::new())))?;
    let tally = load.finish()?;
    wait_until_published(terminal, client)?;
    terminal.say(format_args!(
        "{} messages committed and {} rolled back in {:.1} s.",
        tally.committed.len(),
        tally.rolled_back.len(),
        since.elapsed().as_secs_f64()
    ));
    all.add(tally);
    compare(terminal, servers, client, all)
}

fn outage(terminal: &Terminal, servers: &Servers, client: &mut Client, all: &mut Tally) -> Result<()> {
    terminal.title("3. The broker goes away, and the shop stays open");
    let load = Load::start(servers.cluster.address(), &plan(3))?;
    load.wait_for(500, PATIENCE)?;
    servers.broker.stop()?;
    terminal.good("Kafka is stopped; the sessions write on");
    let before = load.committed();
    let back = Instant::now() + OUTAGE;
    while Instant::now() < back {
        terminal.draw(format_args!(
            "{} messages committed meanwhile, {} wait",
            load.committed() - before,
            waiting(client)?
        ));
        thread::sleep(Duration::from_millis(100));
    }
    terminal.wipe();
    let meanwhile = load.committed() - before;
    terminal.say(format_args!(
        "After {} s: {meanwhile} messages committed, {} wait in outbox.message.",
        OUTAGE.as_secs(),
        waiting(client)?
    ));
    terminal.during("starting Kafka again, while the sessions write on", || servers.broker.start())?;
    let tally = load.stop()?;
    ensure!(tally.lost_connections == 0, "a session lost its connection");
    terminal.good(format_args!(
        "no session noticed: the slowest transaction of the outage took {}",
        milliseconds(tally.slowest)
    ));
    wait_until_published(terminal, client)?;
    all.add(tally);
    compare(terminal, servers, client, all)
}

fn crash(terminal: &Terminal, servers: &Servers, mut client: Client, all: &mut Tally) -> Result<()> {
    terminal.title("4. A relay is killed in the middle of its work");
    let load = Load::start(servers.cluster.address(), &plan(4))?;
    load.wait_for(500, PATIENCE)?;
    let victim: i32 = client
        .query_one(
            "select pid from pg_stat_activity where backend_type = 'outbox_relay relay' order by pid limit 1",
            &[],
        )
        .context("no relay runs")?
        .get(0);
    process::send(victim, Signal::KILL)?;
    terminal.code(&format!("kill -9 {victim}"));
    terminal.say("PostgreSQL restarts its processes, as after any killed one; the sessions connect again.");
    wait::until_true("the session has noticed the crash", PATIENCE, || Ok(client.batch_execute("select").is_err()))?;
    let mut client = terminal.during("waiting for PostgreSQL's recovery and for new relays", || {
        servers.cluster.wait_for_answer()?;
        let mut client = servers.cluster.connect(DATABASE)?;
        wait_for_relays(&mut client)?;
        load.wait_for_more(500, PATIENCE)?;
        Ok(client)
    })?;
    let tally = load.stop()?;
    terminal.say(format_args!(
        "{} sessions lost their connection; {} messages wait for the answer to their COMMIT for ever: the tables tell their fate.",
        tally.lost_connections,
        tally.unknown.len()
    ));
    wait_until_published(terminal, &mut client)?;
    all.add(tally);
    compare(terminal, servers, &mut client, all)
}

fn closing(terminal: &Terminal, servers: &Servers, all: &Tally, took: Duration) {
    terminal.title("The servers are up: try it yourself");
    terminal.say(format_args!(
        "{} messages committed, {} rolled back, one outage and one crash in {:.0} s; nothing lost, nothing invented.",
        all.committed.len(),
        all.rolled_back.len() + 1,
        took.as_secs_f64()
    ));
    terminal.say(format_args!("{}  opens psql on the database, where for example", terminal.strong("make psql")));
    terminal.code(&format!("select outbox.enqueue('{TOPIC}', 'my key', 'my value');"));
    terminal.code("select * from outbox.pg_stat_relay;\nselect * from outbox.pg_stat_bucket;");
    terminal.say("To see what reaches Kafka, in another window:");
    terminal.code("make listen");
    terminal.say(format_args!("{}  stops both servers. Their logs:", terminal.strong("make stop")));
    terminal.say(servers.cluster.log_path().display());
    terminal.say(servers.broker.log_path().display());
}

fn plan(act: u64) -> Plan {
    Plan { rest: REST, seed: act * 100, ..Plan::new(DATABASE, TOPIC) }
}

fn waiting(client: &mut Client) -> Result<i64> {
    Ok(client.query_one("select count(*) from outbox.message", &[]).context("could not count")?.get(0))
}

fn wait_until_published(terminal: &Terminal, client: &mut Client) -> Result<()> {
    let all = waiting(client)?.max(0) as u64;
    let until = Instant::now() + PATIENCE;
    terminal.bar("published", || {
        let left = waiting(client)?.max(0) as u64;
        ensure!(left == 0 || Instant::now() < until, "{left} messages are still not published after {PATIENCE:?}");
        Ok((all.saturating_sub(left), all, String::new()))
    })
}

/// Reads the whole topic with an independent consumer and holds it against the business tables.
fn compare(terminal: &Terminal, servers: &Servers, client: &mut Client, tally: &Tally) -> Result<()> {
    let committed = load::committed(client)?;
    tally.check(&committed)?;
    let records = Consumer::follow(&servers.broker.bootstrap(), &[TOPIC])?.rest(PATIENCE)?;
    let figures = checker::compare(&committed, &records);
    terminal.say(format_args!("{:<34}{:>8}", "committed in PostgreSQL so far", figures.committed));
    terminal.say(format_args!("{:<34}{:>8}", "read by a Kafka consumer", figures.consumed));
    terminal.say(format_args!("{:<34}{:>8}", "  missing", figures.missing.len()));
    terminal.say(format_args!("{:<34}{:>8}", "  invented", figures.invented.len()));
    terminal.say(format_args!("{:<34}{:>8}", "  out of order within their key", figures.out_of_order.len()));
    terminal.say(format_args!("{:<34}{:>8}", "  second copies, with the same id", figures.duplicates));
    figures.require_at_least_once()?;
    terminal.good("every committed message arrived, none that was rolled back did, and each key is in order");
    Ok(())
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}
