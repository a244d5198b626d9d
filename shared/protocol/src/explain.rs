//! The six questions that every task answers at once, from stored facts alone.
//!
//! Each answer has its facts as fields and, in `text`, the same as lines that are ready to be
//! shown: no control characters, no trailing space, none longer than fits a wide terminal
//! unless a name in it is.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::artifacts::ArtifactView;
use crate::holds::HoldView;
use crate::is_false;
use crate::steps::{StepState, WaitingFor};
use crate::tasks::{StepCounts, StopMode, StopView, TaskState};

/// Answers to the six questions about one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explain {
    /// Which task this is.
    pub task: ExplainedTask,
    /// 1: where it stands.
    pub stands: Stands,
    /// 2: why it is not moving.
    pub why: Why,
    /// 3: what comes next.
    pub next: Next,
    /// 4: what has landed in the outside world.
    pub landed: Landed,
    /// 5: what is only staged, in flight or uncertain.
    pub open: Open,
    /// 6: what happens if it is stopped now.
    pub stop_now: StopNow,
}

impl Explain {
    /// Gives the answers as lines to show: the head, then each question by number and name,
    /// its further lines indented under the first.
    pub fn lines(&self) -> Vec<String> {
        let parts = [
            ("1 Stands", &self.stands.text),
            ("2 Why", &self.why.text),
            ("3 Next", &self.next.text),
            ("4 Landed", &self.landed.text),
            ("5 Open", &self.open.text),
            ("6 Stop now", &self.stop_now.text),
        ];
        let mut lines = self.task.text.clone();
        for (name, text) in parts {
            let mut rest = text.iter();
            lines.push(format!("{name:<11} {}", rest.next().map_or("", String::as_str)));
            lines.extend(rest.map(|line| format!("{:11} {line}", "")));
        }
        lines
    }
}

/// Which task is explained, and as of when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainedTask {
    /// The task's id.
    pub id: String,
    /// What it is for.
    pub kind: String,
    /// Its goal.
    pub goal: String,
    /// The principal who owns it.
    pub owner: String,
    /// When the answers were true, by the store's clock.
    pub at: String,
    /// The head: kind, id, state and its reason, since when, owner.
    pub text: Vec<String>,
}

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stands {
    /// The task's state.
    pub state: TaskState,
    /// When it came into it.
    pub since: String,
    /// Whether a running attempt's heartbeat is overdue.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stalled: bool,
    /// Steps that are ready, running, retrying or held; at most 20, the oldest first.
    #[serde(default)]
    pub current: Vec<CurrentStep>,
    /// How many steps stand where.
    pub steps: StepCounts,
    /// Attempts started so far.
    pub attempts: u64,
    /// What they cost, in micro-dollars.
    pub cost_usd_micros: u64,
    /// What they may cost, in micro-dollars; absent without such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_usd_micros: Option<u64>,
    /// The last named checkpoint passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// The stop, once one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopView>,
    /// The same as lines.
    pub text: Vec<String>,
}

/// A step that is at work or could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CurrentStep {
    /// The step.
    pub step: String,
    /// Its place in the plan, from 1.
    pub number: u64,
    /// Its state.
    pub state: StepState,
    /// Since when.
    pub since: String,
    /// The number of its last attempt.
    pub attempt: u32,
    /// The worker that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

/// Why a task is not moving.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// Every open hold, the task's own first.
    #[serde(default)]
    pub holds: Vec<HoldView>,
    /// Ready or retrying steps that cannot start yet.
    #[serde(default)]
    pub waiting: Vec<NotStarting>,
    /// Who is missing so that it can move at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unattended: Option<Unattended>,
    /// The same as lines; when it moves, one line that says so.
    pub text: Vec<String>,
}

/// Who is missing so that a task can move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unattended {
    /// Its state is a folder, and no process works on it.
    Nobody,
    /// No scheduler lives: clocks, retries and attempts of lost workers wait for one.
    NoScheduler,
}

/// A step that could run but does not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotStarting {
    /// The step.
    pub step: String,
    /// Its queue.
    pub queue: String,
    /// Since when it waits.
    pub since: String,
    /// What it waits for; absent when it waits for its next attempt alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// When its next attempt may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Next {
    /// Steps that follow, each with the answer or event it follows on.
    #[serde(default)]
    pub steps: Vec<NextStep>,
    /// The next moment at which a clock moves the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The same as lines.
    pub text: Vec<String>,
}

/// A step that follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextStep {
    /// The step.
    pub step: String,
    /// The answer it follows on, such as `retry`; absent when it follows by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// What has landed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Landed {
    /// Confirmed effects, the oldest first, at most 200; the first 20 with their receipts.
    #[serde(default)]
    pub effects: Vec<LandedEffect>,
    /// Artifacts of settled steps.
    #[serde(default)]
    pub artifacts: Vec<ArtifactView>,
    /// The same as lines.
    pub text: Vec<String>,
}

/// A confirmed change of the outside world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LandedEffect {
    /// The step that made it.
    pub step: String,
    /// The effect's name within the step.
    pub name: String,
    /// What it changed; from the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// When it was confirmed.
    pub at: String,
    /// What the outside world answered, where that is known here and fits inline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Value>,
    /// Whether the plan says how to undo it, and nothing has yet.
    #[serde(default)]
    pub can_be_undone: bool,
    /// When a stop has undone it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_at: Option<String>,
}

/// What is not settled in the outside world. An effect is named by its step, or as `STEP/NAME`
/// if it is not the one that the plan declares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Open {
    /// Steps to come that declare an effect, of the next 200.
    #[serde(default)]
    pub staged: Vec<String>,
    /// Effects that may be under way now.
    #[serde(default)]
    pub in_flight: Vec<String>,
    /// Effects of which it is not known whether they have happened.
    #[serde(default)]
    pub uncertain: Vec<String>,
    /// The same as lines.
    pub text: Vec<String>,
}

/// What a stop would do now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopNow {
    /// Running steps that would be told to end.
    #[serde(default)]
    pub told_to_end: Vec<String>,
    /// Steps that would not happen.
    #[serde(default)]
    pub will_not_happen: Vec<String>,
    /// Landed effects that would stay.
    #[serde(default)]
    pub stays: Vec<String>,
    /// Effects that a person must still settle.
    #[serde(default)]
    pub to_settle: Vec<String>,
    /// What a stop of each mode would do, where it differs from `halt`.
    #[serde(default)]
    pub modes: Vec<StopOutlook>,
    /// `finally` steps that would run.
    #[serde(default)]
    pub finally: Vec<String>,
    /// The command that stops it by this very plan; absent once the task has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The same as lines.
    pub text: Vec<String>,
}

/// What a stop of one mode would do now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopOutlook {
    /// The mode.
    pub mode: StopMode,
    /// The digest of its plan; absent if the task moves too fast for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// What it would do, in a line.
    pub text: String,
}
