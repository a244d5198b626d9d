//! Stopping many tasks by a filter, page by page.
//!
//! The walk is that of the list: entries keep their place in an index, so what is stopped
//! meanwhile disturbs nobody. A page may be asked for twice, and a walk begun anew: a stop of a
//! task that was stopped changes nothing. The cursor carries how many stops are left of those
//! that the caller expects, so that never more tasks are stopped than were counted.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use futures::future::join_all;
use serde_json::json;
use standfast_domain::decide::Command;
use standfast_domain::record::StopMode as Mode;
use standfast_domain::rights::Right;
use standfast_engine::EngineError;
use standfast_protocol::bulk_stops::{
    CountStopsRequest, StopFilter, StopManyRequest, StopRefused, StopsCounted, StopsDone,
};
use standfast_protocol::limits::REQUEST_BYTES_MAX;
use standfast_protocol::paths;
use standfast_protocol::problem::ProblemKind;

use crate::Api;
use crate::auth::{By, Caller, needs};
use crate::extract::{self, bad_parameter};
use crate::list::{self, Filter};
use crate::problems::Fail;
use crate::reads::Base;
use crate::stops::mode;
use crate::tasks::check_note;

/// Tasks that one call stops: some tens of milliseconds of the store's time, and progress that
/// a person sees.
const STOPS_A_PAGE: usize = 200;
/// Tasks that one call counts.
const COUNTS_A_PAGE: usize = 1_000;

/// What is to become of a task that matches.
enum Fate {
    Stop(Box<Base>),
    /// It has ended, or is stopped at least as hard.
    Nothing {
        already: bool,
    },
    Refused(StopRefused),
}

/// Counts the tasks that a stop by a filter would stop; changes nothing.
#[utoipa::path(post, path = paths::STOPS_COUNT, tag = "stops", request_body = CountStopsRequest,
    responses((status = 200, body = StopsCounted)))]
pub(crate) async fn count(
    State(api): State<Api>,
    caller: By<needs::List>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<StopsCounted>, Fail> {
    let request: CountStopsRequest = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    let filter = filter(&request.filter, &json!(["count", request.mode]))?;
    let place = request.cursor.map(|cursor| filter.list.place(&cursor)).transpose()?;
    let now = api.engine().now().await?.rfc3339(); // before the look: what comes later is left out
    let (found, last) = list::page(&api, &caller, &filter, place, COUNTS_A_PAGE).await?;
    let (mut tasks, mut refused) = (0, Vec::new());
    for base in found.into_bases() {
        match fate(&caller, base, mode(request.mode)) {
            Fate::Stop(_) => tasks += 1,
            Fate::Nothing { .. } => {}
            Fate::Refused(why) => refused.push(why),
        }
    }
    let next_cursor = last.map(|member| filter.list.cursor(&member));
    Ok(Json(StopsCounted { tasks, refused, now, next_cursor }))
}

/// Stops a page of the tasks that match a filter; over all pages no more than were expected.
#[utoipa::path(post, path = paths::STOPS, tag = "stops", request_body = StopManyRequest,
    responses((status = 200, body = StopsDone)))]
pub(crate) async fn stop(
    State(api): State<Api>,
    caller: By<needs::List>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<StopsDone>, Fail> {
    let request: StopManyRequest = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    check_note(request.reason.as_deref(), "/reason")?;
    let filter = filter(&request.filter, &json!(["stop", request.mode, request.expected]))?;
    let (left, place) = match &request.cursor {
        None => (request.expected, None),
        Some(cursor) => {
            let (left, place) = read_place(&filter.list.place(cursor)?)?;
            (left, Some(place))
        }
    };
    let (found, last) = list::page(&api, &caller, &filter, place, STOPS_A_PAGE).await?;
    let (mut done, mut stopping) = (StopsDone::default(), Vec::new());
    for base in found.into_bases() {
        match fate(&caller, base, mode(request.mode)) {
            Fate::Stop(base) => stopping.push(*base),
            Fate::Nothing { already } => done.already += u64::from(already),
            Fate::Refused(why) => done.refused.push(why),
        }
    }
    if stopping.len() as u64 > left {
        let expected = request.expected;
        let detail = format!(
            "more than the {expected} tasks match that are to be stopped; count them again, or \
             bound the filter with `created_before`, or `as_of` where holds are looked for; what \
             was stopped stays so"
        );
        return Err(Fail::new(ProblemKind::NotApplicable, detail));
    }
    stop_all(&api, &caller, &request, stopping, &mut done).await?;
    let left = left - done.stopped;
    done.next_cursor = last.map(|member| filter.list.cursor(&format!("{left}/{member}")));
    Ok(Json(done))
}

/// Checks a filter: one that means everything is refused, for nobody means that.
fn filter(filter: &StopFilter, what: &serde_json::Value) -> Result<Filter, Fail> {
    if filter.is_empty() {
        let message = "is empty and would mean every task; name at least one of `state`, `kind`, \
                       `owner`, `labels`, `created_after`, `created_before`, `waiting`, `older_ms`";
        return Err(bad_parameter("/filter", message));
    }
    Filter::new(filter.to_query(), what, "/filter/")
}

fn read_place(place: &str) -> Result<(u64, String), Fail> {
    let (left, member) = place.split_once('/').ok_or_else(Fail::bad_cursor)?;
    Ok((left.parse().map_err(|_| Fail::bad_cursor())?, member.to_owned()))
}

fn fate(caller: &Caller, base: Base, mode: Mode) -> Fate {
    let known = base.gate.stop.as_ref().map(|stop| stop.mode);
    if base.header.state.is_final() || known.is_some_and(|known| known >= mode) {
        return Fate::Nothing { already: known.is_some() };
    }
    match caller.demand_on(Right::Stop, &base) {
        Ok(()) => Fate::Stop(Box::new(base)),
        Err(fail) => Fate::Refused(StopRefused { id: base.task.to_string(), why: fail.detail() }),
    }
}

/// Stops tasks side by side, so that the engine stores many in one call. What cannot be stopped
/// any more is named; a store that fails ends the page, which may be asked for again.
async fn stop_all(
    api: &Api,
    caller: &Caller,
    request: &StopManyRequest,
    stopping: Vec<Base>,
    done: &mut StopsDone,
) -> Result<(), Fail> {
    let stops = stopping.into_iter().map(|base| async move {
        let command = Command::Stop { reason: request.reason.clone(), mode: mode(request.mode) };
        let actor = caller.principal().clone();
        let stopped = api.engine().execute(&base.task, command, actor, Vec::new()).await;
        (base.task, stopped)
    });
    for (task, stopped) in join_all(stops).await {
        match stopped {
            Ok(stopped) if stopped.acted => done.stopped += 1,
            Ok(_) => done.already += 1,
            Err(EngineError::Refused(refusal)) => {
                let why = format!("failed to {refusal}");
                done.refused.push(StopRefused { id: task.to_string(), why });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
