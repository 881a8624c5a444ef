//! Where a relay spends its time while it drains a backlog: a flame graph, sampled by perf.
//!
//! Samples are taken by the clock, not by the processor's counters, which virtual machines often lack. The stacks are unwound
//! by DWARF: Debian's PostgreSQL and librdkafka keep no frame pointers.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use inferno::collapse::Collapse as _;
use inferno::collapse::perf::Folder;
use inferno::flamegraph;
use outbox_relay_pg_test::process::{self, Signal};
use outbox_relay_pg_test::wait;

use crate::Bench;
use crate::backlog;
use crate::messages::Messages;
use crate::results::Results;

/// A second and thread. An odd number, so as to be in step with nothing.
const SAMPLES: u32 = 997;
/// Bytes of stack that are kept of each sample; what the loop needs is half of that.
const STACK: u32 = 16_384;
const DRAINS: usize = 3;
const ROWS: u64 = 1_000_000;
const END_AT_MOST: Duration = Duration::from_secs(60);

/// Where the relay's own part of a stack begins; what calls it is the same in each.
const LOOP: &str = "::relay::Relay<";
/// Frames that only hand on: the guards between Rust and C, and closures.
const HAND_ON: &[&str] = &[
    "catch_unwind",
    "do_call",
    "call_once",
    "run_guarded",
    "pg_guard_ffi_boundary",
    "sigsetjmp",
    "{closure",
    "PgTryBuilder",
];

/// Drains some backlogs under perf and writes the flame graph.
pub fn make(bench: &Bench<'_>, svg: &Path) -> Result<()> {
    let relays = bench.servers.relays()?;
    let [relay] = relays[..] else { bail!("one relay was expected, there are {}", relays.len()) };
    let samples = bench.servers.directory.join("perf.data");
    let perf = Perf::start(relay, &samples)?;
    let messages = Messages::central(ROWS);
    let mut unused = Results::default();
    for drain in 1..=DRAINS {
        let drained = backlog::drain(bench, &mut unused, &messages)?;
        bench
            .terminal
            .good(format_args!("drain {drain} of {DRAINS}, sampled: {:.0} messages/s", drained.rate(&messages)));
    }
    perf.stop()?;
    bench.terminal.during("folding the stacks", || draw(&samples, svg))?;
    bench.terminal.title(format_args!("The flame graph, for a browser: {}", svg.display()));
    Ok(())
}

/// A perf that records.
struct Perf(Child);

impl Perf {
    fn start(pid: i32, samples: &Path) -> Result<Perf> {
        let mut command = Command::new("perf");
        command.args(["record", "--quiet", "--event", "cpu-clock", "--freq", &SAMPLES.to_string()]);
        command.args(["--call-graph", &format!("dwarf,{STACK}"), "--pid", &pid.to_string()]);
        command.arg("--output").arg(samples).stdin(Stdio::null());
        let child = command.spawn().context("could not start perf; on Debian it is in the package linux-perf")?;
        Ok(Perf(child))
    }

    fn stop(mut self) -> Result<()> {
        ensure!(self.0.try_wait()?.is_none(), "perf has ended early; it may not be allowed to watch another process");
        process::send(self.0.id() as i32, Signal::INT)?;
        wait::until_true("perf has written its samples", END_AT_MOST, || Ok(self.0.try_wait()?.is_some()))
    }
}

fn draw(samples: &Path, svg: &Path) -> Result<()> {
    let script = samples.with_extension("txt");
    let mut list = Command::new("perf");
    list.args(["script", "--no-inline", "--input"]).arg(samples).stdout(File::create(&script)?).stderr(Stdio::null());
    ensure!(list.status().context("could not start perf")?.success(), "perf could not read its own samples");
    let mut folded = Vec::new();
    Folder::default()
        .collapse(BufReader::new(File::open(&script)?), &mut folded)
        .context("could not fold the stacks that perf listed")?;
    let folded = String::from_utf8_lossy(&folded);
    let lines: Vec<String> = folded.lines().map(shorten).collect();
    let mut options = flamegraph::Options::default();
    options.title = "A relay that drains 200 B messages".to_owned();
    options.count_name = "samples".to_owned();
    options.min_width = 0.2;
    let mut drawn = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut drawn)
        .context("could not draw the flame graph")?;
    if let Some(directory) = svg.parent() {
        fs::create_dir_all(directory).with_context(|| format!("could not make {directory:?}"))?;
    }
    fs::write(svg, &drawn).with_context(|| format!("could not write {svg:?}"))
}

/// The thread, then the stack from the loop on, without frames that only hand on.
fn shorten(line: &str) -> String {
    let Some((stack, count)) = line.rsplit_once(' ') else { return line.to_owned() };
    let frames: Vec<&str> = stack.split(';').collect();
    let (thread, calls) = frames.split_first().map_or(("", &[][..]), |(thread, calls)| (*thread, calls));
    let from = calls.iter().position(|frame| frame.contains(LOOP)).unwrap_or(0);
    let kept = calls[from..].iter().copied().filter(|frame| !HAND_ON.iter().any(|part| frame.contains(part)));
    let stack: Vec<&str> = std::iter::once(thread).chain(kept).collect();
    format!("{} {count}", stack.join(";"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_begins_with_the_loop_and_leaves_out_what_only_hands_on() {
        let line = "postgres;main;ServerLoop;outbox_relay::relay::Relay<S>::run;std::catch_unwind<F>;heap_delete 7";
        assert_eq!(shorten(line), "postgres;outbox_relay::relay::Relay<S>::run;heap_delete 7");
        assert_eq!(
            shorten("rdk:broker1;start_thread;rd_kafka_broker_serve 3"),
            "rdk:broker1;start_thread;rd_kafka_broker_serve 3"
        );
    }
}
