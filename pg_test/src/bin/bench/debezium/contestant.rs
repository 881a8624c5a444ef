//! Debezium with an outbox table as its documentation recommends, on a Postgres of ours.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use outbox_relay_pg_test::connect::Connect;
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::process;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::Bench;
use crate::memory;
use crate::messages::{Headers, Messages};
use crate::read_back;
use crate::servers::{DATABASE, Servers};

/// Reads the changes; owns nothing.
const ROLE: &str = "debezium";

/// The columns that the documentation of the outbox event router gives, with the payload as bytes. That the publication leaves
/// out updates and deletes spares Debezium what the router would throw away.
const TABLE: &str = "
    create table public.outbox_event (
        id uuid not null primary key,
        aggregatetype varchar(255) not null,
        aggregateid varchar(255) not null,
        type varchar(255) not null,
        payload bytea
    );
    create publication debezium for table public.outbox_event with (publish = 'insert');
    grant select on public.outbox_event to debezium";

/// One row: aggregate type, aggregate id and payload, which become topic, key and value.
pub const INSERT: &str = "insert into public.outbox_event values (gen_random_uuid(), $1, $2, 'written', $3)";

/// A topic is this and the aggregate type.
const TOPICS: &str = "outbox.event.";
/// Where the row goes that follows all others, and tells that Debezium has read those.
const MARKER: &str = "marker";

/// Between two looks at Kafka and at the processes. Each look is work for the broker, so there are few.
const LOOK: Duration = Duration::from_millis(100);
/// A drain that is slower than this has failed.
const MESSAGES_A_SECOND_AT_LEAST: u64 = 1_000;
const AT_LEAST_PATIENCE: Duration = Duration::from_secs(120);

/// What is set beside what every connector needs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How they are called.
    pub name: &'static str,
    /// Names and values.
    pub values: &'static [(&'static str, &'static str)],
}

/// The router as its documentation has it. All else is at its default but the poll interval, 500 ms by default, which would be
/// seen in the time of each single message.
pub const DOCUMENTED: Settings = Settings { name: "documented", values: &[("poll.interval.ms", "1")] };

/// For one message at a time. Kafka's producer waits 5 ms for more by default since version 4; that of the relay does not.
pub const PROMPT: Settings =
    Settings { name: "prompt", values: &[("poll.interval.ms", "1"), ("producer.override.linger.ms", "0")] };

/// With long batches, both of changes and of records.
pub const TUNED: Settings = Settings {
    name: "tuned",
    values: &[
        ("poll.interval.ms", "1"),
        ("max.batch.size", "20480"),
        ("max.queue.size", "81920"),
        ("producer.override.batch.size", "1000000"),
        ("producer.override.linger.ms", "20"),
    ],
};

/// What every connector gets.
pub const COMMON: &[(&str, &str)] = &[
    ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
    ("tasks.max", "1"),
    ("topic.prefix", "bench"),
    ("plugin.name", "pgoutput"),
    ("slot.name", "debezium"),
    ("publication.name", "debezium"),
    ("publication.autocreate.mode", "disabled"),
    ("table.include.list", "public.outbox_event"),
    ("snapshot.mode", "no_data"),
    ("key.converter", "org.apache.kafka.connect.storage.StringConverter"),
    ("value.converter", "io.debezium.converters.BinaryDataConverter"),
    ("transforms", "outbox"),
    ("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
];

/// What a drain took.
pub struct Drained {
    /// From the first record's arrival in Kafka to the last one's.
    pub flowing: Duration,
    /// From the request to resume to the last record's arrival: with the start of the task, and with finding its place in the WAL.
    pub from_resume: Duration,
    /// What it used for that.
    pub cost: Cost,
}

/// What Debezium used in a drain.
pub struct Cost {
    /// Processor time of Kafka Connect from the request to resume on.
    pub connect: Duration,
    /// Processor time of the Postgres process that decodes WAL for it.
    pub decoder: Duration,
    /// The most anonymous memory that Kafka Connect had, in bytes.
    pub memory: u64,
}

/// The contestant: a connector that runs except where it is measured how it catches up.
pub struct Debezium<'a> {
    servers: &'a Servers,
    connect: Connect,
    client: Client,
    where_to: BTreeMap<&'static str, String>,
    /// Rows that went to the topic of the marker.
    markers: u64,
}

