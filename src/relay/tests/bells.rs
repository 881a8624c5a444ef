//! Bells are hints: none is lost while the relay is busy, none replaces the search for rows that rang none, and none of a
//! bucket that is not its own wakes a relay.

use crate::clock::Time;
use crate::policy::{Policy, TopicRule};
use crate::relay::ports::Order;
use crate::simulate::{Call, Hindrance, Label, Refuser, Ring, Verb, World};

use super::{alone, at, ms, secs, times_of};

/// What was read of a bucket, by ids, and when.
fn fetched(world: &World, bucket: u32) -> Vec<(Time, Vec<i64>)> {
    world.calls_for(Verb::Fetch, bucket).into_iter().map(|call| (call.at, call.ids())).collect()
}

#[test]
fn bells_that_never_stop_do_not_postpone_the_search_for_rows_that_rang_none() {
    let mut simulation = alone();
    for id in 1..400 {
        simulation.at(ms(100 * id as u64), move |world| world.commit(1, [id], Ring::Bucket));
    }
    simulation.at(at(12), |world| world.commit(0, [5], Ring::Silent));
    let world = simulation.run(at(39));
    assert_eq!(times_of(&world, Verb::Pending), [at(10), at(20), at(30)]);
    assert_eq!(world.broker.published_at(0, 5), Some(ms(20_005)));
}

#[test]
fn searches_that_take_long_are_for_few_buckets_at_a_time_and_leave_the_rest_of_the_time_to_publishing() {
    let mut simulation = alone();
    let slow = Hindrance::Slow { before: ms(400) - at(0), after: secs(0) };
    simulation.world.database.hinder(Verb::Pending, at(5)..at(1000), slow);
    simulation.at(at(19), |world| (0..8).for_each(|bucket| world.commit(bucket, [5], Ring::Silent)));
    let world = simulation.run(at(100));
    let answered = |seconds: u64| ms(seconds * 1000 + 400);
    assert_eq!(times_of(&world, Verb::Pending), [10, 30, 50, 70, 90].map(answered));
    let published: Vec<_> = (0..8).map(|bucket| world.broker.published_at(bucket, 5)).collect();
    let found = |seconds: u64| Some(answered(seconds) + (ms(5) - at(0)));
    assert_eq!(published, [30, 30, 50, 50, 70, 70, 90, 90].map(found));
}

#[test]
fn where_very_many_rows_were_removed_the_search_after_that_is_for_few_buckets_at_a_time() {
    let mut simulation = alone();
    simulation.at(at(1), |world| (0..8).for_each(|bucket| world.commit(bucket, 1..=30_000, Ring::Bucket)));
    let world = simulation.run(at(29));
    assert!(world.database.is_empty());
    assert_eq!(times_of(&world, Verb::Pending), [&[at(10); 8][..], &[at(20)]].concat());
}

#[test]
fn searches_behind_what_is_in_flight_wait_for_each_other_where_very_many_rows_were_removed() {
    let mut simulation = alone();
    simulation.world.broker.delay = ms(200) - at(0);
    simulation.at(at(1), |world| (0..8).for_each(|bucket| world.commit(bucket, 1..=60_000, Ring::Bucket)));
    simulation.at(ms(9_990), |world| (0..8).for_each(|bucket| world.commit(bucket, [60_001], Ring::Bucket)));
    let world = simulation.run(at(19));
    assert!(world.database.is_empty());
    // What came in time for the batches that landed at 10.19 s took no time here.
    let times = times_of(&world, Verb::Pending);
    assert_eq!((times[0], times.len()), (at(10), 8), "60,000 rows may take 120 ms, so one bucket at a time");
    assert!(times[1] >= ms(10_190), "the second look came at {:?}, before the first was over", times[1]);
}

#[test]
fn the_search_goes_on_in_front_of_a_refused_row_that_its_bucket_waits_behind() {
    let mut simulation = alone();
    simulation.world.broker.delay = secs(2);
    (5..=10).for_each(|id| simulation.world.database.label(0, id, Label { topic: "events", key: Some(id as u8) }));
    let block = TopicRule { policy: Policy::Block, ..TopicRule::default() };
    simulation.world.database.rules.insert("events".to_owned(), block);
    simulation.world.broker.refuse(0, 5, Refuser::Broker, at(1000));
    // The search at 10 s begins while these are on their way, and can't come to where they end.
    simulation.at(at(9), |world| world.commit(0, 5..=10, Ring::Bucket));
    simulation.at(at(15), |world| world.commit(0, [3], Ring::Silent));
    let world = simulation.run(at(40));
    assert!(world.database.rows(0).contains(&5));
    let found = world.broker.published_at(0, 3).expect("it is found");
    assert!((at(20)..=at(33)).contains(&found), "published at {found:?}");
}

