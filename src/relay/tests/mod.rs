//! The rules of the loop, each on a virtual clock in the world of [`crate::simulate`].
//!
//! That only the owner of a lasting lease submits, that a bucket has one batch on its way, that only what the broker has is
//! removed, and that nothing is released while it may still be published, the world checks in every one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::bucket::Bucket;
use crate::clock::Time;
use crate::lease::LeaseTimes;
use crate::policy::{Patience, Policy, TopicRule};
use crate::simulate::{Call, Failing, Hindrance, Refuser, Ring, Simulation, Verb, World};
use crate::window;

use super::Ended;
use super::holds::HOLDS_MAX;
use super::ports::{Order, Wait};

mod bells;
mod failures;
mod options;
mod owners;

const ALL: std::ops::Range<Bucket> = 0..8;
const NONE: [i64; 0] = [];
const FOREVER: Time = at(1_000_000);

const fn at(seconds: u64) -> Time {
    ms(1000 * seconds)
}

const fn ms(milliseconds: u64) -> Time {
    Time::since_zero(Duration::from_millis(milliseconds))
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One relay, from the beginning.
fn alone() -> Simulation {
    let mut simulation = Simulation::new();
    simulation.relay("a", at(0));
    simulation
}

fn commit(
    simulation: &mut Simulation,
    time: Time,
    bucket: Bucket,
    ids: impl IntoIterator<Item = i64> + Send + 'static,
) {
    simulation.at(time, move |world| world.commit(bucket, ids, Ring::Bucket));
}

/// One row in every bucket.
fn commit_everywhere(simulation: &mut Simulation, time: Time, id: i64) {
    simulation.at(time, move |world| ALL.for_each(|bucket| world.commit(bucket, [id], Ring::Bucket)));
}

fn slow_before(seconds: u64) -> Hindrance {
    Hindrance::Slow { before: secs(seconds), after: secs(0) }
}

fn slow_after(seconds: u64) -> Hindrance {
    Hindrance::Slow { before: secs(0), after: secs(seconds) }
}

/// The batches of a bucket as they were submitted.
fn batches(world: &World, bucket: Bucket) -> Vec<Vec<i64>> {
    world.calls_for(Verb::Submit, bucket).into_iter().map(Call::ids).collect()
}

fn times(calls: &[&Call]) -> Vec<Time> {
    calls.iter().map(|call| call.at).collect()
}

fn times_of(world: &World, verb: Verb) -> Vec<Time> {
    times(&world.calls(verb))
}

fn waits(world: &World, relay: &str, from: Time, until: Time) -> Vec<Wait> {
    let rests = world.rests.iter().filter(|rest| rest.relay == relay && rest.at >= from && rest.at < until);
    let mut waits: Vec<_> = rests.map(|rest| rest.wait).collect();
    waits.dedup();
    waits
}

fn store_calls(world: &World, from: Time, until: Time) -> Vec<(Time, Verb)> {
    let calls = world.calls.iter().filter(|call| call.at >= from && call.at < until && call.verb.is_of_the_store());
    calls.map(|call| (call.at, call.verb)).collect()
}

fn verbs(world: &World, from: Time, until: Time) -> Vec<Verb> {
    store_calls(world, from, until).into_iter().map(|(_, verb)| verb).collect()
}

// Publishing ----------------------------------------------------------------------------------------------------------

#[test]
fn everything_is_published_and_removed_in_all_buckets_at_once() {
    let mut simulation = alone();
    simulation.at(at(1), |world| ALL.for_each(|bucket| world.commit(bucket, [1, 2, 3], Ring::Bucket)));
    let world = simulation.run(at(5));
    assert!(world.database.is_empty());
    for bucket in ALL {
        assert_eq!(world.broker.published(bucket), [1, 2, 3]);
    }
    assert_eq!(times_of(&world, Verb::Submit), [at(1); 8]);
    assert_eq!(world.calls(Verb::Acknowledge).len(), 1, "one call removes the batches of all buckets");
}

#[test]
fn one_batch_of_a_bucket_is_on_its_way_and_many_buckets_are() {
    let mut simulation = alone();
    simulation.settings.batch_size = 2;
    simulation.world.broker.delay = secs(1);
    simulation.at(at(1), |world| (0..3).for_each(|bucket| world.commit(bucket, 1..=6, Ring::Bucket)));
    simulation.at(ms(1500), |world| {
        let client = world.client("a");
        assert_eq!([0, 1, 2].map(|bucket| client.rows_of(bucket)), [2; 3]);
    });
    let world = simulation.run(at(8));
    assert!(world.database.is_empty());
    for bucket in 0..3 {
        assert_eq!(times(&world.calls_for(Verb::Submit, bucket)), [at(1), ms(2005), ms(3010)]);
    }
}

#[test]
fn rows_of_a_bucket_are_submitted_in_id_order_over_batches() {
    let mut simulation = alone();
    simulation.settings.batch_size = 3;
    simulation.world.broker.shuffled = Some(fastrand::Rng::with_seed(1));
    commit(&mut simulation, at(1), 0, [9, 4, 1, 7, 2]);
    commit(&mut simulation, ms(1010), 0, [12, 10, 11]);
    let world = simulation.run(at(5));
    assert_eq!(batches(&world, 0), [vec![1, 2, 4], vec![7, 9, 10], vec![11, 12]]);
    assert_eq!(world.broker.published(0), [1, 2, 4, 7, 9, 10, 11, 12]);
    assert!(world.database.is_empty());
}

#[test]
fn a_client_that_takes_a_few_rows_at_a_time_gets_all_in_order() {
    let mut simulation = alone();
    simulation.world.broker.capacity = 3;
    commit(&mut simulation, at(1), 0, 1..=20);
    commit(&mut simulation, at(1), 1, 1..=20);
    let world = simulation.run(at(9));
    assert!(world.database.is_empty());
    for bucket in 0..2 {
        assert_eq!(world.broker.published(bucket), (1..=20).collect::<Vec<_>>());
    }
    assert_eq!(world.client("a").most_rows, 3);
}

#[test]
fn every_batch_keeps_the_limit_of_bytes() {
    let mut simulation = alone();
    simulation.settings.batch_bytes = 1000;
    simulation.world.database.value_size = 300;
    commit(&mut simulation, at(1), 0, 1..=10);
    let world = simulation.run(at(9));
    assert_eq!(batches(&world, 0), [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9, 10]]);
}

#[test]
fn the_window_bounds_rows_in_flight() {
    let mut simulation = alone();
    simulation.settings.batch_size = 30_000;
    simulation.world.broker.delay = secs(1);
    simulation.at(at(1), |world| ALL.for_each(|bucket| world.commit(bucket, 1..=30_000, Ring::Bucket)));
    let world = simulation.run(at(9));
    assert!(world.database.is_empty());
    let most = world.client("a").most_rows;
    assert!((window::ROWS_MAX..window::ROWS_MAX + 30_000).contains(&most), "{most} rows in flight");
}

#[test]
fn the_window_bounds_bytes_in_flight() {
    let mut simulation = alone();
    simulation.settings.batch_bytes = 7 << 20;
    simulation.world.broker.delay = secs(1);
    simulation.world.database.value_size = 1 << 20;
    simulation.at(at(1), |world| ALL.for_each(|bucket| world.commit(bucket, 1..=7, Ring::Bucket)));
    let world = simulation.run(at(9));
    assert!(world.database.is_empty());
    let most = world.client("a").most_bytes;
    assert!((window::BYTES_MAX..window::BYTES_MAX + (7 << 20)).contains(&most), "{most} bytes in flight");
}

