//! Steps as readers see them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::artifacts::ArtifactView;
use crate::holds::HoldView;
use crate::is_false;
use crate::tasks::FailureView;

/// Where a step stands.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// Waits for other steps.
    Pending,
    /// Waits for a worker.
    Ready,
    /// A worker has claimed an attempt.
    Running,
    /// Waits for its next attempt.
    Retrying,
    /// Has an open hold.
    Held,
    /// Done.
    Succeeded,
    /// Failed for good.
    Failed,
    /// Left out: its `if` was false, or a step it needs was skipped.
    Skipped,
    /// Ended by a stop.
    Cancelled,
}

impl StepState {
    /// Gives the state as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Held => "held",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
        }
    }
}

impl std::fmt::Display for StepState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a ready step does not start.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// No live worker of the queue announces the handler.
    NoWorker,
    /// Live workers of the queue announce the handler, but none takes from the queue at the
    /// moment: they are cut off from the broker, or it does not serve the queue.
    Unsubscribed,
    /// All live workers of the queue that announce the handler run as many attempts as they can,
    /// as far as they tell; or as many run at once as are allowed.
    Concurrency,
    /// As many started in a span as are allowed.
    Rate,
    /// The queue is paused.
    QueuePaused,
}

impl WaitingFor {
    /// Gives the reason as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoWorker => "no_worker",
            Self::Unsubscribed => "unsubscribed",
            Self::Concurrency => "concurrency",
            Self::Rate => "rate",
            Self::QueuePaused => "queue_paused",
        }
    }
}

/// One step as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepView {
    /// The step's name within its plan.
    pub id: String,
    /// The handler it runs, or `timer`, `approval`, `input`, `signal`, `task`.
    pub uses: String,
    /// The queue whose workers run it.
    pub queue: String,
    /// Where it stands.
    pub state: StepState,
    /// The round, from 1; raised by `redo`.
    pub round: u32,
    /// The number of the last attempt, 0 before the first; never reused.
    pub attempt: u32,
    /// Attempts that count against `retry.max_attempts`; a hand-back does not.
    pub charged: u32,
    /// `retry.max_attempts` of the plan, or the default that holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// The steps it needs.
    #[serde(default)]
    pub needs: Vec<String>,
    /// When it came into its state; for a pending step, when the task was accepted.
    pub since: String,
    /// When its last attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it was settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// When its last attempt ended; a hold may lie between that and its settling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_ended_at: Option<String>,
    /// When the next attempt may start; present when `retrying`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
    /// Id of the worker that runs, or last ran, it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Why it does not start; present when `ready` and something is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// Whether a heartbeat is overdue: its worker's by an interval and a half, or its handler's
    /// by `timeout.heartbeat`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stalled: bool,
    /// What the running attempt last said of its progress, in a line such as `20 commits`; between
    /// attempts, what the next one is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Why its last attempt failed, or why it failed before any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
    /// Its open hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldView>,
    /// What its successful attempt left.
    #[serde(default)]
    pub artifacts: Vec<ArtifactView>,
    /// What its attempts cost, in micro-dollars.
    #[serde(default)]
    pub cost_usd_micros: u64,
    /// Its output; only where one step is asked for, and only once it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Whether it is one of the plan's `finally` steps.
    #[serde(default, skip_serializing_if = "is_false")]
    pub finally: bool,
}

/// Query of a list of steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StepQuery {
    /// Steps a page, 1 to 200; 50 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// One page of steps, in the order of the plan, added steps after it, `finally` steps last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepPage {
    /// The steps, without their outputs.
    pub steps: Vec<StepView>,
    /// Cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
