//! What processes share: wake-ups, hints and counters. The tables hold the truth; losing all of this costs time only.
//!
//! One block of shared memory, sized at start by `outbox_relay.max_databases`: an entry for each database that has the
//! extension, with a bell for each possible bucket and a slot for each possible relay. Numbers are atomics; the few texts
//! lie behind one lightweight lock.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering,
};

use pgrx::pg_sys;

use crate::bucket::BUCKET_COUNT_MAX;
use crate::settings::WORKERS_MAX;

use super::gucs;

/// A bell that nobody has rung.
pub const SILENT: i64 = i64::MAX;
/// Databases announced since the launcher last looked; more than that makes it look at all.
const ANNOUNCED_MAX: usize = 16;

const BELLS: usize = BUCKET_COUNT_MAX as usize;
const TRANCHE: &CStr = c"outbox_relay";

/// The head of the block; the database entries follow it.
#[repr(C)]
pub struct Header {
    lock: *mut pg_sys::LWLock,
    databases: usize,
    /// Drawn when the block is made: tells the boots of one server instance apart.
    boot: u64,
    /// Relays of this boot so far.
    relays: AtomicU64,
    launcher: AtomicPtr<pg_sys::Latch>,
    announced: [AtomicU32; ANNOUNCED_MAX],
    announced_overflow: AtomicBool,
    /// Entries of `committers`, which follow the databases: one for each process that may run a transaction.
    processes: usize,
}

/// A process that is about to make rows visible, or has done so and not yet rung for them.
#[repr(C)]
pub struct Committer {
    database: AtomicU32,
    /// The lowest id that it has written; `SILENT` when it is not committing.
    lowest: AtomicI64,
}

/// A database that has the extension, or is being looked at.
#[repr(C)]
pub struct Database {
    /// 0 when the entry is free.
    pub oid: AtomicU32,
    /// A relay has found the extension here.
    pub served: AtomicBool,
    /// The backend that needs the database for itself, as DROP DATABASE does; relays stay away meanwhile.
    pub blocked_by: AtomicI32,
    /// The lowest id committed to a bucket since its relay last took it.
    bells: [AtomicI64; BELLS],
    /// The slot, plus one, of the relay that listens for a bucket; 0 for none.
    listeners: [AtomicU16; BELLS],
    /// Messages of a bucket that were acknowledged, and when last.
    pub acknowledged: [AtomicU64; BELLS],
    pub acknowledged_at: [AtomicI64; BELLS],
    pub slots: [Slot; WORKERS_MAX],
}

/// What a slot is doing, as far as the launcher is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// No worker.
    Free = 0,
    /// A worker was asked for or runs.
    Busy = 1,
}

/// Why a worker left; unset if it crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    Crashed = 0,
    Stopped = 1,
    NoExtension = 2,
}

/// One relay worker.
#[repr(C)]
pub struct Slot {
    pub phase: AtomicU8,
    /// Grows with every worker, so that a late one finds its place taken.
    pub generation: AtomicU32,
    pub outcome: AtomicU8,
    /// The worker is to stop.
    pub stop: AtomicBool,
    /// Peers or an operator have changed something: the worker is to look again.
    pub called: AtomicBool,
    /// Something was committed of which the bucket is not known.
    unknown: AtomicBool,
    pub pid: AtomicI32,
    latch: AtomicPtr<pg_sys::Latch>,
    pub state: AtomicU8,
    pub state_since: AtomicI64,
    pub batches: AtomicU64,
    pub messages: AtomicU64,
    pub bytes: AtomicU64,
    pub errors: AtomicU64,
    pub last_error_at: AtomicI64,
    pub stats_reset: AtomicI64,
    relay_id: Text<96>,
    last_error: Text<512>,
}

/// A text of bounded length, guarded by the block's lock.
#[repr(C)]
struct Text<const N: usize> {
    len: AtomicU32,
    bytes: std::cell::UnsafeCell<[u8; N]>,
}

static SHARED: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());

/// The block, or `None` when the library was not preloaded.
pub fn header() -> Option<&'static Header> {
    // SAFETY: the pointer is set once, by `startup`, to memory that lives as long as the process.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

fn size() -> usize {
    size_of::<Header>() + gucs::max_databases() * size_of::<Database>() + processes() * size_of::<Committer>()
}

fn processes() -> usize {
    // SAFETY: set before the request hooks are called, and not changed after that.
    usize::try_from(unsafe { pg_sys::MaxBackends }).expect("the server has room for sessions")
}

/// Asks for the block; called in the request hook.
pub fn request() {
    // SAFETY: the request hook is where these may be called.
    unsafe {
        pg_sys::RequestAddinShmemSpace(size());
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), 1);
    }
}

