//! What refused messages and troubled topics hold up, and what becomes of them.

use crate::simulate::{LETTERS, Label, Trouble};

use super::*;

fn label(topic: &'static str, key: u8) -> Label {
    Label { topic, key: Some(key) }
}

/// Rows of these topics and keys, with ids from 1 on.
fn labelled(simulation: &mut Simulation, bucket: Bucket, labels: &[Label]) {
    for (id, label) in (1..).zip(labels) {
        simulation.world.database.label(bucket, id, *label);
    }
}

const EVENTS: [Label; 6] = {
    let [a, b] = [Label { topic: "events", key: Some(1) }, Label { topic: "events", key: Some(2) }];
    [a, b, a, b, a, b]
};

/// Rows 1, 3, 5 of one key and 2, 4, 6 of another; row 1 is refused.
fn a_key_refused_until(until: Time) -> Simulation {
    let mut simulation = alone();
    labelled(&mut simulation, 0, &EVENTS);
    simulation.world.broker.refuse(0, 1, Refuser::Broker, until);
    commit(&mut simulation, at(1), 0, 1..=6);
    simulation
}

fn published_times(world: &World, id: i64) -> usize {
    world.broker.published(0).iter().filter(|row| **row == id).count()
}

#[test]
fn a_refused_row_holds_up_its_key_and_nothing_else() {
    let mut simulation = a_key_refused_until(FOREVER);
    commit(&mut simulation, at(3), 0, [7]);
    simulation.world.database.label(0, 7, label("events", 2));
    let world = simulation.run(at(20));
    assert_eq!(world.database.rows(0), [1, 3, 5]);
    assert_eq!(world.broker.published_at(0, 7), Some(ms(3005)), "at once");
    assert_eq!(published_times(&world, 2), 1, "removed behind a refused row of another key, and not sent again");
}

#[test]
fn what_waits_behind_a_refused_row_follows_it_in_order() {
    let world = a_key_refused_until(at(4)).run(at(40));
    assert!(world.database.is_empty() && world.database.failures.is_empty());
    let sent: Vec<i64> = world.broker.published(0).into_iter().filter(|id| id % 2 == 1).collect();
    assert_eq!(sent[sent.len() - 3..], [1, 3, 5]);
}

#[test]
fn a_message_is_parked_after_attempts_and_time_and_is_not_tried_again() {
    let mut simulation = a_key_refused_until(FOREVER);
    simulation.settings.patience = Patience { max_attempts: 3, park_patience: secs(0) };
    let world = simulation.run(at(100));
    let noted = &world.database.failures[&(0, 1)].failure;
    assert_eq!((noted.attempts, noted.wait), (3, None));
    let tries = world.calls_for(Verb::Submit, 0).iter().filter(|call| call.ids().contains(&1)).count();
    assert_eq!(tries, 3);
    assert_eq!(world.database.rows(0), [1, 3, 5]);
}

#[test]
fn a_parked_message_stays_parked_with_the_next_owner_until_an_operator_acts() {
    let mut simulation = a_key_refused_until(at(50));
    simulation.settings.patience = Patience { max_attempts: 1, park_patience: secs(0) };
    simulation.at(at(20), |world| world.order("a", Order::Stop));
    simulation.relay("b", at(25));
    simulation.at(at(60), |world| {
        assert_eq!(world.database.rows(0), [1, 3, 5]);
        let now = world.database_now();
        assert!(world.database.retry_all(now));
        world.order("b", Order::LookAgain);
    });
    let world = simulation.run(at(62));
    assert!(world.database.is_empty() && world.database.failures.is_empty());
}

#[test]
fn a_message_whose_parking_could_not_be_noted_is_tried_again_and_noted_then() {
    let mut simulation = a_key_refused_until(FOREVER);
    simulation.settings.patience = Patience { max_attempts: 1, park_patience: secs(0) };
    simulation.world.database.hinder(Verb::NoteFailures, at(1)..at(3), Hindrance::Fails(Failing::BeforeEffect));
    let world = simulation.run(at(20));
    assert_eq!(world.database.failures[&(0, 1)].failure.wait, None, "an operator sees that it is parked");
}

