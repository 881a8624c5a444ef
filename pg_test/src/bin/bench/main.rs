//! How fast the relay is, beside a raw producer that does nothing but produce.
//!
//! Two questions, each answered with both contestants in the same minutes on the same servers:
//! how long a backlog takes to drain, and how long one message takes on an idle system.

mod drain;
mod latency;
mod raw;
mod report;
mod servers;

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use outbox_relay_pg_test::terminal::Terminal;

const USAGE: &str = "\
usage: bench [--rounds N] [--rows N] [--messages N]
  --rounds N    drains, and raw runs beside each; the median counts (default 5)
  --rows N      rows of a drain (default 1000000)
  --messages N  messages of the latency part (default 1000)";

/// What is measured.
pub struct Options {
    /// Drains.
    pub rounds: usize,
    /// Rows of a drain.
    pub rows: u64,
    /// Messages of the latency part.
    pub messages: usize,
}

fn main() -> ExitCode {
    let terminal = Terminal::new();
    match options().and_then(|options| run(&terminal, &options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal.wipe();
            terminal.bad(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options> {
    let mut options = Options { rounds: 5, rows: 1_000_000, messages: 1_000 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| USAGE.to_owned())?;
        let number: usize = value.parse().with_context(|| format!("{value:?} is no number\n{USAGE}"))?;
        ensure!(number > 0, "{name} must be at least 1");
        match name.as_str() {
            "--rounds" => options.rounds = number,
            "--rows" => options.rows = number as u64,
            "--messages" => options.messages = number,
            _ => bail!(USAGE),
        }
    }
    Ok(options)
}

fn run(terminal: &Terminal, options: &Options) -> Result<()> {
    terminal.title("Starting a PostgreSQL and a Kafka of the benchmark's own");
    let servers = servers::start(terminal)?;
    terminal.title(format_args!(
        "Draining {} rows of {} bytes, {} rounds",
        options.rows,
        raw::VALUE_BYTES,
        options.rounds
    ));
    let drains = drain::measure(terminal, &servers, options)?;
    terminal.title(format_args!("One message at a time on an idle system, {} of each", options.messages));
    let latencies = latency::measure(terminal, &servers, options)?;
    report::print(terminal, &servers, options, &drains, &latencies)
}
