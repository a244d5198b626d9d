//! A plan as it is after reading: every name checked, every default filled in.
//!
//! The grammar is read in [`crate::plan::read`]; what expressions may say is checked by the
//! engine, which alone evaluates them.

pub mod faults;
mod fields;
mod grammar;
pub mod graph;
pub mod read;
mod rules;
pub mod schema;
mod steps;
mod timer;
mod values;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{HandlerName, Kind, Principal, Queue, StepId};
use crate::record::EffectClass;
use crate::time::{Span, Time};

/// One fault of a plan or another body, found before anything was stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fault {
    /// Where, as a JSON Pointer (RFC 6901); empty for the whole body.
    pub pointer: String,
    /// What is wrong and what was expected.
    pub message: String,
}

/// A task's plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What the task is for.
    pub kind: Kind,
    /// The goal in the author's words.
    pub goal: String,
    /// Values that templates read as `input`; always an object.
    pub input: Value,
    /// Who owns the task; `None`: who submits it.
    pub owner: Option<Principal>,
    /// Who may see it.
    pub viewers: Vec<Principal>,
    /// Who may act on it besides the owner.
    pub operators: Vec<Principal>,
    /// Who decides its approvals.
    pub approvers: Vec<Principal>,
    /// Names and values to filter by.
    pub labels: BTreeMap<String, String>,
    /// The author's key: the same key and body give the same task.
    pub idempotency_key: Option<String>,
    /// Artifacts that must exist at the end, as `STEP/NAME`.
    pub artifacts: Vec<String>,
    /// When the task must have ended.
    pub deadline: Option<Deadline>,
    /// How long everything is kept after the end; `None`: the installation's setting.
    pub retention: Option<Span>,
    /// The condition of completion, an expression.
    pub complete_when: Option<String>,
    /// The steps, in the author's order.
    pub steps: Vec<StepPlan>,
    /// Steps that run at every end.
    pub finally: Vec<StepPlan>,
}

/// When a task must have ended, and what happens if it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// From submission on, or at a fixed time.
    pub when: When,
    /// What happens then.
    pub then: DeadlineThen,
}

/// A moment, given as a span or as a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// So long after it was set.
    In(Span),
    /// At this time.
    At(Time),
}

/// What a passed deadline does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadlineThen {
    /// Nothing new starts until a person answers.
    Pause,
    /// The task fails.
    Fail,
    /// The task is stopped (`halt`).
    Stop,
}

/// One step as its author wrote it, defaults filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepPlan {
    /// Its name within the plan.
    pub id: StepId,
    /// What runs.
    pub uses: Uses,
    /// Where it waits for a worker.
    pub queue: Queue,
    /// Steps that must be settled first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<StepId>,
    /// Runs only if this expression is true (`if`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The handler's input, with templates; an object.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub with: Value,
    /// How long it may take.
    #[serde(default)]
    pub timeout: Timeouts,
    /// How often and when it is tried again.
    #[serde(default)]
    pub retry: Retry,
    /// A file or directory in the attempt's directory that is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
    /// The name of the checkpoint that its success makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// What follows when it has failed for good; `None`: the default of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// What it changes outside; `None`: what its handler does unless told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<EffectPlan>,
    /// How to undo its effects once they have landed; `None`: a stop leaves them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<UndoPlan>,
}

impl StepPlan {
    /// Gives the class of the step's one declared effect.
    pub fn effect_class(&self) -> EffectClass {
        self.effect.as_ref().map_or(EffectClass::None, |effect| effect.class)
    }
}

/// The one effect that a step declares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EffectPlan {
    /// Its class.
    pub class: EffectClass,
    /// Whom or what it touches, in the author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What it does, in the author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
    /// How to find out whether it has happened; only with `checkable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckPlan>,
}

/// What finds out whether an effect has happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckPlan {
    /// The handler that asks.
    pub uses: HandlerName,
    /// Its input, with templates; an object.
    pub with: Value,
}

/// What undoes an effect that has landed. It runs once for each, when a stop asks for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UndoPlan {
    /// The handler that undoes it.
    pub uses: HandlerName,
    /// Where it waits for a worker; `None`: where its step does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Its input, with templates; an object.
    pub with: Value,
    /// How long it may take.
    #[serde(default)]
    pub timeout: Timeouts,
    /// How often and when it is tried again.
    #[serde(default)]
    pub retry: Retry,
    /// What it changes outside itself; `None`: what its handler does unless told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<EffectPlan>,
}

/// Attempts of one undo: the allowance of a stop.
pub const UNDO_ATTEMPTS_MAX: u32 = 3;

/// What a step uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Uses {
    /// Code in a worker.
    Handler(HandlerName),
    /// Nothing: it waits, holding no worker. `with` has `for` (a span) or `until` (a time).
    Timer,
}

/// Limits of a step's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// From each time it becomes ready to the start of an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Span>,
    /// One attempt.
    pub attempt: Span,
    /// Between two signs of life of an attempt's handler; its worker's claim is another matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Span>,
    /// From the first time it was ready to its end, all attempts and waits included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Span>,
}

/// An attempt's time unless the plan says otherwise: long enough for most tools, short
/// enough that a hung one is noticed the same hour.
pub const ATTEMPT_TIMEOUT_DEFAULT: Span = Span::from_secs(30 * 60);

impl Default for Timeouts {
    fn default() -> Self {
        Self { queue: None, attempt: ATTEMPT_TIMEOUT_DEFAULT, heartbeat: None, total: None }
    }
}

/// How a failed attempt is followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    /// Charged attempts, the first included; at least 1.
    pub max_attempts: u32,
    /// The wait after the first.
    pub backoff: Span,
    /// What each further wait is multiplied by; at least 1.
    pub factor: f64,
    /// The longest wait.
    pub max_backoff: Span,
    /// No retry starts later than this after the step was first ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_elapsed: Option<Span>,
}

impl Default for Retry {
    /// Three attempts, 1 s doubling up to 1 min.
    fn default() -> Self {
        Self {
            max_attempts: 3,
            backoff: Span::from_secs(1),
            factor: 2.0,
            max_backoff: Span::from_secs(60),
            max_elapsed: None,
        }
    }
}

/// What follows when a step has failed for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The task fails.
    Fail,
    /// The step counts as settled.
    Continue,
    /// Nothing new starts in the whole task until a person answers.
    Pause,
    /// STEP and all between it and this step run once more.
    Redo {
        /// Where the new round begins.
        step: StepId,
        /// How many rounds may be opened.
        max: u32,
    },
}