#[test]
fn a_row_that_an_operator_removes_or_moves_while_it_is_on_its_way_holds_up_nobody_when_it_is_refused() {
    for max_attempts in [1, 2, 3] {
        let slow = || {
            let mut simulation = a_key_refused_until(FOREVER);
            simulation.world.broker.delay = secs(1);
            simulation.settings.patience = Patience { max_attempts, park_patience: secs(0) };
            simulation
        };
        let world = slow().run(at(30));
        let tries = world.calls_for(Verb::Submit, 0);
        let last = tries.iter().rfind(|call| call.ids().contains(&1)).expect("it was tried").at;

        let mut simulation = slow();
        simulation.at(last + Duration::from_millis(500), |world| {
            world.database.skip(0, 1);
            world.order("a", Order::LookAgain);
        });
        let world = simulation.run(last + secs(8));
        assert!(world.database.is_empty() && world.database.failures.is_empty(), "removed, {max_attempts} attempts");

        let mut simulation = slow();
        simulation.at(last + Duration::from_millis(500), |world| {
            world.database.label(0, 1, label("elsewhere", 1));
            world.database.failures.remove(&(0, 1));
            world.order("a", Order::LookAgain);
        });
        let world = simulation.run(last + secs(8));
        assert_eq!(world.database.rows(0), [1], "the others of its key went on, {max_attempts} attempts");
    }
}

/// Rows 1 and 3 are of a topic with trouble until 4, rows 2 and 4 of another.
fn a_topic_in_trouble(trouble: Trouble) -> Simulation {
    let mut simulation = alone();
    labelled(&mut simulation, 0, &[label("late", 1), label("events", 1), label("late", 2), label("events", 2)]);
    simulation.world.trouble("late", trouble, at(4));
    commit(&mut simulation, at(1), 0, 1..=4);
    simulation
}

#[test]
fn a_topic_that_is_late_with_its_answers_is_set_aside_and_followed_in_order() {
    let mut simulation = a_topic_in_trouble(Trouble::Silent);
    for (id, topic) in [(5, "events"), (6, "late"), (7, "late")] {
        simulation.world.database.label(0, id, label(topic, 1));
    }
    commit(&mut simulation, at(2), 0, 5..=7);
    simulation.at(at(3), |world| assert_eq!(world.database.rows(0), [1, 3, 6, 7], "the others are removed"));
    let world = simulation.run(at(20));
    assert!(world.database.is_empty() && world.database.failures.is_empty());
    assert_eq!(world.broker.published(0), [2, 4, 5, 1, 3, 6, 7], "in order, and nothing twice");
    assert!(world.broker.published_at(0, 5).expect("it is published") < ms(2100));
    assert!(world.broker.published_at(0, 7).expect("it is published") < ms(4200), "at once when the topic answers");
}

#[test]
fn a_late_commit_to_a_topic_that_was_set_aside_waits_for_it() {
    let mut simulation = alone();
    let labels = [label("late", 1), label("late", 1), label("events", 1)];
    labelled(&mut simulation, 0, &labels);
    simulation.world.trouble("late", Trouble::Silent, at(4));
    commit(&mut simulation, at(1), 0, 2..=3);
    commit(&mut simulation, at(2), 0, [1]);
    let world = simulation.run(at(20));
    assert_eq!(world.broker.published(0), [3, 2, 1]);
    assert!(world.database.is_empty());
}

#[test]
fn a_topic_whose_policy_is_to_block_is_not_set_aside() {
    let mut simulation = a_topic_in_trouble(Trouble::Silent);
    simulation.world.database.rules.insert("late".to_owned(), rule(Policy::Block));
    simulation.world.database.label(0, 5, label("events", 1));
    commit(&mut simulation, at(2), 0, [5]);
    let world = simulation.run(at(20));
    assert!(world.broker.published_at(0, 5).expect("it is published") >= at(4));
}

