//! A bucket from owner to owner: what a joiner gets, what a lost and a dead relay leave behind, and what becomes of a refused
//! message on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::simulate::{Failing, Hindrance, Refuser, Ring, Simulation, Verb, World};

use super::{at, ms, secs};

use crate::relay::Ended;
use crate::relay::ports::Order;

fn fleet(buckets: u32, relays: &[(&str, Time)]) -> Simulation {
    let mut simulation = Simulation::new();
    simulation.world.database.bucket_count = buckets;
    for (relay, begins) in relays {
        simulation.relay(relay, *begins);
    }
    simulation
}

fn held<const N: usize>(world: &World, relays: [&str; N]) -> [Vec<Bucket>; N] {
    relays.map(|relay| world.database.held_by(relay).into_iter().collect())
}

// Joining -------------------------------------------------------------------------------------------------------------

#[test]
fn two_relays_of_four_buckets_have_two_each_and_a_third_gets_one() {
    let mut simulation = fleet(4, &[("a", at(0)), ("b", at(3)), ("c", at(13))]);
    simulation.at(at(2), |world| assert_eq!(held(world, ["a", "b", "c"]), [vec![0, 1, 2, 3], vec![], vec![]]));
    simulation.at(at(4), |world| assert_eq!(held(world, ["a", "b", "c"]), [vec![0, 1], vec![2, 3], vec![]]));
    simulation.at(at(14), |world| {
        let held = held(world, ["a", "b", "c"]);
        assert_eq!(held.each_ref().map(Vec::len), [2, 1, 1]);
        assert_eq!(held.concat().into_iter().collect::<BTreeSet<_>>(), (0..4).collect());
    });
    simulation.run(at(20));
}

#[test]
fn a_joiner_whose_id_sorts_first_takes_nothing_that_others_may_keep() {
    let mut simulation = fleet(2, &[("m", at(0)), ("n", at(1)), ("a", at(25))]);
    simulation.at(at(20), |world| {
        assert_eq!(held(world, ["a", "m", "n"]), [vec![], vec![0], vec![1]]);
        let settled = world.database.tokens();
        world.schedule(at(99), move |world| assert_eq!(world.database.tokens(), settled));
    });
    let world = simulation.run(at(100));
    assert!(world.calls(Verb::Acquire).iter().filter(|call| call.relay == "a").count() > 5, "it does ask");
}

#[test]
fn no_bucket_moves_twice_while_a_fleet_grows_one_by_one() {
    let relays = ["e", "d", "c", "b", "a"];
    let mut simulation = fleet(24, &[]);
    for (relay, joins) in relays.iter().zip(0..) {
        simulation.relay(relay, at(20 * joins));
    }
    for joined in 1..relays.len() as u64 {
        simulation.at(at(20 * joined - 1), move |world| {
            let before = world.database.tokens();
            world.schedule(at(20 * joined + 19), move |world| {
                let moved = before.iter().zip(world.database.tokens()).map(|(before, after)| after - before);
                let moved: Vec<i64> = moved.collect();
                assert!(moved.iter().all(|moves| *moves <= 1), "{moved:?}");
                let share = 24 / (joined as usize + 1);
                assert_eq!(moved.iter().sum::<i64>() as usize, share, "only what the joiner gets: {moved:?}");
            });
        });
    }
    simulation.run(at(120));
}

// Leaving -------------------------------------------------------------------------------------------------------------

/// At this time the relays whose leases are due vanish without a word.
fn vanish(simulation: &mut Simulation, time: Time) {
    simulation.world.database.hinder(Verb::Acquire, time..time + secs(1), Hindrance::Gone);
}

#[test]
fn the_leases_of_a_relay_that_vanished_end_by_time_and_not_before() {
    let mut simulation = fleet(8, &[("a", at(0)), ("b", at(15))]);
    vanish(&mut simulation, at(10));
    simulation.at(at(16), |world| world.commit(0, [1], Ring::Bucket));
    simulation.at(at(29), |world| assert_eq!(world.database.held_by("b").len(), 0));
    simulation.at(at(36), |world| assert_eq!(world.database.held_by("b").len(), 8));
    let world = simulation.run(at(60));
    assert_eq!(world.ended["a"], (at(10), Ended::Left("the store is gone".to_owned())));
    assert_eq!(world.broker.published_at(0, 1), Some(ms(35_005)));
    assert!(world.database.is_empty());
}

/// At 35 s, shortly after a round, the database's clock is set back by 25 s.
fn set_clock_back(simulation: &mut Simulation) {
    simulation.at(at(35), |world| world.clock_set = -25_000);
}

