//! How much may be in flight.
//!
//! Reason: everything submitted is held twice in memory, here and in the client, until the broker answers; in an outage
//! that is for long. So the sum over all buckets is bounded by rows and by bytes, whatever the number of buckets.
//!
//! Rule: a batch may start while both sums are below their limits. The batch that passes a limit is the last, so the
//! bound is the limit plus one batch, and a row larger than the limit still gets through, alone.

/// Most rows in flight, over all buckets of a relay.
pub const ROWS_MAX: usize = 100_000;
/// Most bytes in flight, over all buckets of a relay.
pub const BYTES_MAX: usize = 32 << 20;

/// What is in flight now.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    rows: usize,
    bytes: usize,
}

impl Window {
    /// Whether another batch may start.
    #[must_use]
    pub fn open(&self) -> bool {
        self.rows < ROWS_MAX && self.bytes < BYTES_MAX
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
        assert!(window.open());
        window.add(ROWS_MAX, 0);
        assert!(!window.open());
        window.remove(ROWS_MAX, 0);
        window.add(1, 2 * BYTES_MAX);
        assert!(!window.open(), "a large row goes alone");
        window.remove(1, 2 * BYTES_MAX);
        assert_eq!(window, Window::default());
    }
}