#[test]
fn what_was_set_aside_goes_on_topic_by_topic() {
    let mut simulation = alone();
    let labels = [label("dead", 1), label("late", 1), label("events", 1), label("events", 2), label("late", 1)];
    labelled(&mut simulation, 0, &labels);
    simulation.world.trouble("dead", Trouble::Silent, at(9));
    simulation.world.trouble("late", Trouble::Silent, at(2));
    commit(&mut simulation, at(1), 0, 1..=4);
    commit(&mut simulation, at(3), 0, [5]);
    let world = simulation.run(at(20));
    assert_eq!(world.broker.published(0), [3, 4, 2, 5, 1]);
    assert!(world.broker.published_at(0, 5).expect("it is published") < ms(3100), "it does not wait for the dead one");
    assert!(world.database.is_empty());
}

#[test]
fn a_bucket_that_leaves_waits_for_a_topic_that_is_merely_late() {
    let mut simulation = alone();
    for bucket in ALL {
        labelled(&mut simulation, bucket, &[label("late", 1), label("events", 1)]);
        commit(&mut simulation, at(1), bucket, 1..=2);
    }
    simulation.world.trouble("late", Trouble::Silent, at(2));
    simulation.relay("b", ms(1500));
    let world = simulation.run(at(30));
    assert!(world.database.is_empty());
    assert!(times_of(&world, Verb::Purge).iter().all(|time| *time >= at(30)), "nothing is called back before the end");
    assert!(!times_of(&world, Verb::HandBack).is_empty());
}

#[test]
fn a_row_refused_at_once_blocks_its_bucket_where_that_is_its_topics_policy() {
    let mut simulation = alone();
    labelled(&mut simulation, 0, &[label("events", 1), label("free", 1)]);
    simulation.world.database.rules.insert("events".to_owned(), rule(Policy::Block));
    simulation.world.broker.refuse(0, 1, Refuser::Client, at(10));
    commit(&mut simulation, at(1), 0, 1..=2);
    let world = simulation.run(at(60));
    assert_eq!(world.broker.published(0), [1, 2]);
}

#[test]
fn what_was_set_aside_is_called_back_from_a_bucket_that_leaves() {
    let mut simulation = a_topic_in_trouble(Trouble::Silent);
    simulation.world.trouble("late", Trouble::Silent, at(60));
    simulation.relay("b", at(10));
    simulation.relay("c", at(10));
    let world = simulation.run(at(90));
    assert!(world.database.is_empty());
    let of_a: Vec<i64> = world.broker.published(0).into_iter().filter(|id| id % 2 == 1).collect();
    assert_eq!(of_a, [1, 3], "once");
}

#[test]
fn an_outage_counts_for_nothing() {
    let mut simulation = alone();
    simulation.settings.patience = Patience { max_attempts: 1, park_patience: secs(0) };
    simulation.world.trouble("events", Trouble::Refuses, at(300));
    commit(&mut simulation, at(1), 0, 1..=3);
    let world = simulation.run(at(310));
    assert!(world.database.is_empty());
    assert_eq!(world.broker.published(0), [1, 2, 3]);
}

#[test]
fn a_topic_that_takes_nothing_holds_up_itself_only_and_goes_on_within_seconds() {
    let mut simulation = alone();
    let labels = [label("gone", 1), label("events", 1), label("gone", 2), label("events", 2)];
    labelled(&mut simulation, 0, &labels);
    labelled(&mut simulation, 1, &labels);
    simulation.world.trouble("gone", Trouble::Refuses, at(300));
    (0..2).for_each(|bucket| commit(&mut simulation, at(1), bucket, 1..=4));
    let world = simulation.run(at(320));
    assert!(world.database.is_empty());
    for bucket in 0..2 {
        assert_eq!(world.broker.published(bucket), [2, 4, 1, 3], "in order, and nothing twice");
        assert!(world.broker.published_at(bucket, 3).expect("it is published") < at(305));
    }
    let tries = world.calls_for(Verb::Submit, 0).iter().filter(|call| call.ids() == [3]).count();
    assert!(tries <= 1, "only the first of the topic is tried, {tries}");
}

#[test]
fn the_note_of_a_refused_row_ends_when_an_earlier_one_of_its_unit_is_refused() {
    let mut simulation = alone();
    labelled(&mut simulation, 0, &[label("gone", 1), label("gone", 2), label("gone", 3)]);
    simulation.world.trouble("gone", Trouble::Refuses, at(30));
    commit(&mut simulation, at(1), 0, [3]);
    commit(&mut simulation, at(5), 0, [1, 2]);
    simulation.at(at(4), |world| assert!(world.database.failures.keys().eq(&[(0, 3)])));
    simulation.at(at(20), |world| assert!(world.database.failures.keys().eq(&[(0, 1)])));
    let world = simulation.run(at(40));
    assert_eq!(world.broker.published(0), [1, 2, 3]);
    assert!(world.database.failures.is_empty());
}

