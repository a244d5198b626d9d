//! Puts together what a worker needs for an attempt, from the records that came with its claim
//! and some more.

use standfast_domain::ids::StepId;
use standfast_domain::outcome::Artifact;
use standfast_domain::plan::Uses;
use standfast_domain::record::{Key, LIST_CHUNK, Record};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::view::View;

use super::{ClaimAsk, Claimed, Claims, broken};
use crate::{EngineError, resolve};

impl Claims {
    /// Puts together what a worker needs for an attempt that it has claimed.
    pub(super) async fn given(
        &self,
        ask: &ClaimAsk,
        mut view: View,
    ) -> Result<Claimed, EngineError> {
        let state = view.step(&ask.step).map_err(broken)?;
        let (round, resolved) = (state.round, state.resolved);
        let needs_count = view.definition(&ask.step).map_err(broken)?.needs_count;
        let more = more_keys(&ask.step, needs_count, round, resolved);
        self.complete_view(&mut view, more).await?;
        let inputs = self.inputs(&mut view, &ask.step, needs_count).await?;
        let mut claimed = claimed(&view, ask, inputs).map_err(broken)?;
        let definition = view.definition(&ask.step).map_err(broken)?;
        if definition.plan.effect.is_some() {
            let declared = self.declared_effect(&ask.task, definition, round);
            claimed.effect = Box::pin(declared).await?;
        }
        Ok(claimed)
    }

    /// Reads what a view does not know yet.
    async fn complete_view(&self, view: &mut View, keys: Vec<Key>) -> Result<(), EngineError> {
        let missing: Vec<Key> = keys.into_iter().filter(|key| !view.knows(key)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        for (key, record) in Box::pin(self.engine.read(view.task(), &missing)).await? {
            view.load(key, record, None);
        }
        Ok(())
    }

    /// Gives the artifacts of all steps that a step needs.
    async fn inputs(
        &self,
        view: &mut View,
        step: &StepId,
        needs_count: u32,
    ) -> Result<Vec<(StepId, Artifact)>, EngineError> {
        let chunks = needs_count.div_ceil(LIST_CHUNK as u32);
        let mut needs = Vec::new();
        for chunk in 0..chunks {
            let names = view.names(&Key::Needs(step.clone(), chunk)).map_err(broken)?;
            needs.extend(names.iter().cloned());
        }
        needs.sort();
        let keys = needs.iter().cloned().map(Key::Artifacts).collect();
        self.complete_view(view, keys).await?;
        let mut inputs = Vec::new();
        for step in needs {
            let artifacts = view.artifacts(&step).map_err(broken)?;
            inputs.extend(artifacts.iter().cloned().map(|artifact| (step.clone(), artifact)));
        }
        Ok(inputs)
    }
}

/// Names the records that an attempt needs besides those that come with every claim.
fn more_keys(step: &StepId, needs_count: u32, round: u32, resolved: bool) -> Vec<Key> {
    let mut keys = Vec::new();
    if round > 1 {
        keys.push(Key::Failure(round));
        keys.extend(resolved.then(|| Key::Resolution(step.clone(), round)));
    }
    let chunks = needs_count.div_ceil(LIST_CHUNK as u32);
    keys.extend((0..chunks).map(|chunk| Key::Needs(step.clone(), chunk)));
    keys
}

/// Gives the attempt that `ask` has claimed.
fn claimed(view: &View, ask: &ClaimAsk, inputs: Vec<(StepId, Artifact)>) -> Result<Claimed, Halt> {
    let step = &ask.step;
    let (definition, state) = (view.definition(step)?, view.step(step)?);
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
