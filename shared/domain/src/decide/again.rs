//! Tells the steps of an outcome that are new from those that its step has added in an earlier
//! round: the same definition again is the same step, which runs anew; anything else under a
//! name that is taken is refused.
//!
//! Repeated steps get a round of their own, so that no record of theirs is written twice. They
//! know the failure that opened the round of the step that adds them. A step of an earlier round
//! that is not named again stays as it is.

use std::collections::BTreeSet;

use super::{Decision, round};
use crate::digest::RecordsDigest;
use crate::event::Change;
use crate::ids::StepId;
use crate::record::{Definition, Key, Record, RoundFailure};
use crate::refusal::Halt;
use crate::view::View;

/// Leaves new steps in `addition` and turns the others into steps that run anew; gives the fault
/// if a name is taken.
pub(super) fn split(
    view: &View,
    by: &Definition,
    addition: Decision,
) -> Result<Result<Decision, String>, Halt> {
    let mut known = BTreeSet::new();
    for (key, record) in &addition.payloads {
        if let (Key::Definition(step), Record::Definition(said)) = (key, record)
            && let Some(Record::Definition(stored)) = view.get(key)?
        {
            if !is_same(stored, said) {
                return Ok(Err(format!(
                    "`then` adds step `{step}`, which exists already and is defined otherwise; \
                     give the new step another name"
                )));
            }
            known.insert(step.clone());
        }
    }
    if known.is_empty() {
        return Ok(Ok(addition));
    }
    if let Some(fault) = other_needs(view, &known, &addition)? {
        return Ok(Err(fault));
    }
    repeat(view, by, &known, addition).map(Ok)
}

/// True if both define one step. Who depends on it may be fewer now: they are told only in
/// their own round.
fn is_same(stored: &Definition, said: &Definition) -> bool {
    let dependents = |definition: &Definition| Definition {
        dependents: Vec::new(),
        dependents_chunks: 0,
        ..definition.clone()
    };
    stored.dependents_chunks == said.dependents_chunks
        && said.dependents.iter().all(|dependent| {
            stored.dependents.contains(dependent)
                || !stored.dependents.iter().any(|other| other.step == dependent.step)
        })
        && dependents(stored) == dependents(said)
}

/// Finds a known step that needs others than before, or a new one that needs a known one: a
/// step's list of dependents never changes.
fn other_needs(
    view: &View,
    known: &BTreeSet<StepId>,
    addition: &Decision,
) -> Result<Option<String>, Halt> {
    for (key, record) in &addition.payloads {
        match (key, record) {
            (Key::Needs(step, _), said) if known.contains(step) && view.get(key)? != Some(said) => {
                return Ok(Some(format!(
                    "`then` adds step `{step}`, which exists already and needs other steps; \
                     give the new step another name"
                )));
            }
            (Key::Definition(step), Record::Definition(said)) if known.contains(step) => {
                let new = said.dependents.iter().find(|other| !known.contains(&other.step));
                if let Some(new) = new {
                    return Ok(Some(format!(
                        "`then` step `{}` is new and needs `{step}`, which was added in an \
                         earlier round; give `{step}` another name too",
                        new.step
                    )));
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

fn repeat(
    view: &View,
    by: &Definition,
    known: &BTreeSet<StepId>,
    mut addition: Decision,
) -> Result<Decision, Halt> {
    let round = view.header()?.round + 1;
    let of = view.step(&by.plan.id)?.round;
    view.need((of > 1).then_some(Key::Failure(of)))?;
    addition.payloads.retain_mut(|(key, record)| match (key, record) {
        (Key::Definition(step) | Key::Needs(step, _), _) => !known.contains(step),
        (Key::Order(_), Record::Names(names)) => {
            names.retain(|name| !known.contains(name));
            !names.is_empty()
        }
        _ => true,
    });
    let mut repeated = Vec::new();
    let mut changes = Vec::new();
    for change in addition.changes {
        let Change::StepsAdded { by, mut steps, .. } = change else {
            changes.push(change);
            continue;
        };
        repeated.extend(steps.extract_if(.., |(step, _)| known.contains(step)));
        if !steps.is_empty() {
            let definitions_sha256 = RecordsDigest::of(&addition.payloads);
            changes.push(Change::StepsAdded { by, steps, definitions_sha256 });
        }
    }
    if of > 1
        && let Some(Record::Failure(failure)) = view.get(&Key::Failure(of))?
    {
        let why = RoundFailure { steps: Vec::new(), skipped: Vec::new(), ..failure.clone() };
        addition.payloads.push((Key::Failure(round), Record::Failure(why)));
    }
    let by = by.plan.id.clone();
    let message = format!("step `{by}` added this one again, and it runs anew");
    changes.extend(round::interrupted(view, &by, &message, &repeated)?);
    changes.push(Change::StepsRepeated { by, round, steps: repeated });
    Ok(Decision { changes, payloads: addition.payloads })
}