#[test]
fn the_first_search_comes_an_interval_after_the_first_buckets() {
    let mut simulation = alone();
    simulation.world.database.bucket_count = 1;
    simulation.relay("b", at(1));
    simulation.at(at(63), |world| world.order("a", Order::Stop));
    let world = simulation.run(at(80));
    let searches = world.calls(Verb::Pending).into_iter().filter(|call| call.relay == "b");
    assert_eq!(searches.map(|call| call.at).collect::<Vec<_>>(), [at(73)], "a bucket that was gained is read anyway");
}

#[test]
fn a_commit_during_the_search_for_rows_is_published_at_once() {
    // Before the search has taken its snapshot, and after.
    for (before, after) in [(secs(2), secs(0)), (secs(0), secs(2))] {
        let mut simulation = alone();
        simulation.world.database.hinder(Verb::Pending, at(10)..at(11), Hindrance::Slow { before, after });
        simulation.at(at(11), |world| world.commit(0, [1], Ring::Bucket));
        let world = simulation.run(at(19));
        assert_eq!(world.broker.published_at(0, 1), Some(ms(12_005)));
    }
}

#[test]
fn a_commit_during_a_fetch_is_read_by_the_next_one() {
    let mut simulation = alone();
    let slow = Hindrance::Slow { before: secs(0), after: secs(2) };
    simulation.world.database.hinder(Verb::Fetch, at(1)..at(2), slow);
    simulation.at(at(1), |world| world.commit(0, [5], Ring::Bucket));
    // Behind the batch, and in front of it.
    simulation.at(at(2), |world| world.commit(0, [3, 8], Ring::Bucket));
    let world = simulation.run(at(9));
    assert_eq!(fetched(&world, 0), [(at(1), vec![5]), (ms(3055), vec![3, 8])]);
    assert_eq!(world.broker.published(0), [5, 3, 8]);
}

#[test]
fn bells_before_a_fetch_are_one_bell() {
    let mut simulation = alone();
    let slow = Hindrance::Slow { before: secs(0), after: secs(2) };
    simulation.world.database.hinder(Verb::Pending, at(10)..at(11), slow);
    for id in [9, 4, 7] {
        simulation.at(at(11), move |world| world.commit(0, [id], Ring::Bucket));
    }
    let world = simulation.run(at(19));
    assert_eq!(fetched(&world, 0), [(at(12), vec![4, 7, 9])]);
}

#[test]
fn a_bell_without_rows_submits_nothing() {
    let mut simulation = alone();
    simulation.at(at(5), |world| world.commit(0, [], Ring::Unknown));
    let world = simulation.run(at(9));
    let asked = world.calls.iter().filter(|call| call.at == at(5));
    let asked: Vec<Verb> = asked.map(|call: &Call| call.verb).collect();
    assert_eq!(asked, [Verb::Fetch; 8], "every bucket is looked at");
}

#[test]
fn bells_of_a_lost_bucket_do_not_wake_the_relay() {
    let mut simulation = alone();
    simulation.at(at(5), |world| world.steal(0));
    for id in 1..50 {
        simulation.at(ms(11_000 + 100 * id as u64), move |world| world.commit(0, [id], Ring::Bucket));
    }
    let world = simulation.run(at(19));
    let rests = world.rests.iter().filter(|rest| rest.at > at(11)).count();
    assert_eq!(rests, 0, "it rests until its leases are due");
    assert!(!world.database.is_empty());
}

#[test]
fn bells_do_not_wake_a_relay_that_has_lost_all_its_leases() {
    let mut simulation = alone();
    simulation.world.database.down(at(5)..at(200));
    for id in 1..50 {
        simulation.at(ms(60_000 + 100 * id as u64), move |world| world.commit(0, [id], Ring::Bucket));
    }
    let world = simulation.run(at(100));
    // Each wait after a failure is kept to its end.
    let cut_short = world.rests.windows(2).filter(|pair| pair[0].at >= at(60) && pair[0].until > pair[1].at).count();
    assert!(cut_short == 0, "{cut_short} rests were cut short");
}
