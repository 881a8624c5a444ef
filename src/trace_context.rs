//! Trace context of a session, added as headers to messages that bring none.
//!
//! Reason: a consumer can join the trace of the request that wrote the message, but the SQL that enqueues it often is a
//! trigger or a function that knows nothing of the request. So the application says once, for its session or transaction,
//! where it is, as two settings. They are checked when they are set, by the grammar of W3C Trace Context: a consumer ignores
//! what does not follow it, and then nobody hears of the mistake.
//!
//! Rule: a message with a header `traceparent` keeps it and gets neither. Else it gets the setting's, and the setting's
//! `tracestate` unless it has one, which means nothing without its `traceparent`. Names compare without regard to case.

use crate::headers::Header;

/// Header with the position in the trace.
pub const TRACEPARENT: &str = "traceparent";
/// Header with what vendors add to it.
pub const TRACESTATE: &str = "tracestate";

/// Most members of a tracestate.
const MEMBERS_MAX: usize = 32;
/// Longest key, and longest value, of a member of a tracestate.
const PART_LEN_MAX: usize = 256;

/// Why a text is no trace context.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceContextError {
    /// The parts are not there or have other lengths.
    #[error("A traceparent has the form 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, in lower case.")]
    Form,
    /// The version that is reserved for "invalid".
    #[error("Version ff of a traceparent is not valid.")]
    Version,
    /// An id that says "none".
    #[error("The {0} of a traceparent must not be all zeros.")]
    Zero(&'static str),
    /// More members than 32.
    #[error("The tracestate has {0} members, but at most {MEMBERS_MAX} are allowed.")]
    Members(usize),
    /// A member is not key=value, or one of the two has a wrong character or length.
    #[error("\"{0}\" is not a key=value member of a tracestate.")]
    Member(String),
    /// The same key again.
    #[error("The key \"{0}\" occurs more than once in the tracestate.")]
    Twice(String),
}

/// What a session has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext<'a> {
    /// As [`check_traceparent`] takes it.
    pub traceparent: &'a str,
    /// As [`check_tracestate`] takes it; empty means none.
    pub tracestate: &'a str,
}

impl<'a> TraceContext<'a> {
    /// The headers to add to a message that has those for which `has` is true.
    pub fn headers(&self, has: impl Fn(&str) -> bool) -> Vec<Header<'a>> {
        if has(TRACEPARENT) {
            return Vec::new();
        }
        let mut headers = vec![Header { name: TRACEPARENT, value: Some(self.traceparent.as_bytes()) }];
        if !self.tracestate.is_empty() && !has(TRACESTATE) {
            headers.push(Header { name: TRACESTATE, value: Some(self.tracestate.as_bytes()) });
        }
        headers
    }
}

/// Checks a traceparent of version 00, or of a later one as far as its beginning is fixed.
///
/// # Errors
/// Says what is wrong.
pub fn check_traceparent(text: &str) -> Result<(), TraceContextError> {
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let (&[version, trace, parent, flags], more) = parts.split_first_chunk().ok_or(TraceContextError::Form)?;
    let fits = |part: &str, len| part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !(fits(version, 2) && fits(trace, 32) && fits(parent, 16) && fits(flags, 2)) {
        return Err(TraceContextError::Form);
    }
    // Version 00 ends here; what later ones add is theirs.
    if version == "00" && !more.is_empty() || more.iter().any(|more| !more.bytes().all(|b| b.is_ascii_graphic())) {
        return Err(TraceContextError::Form);
    }
    if version == "ff" {
        return Err(TraceContextError::Version);
    }
    for (part, name) in [(trace, "trace id"), (parent, "parent id")] {
        if part.bytes().all(|b| b == b'0') {
            return Err(TraceContextError::Zero(name));
        }
    }
    Ok(())
}

/// Checks a tracestate: up to 32 members key=value between commas, no key twice; empty members do not count.
///
/// # Errors
/// Says what is wrong.
pub fn check_tracestate(text: &str) -> Result<(), TraceContextError> {
    let members: Vec<&str> =
        text.split(',').map(|member| member.trim_matches([' ', '\t'])).filter(|member| !member.is_empty()).collect();
    if members.len() > MEMBERS_MAX {
        return Err(TraceContextError::Members(members.len()));
    }
    let mut keys = Vec::new();
    for member in members {
        let wrong = || TraceContextError::Member(member.to_owned());
        let (key, value) = member.split_once('=').ok_or_else(wrong)?;
        if !is_key(key) || !is_value(value) {
            return Err(wrong());
        }
        if keys.contains(&key) {
            return Err(TraceContextError::Twice(key.to_owned()));
        }
        keys.push(key);
    }
    Ok(())
}

