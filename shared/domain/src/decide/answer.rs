//! Takes a person's answer to a hold.

use super::open::Start;
use super::{Decision, Given, digest, effect, open, stop, undo, verify};
use crate::event::Change;
use crate::hold::{Answer, Hold, HoldReason};
use crate::ids::StepId;
use crate::outcome::truncate;
use crate::record::{
    Ending, Key, NotLanded, Part, Payload, Phase, Record, SkipReason, Status, StopMode,
};
use crate::refusal::{Halt, Refusal};
use crate::view::View;

/// What a person says.
pub(super) struct Said<'a> {
    pub answer: Answer,
    pub note: Option<&'a str>,
    /// Of which effect.
    pub effect: Option<&'a str>,
    /// What the outside world answered.
    pub receipt: Option<&'a Payload>,
}

pub(super) fn decide(
    view: &View,
    step: Option<&StepId>,
    said: &Said<'_>,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate])?;
    let header = view.header()?;
    let answer = said.answer;
    if let (Some(step), Answer::Happened | Answer::NotHappened) = (step, answer) {
        return settle_effect(view, step, said, given); // the truth is taken in every phase
    }
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
    let note = said.note.map(|note| truncate(note, stop::NOTE_BYTES_MAX));
    let hold = open_hold(view, step, answer)?;
    if !hold.reason.answers().contains(&answer) {
        return Err(Refusal::answer_not_taken(answer, hold.reason).into());
    }
    if answer == Answer::Stop && matches!(header.phase, Phase::Undoing { .. }) {
        let why = "the task is being stopped already, and this undoes what has landed".to_owned();
        return Err(Refusal::NotApplicable { answer, why }.into());
    }
    let mut changes =
        vec![Change::HoldAnswered { step: step.cloned(), reason: hold.reason, answer, note }];
    changes.extend(allowed_anew(view, given)?);
    match (step, answer) {
        (_, Answer::Stop) => {
            let reason = Some(format!("answer to {}", hold.reason));
            changes.extend(stop::decide(view, reason, StopMode::Halt)?.changes);
        }
        (Some(step), Answer::Retry) => {
            changes.extend(retry(view, step, given)?);
            changes.extend(unpause(view, step)?);
        }
        (Some(step), Answer::Skip) => {
            changes.push(skipped(step, hold.reason));
            changes.extend(unpause(view, step)?);
        }
        (Some(step), Answer::Keep | Answer::SendAlso) => {
            changes.extend(after_change(view, step, &hold, answer, given)?);
        }
        // No hold of a task takes them, and those of a step were settled above.
        (None, Answer::Keep | Answer::SendAlso) | (_, Answer::Happened | Answer::NotHappened) => {}
        (None, Answer::Retry) => changes.push(released(hold)),
        (None, Answer::Skip) if header.effects_owed > 0 => {
            let why = verify::owed(header.effects_owed);
            return Err(Refusal::NotApplicable { answer, why }.into());
        }
        (None, Answer::Skip) => {
            view.need([Key::Meta])?;
            let holds = view.gate()?.holds; // a task that ends has no use for the others either
            changes.extend(holds.into_iter().map(released));
            changes.extend(verify::finish(view, Ending::Completed, given)?);
        }
    }
    Ok(changes.into())
}

/// Goes on without a step; a wait ends at once.
fn skipped(step: &StepId, held: HoldReason) -> Change {
    let (step, reason) = (step.clone(), SkipReason::Answer);
    match held {
        HoldReason::Timer => Change::TimerFired { step },
        HoldReason::Paused
        | HoldReason::Failures
        | HoldReason::WorkerDied
        | HoldReason::Verification
        | HoldReason::UncertainEffect
        | HoldReason::EffectChanged
        | HoldReason::UndoFailed => Change::StepSkipped { step, reason },
    }
}

/// Takes what a person found out about an effect.
fn settle_effect(
    view: &View,
    step: &StepId,
    said: &Said<'_>,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Definition(step.clone()), Key::Step(step.clone())])?;
    view.need([Key::Effects(step.clone()), Key::Claim(step.clone())])?;
    view.definition(step)?;
    let refuse = |why: String| Err(Halt::from(Refusal::NotApplicable { answer: said.answer, why }));
    if view.claim(step)?.is_some() {
        return refuse(format!("an attempt of step `{step}` runs and may still find out"));
    }
    let mut effects = view.effects(step)?;
    effects.retain(|_, effect| effect.is_open());
    let name = match (said.effect, effects.len()) {
        (Some(name), _) => name.to_owned(),
        (None, 1) => effects.keys().next().cloned().unwrap_or_default(),
        (None, 0) => return refuse(format!("no effect of step `{step}` is uncertain")),
        (None, _) => {
            let names: Vec<String> = effects.keys().map(|name| format!("`{name}`")).collect();
            return refuse(format!("name the effect: {} are uncertain", names.join(", ")));
        }
    };
    let Some(effect) = effects.get(&name) else {
        return refuse(format!("effect `{name}` of step `{step}` is not uncertain"));
    };
    if said.answer == Answer::NotHappened && given.now < effect.settled_by {
        let until = effect.settled_by.rfc3339();
        return refuse(format!("the request may still be under way; say so again after {until}"));
    }
    let receipt = said.receipt.filter(|_| said.answer == Answer::Happened);
    let receipt = receipt.cloned().unwrap_or(Payload::Inline(serde_json::Value::Null));
    let note = said.note.map(|note| truncate(note, stop::NOTE_BYTES_MAX));
    let answered = Change::HoldAnswered {
        step: Some(step.clone()),
        reason: HoldReason::UncertainEffect,
        answer: said.answer,
        note,
    };
    let generation = effect.generation;
    let happened = said.answer == Answer::Happened;
    let truth = truth(step, &name, generation, happened.then(|| digest(&receipt)));
    let mut changes = vec![answered];
    if view.definition(step)?.part() == Part::Undo {
        changes.extend(allowed_anew(view, given)?);
    }
    changes.push(truth);
    changes.extend(effect::released(view, step, &name, happened, given)?);
    let key = Key::Receipt(step.clone(), name, generation);
    let payloads = happened.then_some((key, Record::Payload(receipt))).into_iter().collect();
    Ok(Decision { changes, payloads })
}

