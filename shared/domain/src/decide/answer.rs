//! Takes a person's answer to a hold.

use super::{Decision, Given, open, stop, verify};
use crate::event::Change;
use crate::hold::{Answer, Hold, HoldReason};
use crate::ids::StepId;
use crate::outcome::truncate;
use crate::plan::OnFailure;
use crate::record::{Ending, Key, Phase, SkipReason, Status};
use crate::refusal::{Halt, Refusal};
use crate::view::View;

pub(super) fn decide(
    view: &View,
    step: Option<&StepId>,
    answer: Answer,
    note: Option<String>,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate])?;
    let header = view.header()?;
    if matches!(header.phase, Phase::Ended { .. }) {
        return Err(Refusal::Ended(header.state).into());
    }
    let unwanted = match step {
        Some(step) => is_unwanted(view, step)?,
        None => false,
    };
    if unwanted {
        return ending(view, answer);
    }
    let note = note.map(|note| truncate(&note, stop::NOTE_BYTES_MAX));
    let hold = open_hold(view, step, answer)?;
    if !hold.reason.answers().contains(&answer) {
        return Err(Refusal::answer_not_taken(answer, hold.reason).into());
    }
    let mut changes =
        vec![Change::HoldAnswered { step: step.cloned(), reason: hold.reason, answer, note }];
    match (step, answer) {
        (_, Answer::Stop) => {
            changes.extend(stop::decide(view, Some(format!("answer to {}", hold.reason)))?.changes);
        }
        (Some(step), Answer::Retry) => {
            changes.extend(retry(view, step, given)?);
            changes.extend(unpause(view, step, hold.reason)?);
        }
        (Some(step), Answer::Skip) => {
            let reason = SkipReason::Answer;
            changes.push(match hold.reason {
                HoldReason::Timer => Change::TimerFired { step: step.clone() },
                HoldReason::Paused
                | HoldReason::Failures
                | HoldReason::WorkerDied
                | HoldReason::Verification => Change::StepSkipped { step: step.clone(), reason },
            });
            changes.extend(unpause(view, step, hold.reason)?);
        }
        (None, Answer::Retry) => changes.push(Change::TaskReleased { reason: hold.reason }),
        (None, Answer::Skip) => {
            view.need([Key::Meta])?;
            let holds = view.gate()?.holds; // a task that ends has no use for the others either
            let released = |hold: Hold| Change::TaskReleased { reason: hold.reason };
            changes.extend(holds.into_iter().map(released));
            changes.extend(verify::finish(view, Ending::Completed, given)?);
        }
    }
    Ok(changes.into())
}

/// Finds the hold that an answer is for.
fn open_hold(view: &View, step: Option<&StepId>, answer: Answer) -> Result<Hold, Halt> {
    let Some(step) = step else {
        let gate = view.gate()?;
        return gate.holds.first().cloned().ok_or_else(|| {
            let why = "the task itself is not held; name the step that is, as TASK/STEP";
            Refusal::NotApplicable { answer, why: why.to_owned() }.into()
        });
    };
    view.need([Key::Definition(step.clone()), Key::Step(step.clone())])?;
    view.definition(step)?;
    match view.step(step)?.status {
        Status::Held { hold } => Ok(hold),
        Status::Pending
        | Status::Ready { .. }
        | Status::Retrying { .. }
        | Status::Succeeded { .. }
        | Status::Failed { .. }
        | Status::Skipped { .. } => {
            let why = format!("step `{step}` is not held");
            Err(Refusal::NotApplicable { answer, why }.into())
        }
    }
}

/// Runs a step again, from its templates on if it never got that far.
fn retry(view: &View, step: &StepId, given: &Given) -> Result<Vec<Change>, Halt> {
    let (definition, state) = (view.definition(step)?, view.step(step)?);
    let mut changes = vec![open::ready(definition, &state, given.now, None, true)];
    if state.first_ready_at.is_none() {
        changes = vec![Change::StepReopened { step: step.clone() }];
    }
    Ok(changes)
}

/// True for a step that does not move any more, since its task is ending.
fn is_unwanted(view: &View, step: &StepId) -> Result<bool, Halt> {
    view.need([Key::Definition(step.clone()), Key::Step(step.clone())])?;
    Ok(!open::is_wanted(&view.header()?.phase, view.definition(step)?))
}

/// In a task that is ending, no answer lets a step of its plan start; it can only be stopped.
fn ending(view: &View, answer: Answer) -> Result<Decision, Halt> {
    match answer {
        Answer::Stop => stop::decide(view, None),
        Answer::Retry | Answer::Skip => {
            let why = "the task is ending, and the step with it".to_owned();
            Err(Refusal::NotApplicable { answer, why }.into())
        }
    }
}

/// A pause that a step's failure made ends with the answer to that step; one that something
/// else made, such as the deadline, does not.
fn unpause(view: &View, step: &StepId, reason: HoldReason) -> Result<Option<Change>, Halt> {
    let pauses = view.definition(step)?.plan.on_failure == Some(OnFailure::Pause);
    if !pauses || !matches!(reason, HoldReason::Failures | HoldReason::WorkerDied) {
        return Ok(None);
    }
    let paused = view.gate()?.holds.iter().any(|hold| hold.reason == HoldReason::Paused);
    Ok(paused.then_some(Change::TaskReleased { reason: HoldReason::Paused }))
}
