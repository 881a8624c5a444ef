//! What a test plays in: a Postgres cluster of its own, and a broker that is shared or its own.

use std::any::Any;
use std::fmt::Display;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::{Failed, Trial};
use outbox_relay_pg_test::broker::{Broker, Purpose};
use outbox_relay_pg_test::brokers::Brokers;
use outbox_relay_pg_test::checker::{self, Figures};
use outbox_relay_pg_test::cluster::{Cluster, Log, Shutdown};
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::process::{self, Lifetime, Signal};
use outbox_relay_pg_test::proxy::{self, Proxy};
use outbox_relay_pg_test::wait::{self, Seen};
use outbox_relay_pg_test::{load, state};
use postgres::Client;
use uuid::Uuid;

/// The database of a test.
pub const DATABASE: &str = "app";

/// Long enough for anything that must happen some time; a bound that a test is about is its own.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Fast shutdown must not wait for Kafka (G7); every test ends with one.
pub const FAST_SHUTDOWN: Duration = Duration::from_secs(5);

/// Whether the run may take its time: longer outages, more messages.
pub fn soak() -> bool {
    soak_outage().is_some()
}

/// How long an outage lasts in a run that may take its time.
pub fn soak_outage() -> Option<Duration> {
    let minutes = std::env::var("OUTBOX_RELAY_SOAK").ok()?;
    let minutes: f64 = minutes.parse().expect("OUTBOX_RELAY_SOAK is a number of minutes");
    Some(Duration::from_secs_f64(60.0 * minutes))
}

/// What each cluster starts with. The tests kill processes, not the machine, so nothing depends on fsync.
const SETTINGS: &[(&str, &str)] = &[
    ("shared_preload_libraries", "outbox_relay"),
    ("max_worker_processes", "32"),
    ("max_connections", "60"),
    ("max_prepared_transactions", "10"),
    ("shared_buffers", "64MB"),
    ("max_wal_size", "512MB"),
    ("fsync", "off"),
];

/// Sessions that a test left open when it stopped its server are told so; so are those that come too early.
const ALWAYS_EXPECTED: &[&str] = &[
    "FATAL:  terminating connection due to administrator command",
    "FATAL:  the database system is shutting down",
    "FATAL:  the database system is starting up",
    "FATAL:  the database system is not yet accepting connections",
];

/// A test.
pub type Test = fn(&mut Scene) -> Result<()>;

/// Whose broker a test uses.
#[derive(Clone, Copy)]
pub enum Kafka {
    /// One for all, never stopped.
    Shared,
    /// One that the test may stop.
    Own,
    /// One that the test may stop, reached through a proxy.
    Proxied,
    /// Three that replicate to each other. The tests that use them take turns, and each finds them whole.
    Three,
}

/// Whom a test tolerates beside it.
#[derive(Clone, Copy)]
pub enum Company {
    /// Any other test.
    Any,
    /// None: it measures, or it needs both cores.
    None,
}

/// Lists tests: `trials![(Shared, Any): one, two]`.
#[macro_export]
macro_rules! trials {
    ($(($kafka:ident, $company:ident): $($test:ident),+ $(,)?);+ $(;)?) => {
        vec![$($($crate::scene::trial(
            concat!(module_path!(), "::", stringify!($test)),
            $crate::scene::Kafka::$kafka,
            $crate::scene::Company::$company,
            $test,
        )),+),+]
    };
}

/// Makes a test of a function.
pub fn trial(path: &'static str, kafka: Kafka, company: Company, test: Test) -> Trial {
    let name = path.trim_start_matches("cluster::");
    Trial::test(name, move || play(name, kafka, company, test))
}

/// The place of a test.
pub struct Scene {
    name: &'static str,
    directory: PathBuf,
    /// The test's cluster.
    pub cluster: Cluster,
    /// The test's broker; of three, the first.
    pub broker: Arc<Broker>,
    brokers: Option<Turn>,
    proxy: Option<Proxy>,
    expected: Vec<String>,
    topics: u32,
}

