//! Undoes what has landed, after a stop with `undo`: one effect after the other, the last to
//! land first.
//!
//! The run of an `undo` is a step of its own, added to the task when its turn comes: claims,
//! retries, effects of its own, logs and holds are those of any step. Which landing is next is
//! read from the header; each landing names the one below it. An effect of which it becomes
//! known only now that it has landed lies on top, and so is next.

use serde_json::Value;

use super::{Decision, Given};
use crate::digest::RecordsDigest;
use crate::event::Change;
use crate::hold::{HeldEffect, Hold, HoldReason};
use crate::ids::StepId;
use crate::plan::{StepPlan, UndoPlan, Uses};
use crate::record::{
    Definition, Ending, Key, Landing, Phase, Record, StopMode, UndoOf, effect_key,
};
use crate::refusal::Halt;
use crate::time::{Span, Time};
use crate::view::View;

/// How long all undos of a stop may take together, whatever the task's deadline says; a person's
/// answer to a hold of one begins it anew.
pub const UNDO_ALLOWANCE: Span = Span::from_secs(10 * 60);

/// Adds the run that undoes the next landing; `None` if nothing is to be undone.
pub(super) fn next(view: &View, ending: Ending, given: &Given) -> Result<Option<Decision>, Halt> {
    view.need([Key::Header, Key::Gate])?;
    let (header, gate) = (view.header()?, view.gate()?);
    let asked = gate.stop.is_some_and(|stop| stop.mode == StopMode::Undo);
    if !asked || ending != Ending::Cancelled || header.undo_top == 0 {
        return Ok(None);
    }
    let number = header.undo_top;
    let landing = view.landing(number)?;
    let of = view.definition(&landing.step)?;
    let Some(undo) = &of.plan.undo else { return Ok(None) }; // a landing has one
    let step = landing.step.undo(number);
    let run = run(of, undo, landing, number);
    let mut payloads = vec![
        (Key::Definition(step.clone()), Record::Definition(Box::new(run))),
        (Key::Needs(step.clone(), 0), Record::Names(vec![landing.step.clone()])),
    ];
    let definitions_sha256 = RecordsDigest::of(&payloads);
    payloads.push((Key::Order(header.order_chunks), Record::Names(vec![step.clone()])));
    let mut changes = Vec::new();
    if !matches!(header.phase, Phase::Undoing { .. }) {
        changes.push(allowed(given.now));
    }
    changes.push(Change::UndoAdded { step, landing: number, definitions_sha256 });
    Ok(Some(Decision { changes, payloads }))
}

/// Holds a run that has failed for good: what it should have undone stands, and a person says
/// what becomes of it.
pub(super) fn failed(view: &View, run: &Definition, message: &str, given: &Given) -> Change {
    let step = run.plan.id.clone();
    let Some(of) = &run.undo_of else {
        let hold = Hold::new(HoldReason::UndoFailed, message, given.now);
        return Change::StepHeld { step, hold };
    };
    let key = effect_key(view.task(), &of.step, &of.name, of.generation);
    let message = format!("effect `{}` of step `{}` is not undone: {message}", of.name, of.step);
    let effect = HeldEffect { name: of.name.clone(), key, request_sha256: None };
    let hold = Hold::new(HoldReason::UndoFailed, message, given.now);
    Change::StepHeld { step, hold: Hold { effect: Some(effect), ..hold } }
}

/// Begins the allowance, or begins it anew.
pub(super) fn allowed(now: Time) -> Change {
    Change::UndoAllowed { until: now.after(UNDO_ALLOWANCE) }
}

/// Defines the run of an undo as a step. It is held for a person when it fails, never settled
/// by a policy of its own.
fn run(of: &Definition, undo: &UndoPlan, landing: &Landing, number: u32) -> Definition {
    let step: StepId = landing.step.undo(number);
    Definition {
        plan: StepPlan {
            id: step,
            uses: Uses::Handler(undo.uses.clone()),
            queue: undo.queue.clone().unwrap_or_else(|| of.plan.queue.clone()),
            needs: Vec::new(),
            condition: None,
            with: undo.with.clone(),
            timeout: undo.timeout,
            retry: undo.retry,
            artifact: None,
            checkpoint: None,
            on_failure: None,
            effect: undo.effect.clone(),
            undo: None,
        },
        needs_count: 1,
        dependents: Vec::new(),
        dependents_chunks: 0,
        finally: false,
        added_by: None,
        redo: Vec::new(),
        effects_allowed: of.effects_allowed.clone(),
        undo_of: Some(UndoOf {
            landing: number,
            step: landing.step.clone(),
            name: landing.name.clone(),
            generation: landing.generation,
            output_round: landing.output_round,
        }),
        // What is landed is known only now, so its input is always resolved.
        templated: undo.with != Value::Null,
    }
}
