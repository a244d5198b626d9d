//! Submitting, reading, stopping, pausing and checking a task.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use standfast_domain::decide::Command;
use standfast_domain::json::PLAN_BYTES_MAX;
use standfast_domain::record::{Key, Record};
use standfast_engine::submission::{self, prepare_within};
use standfast_engine::verify;
use standfast_protocol::headers::{IDEMPOTENCY_KEY, JSON, TRACEPARENT};
use standfast_protocol::limits::{KEY_BYTES_MAX, NOTE_BYTES_MAX, REQUEST_BYTES_MAX};
use standfast_protocol::paths::{self, fill};
use standfast_protocol::problem::{Fault, ProblemKind};
use standfast_protocol::tasks::{
    PauseRequest, Paused, SubmitRequest, Submitted, TaskState, TaskView,
};
use standfast_protocol::verify::{VerifyFault, VerifyReport};

use crate::auth::{By, On, needs};
use crate::extract::{self, bad_parameter};
use crate::problems::{Fail, unfit_plan};
use crate::{Api, present, reads};

/// Bytes that the envelope of a submission may add to its plan.
const ENVELOPE_BYTES_MAX: usize = 16 * 1024;

/// Submits a plan, alone or in an envelope. The same principal, key and body give the same task.
#[utoipa::path(post, path = paths::TASKS, tag = "tasks", request_body = SubmitRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "the caller's key")),
    responses((status = 201, body = Submitted), (status = 200, body = Submitted)))]
pub(crate) async fn submit(
    State(api): State<Api>,
    caller: By<needs::Submit>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    extract::demand_type(&headers, JSON)?;
    let bytes_max = PLAN_BYTES_MAX + ENVELOPE_BYTES_MAX;
    let bytes = extract::bytes(&headers, body, bytes_max).await?;
    let request: SubmitRequest = extract::shape(extract::strict(&bytes, bytes_max)?)?;
    check_plan_size(&request.plan, bytes.len())?;
    extract::check_depth(&request.plan, "")?;
    let key = header_key(&headers, &request.plan)?;
    if request.plan_dir.is_some() && !api.settings().plan_dir_allowed {
        let message = "is accepted by an api on a loopback address alone";
        return Err(bad_parameter("/plan_dir", message));
    }
    let traceparent = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let submitted = submission::Submitted {
        body: request.plan,
        plan_dir: request.plan_dir,
        by: caller.principal().clone(),
        key,
        traceparent: traceparent.map(str::to_owned),
    };
    let retention = api.settings().retention;
    let (who, handlers) = (&caller.identity, api.handlers());
    let check =
        |announced: &_| prepare_within(who, submitted.clone(), retention, handlers, announced);
    let submission = api.registry().check(check).await?.map_err(|unfit| unfit_plan(&unfit))?;
    let (id, created) = api.engine().submit(submission).await?;
    let header = reads::of_task(api.engine(), &id, vec![Key::Header]).await?;
    let state = match header.into_values().next() {
        Some(Record::Header(header)) => present::task::state(header.state),
        _ => TaskState::Queued,
    };
    let url = fill(paths::TASK, &[id.as_str()]);
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let location = [(LOCATION, url.clone())];
    Ok((status, location, Json(Submitted { id: id.to_string(), created, state, url }))
        .into_response())
}

fn check_plan_size(plan: &Value, body_bytes: usize) -> Result<(), Fail> {
    if body_bytes <= PLAN_BYTES_MAX {
        return Ok(());
    }
    let length = serde_json::to_vec(plan).map_or(body_bytes, |bytes| bytes.len());
    if length <= PLAN_BYTES_MAX {
        return Ok(());
    }
    let detail = format!("the plan may have at most {PLAN_BYTES_MAX} bytes, found {length}");
    Err(Fail::new(ProblemKind::TooLarge, detail))
}

