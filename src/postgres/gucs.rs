//! Settings as Postgres sees them. All but the size of shared memory take effect by a reload.

use std::ffi::{CStr, CString, c_char, c_void};
use std::time::Duration;

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, pg_guard, pg_sys};

use crate::kafka;
use crate::lease::LeaseTimes;
use crate::policy::Patience;
use crate::properties::{self, Properties, PropertiesError};
use crate::settings::{Settings, WORKERS_MAX};
use crate::trace_context::{self, TraceContext, TraceContextError};
use crate::window;

static BOOTSTRAP_SERVERS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static KAFKA_PROPERTIES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static KAFKA_PROPERTIES_FILE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);
static WORKERS: GucSetting<i32> = GucSetting::<i32>::new(1);
static LEASE_DURATION: GucSetting<i32> = GucSetting::<i32>::new(30_000);
static LEASE_RENEW_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(10_000);
static BATCH_SIZE: GucSetting<i32> = GucSetting::<i32>::new(5_000);
static BATCH_BYTES: GucSetting<i32> = GucSetting::<i32>::new(4 << 20);
static MAX_IN_FLIGHT_MESSAGES: GucSetting<i32> = GucSetting::<i32>::new(window::ROWS_MAX as i32);
static MAX_IN_FLIGHT_BYTES: GucSetting<i32> = GucSetting::<i32>::new(window::BYTES_MAX as i32);
static POLL_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(10_000);
static ERROR_BACKOFF: GucSetting<i32> = GucSetting::<i32>::new(1_000);
static MAX_MESSAGE_BYTES: GucSetting<i32> = GucSetting::<i32>::new(1_000_000);
static MAX_ATTEMPTS: GucSetting<i32> = GucSetting::<i32>::new(5);
static PARK_PATIENCE: GucSetting<i32> = GucSetting::<i32>::new(30_000);
static SHUTDOWN_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(3_000);
static TRACEPARENT: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
static TRACESTATE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
static MAX_DATABASES: GucSetting<i32> = GucSetting::<i32>::new(8);

/// Largest file of properties.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Prefix of all settings.
const PREFIX: &CStr = c"outbox_relay";

