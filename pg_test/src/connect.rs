//! Kafka Connect with one connector: a standalone process of our own, steered by its REST interface.
//!
//! It runs on jars of its own, so that neither its class path nor the broker's disturbs the other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::broker::two_free_ports;
use crate::process::{Launch, Lifetime, Process};
use crate::state;
use crate::wait::{self, Seen};

/// How the machine is set: as Kafka's own script `connect-standalone` does when nobody says otherwise.
pub const MACHINE: &[&str] = &[
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
];

const START_AT_MOST: Duration = Duration::from_secs(120);
const STATE_AT_MOST: Duration = Duration::from_secs(60);
const ANSWER_AT_MOST: Duration = Duration::from_secs(30);

/// The one connector.
const CONNECTOR: &str = "the-connector";

/// A Kafka Connect; it ends when it is dropped.
pub struct Connect {
    log: PathBuf,
    rest: SocketAddr,
    process: Process,
}

impl Connect {
    /// Starts it in the new directory `directory`, without a connector, and waits until it answers.
    pub fn start_in(directory: &Path, bootstrap: &str) -> Result<Connect> {
        fs::create_dir_all(directory).with_context(|| format!("could not make {directory:?}"))?;
        let directory = directory.canonicalize().with_context(|| format!("{directory:?} is gone"))?;
        let [port, _] = two_free_ports()?;
        let rest = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let properties = directory.join("worker.properties");
        let text = format!(
            "\
bootstrap.servers={bootstrap}
listeners=http://{rest}
offset.storage.file.filename={}
# It wants them of the worker too; the connector has its own.
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.converters.ByteArrayConverter
# Plugins are what the jars say they are; looking into every class takes longer.
plugin.discovery=service_load
",
            directory.join("offsets").display()
        );
        fs::write(&properties, text).with_context(|| format!("could not write {properties:?}"))?;
        let libraries = format!("{}/*", state::connect_libraries()?.display());
        let properties = properties.to_string_lossy().into_owned();
        let program = ["-cp", &libraries, "org.apache.kafka.connect.cli.ConnectStandalone", &properties];
        let log = directory.join("connect.log");
        let process = Process::start(&Launch {
            program: Path::new("java"),
            args: &[MACHINE, &program].concat(),
            as_server_user: false,
            log: &log,
            lifetime: Lifetime::WithUs,
            orphan_signal: "KILL",
        })?;
        let mut connect = Connect { log, rest, process };
        connect.wait_until("Kafka Connect answers", START_AT_MOST, |connect| {
            Ok(match connect.ask("GET", "/connectors", None) {
                Ok(_) => Seen::Reached(()),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })?;
        Ok(connect)
    }

    /// Makes the connector, or gives it other settings. A new one runs, another is what it was.
    pub fn configure(&self, settings: &BTreeMap<&str, String>) -> Result<()> {
        let settings = serde_json::to_value(settings).context("settings are no JSON")?;
        self.ask("PUT", &format!("/connectors/{CONNECTOR}/config"), Some(&settings)).context("could not configure")?;
        Ok(())
    }

    /// Stops the connector and waits until its task has ended, with its offset stored.
    pub fn stop_connector(&mut self) -> Result<()> {
        self.ask("PUT", &format!("/connectors/{CONNECTOR}/stop"), None).context("could not stop the connector")?;
        self.wait_for_state("STOPPED", &[])
    }

    /// Lets the connector go on, and does not wait for it.
    pub fn resume_connector(&self) -> Result<()> {
        self.ask("PUT", &format!("/connectors/{CONNECTOR}/resume"), None).context("could not resume the connector")?;
        Ok(())
    }

    /// Waits until the connector runs, and its task too.
    pub fn wait_until_running(&mut self) -> Result<()> {
        self.wait_for_state("RUNNING", &["RUNNING"])
    }

    /// Fails when the process has ended or the connector says that it failed.
    pub fn require_health(&mut self) -> Result<()> {
        if let Some(status) = self.process.ended()? {
            bail!("Kafka Connect ended with {status}; see {:?}", self.log);
        }
        let status = self.status()?;
        ensure!(!status.to_string().contains("FAILED"), "the connector failed: {status}; see {:?}", self.log);
        Ok(())
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn status(&self) -> Result<Value> {
        self.ask("GET", &format!("/connectors/{CONNECTOR}/status"), None).context("could not ask for the status")
    }

    fn wait_for_state(&mut self, connector: &str, tasks: &[&str]) -> Result<()> {
        let state = format!("the connector is {connector} with tasks {tasks:?}");
        self.wait_until(&state, STATE_AT_MOST, |connect| {
            connect.require_health()?;
            let status = connect.status()?;
            let states =
                status["tasks"].as_array().context("the status has no tasks")?.iter().map(|task| &task["state"]);
            let reached = status["connector"]["state"] == connector && states.eq(tasks);
            Ok(if reached { Seen::Reached(()) } else { Seen::NotYet(status.to_string()) })
        })
    }

    fn wait_until(
        &mut self,
        state: &str,
        at_most: Duration,
        mut look: impl FnMut(&mut Connect) -> Result<Seen<()>>,
    ) -> Result<()> {
        wait::until(state, at_most, || {
            if let Some(status) = self.process.ended()? {
                bail!("Kafka Connect ended with {status}");
            }
            look(self)
        })
        .with_context(|| format!("see {:?}", self.log))
    }

    /// Asks the REST interface; null where the answer is empty. By HTTP/1.0, whose answers come in one piece and end with the
    /// connection.
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream =
            TcpStream::connect_timeout(&self.rest, ANSWER_AT_MOST).context("could not connect to Kafka Connect")?;
        stream.set_read_timeout(Some(ANSWER_AT_MOST)).context("could not set a limit")?;
        stream.set_write_timeout(Some(ANSWER_AT_MOST)).context("could not set a limit")?;
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.rest,
            body.len()
        );
        stream.write_all(request.as_bytes()).context("could not send the request")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).with_context(|| format!("no answer to {method} {path}"))?;
        parse(&answer).with_context(|| format!("{method} {path}"))
    }
}

/// The body of a good answer.
fn parse(answer: &str) -> Result<Value> {
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no HTTP: {answer:?}"))?;
    let status = head.split_whitespace().nth(1).with_context(|| format!("no HTTP: {head:?}"))?;
    ensure!(status.starts_with('2'), "Kafka Connect answered {status}: {body}");
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(body).with_context(|| format!("no JSON: {body:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_body_of_a_good_answer() {
        let answer =
            parse("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\": [1]}").expect("it is good");
        assert_eq!(answer["a"][0], 1);
        assert_eq!(parse("HTTP/1.1 202 Accepted\r\n\r\n").expect("it is good too"), Value::Null);
    }

    #[test]
    fn says_what_a_bad_answer_says() {
        let error = parse("HTTP/1.1 400 Bad Request\r\n\r\n{\"message\": \"no such slot\"}").expect_err("it is bad");
        let text = error.to_string();
        assert!(text.contains("400") && text.contains("no such slot"), "{text}");
        assert!(parse("nonsense").is_err());
    }
}
