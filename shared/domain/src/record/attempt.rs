//! What an attempt holds, gives and leaves.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{Principal, StepId, WorkerId};
use crate::outcome::FailureClass;
use crate::time::{Span, Time};

/// What an attempt may overrun its end or its handler's silence by before its claim dies: the
/// worker ends it itself, and has to tell.
pub const OVERRUN: Span = Span::from_secs(30);
/// The shortest interval between two heartbeats that a step's `timeout.heartbeat` asks for:
/// more often would cost the store more than the news is worth.
pub const INTERVAL_MIN: Span = Span::from_millis(100);

/// A worker's hold on an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Who runs it.
    pub worker: WorkerId,
    /// As whom the worker came: itself, or the token of an outside worker.
    pub principal: Principal,
    /// The attempt's number.
    pub attempt: u32,
    /// The epoch it started in.
    pub epoch: u32,
    /// When it started.
    pub started_at: Time,
    /// Dead unless renewed by then.
    pub expires_at: Time,
    /// When the attempt must have ended.
    pub ends_at: Time,
    /// How long a renewal lasts.
    pub length: Span,
    /// What the handler last said of its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// When the handler last gave a sign of life, as its worker told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_at: Option<Time>,
    /// The longest silence of the handler (`timeout.heartbeat`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Span>,
}

impl Claim {
    /// Gives when the handler last gave a sign of life: its start is one.
    pub fn heard_at(&self) -> Time {
        self.heard_at.unwrap_or(self.started_at)
    }

    /// Gives when the handler will have been silent for too long.
    pub fn silent_at(&self) -> Option<Time> {
        self.heartbeat.map(|most| self.heard_at().after(most))
    }

    /// Gives the time that no renewal goes beyond: what the worker should have ended by then
    /// is ended for it.
    pub fn dies_at(&self) -> Time {
        let ends_at = self.silent_at().map_or(self.ends_at, |silent| silent.min(self.ends_at));
        ends_at.after(OVERRUN)
    }

    /// True if a renewal was cut short: the worker went on with what it should have ended.
    pub fn is_cut(&self) -> bool {
        self.expires_at >= self.dies_at()
    }

    /// Gives how often the worker sends a heartbeat: three within the claim's length, and two
    /// within the longest silence of the handler, so that its signs of life are told in time.
    pub fn interval(&self) -> Span {
        let third = Span(self.length.0 / 3);
        self.heartbeat.map_or(third, |most| third.min(Span(most.0 / 2).max(INTERVAL_MIN)))
    }
}

/// A value that is kept inline or in the blobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The value itself.
    Inline(Value),
    /// A reference to the blobs.
    Blob {
        /// The blob's name.
        name: String,
        /// Its size.
        bytes: u64,
        /// SHA-256 of its content, in hex.
        sha256: String,
    },
}

/// Why a round was opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundFailure {
    /// The step that failed.
    pub step: StepId,
    /// The failure's class.
    pub class: FailureClass,
    /// Its text.
    pub message: String,
    /// What the failing attempt gave.
    #[serde(default)]
    pub output: Value,
    /// The round that this opened.
    pub round: u32,
    /// The steps of the round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepId>,
    /// Those of its steps that are skipped in it too, for a need outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<StepId>,
}

/// What an attempt wrote: the head and the tail, the rest as a blob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptLog {
    /// The first bytes.
    pub head: String,
    /// The last bytes, if they are not in the head.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
    /// Bytes between head and tail that are not here.
    #[serde(default)]
    pub omitted: u64,
    /// The whole log, if it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// True once the attempt has ended.
    #[serde(default)]
    pub ended: bool,
}
