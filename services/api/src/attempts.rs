//! Stopping one attempt, so that another one starts.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use standfast_domain::decide::Command;
use standfast_domain::record::Key;
use standfast_domain::refusal::Refusal;
use standfast_engine::EngineError;
use standfast_protocol::bulk_stops::{AttemptStopped, StopAttemptRequest};
use standfast_protocol::limits::REQUEST_BYTES_MAX;
use standfast_protocol::paths;

use crate::Api;
use crate::answers::step_state;
use crate::auth::{On, needs};
use crate::extract::{self, Place};
use crate::problems::Fail;
use crate::tasks::check_note;

/// Stops an attempt that runs; the step is ready again at once, at no charge. A second stop of
/// the same attempt is answered like the first, with `stopped: false`.
#[utoipa::path(post, path = paths::ATTEMPT_STOP, tag = "attempts",
    request_body = StopAttemptRequest,
    params(
        ("id" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        ("attempt" = u32, Path, description = "the attempt's number"),
    ),
    responses((status = 200, body = AttemptStopped)))]
pub(crate) async fn stop(
    State(api): State<Api>,
    On { base, caller, .. }: On<needs::Operate>,
    place: Place,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<AttemptStopped>, Fail> {
    let (step, attempt) = (place.step()?, place.attempt()?);
    let request: StopAttemptRequest = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    check_note(request.reason.as_deref(), "/reason")?;
    let command = Command::StopAttempt { step: step.clone(), attempt, reason: request.reason };
    let wants = vec![Key::Header, Key::Step(step.clone()), Key::Claim(step.clone())];
    let actor = caller.principal().clone();
    let done = match api.engine().execute(&base.task, command, actor, wants).await {
        Err(EngineError::Refused(Refusal::NoStep(step))) => {
            let detail = format!("failed to find step `{step}` in task {}", base.task);
            return Err(Fail::not_found(detail));
        }
        other => other?,
    };
    let Ok(header) = done.records.header() else {
        return Err(Fail::internal(&"a stop of an attempt gave no header"));
    };
    let state = step_state(&base, header, &step, &done.records)
        .ok_or_else(|| Fail::internal(&"a stop of an attempt gave no step"))?;
    let task = base.task.to_string();
    let step = step.to_string();
    Ok(Json(AttemptStopped { task, step, attempt, stopped: done.acted, state }))
}
