//! Runs many seeds on all cores and shows the first that breaks a promise, shrunk.

use std::collections::BTreeMap;
use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::plan::Plan;
use super::run::run;
use super::shrink::shrink;

/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(10);

/// Runs `seeds` plans from number `from` on, prints what came of it, and says whether all promises were kept.
#[must_use]
pub fn search(from: u64, seeds: u64) -> bool {
    // A relay that panics is a finding like others, and said as such.
    panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let next = AtomicU64::new(from);
    let until = from.saturating_add(seeds);
    let stop = AtomicBool::new(false);
    let coverage = Mutex::new(BTreeMap::<&str, u64>::new());
    let broken = Mutex::new(BTreeMap::new());
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let work = || {
            let mut seen = BTreeMap::<&str, u64>::new();
            while !stop.load(Ordering::Relaxed) {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= until {
                    break;
                }
                let outcome = run(&Plan::of(seed), false);
                outcome.coverage.iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
                if let Some(breach) = outcome.breach {
                    broken.lock().expect("nobody panics with it").insert(seed, breach);
                    stop.store(true, Ordering::Relaxed);
                }
            }
            let mut all = coverage.lock().expect("nobody panics with it");
            seen.iter().for_each(|(what, times)| *all.entry(what).or_default() += times);
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut told = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_millis(20));
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                say_progress(next.load(Ordering::Relaxed).min(until) - from, began);
            }
        }
    });
    let broken = broken.into_inner().expect("nobody panicked with it");
    say_progress(next.load(Ordering::Relaxed).min(until) - from, began);
    println!("\nHow often what happened:");
    for (what, times) in coverage.into_inner().expect("nobody panicked with it") {
        println!("{times:>12}  {what}");
    }
    let Some((seed, breach)) = broken.first_key_value() else {
        println!("\nAll promises were kept.");
        return true;
    };
    println!("\nSeed {seed} breaks a promise: {}: {}.", breach.promise, breach.words);
    println!("What is left of its plan when all that it can do without is left out:\n");
    let plan = shrink(Plan::of(*seed), breach.promise);
    show(&plan);
    println!("\nTo see the whole run: make simulate FROM={seed} SEEDS=1 TRACE=1");
    false
}

/// Prints one run, and says whether all promises were kept.
#[must_use]
pub fn replay(seed: u64) -> bool {
    panic::set_hook(Box::new(|_| {}));
    show(&Plan::of(seed))
}

fn show(plan: &Plan) -> bool {
    let Plan { buckets, renews, settings, latency, broker, .. } = plan;
    println!("{buckets} buckets, renewal: {renews}, a call takes up to {latency:?} twice");
    println!("{settings:?}\n{broker:?}\n");
    let outcome = run(plan, true);
    outcome.trace.iter().for_each(|line| println!("{line}"));
    match outcome.breach {
        None => println!("\nAll promises were kept. The run's number is {:016x}.", outcome.hash),
        Some(ref breach) => println!("\nBroken: {}: {}.", breach.promise, breach.words),
    }
    outcome.breach.is_none()
}

fn say_progress(runs: u64, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    println!("{runs} runs in {seconds:.1} s, {:.0} a second", runs as f64 / seconds);
}
