//! Crashes and stops where a test wants them: compiled in by the feature `test-hooks` alone, else each call is nothing.
//!
//! `outbox_relay.test_crash = 'POINT:PID'` makes the worker of this process id end when it next reaches the point, as by an
//! internal FATAL error: exit code 1, its transaction is aborted, nothing is stopped in order and nothing is released. The
//! server lives on. The points, in the order a message meets them; each lies in a wall, so that the relay loop knows of none:
//!
//! | point | what has happened |
//! | --- | --- |
//! | `in_acquire` | leases are written, not yet committed |
//! | `after_acquire` | leases are committed, the relay does not know |
//! | `after_submit` | the Kafka client has taken messages |
//! | `before_acknowledge` | the broker has acknowledged them, the rows are there |
//! | `in_acknowledge` | the rows are deleted, not yet committed |
//! | `after_acknowledge` | the rows are gone, the relay does not know |
//! | `in_release` | the stopping relay is marked as stopped, its leases are still its own |
//!
//! `outbox_relay.test_stop = 'POINT:PID'` stops the worker's process there, as SIGSTOP does, until it gets SIGCONT. There is one
//! point more, `before_fetch`: the relay is about to read a batch.

//!
//! `outbox_relay.test_conformance = on` makes the worker of each database try the conformance suite on its store before it
//! does anything else, once: src/postgres/conformance.rs. No relay must be at work in the database.

pub use hooks::{KafkaPublisher, define, reach, try_contract};

#[cfg(not(feature = "test-hooks"))]
mod hooks {
    pub use crate::kafka::KafkaPublisher;
    use crate::postgres::shared::{Database, Header, Slot};

    pub fn define() {}

    pub fn reach(_point: &str) {}

    pub fn try_contract(_: &Header, _: &Database, _: &Slot) {}
}

#[cfg(feature = "test-hooks")]
mod hooks {
    use std::ffi::CString;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use pgrx::pg_sys::elog::PgLogLevel;
    use pgrx::pg_sys::errcodes::PgSqlErrorCode;
    use pgrx::pg_sys::panic::ErrorReport;
    use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};

    use crate::kafka::{Caretaker, Contact, KafkaPublisher as Publisher, Ring};
    use crate::message::Batch;
    use crate::postgres::conformance;
    use crate::postgres::shared::{Database, Header, Slot};
    use crate::properties::Properties;
    use crate::relay::ports::{self, Answer, FlightId, Report, Submitted};

    static CRASH: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
    static STOP: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
    static CONFORMANCE: GucSetting<bool> = GucSetting::<bool>::new(false);
    /// This worker has tried the suite.
    static TRIED: AtomicBool = AtomicBool::new(false);

    pub fn define() {
        GucRegistry::define_string_guc(
            c"outbox_relay.test_crash",
            c"Where the worker of a process id crashes next, as POINT:PID.",
            c"Tests only.",
            &CRASH,
            GucContext::Sighup,
            GucFlags::default(),
        );
        GucRegistry::define_string_guc(
            c"outbox_relay.test_stop",
            c"Where the worker of a process id stops next, as POINT:PID.",
            c"Tests only.",
            &STOP,
            GucContext::Sighup,
            GucFlags::default(),
        );
        GucRegistry::define_bool_guc(
            c"outbox_relay.test_conformance",
            c"Tries the conformance suite on the store of each database.",
            c"Tests only.",
            &CONFORMANCE,
            GucContext::Sighup,
            GucFlags::default(),
        );
    }

    /// Tries the conformance suite if that is wanted and was not done by this worker.
    pub fn try_contract(header: &'static Header, database: &'static Database, slot: &'static Slot) {
        if CONFORMANCE.get() && !TRIED.swap(true, Ordering::Relaxed) {
            conformance::run(header, database, slot);
        }
    }

    /// Whether the setting names this process and the point.
    fn is_named(setting: &GucSetting<Option<CString>>, point: &str) -> bool {
        let named = |setting: CString| setting.to_str().is_ok_and(|it| it == format!("{point}:{}", std::process::id()));
        setting.get().is_some_and(named)
    }

    /// Stops the process, or ends it, if it is the one, and the point the one, that a setting names.
    pub fn reach(point: &str) {
        if is_named(&STOP, point) {
            // SAFETY: no preconditions.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        if is_named(&CRASH, point) {
            ErrorReport::new(
                PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                format!("crash wanted by a test: {point}"),
                "outbox_relay",
            )
            .report(PgLogLevel::FATAL);
        }
    }

    /// A publisher with a point behind its submission.
    pub struct KafkaPublisher(Publisher);

    impl KafkaPublisher {
        pub fn new(properties: Properties, ring: Ring, caretaker: Caretaker) -> Result<Self, String> {
            Publisher::new(properties, ring, caretaker).map(Self)
        }

        pub fn contact(&self) -> Contact {
            self.0.contact()
        }

        pub fn close(self) -> Arc<AtomicBool> {
            self.0.close()
        }
    }

    impl ports::Publisher for KafkaPublisher {
        fn submit(&mut self, flight: FlightId, batch: &Batch, from: usize) -> Submitted {
            let submitted = self.0.submit(flight, batch, from);
            reach("after_submit");
            submitted
        }

        fn submit_apart(&mut self, flight: FlightId, batch: &Batch) -> Submitted {
            self.0.submit_apart(flight, batch)
        }

        fn collect(&mut self, reports: &mut Vec<Report>) {
            self.0.collect(reports);
        }

        fn purge(&mut self) {
            self.0.purge();
        }

        fn abandon(&mut self) {
            self.0.abandon();
        }

        fn inquire(&mut self, topic: &str) {
            self.0.inquire(topic);
        }

        fn answers(&mut self, answers: &mut Vec<Answer>) {
            self.0.answers(answers);
        }
    }
}
