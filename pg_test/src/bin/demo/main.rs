//! A message travels from a SQL transaction to a Kafka consumer, through an outage and a crash.
//!
//! `demo` plays it and leaves the servers running, `demo listen` prints what reaches Kafka from then on, `demo stop` stops
//! the servers. Playing it again begins anew.

mod acts;
mod servers;

use std::process::ExitCode;

use anyhow::{Result, bail};
use outbox_relay_pg_test::terminal::Terminal;

fn main() -> ExitCode {
    let terminal = Terminal::new();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&terminal, &arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal.wipe();
            terminal.bad(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(terminal: &Terminal, arguments: &[&str]) -> Result<()> {
    match arguments {
        [] => acts::play(terminal),
        ["listen"] => servers::listen(terminal),
        ["stop"] => servers::stop(terminal),
        _ => bail!("usage: demo [listen | stop]"),
    }
}
