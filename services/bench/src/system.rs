//! What the jobs run on: an installation in this process or processes of their own.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;
use standfast_engine::EngineError;
use standfast_engine::blobs::BlobError;

use crate::front::Front;

/// Why an installation did not take part.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// The store or the engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The folder for blobs.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// A plan of the benchmark was refused.
    #[error("submit a plan of the benchmark: {0}")]
    Plan(String),
    /// A submission from outside was not answered well.
    #[error("submit from outside: {0}")]
    Outside(#[from] standfast_sdk::Error),
    /// The installation has no such way in.
    #[error("submit as messages: there is no RabbitMQ here")]
    NoBroker,
    /// A way in could not be opened, or a process does not answer.
    #[error("reach the installation: {0}")]
    Unreached(String),
}

/// Where a task stands, as far as a benchmark wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// There is no such task.
    Missing,
    /// It is stored and has not completed.
    Open,
    /// It has completed.
    Completed,
}

/// Ways in besides the one of [`Entrance::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// `POST /v1/tasks`.
    Http,
    /// `submit` messages.
    Amqp,
}

/// What takes submissions.
#[async_trait]
pub trait Entrance: Send + Sync {
    /// Submits a plan; it is stored when this returns.
    async fn submit(&self, plan: &Value) -> Result<TaskId, SystemError>;
}

/// What takes submissions and works on them.
#[async_trait]
pub trait System: Entrance {
    /// Submits a plan of one step and waits until its completion is stored.
    async fn carry_out(&self, plan: &Value) -> Result<TaskId, SystemError>;

    /// Counts the attempts that have succeeded and been told so far.
    async fn succeeded(&self) -> Result<u64, SystemError>;

    /// Says where a task stands.
    async fn stands(&self, task: &TaskId) -> Result<Stands, SystemError>;

    /// Gives the time that timers go by.
    async fn now(&self) -> Result<Time, SystemError>;

    /// Opens a way in from outside.
    async fn open(&self, door: Door) -> Result<Front, SystemError>;

    /// Says how often it may be looked at without being slowed by that.
    fn look(&self) -> Duration;
}
