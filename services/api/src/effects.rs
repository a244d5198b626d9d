//! What workers outside change in the world: intents, and what became of them.
//!
//! An intent is a call on a claim and has its fence. A receipt is not: it must be heard after
//! the claim is over, in every phase. What stands in for the fence is who recorded the intent,
//! which its record keeps: worker, attempt and the principal it claimed as. So a worker that
//! knows another one's numbers can neither say that its payment was made nor that it was not.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use standfast_domain::decide::Speaker;
use standfast_domain::ids::{TaskId, WorkerId};
use standfast_domain::record::{EffectClass as Class, Key, NotLanded as How, Record};
use standfast_domain::refusal::Refusal;
use standfast_domain::rights::Right;
use standfast_domain::time::Span;
use standfast_engine::effects::{DeclaredEffect as Declared, EffectAsk, Intended, Told};
use standfast_protocol::claims::Settled;
use standfast_protocol::effects::{
    DeclaredEffect, EffectClass, EffectEnd, IntentAnswer, IntentRequest, NotLanded,
    NotLandedRequest, ReceiptRequest,
};
use standfast_protocol::limits::{
    EFFECT_BYTES_MAX, REQUEST_BYTES_MAX, SEND_TIMEOUT_MS_DEFAULT, SEND_TIMEOUT_MS_MAX,
    SEND_WINDOW_MS_DEFAULT, SEND_WINDOW_MS_MAX, WORDS_BYTES_MAX,
};
use standfast_protocol::paths;

use crate::auth::{By, Caller, needs};
use crate::claims::{fence, known, settled};
use crate::extract::{self, Place, bad_parameter};
use crate::problems::Fail;
use crate::{Api, reads};

/// Records that an attempt is about to change something outside, and says what to do about it.
/// Asking again after a lost answer is answered alike.
#[utoipa::path(post, path = paths::EFFECT, tag = "claims", request_body = IntentRequest,
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        ("name" = String, Path, description = "the effect, a name within its step"),
    ),
    responses((status = 200, body = IntentAnswer)))]
pub(crate) async fn intend(
    State(api): State<Api>,
    caller: By<needs::Work>,
    place: Place,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<IntentAnswer>, Fail> {
    let request: IntentRequest = extract::json(&headers, body, EFFECT_BYTES_MAX).await?;
    let holder = (request.worker.as_str(), request.attempt, request.epoch);
    let (task, at) = fence(&api, &caller, &place, holder).await?;
    let ask = asked(place.name(), request)?;
    if caller.identity.ceiling.effects.as_ref().is_some_and(|set| !set.contains(&ask.class)) {
        let detail = format!("your token does not allow effects that are `{}`", ask.class);
        return Err(Fail::forbidden(Right::Work, detail).about(&task));
    }
    let actor = caller.principal().clone();
    let intended = known(&place, api.claims().intend(&task, at, ask, actor).await)?;
    Ok(Json(match intended {
        Intended::Send { key } => IntentAnswer::Send { key },
        Intended::Kept { receipt } => IntentAnswer::Kept { receipt },
        Intended::Check { key } => IntentAnswer::Check { key },
        Intended::Ended => IntentAnswer::Ended,
    }))
}

/// Tells that an effect has happened. Accepted once, under any epoch and in any state, also
/// after the claim is over; told again it is answered again.
#[utoipa::path(post, path = paths::EFFECT_RECEIPT, tag = "claims", request_body = ReceiptRequest,
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        ("name" = String, Path, description = "the effect, a name within its step"),
    ),
    responses((status = 200, body = Settled)))]
pub(crate) async fn receipt(
    State(api): State<Api>,
    caller: By<needs::Work>,
    place: Place,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Settled>, Fail> {
    let request: ReceiptRequest = extract::json(&headers, body, EFFECT_BYTES_MAX).await?;
    extract::check_depth(&request.receipt, "/receipt")?;
    let holder = (request.worker.as_str(), request.attempt, request.epoch);
    let (task, by) = speaker(&api, &caller, &place, holder).await?;
    let step = by.step.clone();
    let actor = caller.principal().clone();
    known(&place, api.claims().confirm_effect(&task, by, request.receipt, actor).await)?;
    settled(&api, &task, &step).await
}

/// Tells that an effect has not happened, so that it may be sent again.
#[utoipa::path(post, path = paths::EFFECT_NOT_LANDED, tag = "claims",
    request_body = NotLandedRequest,
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        ("name" = String, Path, description = "the effect, a name within its step"),
    ),
    responses((status = 200, body = Settled)))]
