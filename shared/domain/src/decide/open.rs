//! Lets steps go: opens those without needs, tells dependents, makes ready what has no open
//! need left.

use serde_json::Value;

use super::undo::UNDO_ALLOWANCE;
use super::{Decision, Given, digest, effect};
use crate::event::Change;
use crate::hold::{Hold, HoldReason};
use crate::ids::StepId;
use crate::outcome::FailureClass;
use crate::record::{Definition, Key, Phase, Record, SkipReason, Status, StepState};
use crate::refusal::Halt;
use crate::time::Time;
use crate::view::View;

/// What evaluating a step's `if` and templates gave; the evaluation is not done here.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// The step runs; `with` is `None` if it holds no template.
    Run {
        /// The resolved input.
        with: Option<Value>,
        /// The resolved input of the effect's check.
        check: Option<Value>,
    },
    /// It is a timer step.
    Timer {
        /// When it fires.
        due: Time,
    },
    /// Its `if` is false.
    Skip,
    /// An expression could not be evaluated.
    Fault {
        /// Where and why.
        message: String,
    },
}

pub(super) fn roots(view: &View) -> Result<Decision, Halt> {
    Ok(match view.header()?.roots_from {
        Some(chunk) if view.header()?.phase == Phase::Main => Change::RootsOpened { chunk }.into(),
        Some(_) | None => Decision::nothing(),
    })
}

pub(super) fn tell(view: &View, step: &StepId) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Definition(step.clone()), Key::Step(step.clone())])?;
    let wanted = is_wanted(&view.header()?.phase, view.definition(step)?);
    Ok(match view.step(step)?.telling.filter(|_| wanted) {
        Some(chunk) => Change::DependentsTold { step: step.clone(), chunk }.into(),
        None => Decision::nothing(),
    })
}

/// True if a step may move in this phase of its task.
pub(super) fn is_wanted(phase: &Phase, definition: &Definition) -> bool {
    phase.wants(definition.part())
}

/// True if a step waits for nothing but its release, and the task still wants it.
fn is_releasable(view: &View, definition: &Definition, state: &StepState) -> Result<bool, Halt> {
    let wanted = is_wanted(&view.header()?.phase, definition);
    Ok(wanted && state.status == Status::Pending && state.remaining == 0)
}

/// Says whether a step must be resolved before it can be released, and gives its definition.
pub fn to_resolve<'v>(view: &'v View, step: &StepId) -> Result<Option<&'v Definition>, Halt> {
    view.need([Key::Header, Key::Definition(step.clone()), Key::Step(step.clone())])?;
    let definition = view.definition(step)?;
    let state = view.step(step)?;
    let runs = is_releasable(view, definition, &state)? && !state.need_skipped;
    Ok(runs.then_some(definition))
}

pub(super) fn release(
    view: &View,
    step: &StepId,
    resolution: &Resolution,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate, Key::Definition(step.clone()), Key::Step(step.clone())])?;
    let (definition, state) = (view.definition(step)?, view.step(step)?);
    if !is_releasable(view, definition, &state)? {
        return Ok(Decision::nothing());
    }
    let step = step.clone();
    if state.need_skipped {
        return Ok(Change::StepSkipped { step, reason: SkipReason::Need }.into());
    }
    match resolution {
        Resolution::Skip => Ok(Change::StepSkipped { step, reason: SkipReason::Condition }.into()),
        Resolution::Timer { due } => {
            let message = format!("waits until {}", due.rfc3339());
            let for_a_span = definition.plan.with.get("for").is_some();
            let gate = view.gate()?;
            let hold = Hold {
                due: Some(*due),
                paused_ms: for_a_span.then(|| gate.stood_still_ms(given.now)),
                ..Hold::new(HoldReason::Timer, message, given.now)
            };
            Ok(Change::StepHeld { step, hold }.into())
        }
        Resolution::Fault { message } => {
            let class = FailureClass::Permanent;
            super::end_attempt::fail_for_good(view, definition, &state, class, message, given)
        }
        Resolution::Run { with, check } => {
            let sha256 = with.as_ref().map(digest);
            let sent = with.as_ref().unwrap_or(&definition.plan.with);
            let mut changes =
                vec![ready(view, definition, &state, given.now, Start::Resolved(sha256))?];
            if let Some(hold) =
                effect::changed_at_release(view, definition, &state, sent, given.now)?
            {
                changes.push(Change::StepHeld { step: step.clone(), hold });
            }
            let round = state.round;
            let with = with.iter().map(|with| (Key::Resolution(step.clone(), round), with));
            let check = check.iter().map(|check| (Key::Check(step.clone(), round), check));
            let records = with.chain(check);
            let payloads = records.map(|(key, value)| (key, Record::Value(value.clone())));
            Ok(Decision { changes, payloads: payloads.collect() })
        }
    }
}

/// Why a step becomes ready.
pub(super) enum Start {
    /// Its templates were resolved, if it has any: the digest of what they gave.
    Resolved(Option<String>),
    /// Its next attempt follows.
    Again,
    /// A person's answer runs it anew.
    Afresh,
}

/// Makes a step ready for its next attempt. Its total time counts from the first time that it
/// was ready, or from a person's answer; that of an undo is also bound by what all may take.
pub(super) fn ready(
    view: &View,
    definition: &Definition,
    state: &StepState,
    now: Time,
    start: Start,
) -> Result<Change, Halt> {
    let afresh = matches!(start, Start::Afresh);
    let (mut give_up_at, mut paused_ms) = (state.give_up_at, state.paused_ms);
    if afresh || state.first_ready_at.is_none() {
        paused_ms = view.gate()?.stood_still_ms(now);
        give_up_at = definition.plan.timeout.total.map(|span| now.after(span));
        if let Phase::Undoing { until } = view.header()?.phase {
            let until = if afresh { now.after(UNDO_ALLOWANCE) } else { until };
            give_up_at = Some(give_up_at.map_or(until, |at| at.min(until)));
        }
    }
    Ok(Change::StepReady {
        step: definition.plan.id.clone(),
        attempt: state.attempt,
        round: state.round,
        queue: definition.plan.queue.clone(),
        with_sha256: match start {
            Start::Resolved(sha256) => sha256,
            Start::Again | Start::Afresh => None,
        },
        give_up_at,
        paused_ms,
        start_by: definition.plan.timeout.queue.map(|span| now.after(span)),
        afresh,
    })
}
