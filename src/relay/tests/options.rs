//! What a store may leave out, what ends a relay for good, and how those wait who have nothing to do.

use std::collections::BTreeSet;

use crate::simulate::{Failing, Hindrance, Refuser, Ring, Simulation, Verb};

use super::{at, ms, secs, times_of};

use crate::relay::Ended;
use crate::relay::ports::Order;

/// A relay whose store can't renew, with leases of 30 s, rounds every 10 s, and publishes of less than 15 s: one may begin
/// in the first 5 s of a lease.
fn without_renewal() -> Simulation {
    let mut simulation = Simulation::new();
    simulation.relay("a", at(0));
    simulation.settings.max_publish_duration = Some(secs(15));
    simulation.world.database.renews = false;
    simulation
}

#[test]
fn without_renewal_leases_are_acquired_only_between_publishes() {
    let mut simulation = without_renewal();
    simulation.world.broker.delay = secs(12);
    simulation.at(at(1), |world| world.commit(0, [1], Ring::Bucket));
    simulation.at(at(4), |world| world.commit(1, [2], Ring::Bucket));
    simulation.at(at(11), |world| world.commit(2, [3], Ring::Bucket));
    let world = simulation.run(at(40));
    // Both publishes that began in time are answered first, the third begins under the new lease.
    assert_eq!(times_of(&world, Verb::Submit), [at(1), at(4), ms(16_005)]);
    assert_eq!(times_of(&world, Verb::Acquire)[..3], [at(0), ms(16_005), ms(28_010)]);
    assert!(world.database.is_empty());
    assert!(world.calls(Verb::Renew).is_empty());
}

#[test]
fn without_renewal_an_older_lease_is_acquired_anew_before_a_publish() {
    let mut simulation = without_renewal();
    simulation.at(at(7), |world| world.commit(0, [1], Ring::Bucket));
    let world = simulation.run(at(9));
    assert_eq!(times_of(&world, Verb::Acquire), [at(0), at(7)]);
    assert_eq!(times_of(&world, Verb::Submit), [at(7)]);
}

#[test]
fn without_renewal_an_idle_relay_acquires_once_an_interval() {
    let world = without_renewal().run(at(35));
    assert_eq!(times_of(&world, Verb::Acquire), [at(0), at(10), at(20), at(30)]);
}

#[test]
fn without_renewal_an_acquisition_that_leaves_too_little_time_publishes_nothing() {
    let mut simulation = without_renewal();
    let slow = Hindrance::Slow { before: secs(0), after: secs(6) };
    simulation.world.database.hinder(Verb::Acquire, at(0)..at(60), slow);
    simulation.at(at(1), |world| world.commit(0, [1], Ring::Bucket));
    let world = simulation.run(at(100));
    let submitted = times_of(&world, Verb::Submit);
    assert_eq!(submitted.len(), 1);
    assert!(submitted[0] >= at(60), "{submitted:?}");
    // It waits longer each time, instead of asking without pause.
    let attempts = times_of(&world, Verb::Acquire).into_iter().filter(|time| *time < at(60)).count();
    assert!((4..=9).contains(&attempts), "{attempts} attempts");
    assert!(world.database.is_empty());
}

#[test]
fn without_renewal_a_fetch_that_leaves_too_little_time_discards_the_batch() {
    let mut simulation = without_renewal();
    let slow = Hindrance::Slow { before: secs(0), after: secs(6) };
    simulation.world.database.hinder(Verb::Fetch, at(1)..at(2), slow);
    simulation.at(at(1), |world| world.commit(0, [1], Ring::Bucket));
    let world = simulation.run(at(20));
    assert_eq!(times_of(&world, Verb::Acquire)[..2], [at(0), at(7)]);
    assert_eq!(times_of(&world, Verb::Submit), [at(7)]);
    assert!(world.database.is_empty());
}

#[test]
fn without_renewal_a_publish_that_takes_longer_than_promised_ends_the_relay() {
    let mut simulation = without_renewal();
    simulation.world.broker.delay = secs(16);
    simulation.at(at(1), |world| world.commit(0, [1], Ring::Bucket));
    let world = simulation.run(at(60));
    let (time, ended) = &world.ended["a"];
    assert!(matches!(ended, Ended::Misconfigured(reason) if reason.contains("max_publish_duration")), "{ended:?}");
    assert!((at(16)..at(20)).contains(time), "{time:?}");
}

#[test]
fn without_renewal_a_removal_that_is_slow_or_fails_is_no_publish_that_takes_too_long() {
    let mut simulation = without_renewal();
    simulation.world.database.hinder(Verb::Acknowledge, at(1)..at(18), Hindrance::Fails(Failing::BeforeEffect));
    simulation.at(at(1), |world| world.commit(0, [1], Ring::Bucket));
    let world = simulation.run(at(60));
    assert_eq!(world.ended["a"].1, Ended::Stopped);
    assert_eq!(world.broker.published(0), [1]);
    assert!(world.database.is_empty());
}

#[test]
fn without_renewal_a_client_that_takes_a_few_rows_at_a_time_gets_all_in_order() {
    let mut simulation = without_renewal();
    simulation.world.broker.capacity = 3;
    simulation.world.broker.delay = ms(900).since(at(0));
    simulation.at(at(4), |world| (0..8).for_each(|bucket| world.commit(bucket, 1..=5, Ring::Bucket)));
    let world = simulation.run(at(120));
    assert!(world.database.is_empty());
    for bucket in 0..8 {
        assert_eq!(world.broker.published(bucket), [1, 2, 3, 4, 5]);
    }
}

