//! A relay holds the memory that it needs now, not the most that it ever needed.
//!
//! Reason: it lives as long as the server, mostly with nothing to do, and shares the host with what people run a database for.
//! Left alone, glibc raises the size from which on it gives memory back to that of the largest block that was freed: messages of
//! a megabyte then come from heaps that keep their gaps, and a relay holds twice the memory that its settings allow. And the gaps
//! that small messages have left stay below what large ones take later.
//!
//! Rule: large blocks are given back as soon as they are free; everything else that is free, once the relay has had nothing to
//! do for a second.

use std::time::Duration;

/// A relay that rests for so long gives back what it does not need.
pub const AFTER: Duration = Duration::from_secs(1);

/// From now on blocks above 128 kB are given back at once; first thing in a worker, before there are other threads.
#[cfg(target_env = "gnu")]
pub fn give_back_large_blocks() {
    const LARGE: libc::c_int = 128 << 10;
    // SAFETY: sets a number of the allocator's; no other thread of the process exists yet.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
}

/// Gives back everything that is free, of all heaps. Other threads wait meanwhile where they want memory.
#[cfg(target_env = "gnu")]
pub fn give_back_what_is_free() {
    // SAFETY: no preconditions, from any thread.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
pub fn give_back_large_blocks() {}

#[cfg(not(target_env = "gnu"))]
pub fn give_back_what_is_free() {}
