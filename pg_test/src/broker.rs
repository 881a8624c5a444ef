//! An Apache Kafka broker of our own: one KRaft node that is its own controller, on 127.0.0.1.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures_executor::block_on;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::types::RDKafkaErrorCode;

use crate::process::{self, Launch, Lifetime, Process, Signal};
use crate::security::Security;
use crate::state;
use crate::wait::{self, Seen};

const START_AT_MOST: Duration = Duration::from_secs(90);
const STOP_AT_MOST: Duration = Duration::from_secs(60);
const ANSWER_AT_MOST: Duration = Duration::from_secs(10);

/// As many replicas as `default.replication.factor` of the brokers says.
const DEFAULT_REPLICATION: i32 = -1;

/// Below the range from which the kernel takes ports for outgoing connections: a client that tries a closed port there
/// again and again connects to itself one day and keeps the broker from coming back.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What a broker is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Starts fast: the first compiler only, a small heap.
    Test,
    /// One of several that share two cores: as for a test, in half the memory.
    Replica,
    /// Runs fast.
    Benchmark,
}

/// A broker. All methods take `&self`, so that tests can share one.
#[derive(Debug)]
pub struct Broker {
    directory: PathBuf,
    bootstrap: String,
    purpose: Purpose,
    lifetime: Lifetime,
    /// What the Java machine has to be told for the sake of security.
    permissions: Vec<String>,
    server: Mutex<Option<Process>>,
}

impl Broker {
    /// Makes a broker in the new directory `directory` and starts it.
    pub fn start_in(directory: &Path, purpose: Purpose, lifetime: Lifetime) -> Result<Broker> {
        // Nobody kills this one, and on a busy machine it is not to lose its partitions for a late heartbeat: Kafka's defaults.
        let further = match purpose {
            Purpose::Test | Purpose::Replica => "",
            Purpose::Benchmark => "broker.heartbeat.interval.ms=2000\nbroker.session.timeout.ms=9000\n",
        };
        let broker =
            Broker::make_in(directory, purpose, lifetime, two_free_ports()?, &new_cluster_id(), further, None)?;
        broker.start()?;
        Ok(broker)
    }

    /// The same, for tests, with listeners that let in only whom `security` names.
    pub fn start_secured_in(directory: &Path, security: &Security) -> Result<Broker> {
        let (ports, id) = (two_free_ports()?, new_cluster_id());
        let broker = Broker::make_in(directory, Purpose::Test, Lifetime::WithUs, ports, &id, "", Some(security))?;
        broker.start()?;
        Ok(broker)
    }

    /// Makes a broker in the new directory `directory`, not started. It listens on the first port and is a controller on the
    /// second; the properties in `further` beat its own.
    pub(crate) fn make_in(
        directory: &Path,
        purpose: Purpose,
        lifetime: Lifetime,
        [port, controller]: [u16; 2],
        cluster_id: &str,
        further: &str,
        security: Option<&Security>,
    ) -> Result<Broker> {
        fs::create_dir_all(directory).with_context(|| format!("could not make {directory:?}"))?;
        let directory = directory.canonicalize().with_context(|| format!("{directory:?} is gone"))?;
        let bootstrap = format!("127.0.0.1:{port}");
        let permissions = security.map(Security::java_permissions).unwrap_or_default();
        let broker = Broker { bootstrap, purpose, lifetime, permissions, server: Mutex::new(None), directory };
        let properties = broker.properties();
        let text = server_properties(port, controller, &broker.directory.join("data"), security) + further;
        fs::write(&properties, text).with_context(|| format!("could not write {properties:?}"))?;
        let libraries = class_path()?;
        state::run(
            Command::new("java")
                .args([
                    "-XX:TieredStopAtLevel=1",
                    "-XX:+UseSerialGC",
                    "-cp",
                    &libraries,
                    "kafka.tools.StorageTool",
                    "format",
                ])
                .args(["-t", cluster_id, "-c"])
                .arg(&properties)
                .args(security.map(Security::format_arguments).unwrap_or_default()),
        )
        .context("could not format the broker's storage")?;
        Ok(broker)
    }

    /// Starts the server, also again on the same port and data, and waits until it can create a topic.
    pub fn start(&self) -> Result<()> {
        self.launch()?;
        self.require_service()
    }

