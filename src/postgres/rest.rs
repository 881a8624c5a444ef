//! How a worker sleeps, and what may wake or stop it.
//!
//! The main thread sleeps nowhere else: it must answer the server's interrupts, or DROP DATABASE of any database waits for
//! it. One wait set holds its latch (bells, orders, signals), the postmaster's death, and a descriptor that delivery reports
//! and log lines of other threads ring.
//!
//! SIGTERM sets a flag and the latch, and cancels a statement that is running; the relay then stops in its own order. SIGHUP
//! only asks for the configuration to be read, which is done here and not in the handler.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::{check_for_interrupts, pg_sys};

use crate::clock::Time;
use crate::kafka::Ring;
use crate::relay::ports::Clock as _;

use super::clock::BootClock;
use super::memory;

static STOP: AtomicBool = AtomicBool::new(false);
static IN_TRANSACTION: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" {
    // pg_sys wraps every function in a guard that is not for signal handlers.
    #[link_name = "SetLatch"]
    fn set_latch(latch: *mut pg_sys::Latch);
    #[link_name = "SignalHandlerForConfigReload"]
    fn on_sighup(signal: c_int);
}

unsafe extern "C-unwind" fn on_sigterm(_signal: c_int) {
    // SAFETY: async-signal-safe: atomics, two flags of the server that its own handlers set, and SetLatch, as in `die`.
    unsafe {
        let errno = *libc::__errno_location();
        STOP.store(true, Ordering::Release);
        if IN_TRANSACTION.load(Ordering::Acquire) {
            pg_sys::QueryCancelPending = 1;
            pg_sys::InterruptPending = 1;
        }
        set_latch(pg_sys::MyLatch);
        *libc::__errno_location() = errno;
    }
}

/// Installs the handlers and lets signals in; first thing in a worker.
pub fn handle_signals() {
    // SAFETY: in a worker's entry function, where signals are still blocked.
    unsafe {
        pg_sys::pqsignal(libc::SIGTERM, Some(on_sigterm));
        pg_sys::pqsignal(libc::SIGHUP, Some(on_sighup));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Whether the server wants this process to stop.
pub fn stop_requested() -> bool {
    STOP.load(Ordering::Acquire)
}

/// Between these marks a stop cancels what is running. While stopping nothing is cancelled: the last acknowledgement and the
/// release must go through, and each is bounded by lock_timeout.
pub fn enter_transaction() {
    // SAFETY: a cancellation that was meant for an earlier statement must not hit this one.
    unsafe { pg_sys::QueryCancelPending = 0 };
    IN_TRANSACTION.store(!stop_requested(), Ordering::Release);
}

/// See [`enter_transaction`].
pub fn leave_transaction() {
    IN_TRANSACTION.store(false, Ordering::Release);
    // SAFETY: as above; outside a transaction there is nothing to cancel.
    unsafe { pg_sys::QueryCancelPending = 0 };
}

/// Whether a reload was asked for.
pub fn reload_requested() -> bool {
    // SAFETY: reads a flag that the signal handler sets.
    unsafe { pg_sys::ConfigReloadPending != 0 }
}

/// Reads the configuration if a reload asked for it, and says whether it did.
pub fn reload() -> bool {
    // SAFETY: on the main thread, outside a transaction, as the server's own loops do.
    unsafe {
        if pg_sys::ConfigReloadPending == 0 {
            return false;
        }
        pg_sys::ConfigReloadPending = 0;
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
    true
}

/// The wait set of a worker.
pub struct Rest {
    set: *mut pg_sys::WaitEventSet,
    ring: Ring,
    /// Something was done since memory was given back.
    was_busy: bool,
}

impl Rest {
    /// A wait set on the latch, the postmaster and `ring`.
    pub fn new(ring: Ring) -> Self {
        // SAFETY: TopMemoryContext outlives the worker; the latch is this process's own.
        unsafe {
            let set = pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, 3);
            let none = std::ptr::null_mut();
            pg_sys::AddWaitEventToSet(set, pg_sys::WL_LATCH_SET, pg_sys::PGINVALID_SOCKET, pg_sys::MyLatch, none);
            pg_sys::AddWaitEventToSet(set, pg_sys::WL_EXIT_ON_PM_DEATH, pg_sys::PGINVALID_SOCKET, none.cast(), none);
            pg_sys::AddWaitEventToSet(set, pg_sys::WL_SOCKET_READABLE, ring.fd(), none.cast(), none);
            Self { set, ring, was_busy: true }
        }
    }

    /// Sleeps until `until`, the latch or the ring, and serves the server's interrupts. May end earlier.
    pub fn until(&mut self, until: Time) {
        let idle = BootClock.now() + memory::AFTER;
        let gives_back = self.was_busy && idle < until;
        let called = self.wait(if gives_back { idle } else { until });
        if gives_back && !called {
            memory::give_back_what_is_free();
            self.was_busy = false;
        }
        self.was_busy |= called;
        self.ring.silence();
        serve_interrupts();
    }

    /// Whether something called before that time.
    fn wait(&mut self, until: Time) -> bool {
        let left = until.since(BootClock.now());
        // Rounded up, or the last fraction of a millisecond would be spent spinning.
        let timeout = left.as_micros().div_ceil(1000).min(60_000) as std::ffi::c_long;
        // SAFETY: the set is ours; two events at most can occur at once.
        unsafe {
            let mut events: [pg_sys::WaitEvent; 2] = std::mem::zeroed();
            let called = pg_sys::WaitEventSetWait(self.set, timeout, events.as_mut_ptr(), 2, pg_sys::PG_WAIT_EXTENSION);
            pg_sys::ResetLatch(pg_sys::MyLatch);
            called > 0
        }
    }
}

/// Ends this process if the postmaster is gone, as every wait does. Costs two calls of the kernel's.
pub fn end_with_the_postmaster() {
    let looks = pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // Twice: a wait takes note of one event, and the first may be a signal of the latch that is left over.
    for _ in 0..2 {
        // SAFETY: on the main thread; no latch is waited for, and for no time.
        unsafe { pg_sys::WaitLatch(std::ptr::null_mut(), looks as i32, 0, pg_sys::PG_WAIT_EXTENSION) };
    }
}

/// Serves barriers and the like; nothing runs that could be cancelled.
pub fn serve_interrupts() {
    // SAFETY: see `leave_transaction`.
    unsafe { pg_sys::QueryCancelPending = 0 };
    check_for_interrupts!();
}