/// Makes the settings known to the server.
pub fn define() {
    // SAFETY: the hooks are guarded, see below.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"outbox_relay.bootstrap_servers",
            c"Kafka brokers to connect to first.",
            c"A comma-separated list of host:port. Empty means that nothing is published.",
            &BOOTSTRAP_SERVERS,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check_bootstrap_servers),
            None,
            None,
        );
        GucRegistry::define_string_guc_with_hooks(
            c"outbox_relay.kafka_properties",
            c"Properties passed to the Kafka client.",
            c"As in a connection string: name=value name='value with spaces'. Secrets belong into the file named by outbox_relay.kafka_properties_file.",
            &KAFKA_PROPERTIES,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check_kafka_properties),
            None,
            None,
        );
        GucRegistry::define_string_guc_with_hooks(
            c"outbox_relay.traceparent",
            c"Trace context of this session or transaction, added as a header to messages that bring none.",
            c"In the form of W3C Trace Context. Empty adds nothing.",
            &TRACEPARENT,
            GucContext::Userset,
            GucFlags::default(),
            Some(check_traceparent),
            None,
            None,
        );
        GucRegistry::define_string_guc_with_hooks(
            c"outbox_relay.tracestate",
            c"What goes as a header tracestate with outbox_relay.traceparent.",
            c"In the form of W3C Trace Context. Empty adds nothing.",
            &TRACESTATE,
            GucContext::Userset,
            GucFlags::default(),
            Some(check_tracestate),
            None,
            None,
        );
    }
    GucRegistry::define_string_guc(
        c"outbox_relay.kafka_properties_file",
        c"File with properties for the Kafka client that must not be seen, such as passwords.",
        c"One name=value a line. Read at every reload; only the server's user may be able to read or write it.",
        &KAFKA_PROPERTIES_FILE,
        GucContext::Sighup,
        GucFlags::SUPERUSER_ONLY,
    );
    GucRegistry::define_bool_guc(
        c"outbox_relay.enabled",
        c"Publishes messages.",
        c"Messages are accepted and kept either way.",
        &ENABLED,
        GucContext::Sighup,
        GucFlags::default(),
    );
    int(
        c"outbox_relay.workers",
        c"Number of relays in each database.",
        c"Each uses one of max_worker_processes.",
        &WORKERS,
        (0, WORKERS_MAX as i32),
        GucFlags::default(),
    );
    int(
        c"outbox_relay.lease_duration",
        c"Time after which a bucket whose relay is silent is taken over.",
        c"Must be more than outbox_relay.lease_renew_interval.",
        &LEASE_DURATION,
        (1_000, 3_600_000),
        GucFlags::UNIT_MS,
    );
    int(
        c"outbox_relay.lease_renew_interval",
        c"How often a relay renews its leases and looks at its fair share.",
        c"Must be less than outbox_relay.lease_duration.",
        &LEASE_RENEW_INTERVAL,
        (100, 3_600_000),
        GucFlags::UNIT_MS,
    );
    int(
        c"outbox_relay.batch_size",
        c"Most messages that are read and submitted at a time from one bucket.",
        c"",
        &BATCH_SIZE,
        (1, 100_000),
        GucFlags::default(),
    );
    int(
        c"outbox_relay.batch_bytes",
        c"Size at which a batch is full.",
        c"The message that passes the size is the last of its batch.",
        &BATCH_BYTES,
        (1_024, 256 << 20),
        GucFlags::UNIT_BYTE,
    );
    int(
        c"outbox_relay.max_in_flight_messages",
        c"Most messages of a relay that wait for an answer from Kafka at a time.",
        c"The batch that reaches the number is the last until answers come.",
        &MAX_IN_FLIGHT_MESSAGES,
        (100, 10_000_000),
        GucFlags::default(),
    );
    int(
        c"outbox_relay.max_in_flight_bytes",
        c"Size of the messages of a relay that wait for an answer from Kafka at a time.",
        c"Counts keys, values and headers; a relay holds them twice. The batch that reaches the size is the last until answers come.",
        &MAX_IN_FLIGHT_BYTES,
        (1 << 20, 1 << 30),
        GucFlags::UNIT_BYTE,
    );
    int(
        c"outbox_relay.poll_interval",
        c"How often buckets are looked at without being woken by a commit.",
        c"Only messages that were not written by outbox.enqueue wait for this.",
        &POLL_INTERVAL,
        (100, 3_600_000),
        GucFlags::UNIT_MS,
    );
    int(
        c"outbox_relay.error_backoff",
        c"First wait after a failure; later waits grow up to outbox_relay.lease_renew_interval.",
        c"",
        &ERROR_BACKOFF,
        (10, 600_000),
        GucFlags::UNIT_MS,
    );
    int(
        c"outbox_relay.max_message_bytes",
        c"Largest message that outbox.enqueue accepts.",
        c"Counts key, value, headers and the record's overhead before compression. Should not be above the topics' max.message.bytes; a broker's socket.request.max.bytes is 100 MB.",
        &MAX_MESSAGE_BYTES,
        (1_000, 100_000_000),
        GucFlags::UNIT_BYTE,
    );
    int(
        c"outbox_relay.max_attempts",
        c"Number of times that a message must be refused for good before its topic's policy acts.",
        c"Failures that are not the message's own, such as an outage, do not count. outbox.set_topic can name another number for a topic.",
        &MAX_ATTEMPTS,
        (1, 1_000),
        GucFlags::default(),
    );
    int(
        c"outbox_relay.park_patience",
        c"Time that must have passed since a message was first refused before its topic's policy acts.",
        c"Within it the cause can be cured, and the message goes on by itself.",
        &PARK_PATIENCE,
        (0, 86_400_000),
        GucFlags::UNIT_MS,
    );
    int(
        c"outbox_relay.shutdown_timeout",
        c"Longest time that a stopping relay waits for Kafka.",
        c"",
        &SHUTDOWN_TIMEOUT,
        (100, 60_000),
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"outbox_relay.max_databases",
        c"Most databases that can have relays at the same time.",
        c"Sizes shared memory, about 50 kB each.",
        &MAX_DATABASES,
        1,
        1_000,
        GucContext::Postmaster,
        GucFlags::default(),
    );
    // SAFETY: the prefix is a string constant.
    unsafe { pg_sys::MarkGUCPrefixReserved(PREFIX.as_ptr()) };
}

