//! Attempts for workers outside: claim, heartbeat, complete, hand back.
//!
//! Whoever holds an attempt names it by worker, attempt and epoch; the engine checks that
//! fence. On top of it the caller must be the principal that claimed, so that knowing another
//! worker's numbers gives nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use standfast_domain::ids::{HandlerName, Queue, StepId, TaskId, WorkerId};
use standfast_domain::outcome::FailureClass as Class;
use standfast_domain::plan::Uses;
use standfast_domain::record::{Claim as Held, Key, Part, Record, StepState as Stored};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::{Span, Time};
use standfast_domain::view::Attempt;
use standfast_engine::EngineError;
use standfast_engine::claims::{ClaimAsk, Claimed, News, Report};
use standfast_protocol::claims::{
    Claim, ClaimRequest, Complete, FailureClass, HandBack, Heartbeat, HeartbeatAnswer,
    InputArtifact, Outcome, Settled,
};
use standfast_protocol::limits::{COMPLETE_BYTES_MAX, REQUEST_BYTES_MAX};
use standfast_protocol::paths::{self, fill};
use standfast_protocol::steps::StepState;

use crate::auth::{By, Caller, needs};
use crate::extract::{self, Place};
use crate::problems::Fail;
use crate::tasks::check_note;
use crate::waits::Wait;
use crate::workers::{Names, placed};
use crate::{Api, effects, present, puts, reads};

/// Ready steps that are read at a time.
const READY_MAX: usize = 500;
/// How often a look reads on where none of them fits: ten thousand steps are some hundred
/// milliseconds of the store's time. What lies beyond comes in the next look at the queue,
/// whoever's it is.
const READY_PAGES_MAX: usize = 20;
/// Claims that one look tries: others may be faster, or a task may be paused.
const TRIES_MAX: usize = 32;

/// What a worker asks with, checked.
struct Asking {
    worker: WorkerId,
    queue: Queue,
    handlers: Arc<BTreeSet<HandlerName>>,
}

/// Claims an attempt; 204 when there is none within the wait.
#[utoipa::path(post, path = paths::CLAIMS, tag = "claims", request_body = ClaimRequest,
    responses((status = 200, body = Claim), (status = 204, description = "nothing to claim")))]
