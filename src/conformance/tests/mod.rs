//! The suite is tried on ports that keep every rule, and on ports that break one each: a suite that can't fail proves
//! nothing.

mod broken_publishers;
mod broken_stores;
mod listed;
mod memory_publisher;
mod memory_store;

use std::fmt;

use super::Report;

/// The faults that the rule named for each does not catch, and what they break instead.
fn escapes<F: Copy + fmt::Debug>(
    caught_by: impl IntoIterator<Item = (F, &'static str)>,
    try_all: impl Fn(F) -> Report,
) -> Vec<String> {
    let escape = |(fault, rule): (F, &'static str)| {
        let report = try_all(fault);
        let broken: Vec<_> = report.broken().into_iter().map(|(name, _)| name).collect();
        (!broken.contains(&rule)).then(|| format!("{fault:?} should break {rule}, and breaks {broken:?}"))
    };
    caught_by.into_iter().filter_map(escape).collect()
}
