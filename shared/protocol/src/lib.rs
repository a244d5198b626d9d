//! What travels between Standfast and everyone else, over HTTP and AMQP, as types.
//!
//! There is nothing here but shapes, names and limits: no rules, no sockets, no clock, and no
//! import of another crate of this workspace, so that a client compiles little. Ids and times
//! are text, because whoever reads them may not know the server's rules.
//!
//! # Conventions
//!
//! - Times are RFC 3339 in UTC with milliseconds, such as `2026-11-29T16:20:00.000Z`.
//! - Spans are whole milliseconds in fields that end in `_ms`.
//! - Money is whole micro-dollars in fields that end in `_usd_micros`.
//! - Requests refuse fields they do not know; readers of responses must tolerate more.
//! - A field that has nothing to say is left out; a list is always there, empty or not.
//! - Every error is a [`problem::Problem`] (RFC 9457) of media type `application/problem+json`.
//!
//! # Endpoints
//!
//! All need `Authorization: Bearer TOKEN`, the last three excepted. To those who may not see a
//! task it does not exist: `not_found`. Types of queries are named beside the body.
//!
//! | method and path | request | answer |
//! | --- | --- | --- |
//! | `POST /v1/tasks` | [`SubmitRequest`] or a plan; `Idempotency-Key` | 201, 200 [`Submitted`] |
//! | `GET /v1/tasks` | [`TaskQuery`] | [`TaskPage`] |
//! | `GET /v1/tasks/{id}` | | [`TaskView`] |
//! | `GET /v1/tasks/{id}/explain` | | [`Explain`] |
//! | `GET /v1/tasks/{id}/steps` | [`StepQuery`] | [`StepPage`] |
//! | `GET /v1/tasks/{id}/steps/{step}` | | [`StepView`] |
//! | `GET /v1/tasks/{id}/steps/{step}/log` | [`LogQuery`] | [`LogPage`] |
//! | `GET /v1/tasks/{id}/effects` | [`EffectQuery`] | [`EffectPage`] |
//! | `GET /v1/tasks/{id}/artifacts` | | [`ArtifactPage`] |
//! | `GET /v1/tasks/{id}/artifacts/{step}/{name}` | | the bytes |
//! | `GET /v1/tasks/{id}/events` | [`EventQuery`]; `Accept` | [`EventPage`] or SSE |
//! | `POST /v1/tasks/{id}/answers` | [`AnswerRequest`] | [`Answered`] |
//! | `POST /v1/tasks/{id}/steps/{step}/answers` | [`AnswerRequest`] | [`Answered`] |
//! | `POST /v1/tasks/{id}/stop` | [`StopRequest`] | [`Stopped`] |
//! | `POST /v1/tasks/{id}/pause` | [`PauseRequest`] | [`Paused`] |
//! | `POST /v1/tasks/{id}/resume` | [`PauseRequest`] | [`Paused`] |
//! | `GET /v1/tasks/{id}/verify` | | [`VerifyReport`] |
//! | `POST /v1/workers` | [`Announce`] | [`Announced`] |
//! | `POST /v1/claims` | [`ClaimRequest`] | 200 [`Claim`] or 204 |
//! | `POST /v1/claims/{task}/{step}/heartbeat` | [`Heartbeat`] | [`HeartbeatAnswer`] |
//! | `GET /v1/claims/{task}/{step}/control` | [`ControlQuery`] | [`ControlAnswer`] |
//! | `POST /v1/claims/{task}/{step}/complete` | [`Complete`] | [`Settled`] |
//! | `POST /v1/claims/{task}/{step}/hand-back` | [`HandBack`] | [`Settled`] |
//! | `POST /v1/claims/{task}/{step}/effects/{name}` | [`IntentRequest`] | [`IntentAnswer`] |
//! | `POST /v1/claims/{task}/{step}/effects/{name}/receipt` | [`ReceiptRequest`] | [`Settled`] |
//! | `POST …/effects/{name}/not-landed` | [`NotLandedRequest`] | [`Settled`] |
//! | `POST /v1/claims/{task}/{step}/log` | text; [`LogAppend`] | [`LogAppended`] |
//! | `PUT /v1/claims/{task}/{step}/artifacts/{name}` | bytes; [`Holder`] | [`ArtifactView`] |
//! | `GET /v1/plan-schema.json` | | JSON Schema of a plan |
//! | `GET /openapi.json` | | OpenAPI 3.1 |
//! | `GET /healthz` | | [`Health`] |
//!
//! [`ArtifactPage`]: artifacts::ArtifactPage
//! [`ArtifactView`]: artifacts::ArtifactView
//! [`Announce`]: claims::Announce
//! [`Announced`]: claims::Announced
//! [`Claim`]: claims::Claim
//! [`ClaimRequest`]: claims::ClaimRequest
//! [`Complete`]: claims::Complete
//! [`HandBack`]: claims::HandBack
//! [`Heartbeat`]: claims::Heartbeat
//! [`HeartbeatAnswer`]: claims::HeartbeatAnswer
//! [`ControlQuery`]: claims::ControlQuery
//! [`ControlAnswer`]: claims::ControlAnswer
//! [`Holder`]: claims::Holder
//! [`LogAppend`]: claims::LogAppend
//! [`LogAppended`]: claims::LogAppended
//! [`Settled`]: claims::Settled
//! [`IntentAnswer`]: effects::IntentAnswer
//! [`IntentRequest`]: effects::IntentRequest
//! [`NotLandedRequest`]: effects::NotLandedRequest
//! [`ReceiptRequest`]: effects::ReceiptRequest
//! [`EventPage`]: events::EventPage
//! [`EventQuery`]: events::EventQuery
//! [`Explain`]: explain::Explain
//! [`Health`]: health::Health
//! [`AnswerRequest`]: holds::AnswerRequest
//! [`Answered`]: holds::Answered
//! [`LogPage`]: logs::LogPage
//! [`LogQuery`]: logs::LogQuery
//! [`StepPage`]: steps::StepPage
//! [`StepQuery`]: steps::StepQuery
//! [`StepView`]: steps::StepView
//! [`EffectPage`]: task_effects::EffectPage
//! [`EffectQuery`]: task_effects::EffectQuery
//! [`PauseRequest`]: tasks::PauseRequest
//! [`Paused`]: tasks::Paused
//! [`Settlement`]: stops::Settlement
//! [`StopPlan`]: stops::StopPlan
//! [`StopPlanQuery`]: stops::StopPlanQuery
//! [`StopRequest`]: tasks::StopRequest
//! [`Stopped`]: tasks::Stopped
//! [`SubmitRequest`]: tasks::SubmitRequest
//! [`Submitted`]: tasks::Submitted
//! [`TaskPage`]: tasks::TaskPage
//! [`TaskQuery`]: tasks::TaskQuery
//! [`TaskView`]: tasks::TaskView
//! [`VerifyReport`]: verify::VerifyReport

pub mod artifacts;
pub mod bulk_stops;
pub mod claims;
pub mod effects;
pub mod events;
pub mod explain;
pub mod health;
pub mod holds;
pub mod logs;
pub mod steps;
pub mod stops;
pub mod task_effects;
pub mod tasks;
pub mod tokens;
pub mod verify;

pub mod amqp;
pub mod headers;
pub mod limits;
pub mod paths;
pub mod problem;

/// Says that a field is false and may be left out.
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}
