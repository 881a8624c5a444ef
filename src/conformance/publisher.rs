//! What a [`Publisher`] owes the relay, and the fixture that the rules are tried on.

use std::collections::BTreeMap;

use super::{Outcome, Report, Rule, Unmet, ensure, rules};
use crate::headers::{self, Header, MESSAGE_ID_HEADER};
use crate::message::{Batch, Message};
use crate::relay::ports::{self, FlightId, PublishError, Publisher};

/// A publisher, a destination that is empty at first, and a way to read back what reached it.
///
/// A method that cannot do its work panics: the fault is the fixture's then, and says nothing of the publisher.
pub trait PublisherFixture {
    /// The publisher, the same one at every call.
    fn publisher(&mut self) -> &mut dyn Publisher;

    /// The topic of all messages. It has two partitions at least, and nothing in them at first.
    fn topic(&self) -> String;

    /// Waits until there may be reports to collect. Says no once it has waited for as long as the fixture is patient
    /// without any.
    fn rest(&mut self) -> bool;

    /// All that can be read of the topic now, each partition in its order.
    fn read(&mut self) -> Vec<Record>;

    /// How many rows the publisher takes at most until some are answered, if there is such a bound and it is below
    /// 10,000.
    fn capacity(&self) -> Option<usize> {
        None
    }

    /// A value that the publisher takes and the destination refuses, if there is one.
    fn refused_value(&self) -> Option<Vec<u8>> {
        None
    }

    /// Whether rows stay queued for a moment after their submission, so that a purge finds them there.
    fn queues(&self) -> bool {
        false
    }
}

/// What was read back of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Partition that it lies in.
    pub partition: i32,
    /// Key; none is not the same as empty.
    pub key: Option<Vec<u8>>,
    /// Value; none is a tombstone.
    pub value: Option<Vec<u8>>,
    /// Headers in their order, duplicates included.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// A rule about publishers.
pub type PublisherRule = Rule<fn(&mut dyn PublisherFixture) -> Outcome>;

/// All rules about publishers.
pub static RULES: &[PublisherRule] = rules![
    rules:
        rows_arrive_in_the_order_of_their_submission,
        every_row_is_reported_once,
        what_is_acknowledged_can_be_read,
        an_empty_batch_is_nothing,
        a_row_apart_is_published_as_any_other,
        the_message_id_is_the_last_header_and_the_only_one_of_its_name,
        stored_headers_keep_their_order_and_duplicates,
        null_and_empty_stay_different,
        an_explicit_partition_wins_over_the_key,
        rows_of_a_key_share_a_partition,
        a_full_client_takes_fewer_rows_and_the_rest_later,
        the_rest_of_a_batch_does_not_overtake_its_beginning,
        a_purge_gives_up_what_was_only_queued,
        a_purge_spares_what_is_submitted_later,
        a_refused_row_is_blamed_alone,
        a_row_that_cannot_be_read_is_blamed_alone;
];

/// Tries every rule on a fixture of its own.
pub fn run_all<F: PublisherFixture>(mut fixture: impl FnMut() -> F) -> Report {
    let outcomes = RULES.iter().map(|rule| (rule.name, (rule.check)(&mut fixture()))).collect();
    Report { outcomes }
}

pub use rules::*;

mod rules {
    use super::*;

