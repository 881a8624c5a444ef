//! Ratios first, absolutes second, and beside them what they were measured with.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox_relay_pg_test::terminal::Terminal;
use serde_json::{Value, json};

use crate::Options;
use crate::drain::Drains;
use crate::latency::{Latencies, percentile};
use crate::raw;
use crate::servers::{self, Servers};

/// Prints everything and leaves it as JSON too.
pub fn print(
    terminal: &Terminal,
    servers: &Servers,
    options: &Options,
    drains: &Drains,
    latencies: &Latencies,
) -> Result<()> {
    let answered = [50, 99].map(|percent| ratio(&latencies.from_committed, &latencies.raw, percent));
    let sent = [50, 99].map(|percent| ratio(&latencies.from_commit_sent, &latencies.raw, percent));
    terminal.title("Ratios");
    line(terminal, "drain / raw producer, median", format_args!("{:.2}", median(&drains.relay) / median(&drains.raw)));
    line(
        terminal,
        "drain / raw producer that adds the header",
        format_args!("{:.2}", median(&drains.relay) / median(&drains.raw_with_header)),
    );
    line(
        terminal,
        "commit answered to consumer / produce to consumer",
        format_args!("p50 {:.2}, p99 {:.2}", answered[0], answered[1]),
    );
    line(
        terminal,
        "commit sent to consumer / produce to consumer",
        format_args!("p50 {:.2}, p99 {:.2} (with the flush of WAL)", sent[0], sent[1]),
    );

    terminal.title(format_args!("Draining {} rows of {} bytes: rows a second", options.rows, raw::VALUE_BYTES));
    for (name, rates) in [
        ("relay", &drains.relay),
        ("raw producer", &drains.raw),
        ("raw producer that adds the header", &drains.raw_with_header),
    ] {
        let all: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        line(terminal, name, format_args!("median {:.0} of {}", median(rates), all.join(" ")));
    }
    line(terminal, "highest RssAnon of the relay", format_args!("{} MB", drains.memory >> 20));

    terminal.title(format_args!("One message on an idle system, {} of each: p50 / p95 / p99", options.messages));
    line(terminal, "produce to consumer", percentiles(&latencies.raw));
    line(terminal, "commit answered to consumer", percentiles(&latencies.from_committed));
    line(terminal, "commit sent to consumer", percentiles(&latencies.from_commit_sent));

    let setting = setting(servers)?;
    terminal.title("Measured with");
    if let Value::Object(fields) = &setting {
        for (name, value) in fields {
            line(terminal, name, value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
    }

    let result = json!({
        "ratios": {
            "drain_to_raw": median(&drains.relay) / median(&drains.raw),
            "drain_to_raw_with_header": median(&drains.relay) / median(&drains.raw_with_header),
            "commit_answered_p50": answered[0],
            "commit_answered_p99": answered[1],
            "commit_sent_p50": sent[0],
            "commit_sent_p99": sent[1],
        },
        "drain": {
            "rows": options.rows,
            "value_bytes": raw::VALUE_BYTES,
            "relay_rows_per_s": drains.relay,
            "raw_rows_per_s": drains.raw,
            "raw_with_header_rows_per_s": drains.raw_with_header,
            "relay_rss_anon_bytes_max": drains.memory,
        },
        "latency_ms": {
            "messages": options.messages,
            "produce_to_consumer": in_json(&latencies.raw),
            "commit_answered_to_consumer": in_json(&latencies.from_committed),
            "commit_sent_to_consumer": in_json(&latencies.from_commit_sent),
        },
        "measured_with": setting,
    });
    let path = servers.directory.join("result.json");
    fs::write(&path, format!("{result:#}\n")).with_context(|| format!("could not write {path:?}"))?;
    terminal.title(format_args!("The same as JSON: {}", path.display()));
    Ok(())
}

fn ratio(relay: &[Duration], raw: &[Duration], percent: usize) -> f64 {
    percentile(relay, percent).as_secs_f64() / percentile(raw, percent).as_secs_f64()
}

fn setting(servers: &Servers) -> Result<Value> {
    let mut client = servers.session()?;
    let row = client.query_one(
        "select split_part(version(), ' on ', 1), outbox.version(),
                (select string_agg(name || '=' || current_setting(name), ' ' order by name)
                 from pg_settings where name like 'outbox_relay.%' and name <> 'outbox_relay.bootstrap_servers')",
        &[],
    )?;
    let processor = fs::read_to_string("/proc/cpuinfo")
        .unwrap_or_default()
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.trim_start_matches([' ', '\t', ':']).to_owned()))
        .unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let postgres: Vec<String> = servers::SETTINGS.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let producer: Vec<String> = raw::SETTINGS.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Ok(json!({
        "machine": format!("{cores} cores, {processor}; all servers and the benchmark on it"),
        "postgres": row.get::<_, String>(0),
        "postgres_settings": postgres.join(" "),
        "outbox_relay": row.get::<_, String>(1),
        "outbox_relay_settings": row.get::<_, String>(2),
        "kafka": servers.broker.version()?,
        "librdkafka": rdkafka::util::get_rdkafka_version().1,
        "raw_producer_settings": producer.join(" "),
        "topics": format!("{} partitions, {} keys", raw::PARTITIONS, raw::KEYS),
    }))
}

fn line(terminal: &Terminal, name: &str, value: impl std::fmt::Display) {
    terminal.say(format_args!("{name:<50}{value}"));
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn percentiles(sorted: &[Duration]) -> String {
    let [p50, p95, p99] = [50, 95, 99].map(|percent| milliseconds(percentile(sorted, percent)));
    format!("{p50:.2} / {p95:.2} / {p99:.2} ms")
}

fn in_json(sorted: &[Duration]) -> Value {
    json!({
        "p50": milliseconds(percentile(sorted, 50)),
        "p95": milliseconds(percentile(sorted, 95)),
        "p99": milliseconds(percentile(sorted, 99)),
    })
}