pub(crate) async fn claim(
    State(api): State<Api>,
    mut caller: By<needs::Work>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: ClaimRequest = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    let longest = extract::wait(Some(request.wait_ms))?;
    let mut names = Names::default();
    let worker = names.one("/worker", WorkerId::new(request.worker));
    let queue = names.one("/queue", Queue::new(request.queue));
    let handlers = names.all("/handlers", request.handlers.into_iter().map(HandlerName::new));
    let named = request.step.map(|message| {
        let task = names.one("/step/task", TaskId::parse(&message.task));
        let step = names.one("/step/step", StepId::new(message.step));
        (task, step, message.attempt)
    });
    let (Some(worker), Some(queue)) = (worker, queue) else { return Err(names.into_fail()) };
    names.check()?;
    caller.demand_within(&[("/queue".to_owned(), &queue)], &placed("/handlers", &handlers))?;
    let asking = Asking { worker, queue, handlers: Arc::new(handlers.into_iter().collect()) };
    let claimed = match named {
        Some((Some(task), Some(step), attempt)) => {
            named_one(&api, &caller, &asking, (task, step), attempt).await?
        }
        Some(_) => return Err(names.into_fail()),
        None => next(&api, &mut caller, &asking, longest).await?,
    };
    match claimed {
        Some(claimed) => Ok(Json(shown(claimed, api.engine().now().await?)).into_response()),
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// Claims the step that a message named, if its queue is one that the worker may take from.
async fn named_one(
    api: &Api,
    caller: &Caller,
    asking: &Asking,
    (task, step): (TaskId, StepId),
    attempt: u32,
) -> Result<Option<Claimed>, Fail> {
    if let Some(allowed) = &caller.identity.ceiling.queues {
        let key = Key::Definition(step.clone());
        match reads::of_task(api.engine(), &task, vec![key.clone()]).await?.remove(&key) {
            Some(Record::Definition(found)) if allowed.contains(&found.plan.queue) => {}
            Some(_) | None => return Ok(None),
        }
    }
    one(api, caller, asking, (task, step), Some(attempt)).await
}

/// Claims one step; nothing if it cannot be claimed now, whatever the reason.
async fn one(
    api: &Api,
    caller: &Caller,
    asking: &Asking,
    (task, step): (TaskId, StepId),
    attempt: Option<u32>,
) -> Result<Option<Claimed>, Fail> {
    let ask = ClaimAsk {
        task,
        step,
        attempt,
        worker: asking.worker.clone(),
        principal: caller.principal().clone(),
        length: api.settings().claim_length,
        handlers: Some(asking.handlers.clone()),
    };
    match api.claims().claim(&ask).await {
        Ok(claimed) => Ok(Some(claimed)),
        Err(EngineError::Refused(refusal)) => {
            tracing::debug!(task = %ask.task, step = %ask.step, %refusal, "not claimed");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Claims the next ready step that the worker can run, waiting for one. After each wait the
/// worker must still be allowed what it asks for.
async fn next(
    api: &Api,
    caller: &mut By<needs::Work>,
    asking: &Asking,
    longest: Duration,
) -> Result<Option<Claimed>, Fail> {
    let mut wait = match longest.is_zero() {
        true => None,
        false => Some(Wait::begin(api, Some(longest))?),
    };
    let mut skip = 0;
    loop {
        let ready = fitting(api, asking).await?;
        // Steps that could not be claimed, such as those of a paused task, must not keep the
        // ones behind them from being tried.
        skip = if ready.len() > TRIES_MAX { skip % ready.len() } else { 0 };
        let tried = ready[skip..].iter().chain(&ready[..skip]).take(TRIES_MAX);
        for place in tried {
            if let Some(claimed) = one(api, caller, asking, place.clone(), None).await? {
                return Ok(Some(claimed));
            }
        }
        skip += TRIES_MAX;
        let again = match &mut wait {
            Some(wait) => wait.again(api, None).await,
            None => false,
        };
        if !again {
            return Ok(None);
        }
        caller.still(api).await?;
        let handlers = asking.handlers.iter().map(|name| ("/handlers".to_owned(), name));
        let handlers: Vec<(String, &HandlerName)> = handlers.collect();
        caller.demand_within(&[("/queue".to_owned(), &asking.queue)], &handlers)?;
    }
}

/// Lists ready steps of the queue whose handler the worker has, oldest first. Others must not
/// hide them, so it reads on until some fit; a look that ends before goes on with the next one.
async fn fitting(api: &Api, asking: &Asking) -> Result<Vec<(TaskId, StepId)>, Fail> {
    let mut found = fitting_from(api, asking, "").await?;
    if let (true, Some(after)) = (found.0.is_empty(), found.1.take()) {
        let after = api.place_in(&asking.queue).unwrap_or(after);
        found = fitting_from(api, asking, &after).await?;
        api.keep_place(&asking.queue, found.1);
    }
    Ok(found.0)
}

/// Reads page by page until steps fit; gives the place that was reached if there is more.
async fn fitting_from(
    api: &Api,
    asking: &Asking,
    after: &str,
) -> Result<(Vec<(TaskId, StepId)>, Option<String>), Fail> {
    let mut after = after.to_owned();
    for _ in 0..READY_PAGES_MAX {
        let (ready, next) = api.claims().ready(&asking.queue, &after, READY_MAX).await?;
        let fit = fit(api, asking, ready).await?;
        match next {
            Some(next) if fit.is_empty() => after = next,
            next => return Ok((fit, next)),
        }
    }
    Ok((Vec::new(), Some(after)))
}

async fn fit(
    api: &Api,
    asking: &Asking,
    ready: Vec<(TaskId, StepId)>,
) -> Result<Vec<(TaskId, StepId)>, Fail> {
    let wants: Vec<(TaskId, Vec<Key>)> = ready
        .iter()
        .map(|(task, step)| (task.clone(), vec![Key::Definition(step.clone())]))
        .collect();
    let found = reads::records(api.engine(), &wants).await?;
    let fits = |records: reads::Records| match records.into_values().next() {
        Some(Record::Definition(definition)) => match &definition.plan.uses {
            Uses::Handler(handler) => asking.handlers.contains(handler),
            Uses::Timer => false,
        },
        _ => false,
    };
    Ok(ready.into_iter().zip(found).filter_map(|(place, r)| fits(r).then_some(place)).collect())
}

/// Shows a claim, its times as spans from now: a worker's clock may be any.
fn shown(claimed: Claimed, now: Time) -> Claim {
    let Claimed { task, step, .. } = &claimed;
    let inputs = claimed
        .inputs
        .iter()
        .map(|(of, artifact)| InputArtifact {
            step: of.to_string(),
            name: artifact.name.clone(),
            bytes: artifact.bytes,
            sha256: artifact.sha256.clone(),
            url: format!(
                "{}?for={step}",
                fill(paths::ARTIFACT, &[task.as_str(), of.as_str(), &artifact.name])
            ),
        })
        .collect();
    Claim {
        attempt: claimed.attempt,
        epoch: claimed.epoch,
        round: claimed.round,
        handler: claimed.handler.to_string(),
        attempt_deadline_ms: Some(claimed.ends_at.since(now).0),
        heartbeat_ms: claimed.interval.0,
        heartbeat_timeout_ms: claimed.heartbeat.map(|most| most.0),
        expires_ms: claimed.expires_at.since(now).0,
        inputs,
        task: task.to_string(),
        step: step.to_string(),
        input: claimed.with,
        failure: claimed.failure,
        last_details: claimed.last_details,
        artifact: claimed.artifact,
        effect: claimed.effect.and_then(effects::declared),
        traceparent: claimed.traceparent,
    }
}

/// Makes the fence of a call, after checking that the caller is who claimed. A claim that is
/// gone is left to the engine, which knows a repeated completion from a late one.
pub(crate) async fn fence(
    api: &Api,
    caller: &Caller,
    place: &Place,
    holder: (&str, u32, u32),
) -> Result<(TaskId, Attempt), Fail> {
    fence_by(api, caller, place, holder, |_| true).await
}

/// Makes the fence of a call against those claims that are meant.
async fn fence_by(
    api: &Api,
    caller: &Caller,
    place: &Place,
    (worker, attempt, epoch): (&str, u32, u32),
    meant: impl Fn(&Held) -> bool,
) -> Result<(TaskId, Attempt), Fail> {
    let (task, step) = (place.task()?, place.step()?);
    let fenced = || Refusal::Fenced { step: step.clone(), attempt };
    let worker = WorkerId::new(worker).map_err(|_| fenced())?;
    let key = Key::Claim(step.clone());
    let found = reads::of_task(api.engine(), &task, vec![key]).await?;
    if let Some(Record::Claim(claim)) = found.into_values().next()
        && meant(&claim)
        && claim.principal != *caller.principal()
        && !caller.is_admin()
    {
        return Err(fenced().into());
    }
    let at = Attempt { step, attempt, epoch, worker };
    Ok((task, at))
}

/// Keeps a claim, and says whether the attempt should end.
#[utoipa::path(post, path = paths::HEARTBEAT, tag = "claims", request_body = Heartbeat,
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
    ),
    responses((status = 200, body = HeartbeatAnswer)))]
pub(crate) async fn heartbeat(
    State(api): State<Api>,
    caller: By<needs::Work>,
    place: Place,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<HeartbeatAnswer>, Fail> {
    let beat: Heartbeat = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    let holder = (beat.worker.as_str(), beat.attempt, beat.epoch);
    let (task, at) = fence(&api, &caller, &place, holder).await?;
    let actor = caller.principal().clone();
    // A heartbeat without details is the worker's own; with them, the handler has spoken.
    let news = News { alive: beat.details.is_some(), details: beat.details };
    let renewed = known(&place, api.claims().renew(&task, at, news, actor).await)?;
    let now = api.engine().now().await?;
    Ok(Json(HeartbeatAnswer { stop: renewed.stop, expires_ms: renewed.expires_at.since(now).0 }))
}

/// What names no task or step is over for a worker: it must end, as if it were fenced.
pub(crate) fn known<T>(place: &Place, result: Result<T, EngineError>) -> Result<T, Fail> {
    match result {
        Err(EngineError::Refused(Refusal::NoTask(_) | Refusal::NoStep(_))) => {
            Err(Refusal::Fenced { step: place.step()?, attempt: 0 }.into())
        }
        other => Ok(other?),
    }
}

/// Ends an attempt with its outcome. The same outcome told twice is answered twice.
#[utoipa::path(post, path = paths::COMPLETE, tag = "claims", request_body = Complete,
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
    ),
    responses((status = 200, body = Settled)))]
