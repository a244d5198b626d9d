//! What follows when an attempt ends without success: handed back, expired, failed.

use super::open::Start;
use super::{Decision, Given, effect, open, round, undo};
use crate::event::Change;
use crate::hold::{Hold, HoldReason};
use crate::ids::StepId;
use crate::outcome::{Failure, FailureClass, MESSAGE_BYTES_MAX, truncate};
use crate::plan::OnFailure;
use crate::record::{Claim, Definition, Gate, Key, Part, Phase, StepState};
use crate::refusal::{Halt, Refusal};
use crate::retry;
use crate::time::{Span, Time};
use crate::view::{Attempt, View};

/// Takes an attempt back; it is not charged and the step is ready again at once, unless nobody
/// knows what became of what it was sending.
pub(super) fn hand_back(
    view: &View,
    at: &Attempt,
    why: &str,
    given: &Given,
) -> Result<Decision, Halt> {
    view.attempt(at)?;
    let Some(claim) = view.claim(&at.step)? else { return Ok(Decision::nothing()) };
    let failure = Failure::new(FailureClass::Cancelled, format!("handed back: {why}"));
    uncharged(view, &at.step, claim, &failure, given).map(Decision::from)
}

/// Ends an attempt that is not charged. In a task that goes on the step is ready again at once,
/// unless what the attempt was sending may still be on its way, or only a person can know, or the
/// failure says not before when.
pub(super) fn uncharged(
    view: &View,
    step: &StepId,
    claim: &Claim,
    failure: &Failure,
    given: &Given,
) -> Result<Vec<Change>, Halt> {
    let after = effect::aftermath(view, step, claim, failure, given)?;
    let mut changes = after.changes;
    changes.push(attempt_failed(step, claim, failure, 0, false));
    if is_closing(&view.header()?.phase) {
        return Ok(changes);
    }
    let state = view.step(step)?;
    let next = StepState { attempt: state.attempt + 1, ..state.into_owned() };
    let (definition, step) = (view.definition(step)?, step.clone());
    let asked = failure.retry_after.map(|span| given.now.after(span));
    let not_before = after.not_before.max(asked).filter(|due| *due > given.now);
    changes.push(match (after.hold, not_before) {
        (Some(hold), _) => Change::StepHeld { step, hold },
        (None, Some(due)) => Change::RetryScheduled { step, due },
        (None, None) => open::ready(view, definition, &next, given.now, Start::Again)?,
    });
    Ok(changes)
}

/// Marks the attempts that end by these changes as taken from their workers, which may still
/// tell what they cost.
pub(super) fn taken(view: &View, mut changes: Vec<Change>) -> Result<Vec<Change>, Halt> {
    for change in &mut changes {
        if let Change::AttemptFailed { step, taken, claimed_by, .. } = change {
            *taken = true;
            *claimed_by = view.claim(step)?.map(|claim| claim.principal.clone());
        }
    }
    Ok(changes)
}

/// Takes an attempt from a silent worker.
pub(super) fn expire(
    view: &View,
    step: &StepId,
    attempt: u32,
    proven: bool,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate, Key::Claim(step.clone())])?;
    view.need([Key::Step(step.clone()), Key::Definition(step.clone())])?;
    let Some(claim) = view.claim(step)?.filter(|claim| claim.attempt == attempt) else {
        return Ok(Decision::nothing());
    };
    if !proven && claim.expires_at > given.now {
        return Ok(Decision::nothing()); // it was renewed
    }
    let failure = if proven { silence(claim) } else { expiry(claim) };
    let Decision { changes, payloads } = after_failure(view, step, claim, &failure, 0, given)?;
    Ok(Decision { changes: taken(view, changes)?, payloads })
}

/// Says how an attempt failed whose claim has expired: its worker fell silent, or went on with
/// what it should have ended.
fn expiry(claim: &Claim) -> Failure {
    if !claim.is_cut() {
        return silence(claim);
    }
    let silent = claim.silent_at().is_some_and(|silent| silent <= claim.ends_at);
    let message = match claim.heartbeat.filter(|_| silent) {
        Some(most) => format!("its handler gave no sign of life for {most}"),
        None => "it was not done at the end of its time".to_owned(),
    };
    let message = format!("{message}, and worker {} did not end it", claim.worker);
    Failure::new(FailureClass::Timeout, message)
}

fn silence(claim: &Claim) -> Failure {
    let message = format!(
        "worker {} fell silent; it was last heard {}",
        claim.worker,
        crate::time::Time(claim.expires_at.0 - claim.length.0.cast_signed()).rfc3339()
    );
    Failure::new(FailureClass::Lost, message)
}

/// True once attempts of the plan are to end, and nothing that they say counts but what they
/// have done outside. A stop that drains lets them finish.
pub(super) fn are_ended(view: &View) -> Result<bool, Halt> {
    Ok(is_closing(&view.header()?.phase) && view.gate()?.ends_attempts())
}

/// True once nothing of the plan may start any more.
pub(super) fn is_closing(phase: &Phase) -> bool {
    match phase {
        Phase::Closing { .. } | Phase::Ended { .. } => true,
        Phase::Main | Phase::Undoing { .. } | Phase::Finally { .. } => false,
    }
}

pub(super) fn attempt_failed(
    step: &StepId,
    claim: &Claim,
    failure: &Failure,
    cost_usd_micros: u64,
    charged: bool,
) -> Change {
    Change::AttemptFailed {
        step: step.clone(),
        attempt: claim.attempt,
        worker: claim.worker.clone(),
        started_at: claim.started_at,
        class: failure.class,
        message: truncate(&failure.message, MESSAGE_BYTES_MAX),
        cost_usd_micros,
        charged,
        details: claim.details.clone(),
        taken: false,
        claimed_by: None,
    }
}

