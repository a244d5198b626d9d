//! Puts together what a worker needs for an attempt, from the records that came with its claim.

use standfast_domain::ids::StepId;
use standfast_domain::outcome::Artifact;
use standfast_domain::plan::Uses;
use standfast_domain::record::{Definition, Key, Record};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::view::View;

use super::{ClaimAsk, Claimed};
use crate::resolve;

/// Gives the attempt that `ask` has claimed.
pub(super) fn claimed(
    view: &View,
    ask: &ClaimAsk,
    definition: &Definition,
    inputs: Vec<(StepId, Artifact)>,
) -> Result<Claimed, Halt> {
    let step = &ask.step;
    let state = view.step(step)?;
    // Other commands of the same commit may have passed the step on.
    let claim = view.claim(step)?.filter(|claim| claim.worker == ask.worker).cloned();
    let fenced = Refusal::Fenced { step: step.clone(), attempt: state.attempt };
    let claim = claim.ok_or(fenced)?;
    let with = match (state.resolved, view.get(&Key::Resolution(step.clone(), state.round))) {
        (true, Ok(Some(Record::Value(with)))) => with.clone(),
        _ => definition.plan.with.clone(),
    };
    let failure = match state.round {
        1 => None,
        round => resolve::failure(view, round)?,
    };
    let handler = match &definition.plan.uses {
        Uses::Handler(handler) => handler.clone(),
        Uses::Timer => return Err(Refusal::NoStep(step.clone()).into()),
    };
    Ok(Claimed {
        task: view.task().clone(),
        step: step.clone(),
        handler,
        attempt: claim.attempt,
        epoch: claim.epoch,
        round: state.round,
        with,
        defined_with: definition.plan.with.clone(),
        failure,
        started_at: claim.started_at,
        ends_at: claim.ends_at,
        expires_at: claim.expires_at,
        length: claim.length,
        interval: claim.interval(),
        heartbeat: claim.heartbeat,
        last_details: state.details.clone(),
        artifact: definition.plan.artifact.clone(),
        inputs,
        effect: None,
        traceparent: view.meta()?.traceparent.clone(),
    })
}