    /// Waits until it can create a topic and takes messages.
    pub(crate) fn require_service(&self) -> Result<()> {
        let admin = self.admin()?;
        let topic = format!("ready-{}", uuid::Uuid::new_v4().simple());
        wait::until("the broker creates a topic", START_AT_MOST, || {
            self.require_alive()?;
            Ok(match create(&admin, &topic, 1, TopicReplication::Fixed(1), &[]) {
                Ok(()) => Seen::Reached(()),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })?;
        self.acknowledge_one(&topic)
    }

    /// Starts the server and does not wait for it.
    pub(crate) fn launch(&self) -> Result<()> {
        let mut server = self.server();
        ensure!(server.is_none(), "the broker runs already");
        let libraries = class_path()?;
        let properties = self.properties().to_string_lossy().into_owned();
        let machine: &[&str] = match self.purpose {
            Purpose::Test => &["-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
            Purpose::Replica => &["-Xms128m", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
            Purpose::Benchmark => &["-Xms1g", "-Xmx1g", "-XX:+UseG1GC"],
        };
        let permissions: Vec<&str> = self.permissions.iter().map(String::as_str).collect();
        let args = [
            machine,
            &permissions,
            &["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", &libraries, "kafka.Kafka", &properties],
        ]
        .concat();
        let started = server.insert(Process::start(&Launch {
            program: Path::new("java"),
            args: &args,
            as_server_user: false,
            log: &self.log_path(),
            lifetime: self.lifetime,
            orphan_signal: "KILL",
        })?);
        fs::write(pid_file(&self.directory), started.pid().to_string()).context("could not write the broker's pid")?;
        Ok(())
    }

    /// Fails when the server has ended by itself.
    pub(crate) fn require_alive(&self) -> Result<()> {
        let mut server = self.server();
        if let Some(status) = server.as_mut().context("the broker does not run")?.ended()? {
            bail!("the broker ended with {status}; see {:?}", self.log_path());
        }
        Ok(())
    }

    /// A broker that has just started first loads what gives idempotent producers their numbers; till then it refuses them.
    fn acknowledge_one(&self, topic: &str) -> Result<()> {
        let producer: BaseProducer = client_settings(&self.bootstrap())
            .set("enable.idempotence", "true")
            .create()
            .context("could not make a producer")?;
        producer.send(BaseRecord::<(), str>::to(topic).payload("ready")).map_err(|(error, _)| error)?;
        producer.flush(START_AT_MOST).context("the broker does not serve idempotent producers")
    }

    /// Stops the server and starts it with one setting more, which beats what was set before.
    pub fn restart_with(&self, setting: &str, value: &str) -> Result<()> {
        self.stop()?;
        let properties = self.properties();
        let text = fs::read_to_string(&properties).with_context(|| format!("could not read {properties:?}"))?;
        fs::write(&properties, format!("{text}\n{setting}={value}\n"))
            .with_context(|| format!("could not write {properties:?}"))?;
        self.start()
    }

    /// Stops the server as an operator would.
    pub fn stop(&self) -> Result<()> {
        self.end(Signal::TERM)
    }

    /// Kills the server.
    pub fn kill(&self) -> Result<()> {
        self.end(Signal::KILL)
    }

    /// Stops the server's time: connections stay open and nothing is answered.
    pub fn freeze(&self) -> Result<()> {
        self.server().as_ref().context("the broker does not run")?.signal(Signal::STOP)
    }

    /// Ends a freeze.
    pub fn thaw(&self) -> Result<()> {
        self.server().as_ref().context("the broker does not run")?.signal(Signal::CONT)
    }

    /// The process id of the server.
    pub fn pid(&self) -> Result<i32> {
        Ok(self.server().as_ref().context("the broker does not run")?.pid())
    }

    /// Whether the server runs, frozen or not.
    pub fn runs(&self) -> bool {
        self.server().is_some()
    }

    /// What goes into `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        self.bootstrap.clone()
    }

    /// With other addresses for clients than its own.
    pub(crate) fn with_bootstrap(self, bootstrap: &str) -> Broker {
        Broker { bootstrap: bootstrap.to_owned(), ..self }
    }

    /// The version of Kafka, from its jars.
    pub fn version(&self) -> Result<String> {
        state::version_of("kafka_2.13", &state::kafka_libraries()?)
    }

    /// Where the server writes what it has to say.
    pub fn log_path(&self) -> PathBuf {
        self.directory.join("broker.log")
    }

    /// The settings with which it was started.
    pub fn properties(&self) -> PathBuf {
        self.directory.join("server.properties")
    }

    /// Creates a topic and waits until all its partitions have a leader.
    pub fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) -> Result<()> {
        let admin = self.admin()?;
        create(&admin, name, partitions, TopicReplication::Fixed(DEFAULT_REPLICATION), settings)?;
        wait::until(format_args!("topic {name} has {partitions} leaders"), ANSWER_AT_MOST, || {
            let metadata = admin.inner().fetch_metadata(Some(name), ANSWER_AT_MOST).context("metadata")?;
            let topic = metadata.topics().first().context("the answer names no topic")?;
            let led = topic.partitions().iter().filter(|partition| partition.leader() >= 0).count();
            Ok(if led as i32 == partitions { Seen::Reached(()) } else { Seen::NotYet(format!("{led} have one")) })
        })
    }

    /// Creates a topic whose only partition lies on the broker with the id `node` alone.
    pub fn create_topic_on(&self, name: &str, node: i32) -> Result<()> {
        create(&self.admin()?, name, 1, TopicReplication::Variable(&[&[node]]), &[])
    }

    /// Sets one setting of a topic; its others fall back to their defaults.
    pub fn set_topic(&self, name: &str, setting: &str, value: &str) -> Result<()> {
        let admin = self.admin()?;
        let change = AlterConfig::new(ResourceSpecifier::Topic(name)).set(setting, value);
        for answer in block_on(admin.alter_configs([&change], &options()))? {
            answer.map_err(|(_, code)| KafkaError::AdminOp(code)).with_context(|| format!("alter topic {name}"))?;
        }
        Ok(())
    }

    /// Sets one setting of a broker that runs alone.
    pub fn set_node(&self, setting: &str, value: &str) -> Result<()> {
        let admin = self.admin()?;
        let change = AlterConfig::new(ResourceSpecifier::Broker(1)).set(setting, value);
        for answer in block_on(admin.alter_configs([&change], &options()))? {
            answer.map_err(|(_, code)| KafkaError::AdminOp(code)).with_context(|| format!("alter {setting}"))?;
        }
        Ok(())
    }

    /// Lets the clients with this `client.id` produce so many bytes a second together.
    pub fn limit_producers(&self, client_id: &str, bytes: u32) -> Result<()> {
        let limit = format!("producer_byte_rate={bytes}");
        let args = ["--alter", "--entity-type", "clients", "--entity-name", client_id, "--add-config", &limit];
        administer("kafka.admin.ConfigCommand", &self.bootstrap(), &args)
    }

    /// Deletes a topic with all its records.
    pub fn delete_topic(&self, name: &str) -> Result<()> {
        let admin = self.admin()?;
        for answer in block_on(admin.delete_topics(&[name], &options()))? {
            answer.map_err(|(_, code)| KafkaError::AdminOp(code)).with_context(|| format!("delete topic {name}"))?;
        }
        Ok(())
    }

    /// Grows a topic to `partitions`.
    pub fn grow_topic(&self, name: &str, partitions: usize) -> Result<()> {
        let admin = self.admin()?;
        let change = rdkafka::admin::NewPartitions::new(name, partitions);
        for answer in block_on(admin.create_partitions([&change], &options()))? {
            answer.map_err(|(_, code)| KafkaError::AdminOp(code)).with_context(|| format!("grow topic {name}"))?;
        }
        Ok(())
    }

    /// Produces records by Kafka's own console producer, a Java client with the default partitioner. Neither keys nor values
    /// may hold a tab or a newline.
    pub fn produce_by_java(&self, topic: &str, records: &[(String, String)]) -> Result<()> {
        let input = self.directory.join(format!("{topic}.records"));
        let lines: String = records.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
        fs::write(&input, lines).with_context(|| format!("could not write {input:?}"))?;
        let libraries = class_path()?;
        state::run(
            Command::new("java")
                .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &libraries])
                .args(["org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", &self.bootstrap()])
                .args(["--topic", topic, "--reader-property", "parse.key=true"])
                .stdin(fs::File::open(&input).with_context(|| format!("could not open {input:?}"))?),
        )
        .context("the console producer")?;
        Ok(())
    }

