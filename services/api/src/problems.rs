//! Every error leaves as a problem of RFC 9457 with a stable type.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use standfast_domain::ids::TaskId;
use standfast_domain::plan::Fault as PlanFault;
use standfast_domain::refusal::Refusal;
use standfast_domain::rights::Right;
use standfast_engine::EngineError;
use standfast_engine::blobs::BlobError;
use standfast_engine::ports::StoreError;
use standfast_engine::submission::Unfit;
use standfast_protocol::headers::PROBLEM_JSON;
use standfast_protocol::problem::{Fault, Problem, ProblemKind};
use standfast_protocol::stops::StopPlan;

use crate::present::text::plain;

/// When to come back after the store or the blobs did not answer.
const RETRY_AFTER_MS: u64 = 1_000;

/// An error on its way out. Boxed: it is rare and large.
#[derive(Clone, Debug)]
pub(crate) struct Fail(Box<Failure>);

#[derive(Clone, Debug)]
struct Failure {
    problem: Problem,
    /// The right that was missing, said or not.
    right: Option<Right>,
    /// The task that it was about.
    task: Option<TaskId>,
}

/// Marks a response that refuses, for the guard's log.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub kind: String,
    pub detail: String,
    /// The right that was missing, if that is why; the answer may hide it.
    pub right: Option<Right>,
    pub task: Option<TaskId>,
}

impl Fail {
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self::of(Problem::new(kind, detail))
    }

    fn of(problem: Problem) -> Self {
        Self(Box::new(Failure { problem, right: None, task: None }))
    }

    /// Points at the faults.
    pub fn with_errors(self, errors: Vec<Fault>) -> Self {
        let Failure { problem, right, task } = *self.0;
        Self(Box::new(Failure { problem: problem.with_errors(errors), right, task }))
    }

    /// Adds what a stop would do now.
    pub fn with_stop_plan(self, plan: StopPlan) -> Self {
        let Failure { problem, right, task } = *self.0;
        Self(Box::new(Failure { problem: problem.with_stop_plan(plan), right, task }))
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::NotFound, detail)
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::InvalidRequest, detail)
    }

    /// Says that a cursor is not of this list.
    pub fn bad_cursor() -> Self {
        let detail = "use the cursor that the page before gave, with the same path and filters";
        Self::new(ProblemKind::BadCursor, detail)
    }

    /// Refuses for want of a right, which the detail names.
    pub fn forbidden(right: Right, detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Forbidden, detail).hidden(right)
    }

    /// Notes for the log which right was missing; the answer does not say it.
    pub fn hidden(mut self, right: Right) -> Self {
        self.0.right = Some(right);
        self
    }

    /// Notes for the log which task it was about.
    pub fn about(mut self, task: &TaskId) -> Self {
        self.0.task = Some(task.clone());
        self
    }

    /// Keeps the cause in the log, under an id that the answer names.
    pub fn internal(cause: &dyn std::fmt::Display) -> Self {
        let id = uuid::Uuid::new_v4();
        tracing::error!(%id, %cause, "a request failed");
        let detail = format!("search the server's log for {id}");
        Self::new(ProblemKind::Internal, detail)
    }

    pub fn unavailable(detail: impl Into<String>) -> Self {
        let problem = Problem::new(ProblemKind::Unavailable, detail);
        Self::of(problem.with_retry_after_ms(RETRY_AFTER_MS))
    }

    pub fn too_many(detail: impl Into<String>) -> Self {
        let problem = Problem::new(ProblemKind::TooMany, detail);
        Self::of(problem.with_retry_after_ms(RETRY_AFTER_MS))
    }

    /// Gives what is wrong, in words.
    pub fn detail(&self) -> String {
        self.0.problem.detail.clone()
    }

    /// Says whether the problem is of a kind.
    pub fn is(&self, kind: ProblemKind) -> bool {
        self.0.problem.known() == Some(kind)
    }
}

