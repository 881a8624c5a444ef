//! The results on the terminal: ratios first, then what they come from, then what they were measured with.

use outbox_relay_pg_test::terminal::Terminal;

use crate::numerals::{self, measured, thousands, with_unit};
use crate::report::required;
use crate::results::{Figure, Ratio, Results};

/// All of it, with a verdict on every row of the table.
pub fn show(terminal: &Terminal, results: &Results) {
    terminal.title("What must be reached, and what came of it");
    for ratio in results.ratios_in_order() {
        terminal.verdict(ratio.holds(), row(ratio));
        terminal.say(format_args!("{:11} {}", "", ratio.method));
    }
    let missing = results.ids_without_ratio();
    if !missing.is_empty() {
        terminal.say(format_args!("not measured in this run: {}", missing.join(", ")));
    }
    figures(terminal, results);
    terminal.title("Measured with");
    let width = results.measured_with.keys().map(String::len).max().unwrap_or_default();
    for (name, value) in &results.measured_with {
        terminal.say(format_args!("{name:<width$}  {value}"));
    }
    terminal.title(format_args!("{}, {} mode, {:.0} minutes", results.date, results.mode, results.minutes));
    terminal.say(format_args!(
        "{} records were read back: none missing, none invented, no duplicate, order per key right",
        thousands(results.records_read_back)
    ));
}

/// What some families measured, without a verdict.
pub fn show_part(terminal: &Terminal, results: &Results) {
    terminal.title("Ratios");
    for ratio in results.ratios_in_order() {
        terminal.say(row(ratio));
    }
    figures(terminal, results);
}

fn row(ratio: &Ratio) -> String {
    let value = with_unit(ratio.value, &ratio.unit);
    format!("{:<4} {}: {value} ({})", ratio.id, ratio.what, limits(ratio))
}

fn limits(ratio: &Ratio) -> String {
    match ratio.aim {
        Some(aim) => format!("{}; aim {}", required(ratio), numerals::limit(aim, &ratio.unit)),
        None => required(ratio),
    }
}

/// Every series, under the title of its group: the median, lowest and highest.
fn figures(terminal: &Terminal, results: &Results) {
    for (group, figures) in results.groups() {
        terminal.title(group);
        let names: Vec<String> = figures.iter().map(|figure| format!("{}: {}", figure.case, figure.who)).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
        for (figure, name) in figures.iter().zip(names) {
            terminal.say(format_args!("{name:<width$}  {}", series(figure)));
        }
    }
}

fn series(figure: &Figure) -> String {
    let mut text = with_unit(figure.median(), &figure.unit);
    if figure.samples.len() > 1 {
        let (lowest, highest) = figure.range();
        text += &format!(" (median of {}: {} to {})", figure.samples.len(), measured(lowest), measured(highest));
    }
    if !figure.note.is_empty() {
        text += &format!("; {}", figure.note);
    }
    text
}
