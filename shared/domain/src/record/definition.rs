//! What was submitted and never changes: the task, and each of its steps.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{EffectClass, is_zero};
use crate::ceiling::Ceiling;
use crate::ids::{Kind, Principal, StepId};
use crate::plan::{Deadline, StepPlan};
use crate::time::{Span, Time};

/// What was submitted and never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// What the task is for.
    pub kind: Kind,
    /// The goal in the author's words.
    #[serde(default)]
    pub goal: String,
    /// Values that templates read as `input`.
    #[serde(default)]
    pub input: Value,
    /// Who owned the task at first; who does now, [`Owner`] says.
    pub owner: Principal,
    /// Who submitted it.
    pub submitted_by: Principal,
    /// Who may see it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub viewers: Vec<Principal>,
    /// Who may act on it besides the owner.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<Principal>,
    /// Who decides its approvals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<Principal>,
    /// What its submitter may not go beyond; steps that are added are held to it.
    #[serde(default, skip_serializing_if = "Ceiling::is_open")]
    pub ceiling: Ceiling,
    /// Names and values to filter by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The key it was submitted under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Digest of the body that it was submitted as, of a task under a key: what tells a repeat
    /// from another request. The id of a task without a key is random, so there is no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_sha256: Option<String>,
    /// When it was accepted; the same as in the header.
    pub created_at: Time,
    /// The plan file's folder, for plans of the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_dir: Option<String>,
    /// The condition of completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_when: Option<String>,
    /// Artifacts that must exist at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
    /// The deadline as submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// How long everything is kept after the end.
    pub retention: Span,
    /// Names of the `finally` steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finally: Vec<StepId>,
    /// W3C trace context of the submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// Who owns a task now. A hand-over alone changes it. What lists are sorted and filtered by
/// stands in it too, since its index entries follow from this record alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The owner.
    pub owner: Principal,
    /// Who submitted the task, and sees it whoever owns it.
    pub submitted_by: Principal,
    /// When the task was accepted.
    pub created_at: Time,
}

impl Owner {
    /// Gives the owner at birth.
    pub fn first(meta: &Meta) -> Self {
        Self {
            owner: meta.owner.clone(),
            submitted_by: meta.submitted_by.clone(),
            created_at: meta.created_at,
        }
    }
}

/// A step that waits for another, as the other's definition names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependent {
    /// The step that waits.
    pub step: StepId,
    /// How many needs it has in all: what is left when it has no state record yet.
    pub needs: u32,
    /// True if its `if` names this step, so that a skip here does not skip it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tolerant: bool,
}

/// A step's definition; immutable. The needs stand in records of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// The step as planned; its `needs` are left empty here.
    #[serde(flatten)]
    pub plan: StepPlan,
    /// How many needs it has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub needs_count: u32,
    /// The first [`DEPENDENTS_CHUNK`](super::DEPENDENTS_CHUNK) dependents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependents: Vec<Dependent>,
    /// How many chunks of further dependents there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dependents_chunks: u32,
    /// True for `finally` steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finally: bool,
    /// The step whose outcome added this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_by: Option<StepId>,
    /// With `redo`: each step of a new round and how many of its needs belong to the round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redo: Vec<(StepId, u32)>,
    /// Of a run of an `undo`: what it undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_of: Option<UndoOf>,
    /// True if `with` or `if` must be evaluated when the step becomes ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub templated: bool,
    /// The classes of effects that its attempts may have; none: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects_allowed: Option<BTreeSet<EffectClass>>,
}

/// What a run of an `undo` undoes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoOf {
    /// The effect's number in the order of landing.
    pub landing: u32,
    /// The step whose effect it is.
    pub step: StepId,
    /// The effect's name.
    pub name: String,
    /// The generation that has landed.
    pub generation: u32,
    /// The round whose output is the receipt; none: it is a record of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_round: Option<u32>,
}

impl Definition {
    /// Says when in its task's life the step runs.
    pub fn part(&self) -> Part {
        match (self.finally, &self.undo_of) {
            (true, _) => Part::Finally,
            (false, Some(_)) => Part::Undo,
            (false, None) => Part::Main,
        }
    }
}

impl Meta {
    /// Says when in the task's life a step runs, without its definition.
    pub fn part(&self, step: &StepId) -> Part {
        match (self.finally.contains(step), step.undone()) {
            (true, _) => Part::Finally,
            (false, Some(_)) => Part::Undo,
            (false, None) => Part::Main,
        }
    }
}

/// When in its task's life a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// As a step of the plan.
    Main,
    /// To undo what a step of the plan has done.
    Undo,
    /// At every end.
    Finally,
}