/// Lower-case letters, digits and `_-*/`; one `@` may part a tenant from its system, whose name begins with a letter.
fn is_key(key: &str) -> bool {
    let rest = |part: &str| part.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/'));
    let first = |part: &str, digit: bool| {
        part.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || (digit && b.is_ascii_digit())) && rest(part)
    };
    match key.split_once('@') {
        None => first(key, false) && key.len() <= PART_LEN_MAX,
        Some((tenant, system)) => {
            first(tenant, true) && tenant.len() <= 241 && first(system, false) && system.len() <= 14
        }
    }
}

/// Printable ASCII without comma and equals sign, not ending in a space.
fn is_value(value: &str) -> bool {
    (1..=PART_LEN_MAX).contains(&value.len())
        && value.bytes().all(|b| matches!(b, b' '..=b'~') && b != b',' && b != b'=')
        && !value.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn traceparent_follows_its_grammar() {
        let later = format!("cc{}-what.the-future.brings", &PARENT[2..]);
        for good in [PARENT, &PARENT.replace("-01", "-00"), &format!("01{}", &PARENT[2..]), &later] {
            assert_eq!(check_traceparent(good), Ok(()), "{good}");
        }
        let wrong = [
            String::new(),
            "00".to_owned(),
            PARENT.to_uppercase(),
            PARENT[..54].to_owned(),
            format!("{PARENT}0"),
            format!("{PARENT}-"),
            format!("{PARENT}-00"),
            format!(" {PARENT}"),
            PARENT.replace('-', "_"),
            PARENT.replace("4bf", "4bg"),
            PARENT.replacen("00-", "0-0", 1),
            format!("{later} "),
        ];
        for text in wrong {
            assert_eq!(check_traceparent(&text), Err(TraceContextError::Form), "{text}");
        }
        assert_eq!(check_traceparent(&format!("ff{}", &PARENT[2..])), Err(TraceContextError::Version));
        let zero = |part: &str| check_traceparent(&PARENT.replace(part, &"0".repeat(part.len())));
        assert_eq!(zero("4bf92f3577b34da6a3ce929d0e0e4736"), Err(TraceContextError::Zero("trace id")));
        assert_eq!(zero("00f067aa0ba902b7"), Err(TraceContextError::Zero("parent id")));
    }

    #[test]
    fn tracestate_follows_its_grammar() {
        let long = format!("{}={}", "k".repeat(256), "v".repeat(256));
        let many = (0..32).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        for good in ["a=1", "a=1,b=2", " a=1 ,\tb=2,, ", "1tenant@system=x y", "a_-*/0=!~", "", &long, &many] {
            assert_eq!(check_tracestate(good), Ok(()), "{good}");
        }
        for wrong in [
            "a",
            "=1",
            "a=",
            "A=1",
            "1=1",
            "a=b=c",
            "a=ü",
            "ü=a",
            "a=\u{1}",
            "a@=1",
            "@a=1",
            "a@1=1",
            "a@b@c=1",
            "a =1",
            &format!("{}=1", "k".repeat(257)),
            &format!("a={}", "v".repeat(257)),
            &format!("a@{}=1", "s".repeat(15)),
        ] {
            assert!(matches!(check_tracestate(wrong), Err(TraceContextError::Member(_))), "{wrong}");
        }
        assert_eq!(check_tracestate("a=1,b=2,a=3"), Err(TraceContextError::Twice("a".to_owned())));
        assert_eq!(check_tracestate(&format!("{many},more=1")), Err(TraceContextError::Members(33)));
    }

    #[test]
    fn a_message_with_a_traceparent_of_its_own_gets_none() {
        let context = TraceContext { traceparent: PARENT, tracestate: "a=1" };
        let names = |own: &[&str]| -> Vec<&str> {
            let added = context.headers(|name| own.contains(&name));
            added.into_iter().map(|header| header.name).collect()
        };
        assert_eq!(names(&[]), [TRACEPARENT, TRACESTATE]);
        assert_eq!(names(&[TRACESTATE]), [TRACEPARENT]);
        assert_eq!(names(&[TRACEPARENT]), [""; 0]);
        assert_eq!(TraceContext { tracestate: "", ..context }.headers(|_| false).len(), 1);
    }
}
