//! Accepts a task: its definitions, its header, its first steps.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Decision, Given};
use crate::ceiling::Ceiling;
use crate::digest::RecordsDigest;
use crate::event::Change;
use crate::ids::{Principal, StepId};
use crate::plan::{OnFailure, Plan, StepPlan, graph};
use crate::record::{
    DEPENDENTS_CHUNK, Definition, Dependent, Key, LIST_CHUNK, Meta, Outgoing, Record,
};
use crate::refusal::{Halt, Refusal};
use crate::time::{Span, Time};
use crate::view::View;

/// Steps without needs that one commit opens: each becomes ready with a few records. A plan of no
/// more steps keeps no list of those: it would say what the definitions say.
pub const ROOTS_CHUNK: usize = 50;

/// A plan that was read and checked, with what comes with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// The plan, free of faults.
    pub plan: Plan,
    /// Digest of the submitted body.
    pub sha256: String,
    /// The plan file's folder.
    pub plan_dir: Option<String>,
    /// Who submits.
    pub submitted_by: Principal,
    /// The key it came under, from wherever.
    pub idempotency_key: Option<String>,
    /// What the submitter may not go beyond.
    pub ceiling: Ceiling,
    /// How long an ended task is kept if the plan does not say.
    pub retention: Span,
    /// Steps whose `with` or `if` holds templates or an expression.
    pub templated: BTreeSet<StepId>,
    /// For each step with an `if`: the steps that it names.
    pub named_in_if: BTreeMap<StepId, BTreeSet<StepId>>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// Messages that are promised with the task's birth, by their ids within the task.
    pub outgoing: BTreeMap<String, Value>,
    /// True if its records but those of [`written_at_birth`] were written before, since they
    /// are too many for one commit.
    pub written_ahead: bool,
}

/// True for the few payloads that the birth's own commit always carries: the entries of lists
/// and the outbox follow from them, and neither may speak of a task that is not there.
pub fn written_at_birth(key: &Key) -> bool {
    matches!(key, Key::Meta | Key::Outgoing(_))
}

/// Makes the record that claims a large task's place before its birth, for one body.
pub fn ahead(sha256: &str, at: Time) -> serde_json::Value {
    serde_json::json!({ "sha256": sha256, "at": at })
}

pub(super) fn decide(
    view: &View,
    submission: &Submission,
    given: &Given,
) -> Result<Decision, Halt> {
    if view.get(&Key::Header)?.is_some() {
        let same = view.meta()?.body_sha256 == keyed_sha256(submission);
        return match same {
            true => Ok(Decision::nothing()),
            false => Err(Refusal::KeyReused(view.task().clone()).into()),
        };
    }
    if submission.written_ahead {
        let own = match view.get(&Key::Ahead)? {
            Some(Record::Value(found)) => found["sha256"] == submission.sha256,
            _ => false,
        };
        if !own {
            // Another body under the same key has taken the place since.
            return Err(Refusal::KeyReused(view.task().clone()).into());
        }
    }
    let plan = &submission.plan;
    let mut payloads = vec![(Key::Meta, Record::Meta(Box::new(meta(submission, given))))];
    payloads.extend(submission.outgoing.iter().map(|(id, message)| {
        let outgoing = Outgoing { at: given.now, message: message.clone() };
        (Key::Outgoing(id.clone()), Record::Outgoing(outgoing))
    }));
    payloads.extend(definitions(submission));
    let records_sha256 = RecordsDigest::of(&payloads);
    let names: Vec<StepId> =
        plan.steps.iter().chain(&plan.finally).map(|step| step.id.clone()).collect();
    payloads.extend(chunks(&names, LIST_CHUNK, Key::Order));
    if names.len() > ROOTS_CHUNK {
        let roots = plan.steps.iter().filter(|step| step.needs.is_empty());
        let roots: Vec<StepId> = roots.map(|step| step.id.clone()).collect();
        payloads.extend(chunks(&roots, ROOTS_CHUNK, Key::Roots));
    }
    let changes = vec![Change::TaskSubmitted {
        kind: plan.kind.clone(),
        owner: plan.owner.clone().unwrap_or_else(|| submission.submitted_by.clone()),
        steps: u32::try_from(plan.steps.len()).expect("fewer than the limit of steps"),
        plan_sha256: submission.sha256.clone(),
        records_sha256,
    }];
    Ok(Decision { changes, payloads })
}

/// Gives the digest of the body if another one may come under the same key.
fn keyed_sha256(submission: &Submission) -> Option<String> {
    submission.idempotency_key.as_ref().map(|_| submission.sha256.clone())
}