    pub(crate) fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        client_settings(&self.bootstrap()).create().context("could not make an admin client")
    }

    fn end(&self, signal: Signal) -> Result<()> {
        let mut server = self.server().take().context("the broker does not run")?;
        server.signal(signal)?;
        server.wait_for_end(STOP_AT_MOST).with_context(|| format!("the broker after {signal:?}"))?;
        Ok(())
    }

    fn server(&self) -> MutexGuard<'_, Option<Process>> {
        // A test that panicked while it held the lock left a process or none: both are whole.
        self.server.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Ends the broker that an earlier run left running in `directory`; whether there was one.
pub fn stop_left_behind(directory: &Path) -> Result<bool> {
    let Some(pid) = left_behind(directory) else { return Ok(false) };
    process::send(pid, Signal::TERM)?;
    wait::until_true("the broker has stopped", STOP_AT_MOST, || Ok(!process::alive(pid)))?;
    Ok(true)
}

/// What goes into `bootstrap.servers` of the broker that an earlier run left running in `directory`, if there is one.
pub fn bootstrap_left_behind(directory: &Path) -> Option<String> {
    left_behind(directory)?;
    let properties = fs::read_to_string(directory.join("server.properties")).ok()?;
    properties.lines().find_map(|line| line.strip_prefix("advertised.listeners=PLAINTEXT://")).map(str::to_owned)
}

