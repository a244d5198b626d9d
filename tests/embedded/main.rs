//! Tasks in an embedded installation, from submission to end, by their behaviour.
#![allow(clippy::unwrap_used)]

mod attempts;
mod births;
mod effects;
mod failures;
mod flow;
mod sizes;
mod stops;