fn chunks(names: &[StepId], size: usize, key: fn(u32) -> Key) -> Vec<(Key, Record)> {
    (0..).zip(names.chunks(size)).map(|(n, part)| (key(n), Record::Names(part.to_vec()))).collect()
}

fn meta(submission: &Submission, given: &Given) -> Meta {
    let plan = &submission.plan;
    Meta {
        kind: plan.kind.clone(),
        goal: plan.goal.clone(),
        input: plan.input.clone(),
        owner: plan.owner.clone().unwrap_or_else(|| submission.submitted_by.clone()),
        submitted_by: submission.submitted_by.clone(),
        viewers: plan.viewers.clone(),
        operators: plan.operators.clone(),
        approvers: plan.approvers.clone(),
        ceiling: submission.ceiling.clone(),
        labels: plan.labels.clone(),
        idempotency_key: submission.idempotency_key.clone(),
        body_sha256: keyed_sha256(submission),
        created_at: given.now,
        plan_dir: submission.plan_dir.clone(),
        complete_when: plan.complete_when.clone(),
        artifacts: plan.artifacts.clone(),
        deadline: plan.deadline,
        retention: plan.retention.unwrap_or(submission.retention),
        finally: plan.finally.iter().map(|step| step.id.clone()).collect(),
        traceparent: submission.traceparent.clone(),
    }
}

/// Turns planned steps into definitions, needs and dependents.
fn definitions(submission: &Submission) -> Vec<(Key, Record)> {
    let plan = &submission.plan;
    let mut records = Vec::new();
    for (steps, finally) in [(&plan.steps, false), (&plan.finally, true)] {
        let counts: BTreeMap<&StepId, u32> =
            steps.iter().map(|step| (&step.id, count(step.needs.len()))).collect();
        let dependents = graph::dependents(steps);
        for step in steps {
            let waiting: Vec<Dependent> = dependents
                .get(&step.id)
                .into_iter()
                .flatten()
                .map(|id| Dependent {
                    step: id.clone(),
                    needs: counts.get(id).copied().unwrap_or(0),
                    tolerant: submission
                        .named_in_if
                        .get(id)
                        .is_some_and(|named| named.contains(&step.id)),
                })
                .collect();
            let templated = submission.templated.contains(&step.id);
            let redo = redo_set(steps, step);
            let base = Definition {
                plan: StepPlan { needs: Vec::new(), ..step.clone() },
                needs_count: count(step.needs.len()),
                dependents: Vec::new(),
                dependents_chunks: 0,
                finally,
                added_by: None,
                redo,
                undo_of: None,
                templated,
                effects_allowed: submission.ceiling.effects.clone(),
            };
            records.extend(definition_records(base, &step.needs, waiting));
        }
    }
    records
}

/// Gives a definition's records: itself, its needs, its further dependents.
pub(super) fn definition_records(
    mut definition: Definition,
    needs: &[StepId],
    mut dependents: Vec<Dependent>,
) -> Vec<(Key, Record)> {
    let id = definition.plan.id.clone();
    let further = dependents.split_off(dependents.len().min(DEPENDENTS_CHUNK));
    definition.dependents = dependents;
    definition.dependents_chunks = count(further.len().div_ceil(DEPENDENTS_CHUNK));
    let mut records = vec![(Key::Definition(id.clone()), Record::Definition(Box::new(definition)))];
    for (chunk, part) in (0..).zip(needs.chunks(LIST_CHUNK)) {
        records.push((Key::Needs(id.clone(), chunk), Record::Names(part.to_vec())));
    }
    for (chunk, part) in (0..).zip(further.chunks(DEPENDENTS_CHUNK)) {
        let key = Key::Dependents(id.clone(), chunk);
        records.push((key, Record::Dependents(part.to_vec())));
    }
    records
}

/// With `redo`: the steps of a new round and how many needs of each lie within it.
pub(super) fn redo_set(steps: &[StepPlan], step: &StepPlan) -> Vec<(StepId, u32)> {
    let Some(OnFailure::Redo { step: from, .. }) = &step.on_failure else {
        return Vec::new();
    };
    let set = graph::between(steps, from, &step.id);
    let within: BTreeSet<&StepId> = set.iter().collect();
    let needs: BTreeMap<&StepId, &Vec<StepId>> =
        steps.iter().map(|step| (&step.id, &step.needs)).collect();
    set.iter()
        .map(|id| {
            let inner = needs
                .get(id)
                .map_or(0, |needs| needs.iter().filter(|need| within.contains(need)).count());
            (id.clone(), count(inner))
        })
        .collect()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("fewer than the limit of steps")
}
