//! What a person is shown, as pure functions from wire values to lines.

pub mod artifacts;
pub mod effects;
pub mod events;
pub mod explain;
pub mod holds;
pub mod quantities;
pub mod steps;
pub mod stops;
pub mod table;
pub mod tasks;

#[cfg(test)]
pub mod samples;
