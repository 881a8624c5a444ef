//! What the Kafka side does off the server's thread, concurrently and by timer.
//!
//! Reason: closing a client joins its threads and flushes for up to half a second, and a main thread that does not answer
//! the server holds up DROP DATABASE everywhere. And the client's log lines come many a second in an outage.
//!
//! One thread of ours runs a tokio runtime. It is started with every signal blocked, and so are the threads it starts.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use rdkafka::config::RDKafkaLogLevel;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::clock::Time;
use crate::repeats::{self, Repeats};

use super::ring::Ring;
use super::telling::{self, Cause};

/// Log lines that may wait to be thinned out; beyond that they are counted only.
const LINES_MAX: usize = 1000;

/// Threads for what may take its time.
const THREADS_MAX: usize = 4;

enum Task {
    /// A line of the client's log.
    Line { level: RDKafkaLogLevel, facility: String, text: String },
    /// A client to close.
    Close(Box<dyn Send>),
    /// A question to a broker, which may take its time.
    Ask(Box<dyn FnOnce() + Send>),
}

/// Hands work to the thread. Dropping it ends the thread once the work is done.
#[derive(Debug)]
pub struct Caretaker {
    tasks: mpsc::Sender<Task>,
    /// Lines that found no room.
    overflow: Arc<AtomicUsize>,
    /// Set when the thread has ended.
    ended: Arc<AtomicBool>,
}

impl Caretaker {
    /// Starts the thread. It rings when it ends, so that a stopping worker need not poll.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be started.
    pub fn start(ring: Ring) -> std::io::Result<Self> {
        let (tasks, inbox) = mpsc::channel(LINES_MAX);
        let caretaker = Self { tasks, overflow: Arc::default(), ended: Arc::default() };
        let overflow = caretaker.overflow.clone();
        let ended = caretaker.ended.clone();
        // The runtime's clock needs only the timer: Kafka's sockets are the client library's.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(THREADS_MAX).build()?;
        with_signals_blocked(|| {
            thread::Builder::new().name("outbox_relay caretaker".to_owned()).spawn(move || {
                runtime.block_on(work(inbox, overflow));
                // Waits for the clients that are being closed.
                drop(runtime);
                ended.store(true, Ordering::Release);
                ring.ring();
            })
        })?;
        Ok(caretaker)
    }

    /// A way for client callbacks to leave log lines.
    pub(super) fn lines(&self) -> Lines {
        Lines { tasks: self.tasks.clone(), overflow: self.overflow.clone() }
    }

    /// Closes a client by dropping it, on a thread of its own.
    pub(super) fn close(&self, client: Box<dyn Send>) {
        let mut task = Task::Close(client);
        loop {
            match self.tasks.try_send(task) {
                Ok(()) => return,
                // Lines are taken from the inbox all the time, so there is room in a moment.
                Err(mpsc::error::TrySendError::Full(back)) => {
                    task = back;
                    thread::yield_now();
                }
                Err(mpsc::error::TrySendError::Closed(back)) => {
                    // Without the thread nobody could drop it but this one, which must not wait: let the process end it.
                    mem::forget(back);
                    return;
                }
            }
        }
    }

    /// Asks a broker something, on a thread of its own. Says no when there is too much to do already.
    pub(super) fn ask(&self, question: impl FnOnce() + Send + 'static) -> bool {
        self.tasks.try_send(Task::Ask(Box::new(question))).is_ok()
    }

    /// Takes no more work; what remains is done. Returns a flag that is set when the thread has ended.
    #[must_use]
    pub fn finish(self) -> Arc<AtomicBool> {
        self.ended.clone()
    }
}

/// Where a client leaves its log lines.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    tasks: mpsc::Sender<Task>,
    overflow: Arc<AtomicUsize>,
}

impl Lines {
    pub fn push(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        let line = Task::Line { level, facility: facility.to_owned(), text: text.to_owned() };
        if self.tasks.try_send(line).is_err() {
            self.overflow.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn work(mut inbox: mpsc::Receiver<Task>, overflow: Arc<AtomicUsize>) {
    let started = Instant::now();
    let mut repeats = Repeats::default();
    let mut cause = Cause::default();
    let mut tick = tokio::time::interval(repeats::INTERVAL);
    loop {
        tokio::select! {
            task = inbox.recv() => match task {
                Some(Task::Line { level, facility, text }) => {
                    let now = Time::since_zero(started.elapsed());
                    let level = weight(level, &text, &mut cause, now);
                    if let Some(unsaid) = repeats.note(telling::kind(&text), now) {
                        say(level, &facility, &text, unsaid);
                    }
                }
                Some(Task::Close(client)) => {
                    tokio::task::spawn_blocking(move || drop(client));
                }
                Some(Task::Ask(question)) => {
                    tokio::task::spawn_blocking(question);
                }
                None => return,
            },
            _ = tick.tick() => {
                let lost = overflow.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    warn!(detail = format!("{lost} lines."), "log lines of the Kafka client were dropped");
                }
            }
        }
    }
}

/// At its start the client replaces the broker it was told of by the one that this turns out to be, complains that the former
/// is gone, and tries again with the latter.
const REPLACED_BROKER: &str = "Local: Broker handle destroyed without termination: retrying";

/// How much a line matters: less than the client thinks when it follows from what was said already.
fn weight(level: RDKafkaLogLevel, text: &str, cause: &mut Cause, now: Time) -> RDKafkaLogLevel {
    if level as i32 > RDKafkaLogLevel::Warning as i32 {
        level
    } else if telling::bare(text).ends_with(REPLACED_BROKER) {
        RDKafkaLogLevel::Info
    } else if cause.hear(text, now) {
        level
    } else {
        RDKafkaLogLevel::Debug
    }
}

fn say(level: RDKafkaLogLevel, facility: &str, text: &str, unsaid: u64) {
    let repeated =
        if unsaid > 0 { format!(" Such lines left out since the last one: {unsaid}.") } else { String::new() };
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => {
            warn!(detail = format!("{}{repeated}", telling::told(text)), "Kafka client reports a problem")
        }
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            info!(detail = format!("{facility}: {}.{repeated}", telling::bare(text)), "Kafka client reports")
        }
        RDKafkaLogLevel::Debug => {
            debug!(detail = format!("{facility}: {}.{repeated}", telling::bare(text)), "Kafka client reports")
        }
    }
}

/// Runs `start` with every signal blocked in this thread, so that a thread started by it never takes a signal that is meant
/// for the server's main thread.
fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are initialised by the calls that fill them, and the old mask is put back on the same thread.
    unsafe {
        let mut all: libc::sigset_t = mem::zeroed();
        let mut old: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        result
    }
}
