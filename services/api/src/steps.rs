//! Steps of a task: pages in the order of the plan, and one with its output.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde_json::{Value, json};
use standfast_domain::ids::StepId;
use standfast_domain::plan::Uses;
use standfast_domain::record::{Definition, Key, LIST_CHUNK, Payload, Record, Status, StepState};
use standfast_domain::time::Time;
use standfast_engine::registry::{Lack, WorkerInfo, lack};
use standfast_protocol::paths;
use standfast_protocol::steps::{StepPage, StepQuery, StepView, WaitingFor};

use crate::auth::{On, needs};
use crate::cursor::List;
use crate::extract::{self, Place};
use crate::problems::Fail;
use crate::reads::{self, Base, Records};
use crate::{Api, present};

/// Chunks of names that are read at a time: outcomes that add one step each make short ones.
const CHUNKS_AT_ONCE: u32 = 16;

/// Where a page of steps begins: an offset into the names in stored order, `finally` steps left
/// out, and behind them the `finally` steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Chunk(u32, usize),
    Finally(usize),
}

impl From {
    fn write(self) -> String {
        match self {
            Self::Chunk(chunk, at) => format!("c{chunk}.{at}"),
            Self::Finally(at) => format!("f{at}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        if let Some(at) = text.strip_prefix('f') {
            return Some(Self::Finally(at.parse().ok()?));
        }
        let (chunk, at) = text.strip_prefix('c')?.split_once('.')?;
        Some(Self::Chunk(chunk.parse().ok()?, at.parse().ok()?))
    }
}

/// Lists a task's steps in the order of the plan: added ones after it, `finally` ones last.
#[utoipa::path(get, path = paths::STEPS, tag = "steps",
    params(("id" = String, Path, description = "the task"), StepQuery),
    responses((status = 200, body = StepPage)))]
pub(crate) async fn list(
    State(api): State<Api>,
    On { base, .. }: On<needs::View>,
    uri: Uri,
) -> Result<Json<StepPage>, Fail> {
    let query: StepQuery = extract::query(&uri)?;
    let limit = extract::page_limit(query.limit)?;
    let list = List::new(&json!(["steps", base.task]));
    let from = match &query.cursor {
        Some(cursor) => From::read(&list.place(cursor)?).ok_or_else(Fail::bad_cursor)?,
        None => From::Chunk(0, 0),
    };
    let (names, next) = names(&api, &base, from, limit).await?;
    let steps = views(&api, &base, &names).await?;
    let next_cursor = next.map(|next| list.cursor(&next.write()));
    Ok(Json(StepPage { steps, next_cursor }))
}

/// Reads up to `limit` names in order, and where to go on.
async fn names(
    api: &Api,
    base: &Base,
    from: From,
    limit: usize,
) -> Result<(Vec<StepId>, Option<From>), Fail> {
    let finally: BTreeSet<&StepId> = base.meta.finally.iter().collect();
    let mut names = Vec::new();
    let mut from = from;
    while let From::Chunk(chunk, skip) = from {
        let end = base.header.order_chunks.min(chunk.saturating_add(CHUNKS_AT_ONCE));
        let keys: Vec<Key> = (chunk..end).map(Key::Order).collect();
        if keys.is_empty() {
            from = From::Finally(0);
            break;
        }
        let mut found = reads::of_task(api.engine(), &base.task, keys.clone()).await?;
        for (number, key) in (chunk..end).zip(keys) {
            let Some(Record::Names(part)) = found.remove(&key) else { continue };
            let skip = if number == chunk { skip } else { 0 };
            for (at, name) in part.into_iter().enumerate().skip(skip) {
                if finally.contains(&name) {
                    continue;
                }
                if names.len() == limit {
                    return Ok((names, Some(From::Chunk(number, at))));
                }
                names.push(name);
            }
        }
        from = From::Chunk(end, 0);
    }
    let From::Finally(at) = from else { return Err(Fail::bad_cursor()) };
    for (at, name) in base.meta.finally.iter().enumerate().skip(at) {
        if names.len() == limit {
            return Ok((names, Some(From::Finally(at))));
        }
        names.push(name.clone());
    }
    Ok((names, None))
}

/// Shows steps, in the order of their names.
async fn views(api: &Api, base: &Base, names: &[StepId]) -> Result<Vec<StepView>, Fail> {
    let keys = |step: &StepId| {
        [
            Key::Definition(step.clone()),
            Key::Step(step.clone()),
            Key::Claim(step.clone()),
            Key::Artifacts(step.clone()),
            Key::Needs(step.clone(), 0),
        ]
    };
    let wants = names.iter().flat_map(keys).collect();
    let mut records = reads::of_task(api.engine(), &base.task, wants).await?;
    let now = api.engine().now().await?;
    let workers = workers_if_ready(api, &records).await?;
    let mut views = Vec::with_capacity(names.len());
    for name in names {
        if let Some(view) = view(api, base, name, &mut records, (now, &workers)).await? {
            views.push(view);
        }
    }
    Ok(views)
}

