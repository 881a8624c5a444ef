//! docs/rules.md says for each rule which tests hold it. A table that nobody checks is wrong soon: every rule must be there
//! once, have a test or a reason to differ, and every test that is named must exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The groups of rules by the letter of their ids, which run from 1 to this number.
const GROUPS: [(&str, usize); 6] = [("E", 14), ("P", 12), ("R", 25), ("W", 7), ("F", 7), ("S", 110)];

/// How a reason begins.
const DIFFERENCE: &str = "Deliberate difference: ";

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below a directory of the project whose name ends so.
fn files(directory: impl AsRef<Path>, ending: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.expect("a readable directory").path());
    let found = paths.flat_map(|path| if path.is_dir() { files(&path, ending) } else { vec![path] });
    found.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
}

/// The rows of all tables: id, rule, held by.
fn rows(text: &str) -> Vec<[&str; 3]> {
    text.lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| |"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            cells.try_into().unwrap_or_else(|_| panic!("three cells: {line}"))
        })
        .collect()
}

/// What stands between backquotes.
fn names(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The name of the function that this line begins.
fn function(line: &str) -> Option<&str> {
    line.trim().strip_prefix("fn ")?.split('(').next()
}

/// The names of all tests in Rust, and how often each occurs.
fn rust_tests() -> BTreeMap<String, usize> {
    let mut tests = BTreeMap::new();
    for path in files("src", ".rs").into_iter().chain(files("pg_test/src", ".rs")) {
        let text = read(path);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line.trim() == "#[test]" {
                let name = lines.by_ref().find_map(function).expect("a function behind #[test]");
                *tests.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    for path in files("pg_test/tests/cluster", ".rs") {
        let text = read(path);
        let functions: BTreeSet<&str> = text.lines().filter_map(function).collect();
        // Only what is listed is run.
        let Some((_, list)) = text.split_once("trials![") else { continue };
        let list = list.split_once(']').expect("the end of the list").0;
        let listed = list.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| functions.contains(word));
        for name in listed {
            *tests.entry(name.to_owned()).or_default() += 1;
        }
    }
    tests
}

/// Whether a section of an SQL test begins with this comment, and what the test prints is compared.
fn is_sql_test(file: &str, section: &str) -> bool {
    let sql = read(Path::new("pg_test/regress/sql").join(file));
    let expected = Path::new("pg_test/regress/expected").join(file).with_extension("out");
    let comment = format!("-- {section}");
    [sql, read(expected)].iter().all(|text| text.lines().any(|line| line.starts_with(&comment)))
}

#[test]
fn every_rule_is_there_once() {
    let text = read("docs/rules.md");
    let listed: Vec<&str> = rows(&text).into_iter().map(|[id, ..]| id).collect();
    let wanted: Vec<String> =
        GROUPS.iter().flat_map(|(letter, last)| (1..=*last).map(move |number| format!("{letter}{number}"))).collect();
    assert_eq!(listed, wanted);
}

#[test]
fn every_rule_has_a_test_or_a_reason() {
    for [id, rule, held_by] in rows(&read("docs/rules.md")) {
        assert!(rule.ends_with('.'), "{id} is no sentence: {rule}");
        let (tests, reason) = held_by.split_once(DIFFERENCE).unwrap_or((held_by, ""));
        assert!(!names(tests).is_empty() || reason.len() > 20, "{id} has neither");
        assert!(names(reason).is_empty(), "{id}: tests stand before the reason");
        let rest: String = tests.split('`').step_by(2).collect();
        assert!(rest.trim_matches([' ', ',', '.']).is_empty(), "{id}: {rest:?} between the names of tests");
    }
}

#[test]
fn every_test_that_is_named_exists() {
    let tests = rust_tests();
    for [id, _, held_by] in rows(&read("docs/rules.md")) {
        for name in names(held_by) {
            match name.split_once(": ") {
                Some((file, section)) => assert!(is_sql_test(file, section), "{id}: no section {name:?}"),
                None => assert_eq!(tests.get(name), Some(&1), "{id}: tests with the name {name}"),
            }
        }
    }
}
