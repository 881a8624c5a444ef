//! Searches the simulated world for a run that breaks a promise: `simulate FROM SEEDS [trace|mutations]`. See docs/simulation.md.

use std::process::ExitCode;

use outbox_relay::simulate::{find_mutations, replay, search};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
    let (Some(from), Some(seeds)) = (number(), number()) else {
        eprintln!("usage: simulate FROM SEEDS [trace|mutations]");
        return ExitCode::from(2);
    };
    let kept = match arguments.next().as_deref() {
        Some("mutations") => find_mutations(seeds),
        Some("trace") => (from..from.saturating_add(seeds)).all(replay),
        _ => search(from, seeds),
    };
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
