//! Every example of SQL in the documentation runs.
//!
//! A block that begins with three backquotes and `sql` is run by psql in a session of its own; those of a file one after the
//! other in one database. `sql error CODE` must fail with that SQLSTATE. `sql no-run: REASON` is not run.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::state;

use crate::scene::Scene;

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            examples_of_the_readme_run,
            examples_of_the_reference_run,
    ]
}

fn examples_of_the_readme_run(scene: &mut Scene) -> Result<()> {
    run_examples(scene, "README.md", "readme")
}

fn examples_of_the_reference_run(scene: &mut Scene) -> Result<()> {
    run_examples(scene, "docs/reference.md", "reference")
}

/// A block of SQL, and where it begins.
struct Example {
    line: usize,
    sql: String,
    /// The SQLSTATE that it ends with.
    error: Option<String>,
}

fn run_examples(scene: &mut Scene, file: &str, database: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = fs::read_to_string(&path).with_context(|| format!("could not read {path:?}"))?;
    let examples = examples(&text).with_context(|| file.to_owned())?;
    ensure!(examples.len() > 3, "{file} has {} examples", examples.len());
    // What the examples do to a relay is no matter here, and without topics it would complain.
    let mut client = scene.start(&[("outbox_relay.enabled", "off")])?;
    scene.expect_complaint("ERROR: ");
    scene.expect_complaint("the order of a key is not kept");
    // Without the tables of the other tests.
    client.batch_execute(&format!("create database {database}"))?;
    scene.cluster.connect(database)?.batch_execute("create extension outbox_relay")?;
    for example in &examples {
        run(scene, database, example).with_context(|| format!("{file}, line {}:\n{}", example.line, example.sql))?;
    }
    scene.say(format_args!("{} examples of {file}", examples.len()));
    Ok(())
}

fn examples(text: &str) -> Result<Vec<Example>> {
    let mut examples = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```").collect();
        let words: Vec<&str> = info.split_whitespace().collect();
        let error = match words[..] {
            ["sql"] => None,
            ["sql", "error", code] => Some(code.to_owned()),
            ["sql", "no-run:", _, ..] => continue,
            ["sql", ..] => bail!("line {}: what does {info:?} mean?", number + 1),
            _ => continue,
        };
        examples.push(Example { line: number + 1, sql: block.join("\n"), error });
    }
    Ok(examples)
}

fn run(scene: &Scene, database: &str, example: &Example) -> Result<()> {
    let address = scene.cluster.address();
    let mut psql = state::as_server_user(state::postgres_programs()?.join("psql"));
    psql.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--set", "VERBOSITY=verbose"])
        .arg("--host")
        .arg(address.host())
        .args(["--port", &address.port().to_string(), "--username", "postgres", "--dbname", database])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = psql.spawn().context("could not start psql")?;
    child.stdin.take().context("psql has no input")?.write_all(example.sql.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    match &example.error {
        None => ensure!(output.status.success(), "{said}"),
        Some(code) => ensure!(
            !output.status.success() && said.contains(&format!("ERROR:  {code}:")),
            "instead of an error {code} it said: {said}"
        ),
    }
    Ok(())
}
