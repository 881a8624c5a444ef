//! Waiting for a named state, never for a length of time.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two looks. Short enough for latencies of tens of milliseconds, long enough to leave the two cores to the servers.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What one look found.
pub enum Seen<T> {
    /// The state is there.
    Reached(T),
    /// Not yet; the text says how far it has come and ends up in the error if it never comes.
    NotYet(String),
}

/// Looks until `state` is reached; the error names the state and what was seen last.
pub fn until<T>(state: impl Display, at_most: Duration, mut look: impl FnMut() -> Result<Seen<T>>) -> Result<T> {
    let since = Instant::now();
    loop {
        match look()? {
            Seen::Reached(found) => return Ok(found),
            Seen::NotYet(last) if since.elapsed() >= at_most => {
                bail!("not within {at_most:?}: {state}; last seen: {last}")
            }
            Seen::NotYet(_) => thread::sleep(BETWEEN_LOOKS),
        }
    }
}

/// The same for a state that is plainly true or false.
pub fn until_true(state: impl Display, at_most: Duration, mut look: impl FnMut() -> Result<bool>) -> Result<()> {
    until(state, at_most, || Ok(if look()? { Seen::Reached(()) } else { Seen::NotYet("false".into()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_state_and_what_was_seen_last() {
        let error = until("the moon is blue", Duration::from_millis(1), || Ok(Seen::<()>::NotYet("white".into())))
            .expect_err("it never is");
        let text = error.to_string();
        assert!(text.contains("the moon is blue") && text.contains("white"), "{text}");
    }

    #[test]
    fn a_state_that_comes_late_is_found() {
        let mut looks = 0;
        let found = until("third look", Duration::from_secs(5), || {
            looks += 1;
            Ok(if looks == 3 { Seen::Reached(looks) } else { Seen::NotYet(looks.to_string()) })
        });
        assert_eq!(found.expect("comes at the third look"), 3);
    }
}