#[test]
fn a_clock_that_is_set_back_costs_nobody_a_lease() {
    let mut simulation = fleet(4, &[("a", at(0)), ("b", at(1))]);
    set_clock_back(&mut simulation);
    traffic(&mut simulation, 4, at(100));
    let world = simulation.run(at(102));
    require_once_and_in_order(&world, 4);
    let late = world.broker.log.iter().filter(|row| row.at - committed_at(row.id) > Duration::from_millis(200));
    assert_eq!(late.count(), 0);
    // Taken once, and two of them handed over to the second.
    assert_eq!(world.database.tokens().iter().sum::<i64>(), 6);
}

#[test]
fn a_clock_that_is_set_back_makes_a_dead_relay_s_leases_last_longer_and_never_shorter() {
    // The one that waits sorts first, so that only the other's lease is in its way.
    let mut simulation = fleet(1, &[("b", at(0)), ("a", at(52))]);
    set_clock_back(&mut simulation);
    vanish(&mut simulation, at(50));
    simulation.at(at(51), |world| world.commit(0, [1], Ring::Bucket));
    let world = simulation.run(at(200));
    let published = world.broker.published_at(0, 1).expect("it is taken over in the end");
    // It has kept its lease once since, which then still ends at what the clock showed as 60 s.
    assert!((at(85)..at(96)).contains(&published), "{published:?}");
}

#[test]
fn a_standby_that_skips_rounds_takes_over_when_all_in_front_of_it_are_gone() {
    let mut simulation = fleet(1, &[("a", at(0)), ("b", at(0)), ("c", at(0))]);
    // When the one furthest back skips a round.
    vanish(&mut simulation, at(70));
    simulation.at(at(71), |world| world.commit(0, [1], Ring::Bucket));
    let world = simulation.run(at(200));
    assert_eq!(["a", "b"].map(|relay| world.ended[relay].0), [at(70); 2]);
    let published = world.broker.published_at(0, 1).expect("the last one owns the bucket");
    assert!((at(90)..at(131)).contains(&published), "{published:?}");
}

// Fleets --------------------------------------------------------------------------------------------------------------

/// A row is committed to a bucket every 50 ms until this time, the buckets in turn.
fn traffic(simulation: &mut Simulation, buckets: u32, until: Time) {
    let rows = (until.since(at(0)).as_millis() / 50) as u64;
    for row in 1..rows {
        let bucket = (row * 7 % u64::from(buckets)) as Bucket;
        simulation.at(ms(50 * row), move |world| world.commit(bucket, [row as i64], Ring::Bucket));
    }
}

fn committed_at(row: i64) -> Time {
    ms(50 * row as u64)
}

/// Every row in order, and once.
fn require_once_and_in_order(world: &World, buckets: u32) {
    assert!(world.database.is_empty());
    for bucket in 0..buckets {
        let published = world.broker.published(bucket);
        assert!(published.is_sorted_by(|row, next| row < next), "bucket {bucket}: {published:?}");
    }
}

fn counts(world: &World, relays: &[&str]) -> Vec<usize> {
    relays.iter().map(|relay| world.database.held_by(relay).len()).collect()
}

#[test]
fn a_fleet_that_starts_all_at_once_settles_and_then_writes_nothing() {
    let relays = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let mut simulation = fleet(48, &[]);
    relays.iter().for_each(|relay| simulation.relay(relay, at(0)));
    simulation.at(at(5), move |world| {
        assert_eq!(counts(world, &relays), [4; 12]);
        let settled = world.database.tokens();
        world.schedule(at(60), move |world| assert_eq!(world.database.tokens(), settled));
    });
    let world = simulation.run(at(60));
    let quiet = world.calls.iter().filter(|call| (at(5)..at(60)).contains(&call.at));
    let moves = quiet.filter(|call| matches!(call.verb, Verb::HandBack | Verb::CallPeers | Verb::Release));
    assert_eq!(moves.count(), 0);
}

#[test]
fn a_rolling_update_of_a_fleet_delays_no_message() {
    let mut simulation = fleet(16, &[]);
    for (k, (old, new)) in [("old1", "new1"), ("old2", "new2"), ("old3", "new3"), ("old4", "new4")].iter().enumerate() {
        simulation.relay(old, at(0));
        simulation.relay(new, at(10 + 5 * k as u64));
        simulation.at(at(12 + 5 * k as u64), move |world| world.order(old, Order::Stop));
    }
    traffic(&mut simulation, 16, at(40));
    simulation.at(at(35), |world| assert_eq!(counts(world, &["new1", "new2", "new3", "new4"]), [4; 4]));
    let world = simulation.run(at(42));
    require_once_and_in_order(&world, 16);
    let late = world.broker.log.iter().filter(|row| row.at - committed_at(row.id) > Duration::from_millis(200));
    assert_eq!(late.count(), 0);
}

