//! Kafka's murmur2 and the partition that a Java producer chooses for a key.
//!
//! Written from the algorithm's definition and checked against the vectors of the Java client; it shares no line with
//! the extension.

const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;

/// The hash as Java prints it: signed.
pub fn hash(bytes: &[u8]) -> i32 {
    let mut state = SEED ^ bytes.len() as u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(MULTIPLIER);
        k ^= k >> 24;
        state = state.wrapping_mul(MULTIPLIER) ^ k.wrapping_mul(MULTIPLIER);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0u32, |tail, byte| (tail << 8) | u32::from(*byte));
        state = (state ^ tail).wrapping_mul(MULTIPLIER);
    }
    state = (state ^ (state >> 13)).wrapping_mul(MULTIPLIER);
    (state ^ (state >> 15)) as i32
}

/// The partition of a key among `partitions`.
pub fn partition(key: &[u8], partitions: i32) -> i32 {
    (hash(key) & 0x7fff_ffff) % partitions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_java_client() {
        for (key, expected) in [
            ("", 275_646_681),
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("abc", 479_470_107),
            ("a", -1_563_381_124),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("order-12345", -1_747_359_319),
            ("ключ", 2_122_343_024),
        ] {
            assert_eq!(hash(key.as_bytes()), expected, "hash of {key:?}");
        }
        assert_eq!(hash(&[0]), 375_494_588);
        assert_eq!(hash(&[0, 0, 0, 0]), 850_957_120);
    }

    #[test]
    fn the_sign_is_masked_not_negated() {
        assert_eq!(partition(b"order-12345", 8), 1);
        assert_eq!(partition(b"foobar", 8), 6);
        assert_eq!(partition(b"order-1", 4), 2);
        assert_eq!(partition(b"", 7), 2);
    }
}