#[test]
fn without_renewal_a_peer_gets_its_share_once_all_is_quiet() {
    let mut simulation = without_renewal();
    simulation.relay("b", at(5));
    simulation.world.broker.delay = secs(3);
    simulation.at(at(1), |world| (0..8).for_each(|bucket| world.commit(bucket, 1..=5, Ring::Bucket)));
    simulation.at(at(12), |world| {
        assert_eq!(["a", "b"].map(|relay| world.database.held_by(relay).len()), [4, 4]);
    });
    let world = simulation.run(at(60));
    assert!(world.database.is_empty());
}

#[test]
fn a_misconfigured_store_ends_the_relay_in_order() {
    let mut simulation = Simulation::new();
    simulation.relay("a", at(0));
    simulation.world.database.hinder(Verb::Acquire, at(10)..at(11), Hindrance::Misconfigured);
    simulation.world.broker.delay = secs(1);
    simulation.at(ms(9500), |world| world.commit(0, [1], Ring::Bucket));
    let world = simulation.run(at(60));
    assert_eq!(world.ended["a"], (ms(10_505), Ended::Misconfigured("no bucket fits".to_owned())));
    assert!(world.database.is_empty(), "what was on its way is acknowledged");
    assert!(world.database.held_by("a").is_empty(), "and its leases are released");
}

#[test]
fn a_second_order_to_stop_cuts_short_neither_the_last_removal_nor_the_release() {
    for verb in [Verb::Acknowledge, Verb::Release] {
        let mut simulation = Simulation::new();
        simulation.relay("a", at(0));
        simulation.world.database.hinder(verb, at(5)..ms(5100), Hindrance::Interrupted { after: secs(1) });
        simulation.at(ms(4990), |world| world.commit(0, [1], Ring::Bucket));
        simulation.at(at(5), |world| world.order("a", Order::Stop));
        let world = simulation.run(at(60));
        assert!(world.database.is_empty(), "{verb:?}");
        assert!(world.database.held_by("a").is_empty(), "{verb:?}");
    }
}

#[test]
fn the_buckets_of_the_last_acquisition_are_where_the_next_one_looks_first() {
    let mut simulation = Simulation::new();
    simulation.relay("a", at(0));
    simulation.at(at(12), |world| (0..8).for_each(|bucket| world.steal(bucket)));
    let world = simulation.run(at(25));
    let all: BTreeSet<_> = (0..8).collect();
    assert_eq!(world.database.hints[..2], [BTreeSet::new(), all.clone()]);
    assert_eq!(world.database.hints[2], all, "the hint survives the loss of the leases");
    assert!(world.database.hints[3..].iter().all(BTreeSet::is_empty), "until an acquisition says otherwise");
}

#[test]
fn a_standby_further_back_than_the_buckets_skips_rounds() {
    let mut simulation = Simulation::new();
    simulation.world.database.bucket_count = 1;
    for relay in ["a", "b", "c"] {
        simulation.relay(relay, at(0));
    }
    // Once all have heard of each other.
    let world = simulation.run(at(75));
    let rounds = |relay: &str| {
        let of = |call: &&crate::simulate::Call| call.relay == relay && call.at >= at(1);
        world.calls(Verb::Acquire).into_iter().filter(of).map(|call| call.at).collect::<Vec<_>>()
    };
    assert_eq!(rounds("a"), [10, 20, 30, 40, 50, 60, 70].map(at));
    assert_eq!(rounds("b"), [10, 20, 30, 40, 50, 60, 70].map(at));
    assert_eq!(rounds("c"), [20, 40, 60].map(at));
    assert!(world.calls(Verb::Renew).iter().all(|call| call.relay != "c"));
}

#[test]
fn a_bucket_freed_of_its_refused_message_goes_on_at_once() {
    let mut simulation = Simulation::new();
    simulation.relay("a", at(0));
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(1_000_000));
    simulation.at(at(1), |world| world.commit(0, [1], Ring::Bucket));
    simulation.at(at(2), |world| world.commit(0, [2, 3], Ring::Bucket));
    // In the middle of a wait of up to 10 s.
    simulation.at(at(60), |world| {
        world.database.skip(0, 1);
        world.order("a", Order::LookAgain);
    });
    let world = simulation.run(at(70));
    assert_eq!(world.broker.published(0), [2, 3]);
    let first = world.broker.published_at(0, 2).expect("it is published");
    assert!(first >= at(60) && first < ms(60_100), "{first:?}");
    assert!(world.database.is_empty());
}

#[test]
fn a_row_that_was_refused_is_handed_over_apart_and_no_other_is() {
    let mut simulation = Simulation::new();
    simulation.relay("a", at(0));
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(40));
    simulation.at(at(1), |world| (0..2).for_each(|bucket| world.commit(bucket, 1..=4, Ring::Bucket)));
    let world = simulation.run(at(80));
    let retries = world.calls_for(Verb::Submit, 0).iter().filter(|call| call.ids() == [1]).count();
    assert!(retries > 3, "{retries}");
    assert_eq!(world.client("a").apart, vec![(0, 1); retries]);
    assert!(world.database.is_empty());
}

#[test]
fn without_renewal_a_retry_that_is_due_rests_until_what_is_on_its_way_is_answered() {
    let mut simulation = without_renewal();
    simulation.world.broker.delay = secs(12);
    simulation.world.broker.refuse(0, 1, Refuser::Client, at(9));
    simulation.at(at(1), |world| world.commit(0, [1], Ring::Bucket));
    simulation.at(at(4), |world| world.commit(1, [2], Ring::Bucket));
    // From 5 s on the lease is too old to begin with, and row 1 is due before row 2 is answered.
    let world = simulation.run(at(40));
    assert_eq!(world.broker.published(0), [1]);
    // Every two seconds it is looked for silent topics.
    let rests = world.rests.iter().filter(|rest| (at(5)..at(16)).contains(&rest.at));
    assert!(rests.count() < 20);
}
