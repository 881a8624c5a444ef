//! What was measured, on the terminal and as JSON.

use std::fs;

use anyhow::{Context, Result};

use crate::Bench;
use crate::results::{Good, Results};

/// Prints everything and leaves it as JSON too; `whole` tells that no family was left out, so that there is a verdict.
pub fn publish(bench: &Bench<'_>, results: &Results, whole: bool) -> Result<()> {
    let terminal = bench.terminal;
    terminal.title("Promised, and what came of it");
    for ratio in &results.ratios {
        let sign = if ratio.good == Good::AtLeast { "at least" } else { "at most" };
        let line =
            format!("{:<5}{:<70}{:.3}{} ({sign} {})", ratio.id, ratio.what, ratio.value, ratio.unit, ratio.required);
        match (whole, ratio.holds()) {
            (false, _) => terminal.say(line),
            (true, true) => terminal.good(line),
            (true, false) => terminal.bad(line),
        }
    }
    terminal.title("Medians");
    for figure in &results.figures {
        let name = format!("{}: {}, {}", figure.group, figure.case, figure.who);
        terminal.say(format_args!("{name:<80}{:.3} {}", figure.median(), figure.unit));
    }
    terminal.title("Measured with");
    for (name, value) in &results.measured_with {
        terminal.say(format_args!("{name:<30}{value}"));
    }
    let path = bench.servers.directory.join("results.json");
    let json = serde_json::to_string_pretty(results).context("could not write JSON")?;
    fs::write(&path, json + "\n").with_context(|| format!("could not write {path:?}"))?;
    terminal.title(format_args!("{} records were read back; as JSON: {}", results.records_read_back, path.display()));
    Ok(())
}
