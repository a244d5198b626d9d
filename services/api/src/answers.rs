//! Answers to holds.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use standfast_domain::decide::Command;
use standfast_domain::hold::Answer;
use standfast_domain::ids::StepId;
use standfast_domain::json::{DEPTH_MAX, check_value};
use standfast_domain::plan::Uses;
use standfast_domain::record::{Header, Key, Payload, Record, Status, StepState as Stored};
use standfast_domain::refusal::Refusal;
use standfast_domain::rights::Right;
use standfast_domain::view::View;
use standfast_engine::EngineError;
use standfast_protocol::holds::{AnswerRequest, Answered};
use standfast_protocol::limits::REQUEST_BYTES_MAX;
use standfast_protocol::paths;
use standfast_protocol::problem::ProblemKind;
use standfast_protocol::steps::StepState;

use crate::auth::{Caller, On, needs};
use crate::extract::{self, Place, bad_parameter};
use crate::present::text::names;
use crate::problems::Fail;
use crate::reads::{self, Base};
use crate::tasks::check_note;
use crate::{Api, present};

/// Answers the hold of the task itself, or the only hold that is open in it.
#[utoipa::path(post, path = paths::TASK_ANSWERS, tag = "answers", request_body = AnswerRequest,
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = Answered)))]
pub(crate) async fn to_task(
    State(api): State<Api>,
    On { base, caller, .. }: On<needs::View>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Answered>, Fail> {
    let step = match base.gate.holds.is_empty() {
        true => only_hold(&api, &base).await,
        false => Ok(None),
    };
    demand_answer(&api, &caller, &base, step.as_ref().ok().and_then(Option::as_ref)).await?;
    let request = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    let step = step?;
    answer(&api, &caller, &base, step, request).await
}

/// Answers the hold of a step.
#[utoipa::path(post, path = paths::STEP_ANSWERS, tag = "answers", request_body = AnswerRequest,
    params(
        ("id" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
    ),
    responses((status = 200, body = Answered)))]
pub(crate) async fn to_step(
    State(api): State<Api>,
    On { base, caller, .. }: On<needs::View>,
    place: Place,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Answered>, Fail> {
    let step = place.step()?;
    demand_answer(&api, &caller, &base, Some(&step)).await?;
    let request = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    answer(&api, &caller, &base, Some(step), request).await
}

/// Demands the right that answering what holds the step, or the task itself, needs. Without a
/// hold it is the one that most answers need.
async fn demand_answer(
    api: &Api,
    caller: &Caller,
    base: &Base,
    step: Option<&StepId>,
) -> Result<(), Fail> {
    let reason = match step {
        None => base.gate.holds.first().map(|hold| hold.reason),
        Some(step) => {
            let key = Key::Step(step.clone());
            match reads::of_task(api.engine(), &base.task, vec![key.clone()]).await?.remove(&key) {
                Some(Record::Step(Stored { status: Status::Held { hold }, .. })) => {
                    Some(hold.reason)
                }
                _ => None,
            }
        }
    };
    caller.demand_on(reason.map_or(Right::Answer, Right::to_answer), base)
}

/// Finds the step that must be meant: the only one that is held. Several must be told apart.
async fn only_hold(api: &Api, base: &Base) -> Result<Option<StepId>, Fail> {
    let survey = reads::survey_one(api.engine(), base.clone()).await?;
    let phase = survey.base.header.phase;
    let held: Vec<&StepId> = survey
        .live
        .iter()
        .filter(|live| present::step::open_hold(&phase, live.part, &live.state).is_some())
        .map(|live| &live.step)
        .collect();
    match held[..] {
        [] => Ok(None),
        [step] => Ok(Some(step.clone())),
        _ => {
            let list: Vec<&str> = held.iter().map(|step| step.as_str()).collect();
            let detail = format!("several steps are held, name one as TASK/STEP: {}", names(&list));
            Err(Fail::new(ProblemKind::NotApplicable, detail))
        }
    }
}

async fn answer(
    api: &Api,
    caller: &Caller,
    base: &Base,
    step: Option<StepId>,
    request: AnswerRequest,
) -> Result<Json<Answered>, Fail> {
    check_note(request.note.as_deref(), "/note")?;
    let Some(answer) = Answer::parse(&request.answer) else {
        let words: Vec<&str> = Answer::ALL.iter().map(|answer| answer.as_str()).collect();
        let message = format!("expected one of the hold's answers, of {}", names(&words));
        return Err(bad_parameter("/answer", &message));
    };
    if request.receipt.is_some() && answer != Answer::Happened {
        return Err(bad_parameter("/receipt", "only `happened` takes a receipt"));
    }
    if request.effect.is_some() && !matches!(answer, Answer::Happened | Answer::NotHappened) {
        let message = "only `happened` and `not_happened` speak of one effect";
        return Err(bad_parameter("/effect", message));
    }
    let fault = request.receipt.as_ref().and_then(|receipt| {
        check_value(receipt, DEPTH_MAX).first().map(|fault| fault.message.clone())
    });
    if let Some(message) = fault {
        return Err(bad_parameter("/receipt", &message));
    }
    if let (Some(receipt), Some(step)) = (&request.receipt, &step) {
        let definition = reads::definition(api.engine(), &base.task, step).await?;
        if let Uses::Handler(handler) = &definition.plan.uses {
            let fits = api.handlers().check_receipt(handler.as_str(), receipt);
            fits.map_err(|expected| bad_parameter("/receipt", &expected))?;
        }
    }
    let command = Command::Answer {
        step: step.clone(),
        answer,
        note: request.note,
        effect: request.effect,
        receipt: request.receipt.map(Payload::Inline),
    };
    let mut wants = vec![Key::Header];
    wants.extend(step.iter().flat_map(|step| [Key::Step(step.clone()), Key::Claim(step.clone())]));
    let actor = caller.principal().clone();
    let done = match api.engine().execute(&base.task, command, actor, wants).await {
        Err(EngineError::Refused(Refusal::NoStep(step))) => {
            let detail = format!("failed to find step `{step}` in task {}", base.task);
            return Err(Fail::not_found(detail));
        }
        other => other?,
    };
    let Ok(header) = done.records.header() else {
        return Err(Fail::internal(&"an answer gave no header"));
    };
    let step_state = step.as_ref().and_then(|step| step_state(base, header, step, &done.records));
    Ok(Json(Answered {
        task: base.task.to_string(),
        step: step.as_ref().map(StepId::to_string),
        answer: answer.as_str().to_owned(),
        state: present::task::state(header.state),
        step_state,
    }))
}

/// Says where a step stands after a command that gave its records.
pub(crate) fn step_state(
    base: &Base,
    header: &Header,
    step: &StepId,
    records: &View,
) -> Option<StepState> {
    let claimed = matches!(records.claim(step), Ok(Some(_)));
    let Ok(Some(Record::Step(state))) = records.get(&Key::Step(step.clone())) else {
        return None;
    };
    Some(present::step::state(&header.phase, base.meta.part(step), state, claimed))
}
