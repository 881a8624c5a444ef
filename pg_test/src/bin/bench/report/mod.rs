//! What becomes of the results: lines on the terminal, JSON to keep, a page with plots to read.

mod page;
mod plot;
mod screen;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use outbox_relay_pg_test::terminal::Terminal;

use crate::numerals;
use crate::results::{Good, Ratio, Results};

pub use screen::show_part;

/// The page; its text stands in docs/, what was measured is put between two marks in it.
const PAGE: &str = "performance.md";

/// Where results are kept and the page is made.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// Among what the benchmark leaves behind.
    Directory(&'a Path),
    /// In docs/, for all to read.
    Docs,
}

/// Keeps the results in the directory of the benchmark, and returns the file.
pub fn save(results: &Results, directory: &Path) -> Result<PathBuf> {
    Place::Directory(directory).keep(results)
}

/// Says what came out, keeps it in `directory`, and makes the page there or, if asked to, in docs/.
pub fn publish(terminal: &Terminal, results: &Results, directory: &Path, into_docs: bool) -> Result<()> {
    let json = save(results, directory)?;
    let place = if into_docs { Place::Docs } else { Place::Directory(directory) };
    let page = place.make_page(results)?;
    screen::show(terminal, results);
    terminal.title("To keep and to read");
    terminal.say(format_args!("as JSON: {}", json.display()));
    terminal.say(format_args!("as a page with plots: {}", page.display()));
    if !into_docs {
        terminal.say("docs/performance.md is as it was; \"make bench-full\" writes there");
    }
    Ok(())
}

/// Says again what came out in an earlier run, and makes its page again, beside the file or in docs/.
pub fn again(terminal: &Terminal, json: &Path, into_docs: bool) -> Result<()> {
    let text = fs::read_to_string(json).with_context(|| format!("could not read {json:?}"))?;
    let results: Results =
        serde_json::from_str(&text).with_context(|| format!("{json:?} does not hold results of this benchmark"))?;
    let beside = json.parent().unwrap_or(Path::new(""));
    let page = if into_docs { Place::Docs } else { Place::Directory(beside) }.make_page(&results)?;
    screen::show(terminal, &results);
    terminal.title(format_args!("As a page with plots: {}", page.display()));
    Ok(())
}

impl Place<'_> {
    fn file(self, name: &str) -> PathBuf {
        match self {
            Place::Directory(directory) => directory.join(name),
            Place::Docs => docs().join(name),
        }
    }

    /// The name under which results are kept here.
    fn json(self) -> &'static str {
        match self {
            Place::Directory(_) => "results.json",
            Place::Docs => "performance.json",
        }
    }

    fn keep(self, results: &Results) -> Result<PathBuf> {
        let text = serde_json::to_string_pretty(results).context("could not turn the results into JSON")?;
        self.write(self.json(), &format!("{text}\n"))
    }

    /// Writes the page of docs/, with these results in it, its plots, and the results themselves.
    fn make_page(self, results: &Results) -> Result<PathBuf> {
        let template = docs().join(PAGE);
        let text = fs::read_to_string(&template).with_context(|| format!("could not read {template:?}"))?;
        let plots = plot::all(results);
        let body = page::body(results, &plots, self.json());
        let text = page::fill(&text, &body).with_context(|| format!("could not put results into {template:?}"))?;
        self.keep(results)?;
        for plot in &plots {
            self.write(plot.file, &plot.svg)?;
        }
        self.write(PAGE, &text)
    }

    fn write(self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.file(name);
        fs::write(&path, text).with_context(|| format!("could not write {path:?}"))?;
        Ok(path)
    }
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs")
}

/// What a row must reach: `at least 0.45`, `at most 25 ms`.
fn required(ratio: &Ratio) -> String {
    let side = match ratio.good {
        Good::AtLeast => "at least",
        Good::AtMost => "at most",
    };
    format!("{side} {}", numerals::limit(ratio.required, &ratio.unit))
}
