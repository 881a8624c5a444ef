//! A Postgres cluster of our own: reached through a socket in its own closed directory, so it needs no port unless a client
//! knows nothing else.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use postgres::{Client, Config, NoTls};

use crate::broker::two_free_ports;
use crate::process::{self, Launch, Lifetime, Process, Signal};
use crate::state;
use crate::wait::{self, Seen};

/// The superuser of every cluster.
pub const SUPERUSER: &str = "postgres";

/// Names the socket, unless a TCP port was opened, whose number it then has.
const SOCKET_NUMBER: u16 = 5432;

/// The kernel's limit for the path of a socket.
const SOCKET_PATH_MAX: usize = 107;

const START_AT_MOST: Duration = Duration::from_secs(60);
const STOP_AT_MOST: Duration = Duration::from_secs(60);

/// How a cluster is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Sessions are ended, then a checkpoint.
    Fast,
    /// No checkpoint: the next start recovers from WAL.
    Immediate,
}

/// Where sessions connect; cheap to clone into a writer's thread.
#[derive(Clone, Debug)]
pub struct Address {
    socket_directory: PathBuf,
    port: u16,
}

impl Address {
    /// Opens a session.
    pub fn connect(&self, database: &str) -> Result<Client> {
        Config::new()
            .host_path(&self.socket_directory)
            .port(self.port)
            .user(SUPERUSER)
            .dbname(database)
            .connect_timeout(Duration::from_secs(10))
            .connect(NoTls)
            .with_context(|| format!("could not connect to database {database:?}"))
    }

    /// What libpq calls the host.
    pub fn host(&self) -> &Path {
        &self.socket_directory
    }

    /// What libpq calls the port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// A cluster; dropping it ends its server unless it was started to live on.
#[derive(Debug)]
pub struct Cluster {
    data: PathBuf,
    log: PathBuf,
    address: Address,
    programs: PathBuf,
    lifetime: Lifetime,
    postmaster: Option<Process>,
}

impl Cluster {
    /// Makes a cluster in the new directory `directory`, not started.
    pub fn create(directory: &Path, lifetime: Lifetime) -> Result<Cluster> {
        let cluster = Cluster::without_data(directory, state::postgres_programs()?, lifetime)?;
        let template = template(&cluster.programs)?;
        state::run(state::as_server_user("cp").args(["-a", "--reflink=auto"]).arg(template).arg(&cluster.data))?;
        cluster.configure(&[
            ("listen_addresses", ""),
            ("unix_socket_directories", &cluster.address.socket_directory.to_string_lossy()),
            ("port", &SOCKET_NUMBER.to_string()),
            ("log_line_prefix", "%m [%p] %b "),
            ("log_statement", "none"),
        ])?;
        Ok(cluster)
    }

    /// Makes a standby of this running cluster in the new directory `directory`, not started.
    pub fn copy_as_standby(&self, directory: &Path) -> Result<Cluster> {
        let standby = Cluster::without_data(directory, self.programs.clone(), self.lifetime)?;
        let mut copy = state::as_server_user(self.programs.join("pg_basebackup"));
        copy.arg("--host").arg(self.address.host()).args(["--port", &self.address.port.to_string()]);
        copy.args(["--username", SUPERUSER, "--checkpoint", "fast", "--wal-method", "stream", "--no-sync"]);
        // That includes the connection to its primary.
        copy.arg("--write-recovery-conf").arg("--pgdata").arg(&standby.data);
        state::run(copy)?;
        standby.configure(&[("unix_socket_directories", &standby.address.socket_directory.to_string_lossy())])?;
        Ok(standby)
    }

    fn without_data(directory: &Path, programs: PathBuf, lifetime: Lifetime) -> Result<Cluster> {
        state::private_directory(directory)?;
        let directory = directory.canonicalize().with_context(|| format!("{directory:?} is gone"))?;
        let socket = directory.join(format!(".s.PGSQL.{SOCKET_NUMBER}"));
        ensure!(
            socket.as_os_str().len() <= SOCKET_PATH_MAX,
            "the path of the socket is too long for the kernel: {socket:?}; set OUTBOX_RELAY_STATE to a shorter directory"
        );
        Ok(Cluster {
            data: directory.join("data"),
            log: directory.join("server.log"),
            address: Address { socket_directory: directory, port: SOCKET_NUMBER },
            programs,
            lifetime,
            postmaster: None,
        })
    }

    /// Runs the server whose extension has the test hooks, from its next start on.
    pub fn use_test_hooks(&mut self) -> Result<()> {
        self.programs = state::postgres_programs_with_test_hooks()?;
        Ok(())
    }

    /// Appends settings to postgresql.conf; they count from the next start or reload on.
    pub fn configure(&self, settings: &[(&str, &str)]) -> Result<()> {
        let path = self.data.join("postgresql.conf");
        let mut file =
            OpenOptions::new().append(true).open(&path).with_context(|| format!("could not open {path:?}"))?;
        for (name, value) in settings {
            writeln!(file, "{name} = '{}'", value.replace('\'', "''")).context("could not write postgresql.conf")?;
        }
        Ok(())
    }

