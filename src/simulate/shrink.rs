//! Leaves out of a plan whatever it can do without and still break the same promise.

use super::plan::Plan;
use super::run::run;
use super::truth::Promise;

/// Most runs that are spent on it.
const RUNS_MAX: usize = 2000;
/// How often a smaller plan is run, with other delays, before it is said not to break the promise.
const THROWS: usize = 5;

/// The smallest plan found that breaks this promise.
pub(crate) fn shrink(plan: Plan, promise: Promise) -> Plan {
    let mut runs = 0;
    // Whatever is left out changes what chance gives to the rest, so a few throws are tried.
    let breaks = |plan: &mut Plan| {
        (0..THROWS).any(|_| {
            let broken = run(plan, false).breach.is_some_and(|breach| breach.promise == promise);
            if !broken {
                plan.seed = plan.seed.wrapping_add(1);
            }
            broken
        })
    };
    let mut best = plan;
    loop {
        let before = size(&best);
        for part in PARTS {
            let mut chunk = (part.len)(&best).max(1);
            while chunk > 0 && runs < RUNS_MAX {
                let mut from = 0;
                while from < (part.len)(&best) && runs < RUNS_MAX {
                    let mut smaller = best.clone();
                    let until = (from + chunk).min((part.len)(&best));
                    (part.drop)(&mut smaller, from, until);
                    runs += 1;
                    if breaks(&mut smaller) {
                        best = smaller;
                    } else {
                        from = until;
                    }
                }
                chunk /= 2;
            }
        }
        if size(&best) == before || runs >= RUNS_MAX {
            return best;
        }
    }
}

fn size(plan: &Plan) -> usize {
    PARTS.iter().map(|part| (part.len)(plan)).sum()
}

/// Something of which a plan has many.
struct Part {
    len: fn(&Plan) -> usize,
    drop: fn(&mut Plan, usize, usize),
}

const PARTS: [Part; 4] = [
    Part { len: |plan| plan.faults.len(), drop: |plan, from, until| drop(plan.faults.drain(from..until)) },
    // The first relay stays.
    Part { len: |plan| plan.relays.len() - 1, drop: |plan, from, until| drop(plan.relays.drain(from + 1..until + 1)) },
    // A refusal names a transaction by its place: an empty one stays.
    Part {
        len: |plan| plan.transactions.iter().filter(|of| !of.keys.is_empty()).count(),
        drop: |plan, from, until| {
            let full = plan.transactions.iter_mut().filter(|of| !of.keys.is_empty());
            full.skip(from).take(until - from).for_each(|of| of.keys.clear());
        },
    },
    Part {
        len: |plan| plan.transactions.iter().map(|of| of.keys.len().saturating_sub(1)).sum(),
        drop: |plan, from, until| {
            for at in (from..until).rev() {
                let mut at = at;
                for of in &mut plan.transactions {
                    let more = of.keys.len().saturating_sub(1);
                    if at < more {
                        of.keys.pop();
                        break;
                    }
                    at -= more;
                }
            }
        },
    },
];
