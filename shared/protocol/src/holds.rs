//! Holds and the answers that end them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::steps::StepState;
use crate::tasks::TaskState;

/// Whether a hold ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HoldClass {
    /// Ends by itself or by what it waits for.
    Waiting,
    /// Needs a person.
    Blocked,
}

/// Why a task or step does not move, and who or what can end that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HoldView {
    /// The step that is held; absent when the whole task is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The reason: `approval`, `input`, `signal`, `timer`, `task`, `paused`,
    /// `uncertain_effect`, `effect_changed`, `limit`, `lease_expired`, `failures`,
    /// `worker_died`, `verification`, `stale_input`, `undo_failed`, or a later version's.
    pub reason: String,
    /// Whether it ends by itself.
    pub class: HoldClass,
    /// What happened, in a sentence.
    pub message: String,
    /// When it began.
    pub since: String,
    /// When it ends by itself, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// What happens at the deadline: `fail`, `skip`, `escalate`, `go_on`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// Who or what can end it: principals such as `user:ana`, or words such as `the timer`.
    /// Never empty.
    pub ends_by: Vec<String>,
    /// The possible answers; empty when only time or an event ends it.
    #[serde(default)]
    pub answers: Vec<AnswerView>,
    /// The effect that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<HeldEffectView>,
    /// The answer to give when there is no reason for another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggested: Option<String>,
}

/// The effect that a hold is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldEffectView {
    /// Its name within the step.
    pub name: String,
    /// The key under which the outside world may know it.
    pub key: String,
}

/// One possible answer to a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AnswerView {
    /// The word to answer, such as `retry`.
    pub answer: String,
    /// The command that gives it, ready to run.
    pub command: String,
    /// What will then happen, in a sentence.
    pub effect: String,
}

/// Body of an answer to a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// One of the hold's answers: `retry`, `skip`, `stop` and others. One that does not fit is
    /// refused with `not_applicable` and the answers that do.
    pub answer: String,
    /// Why, for the history; at most [`crate::limits::NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// With `happened` or `not_happened`: which effect, where several are uncertain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// With `happened`: what the outside world answered; later steps read it as the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<serde_json::Value>,
}

impl AnswerRequest {
    /// Makes an answer that is only a word.
    pub fn new(answer: impl Into<String>) -> Self {
        Self { answer: answer.into(), note: None, effect: None, receipt: None }
    }
}

/// What an answer led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Answered {
    /// The task's id.
    pub task: String,
    /// The step whose hold ended; absent for a hold of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The answer that was taken.
    pub answer: String,
    /// The task's state after it.
    pub state: TaskState,
    /// The step's state after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_state: Option<StepState>,
}
