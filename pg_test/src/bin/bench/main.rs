//! How fast the relay is, beside the limits of the machine and beside Debezium, measured side by side in one run.
//!
//! Each family of cases is a module with a function `measure`, and one line in [`FAMILIES`]. Every drain is read back: a fast
//! run that lost, invented, repeated or reordered a message ends the benchmark with an error.

mod arrivals;
mod backlog;
mod bystander;
mod debezium;
mod drain;
mod enqueue;
mod factors;
mod fill;
mod idle;
mod latency;
mod memory;
mod messages;
mod numbered;
mod numerals;
mod pgbench;
#[cfg(feature = "profile")]
mod profile;
mod raw;
mod read_back;
mod report;
mod results;
mod servers;
mod sizes;
mod steady;
mod wal;
mod xmin;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use outbox_relay_pg_test::terminal::Terminal;

use results::Results;
use servers::Servers;

const USAGE: &str = "\
usage: bench [short|full] [--only FAMILY[,FAMILY]] [--rounds N] [--docs]
       bench report FILE.json [--docs]
       bench profile FILE.svg
  short          the central case and what is promised, in about 10 minutes (default)
  full           all cases, in less than 2 hours
  --only FAMILY  these families alone, and no verdict
  --rounds N     rounds of each comparison (default 5); medians count
  --docs         put the page and its plots into docs/, not beside the results
  report         say again what a file of results holds, and make its page again
  profile        a flame graph of a relay that drains a backlog, sampled by perf (make profile)";

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Smaller backlogs, the central case and what is promised.
    Short,
    /// All cases.
    Full,
}

/// What every family of cases gets.
pub struct Bench<'a> {
    /// Standard output.
    pub terminal: &'a Terminal,
    /// Postgres and Kafka; relays are disabled between the families.
    pub servers: &'a Servers,
    /// How much is measured.
    pub mode: Mode,
    /// Rounds of each comparison.
    pub rounds: usize,
    /// How many topics there were so far.
    topics: Cell<usize>,
}

impl Bench<'_> {
    /// The one value in the short mode, the other in the full one.
    pub fn pick<T>(&self, short: T, full: T) -> T {
        match self.mode {
            Mode::Short => short,
            Mode::Full => full,
        }
    }

    /// The rounds, and before them so many that only warm up: whether each is measured.
    pub fn rounds_after(&self, unmeasured: usize) -> impl Iterator<Item = bool> {
        (0..unmeasured + self.rounds).map(move |round| round >= unmeasured)
    }

    /// Creates a topic; its name begins as said, and no other has it. Who is done with it deletes it.
    pub fn new_topic(&self, beginning: &str, partitions: i32) -> Result<String> {
        self.topics.set(self.topics.get() + 1);
        let name = format!("{beginning}-{}", self.topics.get());
        self.servers.broker.create_topic(&name, partitions, &[])?;
        Ok(name)
    }
}

/// A family of cases: its name for `--only`, its title, and what measures it.
type Family = (&'static str, &'static str, fn(&Bench<'_>, &mut Results) -> Result<()>);

/// In the order in which they are measured.
const FAMILIES: &[Family] = &[
    ("drain", "Draining a backlog beside the raw limits", drain::measure),
    ("factors", "Draining with one factor varied at a time", factors::measure),
    ("sizes", "Draining few and many, small and large messages", sizes::measure),
    ("debezium", "Draining beside Debezium", debezium::measure),
    ("enqueue", "Saving a message beside inserting a row", enqueue::measure),
    ("steady", "Writers and the relay at the same time", steady::measure),
    ("latency", "One message at a time on an idle system", latency::measure),
    ("bystander", "What others on the server notice of a busy relay", bystander::measure),
    ("wal", "WAL of a message over its whole life", wal::measure),
    ("idle", "Nothing to do", idle::measure),
    ("xmin", "Draining while a transaction holds the horizon", xmin::measure),
];

struct Options {
    mode: Mode,
    only: Vec<String>,
    rounds: usize,
    docs: bool,
    report: Option<PathBuf>,
    profile: Option<PathBuf>,
}

fn main() -> ExitCode {
    let terminal = Terminal::new();
    match options(std::env::args().skip(1)).and_then(|options| run(&terminal, &options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal.wipe();
            terminal.bad(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let mut options =
        Options { mode: Mode::Short, only: Vec::new(), rounds: 5, docs: false, report: None, profile: None };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "short" => options.mode = Mode::Short,
            "full" => options.mode = Mode::Full,
            "report" => options.report = Some(arguments.next().context(USAGE)?.into()),
            "profile" => options.profile = Some(arguments.next().context(USAGE)?.into()),
            "--docs" => options.docs = true,
            "--only" => {
                let names = arguments.next().context(USAGE)?;
                options.only = names.split(',').map(str::to_owned).collect();
                for name in &options.only {
                    ensure!(
                        FAMILIES.iter().any(|(family, ..)| family == name),
                        "there is no family {name:?}; there are {}",
                        FAMILIES.iter().map(|(family, ..)| *family).collect::<Vec<_>>().join(", ")
                    );
                }
            }
            "--rounds" => {
                let number = arguments.next().context(USAGE)?;
                options.rounds = number.parse().with_context(|| format!("{number:?} is no number\n{USAGE}"))?;
                ensure!(options.rounds > 0, "there must be at least one round");
            }
            _ => bail!(USAGE),
        }
    }
    ensure!(options.only.is_empty() || !options.docs, "a run of some families makes no page for docs/");
    Ok(options)
}

fn run(terminal: &Terminal, options: &Options) -> Result<()> {
    if let Some(json) = &options.report {
        return report::again(terminal, json, options.docs);
    }
    let since = Instant::now();
    terminal.title("Starting a PostgreSQL and a Kafka of the benchmark's own");
    let servers = servers::start(terminal)?;
    let bench = Bench { terminal, servers: &servers, mode: options.mode, rounds: options.rounds, topics: Cell::new(0) };
    if let Some(svg) = &options.profile {
        return profile(&bench, svg);
    }
    let mut results = Results {
        date: servers.today()?,
        mode: bench.pick("short", "full").to_owned(),
        measured_with: servers.described()?,
        ..Results::default()
    };
    for (name, title, measure) in FAMILIES {
        if options.only.is_empty() || options.only.iter().any(|only| only == name) {
            terminal.title(title);
            servers.enable(false)?;
            let begun = Instant::now();
            measure(&bench, &mut results).with_context(|| format!("family {name}"))?;
            terminal.say(format_args!("{name} took {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0));
            results.minutes = since.elapsed().as_secs_f64() / 60.0;
            // What follows may fail.
            report::save(&results, &servers.directory)?;
        }
    }
    if options.only.is_empty() {
        report::publish(terminal, &results, &servers.directory, options.docs)
    } else {
        report::show_part(terminal, &results);
        Ok(())
    }
}

#[cfg(feature = "profile")]
fn profile(bench: &Bench<'_>, svg: &Path) -> Result<()> {
    profile::make(bench, svg)
}

#[cfg(not(feature = "profile"))]
fn profile(_bench: &Bench<'_>, _svg: &Path) -> Result<()> {
    bail!("this program was built without the feature \"profile\"; use make profile")
}