/// Creates a topic; the aggregate type that leads to it, and its name.
pub fn new_topic(bench: &Bench<'_>, beginning: &str, partitions: i32) -> Result<(String, String)> {
    let topic = bench.new_topic(&format!("{TOPICS}{beginning}"), partitions)?;
    let kind = topic.strip_prefix(TOPICS).context("a new topic has another name than was asked for")?;
    Ok((kind.to_owned(), topic))
}

/// Gives the Postgres of these servers what Debezium needs: its table and role, and a port, because it knows no sockets. That
/// needs a restart, after which Debezium can be started with the password that this returns.
pub fn prepare(servers: &mut Servers) -> Result<String> {
    let password = uuid::Uuid::new_v4().to_string();
    let mut client = servers.session()?;
    client
        .batch_execute(&format!("create role {ROLE} login replication password '{password}'; {TABLE}"))
        .context("could not make the table and the role of Debezium")?;
    drop(client);
    servers.cluster.open_port(DATABASE, ROLE)?;
    servers.cluster.restart()?;
    Ok(password)
}

impl Debezium<'_> {
    /// Starts Kafka Connect and the connector on servers that were prepared.
    pub fn start<'a>(servers: &'a Servers, password: &str) -> Result<Debezium<'a>> {
        servers.broker.create_topic(&format!("{TOPICS}{MARKER}"), 1, &[])?;
        let connect = Connect::start_in(&servers.directory.join("connect"), &servers.broker.bootstrap())?;
        let where_to = BTreeMap::from([
            ("database.hostname", "127.0.0.1".to_owned()),
            ("database.port", servers.cluster.address().port().to_string()),
            ("database.user", ROLE.to_owned()),
            ("database.password", password.to_owned()),
            ("database.dbname", DATABASE.to_owned()),
        ]);
        let mut debezium = Debezium { servers, connect, client: servers.session()?, where_to, markers: 0 };
        debezium.configure(&DOCUMENTED)?;
        debezium.connect.wait_until_running()?;
        debezium.wait_for_slot()?;
        debezium.wait_for_marker()?;
        Ok(debezium)
    }

    /// Fills its table while the connector is stopped, lets it drain that, and reads the topic back. The topic is made for it
    /// and deleted afterwards.
    pub fn drain(&mut self, bench: &Bench<'_>, settings: &Settings, messages: &Messages) -> Result<Drained> {
        let broker = &self.servers.broker;
        let (kind, topic) = new_topic(bench, settings.name, messages.partitions)?;
        // The broker's clock says when a record came.
        broker.set_topic(&topic, "message.timestamp.type", "LogAppendTime")?;
        self.connect.stop_connector()?;
        self.configure(settings)?;
        fill(&mut self.client, &kind, messages)?;
        memory::touch(messages)?;
        let resumed = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
        let cost = self.watch(&topic, messages)?;
        let (first, last) = appended(self.servers, &topic, messages)?;
        read_back::check(broker, &topic, messages, Headers::None).context("what Debezium sent")?;
        broker.delete_topic(&topic)?;
        Ok(Drained { flowing: last.saturating_sub(first), from_resume: last.saturating_sub(resumed), cost })
    }

    /// Writes a row and waits until it is in Kafka; so is then all that was written before it.
    fn wait_for_marker(&mut self) -> Result<()> {
        self.markers += 1;
        insert(&mut self.client, MARKER, "marker", b"marker")?;
        let consumer = Consumer::follow(&self.servers.broker.bootstrap(), &[&format!("{TOPICS}{MARKER}")])?;
        wait::until("Debezium has caught up", AT_LEAST_PATIENCE, || {
            self.connect.require_health()?;
            let seen = consumer.count()?;
            thread::sleep(LOOK);
            Ok(if seen >= self.markers { Seen::Reached(()) } else { Seen::NotYet(format!("{seen} markers")) })
        })
    }

    /// Leaves the machine to the other contestant.
    pub fn stop(&mut self) -> Result<()> {
        self.connect.stop_connector()
    }

    /// Runs it with these settings until it has read all that was written so far, so that what it does next does not begin with
    /// what others wrote.
    pub fn catch_up(&mut self, settings: &Settings) -> Result<()> {
        self.connect.stop_connector()?;
        self.configure(settings)?;
        self.connect.resume_connector()?;
        self.connect.wait_until_running()?;
        self.wait_for_marker()
    }

    fn configure(&self, settings: &Settings) -> Result<()> {
        let fixed = COMMON.iter().chain(settings.values).map(|(name, value)| (*name, (*value).to_owned()));
        let mut all: BTreeMap<&str, String> = fixed.collect();
        all.extend(self.where_to.iter().map(|(name, value)| (*name, value.clone())));
        self.connect.configure(&all)
    }

    /// It reads from the moment on at which it has its slot: what is written earlier is not for it.
    fn wait_for_slot(&mut self) -> Result<()> {
        wait::until_true("Debezium streams from its slot", AT_LEAST_PATIENCE, || {
            self.connect.require_health()?;
            let active = self.client.query_one("select count(*) = 1 from pg_replication_slots where active", &[])?;
            Ok(active.get(0))
        })
    }

    /// Resumes and watches until all records are there.
    fn watch(&mut self, topic: &str, messages: &Messages) -> Result<Cost> {
        let at_most = AT_LEAST_PATIENCE.max(Duration::from_secs(messages.count / MESSAGES_A_SECOND_AT_LEAST));
        // One that fetches would take part in what is measured, and the relay's drain has none beside it.
        let consumer = Consumer::counter(&self.servers.broker.bootstrap(), &[topic])?;
        ensure!(consumer.count()? == 0, "Debezium sent something while it was stopped");
        let connect = self.connect.pid();
        let processor = process::processor_time(connect)?;
        let mut memory = 0;
        let since = Instant::now();
        self.connect.resume_connector()?;
        loop {
            let seen = consumer.count()?;
            memory = process::anonymous_memory(connect)?.max(memory);
            if seen >= messages.count {
                break;
            }
            if since.elapsed() > at_most {
                self.connect.require_health()?;
                bail!("only {seen} of {} rows were drained in {at_most:?}", messages.count);
            }
            thread::sleep(LOOK);
        }
        Ok(Cost {
            connect: process::processor_time(connect)? - processor,
            decoder: process::processor_time(self.decoder()?)?,
            memory,
        })
    }

    /// The Postgres process that decodes WAL for it, which began with its last resume.
    fn decoder(&mut self) -> Result<i32> {
        let row = self.client.query_one("select pid from pg_stat_replication", &[]);
        Ok(row.context("one process that sends WAL was expected")?.get(0))
    }
}

