//! How fast a backlog is drained, beside the raw limits, with one factor varied at a time.

use anyhow::Result;

use crate::Bench;
use crate::results::Results;

/// All cases.
pub fn measure(_bench: &Bench<'_>, _results: &mut Results) -> Result<()> {
    Ok(())
}