    /// The order of storing is the order that consumers of a key see.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn rows_arrive_in_the_order_of_their_submission(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        for flight in 0..3 {
            let values: Vec<String> = (0..100).map(|row| format!("{}", 100 * flight + row)).collect();
            let batch = batch_of((0..).zip(&values).map(|(row, value)| Message {
                partition: Some(row % 2),
                value: Some(value.as_bytes()),
                ..message(&topic)
            }));
            require_acknowledged(&publish(fixture, flight, &batch)?)?;
        }
        let records = fixture.read();
        ensure!(records.len() == 300, "300 rows are acknowledged, {} can be read", records.len());
        for partition in 0..2 {
            let values = numbers(&records, partition);
            ensure!(values.is_sorted(), "partition {partition} holds {values:?}");
        }
        Ok(())
    }

    /// The relay counts on a report of each row that it handed over, and knows it by flight and index alone.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn every_row_is_reported_once(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let flights: [(FlightId, usize); 3] = [(7, 50), (0, 1), (FlightId::MAX, 30)];
        let mut reports = Reports::default();
        for (flight, rows) in flights {
            let batch = batch_of((0..rows).map(|_| message(&topic)));
            hand_over(fixture, &mut reports, flight, &batch, 0)?;
        }
        reports.await_all(fixture)?;
        for (flight, rows) in flights {
            let indexes: Vec<u32> =
                reports.outcomes.range((flight, 0)..=(flight, u32::MAX)).map(|(k, _)| k.1).collect();
            ensure!(indexes.iter().copied().eq(0..rows as u32), "of flight {flight} were reported {indexes:?}");
        }
        Ok(())
    }

    /// The row is removed then; nobody else has it.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn what_is_acknowledged_can_be_read(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let batch = batch_of([Message { key: Some(b"k"), value: Some(b"v"), ..message(&topic) }]);
        require_acknowledged(&publish(fixture, 1, &batch)?)?;
        let records = fixture.read();
        let read: Vec<_> = records.iter().map(|record| (record.key.as_deref(), record.value.as_deref())).collect();
        ensure!(read == [(Some(&b"k"[..]), Some(&b"v"[..]))], "one message was acknowledged, read are {read:?}");
        Ok(())
    }

    /// There is nothing to report of it.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn an_empty_batch_is_nothing(fixture: &mut dyn PublisherFixture) -> Outcome {
        let submitted = fixture.publisher().submit(1, &Batch::default(), 0);
        ensure!(submitted == ports::Submitted { rows: 0, refused: None }, "the answer was {submitted:?}");
        let mut reports = Vec::new();
        fixture.publisher().collect(&mut reports);
        ensure!(reports.is_empty(), "reported were {reports:?}");
        Ok(())
    }

    /// A row that was refused before is tried again so.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn a_row_apart_is_published_as_any_other(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let batch = batch_of([Message { value: Some(b"1"), ..at_first(&topic) }]);
        let mut reports = Reports::default();
        loop {
            let submitted = fixture.publisher().submit_apart(3, &batch);
            ensure!(submitted.refused.is_none() && submitted.rows <= 1, "the answer was {submitted:?}");
            if submitted.rows == 1 {
                break;
            }
            ensure!(fixture.rest(), "the row is not taken");
        }
        reports.expected = 1;
        reports.await_all(fixture)?;
        ensure!(reports.outcomes.get(&(3, 0)) == Some(&Ok(())), "reported was {:?}", reports.outcomes);
        let read = numbers(&fixture.read(), 0);
        ensure!(read == [1], "one row was submitted, read are {read:?}");
        Ok(())
    }

    /// Consumers read the first header of a name: one that the application has stored would pass for the message's
    /// identity.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn the_message_id_is_the_last_header_and_the_only_one_of_its_name(
        fixture: &mut dyn PublisherFixture,
    ) -> Outcome {
        let topic = fixture.topic();
        let forged = headers::encode(
            [("a", "1"), (MESSAGE_ID_HEADER, "forged"), ("b", "2"), (MESSAGE_ID_HEADER, "twice")]
                .into_iter()
                .map(|(name, value)| Header { name, value: Some(value.as_bytes()) }),
        );
        let id: [u8; 16] = std::array::from_fn(|place| 0x10 + place as u8);
        let batch = batch_of([
            Message { message_id: id, headers: forged.as_deref(), ..at_first(&topic) },
            Message { message_id: id, ..at_first(&topic) },
        ]);
        require_acknowledged(&publish(fixture, 1, &batch)?)?;
        let named: Vec<_> = fixture.read().into_iter().map(|record| record.headers).collect();
        let last = header(MESSAGE_ID_HEADER, Some("10111213-1415-1617-1819-1a1b1c1d1e1f"));
        let expected = [vec![header("a", Some("1")), header("b", Some("2")), last.clone()], vec![last]];
        ensure!(named == expected, "expected {expected:?}, read was {named:?}");
        Ok(())
    }

    /// They are the application's, a null value and an empty one included.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn stored_headers_keep_their_order_and_duplicates(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let list = [("z", Some("1")), ("a", None), ("z", Some("")), ("a", Some("2"))];
        let stored =
            headers::encode(list.into_iter().map(|(name, value)| Header { name, value: value.map(str::as_bytes) }));
        let batch = batch_of([Message { headers: stored.as_deref(), ..at_first(&topic) }]);
        require_acknowledged(&publish(fixture, 1, &batch)?)?;
        let mut read = fixture.read().pop().map(|record| record.headers).unwrap_or_default();
        read.pop();
        let expected = list.map(|(name, value)| header(name, value));
        ensure!(read == expected, "expected {expected:?}, read was {read:?}");
        Ok(())
    }

    /// A null value deletes a key from a compacted topic, and a null key has no place of its own: empty means neither.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn null_and_empty_stay_different(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let kinds = [None, Some(&b""[..]), Some(&b"\0\xff"[..])];
        let pairs: Vec<_> = kinds.iter().flat_map(|key| kinds.iter().map(move |value| (*key, *value))).collect();
        let batch = batch_of(pairs.iter().map(|(key, value)| Message { key: *key, value: *value, ..at_first(&topic) }));
        require_acknowledged(&publish(fixture, 1, &batch)?)?;
        let records = fixture.read();
        let read: Vec<_> = records.iter().map(|record| (record.key.as_deref(), record.value.as_deref())).collect();
        ensure!(read == pairs, "expected {pairs:?}, read were {read:?}");
        Ok(())
    }

    /// Whoever names one has a reason.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn an_explicit_partition_wins_over_the_key(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let batch = batch_of((0..2).map(|partition| Message { partition: Some(partition), ..message(&topic) }));
        require_acknowledged(&publish(fixture, 1, &batch)?)?;
        let mut read: Vec<i32> = fixture.read().iter().map(|record| record.partition).collect();
        read.sort_unstable();
        ensure!(read == [0, 1], "two rows of one key named partitions 0 and 1, and lie in {read:?}");
        Ok(())
    }

    /// Only a partition has an order.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn rows_of_a_key_share_a_partition(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let keys: Vec<String> = (0..40).map(|row| format!("key-{}", row % 8)).collect();
        for flight in 0..2 {
            let batch = batch_of(keys.iter().map(|key| Message { key: Some(key.as_bytes()), ..message(&topic) }));
            require_acknowledged(&publish(fixture, flight, &batch)?)?;
        }
        let mut places: BTreeMap<Option<Vec<u8>>, i32> = BTreeMap::new();
        for record in fixture.read() {
            let place = *places.entry(record.key.clone()).or_insert(record.partition);
            ensure!(place == record.partition, "key {:?} lies in {place} and {}", record.key, record.partition);
        }
        ensure!(places.len() == 8, "8 keys were sent, {} are read", places.len());
        Ok(())
    }

    /// Waiting for room would keep the relay from renewing its leases.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn a_full_client_takes_fewer_rows_and_the_rest_later(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let values = numbers_beyond_the_capacity(fixture)?;
        let batch = batch_of(values.iter().map(|value| Message { value: Some(value.as_bytes()), ..at_first(&topic) }));
        let first = fixture.publisher().submit(1, &batch, 0);
        ensure!(first.refused.is_none(), "a client that is full for now has refused for good: {:?}", first.refused);
        ensure!((1..batch.len()).contains(&first.rows), "of {} rows it took {}", batch.len(), first.rows);
        let mut reports = Reports { expected: first.rows, ..Reports::default() };
        hand_over(fixture, &mut reports, 1, &batch, first.rows)?;
        reports.await_all(fixture)?;
        let read = numbers(&fixture.read(), 0);
        ensure!(
            read.iter().copied().eq(0..batch.len()),
            "{} rows were submitted in order, read are {read:?}",
            batch.len()
        );
        Ok(())
    }

    /// Its beginning may be given up, or still arrive from a client that was replaced: either way the rest comes too early.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn the_rest_of_a_batch_does_not_overtake_its_beginning(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let values = numbers_beyond_the_capacity(fixture)?;
        let batch = batch_of(values.iter().map(|value| Message { value: Some(value.as_bytes()), ..at_first(&topic) }));
        let begun = fixture.publisher().submit(1, &batch, 0).rows;
        let mut reports = Reports { expected: begun, ..Reports::default() };
        fixture.publisher().purge();
        hand_over(fixture, &mut reports, 1, &batch, begun)?;
        reports.await_all(fixture)?;
        let (acknowledged, given_up) = split(reports)?;
        let gap = acknowledged.iter().copied().zip(0..).find(|(row, place)| row != place);
        ensure!(
            gap.is_none(),
            "{begun} rows, a purge, and the rest: {given_up:?} are given up, {gap:?} arrived behind"
        );
        let read = numbers(&fixture.read(), 0);
        ensure!(read == acknowledged, "acknowledged were {acknowledged:?}, read are {read:?}");
        Ok(())
    }

    /// A relay that stops, or has lost a lease, must neither wait for them nor leave them to be sent later.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn a_purge_gives_up_what_was_only_queued(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let (acknowledged, given_up) = submit_and_purge(fixture, &topic)?;
        ensure!(!(fixture.queues() && given_up.is_empty()), "rows are queued for a while, and none was given up");
        let read = numbers(&fixture.read(), 0);
        ensure!(read == acknowledged, "acknowledged were {acknowledged:?}, given up {given_up:?}, read are {read:?}");
        Ok(())
    }

    /// The relay goes on with other rows, and later with the same ones.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn a_purge_spares_what_is_submitted_later(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        fixture.publisher().purge();
        let (acknowledged, given_up) = submit_and_purge(fixture, &topic)?;
        let again: Vec<String> = given_up.iter().map(ToString::to_string).collect();
        let batch = batch_of(again.iter().map(|value| Message { value: Some(value.as_bytes()), ..at_first(&topic) }));
        require_acknowledged(&publish(fixture, 2, &batch)?)?;
        let expected = [acknowledged, given_up].concat();
        let read = numbers(&fixture.read(), 0);
        ensure!(read == expected, "expected {expected:?}, read are {read:?}");
        Ok(())
    }

    /// What is refused waits, and holds up its bucket; its neighbours must not wait with it.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn a_refused_row_is_blamed_alone(fixture: &mut dyn PublisherFixture) -> Outcome {
        let refused = fixture.refused_value().ok_or(Unmet::Skipped("nothing is refused by the destination"))?;
        let topic = fixture.topic();
        let values = [&b"0"[..], b"1", &refused, b"3", b"4"];
        let batch = batch_of(values.map(|value| Message { value: Some(value), ..at_first(&topic) }));
        require_blame_of(2, fixture, &batch)
    }

    /// A row that somebody else has written past all checks is the row's fault, and nobody's panic.
    ///
    /// # Errors
    /// As [`Unmet`] says.
    pub fn a_row_that_cannot_be_read_is_blamed_alone(fixture: &mut dyn PublisherFixture) -> Outcome {
        let topic = fixture.topic();
        let damaged = Message { headers: Some(&[9, 9]), ..at_first(&topic) };
        let good = Message { value: Some(b"0"), ..at_first(&topic) };
        let batch = batch_of([good, damaged, Message { value: Some(b"2"), ..good }]);
        require_blame_of(1, fixture, &batch)
    }
}

