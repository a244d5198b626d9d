//! Lets steps go: opens those without needs, tells dependents, makes ready what has no open
//! need left.

use serde_json::Value;

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
    view.need([Key::Header, Key::Definition(step.clone()), Key::Step(step.clone())])?;
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
            let hold = Hold { due: Some(*due), ..Hold::new(HoldReason::Timer, message, given.now) };
            Ok(Change::StepHeld { step, hold }.into())
        }
        Resolution::Fault { message } => {
            let class = FailureClass::Permanent;
            super::end_attempt::fail_for_good(view, definition, &state, class, message, given)
        }
        Resolution::Run { with, check } => {
            let sha256 = with.as_ref().map(digest);
            let sends = sha256.clone().unwrap_or_else(|| digest(&definition.plan.with));
            let mut changes = vec![ready(definition, &state, given.now, sha256, false)];
            if let Some(hold) =
                effect::changed_at_release(view, definition, &state, &sends, given.now)?
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

/// Makes a step ready for its next attempt.
pub(super) fn ready(
    definition: &Definition,
    state: &StepState,
    now: Time,
    with_sha256: Option<String>,
    afresh: bool,
) -> Change {
    let first = state.first_ready_at.filter(|_| !afresh).unwrap_or(now);
    Change::StepReady {
        step: definition.plan.id.clone(),
        attempt: state.attempt,
        round: state.round,
        queue: definition.plan.queue.clone(),
        with_sha256,
        give_up_at: definition.plan.timeout.total.map(|span| first.after(span)),
        start_by: definition.plan.timeout.queue.map(|span| now.after(span)),
        afresh,
    }
}
