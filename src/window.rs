//! How much may be in flight.
//!
//! Reason: everything submitted is held twice in memory, here and in the client, until the broker answers; in an outage
//! that is for long. So the sum over all buckets is bounded by rows and by bytes, whatever the number of buckets.
//!
//! Rule: a batch may start while both sums are below their limits. The batch that passes a limit is the last, so the
//! bound is the limit plus one batch, and a row larger than the limit still gets through, alone.

use crate::broken::{Rule, broken};

/// Most rows in flight, over all buckets of a relay, where nothing else is said.
pub const ROWS_MAX: usize = 100_000;
/// Most bytes in flight, over all buckets of a relay, where nothing else is said.
pub const BYTES_MAX: usize = 32 << 20;

/// How much may be in flight, over all buckets of a relay; each at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Rows.
    pub rows: usize,
    /// Bytes of keys, values and headers.
    pub bytes: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { rows: ROWS_MAX, bytes: BYTES_MAX }
    }
}

/// What is in flight now.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    rows: usize,
    bytes: usize,
}

impl Window {
    /// Whether another batch may start.
    #[must_use]
    pub fn open(&self, size: Size) -> bool {
        (self.rows < size.rows && self.bytes < size.bytes) || broken(Rule::Window)
    }

    /// A batch starts.
    pub fn add(&mut self, rows: usize, bytes: usize) {
        self.rows += rows;
        self.bytes += bytes;
    }

    /// A batch has ended.
    pub fn remove(&mut self, rows: usize, bytes: usize) {
        self.rows -= rows;
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_at_either_limit_and_opens_again() {
        let mut window = Window::default();
        let size = Size { rows: 10, bytes: 1000 };
        assert!(window.open(size));
        window.add(10, 0);
        assert!(!window.open(size));
        window.remove(10, 0);
        window.add(1, 2000);
        assert!(!window.open(size), "a large row goes alone");
        window.remove(1, 2000);
        window.add(9, 999);
        assert!(window.open(size), "the next batch may pass the limit");
        window.remove(9, 999);
        assert_eq!(window, Window::default());
    }
}
