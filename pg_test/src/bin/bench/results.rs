//! What was measured, in the form in which it is kept, compared and printed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Rows of the table of what must be reached.
const ROWS: u32 = 13;

/// One run of the benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// The day, as `2026-11-30`.
    pub date: String,
    /// `short` or `full`.
    pub mode: String,
    /// Minutes that it took.
    pub minutes: f64,
    /// Machine, versions and settings, by name.
    pub measured_with: BTreeMap<String, String>,
    /// Everything measured, in the order of the cases.
    pub figures: Vec<Figure>,
    /// What is promised, and what came of it: R1 to R13.
    pub ratios: Vec<Ratio>,
    /// What was read back: records, and how many of them were missing, invented, duplicates or out of order (all none, or the
    /// run has failed).
    pub records_read_back: u64,
}

/// One series of samples; its median counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Groups what is shown together, such as `drain by payload`.
    pub group: String,
    /// What was varied, such as `1000 B`.
    pub case: String,
    /// Who was measured, such as `relay`, `raw producer` or `debezium, tuned`.
    pub who: String,
    /// Unit of the samples, such as `messages/s` or `ms`.
    pub unit: String,
    /// One a round.
    pub samples: Vec<f64>,
    /// What a reader must know to judge it; may be empty.
    pub note: String,
}

/// One row of the table of what must be reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ratio {
    /// `R1` to `R13`, with a letter where a row has several parts.
    pub id: String,
    /// What was divided by what.
    pub what: String,
    /// What came out.
    pub value: f64,
    /// Unit, where it is no bare ratio.
    pub unit: String,
    /// Which side of the limits is good.
    pub good: Good,
    /// What it must reach.
    pub required: f64,
    /// What it should reach.
    pub aim: Option<f64>,
    /// How it was measured: rounds, what ran beside it, where the figures come from.
    pub method: String,
}

/// Which side of a limit is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Good {
    /// At least the limit.
    AtLeast,
    /// At most the limit.
    AtMost,
}

impl Results {
    /// Adds a sample to a series, which begins with its first one.
    pub fn add(&mut self, group: &str, case: &str, who: &str, unit: &str, sample: f64) {
        let same = |figure: &&mut Figure| figure.group == group && figure.case == case && figure.who == who;
        if let Some(figure) = self.figures.iter_mut().find(same) {
            figure.samples.push(sample);
            return;
        }
        self.figures.push(Figure {
            group: group.to_owned(),
            case: case.to_owned(),
            who: who.to_owned(),
            unit: unit.to_owned(),
            samples: vec![sample],
            note: String::new(),
        });
    }

    /// Adds samples to a series, and what a reader must know to judge it.
    pub fn add_series(&mut self, group: &str, case: &str, who: &str, unit: &str, samples: Vec<f64>, note: &str) {
        for sample in samples {
            self.add(group, case, who, unit, sample);
        }
        self.note(group, case, who, note);
    }

    /// Says what a reader must know to judge a series.
    pub fn note(&mut self, group: &str, case: &str, who: &str, note: &str) {
        let same = |figure: &&mut Figure| figure.group == group && figure.case == case && figure.who == who;
        if let Some(figure) = self.figures.iter_mut().find(same) {
            figure.note = note.to_owned();
        }
    }

    /// The series of one contestant in one case.
    pub fn figure(&self, group: &str, case: &str, who: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.group == group && figure.case == case && figure.who == who)
    }

    /// All series, by group, in the order in which the groups began.
    pub fn groups(&self) -> Vec<(&str, Vec<&Figure>)> {
        let mut groups: Vec<(&str, Vec<&Figure>)> = Vec::new();
        for figure in &self.figures {
            match groups.iter_mut().find(|(group, _)| *group == figure.group) {
                Some((_, figures)) => figures.push(figure),
                None => groups.push((&figure.group, vec![figure])),
            }
        }
        groups
    }

    /// The rows of the table by their number, whatever was measured first.
    pub fn ratios_in_order(&self) -> Vec<&Ratio> {
        let mut ratios: Vec<&Ratio> = self.ratios.iter().collect();
        ratios.sort_by_key(|ratio| (ratio.number(), &ratio.id));
        ratios
    }

    /// The rows of the table for which nothing was measured.
    pub fn ids_without_ratio(&self) -> Vec<String> {
        let measured = |number| self.ratios.iter().any(|ratio| ratio.number() == Some(number));
        (1..=ROWS).filter(|number| !measured(*number)).map(|number| format!("R{number}")).collect()
    }
}

impl Figure {
    /// The middle sample.
    pub fn median(&self) -> f64 {
        median(&self.samples)
    }

    /// The lowest and the highest sample.
    pub fn range(&self) -> (f64, f64) {
        self.samples.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(lowest, highest), sample| {
            (sample.min(lowest), sample.max(highest))
        })
    }
}

impl Ratio {
    /// Whether it reaches what it must.
    pub fn holds(&self) -> bool {
        self.is_within(self.required)
    }

    /// Whether it reaches what it should; never, if nothing was said.
    pub fn reaches_aim(&self) -> bool {
        self.aim.is_some_and(|aim| self.is_within(aim))
    }

    fn is_within(&self, limit: f64) -> bool {
        match self.good {
            Good::AtLeast => self.value >= limit,
            Good::AtMost => self.value <= limit,
        }
    }

    /// The number of its row: 3 of `R3b`.
    fn number(&self) -> Option<u32> {
        self.id.trim_matches(char::is_alphabetic).parse().ok()
    }
}

/// The median of what each round gives by itself: what slows down one round slows down both contestants.
pub fn median_of_ratios(above: &[f64], below: &[f64]) -> f64 {
    let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above / below).collect();
    median(&ratios)
}

/// The value that `percent` of the sorted ones do not exceed.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// The middle of the samples; of an even number, half way between the two in the middle.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}