#[test]
fn a_full_window_serves_the_buckets_in_turn() {
    let mut simulation = alone();
    simulation.settings.batch_size = window::ROWS_MAX / 2;
    simulation.world.broker.delay = secs(1);
    simulation.at(at(1), |world| (0..3).for_each(|bucket| world.commit(bucket, 1..=150_000, Ring::Bucket)));
    let world = simulation.run(at(9));
    let order: Vec<_> = world.calls(Verb::Submit).iter().map(|call| call.rows[0].0).collect();
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

// Partial failure -----------------------------------------------------------------------------------------------------

#[test]
fn a_partial_acknowledgement_removes_exactly_the_prefix() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 3, Refuser::Broker, at(2));
    simulation.world.broker.shuffled = Some(fastrand::Rng::with_seed(2));
    commit(&mut simulation, at(1), 0, 1..=5);
    simulation.at(ms(1200), |world| {
        assert_eq!(world.broker.published(0), [1, 2, 4, 5]);
        assert_eq!(world.database.rows(0), [3, 4, 5]);
    });
    let world = simulation.run(at(5));
    assert_eq!(world.broker.published(0), [1, 2, 4, 5, 3, 4, 5]);
    assert!(world.database.is_empty());
}

/// Rows 1 to 4 in bucket 0, of which 1 is refused until 40 s.
fn refused_head() -> Simulation {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(40));
    commit(&mut simulation, at(1), 0, 1..=4);
    simulation
}

#[test]
fn a_refused_first_row_is_retried_alone_with_growing_waits() {
    let world = refused_head().run(at(80));
    let submits = world.calls_for(Verb::Submit, 0);
    assert_eq!(submits[0].ids(), [1, 2, 3, 4]);
    let answer = Duration::from_millis(55);
    let tries: Vec<_> = submits.iter().filter(|call| call.ids()[0] == 1).map(|call| call.at).collect();
    assert!(tries.len() > 5);
    for (k, pair) in (1u32..).zip(tries.windows(2)) {
        let wait = pair[1] - pair[0] - answer;
        let ceiling = secs(10).min(secs(1) * 2u32.pow(k - 1));
        assert!(secs(1) <= wait && wait <= ceiling, "wait {k} is {wait:?}");
    }
    assert!(tries.windows(2).any(|pair| pair[1] - pair[0] > secs(4)), "waits grow");
    let alone = submits[1..].iter().filter(|call| call.at < at(40));
    alone.for_each(|call| assert_eq!(call.ids(), [1]));
    assert!(world.calls_for(Verb::Acknowledge, 0).iter().all(|call| call.at > at(40)), "nothing was removed before");
}

#[test]
fn after_a_refused_row_whole_batches_go_on() {
    let world = refused_head().run(at(80));
    assert_eq!(batches(&world, 0).iter().rev().take(2).collect::<Vec<_>>(), [&vec![2, 3, 4], &vec![1]]);
    assert_eq!(world.broker.published(0), [2, 3, 4, 1, 2, 3, 4], "followers are seen once more, however many retries");
    assert!(world.database.is_empty());
}

#[test]
fn a_refused_row_is_noted_until_it_is_published() {
    let mut simulation = refused_head();
    simulation.at(at(30), |world| {
        let noted = &world.database.failures[&(0, 1)];
        let tries = world.calls_for(Verb::Submit, 0).iter().filter(|call| call.at < ms(29_940)).count();
        assert_eq!(noted.failure.attempts as usize, tries);
        assert!(tries > 3);
    });
    let world = simulation.run(at(80));
    assert!(world.database.failures.is_empty());
}

#[test]
fn other_buckets_go_at_full_speed_beside_a_refused_row() {
    let mut simulation = refused_head();
    for id in 1..300 {
        commit(&mut simulation, ms(1100 + 100 * id as u64), 1, [id]);
    }
    let world = simulation.run(at(80));
    for id in 1..300 {
        assert_eq!(world.broker.published_at(1, id), Some(ms(1105 + 100 * id as u64)));
    }
}

#[test]
fn commits_behind_a_refused_row_cause_no_store_call_where_its_topic_blocks() {
    let mut simulation = refused_head();
    let rule = TopicRule { policy: Policy::Block, ..TopicRule::default() };
    simulation.world.database.rules.insert("events".to_owned(), rule);
    for id in 10..30 {
        commit(&mut simulation, ms(1000 + 20 * id as u64), 0, [id]);
    }
    let world = simulation.run(at(5));
    assert_eq!(verbs(&world, ms(1100), at(2)), []);
}

#[test]
fn followers_of_a_refused_row_are_seen_twice() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(2));
    commit(&mut simulation, at(1), 0, [1, 2, 3]);
    let world = simulation.run(at(5));
    assert_eq!(world.broker.published(0), [2, 3, 1, 2, 3]);
}

#[test]
fn followers_that_were_not_submitted_wait_behind_a_refused_row() {
    let mut simulation = alone();
    simulation.world.broker.capacity = 2;
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(2));
    commit(&mut simulation, at(1), 0, 1..=5);
    let world = simulation.run(at(5));
    assert_eq!(world.broker.published(0), [2, 1, 2, 3, 4, 5]);
    assert!(world.database.is_empty());
}

#[test]
fn followers_that_the_client_has_only_queued_are_given_up_behind_a_refused_row() {
    let mut simulation = alone();
    // One row at a time, so row 2 goes out as the report of row 1 comes in.
    simulation.world.broker.pipeline = 1;
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(2));
    commit(&mut simulation, at(1), 0, 1..=5);
    let world = simulation.run(at(5));
    assert_eq!(world.broker.published(0), [2, 1, 2, 3, 4, 5]);
    assert!(world.database.is_empty());
}

#[test]
fn followers_do_not_overtake_a_row_that_was_given_up_for_the_sake_of_another_bucket() {
    let mut simulation = alone();
    // When row 1 of bucket 0 is refused, row 1 of bucket 1 is queued, and its followers wait for room.
    simulation.world.broker.capacity = 3;
    simulation.world.broker.pipeline = 1;
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(2));
    simulation.at(at(1), |world| {
        world.commit(0, [1, 2], Ring::Bucket);
        world.commit(1, [1, 2, 3], Ring::Bucket);
    });
    let world = simulation.run(at(5));
    assert_eq!(world.broker.published(1), [1, 2, 3]);
    assert!(world.database.is_empty());
}

#[test]
fn a_row_refused_by_the_client_ends_its_batch() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 3, Refuser::Client, at(2));
    commit(&mut simulation, at(1), 0, 1..=5);
    simulation.at(ms(1200), |world| assert_eq!(world.database.rows(0), [3, 4, 5]));
    let world = simulation.run(at(5));
    assert_eq!(world.broker.published(0), [1, 2, 3, 4, 5]);
}

#[test]
fn a_row_refused_by_the_client_when_it_has_room_again_is_noted_at_once() {
    let mut simulation = alone();
    simulation.world.broker.capacity = 2;
    simulation.world.broker.refuse(0, 3, Refuser::Client, FOREVER);
    commit(&mut simulation, at(1), 0, 1..=3);
    simulation.at(ms(1200), |world| {
        assert_eq!(world.database.rows(0), [3]);
        assert_eq!(world.database.failures[&(0, 3)].failure.attempts, 1);
    });
    simulation.run(at(2));
}

