//! Headers: from JSON at enqueue, as one blob in the row, to a list at publish.
//!
//! Reason: a JSON object keeps neither order nor duplicate names, and JSON has no bytes. So the row stores a small binary
//! encoding that keeps order, duplicates, and the difference between a null and an empty value; and parsing JSON is paid
//! for by the writer once, not by the relay at every attempt.
//!
//! Encoding, version 1, integers little-endian: a byte 1; int32 count; for each header int32 name length,
//! name in UTF-8, int32 value length or -1 for null, value bytes.

use base64::Engine as _;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::trace_context::TraceContext;

/// The header that identifies every copy of a message; consumers drop a copy whose id they have seen.
pub const MESSAGE_ID_HEADER: &str = "x-outbox-message-id";
/// Most headers that one message may carry.
pub const HEADERS_MAX: usize = 1000;
/// Longest name of a header, in bytes. Kafka has no limit of its own: what is longer is a value in the wrong place.
pub const NAME_LEN_MAX: usize = 1024;

const VERSION: u8 = 1;

/// A header as it travels: the name and the value, which may be null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header<'a> {
    /// Name in UTF-8; the same name may occur more than once.
    pub name: &'a str,
    /// Value bytes; null is not the same as empty.
    pub value: Option<&'a [u8]>,
}

/// Why a JSON value is not a set of headers, or a stored blob cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// The text of the parser, which says what was expected where.
    #[error("{0}")]
    Json(String),
    /// More headers than [`HEADERS_MAX`].
    #[error("{0} headers, but at most {HEADERS_MAX} are allowed")]
    TooMany(usize),
    /// A name longer than [`NAME_LEN_MAX`].
    #[error("a header name of {0} bytes, but at most {NAME_LEN_MAX} are allowed")]
    NameTooLong(usize),
    /// The stored bytes are not of a version that this library reads.
    #[error("stored headers have an unknown version {0}")]
    Version(u8),
    /// The stored bytes end early or hold impossible lengths.
    #[error("stored headers are damaged")]
    Damaged,
}

/// Reads headers from JSON text, an object or an array of [name, value] pairs, and encodes them. None at all give `None`.
///
/// # Errors
/// When the text is neither, a value is neither a string, null, nor `{"base64": ...}`, or there is too much of something.
pub fn from_json(json: &str) -> Result<Option<Vec<u8>>, HeadersError> {
    Ok(encode(parse(json)?.iter().map(as_header)))
}

/// As [`from_json`], with the trace context behind the message's own headers, which may be none.
///
/// # Errors
/// As [`from_json`].
pub fn with_trace_context(json: Option<&str>, context: &TraceContext<'_>) -> Result<Option<Vec<u8>>, HeadersError> {
    let own = json.map(parse).transpose()?.unwrap_or_default();
    let added = context.headers(|name| own.iter().any(|(own, _)| own.eq_ignore_ascii_case(name)));
    Ok(encode(own.iter().map(as_header).chain(added)))
}

fn parse(json: &str) -> Result<Vec<(String, HeaderValue)>, HeadersError> {
    let List(list) = serde_json::from_str(json).map_err(|error| HeadersError::Json(strip_place(&error)))?;
    if list.len() > HEADERS_MAX {
        return Err(HeadersError::TooMany(list.len()));
    }
    match list.iter().map(|(name, _)| name.len()).find(|len| *len > NAME_LEN_MAX) {
        Some(len) => Err(HeadersError::NameTooLong(len)),
        None => Ok(list),
    }
}

fn as_header((name, value): &(String, HeaderValue)) -> Header<'_> {
    Header { name, value: value.0.as_deref() }
}

/// The parser's position counts in a normalised text that the caller never wrote, so it would mislead.
fn strip_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_owned())
}