fn left_behind(directory: &Path) -> Option<i32> {
    let directory = directory.canonicalize().ok()?;
    let pid: i32 = fs::read_to_string(pid_file(&directory)).ok()?.parse().ok()?;
    // A number in a file may be anybody's by now.
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    String::from_utf8_lossy(&command).contains(&*directory.to_string_lossy()).then_some(pid)
}

/// What every client of these tests needs: quick returns to a broker that comes back, and silence while it is away.
pub fn client_settings(bootstrap: &str) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", bootstrap)
        .set("reconnect.backoff.ms", "20")
        .set("reconnect.backoff.max.ms", "200")
        .set("log_level", "0")
        .set("log.connection.close", "false");
    settings
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ANSWER_AT_MOST)).operation_timeout(Some(ANSWER_AT_MOST))
}

fn create(
    admin: &AdminClient<DefaultClientContext>,
    name: &str,
    partitions: i32,
    replication: TopicReplication<'_>,
    settings: &[(&str, &str)],
) -> Result<()> {
    let topic = settings
        .iter()
        .fold(NewTopic::new(name, partitions, replication), |topic, (setting, value)| topic.set(setting, value));
    for answer in block_on(admin.create_topics([&topic], &options()))? {
        match answer {
            // An answer that got lost while the broker started: the topic is there.
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((_, code)) => return Err(KafkaError::AdminOp(code)).with_context(|| format!("create topic {name}")),
        }
    }
    Ok(())
}

fn pid_file(directory: &Path) -> PathBuf {
    directory.join("broker.pid")
}

/// The jars of Kafka, as java takes them.
pub fn class_path() -> Result<String> {
    Ok(format!("{}/*", state::kafka_libraries()?.display()))
}

/// Runs one of Kafka's own administration programs against the plain listener of a broker.
pub(crate) fn administer(class: &str, bootstrap: &str, args: &[&str]) -> Result<()> {
    let mut program = Command::new("java");
    program.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &class_path()?, class]);
    state::run(program.args(["--bootstrap-server", bootstrap]).args(args))?;
    Ok(())
}

/// The id of a new Kafka cluster.
pub(crate) fn new_cluster_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()[..22].to_owned()
}

/// Two ports on which nobody listens. Each run begins elsewhere, so that runs side by side seldom want the same.
pub fn two_free_ports() -> Result<[u16; 2]> {
    static LAST: Mutex<Option<u16>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let span = PORTS.end - PORTS.start;
    let mut next = last.unwrap_or_else(|| PORTS.start + fastrand::u16(..span));
    let mut free = Vec::new();
    for _ in 0..span {
        next = if next + 1 < PORTS.end { next + 1 } else { PORTS.start };
        if TcpListener::bind(("127.0.0.1", next)).is_ok() {
            free.push(next);
        }
        if let [first, second] = free[..] {
            *last = Some(next);
            return Ok([first, second]);
        }
    }
    bail!("no two free ports in {PORTS:?}")
}

fn server_properties(port: u16, controller: u16, data: &Path, security: Option<&Security>) -> String {
    let listeners = security.map(Security::listeners).unwrap_or_default();
    let more = security.map(Security::properties).unwrap_or_default();
    format!(
        "\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL,OIDC:SASL_SSL
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={}
# A client that stops writing is forgotten at the next look, if `producer.id.expiration.ms` says so.
producer.id.expiration.check.interval.ms=500
# A topic that nobody created is an error to be seen, not a surprise.
auto.create.topics.enable=false
# One node replicates to nobody.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# Fifty partitions of bookkeeping are the default; each costs time at every start and stop.
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
# What is deleted makes room soon.
log.segment.delete.delay.ms=1000
# Files are allocated when they are needed.
log.index.size.max.bytes=1048576
controlled.shutdown.enable=false
# A killed broker is let in again when the session of its last life has ended.
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
{more}",
        data.display()
    )
}
