//! The six questions: gathers what the answers are made of.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use standfast_domain::ids::StepId;
use standfast_domain::record::{Definition, EffectClass, Key, Record, StopMode as Mode};
use standfast_domain::refusal::Refusal;
use standfast_engine::{EngineError, schedulers};
use standfast_protocol::explain::{Explain, Unattended};
use standfast_protocol::paths;

use crate::auth::{On, needs};
use crate::present::explain::{Facts, Stopping, explain as answer};
use crate::problems::Fail;
use crate::reads::{self, Survey};
use crate::{Api, Crew, artifacts, task_effects};

/// Definitions that are read to say what comes next: what is shown needs far fewer.
const DEFINITIONS_MAX: usize = 200;
/// Steps to come of which it is looked up whether they declare an effect.
const STAGED_AMONG_MAX: usize = 200;
/// How far ahead of the current steps is looked.
const AHEAD_MAX: usize = 8;

/// Answers the six questions about a task, from stored facts alone.
#[utoipa::path(get, path = paths::EXPLAIN, tag = "tasks",
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = Explain)))]
pub(crate) async fn explain(
    State(api): State<Api>,
    on: On<needs::View>,
) -> Result<Json<Explain>, Fail> {
    let survey = reads::survey_one(api.engine(), on.base).await?;
    let definitions = definitions(&api, &survey).await?;
    let artifacts = artifacts::all(&api, &survey.base).await?;
    let pending = first_pending(&api, &survey).await?;
    let workers = match survey.live.is_empty() {
        true => Vec::new(),
        false => api.workers().await?,
    };
    let unattended = unattended(&api, &survey).await?;
    let outside = task_effects::outside(&api, &survey.base, survey.now).await?;
    let staged_among = pending.len().min(STAGED_AMONG_MAX);
    let staged = declaring(&api, &survey, &pending[..staged_among]).await?;
    let stopping = stopping(&api, &survey).await?;
    let facts = Facts {
        survey: &survey,
        definitions: &definitions,
        artifacts: &artifacts,
        workers: &workers,
        unattended,
        outside: &outside,
        staged: &staged,
        staged_among,
        stopping: &stopping,
    };
    Ok(Json(answer(&facts)))
}

/// Finds out who is missing so that the task can move at all.
async fn unattended(api: &Api, survey: &Survey) -> Result<Option<Unattended>, Fail> {
    if survey.base.header.state.is_final() {
        return Ok(None);
    }
    Ok(match api.crew() {
        Crew::Folder { works: true } => None,
        Crew::Folder { works: false } => Some(Unattended::Nobody),
        Crew::Processes => {
            (schedulers::living(api.engine()).await? == 0).then_some(Unattended::NoScheduler)
        }
    })
}

/// Finds out what a stop would do, or what it has come to.
async fn stopping(api: &Api, survey: &Survey) -> Result<Stopping, Fail> {
    let task = &survey.base.task;
    // `halt` first: it is what `stop` does unless told otherwise.
    match api.engine().stop_plans(task, &[Mode::Halt, Mode::Drain, Mode::Undo]).await {
        Ok(plans) => Ok(Stopping::Planned(plans)),
        Err(EngineError::Refused(Refusal::Stopped)) => {
            Ok(Stopping::Stopped(Box::new(api.engine().settlement(task).await?)))
        }
        Err(EngineError::Refused(Refusal::EndDecided(_) | Refusal::Ended(_))) => {
            Ok(Stopping::Decided)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads the definitions of the current steps and of what follows on them, wave by wave.
async fn definitions(api: &Api, survey: &Survey) -> Result<BTreeMap<StepId, Definition>, Fail> {
    let mut known = BTreeMap::new();
    let mut wave: BTreeSet<StepId> =
        survey.live.iter().take(DEFINITIONS_MAX / 2).map(|live| live.step.clone()).collect();
    for _ in 0..AHEAD_MAX {
        let keys: Vec<Key> =
            wave.iter().take(DEFINITIONS_MAX - known.len()).cloned().map(Key::Definition).collect();
        if keys.is_empty() {
            break;
        }
        let found = reads::of_task(api.engine(), &survey.base.task, keys).await?;
        wave.clear();
        for record in found.into_values() {
            if let Record::Definition(definition) = record {
                wave.extend(definition.dependents.iter().map(|dependent| dependent.step.clone()));
                known.insert(definition.plan.id.clone(), *definition);
            }
        }
        wave.retain(|step| !known.contains_key(step));
    }
    Ok(known)
}

/// Reads names of steps that a stop would keep from happening, from the first chunks of the
/// plan; counts say how many there are in all.
async fn first_pending(api: &Api, survey: &Survey) -> Result<Vec<StepId>, Fail> {
    let base = &survey.base;
    let mut pending = Vec::new();
    for chunk in 0..base.header.order_chunks {
        let key = Key::Order(chunk);
        let mut found = reads::of_task(api.engine(), &base.task, vec![key.clone()]).await?;
        let Some(Record::Names(names)) = found.remove(&key) else { continue };
        let keys = names.iter().cloned().map(Key::Step).collect();
        let found = reads::of_task(api.engine(), &base.task, keys).await?;
        let settled = |step: &StepId| match found.get(&Key::Step(step.clone())) {
            Some(Record::Step(state)) => state.is_settled(),
            _ => false,
        };
        let finally = &base.meta.finally;
        pending.extend(names.into_iter().filter(|step| !settled(step) && !finally.contains(step)));
        if pending.len() >= crate::present::explain::SHOWN_MAX {
            break;
        }
    }
    Ok(pending)
}

/// Names those of some steps that declare an effect.
async fn declaring(api: &Api, survey: &Survey, steps: &[StepId]) -> Result<Vec<StepId>, Fail> {
    let keys = steps.iter().cloned().map(Key::Definition).collect();
    let found = reads::of_task(api.engine(), &survey.base.task, keys).await?;
    let declares = |step: &&StepId| match found.get(&Key::Definition((*step).clone())) {
        Some(Record::Definition(definition)) => definition.plan.effect_class() != EffectClass::None,
        _ => false,
    };
    Ok(steps.iter().filter(declares).cloned().collect())
}
