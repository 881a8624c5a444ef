//! The search itself: repeatable, clean, and able to fail.

use crate::broken::{Rule, break_rule};

use super::mutations::{MISSED, RULES};
use super::plan::Plan;
use super::run::run;
use super::shrink::shrink;

#[test]
fn a_seed_is_the_same_run_every_time() {
    for seed in 0..30 {
        let [first, second] = [(), ()].map(|()| run(&Plan::of(seed), true));
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.trace, second.trace, "seed {seed}");
    }
    assert_ne!(run(&Plan::of(0), false).hash, run(&Plan::of(1), false).hash);
}

#[test]
fn a_trace_that_nobody_reads_changes_nothing() {
    for seed in 0..30 {
        assert_eq!(run(&Plan::of(seed), true).hash, run(&Plan::of(seed), false).hash, "seed {seed}");
    }
}

#[test]
fn the_first_seeds_keep_all_promises() {
    for seed in 0..300 {
        let breach = run(&Plan::of(seed), false).breach;
        assert!(breach.is_none(), "seed {seed}: {breach:?}");
    }
}

#[test]
fn every_rule_that_is_switched_off_is_missed() {
    assert_eq!(RULES.len(), Rule::UnknownIsUntold as usize + 1, "every rule is in the list");
    for rule in RULES {
        let missed = MISSED.iter().find(|missed| missed.rule == rule);
        let missed = missed.unwrap_or_else(|| panic!("{rule:?} is not in the table"));
        let breach = break_rule(rule, || run(&Plan::of(missed.seed), false).breach);
        let breach = breach.unwrap_or_else(|| panic!("seed {} does not miss {rule:?}", missed.seed));
        assert_eq!(breach.promise, missed.promise, "{rule:?}: {}", breach.words);
    }
}

#[test]
fn the_table_of_missed_rules_is_that_of_the_documentation() {
    let documented = include_str!("../../docs/simulation.md");
    for missed in &MISSED {
        let row = format!("| `{:?}` | {} | {} |", missed.rule, missed.promise, missed.seed + 1);
        assert!(documented.contains(&row), "docs/simulation.md lacks {row}");
    }
    assert_eq!(documented.lines().filter(|line| line.starts_with("| `")).count(), MISSED.len());
}

#[test]
fn a_plan_shrinks_to_one_that_breaks_the_same_promise() {
    let missed = MISSED.iter().find(|missed| missed.rule == Rule::LateCommits).expect("it is in the table");
    let (whole, breach, small) = break_rule(missed.rule, || {
        let small = shrink(Plan::of(missed.seed), missed.promise);
        (Plan::of(missed.seed), run(&small, false).breach, small)
    });
    assert_eq!(breach.expect("it still breaks").promise, missed.promise);
    let size = |plan: &Plan| {
        plan.faults.len() + plan.relays.len() + plan.transactions.iter().map(|of| of.keys.len()).sum::<usize>()
    };
    assert!(size(&small) < size(&whole) / 2, "{} of {}", size(&small), size(&whole));
}