pub(crate) async fn not_landed(
    State(api): State<Api>,
    caller: By<needs::Work>,
    place: Place,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Settled>, Fail> {
    let request: NotLandedRequest = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    let holder = (request.worker.as_str(), request.attempt, request.epoch);
    let (task, by) = speaker(&api, &caller, &place, holder).await?;
    let (step, how) = (by.step.clone(), how(request.how));
    let actor = caller.principal().clone();
    known(&place, api.claims().retract_effect(&task, by, how, actor).await)?;
    settled(&api, &task, &step).await
}

/// Checks what an intent asks with.
fn asked(name: &str, request: IntentRequest) -> Result<EffectAsk, Fail> {
    if let Some(exact) = &request.request {
        extract::check_depth(exact, "/request")?;
    }
    let words = [(&request.target, "/target"), (&request.says, "/says")];
    for (text, pointer) in words {
        if text.as_ref().is_some_and(|text| text.len() > WORDS_BYTES_MAX) {
            let message = format!("expected at most {WORDS_BYTES_MAX} bytes");
            return Err(bad_parameter(pointer, message));
        }
    }
    let window = request.window_ms.unwrap_or(SEND_WINDOW_MS_DEFAULT);
    let request_timeout = request.request_timeout_ms.unwrap_or(SEND_TIMEOUT_MS_DEFAULT);
    for (ms, ms_max, pointer) in [
        (window, SEND_WINDOW_MS_MAX, "/window_ms"),
        (request_timeout, SEND_TIMEOUT_MS_MAX, "/request_timeout_ms"),
    ] {
        if !(1..=ms_max).contains(&ms) {
            return Err(bad_parameter(pointer, format!("expected 1 to {ms_max}")));
        }
    }
    Ok(EffectAsk {
        name: name.to_owned(),
        class: match request.class {
            EffectClass::Idempotent => Class::Idempotent,
            EffectClass::Checkable => Class::Checkable,
            EffectClass::Irreversible => Class::Irreversible,
        },
        request: request.request,
        window: Span::from_millis(window),
        request_timeout: Span::from_millis(request_timeout),
        target: request.target,
        says: request.says,
    })
}

/// Lets a caller speak of an effect if its own attempt recorded the intent, or holds the step
/// now and has checked. An attempt belongs to one principal for ever, so that what is read here
/// cannot be outrun by a change before the command.
async fn speaker(
    api: &Api,
    caller: &Caller,
    place: &Place,
    (worker, attempt, epoch): (&str, u32, u32),
) -> Result<(TaskId, Speaker), Fail> {
    let (task, step) = (place.task()?, place.step()?);
    let fenced = || Refusal::Fenced { step: step.clone(), attempt };
    let worker = WorkerId::new(worker).map_err(|_| fenced())?;
    let keys = vec![Key::Claim(step.clone()), Key::Effects(step.clone())];
    let mut found = reads::of_task(api.engine(), &task, keys).await?;
    let holds = match found.remove(&Key::Claim(step.clone())) {
        Some(Record::Claim(claim)) => {
            claim.attempt == attempt
                && claim.epoch == epoch
                && claim.worker == worker
                && claim.principal == *caller.principal()
        }
        _ => false,
    };
    let name = place.name().to_owned();
    let own = match found.remove(&Key::Effects(step.clone())) {
        Some(Record::Effects(effects)) => effects.get(&name).is_some_and(|effect| {
            effect.attempt == attempt
                && effect.worker == worker
                && effect.principal.as_ref() == Some(caller.principal())
        }),
        _ => false,
    };
    if !holds && !own && !caller.is_admin() {
        return Err(fenced().into());
    }
    Ok((task, Speaker { step, name, attempt, epoch, worker }))
}

fn how(how: NotLanded) -> How {
    match how {
        NotLanded::NotSent => How::NotSent,
        NotLanded::Refused => How::Refused,
        NotLanded::Checked => How::Checked,
    }
}

/// Reads what a failure tells of the effect that its step declares.
pub(crate) fn told(end: Option<EffectEnd>) -> Result<Told, Fail> {
    Ok(match end {
        None => Told::Unknown,
        Some(EffectEnd::NotLanded(not_landed)) => Told::NotLanded(how(not_landed)),
        Some(EffectEnd::Landed(receipt)) => {
            extract::check_depth(&receipt, "/outcome/effect/landed")?;
            Told::Landed(receipt)
        }
    })
}

/// Shows the effect that a step declares. Its check is left out: only shipped handlers run it.
pub(crate) fn declared(effect: Declared) -> Option<DeclaredEffect> {
    let class = match effect.class {
        Class::None => return None,
        Class::Idempotent => EffectClass::Idempotent,
        Class::Checkable => EffectClass::Checkable,
        Class::Irreversible => EffectClass::Irreversible,
    };
    let Declared { key, target, says, kept, .. } = effect;
    Some(DeclaredEffect { class, key, target, says, kept })
}