fn int(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<i32>,
    (min, max): (i32, i32),
    unit: GucFlags,
) {
    GucRegistry::define_int_guc(name, short, long, setting, min, max, GucContext::Sighup, unit);
}

/// The settings of a relay as they are now. They may contradict each other, see [`Settings::check`].
pub fn settings() -> Settings {
    Settings {
        enabled: ENABLED.get(),
        lease: LeaseTimes { duration: millis(&LEASE_DURATION), renew_interval: millis(&LEASE_RENEW_INTERVAL) },
        batch_size: positive(&BATCH_SIZE),
        batch_bytes: positive(&BATCH_BYTES),
        window: window::Size { rows: positive(&MAX_IN_FLIGHT_MESSAGES), bytes: positive(&MAX_IN_FLIGHT_BYTES) },
        patience: Patience { max_attempts: positive(&MAX_ATTEMPTS) as u32, park_patience: millis(&PARK_PATIENCE) },
        poll_interval: millis(&POLL_INTERVAL),
        error_backoff: millis(&ERROR_BACKOFF),
        shutdown_timeout: millis(&SHUTDOWN_TIMEOUT),
        // The tables renew leases while messages are on their way.
        max_publish_duration: None,
    }
}

/// Relays a database, 0 to [`WORKERS_MAX`].
pub fn workers() -> usize {
    positive(&WORKERS)
}

/// Largest message that is accepted, in bytes of the record.
pub fn max_message_bytes() -> usize {
    positive(&MAX_MESSAGE_BYTES)
}

/// The trace context that the session has set.
pub struct SetTraceContext {
    traceparent: CString,
    tracestate: Option<CString>,
}

impl SetTraceContext {
    /// As it goes into headers.
    pub fn as_ref(&self) -> TraceContext<'_> {
        let checked = "checked when it was set";
        TraceContext {
            traceparent: self.traceparent.to_str().expect(checked),
            tracestate: self.tracestate.as_ref().map_or("", |text| text.to_str().expect(checked)),
        }
    }
}

/// The trace context for messages that bring none, if one is set.
pub fn trace_context() -> Option<SetTraceContext> {
    let traceparent = TRACEPARENT.get().filter(|text| !text.is_empty())?;
    Some(SetTraceContext { traceparent, tracestate: TRACESTATE.get() })
}

/// Databases that shared memory has room for.
pub fn max_databases() -> usize {
    positive(&MAX_DATABASES)
}

fn millis(setting: &GucSetting<i32>) -> Duration {
    Duration::from_millis(positive(setting) as u64)
}

fn positive(setting: &GucSetting<i32>) -> usize {
    usize::try_from(setting.get()).expect("the range of the setting begins at 0")
}

fn text(setting: &GucSetting<Option<CString>>) -> String {
    setting.get().map(|value| value.to_string_lossy().trim().to_owned()).unwrap_or_default()
}

/// What a Kafka client is made with, or why it cannot be. `Ok(None)` means that no broker is named.
///
/// # Errors
/// A sentence for the user that holds no secret.
pub fn kafka_properties() -> Result<Option<Properties>, String> {
    let bootstrap_servers = text(&BOOTSTRAP_SERVERS);
    if bootstrap_servers.is_empty() {
        return Ok(None);
    }
    let setting = properties::parse_setting(&text(&KAFKA_PROPERTIES)).map_err(|error| error.to_string())?;
    let path = text(&KAFKA_PROPERTIES_FILE);
    let file = if path.is_empty() { Properties::new() } else { read_file(&path)? };
    let all = properties::effective(&bootstrap_servers, &setting, &file);
    kafka::check_properties(&all).map_err(|(name, reason)| {
        // The client's words hold the value, unless it does not know the name.
        if file.contains_key(&name) && !reason.contains("No such configuration property") {
            format!("The value of \"{name}\" in file \"{path}\" is not valid.")
        } else {
            reason
        }
    })?;
    Ok(Some(all))
}

