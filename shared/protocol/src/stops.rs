//! What a stop would do, and what it came to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::holds::AnswerView;
use crate::is_false;
use crate::tasks::{StopMode, StopView, TaskState};

/// The fewest hex digits by which a plan's digest may be named.
pub const DIGEST_CHARS_MIN: usize = 8;

/// Which stop plan is asked for, as query parameters.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, utoipa::IntoParams,
)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StopPlanQuery {
    /// The mode; by default `halt`.
    #[serde(default)]
    pub mode: StopMode,
}

/// What a stop of a task would find and do, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopPlan {
    /// The task's id.
    pub id: String,
    /// The mode.
    pub mode: StopMode,
    /// The task's state.
    pub state: TaskState,
    /// When this was so, by the store's clock.
    pub at: String,
    /// SHA-256 over all items, in hex, for [`crate::tasks::StopRequest`]; absent if the task
    /// moved so fast that it could not be read as of one moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Whether the digest tells apart which of the steps that may run do; it does not if there
    /// are more than 400 of them.
    pub covers_claims: bool,
    /// How many items there are of each kind, those left out included.
    pub counts: BTreeMap<String, u64>,
    /// The items, in the order of the plan; of each kind the first 200.
    pub items: Vec<StopItem>,
    /// The same in short, as lines to show.
    pub text: Vec<String>,
}

/// What a stop came to, or has come to so far: the items of the last plan before it, and what
/// became of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Settlement {
    /// The task's id.
    pub id: String,
    /// The task's state.
    pub state: TaskState,
    /// Who stopped it, when, why and how.
    pub stop: StopView,
    /// Digest of the plan that the stop was asked for by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_digest: Option<String>,
    /// When the task ended; absent while the stop is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// How long the stop took, in milliseconds; absent while it is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// How many items there are of each kind, those left out included.
    pub counts: BTreeMap<String, u64>,
    /// The items, in the order of the plan; of each kind the first 200.
    pub items: Vec<StopItem>,
    /// What the stop still waits for, a line each; empty once the task has ended.
    #[serde(default)]
    pub waits_for: Vec<String>,
    /// The same in short, as lines to show.
    pub text: Vec<String>,
}

/// One thing that a stop touches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopItem {
    /// What it is: `effect`, `attempt`, `step`, `hold`, `deadline`, `finally`, or a kind that a
    /// later version adds.
    pub kind: String,
    /// Its identity within the task, the same in a plan and in the settlement after it, such as
    /// `pay/main/1` of an effect or `build#2` of an attempt.
    pub id: String,
    /// The step that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What it is doing when the stop is asked for: `landed`, `in_flight`, `uncertain`;
    /// `running`, `pending`, `ready`, `retrying`, `held`; `waiting`.
    pub now: String,
    /// What the stop does with it: `stays`, `may_land`, `undone`, `to_settle`,
    /// `stays_uncertain`; `told_to_end`, `may_finish`, `will_not_happen`; `lapses`; `runs`.
    pub fate: String,
    /// Of what is undone: its turn, from 1; the last to land is undone first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Of an effect, and of a step that declares one: its class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Of an effect, and of a step that declares one: whom or what it touches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Of an effect, and of a step that declares one: what it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
    /// Of an effect, and of a step that declares one: the handler that undoes it; absent if it
    /// cannot be undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
    /// Since when it is as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// When a clock would move it, were it not stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// Who runs it, or sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The attempt that runs it or sent it; of a step, its next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Of what is held: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of an effect: digest of what was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_sha256: Option<String>,
    /// Of an effect that has landed: digest of what came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_sha256: Option<String>,
    /// In a settlement: what became of it. `stays`, `landed_late`, `not_landed`, `in_flight`,
    /// `to_settle`, `stays_uncertain`, `undone`, `undoing`, `to_undo`, `undo_held`, `left`;
    /// `running`, `cancelled`, `succeeded`, `failed`; `lapsed`; `waiting`, `skipped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub became: Option<String>,
    /// Beside `became`: how it is known, or the class of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// When it came to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub became_at: Option<String>,
    /// Whether it came only after the stop was asked for, so that no plan could name it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub since_stop: bool,
    /// Whether its worker told a result after the attempt had been taken from it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub told_late: bool,
    /// Who must still settle it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settled_by: Vec<String>,
    /// With which answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<AnswerView>,
}
