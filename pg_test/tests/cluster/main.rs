//! The guarantees on whole clusters: a real Postgres for each test, a real Kafka, and a consumer that knows neither.
//!
//! A test is named after what it holds. `cargo test --release -p outbox_relay_pg_test --test cluster -- NAME` runs those
//! whose name contains NAME.

mod scene;

mod blackhole;
mod brokers;
mod bucket_count;
mod conformance;
mod copies;
mod crash;
mod databases;
mod documentation;
mod fleet;
mod flow;
mod harness;
mod host;
mod identity;
mod invented;
mod latency;
mod leaderless;
mod lost;
mod once;
mod operate;
mod order;
mod outage;
mod producer_ids;
mod publisher;
mod quota;
mod record;
mod refusal;
mod security;
mod settings;
mod sharing;
mod standby;
mod topics;
mod volume;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The servers do the work and the tests mostly wait for them: three keep two cores busy.
    arguments.test_threads.get_or_insert(3);
    if !arguments.list
        && let Err(error) = scene::clear_away_earlier_runs()
    {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    let trials: Vec<Trial> = [
        harness::trials(),
        lost::trials(),
        invented::trials(),
        order::trials(),
        identity::trials(),
        sharing::trials(),
        fleet::trials(),
        bucket_count::trials(),
        record::trials(),
        once::trials(),
        latency::trials(),
        host::trials(),
        databases::trials(),
        standby::trials(),
        copies::trials(),
        settings::trials(),
        refusal::trials(),
        operate::trials(),
        flow::trials(),
        security::trials(),
        crash::trials(),
        outage::trials(),
        blackhole::trials(),
        topics::trials(),
        quota::trials(),
        leaderless::trials(),
        producer_ids::trials(),
        volume::trials(),
        conformance::trials(),
        documentation::trials(),
        publisher::trials(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let trials = spread(brokers::trials(), trials);
    let conclusion = libtest_mimic::run(&arguments, trials);
    scene::stop_shared_brokers(conclusion.has_failed());
    security::stop_broker(conclusion.has_failed());
    conclusion.exit_code()
}

/// The tests that take turns with the three brokers are spread among the others, or all threads would wait for a turn.
fn spread(turns: Vec<Trial>, mut others: Vec<Trial>) -> Vec<Trial> {
    let apart = others.len() / turns.len() + 1;
    for (number, turn) in turns.into_iter().enumerate() {
        others.insert(number * apart, turn);
    }
    others
}
