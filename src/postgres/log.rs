//! tracing events become lines of the server log, in Postgres' style.
//!
//! The field `message` is the primary message (lower-case, no full stop), `detail` and `hint` are sentences; other fields
//! are added to the detail. WARN and ERROR become WARNING, INFO becomes LOG, DEBUG and TRACE become DEBUG1 and DEBUG2.
//!
//! Only the main thread may write to the log. What other threads say waits in a bounded queue until it does.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, ThreadId};

use pgrx::pg_sys;
use pgrx::pg_sys::elog::PgLogLevel;
use pgrx::pg_sys::errcodes::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::kafka::Ring;

use super::capital;

/// Lines of other threads that may wait; beyond that the oldest are dropped and counted.
const WAITING_MAX: usize = 1000;

static DEBUG: AtomicBool = AtomicBool::new(false);
static RING: OnceLock<Ring> = OnceLock::new();
static WAITING: Mutex<Waiting> = Mutex::new(Waiting { lines: VecDeque::new(), dropped: 0 });

struct Waiting {
    lines: VecDeque<Line>,
    dropped: u64,
}

/// One line of the log.
#[derive(Debug)]
pub struct Line {
    level: Level,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    more: String,
}

/// Sends all events of this process to the server log from now on; called once, on the main thread. Rings when a
/// line of another thread waits.
pub fn install(ring: Ring) {
    let _ = RING.set(ring);
    adopt_level();
    // A second call keeps the first subscriber, which is the same.
    let _ = tracing::subscriber::set_global_default(ServerLog { main: thread::current().id() });
}

/// Looks again at the server's log level, as after a reload.
pub fn adopt_level() {
    // SAFETY: reads a setting of this process on the main thread.
    let level = unsafe { pg_sys::log_min_messages };
    DEBUG.store(level <= PgLogLevel::DEBUG1 as i32, Ordering::Relaxed);
}

/// Writes what other threads have said; on the main thread. Gives each warning's text to `noticed`.
pub fn write_waiting(mut noticed: impl FnMut(&str)) {
    let (lines, dropped) = {
        let mut waiting = WAITING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.dropped))
    };
    for line in lines {
        if line.level <= Level::WARN {
            noticed(line.detail.as_deref().unwrap_or(&line.message));
        }
        line.write();
    }
    if dropped > 0 {
        tracing::warn!(detail = format!("Lines: {dropped}."), "log lines of other threads were dropped");
    }
}

struct ServerLog {
    main: ThreadId,
}

impl Subscriber for ServerLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("outbox_relay")
            && (*metadata.level() <= Level::INFO || DEBUG.load(Ordering::Relaxed))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line {
            level: *event.metadata().level(),
            message: String::new(),
            detail: None,
            hint: None,
            more: String::new(),
        };
        event.record(&mut line);
        if thread::current().id() == self.main {
            line.write();
            return;
        }
        let mut waiting = WAITING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if waiting.lines.len() >= WAITING_MAX {
            waiting.lines.pop_front();
            waiting.dropped += 1;
        }
        waiting.lines.push_back(line);
        drop(waiting);
        if let Some(ring) = RING.get() {
            ring.ring();
        }
    }

    // Spans are not used: every line stands alone.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Line {
    fn write(self) {
        let level = match self.level {
            Level::ERROR | Level::WARN => PgLogLevel::WARNING,
            Level::INFO => PgLogLevel::LOG,
            Level::DEBUG => PgLogLevel::DEBUG1,
            Level::TRACE => PgLogLevel::DEBUG2,
        };
        let code = if level == PgLogLevel::WARNING {
            PgSqlErrorCode::ERRCODE_WARNING
        } else {
            PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION
        };
        let mut report = ErrorReport::new(code, self.message, "outbox_relay");
        let detail = match (self.detail, self.more.is_empty()) {
            (Some(detail), true) => Some(detail),
            (Some(detail), false) => Some(format!("{detail} {}.", self.more)),
            (None, true) => None,
            (None, false) => Some(format!("{}.", self.more)),
        };
        if let Some(detail) = detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(level);
    }

    fn put(&mut self, field: &Field, value: &dyn fmt::Display) {
        match field.name() {
            "message" => self.message = value.to_string(),
            "detail" => self.detail = Some(value.to_string()),
            "hint" => self.hint = Some(value.to_string()),
            name => {
                let first = self.more.is_empty();
                let name = name.replace('_', " ");
                let name = if first { capital(&name) } else { name };
                let _ = write!(self.more, "{}{name}: {value}", if first { "" } else { ", " });
            }
        }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, &format_args!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, &value);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, &value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, &value);
    }
}