#[test]
fn a_retry_that_comes_due_during_a_slow_turn_is_done_at_once() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(2));
    commit(&mut simulation, at(1), 0, [1]);
    // Bucket 0 is first in the next turn. While the others are read in vain, its retry of 2.055 s comes due.
    commit(&mut simulation, ms(1500), 7, [1]);
    let slow = Hindrance::Slow { before: ms(200) - at(0), after: secs(0) };
    simulation.world.database.hinder(Verb::Fetch, at(2)..at(3), slow);
    simulation.at(at(2), |world| world.commit(0, [], Ring::Unknown));
    let world = simulation.run(at(9));
    let published = world.broker.published_at(0, 1).expect("it is tried again");
    assert!(published < at(4), "{published:?}");
}

#[test]
fn a_slow_refusal_in_one_bucket_does_not_delay_the_retry_of_another() {
    let mut simulation = alone();
    simulation.settings.error_backoff = secs(60);
    (0..2).for_each(|bucket| simulation.world.broker.refuse(bucket, 1, Refuser::Broker, at(50)));
    commit(&mut simulation, at(1), 0, [1]);
    // Of the 60 s that bucket 0 waits 20 are left when the answer of bucket 1 is in.
    simulation.at(at(2), |world| world.broker.delay = secs(39));
    commit(&mut simulation, at(2), 1, [1]);
    let world = simulation.run(at(150));
    assert_eq!(times(&world.calls_for(Verb::Submit, 0)), [at(1), ms(61_055)]);
    assert_eq!(times(&world.calls_for(Verb::Submit, 1)), [at(2), ms(101_005)]);
    assert!(world.database.is_empty());
}

#[test]
fn a_row_refused_for_ever_keeps_its_followers() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 1, Refuser::Broker, FOREVER);
    commit(&mut simulation, at(1), 0, [1, 2]);
    let world = simulation.run(at(600));
    assert_eq!(world.database.rows(0), [1, 2]);
    assert_eq!(world.broker.published(0), [2]);
}

#[test]
fn a_late_commit_before_a_refused_row_does_not_forget_the_refusal() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 5, Refuser::Broker, FOREVER);
    commit(&mut simulation, at(1), 0, 5..=8);
    commit(&mut simulation, at(10), 0, [3]);
    simulation.at(at(9), |world| assert!(world.database.failures[&(0, 5)].failure.attempts > 2));
    let world = simulation.run(at(50));
    assert_eq!(world.broker.published(0), [6, 7, 8, 3], "the followers are not sent again");
    assert_eq!(world.broker.published_at(0, 3), Some(ms(10_005)), "it does not wait for the refused row");
    assert!(world.database.failures[&(0, 5)].failure.attempts > 4, "the count goes on");
}

#[test]
fn the_next_owner_goes_on_with_a_refused_row_where_the_last_one_stopped() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(100));
    commit(&mut simulation, at(1), 0, [1, 2, 3]);
    simulation.relay("b", at(30));
    simulation.at(at(29), |world| world.order("a", Order::Stop));
    let world = simulation.run(at(200));
    let (by_a, by_b): (Vec<_>, Vec<_>) =
        world.calls_for(Verb::Submit, 0).into_iter().partition(|call| call.relay == "a");
    let last_by_a = by_a.last().expect("it tried").at;
    assert_eq!(by_b[0].ids(), [1], "alone");
    assert!(by_b[0].at - last_by_a > secs(1), "not before its time");
    assert_eq!(world.broker.published(0), [2, 3, 1, 2, 3]);
    assert!(world.database.failures.is_empty());
}

#[test]
fn a_refusal_noted_behind_a_late_row_is_taken_over() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 5, Refuser::Broker, FOREVER);
    commit(&mut simulation, at(1), 0, [5, 6]);
    simulation.at(at(20), |world| world.order("a", Order::Stop));
    commit(&mut simulation, at(25), 0, [2]);
    simulation.relay("b", at(30));
    let world = simulation.run(at(60));
    assert_eq!(world.broker.published(0), [6, 2], "what is behind the refused row is not sent again");
    assert!(world.database.failures[&(0, 5)].failure.attempts > 3, "the count goes on");
}

#[test]
fn a_refused_row_is_retried_alone_though_reading_what_was_noted_failed_at_first() {
    let mut simulation = alone();
    simulation.world.broker.refuse(0, 1, Refuser::Broker, FOREVER);
    commit(&mut simulation, at(1), 0, [1, 2, 3]);
    simulation.relay("b", at(30));
    simulation.at(at(29), |world| world.order("a", Order::Stop));
    simulation.world.database.hinder(Verb::Failures, at(30)..at(31), Hindrance::Fails(Failing::BeforeEffect));
    let world = simulation.run(at(60));
    assert_eq!(world.broker.published(0), [2, 3], "followers are not sent again");
}

// Looking for rows ----------------------------------------------------------------------------------------------------

#[test]
fn a_late_commit_with_a_lower_id_is_published_at_once() {
    let mut simulation = alone();
    commit(&mut simulation, at(1), 0, [10]);
    commit(&mut simulation, at(3), 0, [5]);
    let world = simulation.run(at(5));
    assert_eq!(world.broker.published(0), [10, 5]);
    assert_eq!(world.broker.published_at(0, 5), Some(ms(3005)));
    assert!(world.database.is_empty());
}

#[test]
fn without_a_bell_a_commit_is_published_within_the_poll_interval() {
    for poll in [2, 10, 25] {
        let mut simulation = alone();
        simulation.settings.poll_interval = secs(poll);
        commit(&mut simulation, at(1), 0, [10]);
        simulation.at(at(31), |world| world.commit(0, [5], Ring::Silent));
        simulation.at(at(31), |world| world.commit(1, [5], Ring::Silent));
        let world = simulation.run(at(70));
        for bucket in 0..2 {
            let published = world.broker.published_at(bucket, 5).expect("it is found");
            assert!(published - at(31) <= secs(poll) + Duration::from_millis(5), "{published:?}");
            assert!(published > ms(31_005), "a bell told of it");
        }
        assert!(world.database.is_empty());
    }
}

#[test]
fn without_a_bell_a_commit_to_a_bucket_that_is_never_quiet_is_published_within_the_poll_interval() {
    let mut simulation = alone();
    simulation.world.broker.delay = ms(900) - at(0);
    for id in 100..300 {
        commit(&mut simulation, ms(500 * (id as u64 - 99)), 0, [id]);
    }
    simulation.at(at(22), |world| world.commit(0, [5], Ring::Silent));
    let world = simulation.run(at(100));
    let published = world.broker.published_at(0, 5).expect("it is found");
    assert!(published - at(22) <= secs(12), "{published:?}");
}

#[test]
fn a_batch_is_read_from_behind_the_last_one() {
    let mut simulation = alone();
    simulation.settings.batch_size = 2;
    commit(&mut simulation, at(1), 0, 1..=5);
    commit(&mut simulation, at(3), 0, [8]);
    let world = simulation.run(at(5));
    let from_0 = world.database.read_from.iter().filter(|(bucket, _)| *bucket == 0).map(|(_, after)| *after);
    assert_eq!(from_0.collect::<Vec<_>>(), [0, 0, 2, 4, 7], "the dead rows of what was removed are passed over");
}