/// A message with a key and no value.
fn message(topic: &str) -> Message<'_> {
    Message {
        id: 0,
        topic,
        partition: None,
        key: Some(b"key"),
        value: None,
        headers: None,
        message_id: [7; 16],
        handle: &[],
    }
}

/// The same in the first partition.
fn at_first(topic: &str) -> Message<'_> {
    Message { partition: Some(0), ..message(topic) }
}

/// Messages with ids in their order.
fn batch_of<'a>(messages: impl IntoIterator<Item = Message<'a>>) -> Batch {
    let mut batch = Batch::default();
    for (id, message) in (1..).zip(messages) {
        batch.push(&Message { id, ..message });
    }
    batch
}

fn header(name: &str, value: Option<&str>) -> (String, Option<Vec<u8>>) {
    (name.to_owned(), value.map(|value| value.as_bytes().to_vec()))
}

/// More numbers, as text, than the publisher takes at a time.
fn numbers_beyond_the_capacity(fixture: &dyn PublisherFixture) -> Result<Vec<String>, Unmet> {
    let capacity = fixture.capacity().ok_or(Unmet::Skipped("the publisher takes any number of rows"))?;
    Ok((0..capacity + 100).map(|row| row.to_string()).collect())
}

/// Values of a partition that are numbers.
fn numbers(records: &[Record], partition: i32) -> Vec<usize> {
    let values =
        records.iter().filter(|record| record.partition == partition).filter_map(|record| record.value.as_ref());
    values.filter_map(|value| std::str::from_utf8(value).ok()?.parse().ok()).collect()
}

