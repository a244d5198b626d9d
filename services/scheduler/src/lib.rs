//! Moves time along: timers, take-overs, and the sweeps that find what a crash or a lost
//! message left behind; and takes in what other services publish. Any number run at once.
//!
//! Each duty reads an index and gives commands to the engine, which decides on the records.
//! An entry is a hint: one that leads to nothing any more is removed. Partitions are shared
//! out among living schedulers to save work, never for correctness.

mod dead_steps;
mod intake;
mod members;
mod not_started;
mod outbox_sweep;
mod ready_sweep;
mod retention;
mod scheduler;
mod takeover;
mod timers;
mod walk;
mod work_sweep;

pub use intake::{Intake, IntakeGauges};
pub use members::forget_schedulers;
pub use ready_sweep::publish_ready;
pub use scheduler::{Gauges, Scheduler, Settings};
pub use takeover::end_all_claims;