#[test]
fn an_unknown_bell_rescans() {
    let mut simulation = alone();
    simulation.at(at(1), |world| (0..3).for_each(|bucket| world.commit(bucket, [10], Ring::Bucket)));
    simulation.at(at(3), |world| {
        world.commit(0, [5], Ring::Silent);
        world.commit(1, [6], Ring::Silent);
        world.commit(2, [7], Ring::Unknown);
    });
    let world = simulation.run(at(5));
    for (bucket, id) in [(0, 5), (1, 6), (2, 7)] {
        assert_eq!(world.broker.published_at(bucket, id), Some(ms(3005)));
    }
    assert!(world.database.is_empty());
}

#[test]
fn rows_that_commit_while_a_batch_is_in_flight_follow_it() {
    let mut simulation = alone();
    simulation.world.broker.delay = secs(1);
    commit(&mut simulation, at(1), 0, [5, 6]);
    commit(&mut simulation, ms(1500), 0, [3]);
    commit(&mut simulation, ms(1600), 0, [7]);
    let world = simulation.run(at(5));
    assert_eq!(batches(&world, 0), [vec![5, 6], vec![3, 7]]);
    assert_eq!(times(&world.calls_for(Verb::Submit, 0)), [at(1), ms(2005)]);
    assert!(world.database.is_empty());
}

#[test]
fn a_sparse_commit_is_one_fetch_and_one_acknowledgement() {
    let mut simulation = alone();
    commit(&mut simulation, at(13), 0, [1]);
    let world = simulation.run(at(25));
    assert_eq!(verbs(&world, at(12), at(19)), [Verb::Fetch, Verb::Acknowledge]);
}

#[test]
fn an_idle_relay_asks_the_store_only_to_poll_and_to_keep_its_leases() {
    let mut simulation = alone();
    simulation.settings.poll_interval = secs(7);
    let world = simulation.run(at(100));
    let calls = store_calls(&world, at(1), at(100));
    let of = |verb| calls.iter().filter(move |(_, call)| *call == verb).map(|(time, _)| *time).collect::<Vec<_>>();
    assert_eq!(of(Verb::Acquire), (1..10).map(|k| at(10 * k)).collect::<Vec<_>>());
    assert_eq!(of(Verb::Pending), (1..15).map(|k| at(7 * k)).collect::<Vec<_>>());
    assert_eq!(calls.len(), 9 + 14);
}

#[test]
fn with_nothing_to_do_the_owner_is_idle_and_the_others_stand_by() {
    let mut simulation = alone();
    simulation.world.database.bucket_count = 1;
    simulation.relay("b", at(1));
    let world = simulation.run(at(100));
    assert_eq!(waits(&world, "a", at(0), at(100)), [Wait::Idle]);
    assert_eq!(waits(&world, "b", at(0), at(100)), [Wait::Standby]);
}

#[test]
fn every_wait_says_what_it_is_for() {
    let mut simulation = alone();
    simulation.world.broker.delay = secs(2);
    simulation.world.broker.refuse(0, 2, Refuser::Broker, FOREVER);
    commit(&mut simulation, at(2), 0, [1]);
    commit(&mut simulation, at(12), 0, [2]);
    let world = simulation.run(at(18));
    let waits = waits(&world, "a", at(0), at(18));
    assert_eq!(waits[..5], [Wait::Idle, Wait::Publishing, Wait::Idle, Wait::Publishing, Wait::BackingOff]);
}

// Leases --------------------------------------------------------------------------------------------------------------

#[test]
fn an_acquisition_that_outlasts_the_lease_publishes_nothing() {
    for slow in [slow_before(31), slow_after(31), slow_after(30)] {
        let mut simulation = alone();
        simulation.world.database.hinder(Verb::Acquire, at(0)..at(100), slow);
        commit(&mut simulation, at(1), 0, [1]);
        simulation.at(at(100), |world| assert_eq!(world.calls(Verb::Submit).len(), 0));
        let world = simulation.run(at(200));
        assert_eq!(world.broker.published(0), [1]);
    }
}

#[test]
fn an_acquisition_that_is_slower_than_its_interval_still_publishes() {
    for slow in [slow_before(25), slow_after(25)] {
        let mut simulation = alone();
        simulation.world.database.hinder(Verb::Acquire, at(0)..FOREVER, slow);
        for id in 1..=30 {
            commit(&mut simulation, at(5 * id as u64), id as u32 % 3, [id]);
        }
        let world = simulation.run(at(350));
        assert!(world.database.is_empty());
        assert_eq!(world.broker.log.len(), 30, "nothing was published twice");
    }
}

#[test]
fn a_fetch_that_outlasts_the_lease_discards_the_batch() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Fetch, at(1)..at(2), slow_before(31));
    commit(&mut simulation, at(1), 0, [1, 2]);
    let world = simulation.run(at(60));
    let fetches = world.calls_for(Verb::Fetch, 0);
    let taken_again = world.calls(Verb::Acquire).iter().find(|call| call.at >= at(32)).expect("leases expired").at;
    assert_eq!(fetches[0].at, at(32));
    assert!(world.calls_for(Verb::Submit, 0)[0].at >= taken_again);
    assert_eq!(world.broker.published(0), [1, 2]);
    assert!(fetches.len() >= 2, "it was read again");
}

#[test]
fn a_sweep_that_outlasts_the_lease_renews_between_buckets() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Fetch, at(0)..FOREVER, slow_before(5));
    commit_everywhere(&mut simulation, at(1), 1);
    let world = simulation.run(at(300));
    assert!(world.database.is_empty());
    assert_eq!(world.broker.log.len(), 8, "no lease was lost on the way");
}

/// Leases so short that they are renewed between acquisitions.
const SHORT: LeaseTimes = LeaseTimes { duration: secs(12), renew_interval: secs(10) };

#[test]
fn a_publish_that_outlasts_the_lease_keeps_it_and_a_peer_gets_nothing() {
    let mut simulation = alone();
    simulation.settings.lease = SHORT;
    simulation.world.broker.delay = secs(60);
    commit_everywhere(&mut simulation, at(1), 1);
    simulation.relay("b", at(5));
    for seconds in [6, 20, 40, 61] {
        simulation.at(at(seconds), |world| {
            assert_eq!(world.database.held_by("a").len(), 8);
            assert!(!world.database.is_empty());
        });
    }
    simulation.at(at(62), |world| {
        assert!(world.database.is_empty());
        assert_eq!(world.database.held_by("b").len(), 4, "the peer gets its share once the buckets are quiet");
    });
    let world = simulation.run(at(70));
    assert_eq!(world.broker.log.len(), 8);
    let renewals = world.calls(Verb::Renew).into_iter().filter(|call| call.relay == "a" && call.at < at(61));
    assert!(renewals.count() > 4);
}

