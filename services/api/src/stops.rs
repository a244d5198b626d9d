//! Stopping: what it would do, doing it, and what it came to.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use standfast_domain::decide::Command;
use standfast_domain::record::{Key, StopMode as Mode};
use standfast_engine::Done;
use standfast_engine::stopping::{ByPlan, Planned, StoppedBy};
use standfast_protocol::limits::REQUEST_BYTES_MAX;
use standfast_protocol::paths;
use standfast_protocol::problem::ProblemKind;
use standfast_protocol::stops::{DIGEST_CHARS_MIN, Settlement, StopPlan, StopPlanQuery};
use standfast_protocol::tasks::{StopMode, StopRequest, Stopped};

use crate::auth::{On, needs};
use crate::extract::{self, bad_parameter};
use crate::problems::Fail;
use crate::reads::Base;
use crate::tasks::check_note;
use crate::{Api, present};

/// Hex digits of a whole digest.
const DIGEST_CHARS: usize = 64;

/// Says what a stop would do now; while a weaker stop is under way, what a stronger one would.
#[utoipa::path(get, path = paths::STOP_PLAN, tag = "tasks",
    params(("id" = String, Path, description = "the task"), StopPlanQuery),
    responses((status = 200, body = StopPlan)))]
pub(crate) async fn plan(
    State(api): State<Api>,
    On { base, .. }: On<needs::View>,
    uri: Uri,
) -> Result<Json<StopPlan>, Fail> {
    let query: StopPlanQuery = extract::query(&uri)?;
    let plans = api.engine().stop_plans(&base.task, &[mode(query.mode)]).await?;
    let Some(planned) = plans.first() else {
        return Err(Fail::internal(&"one mode gave no plan"));
    };
    Ok(Json(shown(&api, &base, planned).await?))
}

async fn shown(api: &Api, base: &Base, planned: &Planned) -> Result<StopPlan, Fail> {
    Ok(present::stop::plan(base, api.engine().now().await?, planned))
}

/// Says what a stop came to, or has come to so far.
#[utoipa::path(get, path = paths::SETTLEMENT, tag = "tasks",
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = Settlement)))]
pub(crate) async fn settlement(
    State(api): State<Api>,
    On { base, .. }: On<needs::View>,
) -> Result<Json<Settlement>, Fail> {
    let settlement = api.engine().settlement(&base.task).await?;
    Ok(Json(present::stop::settlement(&base, api.engine().now().await?, &settlement)))
}

/// Stops a task. A second stop is answered like the first; a stronger one takes the place of a
/// weaker one while attempts still run. With the digest of a stop plan, only if the task's plan
/// is still that one.
#[utoipa::path(post, path = paths::STOP, tag = "tasks", request_body = StopRequest,
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = Stopped)))]
pub(crate) async fn stop(
    State(api): State<Api>,
    On { base, caller, .. }: On<needs::Stop>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Stopped>, Fail> {
    let request: StopRequest = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    check_note(request.reason.as_deref(), "/reason")?;
    let (mode, reason) = (mode(request.mode), request.reason);
    let wants = vec![Key::Header, Key::Gate];
    let actor = caller.principal();
    let done = match request.digest {
        None => {
            let command = Command::Stop { reason, mode };
            api.engine().execute(&base.task, command, actor.clone(), wants).await?
        }
        Some(digest) => {
            let by = ByPlan { mode, reason, digest: checked(digest)? };
            match api.engine().stop_by_plan(&base.task, &by, actor, &wants).await? {
                StoppedBy::Stopped(done) => *done,
                StoppedBy::Moved(planned) => return Err(moved(&api, &base, &planned).await?),
            }
        }
    };
    answer(&base, done)
}

fn answer(base: &Base, done: Done) -> Result<Json<Stopped>, Fail> {
    let (header, gate) = (done.records.header(), done.records.gate());
    let (Ok(header), Ok(gate)) = (header, gate) else {
        return Err(Fail::internal(&"a stop gave no records"));
    };
    let Some(stop) = gate.stop else {
        return Err(Fail::internal(&"a stop was taken and is not there"));
    };
    Ok(Json(Stopped {
        id: base.task.to_string(),
        state: present::task::state(header.state),
        stop: present::task::stop(&stop),
    }))
}

/// Checks how a digest is named: whole, or by enough of its first digits.
fn checked(digest: String) -> Result<String, Fail> {
    let right = (DIGEST_CHARS_MIN..=DIGEST_CHARS).contains(&digest.len())
        && digest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let message = format!(
        "expected the digest of a stop plan, or at least its first {DIGEST_CHARS_MIN} digits: \
         0 to 9, a to f"
    );
    if right { Ok(digest) } else { Err(bad_parameter("/digest", &message)) }
}

async fn moved(api: &Api, base: &Base, planned: &Planned) -> Result<Fail, Fail> {
    let detail = "nothing was stopped: the task has moved since that plan was made; look at the \
                  plan of now, and stop by its digest";
    let plan = shown(api, base, planned).await?;
    Ok(Fail::new(ProblemKind::PlanMoved, detail).with_stop_plan(plan))
}

pub(crate) fn mode(mode: StopMode) -> Mode {
    match mode {
        StopMode::Drain => Mode::Drain,
        StopMode::Halt => Mode::Halt,
        StopMode::Undo => Mode::Undo,
    }
}