/// Makes or finds the block; called in the startup hook of the postmaster.
pub fn startup() {
    // SAFETY: AddinShmemInitLock guards the initialisation as the server demands. Zeroed memory is a valid `Header` and
    // `Database` (atomics, numbers and byte arrays), and what must not be zero is set before the pointer is published.
    unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let mut found = false;
        let header: *mut Header = pg_sys::ShmemInitStruct(TRANCHE.as_ptr(), size(), &mut found).cast();
        if !found {
            std::ptr::write_bytes(header.cast::<u8>(), 0, size());
            (*header).lock = &raw mut (*pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr())).lock;
            (*header).databases = gucs::max_databases();
            (*header).processes = processes();
            let mut boot = 0u64;
            if !pg_sys::pg_strong_random((&raw mut boot).cast::<c_void>(), size_of::<u64>()) {
                boot = pg_sys::GetCurrentTimestamp() as u64;
            }
            (*header).boot = boot;
            for database in (*header).databases() {
                database.clear();
            }
            for committer in (*header).committers() {
                committer.lowest.store(SILENT, Ordering::Relaxed);
            }
        }
        SHARED.store(header, Ordering::Release);
        pg_sys::LWLockRelease(lock);
    }
}

/// Index of AddinShmemInitLock in the main lock array (lwlocknames.txt); the same in PostgreSQL 13 to 18.
const ADDIN_SHMEM_INIT_LOCK: usize = 21;

impl Header {
    /// Tells the boots of one server instance apart.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// A number that no other relay of this boot has.
    pub fn next_relay(&self) -> u64 {
        self.relays.fetch_add(1, Ordering::Relaxed)
    }

    /// All entries, free ones included.
    pub fn databases(&self) -> &'static [Database] {
        // SAFETY: `startup` made room for so many entries right behind the header, whose size is a multiple of their
        // alignment (both hold 8-byte numbers).
        unsafe {
            let first: *const Database = std::ptr::from_ref(self).add(1).cast();
            std::slice::from_raw_parts(first, self.databases)
        }
    }

    fn committers(&self) -> &'static [Committer] {
        // SAFETY: `startup` made room for so many behind the databases, whose size is a multiple of their alignment.
        unsafe {
            let first: *const Committer = self.databases().as_ptr_range().end.cast();
            std::slice::from_raw_parts(first, self.processes)
        }
    }

    fn my_committer(&self) -> Option<&'static Committer> {
        // SAFETY: this process's own number; ordinary processes are numbered below `processes`.
        let number = unsafe { if pg_sys::MyProc.is_null() { return None } else { (*pg_sys::MyProc).pgprocno } };
        self.committers().get(usize::try_from(number).ok()?)
    }

    /// From now until `has_rung` this process may make rows visible whose ids are `lowest` or above.
    pub fn will_ring(&self, database: pg_sys::Oid, lowest: i64) {
        if let Some(committer) = self.my_committer() {
            committer.database.store(database.to_u32(), Ordering::Relaxed);
            committer.lowest.store(lowest, Ordering::SeqCst);
        }
    }

    /// The bells are rung, or nothing was made visible.
    pub fn has_rung(&self) {
        if let Some(committer) = self.my_committer()
            && committer.lowest.load(Ordering::Relaxed) != SILENT
        {
            committer.lowest.store(SILENT, Ordering::SeqCst);
        }
    }

    /// The lowest id of rows that may be visible without having been rung for.
    fn lowest_unrung(&self, database: u32) -> i64 {
        self.committers()
            .iter()
            .map(|committer| (committer.lowest.load(Ordering::SeqCst), committer))
            .filter(|(lowest, committer)| *lowest != SILENT && committer.database.load(Ordering::Relaxed) == database)
            .map(|(lowest, _)| lowest)
            .min()
            .unwrap_or(SILENT)
    }

    /// The entry of a database.
    pub fn database(&self, oid: pg_sys::Oid) -> Option<&'static Database> {
        self.databases().iter().find(|database| database.oid.load(Ordering::Acquire) == oid.to_u32())
    }

    /// The launcher wakes by this latch; null when it leaves.
    pub fn set_launcher(&self, latch: *mut pg_sys::Latch) {
        self.launcher.store(latch, Ordering::Release);
    }

    /// Asks the launcher to look at a database, or with 0 at the list of databases.
    pub fn announce(&self, oid: u32) {
        let free = |slot: &&AtomicU32| {
            let value = slot.compare_exchange(0, oid, Ordering::AcqRel, Ordering::Acquire);
            value.is_ok() || value == Err(oid)
        };
        if oid != 0 && self.announced.iter().find(free).is_none() {
            self.announced_overflow.store(true, Ordering::Release);
        }
        set_latch(&self.launcher);
    }

    /// The databases announced since the last call; `None` when there were too many to keep.
    pub fn take_announced(&self) -> Option<Vec<u32>> {
        let announced =
            self.announced.iter().map(|slot| slot.swap(0, Ordering::AcqRel)).filter(|oid| *oid != 0).collect();
        if self.announced_overflow.swap(false, Ordering::AcqRel) { None } else { Some(announced) }
    }

    fn locked<T>(&self, mode: pg_sys::LWLockMode::Type, work: impl FnOnce() -> T) -> T {
        // SAFETY: the lock was made by `startup`. The work copies bytes and cannot fail, and an ERROR elsewhere releases
        // all such locks.
        unsafe {
            pg_sys::LWLockAcquire(self.lock, mode);
            let result = work();
            pg_sys::LWLockRelease(self.lock);
            result
        }
    }
}