#[test]
fn when_a_renewal_is_refused_the_rows_are_kept_and_the_reports_awaited() {
    let mut simulation = alone();
    simulation.settings.lease = SHORT;
    simulation.world.broker.delay = secs(30);
    commit(&mut simulation, at(1), 0, [1, 2]);
    simulation.at(at(5), |world| world.steal(0));
    simulation.at(at(20), |world| assert!(world.database.held_by("a").contains(&0), "it is taken again"));
    simulation.at(at(33), |world| assert_eq!(world.database.rows(0), [1, 2]));
    let world = simulation.run(at(70));
    assert!(world.calls(Verb::Renew).iter().any(|call| call.at == at(6)));
    let [fetches, submits] = [Verb::Fetch, Verb::Submit].map(|verb| world.calls_for(verb, 0));
    assert_eq!(times(&submits), [at(1), ms(31_005)], "nothing is started before the reports are in");
    assert_eq!(fetches.iter().filter(|call| call.at < ms(31_005)).count(), 1);
    assert_eq!(world.broker.published(0), [1, 2, 1, 2]);
    assert!(world.database.is_empty());
}

#[test]
fn when_the_store_is_down_past_the_lease_rows_acknowledged_late_are_kept() {
    let mut simulation = alone();
    simulation.world.broker.delay = secs(35);
    commit(&mut simulation, at(1), 0, [1, 2]);
    simulation.world.database.down(at(5)..at(32));
    simulation.at(at(40), |world| assert_eq!(world.database.rows(0), [1, 2]));
    let world = simulation.run(at(120));
    let submits = world.calls_for(Verb::Submit, 0);
    assert!(submits[1].at >= ms(36_005), "nothing is started before the reports are in");
    assert_eq!(world.broker.published(0), [1, 2, 1, 2]);
    assert!(world.database.is_empty());
}

#[test]
fn rows_are_kept_when_a_call_between_their_reports_and_their_removal_outlasts_the_lease() {
    for (verb, slow) in
        [(Verb::Failures, slow_before(31)), (Verb::Failures, slow_after(31)), (Verb::Renew, slow_after(15))]
    {
        let mut simulation = alone();
        if verb == Verb::Renew {
            simulation.settings.lease = SHORT;
        }
        commit(&mut simulation, at(1), 0, [1]);
        // Renewal is due, and noted failures are to be read anew, at the moment of the report.
        simulation.world.broker.delay = at(6) - ms(1005);
        simulation.world.database.hinder(verb, at(6)..at(7), slow);
        if verb == Verb::Failures {
            simulation.at(at(6), |world| world.order("a", Order::LookAgain));
        }
        let world = simulation.run(at(100));
        assert_eq!(world.broker.published(0), [1, 1], "{verb:?}");
        assert!(world.database.is_empty());
    }
}

#[test]
fn when_the_store_is_back_within_the_confirmed_lease_acknowledged_rows_are_removed() {
    let mut simulation = alone();
    simulation.world.broker.delay = secs(10);
    commit(&mut simulation, at(1), 0, [1, 2]);
    simulation.world.database.down(at(9)..at(14));
    simulation.at(at(14), |world| assert!(!world.database.is_empty()));
    simulation.at(at(25), |world| assert!(world.database.is_empty()));
    let world = simulation.run(at(60));
    assert!(world.calls(Verb::Acquire).iter().any(|call| !call.answered));
    assert_eq!(world.broker.published(0), [1, 2]);
}

#[test]
fn a_long_backlog_renews_between_its_batches() {
    let mut simulation = alone();
    simulation.settings.lease = SHORT;
    simulation.settings.batch_size = 1;
    simulation.world.broker.delay = secs(1);
    commit(&mut simulation, at(1), 0, 1..=60);
    let world = simulation.run(at(70));
    assert_eq!(world.broker.published(0), (1..=60).collect::<Vec<_>>());
    assert_eq!(world.database.tokens(), [1; 8]);
    assert!(world.database.is_empty());
}

#[test]
fn a_renewal_does_not_postpone_the_next_look_at_the_fair_share() {
    let mut simulation = alone();
    simulation.settings.lease = SHORT;
    let world = simulation.run(at(25));
    assert_eq!(times_of(&world, Verb::Renew), [at(6), at(16)]);
    assert_eq!(times_of(&world, Verb::Acquire), [at(0), at(10), at(20)]);
}

#[test]
fn a_fetch_that_leaves_little_of_the_lease_is_published_and_the_lease_kept_at_once() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Fetch, at(1)..at(2), slow_before(25));
    commit(&mut simulation, at(1), 0, [1]);
    let world = simulation.run(at(29));
    assert_eq!(world.calls_for(Verb::Fetch, 0).len(), 1);
    assert_eq!(times_of(&world, Verb::Submit), [at(26)]);
    assert_eq!(times_of(&world, Verb::Acquire), [at(0), at(26)]);
    assert!(world.database.is_empty());
}

#[test]
fn when_a_renewal_is_answered_after_the_lease_had_ended_the_rows_are_kept() {
    let mut simulation = alone();
    simulation.settings.lease = SHORT;
    simulation.world.broker.delay = secs(9);
    // Asked at 6 s, answered at 14 s, two seconds after the lease would have ended without it.
    simulation.world.database.hinder(Verb::Renew, at(6)..at(7), slow_after(8));
    commit(&mut simulation, at(1), 0, [1]);
    let world = simulation.run(at(60));
    let published: Vec<_> = world.broker.log.iter().map(|row| row.at).collect();
    assert_eq!(published, [ms(1005), ms(15_005)], "once more after the wait of a failure");
    assert_eq!(times_of(&world, Verb::Acknowledge), [ms(24_005)]);
    assert!(world.database.is_empty());
}

#[test]
fn a_failed_lease_write_suspends_publishing() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Acquire, at(9)..at(15), Hindrance::Fails(Failing::BeforeEffect));
    commit(&mut simulation, ms(10_500), 0, [1]);
    let world = simulation.run(at(30));
    let acquired = world.calls(Verb::Acquire).into_iter().find(|call| call.at > at(10) && call.answered);
    assert_eq!(world.calls(Verb::Submit)[0].at, acquired.expect("it is up again").at);
}

#[test]
fn after_a_failed_renewal_leases_are_acquired_and_not_only_renewed() {
    let mut simulation = alone();
    simulation.settings.lease = SHORT;
    simulation.world.database.hinder(Verb::Renew, at(6)..at(7), Hindrance::Fails(Failing::BeforeEffect));
    let world = simulation.run(at(9));
    let calls = world.calls.iter().filter(|call| matches!(call.verb, Verb::Acquire | Verb::Renew));
    assert_eq!(calls.map(|call| call.verb).collect::<Vec<_>>(), [Verb::Acquire, Verb::Renew, Verb::Acquire]);
}

#[test]
fn an_acknowledgement_under_another_token_is_refused_and_the_rows_kept() {
    let mut simulation = alone();
    simulation.world.broker.delay = secs(2);
    commit(&mut simulation, at(1), 0, [1, 2]);
    simulation.at(at(2), |world| world.steal(0));
    simulation.at(at(5), |world| assert_eq!(world.database.rows(0), [1, 2]));
    let world = simulation.run(at(60));
    assert_eq!(world.calls_for(Verb::Acknowledge, 0)[0].at, ms(3005));
    assert!(times_of(&world, Verb::Acquire).contains(&ms(3005)), "it looks at its leases at once");
    assert_eq!(world.broker.published(0), [1, 2, 1, 2]);
    assert!(world.calls_for(Verb::Submit, 0)[1].at >= at(32), "the stranger's lease was respected");
    assert!(world.database.is_empty());
}

