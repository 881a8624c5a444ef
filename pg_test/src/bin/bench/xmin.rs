//! Whether a transaction that holds the horizon slows the relay down.

use anyhow::Result;

use crate::Bench;
use crate::results::Results;

/// Drains with the horizon held, and without.
pub fn measure(_bench: &Bench<'_>, _results: &mut Results) -> Result<()> {
    Ok(())
}
