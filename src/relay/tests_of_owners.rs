//! A bucket from owner to owner: what a joiner gets, what a lost and a dead relay leave behind, and what becomes of a refused
//! message on the way.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::simulate::{Hindrance, Refuser, Ring, Simulation, Verb, World};

use super::Ended;

const fn at(seconds: u64) -> Time {
    ms(1000 * seconds)
}

const fn ms(milliseconds: u64) -> Time {
    Time::since_zero(Duration::from_millis(milliseconds))
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

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
    simulation.at(at(59), |world| assert_eq!(world.database.failures[&(0, 2)].attempts, 1, "its own first attempt"));
    let world = simulation.run(at(200));
    let tries: Vec<_> = world.calls_for(Verb::Submit, 0).into_iter().map(|call| (call.at, call.ids())).collect();
    assert_eq!(tries, [(at(1), vec![1]), (at(40), vec![2]), (ms(140_055), vec![2])]);
    assert!(world.database.is_empty());
}