/// Decides what follows a failed attempt: nothing in an ending task, a retry, or the end.
pub(super) fn after_failure(
    view: &View,
    step: &StepId,
    claim: &Claim,
    failure: &Failure,
    cost_usd_micros: u64,
    given: &Given,
) -> Result<Decision, Halt> {
    let header = view.header()?;
    let (definition, state) = (view.definition(step)?, view.step(step)?);
    let ending = is_closing(&header.phase);
    let mut failed = attempt_failed(step, claim, failure, cost_usd_micros, !ending);
    let aftermath = effect::aftermath(view, step, claim, failure, given)?;
    let (mut changes, mut payloads) = (aftermath.changes, aftermath.payloads);
    if ending {
        if let Change::AttemptFailed { class, .. } = &mut failed {
            *class = FailureClass::Cancelled;
        }
        changes.push(failed);
        return Ok(Decision { changes, payloads });
    }
    changes.push(failed);
    let step = step.clone();
    if let Some(hold) = aftermath.hold {
        changes.push(Change::StepHeld { step, hold });
        return Ok(Decision { changes, payloads });
    }
    let after =
        StepState { attempt: state.attempt + 1, charged: state.charged + 1, ..state.into_owned() };
    let counted = awake(&after, &view.gate()?, given.now);
    if let Some(at) = retry::next(view.task(), definition, &counted, failure, given.now) {
        let at = aftermath.not_before.map_or(at, |not_before| at.max(not_before));
        changes.push(match at <= given.now {
            true => open::ready(view, definition, &after, given.now, Start::Again)?,
            false => Change::RetryScheduled { step, due: at },
        });
        return Ok(Decision { changes, payloads });
    }
    if let Some(hold) = aftermath.in_doubt {
        changes.push(Change::StepHeld { step, hold }); // no attempt is left that could ask
        return Ok(Decision { changes, payloads });
    }
    let rest = policy(view, definition, &after, failure, Told::ByAttempt, given)?;
    changes.extend(rest.changes);
    payloads.extend(rest.payloads);
    Ok(Decision { changes, payloads })
}

/// Gives a step's state with its times moved by the pauses since, as they count for it.
fn awake(state: &StepState, gate: &Gate, now: Time) -> StepState {
    let still = Span(gate.stood_still_ms(now).saturating_sub(state.paused_ms));
    StepState {
        first_ready_at: state.first_ready_at.map(|at| at.after(still)),
        give_up_at: state.gives_up_at(gate, now),
        ..state.clone()
    }
}

/// Fails a step whose time is over without an attempt of its own; while nobody knows what became
/// of what an earlier one has sent, and none is left that could ask, a person is needed first.
pub(super) fn time_over(
    view: &View,
    definition: &Definition,
    state: &StepState,
    message: &str,
    given: &Given,
) -> Result<Decision, Halt> {
    let step = &definition.plan.id;
    if let Some(hold) = effect::in_doubt(view, step, state, given.now)? {
        return Ok(Change::StepHeld { step: step.clone(), hold }.into());
    }
    fail_for_good(view, definition, state, FailureClass::Timeout, message, given)
}

/// Fails a step for good without an attempt of its own.
pub(super) fn fail_for_good(
    view: &View,
    definition: &Definition,
    state: &StepState,
    class: FailureClass,
    message: &str,
    given: &Given,
) -> Result<Decision, Halt> {
    policy(view, definition, state, &Failure::new(class, message), Told::Alone, given)
}

/// Whether an attempt has told of a step's final failure, just before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    ByAttempt,
    Alone,
}

/// What a step's final failure means for its task, by `on_failure`.
fn policy(
    view: &View,
    definition: &Definition,
    state: &StepState,
    failure: &Failure,
    told: Told,
    given: &Given,
) -> Result<Decision, Halt> {
    let step = definition.plan.id.clone();
    let message = truncate(&failure.message, MESSAGE_BYTES_MAX);
    let failed = Change::StepFailed {
        step: step.clone(),
        class: failure.class,
        message: message.clone(),
        unattempted: told == Told::Alone,
    };
    match definition.part() {
        Part::Main => {}
        Part::Undo => return Ok(undo::failed(view, definition, &message, given).into()),
        Part::Finally => return Ok(failed.into()),
    }
    let reason = match failure.class {
        FailureClass::Lost => HoldReason::WorkerDied,
        FailureClass::Retryable
        | FailureClass::Permanent
        | FailureClass::RateLimited
        | FailureClass::Timeout
        | FailureClass::Cancelled => HoldReason::Failures,
    };
    let hold = Hold::new(reason, message.clone(), given.now);
    let held = Change::StepHeld { step: step.clone(), hold };
    match &definition.plan.on_failure {
        Some(OnFailure::Continue) => Ok(failed.into()),
        Some(OnFailure::Fail) => {
            let reason = truncate(&format!("step `{step}` failed: {message}"), MESSAGE_BYTES_MAX);
            Ok(vec![failed, Change::TaskFailing { reason }].into())
        }
        Some(OnFailure::Pause) => {
            let message = format!("step `{step}` failed and its plan pauses the task");
            let by = Some(step);
            let pause = Hold { by, ..Hold::new(HoldReason::Paused, message, given.now) };
            Ok(vec![held, Change::TaskHeld { hold: pause }].into())
        }
        Some(OnFailure::Redo { step: from, max }) if state.redone < *max => {
            round::open(view, definition, from, failure)
        }
        Some(OnFailure::Redo { .. }) | None => Ok(held.into()),
    }
}

/// Refuses what a worker says of an attempt that is not its own any more.
pub(super) fn fenced(at: &Attempt) -> Halt {
    Refusal::Fenced { step: at.step.clone(), attempt: at.attempt }.into()
}
