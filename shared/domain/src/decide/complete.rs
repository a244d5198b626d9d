//! Takes an attempt's outcome.

use std::collections::BTreeSet;

use super::{Decision, Given, again, digest, effect, end_attempt, submit};
use crate::digest::RecordsDigest;
use crate::event::{ArtifactFact, Change};
use crate::ids::StepId;
use crate::outcome::{
    EffectEnd, Failure, FailureClass, MESSAGE_BYTES_MAX, Outcome, Success, truncate,
};
use crate::plan::{OnFailure, StepPlan, graph};
use crate::record::{Definition, Dependent, Key, LastAttempt, Record, Status};
use crate::refusal::{Halt, Refusal};
use crate::view::{Attempt, View};

/// Steps of a plan, those added later included.
pub const STEPS_MAX: u32 = 10_000;
/// Steps that one outcome may add: they are born in the commit that takes the outcome.
pub const ADDED_MAX: usize = 100;

/// What is recorded of a success that came too late.
const LATE: &str = "it succeeded after the task was told to end; its result is not used";

/// What the engine found out about a step that an outcome adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addition {
    /// True if its `with` or `if` holds templates or an expression.
    pub templated: bool,
    /// Steps that its `if` names.
    pub named_in_if: BTreeSet<StepId>,
}

pub(super) fn decide(
    view: &View,
    at: &Attempt,
    outcome: &Outcome,
    added: &[Addition],
    cost_usd_micros: u64,
    given: &Given,
) -> Result<Decision, Halt> {
    if was_taken(view, at, outcome)? {
        return Ok(Decision::nothing());
    }
    match view.attempt(at) {
        Ok(_) => {}
        Err(halt @ Halt::Refuse(Refusal::Fenced { .. })) => {
            return late(view, at, outcome, cost_usd_micros, given)?.ok_or(halt);
        }
        Err(halt) => return Err(halt),
    }
    let claim = view.claim(&at.step)?.ok_or_else(|| end_attempt::fenced(at))?;
    let success = match outcome {
        Outcome::Succeeded(success) => success,
        Outcome::Failed(failure) => {
            return end_attempt::after_failure(
                view,
                &at.step,
                claim,
                failure,
                cost_usd_micros,
                given,
            );
        }
    };
    if end_attempt::are_ended(view)? {
        let effect = EffectEnd::Landed(success.output.clone());
        let failure = Failure { effect, ..Failure::new(FailureClass::Cancelled, LATE) };
        return end_attempt::after_failure(view, &at.step, claim, &failure, cost_usd_micros, given);
    }
    match succeed(view, at, success, added, cost_usd_micros)? {
        Ok(decision) => Ok(decision),
        Err(fault) => {
            let effect = EffectEnd::Landed(success.output.clone());
            let failure = Failure { effect, ..Failure::new(FailureClass::Permanent, fault) };
            end_attempt::after_failure(view, &at.step, claim, &failure, cost_usd_micros, given)
        }
    }
}

/// True if this very outcome was taken before: the answer to it was lost. An attempt that was
/// ended by something else, such as a take-over, was not.
fn was_taken(view: &View, at: &Attempt, outcome: &Outcome) -> Result<bool, Halt> {
    view.need([Key::Header, Key::Step(at.step.clone()), Key::Definition(at.step.clone())])?;
    let state = view.step(&at.step)?;
    let settled = matches!(state.status, Status::Succeeded { .. }) && state.attempt == at.attempt;
    let failed = state.failure.as_ref().filter(|failure| failure.attempt == at.attempt);
    Ok(match outcome {
        Outcome::Succeeded(_) => {
            settled
                || failed.is_some_and(|failure| {
                    failure.class == FailureClass::Permanent || failure.message == LATE
                })
        }
        Outcome::Failed(told) => {
            let message = truncate(&told.message, MESSAGE_BYTES_MAX);
            failed.is_some_and(|failure| failure.message == message)
        }
    })
}

/// Records, once, that an attempt's worker told a result after the attempt was taken from it:
/// its outcome is not used, its cost is. It must come as whom it claimed; and an attempt that
/// its worker ended itself has told its cost.
fn late(
    view: &View,
    at: &Attempt,
    outcome: &Outcome,
    cost_usd_micros: u64,
    given: &Given,
) -> Result<Option<Decision>, Halt> {
    let own = |last: &LastAttempt| {
        last.attempt == at.attempt
            && last.epoch == at.epoch
            && last.worker == at.worker
            && last.taken_from.as_ref() == Some(&given.actor)
    };
    let state = view.step(&at.step)?;
    if !state.last.as_ref().is_some_and(|last| own(last) && !last.late) {
        return Ok(None);
    }
    let class = match outcome {
        Outcome::Succeeded(_) => None,
        Outcome::Failed(failure) => Some(failure.class),
    };
    let refused = Change::LateResultRefused {
        step: at.step.clone(),
        attempt: at.attempt,
        worker: at.worker.clone(),
        class,
        cost_usd_micros,
    };
    Ok(Some(refused.into()))
}