#[test]
fn a_fleet_that_grows_from_one_to_eight_and_shrinks_to_two_keeps_its_shares() {
    let relays = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut simulation = fleet(24, &[]);
    simulation.relay("a", at(0));
    relays[1..].iter().for_each(|relay| simulation.relay(relay, at(10)));
    simulation.at(at(15), move |world| assert_eq!(counts(world, &relays), [3; 8]));
    for leaver in &relays[2..] {
        simulation.at(at(30), |world| world.order(leaver, Order::Stop));
    }
    simulation.at(at(35), move |world| assert_eq!(counts(world, &relays), [12, 12, 0, 0, 0, 0, 0, 0]));
    traffic(&mut simulation, 24, at(40));
    require_once_and_in_order(&simulation.run(at(42)), 24);
}

#[test]
fn a_store_that_is_slow_and_loses_answers_during_an_update_costs_duplicates_at_most() {
    let mut simulation = fleet(16, &[("old1", at(0)), ("old2", at(0)), ("new1", at(10)), ("new2", at(14))]);
    simulation.at(at(12), |world| world.order("old1", Order::Stop));
    simulation.at(at(16), |world| world.order("old2", Order::Stop));
    simulation.settings.batch_size = 10;
    let lost = Hindrance::Fails(Failing::AfterEffect);
    for verb in [Verb::Acquire, Verb::Acknowledge, Verb::Fetch, Verb::Release] {
        for second in [9, 12, 15, 18] {
            simulation.world.database.hinder(verb, at(second)..ms(1000 * second + 300), lost);
        }
    }
    let slow = Hindrance::Slow { before: Duration::from_millis(40), after: Duration::from_millis(40) };
    simulation.world.database.hinder(Verb::Acknowledge, at(8)..at(20), slow);
    simulation.world.database.hinder(Verb::Acquire, at(8)..at(20), slow);
    traffic(&mut simulation, 16, at(20));
    let world = simulation.run(at(90));
    assert!(world.database.is_empty());
    let mut copies: BTreeMap<i64, usize> = BTreeMap::new();
    for bucket in 0..16 {
        let mut firsts = Vec::new();
        for row in world.broker.published(bucket) {
            let copy = copies.entry(row).or_default();
            *copy += 1;
            if *copy == 1 {
                firsts.push(row);
            }
        }
        assert!(firsts.is_sorted(), "bucket {bucket}: {firsts:?}");
    }
    assert_eq!(copies.len(), 399, "nothing is lost");
    let duplicates: usize = copies.values().map(|copies| copies - 1).sum();
    assert!(duplicates <= 2 * 16 * 10, "{duplicates}: at most what two relays had on their way");
}

// Refused messages on the way -----------------------------------------------------------------------------------------

/// Bucket 0 begins with a message that is refused once, and then not tried for 100 s. It is lost meanwhile, and regained.
fn regained() -> Simulation {
    let mut simulation = fleet(8, &[("a", at(0))]);
    simulation.settings.error_backoff = secs(100);
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(90));
    simulation.at(at(1), |world| world.commit(0, [1], Ring::Bucket));
    simulation.at(at(5), |world| world.steal(0));
    simulation.at(at(9), |world| assert!(!world.database.held_by("a").contains(&0)));
    simulation.at(at(41), |world| assert!(world.database.held_by("a").contains(&0)));
    simulation
}

#[test]
fn a_bucket_regained_with_the_same_refused_message_waits_as_long_as_before() {
    let world = regained().run(at(200));
    let tries: Vec<Time> = world.calls_for(Verb::Submit, 0).into_iter().map(|call| call.at).collect();
    assert_eq!(tries, [at(1), ms(101_055)]);
    assert!(world.database.is_empty());
}

#[test]
fn a_bucket_regained_without_its_refused_message_does_not_wait() {
    let mut simulation = regained();
    simulation.world.broker.refuse(0, 2, Refuser::Broker, at(60));
    simulation.at(at(20), |world| {
        // The other owner got it through.
        world.database.skip(0, 1);
        world.commit(0, [2], Ring::Bucket);
    });
    simulation
        .at(at(59), |world| assert_eq!(world.database.failures[&(0, 2)].failure.attempts, 1, "its own first attempt"));
    let world = simulation.run(at(200));
    let tries: Vec<_> = world.calls_for(Verb::Submit, 0).into_iter().map(|call| (call.at, call.ids())).collect();
    assert_eq!(tries, [(at(1), vec![1]), (at(40), vec![2]), (ms(140_055), vec![2])]);
    assert!(world.database.is_empty());
}