impl Database {
    /// Makes the entry as new. Nobody else may use it.
    pub fn clear(&self) {
        self.blocked_by.store(0, Ordering::Relaxed);
        self.served.store(false, Ordering::Relaxed);
        for bucket in 0..BELLS {
            self.bells[bucket].store(SILENT, Ordering::Relaxed);
            self.listeners[bucket].store(0, Ordering::Relaxed);
            self.acknowledged[bucket].store(0, Ordering::Relaxed);
            self.acknowledged_at[bucket].store(0, Ordering::Relaxed);
        }
        self.oid.store(0, Ordering::Release);
    }

    /// A commit has made row `id` of `bucket` visible.
    pub fn ring(&self, bucket: u32, id: i64) {
        let Some(bell) = self.bells.get(bucket as usize) else { return self.ring_unknown() };
        // Only the first ring since the relay last took it needs to wake anybody.
        if bell.fetch_min(id, Ordering::AcqRel) == SILENT {
            let listener = self.listeners[bucket as usize].load(Ordering::Acquire);
            if let Some(slot) = listener.checked_sub(1).and_then(|slot| self.slots.get(slot as usize)) {
                slot.wake();
            }
        }
    }

    /// A commit has made rows visible of which nothing is known.
    pub fn ring_unknown(&self) {
        for slot in &self.slots {
            slot.unknown.store(true, Ordering::Release);
            slot.wake();
        }
    }

    /// The lowest id that was rung since the last call, if `slot` still listens for the bucket.
    pub fn take_bell(&self, header: &Header, slot: usize, bucket: u32) -> Option<i64> {
        let bell = self.bells.get(bucket as usize)?;
        // The plain load first: a swap would fetch the line for writing, a thousand times a turn.
        if bell.load(Ordering::Acquire) == SILENT {
            return None;
        }
        // Nobody begins to listen in between: what is rung from then on is meant for that one.
        header.locked(pg_sys::LWLockMode::LW_SHARED, || {
            let listens = self.listeners[bucket as usize].load(Ordering::Acquire) == slot as u16 + 1;
            listens.then(|| bell.swap(SILENT, Ordering::SeqCst)).filter(|id| *id != SILENT)
        })
    }

    /// The lowest id that a snapshot taken before this call may show in a bucket although the relay has not been told of
    /// it: who has made rows visible has rung for them, or is still about to. The order matters, for a committer rings
    /// first and then takes back that it will. `slot` is that of the relay.
    pub fn lowest_untold(&self, header: &Header, slot: &Slot, bucket: u32) -> i64 {
        let unrung = header.lowest_unrung(self.oid.load(Ordering::Relaxed));
        if slot.unknown.load(Ordering::SeqCst) {
            return i64::MIN;
        }
        let rung = self.bells.get(bucket as usize).map_or(SILENT, |bell| bell.load(Ordering::SeqCst));
        unrung.min(rung)
    }

    /// From now on `slot`, and nobody else, is woken for these buckets.
    pub fn listen(&self, header: &Header, slot: usize, buckets: &std::collections::BTreeSet<u32>) {
        header.locked(pg_sys::LWLockMode::LW_EXCLUSIVE, || {
            for bucket in buckets {
                self.listeners[*bucket as usize].store(slot as u16 + 1, Ordering::SeqCst);
            }
        });
    }

    /// Asks all relays to look at everything again: rows of any bucket, the fair share, whatever an operator may change.
    pub fn call_all(&self) {
        for slot in &self.slots {
            slot.called.store(true, Ordering::Release);
        }
        self.ring_unknown();
    }

