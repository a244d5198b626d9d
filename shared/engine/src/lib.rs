//! Loads what a command needs, lets the domain decide, commits atomically, sends what follows.
//! Holds no rule of its own and names no product: stores and brokers are ports.

mod batch;
mod birth;
pub mod blobs;
pub mod claims;
mod core;
pub mod crash;
pub mod effects;
mod engine;
pub mod installation;
mod lane;
pub mod outbox;
pub mod ports;
pub mod recalls;
pub mod refusals;
pub mod registry;
pub mod resolve;
pub mod schedulers;
pub mod seals;
mod standing;
pub mod stopping;
pub mod submission;
pub mod tally;
pub mod time;
pub mod tokens;
pub mod verify;

use standfast_domain::refusal::Refusal;

pub use crate::core::Counters;
pub use crate::engine::Engine;
pub use crate::lane::Done;
use crate::ports::StoreError;
pub use crate::standing::Standing;

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// It was understood and refused; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store did not answer or could not; asking again is always right.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl EngineError {
    /// True if the store is away or refuses writes: the engine has logged that once for the
    /// whole process, so that nobody else needs to.
    pub fn is_outage(&self) -> bool {
        matches!(self, Self::Store(StoreError::Unavailable(_) | StoreError::ReadOnly(_)))
    }
}
