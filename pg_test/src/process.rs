//! A server process, in a process group of its own, that dies with us unless it is meant to live on.
//!
//! `Drop` covers a test that fails or panics. A run that is killed is covered by the kernel: the child asks for a signal
//! when its parent ends. "Parent" there means the *thread* that forked, so one thread that lives as long as we do forks
//! for all (a test's own thread would take its servers along when the test ends).

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, kill_process};

use crate::state;
use crate::wait::{self, Seen};

pub use rustix::process::Signal;

/// How long a process may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// As long as we do at most.
    WithUs,
    /// Beyond our end: the demo leaves its servers running.
    Beyond,
}

/// What is to be started.
pub struct Launch<'a> {
    /// The program, found on PATH unless it is a path.
    pub program: &'a Path,
    /// Its arguments.
    pub args: &'a [&'a str],
    /// As the server's user, or as ourselves.
    pub as_server_user: bool,
    /// All its output is appended here.
    pub log: &'a Path,
    /// How long it may live.
    pub lifetime: Lifetime,
    /// The signal that it gets when we end without a word, as setpriv spells it.
    pub orphan_signal: &'a str,
}

/// A child of ours.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lifetime: Lifetime,
}

impl Process {
    /// Starts it.
    pub fn start(launch: &Launch<'_>) -> Result<Process> {
        let mut command = Command::new("setpriv");
        if launch.lifetime == Lifetime::WithUs {
            command.args(["--pdeathsig", launch.orphan_signal]);
        }
        if let (true, Some(user)) = (launch.as_server_user, state::server_user()) {
            command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--init-groups"]);
        }
        command.arg("--").arg(launch.program).args(launch.args);
        command.current_dir("/");
        state::clean_environment(&mut command);
        let log = open_log(launch.log)?;
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone().context("could not share the log")?)
            .stdout(log)
            .process_group(0);
        let child = fork_by_the_long_lived_thread(command)
            .with_context(|| format!("could not start {}", launch.program.display()))?;
        Ok(Process { child, lifetime: launch.lifetime })
    }

    /// The process id; `setpriv` has replaced itself by the server, so it is the server's.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        send(self.pid(), signal)
    }

    /// The exit status if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("could not ask for a child's end")
    }

    /// Waits for its end.
    pub fn wait_for_end(&mut self, at_most: Duration) -> Result<ExitStatus> {
        let pid = self.pid();
        wait::until(format_args!("process {pid} has ended"), at_most, || {
            Ok(match self.ended()? {
                Some(status) => Seen::Reached(status),
                None => Seen::NotYet("it runs".into()),
            })
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.lifetime == Lifetime::Beyond {
            return;
        }
        // Nobody is left to tell: the kernel takes SIGKILL for certain, and `wait` reaps.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process that we started or whose parent we started.
pub fn send(pid: i32, signal: Signal) -> Result<()> {
    let process = Pid::from_raw(pid).with_context(|| format!("{pid} is no process id"))?;
    kill_process(process, signal).with_context(|| format!("could not send {signal:?} to process {pid}"))
}

/// Whether a process of this id exists and is no zombie.
pub fn alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Whether a process of this id was stopped by a signal.
pub fn stopped(pid: i32) -> bool {
    state(pid) == Some('T')
}

fn state(pid: i32) -> Option<char> {
    // The state letter follows the name, which is in parentheses and may hold anything.
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit(')').next()?.trim_start().chars().next()
}

/// Anonymous memory of a process in bytes: what it allocated, without the shared buffers it looked at.
pub fn anonymous_memory(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} is gone"))?;
    let kilobytes: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse().ok())
        .with_context(|| format!("/proc/{pid}/status has no RssAnon"))?;
    Ok(kilobytes * 1024)
}

/// Processor time that a process has used since it began, all its threads together, to a hundredth of a second.
pub fn processor_time(pid: i32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} is gone"))?;
    // The fields after the name, which is in parentheses and may hold anything, begin with the third.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
    let (user, system) = (ticks(14), ticks(15));
    let all = user.zip(system).with_context(|| format!("/proc/{pid}/stat has no times"))?;
    Ok(Duration::from_secs_f64((all.0 + all.1) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Processor time that all processes of the machine have used since it began, the kernel's own included.
pub fn processor_time_of_all() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("could not read /proc/stat")?;
    let first =
        stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("/proc/stat has no line \"cpu\"")?;
    // User, nice, system, then idle and waiting for a disk, then interrupts of two kinds.
    let ticks: Vec<u64> = first.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|field| ticks.get(*field)).sum();
    Ok(Duration::from_secs_f64(busy as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// All processes that work in `directory`: a postmaster and its children, also those that outlived it.
pub fn working_in(directory: &Path) -> Vec<i32> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == directory))
        .filter(|pid| alive(*pid))
        .collect()
}

fn open_log(path: &Path) -> Result<File> {
    OpenOptions::new().create(true).append(true).open(path).with_context(|| format!("could not open the log {path:?}"))
}

type Order = (Command, Sender<std::io::Result<Child>>);

fn fork_by_the_long_lived_thread(command: Command) -> Result<Child> {
    static FORKS: LazyLock<Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                // An order whose sender has gone needs no answer.
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, answers) = channel();
    FORKS.send((command, answer)).map_err(|_| anyhow!("the thread that forks has ended"))?;
    Ok(answers.recv().context("the thread that forks has ended")??)
}
