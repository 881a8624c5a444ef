//! Kafka client properties that a user may pass through, and those that are law.
//!
//! Reason: acknowledgement by all replicas, idempotence and Kafka's own partitioner are what the guarantees stand on, so no
//! setting may weaken them. A reload logs every changed value, so secrets come from a file that a setting names. And some
//! properties make the client load libraries or run commands: not in a database server.
//!
//! Grammar of the setting, as in a libpq connection string: `name=value name='value with spaces'`, with `\'` and `\\`
//! inside quotes. Grammar of the file, as Java properties at their simplest: one `name=value` a line, `#` starts a comment.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::value::{Error as ValueError, MapDeserializer};

/// Client properties by name.
pub type Properties = BTreeMap<String, String>;

/// Properties the relay sets itself, whatever the user says.
pub const LAWS: [(&str, &str); 6] = [
    // A message leaves the table only when every in-sync replica has it.
    ("acks", "all"),
    // A retried request neither duplicates nor reorders.
    ("enable.idempotence", "true"),
    // As Java clients: the default here is CRC32 and would send a key elsewhere. An empty key is a key.
    ("partitioner", "murmur2_random"),
    // Local expiry fails early rows while later ones still go out; patience is the relay's.
    ("message.timeout.ms", "0"),
    // Size is checked at enqueue; after that only the broker may refuse.
    ("message.max.bytes", "1000000000"),
    // The client would renew tickets by a shell command made of other properties; the server's user has a ticket cache.
    ("sasl.kerberos.min.time.before.relogin", "0"),
];

/// Requests to a broker that wait for an answer at a time. Not more, though idempotence is said to order five: a broker that
/// does not know the producer in a partition yet takes whatever request comes first. If it has just refused one, as in the
/// first moments of a partition or while replicas are missing, the next one on its way overtakes it, and the client takes
/// the refused one for appended.
pub const MAX_IN_FLIGHT: &str = "1";

/// Properties chosen for a relay that a user may change.
pub const DEFAULTS: [(&str, &str); 14] = [
    ("client.id", "outbox_relay"),
    // The batch was made by the fetch; waiting for more only adds latency.
    ("linger.ms", "0"),
    ("batch.num.messages", "10000"),
    ("batch.size", "1000000"),
    ("max.in.flight", MAX_IN_FLIGHT),
    // Above what the settings let the relay keep in flight, so that the queue is never the limit.
    ("queue.buffering.max.messages", "20000000"),
    ("queue.buffering.max.kbytes", "2097152"),
    // A connection that the network has forgotten is noticed by an answer that is overdue, and by nothing else. Before that a
    // broker says that its replicas are late.
    ("socket.timeout.ms", "10000"),
    ("socket.connection.setup.timeout.ms", "10000"),
    ("request.timeout.ms", "8000"),
    // Resume within a second or so of the broker's return.
    ("reconnect.backoff.ms", "50"),
    ("reconnect.backoff.max.ms", "1000"),
    // A topic that is missing is told at once, or it would hold up the batches that it is in. The relay tries it again soon, for a
    // broker may be about to create it.
    ("topic.metadata.propagation.max.ms", "0"),
    ("topic.metadata.refresh.interval.ms", "60000"),
];

/// Names that nobody may set, with the reason shown to the user.
const REFUSED: [(&str, &str); 25] = [
    ("acks", LAW),
    ("request.required.acks", LAW),
    ("enable.idempotence", LAW),
    ("partitioner", LAW),
    ("message.timeout.ms", LAW),
    ("delivery.timeout.ms", LAW),
    ("message.max.bytes", "Use outbox_relay.max_message_bytes, which is checked when a message is enqueued."),
    ("bootstrap.servers", "Use outbox_relay.bootstrap_servers."),
    ("metadata.broker.list", "Use outbox_relay.bootstrap_servers."),
    ("transactional.id", LAW),
    ("transaction.timeout.ms", LAW),
    ("retries", LAW),
    ("message.send.max.retries", LAW),
    ("delivery.report.only.error", LAW),
    ("enable.gapless.guarantee", LAW),
    ("queuing.strategy", LAW),
    ("internal.termination.signal", "It would interfere with the server's own signals."),
    ("plugin.library.paths", "It would load a library into the server."),
    ("ssl.engine.location", "It would load a library into the server."),
    ("ssl.providers", "It would load a library into the server."),
    ("test.mock.num.brokers", "It would make the client acknowledge messages by itself."),
    ("sasl.kerberos.kinit.cmd", "It would run a command as the server's user."),
    ("sasl.kerberos.min.time.before.relogin", "It would run a command as the server's user."),
    ("log_level", "The server's log_min_messages decides."),
    ("log.queue", "The relay collects the client's log lines itself."),
];
const LAW: &str = "The delivery guarantees depend on the value that the relay sets.";