#[test]
fn the_note_of_a_refused_row_that_somebody_has_removed_ends() {
    let mut simulation = a_key_refused_until(FOREVER);
    simulation.at(at(5), |world| {
        let noted = world.database.failures[&(0, 1)].clone();
        world.database.skip(0, 1);
        world.database.failures.insert((0, 1), noted);
    });
    let world = simulation.run(at(40));
    assert!(world.database.is_empty() && world.database.failures.is_empty());
}

#[test]
fn a_refused_row_that_is_noted_but_cannot_be_read_is_asked_for_once_a_backoff() {
    let mut simulation = a_key_refused_until(at(5));
    simulation.at(at(3), |world| _ = world.database.hidden.insert((0, 1)));
    simulation.at(at(13), |world| world.database.hidden.clear());
    let backoff = simulation.settings.error_backoff;
    let world = simulation.run(at(40));
    let asked = world.calls(Verb::Failures).iter().filter(|call| (at(3)..at(13)).contains(&call.at)).count();
    assert!((1..=(secs(10).as_millis() / backoff.as_millis()) as usize + 1).contains(&asked), "{asked} times");
    assert!(world.database.is_empty() && world.database.failures.is_empty());
}

#[test]
fn where_a_refused_row_turns_out_to_be_gone_nothing_is_started_before_the_notes_are_read() {
    let tried = |simulation: Simulation| times(&simulation.run(at(8)).calls_for(Verb::Fetch, 0));
    let again = *tried(a_key_refused_until(FOREVER)).iter().find(|time| **time >= at(3)).expect("it is tried again");
    let mut simulation = a_key_refused_until(FOREVER);
    simulation.at(at(3), |world| {
        let mut parked = world.database.failures[&(0, 1)].clone();
        world.database.skip(0, 1);
        (parked.failure.id, parked.next_try_at) = (3, None);
        world.database.failures.insert((0, 3), parked);
    });
    simulation.world.database.label(0, 8, label("events", 2));
    // So the row is asked for in the same turn as what this bell tells of.
    commit(&mut simulation, again, 0, [8]);
    let world = simulation.run(at(20));
    assert_eq!(world.database.rows(0), [3, 5], "parked meanwhile");
}

#[test]
fn a_topic_without_answers_holds_up_itself_only_and_goes_on_at_once() {
    let mut simulation = alone();
    labelled(&mut simulation, 0, &[label("silent", 1), label("events", 1), label("silent", 2), label("events", 2)]);
    simulation.world.trouble("silent", Trouble::Silent, at(300));
    commit(&mut simulation, at(1), 0, 1..=3);
    commit(&mut simulation, at(2), 0, [4]);
    let world = simulation.run(at(301));
    assert!(world.database.is_empty());
    assert_eq!(world.broker.published(0), [2, 4, 1, 3], "in order, and nothing twice");
    assert!(world.broker.published_at(0, 4).expect("it is published") < at(15), "brokers were asked, and answered");
    assert!(world.broker.published_at(0, 3).expect("it is published") < ms(300_200));
}

#[test]
fn in_an_outage_nothing_is_called_back() {
    let mut simulation = alone();
    simulation.world.broker.away = Some(at(0)..at(300));
    commit(&mut simulation, at(1), 0, 1..=3);
    let world = simulation.run(at(301));
    assert!(world.database.is_empty());
    assert_eq!(world.calls(Verb::Purge).len(), 1, "at the stop");
    assert!(world.calls(Verb::Inquire).len() > 10);
}

#[test]
fn the_end_of_an_outage_calls_nothing_back_though_an_inquiry_is_answered_first() {
    let mut simulation = alone();
    simulation.world.broker.away = Some(at(0)..at(300));
    // The topic follows when the brokers are back, as leaders have to be found.
    simulation.world.trouble("events", Trouble::Silent, at(308));
    commit(&mut simulation, at(1), 0, 1..=3);
    let world = simulation.run(at(309));
    assert!(world.database.is_empty() && world.database.failures.is_empty());
    assert_eq!(world.calls(Verb::Purge).len(), 1, "at the stop");
}