/// What was reported, and how much is to come.
#[derive(Default)]
struct Reports {
    expected: usize,
    outcomes: BTreeMap<(FlightId, u32), Result<(), PublishError>>,
}

impl Reports {
    fn collect(&mut self, fixture: &mut dyn PublisherFixture) -> Outcome {
        let mut reports = Vec::new();
        fixture.publisher().collect(&mut reports);
        for report in reports {
            let row = (report.flight, report.index);
            ensure!(self.outcomes.insert(row, report.outcome).is_none(), "row {row:?} was reported twice");
        }
        ensure!(self.outcomes.len() <= self.expected, "{} rows, reports of {:?}", self.expected, self.outcomes.keys());
        Ok(())
    }

    fn await_all(&mut self, fixture: &mut dyn PublisherFixture) -> Outcome {
        loop {
            self.collect(fixture)?;
            if self.outcomes.len() == self.expected {
                return Ok(());
            }
            ensure!(fixture.rest(), "{} rows, reports of {:?} and no more", self.expected, self.outcomes.keys());
        }
    }
}

/// Submits a batch from an index on, in as many calls as it takes. A row that is refused at once is noted so, and the rows
/// behind it are not submitted.
fn hand_over(
    fixture: &mut dyn PublisherFixture,
    reports: &mut Reports,
    flight: FlightId,
    batch: &Batch,
    mut from: usize,
) -> Outcome {
    while from < batch.len() {
        let submitted = fixture.publisher().submit(flight, batch, from);
        ensure!(
            from + submitted.rows <= batch.len(),
            "of {} rows from {from} on it took {}",
            batch.len(),
            submitted.rows
        );
        from += submitted.rows;
        reports.expected += submitted.rows;
        if let Some(error) = submitted.refused {
            ensure!(from < batch.len(), "all rows were taken and one was refused: {error}");
            reports.expected += 1;
            reports.outcomes.insert((flight, from as u32), Err(error));
            return Ok(());
        }
        if from < batch.len() {
            let before = reports.outcomes.len();
            reports.collect(fixture)?;
            // A report makes room; without any there is something to wait for.
            let goes_on = submitted.rows > 0 || reports.outcomes.len() > before;
            ensure!(goes_on || fixture.rest(), "{from} of {} rows are taken and no more", batch.len());
        }
    }
    Ok(())
}