/// Reads the key of the header; it must be the plan's own if that has one.
fn header_key(headers: &HeaderMap, plan: &Value) -> Result<Option<String>, Fail> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let visible = value.to_str().ok().filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len()));
    let Some(key) = visible else {
        let message = format!("expected 1 to {KEY_BYTES_MAX} visible ASCII characters");
        return Err(bad_parameter("Idempotency-Key", message));
    };
    if let Some(own) = plan.get("idempotency_key").and_then(Value::as_str)
        && own != key
    {
        let message = "differs from the `Idempotency-Key` header".to_owned();
        let fault = Fault { pointer: "/idempotency_key".to_owned(), message };
        let detail = "the header and the plan name different idempotency keys";
        return Err(Fail::new(ProblemKind::KeyReused, detail).with_errors(vec![fault]));
    }
    Ok(Some(key.to_owned()))
}

/// Reads a task.
#[utoipa::path(get, path = paths::TASK, tag = "tasks",
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = TaskView)))]
pub(crate) async fn get(
    State(api): State<Api>,
    on: On<needs::View>,
) -> Result<Json<TaskView>, Fail> {
    let mut survey = reads::survey_one(api.engine(), on.base).await?;
    reads::find_waits(&api, std::slice::from_mut(&mut survey)).await?;
    Ok(Json(present::task::view(&survey)))
}

/// Pauses a task: nothing new starts, and its clocks stand still. Twice is once.
#[utoipa::path(post, path = paths::PAUSE, tag = "tasks", request_body = PauseRequest,
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = Paused)))]
pub(crate) async fn pause(
    State(api): State<Api>,
    on: On<needs::Operate>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Paused>, Fail> {
    set_paused(&api, on, (&headers, body), |reason| Command::Pause { reason }).await
}

/// Ends every pause of a task. Twice is once.
#[utoipa::path(post, path = paths::RESUME, tag = "tasks", request_body = PauseRequest,
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = Paused)))]
pub(crate) async fn resume(
    State(api): State<Api>,
    on: On<needs::Operate>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Paused>, Fail> {
    set_paused(&api, on, (&headers, body), |reason| Command::Resume { reason }).await
}

async fn set_paused(
    api: &Api,
    On { base, caller, .. }: On<needs::Operate>,
    (headers, body): (&HeaderMap, Body),
    command: fn(Option<String>) -> Command,
) -> Result<Json<Paused>, Fail> {
    let request: PauseRequest = extract::json(headers, body, REQUEST_BYTES_MAX).await?;
    check_note(request.reason.as_deref(), "/reason")?;
    let actor = caller.principal().clone();
    let command = command(request.reason);
    api.engine().execute(&base.task, command, actor, Vec::new()).await?;
    let gone = || Fail::not_found(format!("failed to find task {}", base.task));
    let base = reads::find(api, &base.task).await?.ok_or_else(gone)?;
    let survey = reads::survey_one(api.engine(), base).await?;
    Ok(Json(Paused {
        id: survey.base.task.to_string(),
        state: present::task::state(survey.base.header.state),
        pause: present::task::pause(&survey),
    }))
}

/// Refuses words that are too long to be kept.
pub(crate) fn check_note(note: Option<&str>, pointer: &str) -> Result<(), Fail> {
    match note {
        Some(note) if note.len() > NOTE_BYTES_MAX => {
            let found = note.len();
            Err(bad_parameter(
                pointer,
                format!("expected at most {NOTE_BYTES_MAX} bytes, found {found}"),
            ))
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks that a task's history is whole and gives its records.
#[utoipa::path(get, path = paths::VERIFY, tag = "tasks",
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = VerifyReport)))]
pub(crate) async fn verify(
    State(api): State<Api>,
    On { base, .. }: On<needs::View>,
) -> Result<Json<VerifyReport>, Fail> {
    let report = verify::verify(api.engine(), &base.task).await?;
    let fault = report.fault.map(|message| VerifyFault {
        sequence: report.sequence,
        record: None,
        message,
    });
    Ok(Json(VerifyReport { ok: fault.is_none(), events: report.events, fault }))
}