    /// From now on `slot` is not woken for these buckets.
    pub fn stop_listening(&self, slot: usize, buckets: impl IntoIterator<Item = u32>) {
        for bucket in buckets {
            let listener = &self.listeners[bucket as usize];
            let _ = listener.compare_exchange(slot as u16 + 1, 0, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// From now on `slot` is not woken for any bucket.
    pub fn stop_listening_at_all(&self, slot: usize) {
        self.stop_listening(slot, 0..BELLS as u32);
    }

    /// Asks all relays but `me` to look at the fair share now.
    pub fn call_peers(&self, me: usize) {
        for (_, slot) in self.slots.iter().enumerate().filter(|(index, _)| *index != me) {
            slot.called.store(true, Ordering::Release);
            slot.wake();
        }
    }

    /// Whether a worker of this database was asked for or runs.
    pub fn has_workers(&self) -> bool {
        self.slots.iter().any(|slot| slot.phase() == Phase::Busy)
    }

    /// Whether the worker of a slot is to leave: it was asked to, or a backend needs the database for itself.
    pub fn must_leave(&self, slot: usize) -> bool {
        self.slots[slot].stop.load(Ordering::Acquire) || self.blocked_by.load(Ordering::Acquire) != 0
    }

    /// Asks all workers to leave.
    pub fn stop_all(&self) {
        for slot in &self.slots {
            slot.stop.store(true, Ordering::Release);
            slot.wake();
        }
    }
}

impl Slot {
    pub fn phase(&self) -> Phase {
        if self.phase.load(Ordering::Acquire) == Phase::Free as u8 { Phase::Free } else { Phase::Busy }
    }

    pub fn outcome(&self) -> Outcome {
        match self.outcome.load(Ordering::Acquire) {
            1 => Outcome::Stopped,
            2 => Outcome::NoExtension,
            _ => Outcome::Crashed,
        }
    }

    pub fn set_outcome(&self, outcome: Outcome) {
        self.outcome.store(outcome as u8, Ordering::Release);
    }

    /// Makes the slot ready for a worker and returns its generation.
    pub fn prepare(&self) -> u32 {
        self.stop.store(false, Ordering::Relaxed);
        self.called.store(false, Ordering::Relaxed);
        self.outcome.store(Outcome::Crashed as u8, Ordering::Relaxed);
        for counter in [&self.batches, &self.messages, &self.bytes, &self.errors] {
            counter.store(0, Ordering::Relaxed);
        }
        self.last_error_at.store(0, Ordering::Relaxed);
        self.set_relay_id("");
        self.last_error.write("");
        self.pid.store(0, Ordering::Relaxed);
        self.state.store(0, Ordering::Relaxed);
        self.phase.store(Phase::Busy as u8, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1)
    }

    /// The worker has left or never came.
    pub fn vacate(&self) {
        self.set_latch(std::ptr::null_mut());
        self.set_relay_id("");
        self.pid.store(0, Ordering::Release);
        self.phase.store(Phase::Free as u8, Ordering::Release);
    }

    pub fn set_latch(&self, latch: *mut pg_sys::Latch) {
        self.latch.store(latch, Ordering::Release);
    }

    pub fn wake(&self) {
        set_latch(&self.latch);
    }

    /// Whether something was committed since the last call of which the bucket is not known.
    pub fn take_unknown(&self) -> bool {
        self.unknown.load(Ordering::Acquire) && self.unknown.swap(false, Ordering::AcqRel)
    }

    pub fn relay_id(&self) -> String {
        self.relay_id.read()
    }

    pub fn set_relay_id(&self, relay_id: &str) {
        self.relay_id.write(relay_id);
    }

    pub fn last_error(&self) -> String {
        self.last_error.read()
    }

    /// Counts a failure and keeps its text.
    pub fn note_error(&self, text: &str, at: i64) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.last_error.write(text);
        self.last_error_at.store(at, Ordering::Relaxed);
    }
}

impl<const N: usize> Text<N> {
    fn read(&self) -> String {
        let Some(header) = header() else { return String::new() };
        header.locked(pg_sys::LWLockMode::LW_SHARED, || {
            let len = (self.len.load(Ordering::Relaxed) as usize).min(N);
            // SAFETY: the lock is held, so nobody writes.
            let bytes = unsafe { &(&*self.bytes.get())[..len] };
            String::from_utf8_lossy(bytes).into_owned()
        })
    }

    fn write(&self, text: &str) {
        let Some(header) = header() else { return };
        let len = (0..=text.len().min(N)).rev().find(|len| text.is_char_boundary(*len)).unwrap_or(0);
        header.locked(pg_sys::LWLockMode::LW_EXCLUSIVE, || {
            // SAFETY: the lock is held exclusively.
            unsafe { (&mut *self.bytes.get())[..len].copy_from_slice(&text.as_bytes()[..len]) };
            self.len.store(len as u32, Ordering::Relaxed);
        });
    }
}

fn set_latch(latch: &AtomicPtr<pg_sys::Latch>) {
    let latch = latch.load(Ordering::Acquire);
    if !latch.is_null() {
        // SAFETY: latches lie in the server's process array, which is never freed; waking a process that took over the
        // place of one that left is harmless. SetLatch raises no error, so it may be called in a commit callback.
        unsafe { pg_sys::SetLatch(latch) };
    }
}
