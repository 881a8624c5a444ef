//! A rule that is not in the table would never be tried.

use crate::conformance::{publisher, store};

/// Names of the public functions of a file that take a fixture.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    let starts = source.split("pub fn ").skip(1);
    starts.map(|rest| rest.split_once('(').expect("a function")).filter(|(_, rest)| is_rule(rest)).map(|(name, _)| name)
}

fn is_rule(rest: &str) -> bool {
    rest.trim_start().starts_with("fixture: &mut dyn")
}

#[test]
fn every_rule_is_in_its_table() {
    let files = [
        include_str!("../store/leases.rs"),
        include_str!("../store/messages.rs"),
        include_str!("../store/renewal.rs"),
        include_str!("../store/ownership.rs"),
        include_str!("../store/failures.rs"),
    ];
    let written: Vec<_> = files.into_iter().flat_map(functions).collect();
    assert_eq!(written, store::RULES.iter().map(|rule| rule.name).collect::<Vec<_>>());
    let written: Vec<_> = functions(include_str!("../publisher.rs")).collect();
    assert_eq!(written, publisher::RULES.iter().map(|rule| rule.name).collect::<Vec<_>>());
}
