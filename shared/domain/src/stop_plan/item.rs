//! The items of a stop plan: what each is, what it is doing, and what the stop does with it.

use serde::Serialize;

use crate::hold::HoldReason;
use crate::ids::{HandlerName, StepId, WorkerId};
use crate::record::EffectClass;
use crate::time::Time;

/// What an item is: its identity, the same in a plan and in the settlement after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Subject {
    /// A change of the world outside that has happened, or may have.
    Effect {
        /// The step that made it.
        step: StepId,
        /// Its name within the step.
        name: String,
        /// Its generation.
        generation: u32,
    },
    /// An attempt that runs.
    Attempt {
        /// Of which step.
        step: StepId,
        /// Its number.
        attempt: u32,
    },
    /// A step that is not settled and does not run.
    Step {
        /// The step.
        step: StepId,
    },
    /// A hold of the task itself.
    Hold {
        /// Why.
        reason: HoldReason,
        /// The step that made it.
        by: Option<StepId>,
    },
    /// The task's deadline.
    Deadline,
    /// A `finally` step.
    Finally {
        /// The step.
        step: StepId,
    },
}

/// What an item is doing when the stop is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Now {
    /// It has happened.
    Landed,
    /// It may be under way: its attempt runs.
    InFlight,
    /// Nobody knows whether it has happened.
    Uncertain,
    /// A worker runs it.
    Running,
    /// It waits for other steps.
    Pending,
    /// It waits for a worker.
    Ready,
    /// It waits for its next attempt.
    Retrying,
    /// It is held.
    Held,
    /// It waits for its time.
    Waiting,
}

/// What a stop does with an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "fate")]
pub enum Fate {
    /// It stays as it is.
    Stays,
    /// Its attempt ends and tells what became of it, or leaves it uncertain.
    MayLand,
    /// It is undone, as this one in order; the last to land is undone first.
    Undone {
        /// From 1.
        position: u32,
    },
    /// A person must find out whether it has happened.
    ToSettle,
    /// It stays uncertain, which harms nobody: it may be sent again.
    StaysUncertain,
    /// Its worker is told to end it.
    ToldToEnd,
    /// Its worker may finish it, and its result counts.
    MayFinish,
    /// It does not happen.
    WillNotHappen,
    /// It ends with the stop.
    Lapses,
    /// It runs at the end.
    Runs,
}

/// One item of a stop plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// What it is.
    #[serde(flatten)]
    pub subject: Subject,
    /// What it is doing.
    pub now: Now,
    /// What the stop does with it.
    #[serde(flatten)]
    pub fate: Fate,
    /// Of an effect, and of a step that declares one: its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<EffectClass>,
    /// Of an effect, and of a step that declares one: whom or what it touches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Of an effect, and of a step that declares one: what it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
    /// Since when it is as it is, where a record says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When a clock would move it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
    /// Who runs it, or sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// Of a step: the number of its next attempt. Of an effect: the attempt that sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Of a held step: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<HoldReason>,
    /// Of an effect, and of a step that declares one: the handler that undoes it, if one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undo: Option<HandlerName>,
    /// Of an effect: digest of what was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_sha256: Option<String>,
    /// Of an effect that has happened: digest of what came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receipt_sha256: Option<String>,
}

impl Item {
    /// Makes an item of which nothing more is said.
    pub(super) fn new(subject: Subject, now: Now, fate: Fate) -> Self {
        Self {
            subject,
            now,
            fate,
            class: None,
            target: None,
            says: None,
            since: None,
            due: None,
            worker: None,
            attempt: None,
            reason: None,
            undo: None,
            request_sha256: None,
            receipt_sha256: None,
        }
    }

    /// Gives the step that it belongs to.
    pub fn step(&self) -> Option<&StepId> {
        self.subject.step()
    }
}

impl Subject {
    /// Gives the step that it belongs to.
    pub fn step(&self) -> Option<&StepId> {
        match self {
            Self::Effect { step, .. }
            | Self::Attempt { step, .. }
            | Self::Step { step }
            | Self::Finally { step } => Some(step),
            Self::Hold { by, .. } => by.as_ref(),
            Self::Deadline => None,
        }
    }
}

impl Now {
    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Landed => "landed",
            Self::InFlight => "in_flight",
            Self::Uncertain => "uncertain",
            Self::Running => "running",
            Self::Pending => "pending",
            Self::Ready => "ready",
            Self::Retrying => "retrying",
            Self::Held => "held",
            Self::Waiting => "waiting",
        }
    }
}

impl Fate {
    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stays => "stays",
            Self::MayLand => "may_land",
            Self::Undone { .. } => "undone",
            Self::ToSettle => "to_settle",
            Self::StaysUncertain => "stays_uncertain",
            Self::ToldToEnd => "told_to_end",
            Self::MayFinish => "may_finish",
            Self::WillNotHappen => "will_not_happen",
            Self::Lapses => "lapses",
            Self::Runs => "runs",
        }
    }
}