/// Reads the file of secrets, which nobody but the server's user may be able to read or write.
fn read_file(path: &str) -> Result<Properties, String> {
    use std::io::Read as _;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let failed = |error: std::io::Error| {
        format!("Could not read file \"{path}\" of outbox_relay.kafka_properties_file: {error}.")
    };
    // Without waiting for a writer, should it be a pipe.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(format!("\"{path}\" must be a regular file of at most {FILE_BYTES_MAX} bytes."));
    }
    // SAFETY: geteuid has no preconditions.
    let me = unsafe { libc::geteuid() };
    if metadata.uid() != me && metadata.uid() != 0 {
        return Err(format!("File \"{path}\" must belong to the server's user or to root."));
    }
    if metadata.mode() & 0o037 != 0 || (metadata.uid() == me && metadata.mode() & 0o077 != 0) {
        return Err(format!("File \"{path}\" can be read or written by others; its mode should be 0600."));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    properties::parse_file(&text).map_err(|error: PropertiesError| format!("File \"{path}\": {error}"))
}

#[pg_guard]
unsafe extern "C-unwind" fn check_bootstrap_servers(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: Postgres gives a pointer to the new value, a string or null.
    let Some(text) = (unsafe { new_value(value) }) else { return true };
    let bad = text.split(',').map(str::trim).find(|server| {
        let port = server.rsplit_once(':').map(|(host, port)| (host.is_empty(), port.parse::<u16>()));
        !matches!(port, Some((false, Ok(port))) if port > 0)
    });
    match bad {
        Some(bad) if !text.trim().is_empty() => {
            refuse(&format!("\"{bad}\" is not of the form host:port."));
            false
        }
        _ => true,
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn check_kafka_properties(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: as above.
    let Some(text) = (unsafe { new_value(value) }) else { return true };
    let checked = properties::parse_setting(&text).map_err(|error| error.to_string()).and_then(|setting| {
        kafka::check_properties(&properties::effective("localhost:9092", &setting, &Properties::new()))
            .map_err(|(_, reason)| reason)
    });
    match checked {
        Ok(()) => true,
        Err(reason) => {
            refuse(&reason);
            // The server's own words would repeat the value, which may hold a secret.
            conceal(c"invalid value for parameter \"outbox_relay.kafka_properties\"");
            false
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn check_traceparent(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: as above.
    follows(unsafe { new_value(value) }, trace_context::check_traceparent)
}

#[pg_guard]
unsafe extern "C-unwind" fn check_tracestate(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: as above.
    follows(unsafe { new_value(value) }, trace_context::check_tracestate)
}

/// Whether a new value is none or passes its check.
fn follows(value: Option<String>, check: fn(&str) -> Result<(), TraceContextError>) -> bool {
    match value.filter(|text| !text.is_empty()).map_or(Ok(()), |text| check(&text)) {
        Ok(()) => true,
        Err(error) => {
            refuse(&super::presentable(&error.to_string()));
            false
        }
    }
}

/// # Safety
/// `value` points to a string or null, as in a check hook.
unsafe fn new_value(value: *mut *mut c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    unsafe { (!(*value).is_null()).then(|| CStr::from_ptr(*value).to_string_lossy().into_owned()) }
}

/// Replaces the message of a refusal.
fn conceal(message: &CStr) {
    // SAFETY: this is what the macro GUC_check_errmsg sets; the string lives in the context that the caller clears.
    unsafe {
        pg_sys::GUC_check_errmsg_string = pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, message.as_ptr());
    }
}

/// Gives the reason of a refusal to the caller of a check hook.
fn refuse(detail: &str) {
    let detail = CString::new(detail.replace('\0', "")).unwrap_or_default();
    // SAFETY: this is what the macro GUC_check_errdetail sets; the string lives in the context that the caller clears.
    unsafe {
        pg_sys::GUC_check_errdetail_string = pg_sys::MemoryContextStrdup(pg_sys::ErrorContext, detail.as_ptr());
    }
}