/// Names whose value is a secret: only the file may hold them.
const SECRETS: [&str; 9] = [
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
];

/// Where properties come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A setting, which is logged and shown.
    Setting,
    /// The file for secrets.
    File,
}

/// Why properties are refused. The text never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PropertiesError {
    /// The text does not follow the grammar.
    #[error("Syntax error near character {0}: expected name=value.")]
    Syntax(usize),
    /// A line of the file does not follow the grammar.
    #[error("Syntax error in line {0}: expected name=value.")]
    Line(usize),
    /// A quote is not closed.
    #[error("A quoted value is not closed.")]
    Quote,
    /// The same name twice.
    #[error("Property \"{0}\" is given twice.")]
    Twice(String),
    /// A name that nobody may set.
    #[error("Property \"{0}\" cannot be set. {1}")]
    Refused(String, &'static str),
    /// A secret in a setting.
    #[error(
        "Property \"{0}\" is a secret and cannot be part of a setting, which is logged and shown. Put it into the file named by outbox_relay.kafka_properties_file."
    )]
    Secret(String),
    /// More requests in flight than idempotence orders.
    #[error("Property \"{0}\" must be from 1 to 5, or retries could reorder messages.")]
    InFlight(&'static str),
}

/// Reads the setting `outbox_relay.kafka_properties`.
///
/// # Errors
/// Says what is wrong, in a sentence for the user.
pub fn parse_setting(text: &str) -> Result<Properties, PropertiesError> {
    let mut properties = Properties::new();
    let mut chars = text.char_indices().peekable();
    loop {
        while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let Some(&(start, _)) = chars.peek() else { break };
        let mut name = String::new();
        while let Some((_, c)) = chars.next_if(|(_, c)| !c.is_whitespace() && *c != '=') {
            name.push(c);
        }
        while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        if name.is_empty() || chars.next_if(|(_, c)| *c == '=').is_none() {
            return Err(PropertiesError::Syntax(start + 1));
        }
        while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let mut value = String::new();
        if chars.next_if(|(_, c)| *c == '\'').is_some() {
            loop {
                match chars.next() {
                    Some((_, '\'')) => break,
                    Some((_, '\\')) => value.push(chars.next().ok_or(PropertiesError::Quote)?.1),
                    Some((_, c)) => value.push(c),
                    None => return Err(PropertiesError::Quote),
                }
            }
        } else {
            while let Some((_, c)) = chars.next_if(|(_, c)| !c.is_whitespace()) {
                value.push(c);
            }
        }
        insert(&mut properties, name, value)?;
    }
    check(&properties, Source::Setting)?;
    Ok(properties)
}

/// Reads the file named by `outbox_relay.kafka_properties_file`.
///
/// # Errors
/// Says what is wrong, in a sentence for the user, without any value.
pub fn parse_file(text: &str) -> Result<Properties, PropertiesError> {
    let mut properties = Properties::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(PropertiesError::Line(number + 1))?;
        if name.trim().is_empty() {
            return Err(PropertiesError::Line(number + 1));
        }
        insert(&mut properties, name.trim().to_owned(), value.trim().to_owned())?;
    }
    check(&properties, Source::File)?;
    Ok(properties)
}

/// What a producer is made with: defaults, then the user's, the file's last, then the laws.
#[must_use]
pub fn effective(bootstrap_servers: &str, setting: &Properties, file: &Properties) -> Properties {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let mut all: Properties = DEFAULTS.iter().map(owned).collect();
    all.extend(setting.clone());
    all.extend(file.clone());
    all.extend(LAWS.iter().map(owned));
    all.insert("bootstrap.servers".to_owned(), bootstrap_servers.to_owned());
    all
}

fn insert(properties: &mut Properties, name: String, value: String) -> Result<(), PropertiesError> {
    match properties.insert(name.clone(), value) {
        None => Ok(()),
        Some(_) => Err(PropertiesError::Twice(name)),
    }
}

/// Properties whose value the laws limit.
#[derive(Deserialize)]
struct Limited {
    #[serde(rename = "max.in.flight", default = "allowed")]
    max_in_flight: String,
    #[serde(rename = "max.in.flight.requests.per.connection", default = "allowed")]
    max_in_flight_requests: String,
}