/// Encodes headers; none give `None`, which is stored as null.
pub fn encode<'a>(headers: impl Iterator<Item = Header<'a>>) -> Option<Vec<u8>> {
    let mut blob = vec![VERSION, 0, 0, 0, 0];
    let mut count: i32 = 0;
    for header in headers {
        count += 1;
        put(&mut blob, Some(header.name.as_bytes()));
        put(&mut blob, header.value);
    }
    blob[1..5].copy_from_slice(&count.to_le_bytes());
    (count > 0).then_some(blob)
}

fn put(blob: &mut Vec<u8>, bytes: Option<&[u8]>) {
    let len = bytes.map_or(-1, |bytes| i32::try_from(bytes.len()).expect("a Postgres value is below 1 GiB"));
    blob.extend_from_slice(&len.to_le_bytes());
    blob.extend_from_slice(bytes.unwrap_or_default());
}

/// Reads the headers of a stored blob in their order.
///
/// # Errors
/// When the blob is of another version or damaged; the count is checked before anything is allocated for it.
pub fn decode(blob: &[u8]) -> Result<Vec<Header<'_>>, HeadersError> {
    let (&version, mut rest) = blob.split_first().ok_or(HeadersError::Damaged)?;
    if version != VERSION {
        return Err(HeadersError::Version(version));
    }
    let count = usize::try_from(take_i32(&mut rest)?).map_err(|_| HeadersError::Damaged)?;
    // A header takes at least its two lengths.
    if count > rest.len() / 8 {
        return Err(HeadersError::Damaged);
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let name = take(&mut rest)?.ok_or(HeadersError::Damaged)?;
        let name = std::str::from_utf8(name).map_err(|_| HeadersError::Damaged)?;
        headers.push(Header { name, value: take(&mut rest)? });
    }
    if rest.is_empty() { Ok(headers) } else { Err(HeadersError::Damaged) }
}

fn take_i32(rest: &mut &[u8]) -> Result<i32, HeadersError> {
    let (bytes, tail) = rest.split_first_chunk::<4>().ok_or(HeadersError::Damaged)?;
    *rest = tail;
    Ok(i32::from_le_bytes(*bytes))
}

fn take<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, HeadersError> {
    let len = take_i32(rest)?;
    if len == -1 {
        return Ok(None);
    }
    let len = usize::try_from(len).map_err(|_| HeadersError::Damaged)?;
    let (bytes, tail) = rest.split_at_checked(len).ok_or(HeadersError::Damaged)?;
    *rest = tail;
    Ok(Some(bytes))
}

/// The headers of a blob as a JSON array of [name, value] pairs, which [`from_json`] reads back.
///
/// # Errors
/// As [`decode`].
pub fn to_json(blob: &[u8]) -> Result<String, HeadersError> {
    let headers = decode(blob)?;
    // No name that was enqueued holds one, for jsonb has none.
    if headers.iter().any(|header| header.name.contains('\0')) {
        return Err(HeadersError::Damaged);
    }
    let pairs = headers.into_iter().map(|header| {
        let value = match header.value.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
            None => serde_json::Value::Null,
            // jsonb cannot hold a NUL character.
            Some((_, Ok(text))) if !text.contains('\0') => text.into(),
            Some((bytes, _)) => {
                serde_json::json!({ "base64": base64::engine::general_purpose::STANDARD.encode(bytes) })
            }
        };
        serde_json::json!([header.name, value])
    });
    Ok(serde_json::Value::Array(pairs.collect()).to_string())
}

/// Bytes that the headers add to a record on the wire, the message id's included, as the client library counts them.
#[must_use]
pub fn wire_size(headers: &[Header<'_>]) -> usize {
    let id = varint_size(MESSAGE_ID_HEADER.len()) + MESSAGE_ID_HEADER.len() + varint_size(36) + 36;
    headers
        .iter()
        .map(|header| {
            let value = header.value.unwrap_or_default().len();
            varint_size(header.name.len()) + header.name.len() + varint_size(value) + value
        })
        .sum::<usize>()
        + id
}

/// Size of a length as a zigzag varint.
fn varint_size(len: usize) -> usize {
    let bits = usize::BITS - (len << 1).leading_zeros();
    (bits.max(1) as usize).div_ceil(7)
}

struct List(Vec<(String, HeaderValue)>);
struct HeaderValue(Option<Vec<u8>>);

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = List;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object or an array of [name, value] pairs")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<List, A::Error> {
                let mut list = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    list.push(entry);
                }
                Ok(List(list))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List, A::Error> {
                let mut list = Vec::new();
                while let Some(Pair(name, value)) = seq.next_element()? {
                    list.push((name, value));
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_any(ListVisitor)
    }
}

