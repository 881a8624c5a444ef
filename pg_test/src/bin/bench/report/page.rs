//! The page: what was measured, as Markdown, between two marks in a text that was written by hand.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use crate::numerals::{self, measured, thousands, with_unit};
use crate::report::plot::Plot;
use crate::report::required;
use crate::results::{Figure, Ratio, Results};

/// What stands between these lines belongs to the command.
pub const BEGIN: &str = "<!-- results: from here on written by `make bench-full` -->";
/// The other mark.
pub const END: &str = "<!-- results: to here -->";

/// The text with other results in it.
pub fn fill(text: &str, body: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).with_context(|| format!("the mark {BEGIN:?} is missing"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("the mark {END:?} is missing"))?;
    Ok(format!("{before}{BEGIN}\n\n{body}\n{END}{after}"))
}

/// All that stands between the marks.
pub fn body(results: &Results, plots: &[Plot], json: &str) -> String {
    let mut page = format!(
        "Measured on {}, {} mode, {:.0} minutes. {} records were read back from Kafka: none missing, none invented, no \
         duplicate, order per key right.\n\n",
        results.date,
        results.mode,
        results.minutes,
        thousands(results.records_read_back)
    );
    page += "### What must be reached, and what came of it\n\n";
    page += &summary(results);
    page += &ratios(&results.ratios_in_order());
    for plot in plots {
        let _ = writeln!(page, "![{}]({})\n", plot.title, plot.file);
    }
    page += "### How each was measured\n\n";
    for ratio in results.ratios_in_order() {
        let _ = writeln!(page, "- **{}** {}", ratio.id, prose(&ratio.method));
    }
    page += "\n### Figures\n\n";
    let _ =
        writeln!(page, "Medians; lowest and highest say how far rounds were apart. Every sample: [{json}]({json}).\n");
    for (group, figures) in results.groups() {
        page += &group_table(group, &figures);
    }
    page += "### Measured with\n\n| | |\n|---|---|\n";
    for (name, value) in &results.measured_with {
        let _ = writeln!(page, "| {} | {} |", prose(name), prose(value));
    }
    page
}

fn summary(results: &Results) -> String {
    let missed: Vec<&str> =
        results.ratios_in_order().iter().filter(|ratio| !ratio.holds()).map(|ratio| ratio.id.as_str()).collect();
    let mut text = if missed.is_empty() {
        "All that was measured reaches what it must.".to_owned()
    } else {
        format!("**Missed: {}.** All others reach what they must.", missed.join(", "))
    };
    let missing = results.ids_without_ratio();
    if !missing.is_empty() {
        let _ = write!(text, " Not measured in this run: {}.", missing.join(", "));
    }
    text + "\n\n"
}

fn ratios(ratios: &[&Ratio]) -> String {
    let mut table = "| | what | measured | must be | aim | |\n|---|---|---|---|---|---|\n".to_owned();
    for ratio in ratios {
        let verdict = match (ratio.holds(), ratio.reaches_aim()) {
            (false, _) => "**missed**",
            (true, true) => "ok, and the aim",
            (true, false) => "ok",
        };
        let _ = writeln!(
            table,
            "| {} | {} | **{}** | {} | {} | {verdict} |",
            ratio.id,
            prose(&ratio.what),
            with_unit(ratio.value, &ratio.unit),
            required(ratio),
            ratio.aim.map(|aim| numerals::limit(aim, &ratio.unit)).unwrap_or_default(),
        );
    }
    table + "\n"
}

fn group_table(group: &str, figures: &[&Figure]) -> String {
    let mut table =
        format!("#### {}\n\n| case | who | median | lowest to highest | rounds | |\n", capital(&prose(group)));
    table += "|---|---|---|---|---|---|\n";
    for figure in figures {
        let (lowest, highest) = figure.range();
        let range = if figure.samples.len() > 1 {
            format!("{} to {}", measured(lowest), measured(highest))
        } else {
            String::new()
        };
        let _ = writeln!(
            table,
            "| {} | {} | **{}** | {range} | {} | {} |",
            prose(&figure.case),
            prose(&figure.who),
            with_unit(figure.median(), &figure.unit),
            figure.samples.len(),
            prose(&figure.note),
        );
    }
    table + "\n"
}

/// Text that is no markup, in one line, and ends no cell of a table.
fn prose(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('&', "&amp;").replace('<', "&lt;").replace('|', "\\|").replace('*', "\\*")
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}
