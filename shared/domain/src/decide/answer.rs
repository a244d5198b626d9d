//! Takes a person's answer to a hold.

use super::{Decision, Given, open, stop, verify};
use crate::event::Change;
use crate::hold::{Answer, Hold, HoldReason};
use crate::ids::StepId;
use crate::outcome::truncate;
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
        (Some(step), Answer::Retry) => changes.extend(retry(view, step, given)?),
        (Some(step), Answer::Skip) => {
            let reason = SkipReason::Answer;
            changes.push(match hold.reason {
                HoldReason::Timer => Change::TimerFired { step: step.clone() },
                HoldReason::Paused
                | HoldReason::Failures
                | HoldReason::WorkerDied
                | HoldReason::Verification => Change::StepSkipped { step: step.clone(), reason },
            });
            changes.extend(unpause(view)?);
        }
        (None, Answer::Retry) => changes.push(Change::TaskReleased { reason: hold.reason }),
        (None, Answer::Skip) => {
            view.need([Key::Meta])?;
            changes.push(Change::TaskReleased { reason: hold.reason });
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
    changes.extend(unpause(view)?);
    Ok(changes)
}

/// A pause that a step's failure made ends with the answer to that step.
fn unpause(view: &View) -> Result<Option<Change>, Halt> {
    let paused = view.gate()?.holds.iter().any(|hold| hold.reason == HoldReason::Paused);
    Ok(paused.then_some(Change::TaskReleased { reason: HoldReason::Paused }))
}
