//! The shipped worker: receives what wakes it, claims, runs a handler under heartbeats,
//! completes, and only then acknowledges. Decides nothing: what an outcome means is the
//! engine's.
//!
//! ```text
//! delivery ─▶ claim ─▶ handler ──▶ complete ─▶ ack
//!                │      ▲  │ heartbeats
//!                │      └──┘ (each answer may say: end)
//!                └─ not claimable: ack, the message only woke
//! ```

pub mod handlers;

mod attempt;
mod builtin;
mod directories;
mod effects;
mod files;
mod folder;
mod gauges;
mod heartbeat;
mod log_keeper;
mod pool;
mod reserve;
mod secrets;
mod worker;

pub use builtin::BuiltinHandlers;
pub use directories::{Directories, LocalDirectories};
pub use files::FilesError;
pub use gauges::{Gauges, QueueGauges};
pub use secrets::EnvironmentSecrets;
pub use worker::{Settings, WorkError, Worker};