#[test]
fn a_bucket_with_a_row_of_a_silent_topic_on_its_way_is_handed_back() {
    let mut simulation = alone();
    labelled(&mut simulation, 0, &[label("silent", 1)]);
    simulation.world.trouble("silent", Trouble::Silent, at(300));
    commit(&mut simulation, at(1), 0, [1]);
    simulation.relay("b", at(20));
    simulation.at(at(25), |world| assert_eq!(world.database.held_by("a").len(), 4));
    let world = simulation.run(at(310));
    assert_eq!(world.broker.published(0), [1]);
}

fn rule(policy: Policy) -> TopicRule {
    TopicRule { policy, ..TopicRule::default() }
}

#[test]
fn a_dead_letter_is_published_to_its_topic_and_removed_and_its_key_goes_on() {
    let mut simulation = a_key_refused_until(FOREVER);
    simulation.settings.patience = Patience { max_attempts: 2, park_patience: secs(0) };
    simulation.world.database.rules.insert("events".to_owned(), rule(Policy::DeadLetter(LETTERS.to_owned())));
    let world = simulation.run(at(40));
    assert!(world.database.is_empty() && world.database.failures.is_empty());
    assert_eq!(published_times(&world, 1), 1);
    let sent: Vec<i64> = world.broker.published(0).into_iter().filter(|id| id % 2 == 1).collect();
    assert_eq!(sent[sent.len() - 3..], [1, 3, 5]);
}

#[test]
fn a_dead_letter_waits_for_its_topic() {
    let mut simulation = a_key_refused_until(FOREVER);
    simulation.settings.patience = Patience { max_attempts: 1, park_patience: secs(0) };
    simulation.world.database.rules.insert("events".to_owned(), rule(Policy::DeadLetter(LETTERS.to_owned())));
    simulation.world.trouble(LETTERS, Trouble::Refuses, at(30));
    simulation.at(at(29), |world| {
        let noted = &world.database.failures[&(0, 1)].failure;
        assert!(noted.wait.is_some() && noted.error.starts_with("dead-letter topic \"letters\": "), "{noted:?}");
        assert_eq!(noted.attempts, 1, "it was refused once");
    });
    let world = simulation.run(at(45));
    assert!(world.database.is_empty());
}

#[test]
fn where_a_topic_blocks_the_bucket_waits_behind_a_refused_row() {
    let mut simulation = a_key_refused_until(at(60));
    simulation.settings.patience = Patience { max_attempts: 1, park_patience: secs(0) };
    simulation.world.database.rules.insert("events".to_owned(), rule(Policy::Block));
    commit(&mut simulation, at(3), 0, [7]);
    simulation.at(at(59), |world| assert!(!world.broker.published(0).contains(&7)));
    let world = simulation.run(at(75));
    assert!(world.database.is_empty(), "it was never parked");
}

#[test]
fn a_paused_topic_waits_and_others_go_on() {
    let mut simulation = alone();
    labelled(&mut simulation, 0, &[label("paused", 1), label("events", 1)]);
    simulation.world.database.rules.insert("paused".to_owned(), TopicRule { paused: true, ..TopicRule::default() });
    commit(&mut simulation, at(1), 0, 1..=2);
    simulation.at(at(20), |world| {
        assert_eq!(world.database.rows(0), [1]);
        world.database.rules.clear();
        world.order("a", Order::LookAgain);
    });
    let world = simulation.run(at(21));
    assert!(world.database.is_empty());
}

#[test]
fn beyond_the_most_that_is_held_for_its_own_sake_the_topic_waits() {
    let mut simulation = alone();
    let rows = HOLDS_MAX as i64 + 10;
    for id in 1..=rows {
        simulation.world.database.label(0, id, label("events", id as u8));
        simulation.world.broker.refuse(0, id, Refuser::Broker, at(60));
    }
    commit(&mut simulation, at(1), 0, 1..=rows);
    simulation.at(at(59), |world| assert_eq!(world.database.failures.len(), HOLDS_MAX + 1));
    let world = simulation.run(at(100));
    assert!(world.database.is_empty(), "{} are left", world.database.rows(0).len());
}

