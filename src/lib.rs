//! placeholder
pub mod backoff;
pub mod bucket;
pub mod clock;
pub mod headers;
pub mod lease;
pub mod message;
pub mod prefix;
pub mod properties;
pub mod relay;
pub mod settings;
pub mod share;
pub mod window;
#[cfg(feature = "server")]
pgrx::pg_module_magic!(name, version);