    /// For a client that knows no sockets: opens a TCP port on 127.0.0.1 on which this role, by its password, reaches this
    /// database, and nobody anything else. From the next start on, which has to follow; the port.
    pub fn open_port(&mut self, database: &str, role: &str) -> Result<u16> {
        let [port, _] = two_free_ports()?;
        let rules = self.data.join("pg_hba.conf");
        let text = format!(
            "local all all trust\nlocal replication all trust\nhost {database} {role} 127.0.0.1/32 scram-sha-256\n"
        );
        fs::write(&rules, text).with_context(|| format!("could not write {rules:?}"))?;
        self.configure(&[("listen_addresses", "127.0.0.1"), ("port", &port.to_string())])?;
        self.address.port = port;
        Ok(port)
    }

    /// Starts the server and waits until it answers.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.postmaster.is_none(), "the cluster runs already");
        let data = self.data.to_string_lossy().into_owned();
        let postmaster = Process::start(&Launch {
            program: &self.programs.join("postgres"),
            args: &["-D", &data],
            as_server_user: true,
            log: &self.log,
            lifetime: self.lifetime,
            // Immediate shutdown: the postmaster takes its children along.
            orphan_signal: "QUIT",
        })?;
        let postmaster = self.postmaster.insert(postmaster);
        let address = self.address.clone();
        wait::until("the Postgres server answers", START_AT_MOST, || {
            if let Some(status) = postmaster.ended()? {
                bail!("the Postgres server ended at its start with {status}");
            }
            Ok(match address.connect("postgres") {
                Ok(_) => Seen::Reached(()),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })
        .with_context(|| self.log_tail(20))
    }

    /// Waits until a server that restarts by itself answers again.
    pub fn wait_for_answer(&self) -> Result<()> {
        wait::until("the Postgres server answers again", START_AT_MOST, || {
            Ok(match self.connect("postgres").and_then(|mut client| Ok(client.batch_execute("select")?)) {
                Ok(()) => Seen::Reached(()),
                Err(error) => Seen::NotYet(format!("{error:#}")),
            })
        })
    }

    /// Stops the server and says how long that took.
    pub fn stop(&mut self, how: Shutdown) -> Result<Duration> {
        let mut postmaster = self.postmaster.take().context("the cluster does not run")?;
        let since = Instant::now();
        postmaster.signal(match how {
            Shutdown::Fast => Signal::INT,
            Shutdown::Immediate => Signal::QUIT,
        })?;
        let ended = postmaster.wait_for_end(STOP_AT_MOST);
        if ended.is_err() {
            self.postmaster = Some(postmaster);
        }
        ended.with_context(|| format!("{how:?} shutdown"))?;
        Ok(since.elapsed())
    }

    /// Kills the postmaster, as the out-of-memory killer might, and waits until its orphans have noticed and gone.
    pub fn kill(&mut self) -> Result<()> {
        let mut postmaster = self.postmaster.take().context("the cluster does not run")?;
        postmaster.signal(Signal::KILL)?;
        postmaster.wait_for_end(STOP_AT_MOST)?;
        wait::until("no process of the killed cluster is left", STOP_AT_MOST, || {
            let left = process::working_in(&self.data);
            Ok(if left.is_empty() { Seen::Reached(()) } else { Seen::NotYet(format!("processes {left:?}")) })
        })
    }

    /// Stops and starts the server.
    pub fn restart(&mut self) -> Result<()> {
        self.stop(Shutdown::Fast)?;
        self.start()
    }

    /// Sets one setting with ALTER SYSTEM and reloads.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let mut client = self.connect("postgres")?;
        client
            .batch_execute(&format!("alter system set {name} = '{}'", value.replace('\'', "''")))
            .with_context(|| format!("alter system set {name}"))?;
        reload(&mut client)
    }

    /// Opens a session of the superuser.
    pub fn connect(&self, database: &str) -> Result<Client> {
        self.address.connect(database)
    }

    /// Where sessions connect.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The process id of the postmaster.
    pub fn pid(&self) -> Result<i32> {
        Ok(self.postmaster.as_ref().context("the cluster does not run")?.pid())
    }

    /// The process ids of the postmaster, which comes first, and all its children.
    pub fn processes(&self) -> Result<Vec<i32>> {
        let postmaster = self.pid()?;
        let children = process::working_in(&self.data).into_iter().filter(|pid| *pid != postmaster);
        Ok([postmaster].into_iter().chain(children).collect())
    }

    /// `psql` on a database of this cluster.
    pub fn psql(&self, database: &str) -> Command {
        let mut psql = self.program("psql");
        psql.args(["--dbname", database]);
        psql
    }

    /// A client program of Postgres on this cluster, such as `pg_dump`.
    pub fn program(&self, name: &str) -> Command {
        let mut program = Command::new(self.programs.join(name));
        state::clean_environment(&mut program);
        program.arg("--host").arg(self.address.host());
        program.args(["--port", &self.address.port.to_string(), "--username", SUPERUSER]);
        program
    }

    /// The whole server log so far.
    pub fn log(&self) -> Result<Log> {
        Log::read(&self.log)
    }