/// The outcomes of the rows of a batch.
fn publish(
    fixture: &mut dyn PublisherFixture,
    flight: FlightId,
    batch: &Batch,
) -> Result<Vec<Result<(), PublishError>>, Unmet> {
    let mut reports = Reports::default();
    hand_over(fixture, &mut reports, flight, batch, 0)?;
    reports.await_all(fixture)?;
    // Once more, for a report too many.
    reports.collect(fixture)?;
    Ok(reports.outcomes.into_values().collect())
}

fn require_acknowledged(outcomes: &[Result<(), PublishError>]) -> Outcome {
    ensure!(outcomes.iter().all(Result::is_ok), "nothing hinders these rows, and reported is {outcomes:?}");
    Ok(())
}

/// Row `index` is refused and cannot be read, and every other row is either acknowledged, and can be read, or given up: one that
/// got past an earlier row may be both.
fn require_blame_of(index: usize, fixture: &mut dyn PublisherFixture, batch: &Batch) -> Outcome {
    let outcomes = publish(fixture, 1, batch)?;
    let refused = |outcome: &Result<(), PublishError>| matches!(outcome, Err(error) if *error != PublishError::GivenUp);
    let blamed: Vec<usize> = (0..).zip(&outcomes).filter(|(_, outcome)| refused(outcome)).map(|(row, _)| row).collect();
    ensure!(blamed == [index], "row {index} is at fault, blamed are {blamed:?}");
    let acknowledged: Vec<usize> =
        (0..).zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()).map(|(row, _)| row).collect();
    let read = numbers(&fixture.read(), 0);
    let missing = acknowledged.iter().any(|row| !read.contains(row));
    ensure!(!missing && !read.contains(&index), "{acknowledged:?} are acknowledged, read are {read:?}");
    Ok(())
}

/// Submits 20 numbered rows and purges at once; the numbers of those that were acknowledged and of those given up.
fn submit_and_purge(fixture: &mut dyn PublisherFixture, topic: &str) -> Result<(Vec<usize>, Vec<usize>), Unmet> {
    let values: Vec<String> = (0..20).map(|row| row.to_string()).collect();
    let batch = batch_of(values.iter().map(|value| Message { value: Some(value.as_bytes()), ..at_first(topic) }));
    let mut reports = Reports::default();
    hand_over(fixture, &mut reports, 1, &batch, 0)?;
    fixture.publisher().purge();
    reports.await_all(fixture)?;
    split(reports)
}

/// Rows that were acknowledged, and rows that were given up.
fn split(reports: Reports) -> Result<(Vec<usize>, Vec<usize>), Unmet> {
    let (mut acknowledged, mut given_up) = (Vec::new(), Vec::new());
    for ((_, index), outcome) in reports.outcomes {
        match outcome {
            Ok(()) => acknowledged.push(index as usize),
            Err(PublishError::GivenUp) => given_up.push(index as usize),
            Err(error) => {
                return Err(Unmet::Broken(format!("row {index} was not at fault, and is reported as: {error}")));
            }
        }
    }
    Ok((acknowledged, given_up))
}