#[test]
fn where_nothing_can_be_published_the_relay_waits_as_a_whole_counts_nothing_and_goes_on_by_itself() {
    let mut simulation = alone();
    simulation.settings.patience = Patience { max_attempts: 1, park_patience: secs(0) };
    simulation.world.trouble("events", Trouble::Misconfigured, at(60));
    commit(&mut simulation, at(1), 0, 1..=3);
    simulation.at(at(59), |world| {
        assert!(world.database.failures.is_empty());
        let tries = world.calls_for(Verb::Submit, 0).len();
        assert!((3..30).contains(&tries), "with growing waits, {tries} tries");
    });
    let world = simulation.run(at(75));
    assert!(world.database.is_empty());
    assert_eq!(world.broker.published(0), [1, 2, 3]);
}

#[test]
fn a_message_that_somebody_keeps_locked_holds_up_its_bucket_and_no_other() {
    let mut simulation = alone();
    simulation.world.database.locked.insert(0, at(30));
    simulation.at(at(1), |world| ALL.for_each(|bucket| world.commit(bucket, [1, 2], Ring::Bucket)));
    commit_everywhere(&mut simulation, at(5), 3);
    simulation.at(at(29), |world| {
        assert_eq!(world.database.rows(0), [1, 2, 3]);
        assert_eq!(world.broker.published(0), [1, 2], "sent once, however long it takes");
        for bucket in 1..8 {
            assert_eq!(world.broker.published_at(bucket, 3), Some(ms(5005)), "at once");
            assert_eq!(world.database.rows(bucket), NONE);
        }
        let asked = world.calls_for(Verb::Acknowledge, 0).len();
        assert!((15..30).contains(&asked), "asked for {asked} times");
    });
    let world = simulation.run(at(45));
    assert_eq!(world.broker.published(0), [1, 2, 3]);
    assert!(world.database.is_empty());
    assert_eq!(waits(&world, "a", at(20), at(21)), [Wait::BackingOff], "it is not Kafka that is waited for");
}

#[test]
fn what_was_locked_is_removed_as_soon_as_an_operator_has_done() {
    let mut simulation = alone();
    simulation.world.database.locked.insert(0, at(20));
    commit(&mut simulation, at(1), 0, [1]);
    simulation.at(at(20), |world| world.order("a", Order::LookAgain));
    let world = simulation.run(at(21));
    assert!(world.database.is_empty());
    assert_eq!(times(&world.calls_for(Verb::Acknowledge, 0)).last(), Some(&at(20)));
}

#[test]
fn what_is_locked_does_not_keep_a_relay_from_stopping() {
    let mut simulation = alone();
    simulation.world.database.locked.insert(0, at(30));
    commit(&mut simulation, at(1), 0, [1]);
    simulation.at(at(10), |world| world.order("a", Order::Stop));
    simulation.relay("b", at(40));
    let world = simulation.run(at(50));
    assert_eq!(world.ended["a"], (at(10), Ended::Stopped));
    assert_eq!(world.broker.published(0), [1, 1]);
    assert!(world.database.is_empty());
}

/// Nobody will say whether the one try of each arrived; a bucket that is handed back must not wait for that.
#[test]
fn a_lone_try_without_an_answer_is_given_up_in_the_end_where_its_bucket_leaves() {
    let mut simulation = alone();
    ALL.for_each(|bucket| simulation.world.broker.refuse(bucket, 1, Refuser::Broker, ms(1500)));
    commit_everywhere(&mut simulation, at(1), 1);
    simulation.at(ms(1500), |world| world.broker.delay = secs(10_000));
    simulation.at(at(9), |world| world.broker.delay = secs(0));
    simulation.relay("b", at(10));
    simulation.relay("c", at(10));
    let world = simulation.run(at(150));
    let abandoned = times_of(&world, Verb::Abandon);
    assert!(abandoned.len() == 1 && abandoned[0] > at(60) && abandoned[0] < at(90), "{abandoned:?}");
}
