//! Drains of a small and of a very large backlog, and of large values: whether rate and memory stay what they are.

use anyhow::Result;

use crate::Bench;
use crate::drain::{HELD, MEMORY, RELAY, relay, samples, say};
use crate::messages::Messages;
use crate::numerals::thousands;
use crate::results::{Good, Ratio, Results, median};

/// With key, header and overhead just below what `outbox_relay.max_message_bytes` allows by default.
const LARGE: usize = 999_000;

/// Small drains between two large ones.
const SMALL_BETWEEN: usize = 3;

/// R11 and R12.
pub fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    by_backlog(bench, results)?;
    large_values(bench, results)
}

/// R11, and the first half of R12.
fn by_backlog(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain by backlog";
    let (small, large) = bench.pick((100_000, 1_000_000), (100_000, 10_000_000));
    let (small_case, large_case) = (thousands(small), thousands(large));
    if bench.pick(false, true) {
        for _ in 0..bench.rounds {
            relay(bench, results, group, "10,000", &Messages::central(10_000))?;
        }
        results.note(group, "10,000", RELAY, "a good part of it is the relay's start");
        say(bench, results, group, "10,000");
    }
    // A large drain is as long as a hundred small ones, so it needs fewer rounds to be told from chance.
    let rounds = bench.rounds.min(3);
    let few_small = |results: &mut Results| -> Result<Vec<f64>> {
        let mut rates = Vec::new();
        for _ in 0..SMALL_BETWEEN {
            let messages = Messages::central(small);
            rates.push(relay(bench, results, group, &small_case, &messages)?.rate(&messages));
        }
        Ok(rates)
    };
    let (mut ratios, mut late) = (Vec::new(), Vec::new());
    let mut before = few_small(results)?;
    for _ in 0..rounds {
        let messages = Messages::central(large);
        let drained = relay(bench, results, group, &large_case, &messages)?;
        let after = few_small(results)?;
        ratios.push(drained.rate(&messages) / median(&[&before[..], &after].concat()));
        before = after;
        results.add(HELD, &format!("{large_case} x 200 B"), RELAY, MEMORY, drained.memory as f64 / 1e6);
        // The first tenth holds the start, which counts for more in a small drain.
        let [second, last] = [1, 9].map(|tenth| drained.rate_between(large / 10 * tenth, large / 10 * (tenth + 1)));
        late.push(last? / second?);
    }
    say(bench, results, group, &small_case);
    say(bench, results, group, &large_case);
    let r11 = Ratio {
        id: "R11".into(),
        what: format!("drain rate of a backlog of {large_case} / of {small_case}"),
        value: median(&ratios),
        unit: String::new(),
        good: Good::AtLeast,
        required: 0.95,
        aim: Some(1.0),
        method: format!(
            "each of {rounds} large drains by the median of the {SMALL_BETWEEN} small ones before and the {SMALL_BETWEEN} after it, \
             and the median of that; all with the relay's start, which is a larger part of a small one. Within the large drains \
             the last tenth went at {:.2} of the rate of the second (median)",
            median(&late)
        ),
    };
    let r12 = memory_ratio(results, "R12a", &format!("{large_case} x 200 B"), rounds)?;
    results.ratios.extend([r11, r12]);
    Ok(())
}

/// The second half of R12.
fn large_values(bench: &Bench<'_>, results: &mut Results) -> Result<()> {
    let group = "drain of large values";
    let count = bench.pick(500, 10_000);
    let messages = Messages { value_bytes: LARGE, a_commit: 10, ..Messages::central(count) };
    let case = format!("{} x 1 MB", thousands(count));
    let drained = relay(bench, results, group, &case, &messages)?;
    results.add(HELD, &case, RELAY, MEMORY, drained.memory as f64 / 1e6);
    results.note(group, &case, RELAY, &format!("values of {LARGE} B, incompressible; rounds: 1"));
    say(bench, results, group, &case);
    let r12 = memory_ratio(results, "R12b", &case, 1)?;
    results.ratios.push(r12);
    Ok(())
}

fn memory_ratio(results: &Results, id: &str, case: &str, rounds: usize) -> Result<Ratio> {
    Ok(Ratio {
        id: id.into(),
        what: format!("memory of the relay while it drains {case}"),
        value: samples(results, HELD, case, RELAY)?.into_iter().fold(0.0, f64::max),
        unit: " MB".into(),
        good: Good::AtMost,
        required: 128.0,
        aim: Some(64.0),
        method: format!("highest RssAnon, looked at every 10 ms, of all rounds: {rounds}"),
    })
}
