//! Opens a new round: `redo` runs a step, the one that failed, and all between once more.
//!
//! Where two redos overlap, the second may come while steps of the first still run or wait.
//! What waits for a step is told in the step's own round, so both become one round: whatever
//! of the earlier one is not settled takes part in the new one, from its beginning.

use std::collections::{BTreeMap, BTreeSet};

use super::{Decision, end_attempt};
use crate::event::Change;
use crate::ids::StepId;
use crate::outcome::{Failure, FailureClass, MESSAGE_BYTES_MAX, truncate};
use crate::record::{
    Definition, Dependent, Key, LIST_CHUNK, Record, RoundFailure, SkipReason, Status,
};
use crate::refusal::Halt;
use crate::view::View;

pub(super) fn open(
    view: &View,
    definition: &Definition,
    from: &StepId,
    failure: &Failure,
) -> Result<Decision, Halt> {
    let by = definition.plan.id.clone();
    let round = view.header()?.round + 1;
    let steps = steps(view, definition)?;
    let why = RoundFailure {
        step: by.clone(),
        class: failure.class,
        message: truncate(&failure.message, MESSAGE_BYTES_MAX),
        output: failure.output.clone(),
        round,
        steps: steps.iter().map(|(step, _)| step.clone()).collect(),
        skipped: skipped(view, &steps)?,
    };
    let message = format!("step `{by}` failed, and round {round} runs this one anew");
    let mut changes = interrupted(view, &by, &message, &steps)?;
    changes.push(Change::RoundOpened { by, from: from.clone(), round, steps });
    Ok(Decision { changes, payloads: vec![(Key::Failure(round), Record::Failure(why))] })
}

/// Gives the steps of the round and how many of the needs of each lie within it.
fn steps(view: &View, definition: &Definition) -> Result<Vec<(StepId, u32)>, Halt> {
    let own = &definition.redo;
    view.need(own.iter().map(|(step, _)| Key::Step(step.clone())))?;
    let mut rounds = BTreeSet::new();
    for (step, _) in own {
        let state = view.step(step)?;
        if state.round > 1 && state.owes() {
            rounds.insert(state.round);
        }
    }
    view.need(rounds.iter().map(|round| Key::Failure(*round)))?;
    let mut all: Vec<StepId> = own.iter().map(|(step, _)| step.clone()).collect();
    for round in rounds {
        let Some(Record::Failure(earlier)) = view.get(&Key::Failure(round))? else { continue };
        view.need(earlier.steps.iter().map(|step| Key::Step(step.clone())))?;
        for step in &earlier.steps {
            let state = view.step(step)?;
            if state.round == round && state.owes() && !all.contains(step) {
                all.push(step.clone());
            }
        }
    }
    if all.len() == own.len() {
        return Ok(own.clone());
    }
    counted(view, all)
}

/// Gives the steps of the round that are skipped in it too, for a need outside: that need does
/// not speak again.
fn skipped(view: &View, steps: &[(StepId, u32)]) -> Result<Vec<StepId>, Halt> {
    let within: BTreeSet<&StepId> = steps.iter().map(|(step, _)| step).collect();
    let mut skipped = Vec::new();
    for (step, _) in steps {
        if view.step(step)?.need_skipped && is_skipped_from_outside(view, step, &within)? {
            skipped.push(step.clone());
        }
    }
    Ok(skipped)
}

fn is_skipped_from_outside(
    view: &View,
    step: &StepId,
    within: &BTreeSet<&StepId>,
) -> Result<bool, Halt> {
    view.need([Key::Definition(step.clone())])?;
    let chunks = view.definition(step)?.needs_count.div_ceil(LIST_CHUNK as u32);
    let needs: Vec<Key> = (0..chunks).map(|chunk| Key::Needs(step.clone(), chunk)).collect();
    view.need(needs.iter().cloned())?;
    for key in &needs {
        let outside: Vec<&StepId> =
            view.names(key)?.iter().filter(|need| !within.contains(need)).collect();
        view.need(outside.iter().map(|need| Key::Step((*need).clone())))?;
        view.need(outside.iter().map(|need| Key::Definition((*need).clone())))?;
        for need in outside {
            let skipped = matches!(
                view.step(need)?.status,
                Status::Skipped { reason: SkipReason::Condition | SkipReason::Need, .. }
            );
            if skipped && !tolerates(view, step, need)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// True if the `if` of `step` names `need`.
fn tolerates(view: &View, step: &StepId, need: &StepId) -> Result<bool, Halt> {
    let definition = view.definition(need)?;
    let named = |list: &[Dependent]| {
        list.iter().find(|dependent| dependent.step == *step).map(|dependent| dependent.tolerant)
    };
    if let Some(tolerant) = named(&definition.dependents) {
        return Ok(tolerant);
    }
    for chunk in 0..definition.dependents_chunks {
        if let Some(tolerant) = named(view.dependents(need, chunk)?) {
            return Ok(tolerant);
        }
    }
    Ok(true) // not among those that it tells
}

/// Counts the needs of each step that lie within `steps`. A step that an outcome added waits
/// only for steps of the same outcome.
fn counted(view: &View, steps: Vec<StepId>) -> Result<Vec<(StepId, u32)>, Halt> {
    view.need(steps.iter().map(|step| Key::Definition(step.clone())))?;
    let mut added_by = BTreeMap::new();
    let mut needs = Vec::new();
    for step in &steps {
        let definition = view.definition(step)?;
        added_by.insert(step.clone(), definition.added_by.clone());
        let chunks = definition.needs_count.div_ceil(LIST_CHUNK as u32);
        needs.extend((0..chunks).map(|chunk| Key::Needs(step.clone(), chunk)));
    }
    view.need(needs.iter().cloned())?;
    let mut counts: BTreeMap<&StepId, u32> = BTreeMap::new();
    for key in &needs {
        let Key::Needs(step, _) = key else { continue };
        let names = view.names(key)?.iter();
        let within = names.filter(|need| added_by.get(*need) == added_by.get(step)).count();
        *counts.entry(step).or_default() += u32::try_from(within).unwrap_or(u32::MAX);
    }
    let count = |step: &StepId| counts.get(step).copied().unwrap_or(0);
    Ok(steps.iter().map(|step| (step.clone(), count(step))).collect())
}

/// Ends the attempts that run in an earlier round, uncharged. Steps that are ready are looked
/// at even if nobody has claimed them, so that the commit guards against a claim meanwhile.
pub(super) fn interrupted(
    view: &View,
    by: &StepId,
    message: &str,
    steps: &[(StepId, u32)],
) -> Result<Vec<Change>, Halt> {
    let mut ready = Vec::new();
    for (step, _) in steps.iter().filter(|(step, _)| step != by) {
        if matches!(view.step(step)?.status, Status::Ready { .. }) {
            ready.push(step);
        }
    }
    view.need(ready.iter().map(|step| Key::Claim((*step).clone())))?;
    let failure = Failure::new(FailureClass::Cancelled, message);
    let mut changes = Vec::new();
    for step in ready {
        if let Some(claim) = view.claim(step)? {
            changes.push(end_attempt::attempt_failed(step, claim, &failure, 0, false));
        }
    }
    end_attempt::taken(view, changes)
}
