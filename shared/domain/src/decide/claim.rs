//! Gives an attempt to a worker, and keeps the claim alive. Neither is logged, so that many
//! steps of one task can start at once; both guard what they rely on.

use std::collections::BTreeSet;

use super::{Decision, Given, open};
use crate::event::Change;
use crate::ids::{HandlerName, StepId, WorkerId};
use crate::plan::Uses;
use crate::record::{Claim, Key, Part, Phase, Status};
use crate::refusal::{Halt, Refusal};
use crate::time::Span;
use crate::view::{Attempt, View};

pub(super) struct Ask<'a> {
    pub step: &'a StepId,
    pub attempt: Option<u32>,
    pub worker: &'a WorkerId,
    pub length: Span,
    pub handlers: Option<&'a BTreeSet<HandlerName>>,
}

pub(super) fn claim(view: &View, ask: &Ask<'_>, given: &Given) -> Result<Decision, Halt> {
    let step = ask.step;
    view.need([Key::Header, Key::Gate])?;
    view.need([Key::Step(step.clone()), Key::Claim(step.clone()), Key::Definition(step.clone())])?;
    let refuse = |why| Err(Refusal::NotClaimable { step: step.clone(), why }.into());
    let header = view.header()?;
    let definition = view.definition(step)?;
    let (gate, state) = (view.gate()?, view.step(step)?);
    match header.phase {
        Phase::Ended { .. } => return refuse("belongs to a task that has ended"),
        Phase::Closing { .. } | Phase::Undoing { .. } | Phase::Finally { .. } | Phase::Main => {}
    }
    if !open::is_wanted(&header.phase, definition)
        || (gate.closed && definition.part() == Part::Main)
    {
        return refuse("belongs to a task that is ending");
    }
    if !gate.holds.is_empty() {
        return refuse("belongs to a task that is held");
    }
    let Status::Ready { .. } = state.status else {
        return refuse("is not ready");
    };
    if let (Uses::Handler(handler), Some(known)) = (&definition.plan.uses, ask.handlers)
        && !known.contains(handler)
    {
        return refuse("uses a handler that this worker does not have");
    }
    if ask.attempt.is_some_and(|attempt| attempt != state.attempt) {
        return refuse("has moved on since the message was sent");
    }
    if view.claim(step)?.is_some() {
        // Not even by the same worker: two messages for one attempt would start it twice.
        return refuse("is claimed by a worker");
    }
    let give_up_at = state.gives_up_at(&gate, given.now);
    if give_up_at.is_some_and(|at| at <= given.now) {
        return refuse("has used up its total time");
    }
    let ends_at = given.now.after(definition.plan.timeout.attempt);
    let ends_at = give_up_at.map_or(ends_at, |give_up| ends_at.min(give_up));
    let claim = Claim {
        worker: ask.worker.clone(),
        principal: given.actor.clone(),
        attempt: state.attempt,
        epoch: gate.epoch,
        started_at: given.now,
        expires_at: given.now.after(ask.length),
        ends_at,
        length: ask.length,
        details: None,
        heard_at: None,
        heartbeat: definition.plan.timeout.heartbeat,
    };
    let claimed = Change::StepClaimed { step: step.clone(), claim };
    if header.started {
        return Ok(claimed.into());
    }
    let started = Change::TaskStarted { step: step.clone(), worker: ask.worker.clone() };
    Ok(vec![started, claimed].into())
}

pub(super) fn renew(
    view: &View,
    at: &Attempt,
    (details, alive): (Option<String>, bool),
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Gate, Key::Claim(at.step.clone())])?;
    let fenced = || Refusal::Fenced { step: at.step.clone(), attempt: at.attempt };
    let claim = view.claim(&at.step)?.ok_or_else(fenced)?;
    let held = claim.worker == at.worker
        && claim.attempt == at.attempt
        && claim.epoch == at.epoch
        && view.gate()?.epoch == at.epoch;
    if !held {
        return Err(fenced().into());
    }
    let heard_at = if alive { given.now } else { claim.heard_at() };
    let most = Claim { heard_at: Some(heard_at), ..claim.clone() }.dies_at();
    // Who watches sees a renewal by its new expiry, also when the clock stood still meanwhile or
    // that of another process is ahead of this one.
    let later = claim.expires_at.after(Span(1));
    let expires_at = given.now.after(claim.length).max(later).min(most);
    Ok(Change::ClaimRenewed { step: at.step.clone(), expires_at, details, heard_at }.into())
}
