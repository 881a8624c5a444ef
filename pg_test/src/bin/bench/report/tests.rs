use super::{page, plot, required};
use crate::results::{Figure, Good, Ratio, Results};

/// Invented, every one of them.
fn results() -> Results {
    let text = include_str!("invented.json");
    serde_json::from_str(text).expect("the invented results can be read")
}

#[test]
fn limits_say_which_side_is_good() {
    let results = results();
    let limits: Vec<String> = results.ratios_in_order().into_iter().map(required).collect();
    assert_eq!(limits, ["at least 0.45", "at least 6", "at most 0 ms/s", "at most 25 ms"]);
}

#[test]
fn rows_stand_in_the_order_of_their_numbers() {
    let results = results();
    let ids: Vec<&str> = results.ratios_in_order().into_iter().map(|ratio| ratio.id.as_str()).collect();
    assert_eq!(ids, ["R1", "R2", "R4", "R6"]);
    assert_eq!(results.ids_without_ratio(), ["R3", "R5", "R7", "R8", "R9", "R10", "R11", "R12", "R13"]);
}

#[test]
fn what_stands_between_the_marks_is_replaced_and_nothing_else() {
    let text = format!("before\n{}\nold\n{}\nafter\n", page::BEGIN, page::END);
    let filled = page::fill(&text, "new\n").expect("both marks are there");
    assert_eq!(filled, format!("before\n{}\n\nnew\n\n{}\nafter\n", page::BEGIN, page::END));
    assert_eq!(page::fill(&filled, "new\n").expect("both marks are still there"), filled);
    assert!(page::fill("no marks", "new").is_err());
}

#[test]
fn the_page_of_docs_has_its_marks() {
    page::fill(include_str!("../../../../../docs/performance.md"), "new").expect("docs/performance.md has both marks");
}

#[test]
fn the_page_shows_every_row_and_every_series() {
    let results = results();
    let page = page::body(&results, &plot::all(&results), "results.json");
    for expected in [
        "**Missed: R6.**",
        "Not measured in this run: R3, R5,",
        "| R1 | drain of 1M x 200 B / raw producer | **0.620** | at least 0.45 | 0.6 | ok, and the aim |",
        "| R6 | p99 commit -> consumer at half the rate | **31.2 ms** | at most 25 ms | 10 ms | **missed** |",
        "- **R2** median of the ratios of 5 rounds",
        "#### Drain beside Debezium",
        "| backlog | debezium, tuned | **46,000 messages/s** | 43,000 to 54,000 | 3 | `max.batch.size` 20480 |",
        "![What was reached, in multiples of what must be](performance-ratios.svg)",
        "| postgres | PostgreSQL 15 |",
    ] {
        assert!(page.contains(expected), "{expected:?} is missing in\n{page}");
    }
}

#[test]
fn text_of_a_series_is_no_markup() {
    let results = Results {
        figures: vec![Figure {
            group: "a <b>".to_owned(),
            case: "x | y".to_owned(),
            who: "relay".to_owned(),
            unit: "messages/s".to_owned(),
            samples: vec![1.0],
            note: "two\nlines & more".to_owned(),
        }],
        ..Results::default()
    };
    let page = page::body(&results, &[], "results.json");
    assert!(page.contains("#### A &lt;b>") && page.contains("| x \\| y | relay | **1.00 messages/s** |"), "{page}");
    assert!(page.contains("| two lines &amp; more |"), "{page}");
}

#[test]
fn a_bar_of_a_drain_is_as_long_as_its_rate() {
    let results = results();
    let plot = plot::drains(&results).expect("there are drains");
    let widths: Vec<f64> = plot
        .svg
        .lines()
        .filter(|line| line.contains("class=\"ours\"") || line.contains("class=\"others\""))
        .filter_map(|line| line.split_once("\" width=\"")?.1.split_once('"')?.0.parse().ok())
        .collect();
    // Raw producer and relay, then relay and both kinds of Debezium.
    let rates = [700_000.0, 434_000.0, 420_000.0, 46_000.0, 42_000.0];
    assert_eq!(widths.len(), rates.len());
    for (width, rate) in widths.iter().zip(rates) {
        assert!((width / widths[0] - rate / rates[0]).abs() < 0.001, "{widths:?}");
    }
}

#[test]
fn a_missed_row_is_to_the_left_of_the_limit() {
    let results = results();
    let plot = plot::ratios(&results).expect("there are ratios");
    let bars = |class: &str| plot.svg.lines().filter(|line| line.starts_with("<rect") && line.contains(class)).count();
    assert_eq!(bars("class=\"good\""), 3);
    assert_eq!(bars("class=\"bad\""), 1);
    // No growth at all is infinitely far from growth: an arrow says that the bar ends before it.
    assert_eq!(plot.svg.matches('▶').count(), 1);
}

#[test]
fn text_in_a_plot_is_escaped() {
    let mut results = results();
    results.ratios[0].what = "a < b & c".to_owned();
    let svg = plot::ratios(&results).expect("there are ratios").svg;
    assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
}

#[test]
fn nothing_measured_makes_no_plot() {
    assert!(plot::all(&Results::default()).is_empty());
    let ratio = Ratio {
        id: "R1".to_owned(),
        what: String::new(),
        value: f64::NAN,
        unit: String::new(),
        good: Good::AtLeast,
        required: 1.0,
        aim: None,
        method: String::new(),
    };
    assert!(plot::all(&Results { ratios: vec![ratio], ..Results::default() }).is_empty());
}