#[test]
fn a_lost_lease_gives_up_what_is_only_queued() {
    let mut simulation = alone();
    simulation.world.broker.away = Some(at(0)..at(21));
    commit(&mut simulation, at(1), 0, [1]);
    simulation.at(at(5), |world| world.steal(0));
    let world = simulation.run(at(60));
    assert_eq!(world.broker.published(0), [1]);
    assert!(world.broker.log[0].at >= at(35), "not while the bucket was the stranger's");
}

#[test]
fn a_lease_that_expires_while_the_relay_backs_off_gives_up_what_is_only_queued() {
    let mut simulation = alone();
    commit(&mut simulation, at(1), 0, [1]);
    simulation.world.broker.away = Some(at(0)..ms(30_001));
    simulation.world.database.down(at(5)..at(60));
    simulation.at(at(59), |world| assert_eq!(world.broker.published(0), NONE));
    let world = simulation.run(at(90));
    assert_eq!(world.broker.published(0), [1]);
}

#[test]
fn a_longer_lease_counts_only_from_the_next_acquisition() {
    let mut simulation = alone();
    let mut longer = simulation.settings.clone();
    longer.lease = LeaseTimes { duration: secs(300), renew_interval: secs(100) };
    simulation.at(at(5), move |world| world.reload(&longer));
    commit(&mut simulation, at(40), 0, [1]);
    let world = simulation.run(at(60));
    assert_eq!(world.broker.published_at(0, 1), Some(ms(40_005)));
}

#[test]
fn a_shorter_poll_interval_counts_at_once() {
    let mut simulation = alone();
    simulation.settings.poll_interval = secs(1000);
    let mut shorter = simulation.settings.clone();
    shorter.poll_interval = secs(2);
    simulation.at(at(12), move |world| world.reload(&shorter));
    simulation.at(at(13), |world| world.commit(0, [1], Ring::Silent));
    let world = simulation.run(at(20));
    assert!(world.broker.published_at(0, 1).is_some());
}

// Failures of the store -----------------------------------------------------------------------------------------------

#[test]
fn a_failed_fetch_keeps_the_leases() {
    for failing in [Failing::BeforeEffect, Failing::AfterEffect] {
        let mut simulation = alone();
        simulation.world.database.hinder(Verb::Fetch, at(1)..at(3), Hindrance::Fails(failing));
        commit(&mut simulation, at(1), 0, [1, 2]);
        let world = simulation.run(at(9));
        assert_eq!(world.broker.published(0), [1, 2]);
        assert_eq!(world.database.tokens(), [1; 8]);
        assert_eq!(times_of(&world, Verb::Acquire), [at(0)]);
    }
}

#[test]
fn a_failed_acknowledgement_keeps_the_leases_and_is_retried_without_publishing_again() {
    for failing in [Failing::BeforeEffect, Failing::AfterEffect] {
        let mut simulation = alone();
        simulation.world.database.hinder(Verb::Acknowledge, at(1)..at(3), Hindrance::Fails(failing));
        commit(&mut simulation, at(1), 0, [1, 2]);
        let world = simulation.run(at(9));
        assert!(world.calls(Verb::Acknowledge).len() > 1);
        assert_eq!(world.broker.published(0), [1, 2]);
        assert!(world.database.is_empty());
        assert_eq!(world.database.tokens(), [1; 8]);
        assert_eq!(times_of(&world, Verb::Acquire), [at(0)]);
    }
}

#[test]
fn a_failed_look_for_rows_keeps_the_leases() {
    let mut simulation = alone();
    let fails = Hindrance::Fails(Failing::BeforeEffect);
    simulation.world.database.hinder(Verb::Pending, at(10)..at(14), fails);
    simulation.at(at(9), |world| world.commit(0, [1], Ring::Silent));
    let world = simulation.run(at(19));
    assert_eq!(times_of(&world, Verb::Acquire), [at(0), at(10)]);
    assert_eq!(world.database.tokens(), [1; 8]);
    assert!(world.database.is_empty());
}

#[test]
fn a_call_that_an_order_interrupts_is_no_failure() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Fetch, at(1)..at(2), Hindrance::Interrupted { after: secs(5) });
    commit(&mut simulation, at(1), 0, [1]);
    let mut other = simulation.settings.clone();
    other.batch_size = 7;
    simulation.at(at(6), move |world| world.reload(&other));
    let world = simulation.run(at(9));
    assert_eq!(world.broker.published_at(0, 1), Some(ms(6005)), "it is read again at once");
    assert!(world.rests.iter().all(|rest| rest.wait != Wait::BackingOff));
}

#[test]
fn a_stop_that_interrupts_a_call_is_a_graceful_one() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Fetch, at(1)..at(2), Hindrance::Interrupted { after: secs(5) });
    commit(&mut simulation, at(1), 0, [1]);
    let world = simulation.run(at(6));
    assert_eq!(world.ended["a"], (at(6), Ended::Stopped));
    assert!(world.database.held_by("a").is_empty());
    assert_eq!(world.database.rows(0), [1]);
}

#[test]
fn waits_after_failures_end_in_time_to_keep_the_leases() {
    let mut simulation = alone();
    // Waits may grow to nearly what a lease lasts.
    simulation.settings.lease = LeaseTimes { duration: secs(30), renew_interval: secs(29) };
    simulation.world.database.hinder(Verb::Acknowledge, at(1)..at(600), Hindrance::Fails(Failing::BeforeEffect));
    commit(&mut simulation, at(1), 0, [1]);
    simulation.relay("b", at(5));
    let world = simulation.run(at(700));
    let kept: Vec<_> = world.calls.iter().filter(|call| call.relay == "a" && call.answered).collect();
    let kept = kept.into_iter().filter(|call| matches!(call.verb, Verb::Acquire | Verb::Renew));
    for pair in times(&kept.collect::<Vec<_>>()).windows(2) {
        assert!(pair[1] - pair[0] <= secs(17), "no lease was kept from {:?} to {:?}", pair[0], pair[1]);
    }
    assert_eq!(world.database.tokens()[0], 1);
    assert_eq!(world.broker.published(0), [1]);
    assert!(world.database.is_empty());
}

/// When calls of this kind failed.
fn failures(world: &World, verb: Verb) -> Vec<Time> {
    times(&world.calls(verb).into_iter().filter(|call| !call.answered).collect::<Vec<_>>())
}

#[test]
fn waits_after_failures_lie_in_their_bounds_and_no_bell_cuts_them_short() {
    for verb in [Verb::Fetch, Verb::Acknowledge] {
        let mut simulation = alone();
        simulation.world.database.hinder(verb, at(1)..at(180), Hindrance::Fails(Failing::BeforeEffect));
        for id in 1..400 {
            commit(&mut simulation, ms(500 + 500 * id as u64), 0, [id]);
        }
        let world = simulation.run(at(199));
        let failures = failures(&world, verb);
        let waits: Vec<_> = failures.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(waits[0], secs(1));
        for (k, wait) in (1u32..).zip(&waits) {
            let ceiling = secs(10).min(secs(1) * 2u32.pow((k - 1).min(10)));
            assert!(secs(1) <= *wait && *wait <= ceiling, "wait {k} is {wait:?}");
        }
        assert!(waits.iter().any(|wait| *wait > secs(4)), "waits grow");
        assert!(waits.iter().collect::<BTreeSet<_>>().len() > 8, "waits are spread");
        let backing_off = world.rests.iter().filter(|rest| rest.wait == Wait::BackingOff);
        assert!(backing_off.clone().count() > 2 * waits.len(), "bells did ring");
        // A wait that was kept ends where it was said to end.
        let ends: BTreeSet<_> = backing_off.map(|rest| rest.until).collect();
        assert!(failures[1..].iter().all(|time| ends.contains(time)));
    }
}

