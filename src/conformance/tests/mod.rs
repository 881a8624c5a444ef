//! The suite is tried on ports that keep every rule, and on ports that break one each: a suite that can't fail proves
//! nothing.

mod broken_publishers;
mod broken_stores;
mod listed;
mod memory_publisher;
mod memory_store;