struct Pair(String, HeaderValue);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairVisitor;
        impl<'de> Visitor<'de> for PairVisitor {
            type Value = Pair;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a [name, value] pair")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Pair, A::Error> {
                let missing = || de::Error::custom("expected a [name, value] pair of two elements");
                let name = seq.next_element()?.ok_or_else(missing)?;
                let value = seq.next_element()?.ok_or_else(missing)?;
                match seq.next_element::<de::IgnoredAny>()? {
                    None => Ok(Pair(name, value)),
                    Some(_) => Err(missing()),
                }
            }
        }
        deserializer.deserialize_any(PairVisitor)
    }
}

impl<'de> Deserialize<'de> for HeaderValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueVisitor;
        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = HeaderValue;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a header value: a string, null or {\"base64\": \"...\"}")
            }
            fn visit_unit<E: de::Error>(self) -> Result<HeaderValue, E> {
                Ok(HeaderValue(None))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<HeaderValue, E> {
                Ok(HeaderValue(Some(text.as_bytes().to_vec())))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderValue, A::Error> {
                let wrong =
                    || de::Error::custom("expected a header value that is an object to be {\"base64\": \"...\"}");
                let (name, text) = map.next_entry::<String, String>()?.ok_or_else(wrong)?;
                if name != "base64" || map.next_key::<de::IgnoredAny>()?.is_some() {
                    return Err(wrong());
                }
                let bytes = base64::engine::general_purpose::STANDARD.decode(&text);
                let bytes = bytes.map_err(|error| {
                    let reason = error.to_string();
                    let reason = reason.trim_end_matches('.');
                    de::Error::custom(format!("invalid base64 of a header value: {reason}"))
                })?;
                Ok(HeaderValue(Some(bytes)))
            }
        }
        deserializer.deserialize_any(ValueVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(json: &str) -> Vec<(String, Option<Vec<u8>>)> {
        let blob = from_json(json).expect("headers").unwrap_or_else(|| vec![1, 0, 0, 0, 0]);
        let headers = decode(&blob).expect("a readable blob");
        headers.into_iter().map(|header| (header.name.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    }

    fn text(value: &str) -> Option<Vec<u8>> {
        Some(value.as_bytes().to_vec())
    }

    #[test]
    fn object_and_array_are_read() {
        let expected = vec![("a".to_owned(), text("1")), ("b".to_owned(), None), ("c".to_owned(), Some(vec![0, 255]))];
        assert_eq!(list(r#"{"a": "1", "b": null, "c": {"base64": "AP8="}}"#), expected);
        assert_eq!(list(r#"[["a", "1"], ["b", null], ["c", {"base64": "AP8="}]]"#), expected);
    }

    #[test]
    fn the_array_keeps_order_and_duplicates() {
        let expected = vec![("b".to_owned(), text("1")), ("a".to_owned(), text("")), ("b".to_owned(), text("ü"))];
        assert_eq!(list(r#"[["b", "1"], ["a", ""], ["b", "ü"]]"#), expected);
    }

    #[test]
    fn none_are_stored_as_null() {
        for json in ["{}", "[]"] {
            assert_eq!(from_json(json), Ok(None));
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let wrong = [
            "null",
            "1",
            "\"a\"",
            "true",
            r#"{"a": 1}"#,
            r#"{"a": true}"#,
            r#"{"a": []}"#,
            r#"{"a": {"base65": ""}}"#,
            r#"{"a": {}}"#,
            r#"{"a": {"base64": "?"}}"#,
            r#"{"a": {"base64": "AA==", "b": ""}}"#,
            r#"[["a"]]"#,
            r#"[["a", "b", "c"]]"#,
            r#"[{"a": "b"}]"#,
            r#"[[1, "b"]]"#,
            r#"["a", "b"]"#,
            r#"{"a": {"base64": null}}"#,
        ];
        for json in wrong {
            let error = from_json(json).expect_err(json);
            assert!(!error.to_string().contains("line"), "{error}");
        }
        let many = format!("[{}]", vec![r#"["a","b"]"#; HEADERS_MAX + 1].join(","));
        assert_eq!(from_json(&many), Err(HeadersError::TooMany(HEADERS_MAX + 1)));
        let named = |len| from_json(&format!(r#"{{"{}": null}}"#, "n".repeat(len)));
        assert!(named(NAME_LEN_MAX).is_ok());
        assert_eq!(named(NAME_LEN_MAX + 1), Err(HeadersError::NameTooLong(NAME_LEN_MAX + 1)));
    }

    #[test]
    fn trace_context_comes_behind_the_messages_own_headers() {
        let context = TraceContext { traceparent: "parent", tracestate: "state" };
        let added = |json| with_trace_context(json, &context).expect("headers");
        let as_given = |json: &str| from_json(json).expect("headers");
        let both = r#"["traceparent", "parent"], ["tracestate", "state"]"#;
        assert_eq!(added(None), as_given(&format!("[{both}]")));
        assert_eq!(added(Some("{}")), as_given(&format!("[{both}]")));
        assert_eq!(added(Some(r#"{"a": "1"}"#)), as_given(&format!(r#"[["a", "1"], {both}]"#)));
        let own = r#"{"TraceParent": null}"#;
        assert_eq!(added(Some(own)), as_given(own));
        assert!(with_trace_context(Some("1"), &context).is_err());
    }

    #[test]
    fn blob_has_the_documented_bytes() {
        let headers = [Header { name: "a", value: Some(b"x") }, Header { name: "", value: None }];
        let expected = [1, 2, 0, 0, 0, 1, 0, 0, 0, b'a', 1, 0, 0, 0, b'x', 0, 0, 0, 0, 255, 255, 255, 255];
        assert_eq!(encode(headers.into_iter()).as_deref(), Some(&expected[..]));
    }

    #[test]
    fn damaged_blobs_are_refused_before_anything_is_allocated() {
        assert_eq!(decode(&[]), Err(HeadersError::Damaged));
        assert_eq!(decode(&[2, 0, 0, 0, 0]), Err(HeadersError::Version(2)));
        assert_eq!(decode(&[1, 255, 255, 255, 127]), Err(HeadersError::Damaged));
        assert_eq!(decode(&[1, 255, 255, 255, 255]), Err(HeadersError::Damaged));
        let blob = from_json(r#"{"name": "value"}"#).expect("headers").expect("a blob");
        for len in 1..blob.len() {
            assert_eq!(decode(&blob[..len]), Err(HeadersError::Damaged), "cut to {len}");
        }
        assert_eq!(decode(&[&blob[..], &[0]].concat()), Err(HeadersError::Damaged));
    }

    #[test]
    fn json_of_a_blob_reads_back() {
        let json = r#"[["b","1"],["a",null],["b",{"base64":"AP8="}],["n",{"base64":"AA=="}]]"#;
        let blob = from_json(json).expect("headers").expect("a blob");
        assert_eq!(to_json(&blob).as_deref(), Ok(json));
    }

    #[test]
    fn wire_size_counts_names_values_and_the_message_id() {
        let id = 1 + 19 + 1 + 36;
        assert_eq!(wire_size(&[]), id);
        let long = vec![0; 64];
        let headers = [Header { name: "ab", value: Some(&long) }, Header { name: "c", value: None }];
        assert_eq!(wire_size(&headers), (1 + 2 + 2 + 64) + (1 + 1 + 1) + id);
        assert_eq!([0, 63, 64, 8191, 8192].map(varint_size), [1, 1, 2, 2, 3]);
    }
}
