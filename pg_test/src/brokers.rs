//! Three Kafka brokers of our own that replicate to each other, each of them a controller too: any one may be away.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rdkafka::metadata::Metadata;

use crate::broker::{Broker, Purpose, class_path, new_cluster_id, two_free_ports};
use crate::process::Lifetime;
use crate::state;
use crate::wait::{self, Seen};

/// Three java machines start side by side on perhaps two cores.
const WHOLE_AT_MOST: Duration = Duration::from_secs(120);
const ANSWER_AT_MOST: Duration = Duration::from_secs(10);

/// Three brokers; a topic has a replica on each unless it says otherwise, and a write is acknowledged by at least two.
#[derive(Debug)]
pub struct Brokers {
    /// In the order of their ids, which begin at 1. The client settings of each name all three.
    members: Vec<Arc<Broker>>,
}

impl Brokers {
    /// How many there are.
    pub const COUNT: i32 = 3;

    /// Makes three brokers below the new directory `directory` and starts them.
    pub fn start_in(directory: &Path, lifetime: Lifetime) -> Result<Brokers> {
        let cluster_id = new_cluster_id();
        let ports = (1..=Self::COUNT).map(|_| two_free_ports()).collect::<Result<Vec<_>>>()?;
        let listed = |place: &dyn Fn(i32, [u16; 2]) -> String| -> String {
            (1..).zip(&ports).map(|(id, ports)| place(id, *ports)).collect::<Vec<_>>().join(",")
        };
        let voters = listed(&|id, [_, controller]| format!("{id}@127.0.0.1:{controller}"));
        let bootstrap = listed(&|_, [port, _]| format!("127.0.0.1:{port}"));
        // Each is prepared by a java machine of its own.
        let made: Vec<Result<Broker>> = thread::scope(|scope| {
            let making: Vec<_> = (1..)
                .zip(&ports)
                .map(|(id, ports)| {
                    let (voters, cluster_id) = (&voters, &cluster_id);
                    scope.spawn(move || {
                        let place = directory.join(id.to_string());
                        let further = member_properties(id, voters);
                        Broker::make_in(&place, Purpose::Replica, lifetime, *ports, cluster_id, &further, None)
                    })
                })
                .collect();
            making
                .into_iter()
                .map(|making| making.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
                .collect()
        });
        let members = made
            .into_iter()
            .map(|broker| Ok(Arc::new(broker?.with_bootstrap(&bootstrap))))
            .collect::<Result<Vec<_>>>()?;
        let brokers = Brokers { members };
        brokers.start_all()?;
        brokers.members[0].require_service()?;
        Ok(brokers)
    }

    /// The broker with this id, 1 to [`Self::COUNT`].
    pub fn member(&self, id: i32) -> Result<&Arc<Broker>> {
        usize::try_from(id - 1)
            .ok()
            .and_then(|index| self.members.get(index))
            .with_context(|| format!("no broker {id}"))
    }

    /// All of them.
    pub fn members(&self) -> &[Arc<Broker>] {
        &self.members
    }

    /// Kills all of them.
    pub fn kill_all(&self) -> Result<()> {
        self.members.iter().try_for_each(|broker| broker.kill())
    }

    /// Starts those that do not run, ends every freeze, and waits until all replicas of all topics are in step.
    pub fn start_all(&self) -> Result<()> {
        self.launch_all()?;
        self.wait_until_whole()
    }

    /// Starts those that do not run and ends every freeze, without waiting for anything.
    pub fn launch_all(&self) -> Result<()> {
        self.members.iter().try_for_each(|broker| if broker.runs() { broker.thaw() } else { broker.launch() })
    }

    /// Stops one as an operator would, starts it again and waits until it is in step.
    pub fn restart(&self, id: i32) -> Result<()> {
        self.member(id)?.stop()?;
        self.start_all()
    }

    /// Waits until all brokers are there and all replicas of all topics are in step.
    pub fn wait_until_whole(&self) -> Result<()> {
        let admin = self.members[0].admin()?;
        wait::until("all replicas are in step", WHOLE_AT_MOST, || {
            self.members.iter().try_for_each(|broker| broker.require_alive())?;
            Ok(match admin.inner().fetch_metadata(None, ANSWER_AT_MOST) {
                Ok(metadata) => what_is_missing(&metadata).map_or(Seen::Reached(()), Seen::NotYet),
                Err(error) => Seen::NotYet(error.to_string()),
            })
        })
    }

    /// The ids of the leaders of a topic's partitions; -1 where there is none.
    pub fn leaders(&self, topic: &str) -> Result<Vec<i32>> {
        let admin = self.members[0].admin()?;
        let metadata = admin.inner().fetch_metadata(Some(topic), ANSWER_AT_MOST).context("metadata")?;
        let topic = metadata.topics().first().context("the answer names no topic")?;
        let mut leaders: Vec<_> = topic.partitions().iter().map(|each| (each.id(), each.leader())).collect();
        leaders.sort_unstable();
        Ok(leaders.into_iter().map(|(_, leader)| leader).collect())
    }

    /// Waits until every partition of a topic has a leader that is not `other`.
    pub fn wait_until_led(&self, topic: &str, other: Option<i32>) -> Result<()> {
        wait::until(format_args!("others than {other:?} lead {topic}"), WHOLE_AT_MOST, || {
            Ok(match self.leaders(topic) {
                Ok(leaders) if leaders.iter().all(|leader| *leader >= 0 && Some(*leader) != other) => Seen::Reached(()),
                Ok(leaders) => Seen::NotYet(format!("{leaders:?}")),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })
    }

    /// Has each partition led by the first of its replicas again.
    pub fn elect_preferred_leaders(&self) -> Result<()> {
        state::run(
            Command::new("java")
                .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp", &class_path()?])
                .args(["org.apache.kafka.tools.LeaderElectionCommand", "--bootstrap-server"])
                .arg(self.members[0].bootstrap())
                .args(["--election-type", "preferred", "--all-topic-partitions"]),
        )?;
        Ok(())
    }
}

fn what_is_missing(metadata: &Metadata) -> Option<String> {
    if metadata.brokers().len() != Brokers::COUNT as usize {
        return Some(format!("{} brokers", metadata.brokers().len()));
    }
    let mut partitions =
        metadata.topics().iter().flat_map(|topic| topic.partitions().iter().map(move |each| (topic, each)));
    partitions.find(|(_, each)| each.leader() < 0 || each.isr().len() < each.replicas().len()).map(|(topic, each)| {
        format!("{} [{}]: leader {}, in step {:?}", topic.name(), each.id(), each.leader(), each.isr())
    })
}

fn member_properties(id: i32, voters: &str) -> String {
    format!(
        "\
node.id={id}
controller.quorum.voters={voters}
default.replication.factor=3
min.insync.replicas=2
# Hands its partitions over before it stops.
controlled.shutdown.enable=true
# Two cores carry three brokers and what is tested: not every pause is a death.
broker.session.timeout.ms=4000
# A broker that is back takes part soon.
controller.quorum.election.timeout.ms=1000
replica.fetch.backoff.ms=200
"
    )
}
