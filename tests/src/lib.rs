//! What the tests share: worlds of real parts within one process, and conditions to wait for.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

pub mod binary;
pub mod embedded;
pub mod fleet;
pub mod memory_store;
pub mod outside;
pub mod private_rabbit;
pub mod private_redis;
pub mod processes;
pub mod services;
pub mod wait;