    /// The path of the server log.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    fn log_tail(&self, lines: usize) -> String {
        self.log().map(|log| log.tail(lines)).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Beyond {
            return;
        }
        // A killed postmaster's children go by themselves, but the directory is removed next: leave none behind.
        self.postmaster = None;
        for pid in process::working_in(&self.data) {
            let _ = process::send(pid, Signal::KILL);
        }
    }
}

/// Ends the server that an earlier run left running in `directory`; whether there was one.
pub fn stop_left_behind(directory: &Path) -> Result<bool> {
    let Ok(data) = directory.join("data").canonicalize() else { return Ok(false) };
    let processes = process::working_in(&data);
    let Some(postmaster) = fs::read_to_string(data.join("postmaster.pid"))
        .ok()
        .and_then(|text| text.lines().next()?.parse().ok())
        // A number in a file may be anybody's by now.
        .filter(|pid| processes.contains(pid))
    else {
        return Ok(false);
    };
    process::send(postmaster, Signal::INT)?;
    wait::until_true("the Postgres server has stopped", STOP_AT_MOST, || Ok(process::working_in(&data).is_empty()))?;
    Ok(true)
}

/// Makes the server read its settings again.
pub fn reload(client: &mut Client) -> Result<()> {
    client.batch_execute("select pg_reload_conf()").context("pg_reload_conf")
}

/// A data directory to copy, since initdb takes half a second; one for each version of the programs.
fn template(programs: &Path) -> Result<PathBuf> {
    let version = state::run(Command::new(programs.join("postgres")).arg("--version"))?;
    let version = version.split_whitespace().nth(2).context("postgres --version printed no version")?;
    let directory = state::directory()?.join("test");
    fs::create_dir_all(&directory).with_context(|| format!("could not make {directory:?}"))?;
    let template = directory.join(format!("template-{version}"));
    if template.exists() {
        return Ok(template.join("data"));
    }
    // Renamed when complete, so that a run beside ours never copies half of it.
    let new = directory.join(format!("template-{version}.{}.{:?}", std::process::id(), std::thread::current().id()));
    state::private_directory(&new)?;
    state::run(
        state::as_server_user(programs.join("initdb"))
            .arg("--pgdata")
            .arg(new.join("data"))
            .args(["--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8", "--locale", "C.UTF-8"])
            .args(["--no-sync", "--no-instructions"]),
    )?;
    if let Err(error) = fs::rename(&new, &template) {
        ensure!(template.exists(), "could not rename {new:?}: {error}");
        fs::remove_dir_all(&new).with_context(|| format!("could not remove {new:?}"))?;
    }
    Ok(template.join("data"))
}

/// A server log, as text.
pub struct Log {
    text: String,
}

impl Log {
    /// Reads a log file; one that does not exist yet is empty.
    pub fn read(path: &Path) -> Result<Log> {
        match fs::read(path) {
            Ok(bytes) => Ok(Log { text: String::from_utf8_lossy(&bytes).into_owned() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Log { text: String::new() }),
            Err(error) => Err(error).with_context(|| format!("could not read {path:?}")),
        }
    }

    /// The lines that hold `text`.
    pub fn lines_with<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        self.text.lines().filter(move |line| line.contains(text))
    }

    /// The last lines.
    pub fn tail(&self, lines: usize) -> String {
        let all: Vec<&str> = self.text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Lines that a healthy server does not write, without those that hold one of the `expected` texts.
    pub fn complaints(&self, expected: &[String]) -> Vec<&str> {
        self.text
            .lines()
            .filter(|line| is_complaint(line))
            .filter(|line| !expected.iter().any(|text| line.contains(text.as_str())))
            .collect()
    }
}

/// Levels are followed by a colon and two blanks; `log_line_prefix` puts nothing like that before them.
fn is_complaint(line: &str) -> bool {
    ["WARNING", "ERROR", "FATAL", "PANIC"].iter().any(|level| line.contains(&format!(" {level}:  ")))
        || line.contains("was terminated by signal")
        || line.contains("panicked at")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-01-01 00:00:00.000 UTC [1] postmaster LOG:  database system is ready to accept connections
2026-01-01 00:00:00.000 UTC [2] client backend ERROR:  relation \"x\" does not exist
2026-01-01 00:00:00.000 UTC [2] client backend STATEMENT:  select * from x
2026-01-01 00:00:00.000 UTC [1] postmaster LOG:  server process (PID 7) was terminated by signal 11: Segmentation fault
thread '<unnamed>' panicked at src/lib.rs:1:1:
2026-01-01 00:00:00.000 UTC [3] outbox_relay relay WARNING:  something
";

    #[test]
    fn errors_warnings_panics_and_deaths_by_signal_are_complaints() {
        let log = Log { text: LOG.into() };
        assert_eq!(log.complaints(&[]).len(), 4);
    }

    #[test]
    fn an_expected_complaint_is_no_complaint() {
        let log = Log { text: LOG.into() };
        let left = log.complaints(&["relation \"x\"".into(), "WARNING:  something".into()]);
        assert_eq!(left.len(), 2);
        assert!(left[0].contains("signal 11"));
    }
}