/// Makes the fact that a person has found out; with the digest of a receipt it has happened.
fn truth(step: &StepId, name: &str, generation: u32, receipt_sha256: Option<String>) -> Change {
    let (step, name) = (step.clone(), name.to_owned());
    match receipt_sha256 {
        Some(receipt_sha256) => {
            let (output_round, intent) = (None, None);
            Change::EffectLanded { step, name, generation, receipt_sha256, output_round, intent }
        }
        None => {
            let how = NotLanded::Answered;
            Change::EffectNotLanded { step, name, generation, how }
        }
    }
}

/// What follows when a person has said what becomes of a changed request.
fn after_change(
    view: &View,
    step: &StepId,
    hold: &Hold,
    answer: Answer,
    given: &Given,
) -> Result<Vec<Change>, Halt> {
    view.need([Key::Effects(step.clone())])?;
    let Some(held) = &hold.effect else { return Ok(Vec::new()) };
    let generation = view.effects(step)?.get(&held.name).map_or(1, |effect| effect.generation);
    let (step, name) = (step.clone(), held.name.clone());
    let change = match answer {
        Answer::Keep => {
            let request_sha256 = held.request_sha256.clone().unwrap_or_default();
            Change::EffectKept { step: step.clone(), name, request_sha256 }
        }
        Answer::SendAlso
        | Answer::Retry
        | Answer::Skip
        | Answer::Happened
        | Answer::NotHappened
        | Answer::Stop => {
            let generation = generation + 1;
            Change::EffectReopened { step: step.clone(), name, generation }
        }
    };
    let (definition, state) = (view.definition(&step)?, view.step(&step)?);
    Ok(vec![change, open::ready(view, definition, &state, given.now, Start::Afresh)?])
}

/// Finds the hold that an answer is for.
fn open_hold(view: &View, step: Option<&StepId>, answer: Answer) -> Result<Hold, Halt> {
    let Some(step) = step else {
        let holds = view.gate()?.holds;
        let takes = |hold: &&Hold| hold.reason.answers().contains(&answer);
        // Its own first: those that steps made can also be answered at the step.
        let own = holds.iter().filter(|hold| hold.by.is_none()).find(takes);
        let hold = own.or_else(|| holds.iter().find(takes)).or(holds.first());
        return hold.cloned().ok_or_else(|| {
            let why = "the task itself is not held; name the step that is, as TASK/STEP";
            Refusal::NotApplicable { answer, why: why.to_owned() }.into()
        });
    };
    view.need([Key::Definition(step.clone()), Key::Step(step.clone())])?;
    view.definition(step)?;
    match &view.step(step)?.status {
        Status::Held { hold } => Ok((**hold).clone()),
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
    if state.first_ready_at.is_none() {
        return Ok(vec![Change::StepReopened { step: step.clone() }]);
    }
    Ok(vec![open::ready(view, definition, &state, given.now, Start::Afresh)?])
}

/// A person who settles what stood in the way of undos begins their allowance anew.
fn allowed_anew(view: &View, given: &Given) -> Result<Option<Change>, Halt> {
    let undoing = matches!(view.header()?.phase, Phase::Undoing { .. });
    Ok(undoing.then(|| undo::allowed(given.now)))
}

/// True for a step that does not move any more, since its task is ending.
fn is_unwanted(view: &View, step: &StepId) -> Result<bool, Halt> {
    view.need([Key::Definition(step.clone()), Key::Step(step.clone())])?;
    Ok(!open::is_wanted(&view.header()?.phase, view.definition(step)?))
}

/// In a task that is ending, no answer lets a step of its plan start; it can only be stopped.
fn ending(view: &View, answer: Answer) -> Result<Decision, Halt> {
    match answer {
        Answer::Stop => stop::decide(view, None, StopMode::Halt),
        Answer::Retry
        | Answer::Skip
        | Answer::Happened
        | Answer::NotHappened
        | Answer::Keep
        | Answer::SendAlso => {
            let why = "the task is ending, and the step with it".to_owned();
            Err(Refusal::NotApplicable { answer, why }.into())
        }
    }
}

/// A pause that a step's failure made ends with the answer to that step; one that something
/// else made, such as the deadline or another step, does not.
fn unpause(view: &View, step: &StepId) -> Result<Option<Change>, Halt> {
    let holds = view.gate()?.holds;
    Ok(holds.into_iter().find(|hold| hold.by.as_ref() == Some(step)).map(released))
}

fn released(hold: Hold) -> Change {
    Change::TaskReleased { reason: hold.reason, by: hold.by }
}