/// Reads the live workers if a step waits for one.
async fn workers_if_ready(api: &Api, records: &Records) -> Result<Vec<WorkerInfo>, Fail> {
    let ready = |record: &Record| {
        matches!(record, Record::Step(StepState { status: Status::Ready { .. }, .. }))
    };
    match records.values().any(ready) {
        true => Ok(api.workers().await?),
        false => Ok(Vec::new()),
    }
}

async fn view(
    api: &Api,
    base: &Base,
    step: &StepId,
    records: &mut Records,
    (now, workers): (Time, &[WorkerInfo]),
) -> Result<Option<StepView>, Fail> {
    let definition = match records.remove(&Key::Definition(step.clone())) {
        Some(Record::Definition(definition)) => definition,
        _ => return Ok(None),
    };
    let state = match records.remove(&Key::Step(step.clone())) {
        Some(Record::Step(state)) => state,
        _ => StepState::pending(definition.needs_count),
    };
    let claim = match records.remove(&Key::Claim(step.clone())) {
        Some(Record::Claim(claim)) => Some(claim),
        _ => None,
    };
    let artifacts = match records.remove(&Key::Artifacts(step.clone())) {
        Some(Record::Artifacts(artifacts)) => artifacts,
        _ => Vec::new(),
    };
    let needs = match records.remove(&Key::Needs(step.clone(), 0)) {
        _ if definition.needs_count > LIST_CHUNK as u32 => {
            reads::needs(api.engine(), &base.task, step, definition.needs_count).await?
        }
        Some(Record::Names(names)) => names,
        _ => Vec::new(),
    };
    let waiting_for = waiting_for(&definition, &state, workers);
    Ok(Some(present::step::view(present::step::Parts {
        base,
        now,
        definition: &definition,
        state,
        claim,
        needs: needs.iter().map(StepId::to_string).collect(),
        artifacts: &artifacts,
        waiting_for,
    })))
}

/// Says what a ready step waits for, if no live worker could take it now.
pub(crate) fn waiting_for(
    definition: &Definition,
    state: &StepState,
    workers: &[WorkerInfo],
) -> Option<WaitingFor> {
    let (Status::Ready { queue, .. }, Uses::Handler(handler)) =
        (&state.status, &definition.plan.uses)
    else {
        return None;
    };
    lack(workers, queue, handler).map(|lack| match lack {
        Lack::NoWorker => WaitingFor::NoWorker,
        Lack::Unsubscribed => WaitingFor::Unsubscribed,
        Lack::Concurrency => WaitingFor::Concurrency,
    })
}

/// Reads a step with its output.
#[utoipa::path(get, path = paths::STEP, tag = "steps",
    params(
        ("id" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
    ),
    responses((status = 200, body = StepView)))]
pub(crate) async fn get(
    State(api): State<Api>,
    On { base, .. }: On<needs::View>,
    place: Place,
) -> Result<Json<StepView>, Fail> {
    let step = place.step()?;
    let mut shown = views(&api, &base, std::slice::from_ref(&step)).await?;
    let missing = || Fail::not_found(format!("failed to find step `{step}` in task {}", base.task));
    let mut view = shown.pop().ok_or_else(missing)?;
    if view.state == standfast_protocol::steps::StepState::Succeeded {
        view.output = output(&api, &base, &step, view.round).await?;
    }
    Ok(Json(view))
}

/// Reads an output, from its record or from the blobs.
async fn output(api: &Api, base: &Base, step: &StepId, round: u32) -> Result<Option<Value>, Fail> {
    let key = Key::Output(step.clone(), round);
    let found = reads::of_task(api.engine(), &base.task, vec![key.clone()]).await?.remove(&key);
    match found {
        Some(Record::Payload(Payload::Inline(value))) => Ok(Some(value)),
        Some(Record::Payload(Payload::Blob { name, .. })) => {
            let bytes = api.blobs().get(&name).await?;
            let broken = |error: serde_json::Error| Fail::internal(&error);
            Ok(Some(serde_json::from_slice(&bytes).map_err(broken)?))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back() {
        for from in [From::Chunk(0, 0), From::Chunk(12, 399), From::Finally(3)] {
            assert_eq!(From::read(&from.write()), Some(from));
        }
        for text in ["", "c", "c1", "x1.2", "f-1", "c1.x"] {
            assert_eq!(From::read(text), None, "{text}");
        }
    }
}