fn play(name: &'static str, kafka: Kafka, company: Company, test: Test) -> Result<(), Failed> {
    static STAGE: RwLock<()> = RwLock::new(());
    // A failed test leaves nothing behind that the lock would protect.
    let (_shared, _alone) = match company {
        Company::Any => (Some(STAGE.read().unwrap_or_else(PoisonError::into_inner)), None),
        Company::None => (None, Some(STAGE.write().unwrap_or_else(PoisonError::into_inner))),
    };
    let mut scene = Scene::set(name, kafka).map_err(|error| Failed::from(format!("{error:#}")))?;
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| test(&mut scene).and_then(|()| scene.end())))
        .unwrap_or_else(|panic| Err(anyhow!("panic: {}", panic_text(panic.as_ref()))));
    match outcome {
        Ok(()) => {
            let directory = scene.directory.clone();
            drop(scene);
            fs::remove_dir_all(&directory)
                .map_err(|error| Failed::from(format!("could not remove {directory:?}: {error}")))
        }
        Err(error) => Err(Failed::from(scene.report(&error))),
    }
}

impl Scene {
    fn set(name: &'static str, kafka: Kafka) -> Result<Scene> {
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short, for the path of a socket is limited.
        let short: String = name.rsplit("::").next().unwrap_or(name).chars().take(24).collect();
        let directory = state::directory()?.join("test").join(format!("{}-{number:02}-{short}", std::process::id()));
        let cluster = Cluster::create(&directory.join("pg"), Lifetime::WithUs)?;
        let (mut brokers, mut proxy) = (None, None);
        let broker = match kafka {
            Kafka::Shared => shared_broker()?,
            Kafka::Own => Arc::new(Broker::start_in(&directory.join("kafka"), Purpose::Test, Lifetime::WithUs)?),
            Kafka::Proxied => {
                let (broker, before) = proxy::start_broker_behind_proxy(&directory.join("kafka"), Lifetime::WithUs)?;
                proxy = Some(before);
                Arc::new(broker)
            }
            Kafka::Three => Arc::clone(brokers.insert(Turn::take()?).brokers()?.member(1)?),
        };
        Ok(Scene { name, directory, cluster, broker, brokers, proxy, expected: Vec::new(), topics: 0 })
    }

    /// Starts the cluster with the extension in the database `app`, and returns a session there.
    pub fn start(&mut self, settings: &[(&str, &str)]) -> Result<Client> {
        let bootstrap = self.proxy.as_ref().map_or_else(|| self.broker.bootstrap(), Proxy::bootstrap);
        self.start_without_broker(&[&[("outbox_relay.bootstrap_servers", bootstrap.as_str())], settings].concat())
    }

    /// The same, with `bootstrap_servers` left to the test.
    pub fn start_without_broker(&mut self, settings: &[(&str, &str)]) -> Result<Client> {
        self.cluster.configure(SETTINGS)?;
        self.cluster.configure(settings)?;
        self.cluster.start()?;
        create_database(&self.cluster, DATABASE)
    }

    /// A session in the test's database.
    pub fn session(&self) -> Result<Client> {
        self.cluster.connect(DATABASE)
    }

    /// Makes a topic that no other test uses.
    pub fn topic(&mut self, partitions: i32) -> Result<String> {
        let name = self.topic_name();
        self.broker.create_topic(&name, partitions, &[])?;
        Ok(name)
    }

    /// Names a topic that no other test uses.
    pub fn topic_name(&mut self) -> String {
        self.topics += 1;
        format!("{}-{}-{}", self.name.replace("::", "."), std::process::id(), self.topics)
    }

    /// Follows a topic from its beginning.
    pub fn follow(&self, topic: &str) -> Result<Consumer> {
        Consumer::follow(&self.broker.bootstrap(), &[topic])
    }

    /// The test provokes complaints in the server log that contain `text`.
    pub fn expect_complaint(&mut self, text: &str) {
        self.expected.push(text.into());
    }

    /// The test crashes the server, which says so in many ways.
    pub fn expect_crash(&mut self) {
        for text in [
            "was terminated by signal 9: Killed",
            "WARNING:  terminating connection because of crash of another server process",
            "FATAL:  terminating connection due to unexpected postmaster exit",
            "FATAL:  the database system is in recovery mode",
        ] {
            self.expect_complaint(text);
        }
    }

    /// The test takes the broker away, or sends the Kafka client where there is none.
    pub fn expect_lost_broker(&mut self) {
        self.expect_complaint("outbox_relay relay WARNING:  Kafka client reports a problem");
        self.expect_complaint("outbox_relay relay WARNING:  Kafka does not answer");
    }

    /// The three brokers of the test.
    pub fn brokers(&self) -> Result<&Brokers> {
        self.brokers.as_ref().context("the test does not use three brokers")?.brokers()
    }

    /// What lies between the relays and the test's broker.
    pub fn proxy(&self) -> Result<&Proxy> {
        self.proxy.as_ref().context("the test uses no proxy")
    }