#[test]
fn waits_begin_anew_after_a_turn_that_worked() {
    for verb in [Verb::Fetch, Verb::Acknowledge] {
        let mut simulation = alone();
        for from in [at(1), at(30)] {
            simulation.world.database.hinder(verb, from..from + secs(20), Hindrance::Fails(Failing::BeforeEffect));
            commit(&mut simulation, from, 0, [1]);
        }
        let failures = failures(&simulation.run(at(80)), verb);
        let first = failures.iter().position(|time| *time >= at(30)).expect("it failed again");
        assert!(failures[first - 1] - failures[first - 2] > secs(1), "waits had grown");
        assert_eq!(failures[first + 1] - failures[first], secs(1));
    }
}

#[test]
fn a_bucket_that_cannot_be_read_slows_the_others_by_no_more_than_the_first_wait() {
    let mut simulation = alone();
    simulation.world.database.damaged = Some(3);
    commit(&mut simulation, at(1), 3, [1]);
    for id in 1..100 {
        commit(&mut simulation, ms(1000 * id as u64), 5, [id]);
    }
    let world = simulation.run(at(120));
    for id in 1..100 {
        let published = world.broker.published_at(5, id).expect("it is published");
        assert!(published - ms(1000 * id as u64) <= secs(2), "row {id} at {published:?}");
    }
    let tries = times(&world.calls_for(Verb::Fetch, 3));
    assert!(tries.windows(2).all(|pair| pair[1] - pair[0] <= secs(11)), "it is tried again and again");
    assert!(tries.iter().filter(|time| **time > at(20)).count() < 50, "but less and less often");
    assert_eq!(waits(&world, "a", at(101), at(119)), [Wait::BackingOff]);
}

#[test]
fn a_relay_that_must_leave_leaves_at_once() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Pending, at(10)..FOREVER, Hindrance::Gone);
    let world = simulation.run(at(60));
    assert_eq!(world.ended["a"], (at(10), Ended::Left("the store is gone".to_owned())));
    assert_eq!(times_of(&world, Verb::Purge), [at(10)]);
}

// Failures of the broker ----------------------------------------------------------------------------------------------

#[test]
fn an_outage_of_an_hour_loses_nothing_and_ends_at_once() {
    const BATCH: usize = 20_000;
    let mut simulation = alone();
    simulation.settings.batch_size = BATCH;
    let back = at(3610);
    simulation.world.broker.away = Some(at(10)..back);
    simulation.at(at(11), |world| ALL.for_each(|bucket| world.commit(bucket, 1..=BATCH as i64, Ring::Bucket)));
    for minute in 1..=60 {
        commit_everywhere(&mut simulation, at(60 * minute), BATCH as i64 + minute as i64);
    }
    simulation.at(back + secs(2), |world| assert!(world.database.is_empty()));
    let world = simulation.run(at(3620));
    for bucket in ALL {
        assert_eq!(world.broker.published(bucket), (1..=BATCH as i64 + 60).collect::<Vec<_>>(), "once and in order");
    }
    assert_eq!(world.broker.log[0].at, back);
    assert_eq!(waits(&world, "a", at(20), back), [Wait::Broker]);
    assert_eq!(waits(&world, "a", back, at(3620)).last(), Some(&Wait::Idle));
    assert_eq!(world.database.tokens(), [1; 8], "leases were kept all the time");
    let most = world.client("a").most_rows;
    assert!((window::ROWS_MAX..window::ROWS_MAX + BATCH).contains(&most), "{most} rows in flight");
}

#[test]
fn a_retry_that_is_due_rests_while_the_window_is_full() {
    const BATCH: usize = 20_000;
    let mut simulation = alone();
    simulation.settings.batch_size = BATCH;
    simulation.world.broker.refuse(0, 1, Refuser::Broker, at(90));
    simulation.world.broker.away = Some(ms(1100)..at(100));
    commit(&mut simulation, at(1), 0, [1]);
    simulation.at(ms(1200), |world| (1..8).for_each(|bucket| world.commit(bucket, 1..=BATCH as i64, Ring::Bucket)));
    let world = simulation.run(at(120));
    assert!(world.client("a").most_rows >= window::ROWS_MAX);
    assert!(world.database.is_empty());
}

#[test]
fn giving_up_rows_is_no_sign_of_life_of_the_broker() {
    let mut simulation = alone();
    simulation.world.broker.away = Some(ms(1020)..at(200));
    // Of bucket 0 a row was sent, of bucket 1 one is queued and given up.
    commit(&mut simulation, at(1), 0, [1]);
    commit(&mut simulation, at(2), 1, [1]);
    simulation.at(at(12), |world| world.steal(1));
    let world = simulation.run(at(300));
    assert!(world.calls(Verb::Purge).iter().any(|call| call.at == at(20)));
    assert_eq!(waits(&world, "a", at(8), at(200)), [Wait::Broker]);
}

// Stopping ------------------------------------------------------------------------------------------------------------

#[test]
fn a_graceful_stop_gives_up_awaits_acknowledges_and_releases_in_this_order() {
    let mut simulation = alone();
    simulation.world.broker.linger = ms(500) - at(0);
    simulation.world.broker.delay = secs(1);
    // Bucket 0 has been sent when the stop comes, bucket 1 is still queued.
    commit(&mut simulation, at(1), 0, [1, 2]);
    commit(&mut simulation, ms(1800), 1, [3]);
    let world = simulation.run(at(2));
    let mut calls: Vec<_> = world.calls.iter().filter(|call| call.at >= at(2)).map(|call| call.verb).collect();
    calls.dedup();
    assert_eq!(calls, [Verb::Purge, Verb::Acknowledge, Verb::Release, Verb::CallPeers]);
    assert_eq!(waits(&world, "a", at(2), at(9)), [Wait::Stopping]);
    assert_eq!(world.ended["a"], (ms(2500), Ended::Stopped));
    assert_eq!(world.database.rows(0), NONE);
    assert_eq!(world.database.rows(1), [3]);
    assert_eq!(world.broker.published(1), NONE);
    assert!(world.database.held_by("a").is_empty());
}

#[test]
fn a_stop_while_the_broker_is_away_ends_in_time_and_does_not_release_what_may_still_be_published() {
    let mut simulation = alone();
    simulation.world.broker.away = Some(ms(1020)..at(1000));
    commit(&mut simulation, at(1), 0, [1]);
    let world = simulation.run(at(5));
    assert!(world.ended["a"].0 <= at(8));
    assert!(world.calls(Verb::Release).is_empty());
    assert_eq!(world.database.held_by("a").len(), 8);
    assert_eq!(world.database.rows(0), [1]);
}

#[test]
fn a_stop_while_the_broker_is_away_gives_up_what_is_queued_and_releases() {
    let mut simulation = alone();
    simulation.world.broker.away = Some(at(0)..at(1000));
    commit(&mut simulation, at(1), 0, [1]);
    let world = simulation.run(at(5));
    assert_eq!(world.ended["a"], (at(5), Ended::Stopped));
    assert!(world.database.held_by("a").is_empty());
    assert_eq!((world.broker.published(0), world.database.rows(0)), (vec![], vec![1]));
}