pub(crate) async fn complete(
    State(api): State<Api>,
    caller: By<needs::Work>,
    place: Place,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Settled>, Fail> {
    let request: Complete = extract::json(&headers, body, COMPLETE_BYTES_MAX).await?;
    let holder = (request.worker.as_str(), request.attempt, request.epoch);
    // Whoever holds a later attempt does not keep an earlier one from telling its cost.
    let of_it = |claim: &Held| claim.attempt == request.attempt;
    let (task, at) = fence_by(&api, &caller, &place, holder, of_it).await?;
    let report = report(&api, &task, &at, request.outcome).await?;
    let step = at.step.clone();
    let actor = caller.principal().clone();
    known(&place, api.claims().complete(&task, at, report, actor).await)?;
    settled(&api, &task, &step).await
}

/// Makes a report of an outcome; artifacts that it names must have been put.
async fn report(api: &Api, task: &TaskId, at: &Attempt, outcome: Outcome) -> Result<Report, Fail> {
    Ok(match outcome {
        Outcome::Succeeded { output, artifacts, cost_usd_micros, checkpoint, then } => {
            extract::check_depth(&output, "/outcome/output")?;
            let artifacts = puts::named(api, task, at, artifacts).await?;
            let then = Value::Array(then);
            Report::Succeeded { output, artifacts, cost_usd_micros, checkpoint, then }
        }
        Outcome::Failed { class, message, retry_after_ms, output, cost_usd_micros, effect } => {
            extract::check_depth(&output, "/outcome/output")?;
            let class = match class {
                FailureClass::Retryable => Class::Retryable,
                FailureClass::Permanent => Class::Permanent,
                FailureClass::RateLimited => Class::RateLimited,
                FailureClass::Timeout => Class::Timeout,
                FailureClass::Cancelled => Class::Cancelled,
            };
            let retry_after = retry_after_ms.map(Span::from_millis);
            let effect = effects::told(effect)?;
            Report::Failed { class, message, retry_after, output, cost_usd_micros, effect }
        }
    })
}

/// Ends an attempt without an outcome; it is not charged.
#[utoipa::path(post, path = paths::HAND_BACK, tag = "claims", request_body = HandBack,
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
    ),
    responses((status = 200, body = Settled)))]
