//! Whether an installation can work, and what to do when it cannot.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of the health check: 200 when `ok`, else 503. It gives away nothing about tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether requests can be served.
    pub ok: bool,
    /// Version of the server.
    pub version: String,
    /// Whether the store answers.
    pub store: bool,
    /// Whether the broker answers; work goes on without it for a while.
    pub broker: bool,
    /// Whether an acknowledged write survives a power cut.
    pub durability: Durability,
}

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Each write is on disk before it is acknowledged.
    Full,
    /// The last second or so may be lost.
    Relaxed,
}

/// What `standfast doctor` found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// The checks, in the order they were made.
    pub checks: Vec<DoctorCheck>,
}

impl DoctorReport {
    /// Says whether nothing is wrong that keeps the installation from working.
    pub fn is_ok(&self) -> bool {
        self.checks.iter().all(|check| check.ok || check.severity != Severity::Error)
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorCheck {
    /// What was looked at, such as `redis maxmemory-policy`.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// How bad it is when it is not.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What to do; empty when all is well.
    #[serde(default)]
    pub advice: String,
}

/// How bad a failed check is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Something may be lost or slow.
    Warning,
    /// It does not work.
    Error,
}