    /// Where the test's servers live.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Compares what the writers committed with all that the topic holds, and prints the figures.
    pub fn compare(&self, client: &mut Client, topic: &str) -> Result<Figures> {
        let committed = load::committed(client)?;
        let records = self.follow(topic)?.rest(PATIENCE)?;
        let figures = checker::compare(&committed, &records);
        self.say(&figures);
        Ok(figures)
    }

    /// Prints a line with the test's name before it.
    pub fn say(&self, text: impl Display) {
        println!("     {}: {text}", self.name);
    }

    /// Holds after every test: the server stops at once and has nothing to complain of.
    fn end(&mut self) -> Result<()> {
        if self.cluster.pid().is_ok() {
            let took = self.cluster.stop(Shutdown::Fast)?;
            ensure!(took < FAST_SHUTDOWN, "the fast shutdown at the end took {took:?}");
        }
        let log = self.cluster.log()?;
        let expected: Vec<String> =
            ALWAYS_EXPECTED.iter().map(|text| (*text).to_owned()).chain(self.expected.iter().cloned()).collect();
        let complaints = log.complaints(&expected);
        ensure!(complaints.is_empty(), "the server log complains:\n{}", complaints.join("\n"));
        Ok(())
    }

    fn report(&self, error: &anyhow::Error) -> String {
        let server = self.cluster.log().map(|log| log.tail(40)).unwrap_or_default();
        let broker = Log::read(&self.broker.log_path()).map(|log| log.tail(10)).unwrap_or_default();
        format!(
            "{error:#}\n--- end of the server log ---\n{server}\n--- end of the broker's log ---\n{broker}\n--- all is in {}",
            self.directory.display()
        )
    }
}

/// Makes a database with the extension and the writers' tables, and returns a session there.
pub fn create_database(cluster: &Cluster, name: &str) -> Result<Client> {
    cluster.connect("postgres")?.batch_execute(&format!("create database {name}")).context("create database")?;
    let mut client = cluster.connect(name)?;
    client.batch_execute("create extension outbox_relay").context("create extension")?;
    load::create_tables(&mut client)?;
    Ok(client)
}

/// Enqueues a text message and returns its id.
pub fn enqueue(client: &mut impl postgres::GenericClient, topic: &str, key: &str, value: &str) -> Result<Uuid> {
    Ok(client
        .query_one("select outbox.enqueue($1::text, $2::text, $3::text)", &[&topic, &key, &value])
        .context("enqueue")?
        .get(0))
}

/// Enqueues `count` messages with the keys `key-0`, `key-1` and so on, in one transaction.
pub fn enqueue_many(client: &mut Client, topic: &str, count: i32) -> Result<()> {
    client
        .execute(
            "select outbox.enqueue($1::text, 'key-' || n, 'value ' || n) from generate_series(0, $2::integer - 1) n",
            &[&topic, &count],
        )
        .context("enqueue many")?;
    Ok(())
}

/// Kills a relay as the out-of-memory killer might, and returns when the server has restarted because of it.
pub fn kill_a_relay(scene: &Scene, mut client: Client) -> Result<Client> {
    let victim = *relay_processes(&mut client)?.first().context("no relay runs")?;
    process::send(victim, Signal::KILL)?;
    wait::until_true("the session has noticed the crash", PATIENCE, || Ok(client.batch_execute("select").is_err()))?;
    scene.cluster.wait_for_answer()?;
    scene.session()
}

/// Waits until the table is empty: everything committed is acknowledged.
pub fn wait_until_published(client: &mut Client, at_most: Duration) -> Result<()> {
    wait::until("outbox.message is empty", at_most, || {
        let left: i64 = client.query_one("select count(*) from outbox.message", &[])?.get(0);
        Ok(if left == 0 { Seen::Reached(()) } else { Seen::NotYet(format!("{left} rows wait")) })
    })
}

/// A relay process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Process id.
    pub pid: i32,
    /// State in outbox.pg_stat_relay.
    pub state: String,
    /// Unexpired leases.
    pub leased_buckets: i64,
}

/// Postgres renames and copies a database only while nobody is connected to it. `client` is a session of another one.
pub fn wait_until_deserted(client: &mut Client) -> Result<()> {
    wait::until_true("no session is left in the database", PATIENCE, || {
        let sessions =
            "select count(*) = 0 from pg_stat_activity where datname = $1 and backend_type = 'client backend'";
        Ok(client.query_one(sessions, &[&DATABASE])?.get(0))
    })
}