/// Adds one row in a transaction of its own.
fn insert(client: &mut Client, kind: &str, key: &str, value: &[u8]) -> Result<()> {
    client.execute(INSERT, &[&kind, &key, &value]).context("could not insert into Debezium's table")?;
    Ok(())
}

/// The same messages as [`crate::fill`] writes for the relay, in the same commits; those of an earlier fill are gone.
fn fill(client: &mut Client, kind: &str, messages: &Messages) -> Result<()> {
    client.batch_execute("truncate public.outbox_event; set synchronous_commit = off").context("truncate")?;
    let insert = client
        .prepare(
            "insert into public.outbox_event
             select gen_random_uuid(), $1, 'key-' || n % $2::bigint, 'written',
                    convert_to(n::text, 'UTF8') || substr($3::bytea, length(n::text) + 1)
             from generate_series($4::bigint, $5::bigint - 1) n",
        )
        .context("could not prepare the insertion")?;
    let (keys, padding) = (messages.keys as i64, messages.padding());
    let mut first = 0;
    while first < messages.count {
        let past = (first + messages.a_commit).min(messages.count);
        client
            .execute(&insert, &[&kind, &keys, &padding, &(first as i64), &(past as i64)])
            .context("could not fill Debezium's table")?;
        first = past;
    }
    client.batch_execute("reset synchronous_commit; checkpoint").context("checkpoint")
}

/// When the first and the last record of a topic came, as times since 1970.
fn appended(servers: &Servers, topic: &str, messages: &Messages) -> Result<(Duration, Duration)> {
    let mut consumer = Consumer::follow(&servers.broker.bootstrap(), &[topic])?;
    let (mut first, mut last) = (u64::MAX, 0);
    for number in 0..messages.count {
        let record = consumer.next(AT_LEAST_PATIENCE)?;
        let record = record.with_context(|| format!("only {number} of {} records could be read", messages.count))?;
        let time = record.timestamp as u64;
        (first, last) = (first.min(time), last.max(time));
    }
    Ok((Duration::from_millis(first), Duration::from_millis(last)))
}
