//! The plots of the page, as SVG. They bring their own ground and colours for light and dark, so that they can be read anywhere.

mod drawing;

use crate::drain;
use crate::numerals::{measured, with_unit};
use crate::results::{Figure, Good, Ratio, Results};

use drawing::{Anchor, Drawing};

/// A file of the page.
pub struct Plot {
    /// Its name.
    pub file: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What it is.
    pub svg: String,
}

/// All for which something was measured.
pub fn all(results: &Results) -> Vec<Plot> {
    [ratios(results), drains(results)].into_iter().flatten().collect()
}

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 20.0;
/// Below the title.
const TOP: f64 = 64.0;
/// For the numbers and the name of the axis.
const BOTTOM: f64 = 52.0;
const BAR: f64 = 14.0;

/// How far each row is from what it must reach. Ratios are compared with ratios, so the axis is logarithmic: twice as good is
/// as far to the right as half as good is to the left.
pub fn ratios(results: &Results) -> Option<Plot> {
    /// Doublings to each side; what is beyond gets an arrow.
    const DOUBLINGS: f64 = 2.0;
    const ROW: f64 = 46.0;
    const TITLE: &str = "What was reached, in multiples of what must be";
    let rows: Vec<&Ratio> = results.ratios_in_order().into_iter().filter(|ratio| ratio.value.is_finite()).collect();
    if rows.is_empty() {
        return None;
    }
    let bottom = TOP + ROW * rows.len() as f64;
    let mut drawing = Drawing::new(WIDTH, bottom + BOTTOM, TITLE);
    drawing.text(
        MARGIN,
        50.0,
        Anchor::Start,
        "soft",
        "bar to the right: reached; to the left: missed; upright mark: the aim",
    );
    let left = MARGIN + 46.0;
    let right = WIDTH - MARGIN - 24.0;
    let at = |times: f64| {
        left + (times.log2().clamp(-DOUBLINGS, DOUBLINGS) + DOUBLINGS) / (2.0 * DOUBLINGS) * (right - left)
    };
    for doublings in -(DOUBLINGS as i32)..=DOUBLINGS as i32 {
        let times = 2_f64.powi(doublings);
        drawing.line(at(times), TOP, at(times), bottom, if doublings == 0 { "limit" } else { "grid" });
        drawing.text(at(times), bottom + 18.0, Anchor::Middle, "soft", &times.to_string());
    }
    drawing.text(at(1.0), bottom + 40.0, Anchor::Middle, "ink", "times as good as it must be (logarithmic)");
    for (ratio, top) in rows.iter().zip((0..).map(|row| TOP + ROW * f64::from(row))) {
        let times = times_required(ratio, ratio.value);
        let (from, to) = (at(1.0).min(at(times)), at(1.0).max(at(times)));
        let colour = if ratio.holds() { "good" } else { "bad" };
        let value = format!("{}: {}", ratio.what, with_unit(ratio.value, &ratio.unit));
        drawing.text(MARGIN, top + 18.0, Anchor::Start, "strong", &ratio.id);
        drawing.text(left, top + 18.0, Anchor::Start, "ink", &value);
        drawing.bar(from, top + 25.0, (to - from).max(1.0), BAR, colour);
        if !ratio.holds() {
            drawing.text(at(1.0) + 6.0, top + 37.0, Anchor::Start, "bad", "missed");
        }
        if times.log2().abs() > DOUBLINGS {
            let (x, anchor, arrow) =
                if times > 1.0 { (right + 4.0, Anchor::Start, "▶") } else { (left - 4.0, Anchor::End, "◀") };
            drawing.text(x, top + 37.0, anchor, colour, arrow);
        }
        if let Some(aim) = ratio.aim {
            let aim = at(times_required(ratio, aim));
            drawing.line(aim, top + 21.0, aim, top + 29.0 + BAR, "aim");
        }
    }
    Some(Plot { file: "performance-ratios.svg", title: TITLE, svg: drawing.finish() })
}