impl IntoResponse for Fail {
    fn into_response(self) -> Response {
        let Failure { problem, right, task } = *self.0;
        let status =
            StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&problem).expect("problems are plain data");
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(ms) = problem.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000)));
        }
        let kind = problem.known().map_or("", ProblemKind::slug).to_owned();
        let refused = Refused { kind, detail: problem.detail, right, task };
        response.extensions_mut().insert(refused);
        response
    }
}

impl From<EngineError> for Fail {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Refused(refusal) => refusal.into(),
            EngineError::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for Fail {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) | StoreError::ReadOnly(_) => {
                tracing::debug!(%error, "a request could not be served"); // the engine warns once
                Self::unavailable(format!("failed to {}", plain(&error.to_string())))
            }
            StoreError::Corrupt(_) => Self::internal(&error),
        }
    }
}

impl From<BlobError> for Fail {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::Unavailable(_) => {
                tracing::warn!(%error, "a request could not be served");
                Self::unavailable("failed to reach the blobs")
            }
            BlobError::Missing(_) | BlobError::Url { .. } | BlobError::Foreign { .. } => {
                Self::internal(&error)
            }
        }
    }
}

impl From<Refusal> for Fail {
    fn from(refusal: Refusal) -> Self {
        let detail = format!("failed to {refusal}");
        let kind = match &refusal {
            Refusal::NoTask(_) | Refusal::NoStep(_) => ProblemKind::NotFound,
            Refusal::InvalidPlan(faults) => return invalid_plan(faults),
            Refusal::KeyReused(_) => ProblemKind::KeyReused,
            Refusal::Fenced { .. } => ProblemKind::Fenced,
            Refusal::NotClaimable { .. }
            | Refusal::NotStoppable { .. }
            | Refusal::NotApplicable { .. }
            | Refusal::Effect { .. }
            | Refusal::OwnerChanged(_)
            | Refusal::Ended(_)
            | Refusal::Stopped
            | Refusal::NotStopped
            | Refusal::Ending(_)
            | Refusal::EndDecided(_) => ProblemKind::NotApplicable,
            Refusal::PlanMoved => ProblemKind::PlanMoved,
            Refusal::Forbidden(_) => ProblemKind::Forbidden,
        };
        Self::new(kind, detail)
    }
}

/// Lists all faults of a plan.
pub(crate) fn invalid_plan(faults: &[PlanFault]) -> Fail {
    let count = faults.len();
    let detail = format!("the plan has {count} fault{}", if count == 1 { "" } else { "s" });
    Fail::new(ProblemKind::InvalidPlan, detail).with_errors(shown(faults))
}

/// Lists all that stands against a plan: its faults, and what its submitter may not.
pub(crate) fn unfit_plan(unfit: &Unfit) -> Fail {
    if !unfit.forbidden {
        return invalid_plan(&unfit.faults);
    }
    let count = unfit.faults.len();
    let places = if count == 1 { "one place" } else { "several places" };
    let detail = format!("the plan goes beyond what you may submit, in {places}");
    Fail::forbidden(Right::Submit, detail).with_errors(shown(&unfit.faults))
}

/// Gives faults as the protocol shows them.
pub(crate) fn shown(faults: &[PlanFault]) -> Vec<Fault> {
    let each = faults.iter();
    each.map(|fault| Fault { pointer: fault.pointer.clone(), message: plain(&fault.message) })
        .collect()
}

#[cfg(test)]
mod tests {
    use standfast_domain::record::TaskState;

    use super::*;

    #[test]
    fn refusals_map_to_their_statuses() {
        let task = TaskId::random([1; 16]);
        for (refusal, kind) in [
            (Refusal::NoTask(task.clone()), ProblemKind::NotFound),
            (Refusal::KeyReused(task), ProblemKind::KeyReused),
            (Refusal::Ended(TaskState::Failed), ProblemKind::NotApplicable),
            (Refusal::Forbidden("the owner"), ProblemKind::Forbidden),
            (Refusal::InvalidPlan(Vec::new()), ProblemKind::InvalidPlan),
        ] {
            assert!(Fail::from(refusal.clone()).is(kind), "{refusal}");
        }
    }

    #[test]
    fn a_store_that_is_away_says_when_to_come_back() {
        let response = Fail::from(StoreError::Unavailable("gone".into())).into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}