fn succeed(
    view: &View,
    at: &Attempt,
    success: &Success,
    added: &[Addition],
    cost_usd_micros: u64,
) -> Result<Result<Decision, String>, Halt> {
    let definition = view.definition(&at.step)?;
    let round = view.step(&at.step)?.round;
    let claim = view.claim(&at.step)?.ok_or_else(|| end_attempt::fenced(at))?;
    let mut decision = Decision::default();
    if !success.then.is_empty() {
        match add_steps(view, definition, &success.then, added)? {
            Ok(addition) => decision = addition,
            Err(fault) => return Ok(Err(fault)),
        }
    }
    let output_sha256 = digest(&success.output);
    match effect::landed_with(view, at, &output_sha256)? {
        Ok(landed) => decision.changes.extend(landed),
        Err(fault) => return Ok(Err(fault)),
    }
    let facts = success.artifacts.iter().map(|artifact| ArtifactFact {
        name: artifact.name.clone(),
        bytes: artifact.bytes,
        sha256: artifact.sha256.clone(),
    });
    decision.changes.push(Change::StepSucceeded {
        step: at.step.clone(),
        attempt: at.attempt,
        round,
        worker: claim.worker.clone(),
        started_at: claim.started_at,
        output_sha256,
        artifacts: facts.collect(),
        cost_usd_micros,
        checkpoint: success.checkpoint.clone().or_else(|| definition.plan.checkpoint.clone()),
    });
    let output = Record::Payload(success.output.clone());
    decision.payloads.push((Key::Output(at.step.clone(), round), output));
    if !success.artifacts.is_empty() {
        let artifacts = Record::Artifacts(success.artifacts.clone());
        decision.payloads.push((Key::Artifacts(at.step.clone()), artifacts));
    }
    Ok(Ok(decision))
}

/// Adds steps to the plan: each needs the adding step and may need others that are new or
/// settled. What the adding step's dependents wait for grows by them. Steps that it has added
/// in an earlier round are taken as the same ones.
fn add_steps(
    view: &View,
    by: &Definition,
    then: &[StepPlan],
    added: &[Addition],
) -> Result<Result<Decision, String>, Halt> {
    let header = view.header()?;
    if by.finally {
        return Ok(Err("`then` is not allowed in a `finally` step".to_owned()));
    }
    if then.len() > ADDED_MAX || header.steps as usize + then.len() > STEPS_MAX as usize {
        return Ok(Err(format!(
            "`then` adds {} steps; at most {ADDED_MAX} at a time and {STEPS_MAX} in all",
            then.len()
        )));
    }
    view.need(then.iter().map(|step| Key::Definition(step.id.clone())))?;
    view.need(then.iter().map(|step| Key::Step(step.id.clone())))?;
    let new: BTreeSet<&StepId> = then.iter().map(|step| &step.id).collect();
    for step in then {
        if let Some(OnFailure::Redo { step: from, .. }) = &step.on_failure
            && !graph::upstream(then, &step.id).contains(from)
        {
            return Ok(Err(format!(
                "`then` step `{}` redoes `{from}`, which is not a new step upstream of it",
                step.id
            )));
        }
        let outside = step.needs.iter().filter(|need| !new.contains(need) && **need != by.plan.id);
        for need in outside {
            view.need([Key::Definition(need.clone()), Key::Step(need.clone())])?;
            let known = view.get(&Key::Definition(need.clone()))?.is_some();
            if !known || !view.step(need)?.is_settled() {
                return Ok(Err(format!(
                    "`then` step `{}` needs `{need}`, which is neither new nor settled",
                    step.id
                )));
            }
        }
    }
    again::split(view, by, addition(header.order_chunks, by, then, added))
}

fn addition(chunk: u32, by: &Definition, then: &[StepPlan], added: &[Addition]) -> Decision {
    let new: BTreeSet<&StepId> = then.iter().map(|step| &step.id).collect();
    let inner = |step: &StepPlan| -> Vec<StepId> {
        step.needs.iter().filter(|need| new.contains(need)).cloned().collect()
    };
    let within: Vec<StepPlan> =
        then.iter().map(|step| StepPlan { needs: inner(step), ..step.clone() }).collect();
    let dependents = graph::dependents(&within);
    let mut payloads = Vec::new();
    let mut facts = Vec::new();
    let none = Addition::default();
    for (index, step) in within.iter().enumerate() {
        let waiting = dependents.get(&step.id).into_iter().flatten().map(|id| {
            let at = within.iter().position(|other| other.id == *id).unwrap_or(index);
            Dependent {
                step: id.clone(),
                needs: count(within[at].needs.len()),
                tolerant: added.get(at).unwrap_or(&none).named_in_if.contains(&step.id),
            }
        });
        let base = Definition {
            plan: StepPlan { needs: Vec::new(), ..step.clone() },
            needs_count: 0,
            dependents: Vec::new(),
            dependents_chunks: 0,
            finally: false,
            added_by: Some(by.plan.id.clone()),
            redo: submit::redo_set(&within, step),
            undo_of: None,
            templated: added.get(index).unwrap_or(&none).templated,
            effects_allowed: by.effects_allowed.clone(),
        };
        let mut needs = then[index].needs.clone();
        if !needs.contains(&by.plan.id) {
            needs.insert(0, by.plan.id.clone());
        }
        let base = Definition { needs_count: count(needs.len()), ..base };
        payloads.extend(submit::definition_records(base, &needs, waiting.collect()));
        facts.push((step.id.clone(), count(step.needs.len())));
    }
    let definitions_sha256 = RecordsDigest::of(&payloads);
    let names: Vec<StepId> = then.iter().map(|step| step.id.clone()).collect();
    payloads.push((Key::Order(chunk), Record::Names(names)));
    let added = Change::StepsAdded { by: by.plan.id.clone(), steps: facts, definitions_sha256 };
    Decision { changes: vec![added], payloads }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("fewer than the limit of steps")
}