pub(crate) async fn hand_back(
    State(api): State<Api>,
    caller: By<needs::Work>,
    place: Place,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Settled>, Fail> {
    let request: HandBack = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    let holder = (request.worker.as_str(), request.attempt, request.epoch);
    let (task, at) = fence(&api, &caller, &place, holder).await?;
    check_note(request.reason.as_deref(), "/reason")?;
    let why = request.reason.unwrap_or_else(|| "its worker gave it back".to_owned());
    let step = at.step.clone();
    let actor = caller.principal().clone();
    known(&place, api.claims().hand_back(&task, at, why, actor).await)?;
    settled(&api, &task, &step).await
}

/// Says where a step stands now.
pub(crate) async fn settled(
    api: &Api,
    task: &TaskId,
    step: &StepId,
) -> Result<Json<Settled>, Fail> {
    let keys = vec![
        Key::Header,
        Key::Step(step.clone()),
        Key::Claim(step.clone()),
        Key::Definition(step.clone()),
    ];
    let mut found = reads::of_task(api.engine(), task, keys).await?;
    let claimed = found.remove(&Key::Claim(step.clone())).is_some();
    let (part, needs) = match found.remove(&Key::Definition(step.clone())) {
        Some(Record::Definition(definition)) => (definition.part(), definition.needs_count),
        _ => (Part::Main, 0),
    };
    let record = match found.remove(&Key::Step(step.clone())) {
        Some(Record::Step(state)) => state,
        _ => Stored::pending(needs),
    };
    let state = match found.remove(&Key::Header) {
        Some(Record::Header(header)) => present::step::state(&header.phase, part, &record, claimed),
        _ => StepState::Cancelled, // the task was removed meanwhile
    };
    Ok(Json(Settled { state }))
}