#[test]
fn a_stop_does_not_wait_for_rows_that_the_client_had_no_room_for() {
    let mut simulation = alone();
    simulation.world.broker.capacity = 2;
    simulation.world.broker.delay = secs(1);
    commit(&mut simulation, at(1), 0, 1..=5);
    let world = simulation.run(ms(1500));
    assert_eq!(world.ended["a"].0, ms(2005));
    assert_eq!((world.broker.published(0), world.database.rows(0)), (vec![1, 2], vec![3, 4, 5]));
    assert!(world.database.held_by("a").is_empty());
}

#[test]
fn a_stop_before_the_first_acquisition_releases_nothing() {
    let world = alone().run(at(0));
    assert_eq!(world.ended["a"], (at(0), Ended::Stopped));
    assert_eq!(store_calls(&world, at(0), FOREVER), []);
}

#[test]
fn a_stop_releases_what_an_acquisition_took_whose_answer_was_lost() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Acquire, at(0)..FOREVER, Hindrance::Fails(Failing::AfterEffect));
    simulation.at(at(4), |world| assert_eq!(world.database.held_by("a").len(), 8));
    let world = simulation.run(at(5));
    assert!(world.database.held_by("a").is_empty());
}

#[test]
fn a_stop_releases_though_the_last_acknowledgement_failed() {
    let mut simulation = alone();
    simulation.world.broker.delay = secs(1);
    simulation.world.database.hinder(Verb::Acknowledge, at(0)..FOREVER, Hindrance::Fails(Failing::BeforeEffect));
    commit(&mut simulation, at(1), 0, [1]);
    let world = simulation.run(ms(1500));
    assert_eq!(world.ended["a"].0, ms(2005));
    assert_eq!(world.database.rows(0), [1]);
    assert!(world.database.held_by("a").is_empty());
}

#[test]
fn a_stop_that_outlasts_the_lease_keeps_rows_acknowledged_late() {
    let mut simulation = alone();
    simulation.world.broker.delay = ms(29_200) - at(0);
    simulation.world.database.hinder(Verb::Acquire, at(5)..FOREVER, Hindrance::Fails(Failing::BeforeEffect));
    commit(&mut simulation, at(1), 0, [1]);
    let world = simulation.run(at(28));
    assert_eq!(world.ended["a"].0, ms(30_205));
    assert!(world.calls(Verb::Acknowledge).is_empty());
    assert_eq!(world.database.rows(0), [1]);
}

#[test]
fn a_failed_release_does_not_keep_a_relay_from_stopping() {
    let mut simulation = alone();
    simulation.world.database.hinder(Verb::Release, at(0)..FOREVER, Hindrance::Fails(Failing::BeforeEffect));
    let world = simulation.run(at(5));
    assert_eq!(world.ended["a"], (at(5), Ended::Stopped));
    assert_eq!(world.calls(Verb::Release).len(), 1);
}

// Several relays ------------------------------------------------------------------------------------------------------

/// How many buckets each of the relays holds.
fn holdings(world: &World) -> BTreeMap<&'static str, usize> {
    ["a", "b", "c"].into_iter().map(|relay| (relay, world.database.held_by(relay).len())).collect()
}

#[test]
fn two_relays_share_evenly_and_both_publish() {
    let mut simulation = alone();
    simulation.relay("b", at(0));
    simulation.at(at(1), |world| assert_eq!(holdings(world), [("a", 4), ("b", 4), ("c", 0)].into()));
    commit_everywhere(&mut simulation, at(2), 1);
    let world = simulation.run(at(5));
    assert!(world.database.is_empty());
    assert_eq!(world.broker.log.len(), 8);
    assert_eq!(world.broker.log.iter().filter(|row| row.relay == "b").count(), 4);
}

#[test]
fn a_joiner_gets_its_share_at_once() {
    let mut simulation = alone();
    simulation.relay("b", at(23));
    simulation.relay("c", at(44));
    simulation.at(at(22), |world| assert_eq!(holdings(world), [("a", 8), ("b", 0), ("c", 0)].into()));
    simulation.at(at(24), |world| assert_eq!(holdings(world), [("a", 4), ("b", 4), ("c", 0)].into()));
    simulation.at(at(45), |world| assert_eq!(holdings(world), [("a", 3), ("b", 3), ("c", 2)].into()));
    simulation.run(at(50));
}

#[test]
fn a_busy_bucket_above_the_share_is_handed_back_only_when_quiet() {
    let mut simulation = alone();
    simulation.world.broker.delay = secs(45);
    commit_everywhere(&mut simulation, at(1), 1);
    simulation.relay("b", at(5));
    commit_everywhere(&mut simulation, at(10), 2);
    simulation.at(at(46), |world| assert_eq!(holdings(world), [("a", 8), ("b", 0), ("c", 0)].into()));
    simulation.at(ms(46_010), |world| assert_eq!(holdings(world), [("a", 4), ("b", 4), ("c", 0)].into()));
    let world = simulation.run(at(100));
    assert!(world.database.is_empty());
    assert_eq!(world.broker.log.len(), 16, "nothing was published twice");
    let by_b = world.broker.log.iter().filter(|row| row.relay == "b");
    assert_eq!(
        by_b.map(|row| (row.id, row.at)).collect::<Vec<_>>(),
        [(2, ms(46_010)); 4],
        "the rest went to b at once"
    );
}

#[test]
fn the_buckets_of_a_relay_that_leaves_are_taken_over_at_once() {
    let mut simulation = alone();
    simulation.relay("b", at(0));
    simulation.at(at(53), |world| world.order("a", Order::Stop));
    simulation.at(ms(53_001), |world| assert_eq!(holdings(world), [("a", 0), ("b", 8), ("c", 0)].into()));
    commit_everywhere(&mut simulation, ms(53_100), 1);
    let world = simulation.run(at(60));
    assert!(world.broker.log.iter().all(|row| (row.relay.as_str(), row.at) == ("b", ms(53_105))));
    assert_eq!(world.broker.log.len(), 8);
}

#[test]
fn a_settled_fleet_changes_no_lease() {
    let mut simulation = alone();
    simulation.relay("b", at(1));
    simulation.relay("c", at(2));
    for second in 5..300 {
        commit_everywhere(&mut simulation, at(second), second as i64);
    }
    simulation.at(at(20), |world| {
        let settled = world.database.tokens();
        world.schedule(at(300), move |world| assert_eq!(world.database.tokens(), settled));
    });
    let world = simulation.run(at(301));
    let moves = world.calls.iter().filter(|call| matches!(call.verb, Verb::HandBack | Verb::CallPeers | Verb::Release));
    assert_eq!(moves.filter(|call| (at(20)..at(301)).contains(&call.at)).count(), 0);
}

#[test]
fn a_first_wait_longer_than_a_lease_costs_no_lease() {
    let mut simulation = alone();
    simulation.settings.error_backoff = secs(600);
    simulation.world.database.hinder(Verb::Acknowledge, at(1)..at(5), Hindrance::Fails(Failing::BeforeEffect));
    commit(&mut simulation, at(1), 0, 1..=3);
    let world = simulation.run(at(40));
    assert!(world.database.is_empty());
    assert_eq!(world.broker.published(0), [1, 2, 3], "no lease was lost");
}
