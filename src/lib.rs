//! placeholder
pub mod backoff;
pub mod bucket;
pub mod clock;
pub mod headers;
#[cfg(feature = "server")]
#[allow(unsafe_code, reason = "the second wall")]
mod kafka;
pub mod lease;
pub mod message;
#[cfg(feature = "server")]
#[allow(unsafe_code, reason = "the first wall")]
mod postgres;
pub mod prefix;
pub mod properties;
pub mod relay;
pub mod repeats;
pub mod settings;
pub mod share;
#[cfg(test)]
mod simulate;
pub mod window;
