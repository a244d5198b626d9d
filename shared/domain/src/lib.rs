//! The rules of Standfast: what a task is and how it may change. A state machine without
//! I/O, clock, randomness, async or logging: time, ids and seeds are arguments.
//!
//! A [`decide::Command`] is decided on a [`view::View`] of the records that it touches; what
//! happens is a list of [`event::Change`]s; [`evolve::evolve`] alone changes records; and
//! [`stage::stage`] turns a batch of changes into one [`commit::Commit`] for a store.

pub mod canonical;
pub mod ceiling;
pub mod commit;
pub mod decide;
pub mod digest;
pub mod event;
pub mod evolve;
pub mod hold;
pub mod ids;
pub mod index;
pub mod invariants;
pub mod json;
pub mod outcome;
pub mod plan;
pub mod record;
pub mod refusal;
pub mod retry;
pub mod rights;
pub mod stage;
pub mod stop_plan;
pub mod time;
pub mod view;
