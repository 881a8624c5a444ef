//! A publisher in memory that queues, sends whenever it is asked for reports, and can do each thing wrong.

use std::collections::VecDeque;

use crate::bucket::murmur2;
use crate::conformance::publisher::{PublisherFixture, Record, run_all};
use crate::headers::{self, MESSAGE_ID_HEADER};
use crate::message::{Batch, Message};
use crate::relay::ports::{FlightId, PublishError, Publisher, Report, Submitted};

use super::broken_publishers::Fault;

const PARTITIONS: i32 = 3;
const CAPACITY: usize = 200;
/// Rows sent at a time: all, so that there may be nothing to wait for behind them.
const REQUEST: usize = CAPACITY;
const TOO_LARGE: usize = 1000;

#[test]
fn a_complete_publisher_keeps_every_rule() {
    let report = run_all(Fixture::default);
    report.require();
    assert_eq!(report.skipped(), []);
}

#[derive(Default)]
pub(super) struct Fixture(MemoryPublisher);

impl Fixture {
    pub fn with(fault: Fault) -> Self {
        Self(MemoryPublisher { fault: Some(fault), ..MemoryPublisher::default() })
    }
}

impl PublisherFixture for Fixture {
    fn publisher(&mut self) -> &mut dyn Publisher {
        &mut self.0
    }

    fn topic(&self) -> String {
        "events".to_owned()
    }

    fn rest(&mut self) -> bool {
        // Whatever is to come comes when it is asked for.
        !self.0.queued.is_empty() || !self.0.reports.is_empty()
    }

    fn read(&mut self) -> Vec<Record> {
        self.0.log.clone()
    }

    fn capacity(&self) -> Option<usize> {
        Some(CAPACITY)
    }

    fn refused_value(&self) -> Option<Vec<u8>> {
        Some(vec![b'x'; TOO_LARGE])
    }

    fn queues(&self) -> bool {
        true
    }
}

#[derive(Default)]
pub(super) struct MemoryPublisher {
    fault: Option<Fault>,
    queued: VecDeque<(FlightId, u32, Record)>,
    reports: Vec<Report>,
    log: Vec<Record>,
    purged: bool,
}

impl MemoryPublisher {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn record(&self, message: &Message<'_>) -> Result<Record, PublishError> {
        let stored = message.headers.map(headers::decode).transpose();
        let stored = stored.map_err(|error| PublishError::Invalid(error.to_string()))?.unwrap_or_default();
        let mut headers: Vec<(String, Option<Vec<u8>>)> = stored
            .iter()
            .filter(|header| header.name != MESSAGE_ID_HEADER || self.is(Fault::KeepsForgedIds))
            .map(|header| (header.name.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect();
        if self.is(Fault::SortsHeaders) {
            headers.sort();
        }
        let id = uuid::Uuid::from_bytes(message.message_id).hyphenated().to_string();
        headers.push((MESSAGE_ID_HEADER.to_owned(), Some(id.into_bytes())));
        let hashed = message.key.map_or(0, |key| (murmur2(key) & 0x7fff_ffff) % PARTITIONS as u32) as i32;
        let partition = match self.fault {
            Some(Fault::IgnoresThePartition) => hashed,
            Some(Fault::IgnoresTheKey) if message.partition.is_none() => (self.queued.len() % 3) as i32,
            _ => message.partition.unwrap_or(hashed),
        };
        let value = message.value.filter(|value| !(self.is(Fault::MakesEmptyNull) && value.is_empty()));
        Ok(Record { partition, key: message.key.map(<[u8]>::to_vec), value: value.map(<[u8]>::to_vec), headers })
    }

    /// One request.
    fn send(&mut self) {
        let mut request: Vec<_> = self.queued.drain(..REQUEST.min(self.queued.len())).collect();
        if self.is(Fault::Reorders) {
            request.reverse();
        }
        let spoilt = request.iter().any(|(_, _, record)| too_large(record)) && self.is(Fault::BlamesAll);
        for (flight, index, record) in request {
            let refused = spoilt || too_large(&record);
            if !refused && !self.is(Fault::AcknowledgesUnsent) {
                self.log.push(record);
            }
            let outcome = if refused { Err(PublishError::Invalid("it is too large".to_owned())) } else { Ok(()) };
            let report = Report { flight, index, outcome };
            if self.is(Fault::ReportsTwice) && index == 4 {
                self.reports.push(report.clone());
            }
            if !(self.is(Fault::ForgetsAReport) && index == 4) {
                self.reports.push(report);
            }
        }
    }
}

fn too_large(record: &Record) -> bool {
    record.value.as_ref().is_some_and(|value| value.len() >= TOO_LARGE)
}

impl Publisher for MemoryPublisher {
    fn submit(&mut self, flight: FlightId, batch: &Batch, from: usize) -> Submitted {
        if batch.is_empty() && self.is(Fault::ReportsNothingTwice) {
            self.reports.push(Report { flight, index: 0, outcome: Ok(()) });
        }
        if from > 0 && self.purged && !self.is(Fault::GoesOnAfterAPurge) {
            return Submitted { rows: 0, refused: Some(PublishError::GivenUp) };
        }
        let from_asked = from;
        let from = if self.is(Fault::IgnoresTheIndex) { 0 } else { from };
        for index in from..batch.len() {
            while self.queued.len() >= CAPACITY && self.is(Fault::WaitsForRoom) {
                self.send();
            }
            if self.queued.len() >= CAPACITY || (self.purged && self.is(Fault::TakesNothingAfterAPurge)) {
                return Submitted { rows: index - from, refused: None };
            }
            match self.record(&batch.message(index)) {
                Ok(record) => self.queued.push_back((flight, index as u32, record)),
                Err(_) if self.is(Fault::TakesWhatItCannotRead) => {
                    self.reports.push(Report { flight, index: index as u32, outcome: Ok(()) });
                }
                Err(error) => return Submitted { rows: index - from, refused: Some(error) },
            }
        }
        Submitted { rows: batch.len() - from_asked, refused: None }
    }

    fn submit_apart(&mut self, flight: FlightId, batch: &Batch) -> Submitted {
        if self.is(Fault::LosesRowsApart) {
            return Submitted { rows: 1, refused: None };
        }
        self.submit(flight, batch, 0)
    }

    fn collect(&mut self, reports: &mut Vec<Report>) {
        self.send();
        reports.append(&mut self.reports);
    }

    fn purge(&mut self) {
        self.purged = true;
        if self.is(Fault::PurgesNothing) {
            return;
        }
        if self.is(Fault::SendsWhatItGivesUp) {
            self.log.extend(self.queued.iter().map(|(_, _, record)| record.clone()));
        }
        let given_up = self.queued.drain(..);
        self.reports.extend(given_up.map(|(flight, index, _)| Report {
            flight,
            index,
            outcome: Err(PublishError::GivenUp),
        }));
    }
}
