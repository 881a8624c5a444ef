//! Numbers for readers: of what was measured three digits, for no median of five rounds knows more.

/// What was measured: `0.523`, `8.31`, `512,000`.
pub fn measured(value: f64) -> String {
    // Rounded first, so that 99.96 is 100 and not 100.0.
    let rounded = format!("{value:.2e}").parse::<f64>().ok().filter(|rounded| rounded.is_finite());
    let Some(value) = rounded else { return "not measurable".to_owned() };
    if value.abs() >= 1000.0 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", thousands(value.abs() as u64));
    }
    let before_point = if value == 0.0 { 3.0 } else { value.abs().log10().floor() + 1.0 };
    let decimals = (3.0 - before_point).max(0.0) as usize;
    format!("{value:.decimals$}")
}

/// The same with its unit, if it has one: `8.31 ms`, `7.00/min`.
pub fn with_unit(value: f64, unit: &str) -> String {
    followed_by(measured(value), unit)
}

/// A limit, as it was set: `25 ms`.
pub fn limit(limit: f64, unit: &str) -> String {
    followed_by(limit.to_string(), unit)
}

/// What was counted, with commas.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or_default()).collect();
    groups.join(",")
}

fn followed_by(number: String, unit: &str) -> String {
    match unit.trim() {
        "" => number,
        per if per.starts_with('/') => number + per,
        unit => format!("{number} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{limit, measured, with_unit};

    #[test]
    fn three_digits_count() {
        for (value, expected) in [
            (0.0, "0"),
            (0.5234, "0.523"),
            (0.001234, "0.00123"),
            (8.3149, "8.31"),
            (99.96, "100"),
            (128.4, "128"),
            (999.7, "1,000"),
            (512_345.0, "512,000"),
            (-1_234_567.0, "-1,230,000"),
            (f64::NAN, "not measurable"),
            (f64::INFINITY, "not measurable"),
        ] {
            assert_eq!(measured(value), expected, "{value}");
        }
    }

    #[test]
    fn units_follow() {
        assert_eq!(with_unit(0.4567, ""), "0.457");
        assert_eq!(with_unit(8.0, "ms"), "8.00 ms");
        assert_eq!(with_unit(7.0, "/min"), "7.00/min");
        assert_eq!(limit(25.0, " ms"), "25 ms");
    }
}