/// The relays of this session's database, by the server's own list of processes.
pub fn relay_processes(client: &mut Client) -> Result<Vec<i32>> {
    let rows = client.query(
        "select pid from pg_stat_activity where backend_type = 'outbox_relay relay' and datname = current_database() order by pid",
        &[],
    )?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The relays of this session's database, by their own view.
pub fn relays(client: &mut Client) -> Result<Vec<Relay>> {
    let rows = client.query("select pid, state, leased_buckets from outbox.pg_stat_relay order by pid", &[])?;
    Ok(rows.iter().map(|row| Relay { pid: row.get(0), state: row.get(1), leased_buckets: row.get(2) }).collect())
}

/// Waits until `count` relays hold all buckets in fair shares.
pub fn wait_until_shared(client: &mut Client, count: usize, at_most: Duration) -> Result<Vec<Relay>> {
    let buckets: i32 = client.query_one("select outbox.bucket_count()", &[])?.get(0);
    let buckets = i64::from(buckets);
    let (least, most) = (buckets / count as i64, (buckets + count as i64 - 1) / count as i64);
    wait::until(format_args!("{count} relays hold {least} to {most} of {buckets} buckets each"), at_most, || {
        let relays = relays(client)?;
        let held: i64 = relays.iter().map(|relay| relay.leased_buckets).sum();
        let fair = relays.iter().all(|relay| (least..=most).contains(&relay.leased_buckets));
        Ok(if relays.len() == count && fair && held == buckets {
            Seen::Reached(relays)
        } else {
            Seen::NotYet(format!("{relays:?}"))
        })
    })
}

static SHARED: Mutex<Option<(Arc<Broker>, PathBuf)>> = Mutex::new(None);

fn shared_broker() -> Result<Arc<Broker>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((broker, _)) = &*shared {
        return Ok(Arc::clone(broker));
    }
    let directory = state::directory()?.join("test").join(format!("{}-broker", std::process::id()));
    let broker = Arc::new(Broker::start_in(&directory, Purpose::Test, Lifetime::WithUs)?);
    *shared = Some((Arc::clone(&broker), directory));
    Ok(broker)
}

/// The three brokers, made by the first test that needs them, and where they live.
static THREE: Mutex<Option<(Brokers, PathBuf)>> = Mutex::new(None);

/// A test's turn with the three brokers.
struct Turn(MutexGuard<'static, Option<(Brokers, PathBuf)>>);

impl Turn {
    /// Waits for its turn; whatever the test before has done to them, they are whole then.
    fn take() -> Result<Turn> {
        let mut three = THREE.lock().unwrap_or_else(PoisonError::into_inner);
        match &*three {
            Some((brokers, _)) => brokers.start_all()?,
            None => {
                let directory = state::directory()?.join("test").join(format!("{}-brokers", std::process::id()));
                *three = Some((Brokers::start_in(&directory, Lifetime::WithUs)?, directory));
            }
        }
        Ok(Turn(three))
    }

    fn brokers(&self) -> Result<&Brokers> {
        let (brokers, _) = self.0.as_ref().context("the brokers are gone")?;
        Ok(brokers)
    }
}

/// Removes what failed tests of earlier runs kept for a look.
pub fn clear_away_earlier_runs() -> Result<()> {
    let Ok(entries) = fs::read_dir(state::directory()?.join("test")) else { return Ok(()) };
    for entry in entries {
        let entry = entry.context("could not list earlier runs")?;
        let name = entry.file_name();
        // Named after the process; one that still runs is somebody's run beside ours.
        let run = name.to_str().and_then(|name| name.split('-').next()?.parse().ok());
        if run.is_some_and(|pid| !process::alive(pid)) {
            fs::remove_dir_all(entry.path()).with_context(|| format!("could not remove {:?}", entry.path()))?;
        }
    }
    Ok(())
}

/// Stops the brokers that the tests shared, once they are all done. What they hold is kept for a look if one has failed.
pub fn stop_shared_brokers(failed: bool) {
    let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner).take();
    let three = THREE.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Dropped, they end.
    let directories = [
        shared.map(|(broker, directory)| broker.kill().map(|()| directory)),
        three.map(|(brokers, directory)| {
            drop(brokers);
            Ok(directory)
        }),
    ];
    for directory in directories.into_iter().flatten() {
        let cleared = directory.and_then(|directory| if failed { Ok(()) } else { Ok(fs::remove_dir_all(&directory)?) });
        if let Err(error) = cleared {
            eprintln!("could not clear away the shared brokers: {error:#}");
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("of an unknown kind")
}