fn allowed() -> String {
    "5".to_owned()
}

fn check(properties: &Properties, source: Source) -> Result<(), PropertiesError> {
    for name in properties.keys() {
        if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| refused == name) {
            return Err(PropertiesError::Refused(name.clone(), reason));
        }
        if source == Source::Setting && SECRETS.contains(&name.as_str()) {
            return Err(PropertiesError::Secret(name.clone()));
        }
    }
    let entries = properties.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let limited = Limited::deserialize(MapDeserializer::<_, ValueError>::new(entries))
        .expect("a map of strings has the strings of the struct");
    let in_range = |value: &str| value.parse::<u32>().is_ok_and(|value| (1..=5).contains(&value));
    if !in_range(&limited.max_in_flight) {
        return Err(PropertiesError::InFlight("max.in.flight"));
    }
    if !in_range(&limited.max_in_flight_requests) {
        return Err(PropertiesError::InFlight("max.in.flight.requests.per.connection"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Properties {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn grammar_is_that_of_a_connection_string() {
        let expected = map(&[
            ("linger.ms", "5"),
            ("compression.type", "lz4"),
            ("sasl.username", r"o'b\ x"),
            ("ssl.ca.location", ""),
        ]);
        let text = r" linger.ms = 5 compression.type=lz4  sasl.username='o\'b\\ x' ssl.ca.location='' ";
        assert_eq!(parse_setting(text), Ok(expected));
        assert_eq!(parse_setting("  "), Ok(Properties::new()));
    }

    #[test]
    fn broken_grammar_is_refused() {
        assert_eq!(parse_setting("linger.ms"), Err(PropertiesError::Syntax(1)));
        assert_eq!(parse_setting("a=1 =2"), Err(PropertiesError::Syntax(5)));
        assert_eq!(parse_setting("a='1"), Err(PropertiesError::Quote));
        assert_eq!(parse_setting("a='1\\"), Err(PropertiesError::Quote));
        assert_eq!(parse_setting("a=1 a=2"), Err(PropertiesError::Twice("a".into())));
    }

    #[test]
    fn laws_and_dangerous_properties_are_refused_everywhere() {
        for (name, _) in REFUSED {
            let text = format!("{name}=x");
            assert!(matches!(parse_setting(&text), Err(PropertiesError::Refused(n, _)) if n == name));
            assert!(matches!(parse_file(&text), Err(PropertiesError::Refused(n, _)) if n == name));
        }
        for (name, _) in LAWS {
            assert!(REFUSED.iter().any(|(refused, _)| *refused == name), "law {name} is refused");
        }
    }

    #[test]
    fn secrets_are_taken_from_the_file_only() {
        for name in SECRETS {
            let text = format!("{name}=hunter2");
            let error = parse_setting(&text).expect_err("a secret");
            assert!(!error.to_string().contains("hunter2"));
            assert_eq!(parse_file(&text), Ok(map(&[(name, "hunter2")])));
        }
    }

    #[test]
    fn file_has_a_property_a_line() {
        let text = "# comment\n\nsasl.password = a=b c \r\nssl.key.password=\n";
        assert_eq!(parse_file(text), Ok(map(&[("sasl.password", "a=b c"), ("ssl.key.password", "")])));
        assert_eq!(parse_file("a=1\nb"), Err(PropertiesError::Line(2)));
        assert_eq!(parse_file("=1"), Err(PropertiesError::Line(1)));
    }

    #[test]
    fn more_than_five_requests_in_flight_are_refused() {
        for name in ["max.in.flight", "max.in.flight.requests.per.connection"] {
            assert!(parse_setting(&format!("{name}=5")).is_ok());
            for wrong in ["6", "0", "-1", "many"] {
                assert_eq!(parse_setting(&format!("{name}={wrong}")), Err(PropertiesError::InFlight(name)));
            }
        }
    }

    #[test]
    fn the_file_beats_the_setting_and_the_law_beats_both() {
        let setting = map(&[("linger.ms", "5"), ("client.id", "a")]);
        let file = map(&[("client.id", "b"), ("acks", "1")]);
        let all = effective("h:1", &setting, &file);
        let get = |name: &str| all.get(name).map(String::as_str);
        assert_eq!(get("linger.ms"), Some("5"));
        assert_eq!(get("client.id"), Some("b"));
        assert_eq!(get("acks"), Some("all"));
        assert_eq!(get("bootstrap.servers"), Some("h:1"));
        assert_eq!(get("batch.size"), Some("1000000"));
    }
}
