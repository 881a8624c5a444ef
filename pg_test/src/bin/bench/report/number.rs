//! Numbers for readers: three digits that count, for no median of five rounds knows more.

use crate::results::{Good, Ratio};

/// `0.523`, `8.31`, `512,000`.
pub fn number(value: f64) -> String {
    // Rounded first, so that 99.96 is 100 and not 100.0.
    let Ok(value) = format!("{value:.2e}").parse::<f64>() else { return "not measurable".to_owned() };
    if !value.is_finite() {
        return "not measurable".to_owned();
    }
    let before_point = if value == 0.0 { 3.0 } else { value.abs().log10().floor() + 1.0 };
    let decimals = (3.0 - before_point).max(0.0) as usize;
    grouped(&format!("{value:.decimals$}"))
}

/// All digits: what was counted is known.
pub fn count(number: u64) -> String {
    grouped(&number.to_string())
}

/// With its unit, if it has one: `8.31 ms`, `7.00/min`.
pub fn with_unit(number: &str, unit: &str) -> String {
    match unit.trim() {
        "" => number.to_owned(),
        per if per.starts_with('/') => format!("{number}{per}"),
        unit => format!("{number} {unit}"),
    }
}

/// `at least 0.45`, `at most 25 ms`.
pub fn required(ratio: &Ratio) -> String {
    let side = match ratio.good {
        Good::AtLeast => "at least",
        Good::AtMost => "at most",
    };
    format!("{side} {}", with_unit(&ratio.required.to_string(), &ratio.unit))
}

/// Commas between thousands.
fn grouped(number: &str) -> String {
    let whole = number.find('.').unwrap_or(number.len());
    let mut grouped = String::new();
    for (position, character) in number.char_indices() {
        let left = whole.saturating_sub(position);
        if left > 0 && left % 3 == 0 && grouped.ends_with(|before: char| before.is_ascii_digit()) {
            grouped.push(',');
        }
        grouped.push(character);
    }
    grouped
}
