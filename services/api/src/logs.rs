//! Logs of attempts, to read and to follow.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use futures::StreamExt;
use standfast_domain::ids::StepId;
use standfast_domain::record::{AttemptLog, Claim, Definition, Key, Record, StepState};
use standfast_protocol::limits::LOG_BYTES_MAX;
use standfast_protocol::logs::{LogPage, LogQuery};
use standfast_protocol::paths;

use crate::auth::{On, demand_still_sees, needs};
use crate::extract::{self, Place};
use crate::present::log::{Part, gap, part, total};
use crate::problems::Fail;
use crate::reads::{self, Base};
use crate::waits::Wait;
use crate::{Api, present};

/// Reads the log of an attempt of a step; with `wait_ms` it waits for text that is not there
/// yet.
#[utoipa::path(get, path = paths::STEP_LOG, tag = "steps",
    params(
        ("id" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        LogQuery,
    ),
    responses((status = 200, body = LogPage)))]
pub(crate) async fn log(
    State(api): State<Api>,
    On { base, caller, .. }: On<needs::View>,
    place: Place,
    uri: Uri,
) -> Result<Json<LogPage>, Fail> {
    let query: LogQuery = extract::query(&uri)?;
    let longest = extract::wait(query.wait_ms)?;
    let step = place.step()?;
    let definition = reads::definition(api.engine(), &base.task, &step).await?;
    let offset = query.offset.unwrap_or(0);
    let mut wait = match longest.is_zero() {
        true => None,
        false => Some(Wait::begin(&api, Some(longest.min(Duration::from_secs(30))))?),
    };
    loop {
        let look = look(&api, &base, &definition, query.attempt).await?;
        let page = show(&api, look, offset).await?;
        if wait.is_some() {
            demand_still_sees(&api, &caller, &base.task).await?;
        }
        if !page.text.is_empty() || page.ended {
            return Ok(Json(page));
        }
        let again = match &mut wait {
            Some(wait) => wait.again(&api, Some(&base.task)).await,
            None => false,
        };
        if !again {
            return Ok(Json(page));
        }
    }
}

/// One look at an attempt.
struct Look {
    attempt: u32,
    log: AttemptLog,
    /// True once nothing can be appended any more.
    over: bool,
}

async fn look(
    api: &Api,
    base: &Base,
    definition: &Definition,
    asked: Option<u32>,
) -> Result<Look, Fail> {
    let step = &definition.plan.id;
    let (state, claim, ended) = stand(api, base, definition).await?;
    let last = present::step::last_attempt(definition, &state, claim.is_some());
    let attempt = asked.unwrap_or(last);
    let log_key = Key::Log(step.clone(), attempt);
    // The claim is read before the log: an attempt that is over by then has all its log.
    let found = reads::of_task(api.engine(), &base.task, vec![log_key.clone()]).await?;
    let log = match found.into_values().next() {
        Some(Record::Log(log)) => log,
        _ => AttemptLog::default(),
    };
    let running = claim.is_some_and(|claim| claim.attempt == attempt);
    let to_come = attempt > last || attempt == 0;
    let over = !running && (!to_come || state.is_settled() || ended);
    if over && to_come && asked.is_some() {
        let detail = format!("step `{step}` has had no attempt {attempt}, the last was {last}");
        return Err(Fail::not_found(detail));
    }
    Ok(Look { attempt, log, over })
}

/// Reads where a step stands, and whether its task has ended.
async fn stand(
    api: &Api,
    base: &Base,
    definition: &Definition,
) -> Result<(StepState, Option<Claim>, bool), Fail> {
    let step: &StepId = &definition.plan.id;
    let keys = vec![Key::Header, Key::Step(step.clone()), Key::Claim(step.clone())];
    let mut found = reads::of_task(api.engine(), &base.task, keys).await?;
    let ended = match found.remove(&Key::Header) {
        Some(Record::Header(header)) => header.state.is_final(),
        _ => true,
    };
    let state = match found.remove(&Key::Step(step.clone())) {
        Some(Record::Step(state)) => state,
        _ => StepState::pending(definition.needs_count),
    };
    let claim = match found.remove(&Key::Claim(step.clone())) {
        Some(Record::Claim(claim)) => Some(claim),
        _ => None,
    };
    Ok((state, claim, ended))
}

async fn show(api: &Api, look: Look, offset: u64) -> Result<LogPage, Fail> {
    let Look { attempt, log, over } = look;
    let (gap_from, gap_end) = gap(&log);
    let part = match &log.blob {
        Some(blob) if (gap_from..gap_end).contains(&offset) => {
            let most = usize::try_from(gap_end - offset).unwrap_or(LOG_BYTES_MAX);
            match from_blob(api, blob, offset, most.min(LOG_BYTES_MAX)).await? {
                Some(part) => part,
                None => part(&log, offset),
            }
        }
        Some(_) | None => part(&log, offset),
    };
    Ok(LogPage {
        attempt,
        ended: over && part.next >= total(&log),
        dropped_bytes: part.offset.saturating_sub(offset),
        text: part.text,
        offset: part.offset,
        next_offset: part.next,
    })
}

/// Reads a piece of a whole log; nothing if it does not reach that far. A log's blob is at most
/// as large as its worker's limit for it, so that reading up to the piece stays cheap.
async fn from_blob(api: &Api, blob: &str, offset: u64, most: usize) -> Result<Option<Part>, Fail> {
    let mut stream = api.blobs().stream(blob).await?;
    let (mut at, mut piece) = (0_u64, Vec::new());
    while let Some(bytes) = stream.next().await {
        let bytes = bytes?;
        let skip = offset.saturating_sub(at).min(bytes.len() as u64);
        at += bytes.len() as u64;
        let wanted = &bytes[usize::try_from(skip).unwrap_or(bytes.len())..];
        piece.extend_from_slice(&wanted[..wanted.len().min(most - piece.len())]);
        if piece.len() == most {
            break;
        }
    }
    if piece.is_empty() {
        return Ok(None);
    }
    // A character that the end cuts is left to the next piece.
    if let Err(error) = std::str::from_utf8(&piece)
        && error.error_len().is_none()
        && error.valid_up_to() > 0
    {
        piece.truncate(error.valid_up_to());
    }
    let next = offset + piece.len() as u64;
    Ok(Some(Part { text: String::from_utf8_lossy(&piece).into_owned(), offset, next }))
}
