//! Why a command is not carried out. A refusal changes nothing and names what to do.

use crate::hold::{Answer, HoldReason};
use crate::ids::{Principal, StepId, TaskId};
use crate::plan::Fault;
use crate::record::{Ending, TaskState};

/// A command was understood and refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such task, or the asker may not see it.
    #[error("find task {0}")]
    NoTask(TaskId),
    /// The task has no such step.
    #[error("find step `{0}` in the task")]
    NoStep(StepId),
    /// The body has faults.
    #[error("accept the plan: {} fault(s)", .0.len())]
    InvalidPlan(Vec<Fault>),
    /// The key belongs to a task with another body.
    #[error("accept the plan: its idempotency key already belongs to task {0} with another body")]
    KeyReused(TaskId),
    /// The attempt is no longer the worker's: it was taken over, stopped or settled.
    #[error("take the result: attempt {attempt} of step `{step}` is no longer this worker's")]
    Fenced {
        /// The step.
        step: StepId,
        /// The attempt that was named.
        attempt: u32,
    },
    /// The step cannot be claimed now.
    #[error("claim step `{step}`: it {why}")]
    NotClaimable {
        /// The step.
        step: StepId,
        /// What stands against it, as a verb phrase.
        why: &'static str,
    },
    /// The attempt cannot be stopped by itself.
    #[error("stop attempt {attempt} of step `{step}`: {why}")]
    NotStoppable {
        /// The step.
        step: StepId,
        /// The attempt that was named.
        attempt: u32,
        /// What stands against it.
        why: String,
    },
    /// The effect cannot be recorded, or is not known.
    #[error("record effect `{name}` of step `{step}`: {why}")]
    Effect {
        /// The step.
        step: StepId,
        /// The effect's name.
        name: String,
        /// What stands against it.
        why: String,
    },
    /// Nothing waits for this answer.
    #[error("take the answer `{answer}`: {why}")]
    NotApplicable {
        /// The answer given.
        answer: Answer,
        /// What is open, and which answers it takes.
        why: String,
    },
    /// The task has ended.
    #[error("change the task: it is {0} and stays so")]
    Ended(TaskState),
    /// A stop was asked for already.
    #[error("plan a stop: one was asked for already")]
    Stopped,
    /// No stop was asked for.
    #[error("say what a stop came to: none was asked for")]
    NotStopped,
    /// What a stop plan was made on is not so any more.
    #[error("stop the task: its state has moved since the plan with this digest was made")]
    PlanMoved,
    /// The task is on its way to its end.
    #[error("pause or resume the task: it is ending ({0}), and nothing of its plan starts")]
    Ending(TaskState),
    /// How the task ends is decided, and its `finally` steps run.
    #[error("stop the task: its end is decided, it will be {0} once its `finally` steps are done")]
    EndDecided(Ending),
    /// Somebody else owns the task by now.
    #[error("hand over the task: {0} owns it now")]
    OwnerChanged(Principal),
    /// The actor lacks the right to a task that it may see.
    #[error("do this: it needs to be {0}")]
    Forbidden(&'static str),
}

impl Refusal {
    /// Says which answers an open hold takes.
    pub fn answer_not_taken(answer: Answer, reason: HoldReason) -> Self {
        let words: Vec<_> = reason.answers().iter().map(|a| format!("`{a}`")).collect();
        let why = format!("the open hold `{reason}` takes {}", words.join(", "));
        Self::NotApplicable { answer, why }
    }
}

/// Why a decision could not be made from a view: records are missing, or it is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// These records must be loaded first.
    Need(Vec<crate::record::Key>),
    /// The command is refused.
    Refuse(Refusal),
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Self {
        Self::Refuse(refusal)
    }
}
