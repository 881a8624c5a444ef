//! Which bucket keeps a key's order.
//!
//! Reason: a bucket is published by one relay at a time, so messages that must stay in order must share one. The rule is
//! Kafka's own partitioner hash, so that with as many buckets as partitions one bucket feeds one partition. Buckets are
//! stored with the rows, hence this hash is frozen for ever.
//!
//! Rule (first that applies): an explicit partition `p` gives `p mod N`; a key, the empty one included, gives
//! `(murmur2(key) & 0x7fffffff) mod N`; without a key the same hash of the message id's 16 bytes spreads the rows.

/// Smallest number of buckets of a database.
pub const BUCKET_COUNT_MIN: u32 = 1;
/// Largest number of buckets of a database: bells and lease rows are sized by it.
pub const BUCKET_COUNT_MAX: u32 = 1024;
/// Number of buckets of a database that says nothing else.
pub const BUCKET_COUNT_DEFAULT: u32 = 8;

/// A bucket, from 0 to the bucket count less one.
pub type Bucket = u32;

/// The bucket of a message. `partition` must not be negative, which the caller checks as input.
///
/// # Panics
/// When `bucket_count` is zero, which no stored setting can be.
#[must_use]
pub fn bucket_of(partition: Option<u32>, key: Option<&[u8]>, message_id: &[u8; 16], bucket_count: u32) -> Bucket {
    assert!(bucket_count >= BUCKET_COUNT_MIN, "a database has at least one bucket");
    match (partition, key) {
        (Some(partition), _) => partition % bucket_count,
        (None, Some(key)) => hash(key) % bucket_count,
        (None, None) => hash(message_id) % bucket_count,
    }
}

/// The partition on which the default partitioner of Kafka's Java clients puts a key.
///
/// # Panics
/// When `partitions` is zero.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    hash(key) % partitions
}

fn hash(bytes: &[u8]) -> u32 {
    murmur2(bytes) & 0x7fff_ffff
}

/// Kafka's murmur2 (seed 0x9747b28c), as Java clients compute it; the sign bit is theirs to drop.
#[must_use]
pub fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;

    // Keys are far below 4 GiB: Postgres limits a value to 1 GiB.
    let mut h = SEED ^ bytes.len() as u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> R;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        for (i, byte) in tail.iter().enumerate() {
            h ^= u32::from(*byte) << (8 * i);
        }
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_ID: [u8; 16] = [0; 16];

    #[test]
    fn hash_is_that_of_kafkas_java_clients() {
        let vectors: [(&[u8], i32); 15] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"abc", 479_470_107),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"", 275_646_681),
            (b"order-12345", -1_747_359_319),
            (b"stable-key", 1_685_546_729),
            (b"order-1", 1_221_710_326),
            (b"some-key", 590_116_742),
            (b"a", -1_563_381_124),
            (b"\0", 375_494_588),
            (b"\0\0\0\0", 850_957_120),
            ("ключ".as_bytes(), 2_122_343_024),
            (b"key-2", 852_269_702),
        ];
        for (key, expected) in vectors {
            assert_eq!(murmur2(key) as i32, expected, "{key:?}");
        }
    }

    #[test]
    fn a_key_lies_on_the_partition_of_its_masked_hash() {
        let expected: [(&[u8], u32, u32); 4] =
            [(b"order-12345", 8, 1), (b"foobar", 8, 6), (b"order-1", 4, 2), (b"", 7, 2)];
        for (key, partitions, partition) in expected {
            assert_eq!(partition_of(key, partitions), partition, "{key:?} of {partitions}");
        }
    }

    #[test]
    fn a_key_has_one_bucket() {
        let expected: [(&[u8], u32, u32); 12] = [
            (b"", 8, 1),
            (b"", 7, 2),
            (b"order-12345", 8, 1),
            (b"order-12345", 7, 3),
            (b"stable-key", 8, 1),
            (b"order-1", 8, 6),
            (b"order-1", 4, 2),
            (b"foobar", 8, 6),
            (b"\0", 8, 4),
            (b"\0\0\0\0", 8, 0),
            (b"key-1", 8, 0),
            ("ключ".as_bytes(), 8, 0),
        ];
        for (key, count, bucket) in expected {
            assert_eq!(bucket_of(None, Some(key), &NO_ID, count), bucket, "{key:?} of {count}");
        }
    }

    #[test]
    fn an_explicit_partition_wins_over_the_key() {
        assert_eq!(bucket_of(Some(5), Some(b"abc"), &NO_ID, 8), 5);
        assert_eq!(bucket_of(Some(13), None, &NO_ID, 8), 5);
        assert_eq!(bucket_of(Some(2), Some(b""), &NO_ID, 4), 2);
    }

    #[test]
    fn without_a_key_the_message_id_in_rfc_order_spreads() {
        let id = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
        assert_eq!(murmur2(&id), 1_740_243_650);
        assert_eq!(bucket_of(None, None, &id, 8), 2);
        let id = [0x3f, 0x25, 0x04, 0xe0, 0x4f, 0x89, 0x11, 0xd3, 0x9a, 0x0c, 0x03, 0x05, 0xe8, 0x2c, 0x33, 0x01];
        assert_eq!(murmur2(&id) as i32, -1_176_323_000);
        assert_eq!(bucket_of(None, None, &id, 8), 0);
    }

    #[test]
    fn one_bucket_takes_everything() {
        for key in [&b""[..], b"a", b"order-1"] {
            assert_eq!(bucket_of(None, Some(key), &NO_ID, 1), 0);
        }
    }

    #[test]
    fn every_bucket_is_in_range() {
        for i in 0u32..1000 {
            assert!(bucket_of(None, Some(&i.to_be_bytes()), &NO_ID, 7) < 7);
        }
    }
}
