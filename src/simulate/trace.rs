//! What happened, for the eye and as one number: two runs of a seed have the same number, or the run is not repeatable.

use crate::clock::Time;

#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: u64,
    /// Lines are kept only when somebody will read them.
    pub lines: Option<Vec<String>>,
    pub steps: u64,
}

impl Trace {
    pub fn add(&mut self, at: Time, actor: Option<usize>, numbers: &[u64]) {
        self.steps += 1;
        let time = at.since(super::plan::START).as_nanos() as u64;
        self.mix(time);
        self.mix(actor.map_or(0, |actor| actor as u64 + 1));
        for number in numbers {
            self.mix(*number);
        }
    }

    fn mix(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }
}
