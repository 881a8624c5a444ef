//! What the client's log lines mean, in words for whoever operates the database.
//!
//! Reason: the client tells of one cause in many lines, and the last of them is seldom the one that helps: a refused password is
//! followed by the news that the connection is down. Some causes have no code either, but are told in the log alone, as TLS
//! alerts are. So a few lines are known by their words, and for a while the others do not hide them.

use std::time::Duration;

use crate::clock::Time;
use crate::repeats;

/// For so long after a line that tells the cause, others of the same connection tell nothing new.
const TELLING_FOR: Duration = repeats::INTERVAL;

/// Words of a line in lower case, all of which must be in it, and what it means.
const MEANINGS: &[(&[&str], &str)] = &[
    (&["unsupported mechanism"], "The broker does not offer this sasl.mechanism"),
    (&["supported mechanisms"], "The broker does not offer this sasl.mechanism"),
    (&["no worthy mechs"], "The server lacks the library for sasl.mechanism (libsasl2-modules-gssapi-mit)"),
    (&["libsasl2", "missing"], "The server lacks the library for sasl.mechanism (libsasl2-modules-gssapi-mit)"),
    (
        &["gssapi error"],
        "There is no Kerberos ticket, or it has expired (KRB5_CLIENT_KTNAME, KRB5CCNAME of the server)",
    ),
    (&["sasl", "authentication"], "The broker refuses the user or the password (sasl.username, sasl.password)"),
    (&["oauthbearer", "token"], "There is no OAUTHBEARER token to show to the broker (sasl.oauthbearer.*)"),
    (&["oidc token"], "There is no OAUTHBEARER token to show to the broker (sasl.oauthbearer.*)"),
    (
        &["certificate verify failed"],
        "The broker's certificate is not trusted: it has expired, or ssl.ca.location does not name who signed it",
    ),
    (&["hostname mismatch"], "The broker's certificate is for another host than bootstrap_servers or the broker names"),
    (&["alert certificate expired"], "The client's certificate has expired (ssl.certificate.location)"),
    // What a broker in Java says of an expired one, too.
    (
        &["alert certificate unknown"],
        "The broker does not trust the client's certificate: it has expired, or somebody signed it whom the broker does not \
         know (ssl.certificate.location)",
    ),
    (
        &["alert", "unknown ca"],
        "The broker does not know who signed the client's certificate (ssl.certificate.location)",
    ),
    (
        &["alert", "certificate"],
        "The broker misses the client's certificate, or does not accept it (ssl.certificate.location)",
    ),
    (&["cluster authorization failed"], "The user may write to no topic at all: an ACL is missing"),
    (&["plaintext broker listener"], "security.protocol does not fit the broker's port, which may speak no TLS"),
    (&["wrong version number"], "security.protocol does not fit the broker's port, which speaks no TLS"),
    (&["ssl listener?"], "security.protocol does not fit the broker's port, which may speak TLS"),
    (&["might require sasl"], "security.protocol does not fit the broker's port, which may want SASL"),
];

/// What a line means, if it tells the cause of a failure.
pub(super) fn meaning(text: &str) -> Option<&'static str> {
    let text = text.to_lowercase();
    MEANINGS.iter().find(|(words, _)| words.iter().all(|word| text.contains(word))).map(|(_, meaning)| *meaning)
}

/// A line without the thread that wrote it and without a full stop.
pub(super) fn bare(text: &str) -> &str {
    let text = match text.strip_prefix("[thrd:").and_then(|text| text.split_once("]: ")) {
        Some((_, text)) => text,
        None => text,
    };
    text.trim().trim_end_matches('.')
}

/// The line in a sentence or two, its meaning first.
pub(super) fn told(text: &str) -> String {
    let text = bare(text);
    meaning(text).map_or_else(|| format!("{text}."), |meaning| format!("{meaning}. The client says: {text}."))
}

/// What lines have in common that tell the same: what they mean, or else their words without the broker they are about, numbers
/// (ports, times, counts), and what is told in brackets behind the cause.
pub(super) fn kind(text: &str) -> String {
    if let Some(meaning) = meaning(text) {
        return meaning.to_owned();
    }
    let text = bare(text);
    let cause = match text.split_once(": ") {
        Some((broker, cause)) if broker.contains("://") || broker.contains(':') => cause,
        _ => text,
    };
    let cause = cause.split_once(" (after ").map_or(cause, |(cause, _)| cause);
    cause.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Whether a line is still to be heard as the cause.
#[derive(Debug, Default)]
pub(super) struct Cause {
    told_at: Option<Time>,
}

impl Cause {
    /// A line has come. Says whether it may count as the cause, or is only what follows from one that was told before.
    pub fn hear(&mut self, text: &str, now: Time) -> bool {
        if meaning(text).is_some() {
            self.told_at = Some(now);
            return true;
        }
        self.told_at.is_none_or(|at| now.since(at) >= TELLING_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: &str = "[thrd:sasl_ssl://127.0.0.1:29871/bootstrap]: sasl_ssl://127.0.0.1:29871/bootstrap: SASL authentication \
                           error: Authentication failed during authentication due to invalid credentials with SASL mechanism \
                           SCRAM-SHA-256 (after 12ms in state AUTH_REQ)";
    const LOST: &str = "[thrd:127.0.0.1:29871/1]: 127.0.0.1:29871/1: Disconnected (after 12ms in state UP)";

    fn at(seconds: u64) -> Time {
        Time::since_zero(Duration::from_secs(seconds))
    }

    #[test]
    fn a_line_is_told_with_its_meaning_first() {
        let told = told(REFUSED);
        assert!(told.starts_with("The broker refuses the user or the password"), "{told}");
        assert!(told.ends_with("in state AUTH_REQ)."), "{told}");
        assert_eq!(super::told(LOST), "127.0.0.1:29871/1: Disconnected (after 12ms in state UP).");
    }

    #[test]
    fn lines_that_tell_the_same_of_several_brokers_are_of_one_kind() {
        let other = LOST.replace("127.0.0.1:29871/1", "kafka-b.example.org:9092/2").replace("12ms", "7ms");
        assert_eq!(kind(LOST), kind(&other));
        assert_eq!(kind(LOST), "Disconnected");
        assert_ne!(kind(LOST), kind(REFUSED));
        // The event tells what the log has told.
        assert_eq!(kind(REFUSED), kind("Fatal error: SASL authentication error"));
    }

    #[test]
    fn what_follows_from_a_cause_does_not_hide_it() {
        let mut cause = Cause::default();
        assert!(cause.hear(LOST, at(0)));
        assert!(cause.hear(REFUSED, at(1)));
        assert!(!cause.hear(LOST, at(2)));
        assert!(cause.hear(REFUSED, at(50)));
        assert!(!cause.hear(LOST, at(109)));
        assert!(cause.hear(LOST, at(110)));
    }
}
