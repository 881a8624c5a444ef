//! Memory that the clock does not wait for.
//!
//! Reason: a hypervisor may take back what is free and give it again page by page, at the first touch. Measured: where the memory
//! had just been in use, writing a gigabyte to files in memory took 0.4 s of the system's processor time, elsewhere 2.7 s. Ten
//! million messages are gigabytes of files, so that the drain would be a measurement of that, more so the larger it is.
//!
//! Rule: before the clock runs, so much of the free memory is touched once as the messages will need, whoever sends them.

use std::fs;
use std::thread;

use anyhow::{Context, Result};

use crate::messages::Messages;

/// What a message needs beside its value, in log, WAL, and pages that are written.
const BESIDE_THE_VALUE: u64 = 400;
/// Threads that touch.
const THREADS: u64 = 2;

/// Touches as much free memory as these messages need, or most of what there is.
pub fn touch(messages: &Messages) -> Result<()> {
    let needed = messages.count * (messages.value_bytes as u64 + BESIDE_THE_VALUE);
    let each = needed.min(free()? / 8 * 7) / THREADS;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            // What is not zero has to be written.
            scope.spawn(move || std::hint::black_box(vec![1u8; each as usize]));
        }
    });
    Ok(())
}

/// Memory that nobody uses, in bytes; caches are not free.
fn free() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:")).context("MemFree in /proc/meminfo")?;
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().context("MemFree in /proc/meminfo")?;
    Ok(kilobytes * 1024)
}