/// How many times as good as it must be. What must not be at all, such as growth, and isn't, is infinitely good.
fn times_required(ratio: &Ratio, value: f64) -> f64 {
    match ratio.good {
        Good::AtLeast => value / ratio.required,
        Good::AtMost if value <= 0.0 => f64::INFINITY,
        Good::AtMost => ratio.required / value,
    }
}

/// The rates at which each contestant gets the same rows to Kafka.
pub fn drains(results: &Results) -> Option<Plot> {
    const ROW: f64 = 40.0;
    const TITLE: &str = "A backlog on its way to Kafka: messages a second";
    let bars = contestants(results);
    if bars.is_empty() {
        return None;
    }
    let bottom = TOP + ROW * bars.len() as f64;
    let mut drawing = Drawing::new(WIDTH, bottom + BOTTOM, TITLE);
    drawing.text(MARGIN, 50.0, Anchor::Start, "soft", "bar: median; thin line: lowest to highest round");
    let left = 270.0;
    let right = WIDTH - MARGIN - 90.0;
    let most = bars.iter().map(|(_, figure)| figure.range().1).fold(0.0, f64::max);
    let step = step(most);
    let steps = (most / step).ceil();
    let at = |rate: f64| left + rate / (steps * step) * (right - left);
    for rate in (0..=steps as u32).map(|number| f64::from(number) * step) {
        drawing.line(at(rate), TOP, at(rate), bottom, "grid");
        drawing.text(at(rate), bottom + 18.0, Anchor::Middle, "soft", &measured(rate));
    }
    drawing.text((left + right) / 2.0, bottom + 40.0, Anchor::Middle, "ink", "messages/s");
    for ((name, figure), top) in bars.iter().zip((0..).map(|row| TOP + ROW * f64::from(row))) {
        let (lowest, highest) = figure.range();
        let middle = top + ROW / 2.0;
        let colour = if figure.who == drain::RELAY { "ours" } else { "others" };
        drawing.text(left - 10.0, middle + 5.0, Anchor::End, "ink", name);
        drawing.bar(left, middle - BAR / 2.0, at(figure.median()) - left, BAR, colour);
        drawing.line(at(lowest), middle, at(highest), middle, "range");
        drawing.text(at(highest) + 8.0, middle + 5.0, Anchor::Start, "strong", &measured(figure.median()));
    }
    Some(Plot { file: "performance-drains.svg", title: TITLE, svg: drawing.finish() })
}

/// Who is in the picture: the relay beside the raw producers in the central case, and beside Debezium where they took turns.
/// The relay is in both, because these are different minutes.
fn contestants(results: &Results) -> Vec<(String, &Figure)> {
    let rates = |figure: &&Figure| figure.unit == "messages/s" && !figure.samples.is_empty();
    let is_debezium = |figure: &Figure| figure.who.starts_with("debezium");
    let mut bars = Vec::new();
    if let Some(raw) = results.figures.iter().filter(rates).find(|figure| figure.who == drain::RAW) {
        let beside_raw = [drain::RAW, drain::RAW_WITH_ID, drain::RELAY];
        let figures = beside_raw.into_iter().filter_map(|who| results.figure(&raw.group, &raw.case, who));
        bars.extend(figures.map(|figure| (figure.who.clone(), figure)));
    }
    for (_, figures) in results.groups() {
        let figures: Vec<&Figure> = figures.into_iter().filter(rates).collect();
        let relay = figures.iter().find(|figure| figure.who == drain::RELAY);
        if let (Some(relay), true) = (relay, figures.iter().any(|figure| is_debezium(figure))) {
            bars.push((format!("{}, beside Debezium", drain::RELAY), relay));
            bars.extend(
                figures.iter().filter(|figure| is_debezium(figure)).map(|figure| (figure.who.clone(), *figure)),
            );
        }
    }
    bars
}

/// A round distance of marks that makes four to ten of them.
fn step(most: f64) -> f64 {
    let power = 10_f64.powf(most.log10().floor());
    [0.1, 0.2, 0.5, 1.0].into_iter().map(|part| part * power).find(|step| most / step <= 6.0).unwrap_or(power * 2.0)
}
