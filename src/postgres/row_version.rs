//! Which version of a row was read: the transaction that wrote it, and where it lies.
//!
//! Reason: an id tells a message, but not whether it is still the row that was published. An UPDATE writes another version,
//! and after a TRUNCATE or a reset sequence another row may have the id.

use pgrx::pg_sys;

/// A version of a row. Together the two name one as long as its table is not rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowVersion {
    /// The transaction that wrote it.
    pub xmin: u32,
    /// The block of the table in which it lies.
    pub block: u32,
    /// Its number in that, from 1.
    pub offset: u16,
}

/// Bytes of a version in the handle of a message.
pub const BYTES: usize = 10;

impl RowVersion {
    /// Of a row that lies at this place.
    pub fn new(xmin: u32, place: pg_sys::ItemPointerData) -> Self {
        let block = u32::from(place.ip_blkid.bi_hi) << 16 | u32::from(place.ip_blkid.bi_lo);
        Self { xmin, block, offset: place.ip_posid }
    }

    /// As it was given to a message.
    pub fn of(handle: &[u8]) -> Self {
        let handle: [u8; BYTES] = handle.try_into().expect("this store gave it");
        let [x0, x1, x2, x3, b0, b1, b2, b3, o0, o1] = handle;
        Self {
            xmin: u32::from_ne_bytes([x0, x1, x2, x3]),
            block: u32::from_ne_bytes([b0, b1, b2, b3]),
            offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    /// As a message keeps it.
    pub fn handle(self) -> [u8; BYTES] {
        let mut handle = [0; BYTES];
        handle[..4].copy_from_slice(&self.xmin.to_ne_bytes());
        handle[4..8].copy_from_slice(&self.block.to_ne_bytes());
        handle[8..].copy_from_slice(&self.offset.to_ne_bytes());
        handle
    }

    /// Where it lies.
    pub fn place(self) -> pg_sys::ItemPointerData {
        let ip_blkid = pg_sys::BlockIdData { bi_hi: (self.block >> 16) as u16, bi_lo: self.block as u16 };
        pg_sys::ItemPointerData { ip_blkid, ip_posid: self.offset }
    }
}
