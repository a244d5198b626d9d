//! The names of records.

use crate::ids::StepId;

/// Names a record within its task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// State, counts and the log's envelope.
    Header,
    /// Epoch, stop and task-level holds; guarded by what may not start after them.
    Gate,
    /// Whose records were written ahead of a large task's birth: the digest of its body.
    Ahead,
    /// What was submitted and never changes.
    Meta,
    /// Who owns the task now.
    Owner,
    /// One chunk of the step names in plan order.
    Order(u32),
    /// One chunk of the names of steps without needs, in plan order; a plan of few steps has none.
    Roots(u32),
    /// A step's definition.
    Definition(StepId),
    /// One chunk of a step's needs.
    Needs(StepId, u32),
    /// One chunk of a step's dependents beyond the first
    /// [`DEPENDENTS_CHUNK`](super::DEPENDENTS_CHUNK).
    Dependents(StepId, u32),
    /// A step's state; absent means pending with all needs left.
    Step(StepId),
    /// Who runs the step now.
    Claim(StepId),
    /// What exactly runs, templates resolved, in one round.
    Resolution(StepId, u32),
    /// What the step gave, in one round.
    Output(StepId, u32),
    /// The artifacts of the step's last success.
    Artifacts(StepId),
    /// Why a round was opened, by round.
    Failure(u32),
    /// The log of one attempt.
    Log(StepId, u32),
    /// What a check of the step's effect runs, templates resolved, in one round.
    Check(StepId, u32),
    /// The step's effects, by name.
    Effects(StepId),
    /// The exact request of an effect, by the step, its name and the attempt that recorded it.
    Request(StepId, String, u32),
    /// What the outside world answered to an effect: step, name, generation.
    Receipt(StepId, String, u32),
    /// An effect that has landed and can be undone, by its number in the order of landing.
    Landing(u32),
    /// A message that a commit promised to send, by its id within the task: text without `|`.
    Outgoing(String),
}

impl Key {
    /// True for records that are never changed once written.
    pub fn is_immutable(&self) -> bool {
        match self {
            Self::Meta
            | Self::Order(_)
            | Self::Roots(_)
            | Self::Definition(_)
            | Self::Needs(..)
            | Self::Dependents(..)
            | Self::Resolution(..)
            | Self::Output(..)
            | Self::Failure(_)
            | Self::Check(..)
            | Self::Request(..)
            | Self::Receipt(..)
            | Self::Landing(_) => true,
            Self::Header
            | Self::Gate
            | Self::Ahead
            | Self::Owner
            | Self::Step(_)
            | Self::Claim(_)
            | Self::Artifacts(_)
            | Self::Effects(_)
            | Self::Log(..)
            | Self::Outgoing(_) => false,
        }
    }

    /// True for records that change without the header, and so guard themselves.
    pub fn is_loose(&self) -> bool {
        matches!(self, Self::Claim(_) | Self::Log(..) | Self::Outgoing(_))
    }

    /// Gives the field name within the task's scope. Step names have no `/`.
    pub fn field(&self) -> String {
        match self {
            Self::Header => "header".to_owned(),
            Self::Gate => "gate".to_owned(),
            Self::Ahead => "ahead".to_owned(),
            Self::Meta => "meta".to_owned(),
            Self::Owner => "owner".to_owned(),
            Self::Order(chunk) => format!("order/{chunk}"),
            Self::Roots(chunk) => format!("roots/{chunk}"),
            Self::Definition(step) => ["def/", step.as_str()].concat(),
            Self::Needs(step, chunk) => numbered("needs/", step, *chunk),
            Self::Dependents(step, chunk) => numbered("deps/", step, *chunk),
            Self::Step(step) => ["step/", step.as_str()].concat(),
            Self::Claim(step) => ["claim/", step.as_str()].concat(),
            Self::Resolution(step, round) => numbered("with/", step, *round),
            Self::Output(step, round) => numbered("out/", step, *round),
            Self::Artifacts(step) => ["files/", step.as_str()].concat(),
            Self::Failure(round) => format!("failure/{round}"),
            Self::Log(step, attempt) => numbered("log/", step, *attempt),
            Self::Check(step, round) => numbered("check/", step, *round),
            Self::Effects(step) => ["effects/", step.as_str()].concat(),
            Self::Request(step, name, attempt) => format!("request/{step}/{name}/{attempt}"),
            Self::Receipt(step, name, generation) => {
                format!("receipt/{step}/{name}/{generation}")
            }
            Self::Landing(number) => format!("landing/{number}"),
            Self::Outgoing(id) => format!("outgoing/{id}"),
        }
    }
}

/// Names one of a step's numbered records.
fn numbered(kind: &str, step: &StepId, number: u32) -> String {
    [kind, step.as_str(), "/", &number.to_string()].concat()
}
