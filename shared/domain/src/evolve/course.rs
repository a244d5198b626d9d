//! Changes of a task as a whole: its holds and pauses, and the road to its end.

use super::open;
use crate::event::{Change, Event};
use crate::hold::{Hold, HoldReason};
use crate::ids::StepId;
use crate::plan::{Deadline, When};
use crate::record::{Ending, Key, Phase, Record, StepState, Stop};
use crate::refusal::Halt;
use crate::time::Time;
use crate::view::{Todo, View};

/// Carries out what happened to the task as a whole; other events change nothing here.
pub(super) fn change(view: &mut View, event: &Event) -> Result<(), Halt> {
    let at = event.at;
    match &event.change {
        Change::TaskHeld { hold } => task_held(view, at, hold),
        Change::TaskReleased { reason, by } => task_released(view, at, *reason, by.as_ref()),
        Change::DeadlinePassed => view.edit_header(|header| header.deadline_at = None),
        Change::StopRequested { .. } => stop_requested(view, event),
        Change::StopStrengthened { mode, .. } => view.edit_gate(|gate| {
            if let Some(stop) = &mut gate.stop {
                stop.mode = *mode;
            }
        }),
        Change::UndoAllowed { until } => view.edit_header(|header| {
            header.phase = Phase::Undoing { until: *until };
        }),
        Change::UndoAdded { step, landing, .. } => undo_added(view, step, *landing),
        Change::TaskFailing { reason } => task_failing(view, at, reason),
        Change::EpochRaised { epoch } => view.edit_gate(|gate| gate.epoch = *epoch),
        Change::FinallyStarted { ending } => finally_started(view, *ending),
        Change::TaskEnded { ending, remove_at } => task_ended(view, at, *ending, *remove_at),
        Change::EntriesCleared => view.edit_header(|header| header.uncleared = false),
        _ => Ok(()),
    }
}

fn stop_requested(view: &mut View, event: &Event) -> Result<(), Halt> {
    let Change::StopRequested { reason, mode, plan_sha256 } = &event.change else { return Ok(()) };
    let deadline_at = view.header()?.deadline_at;
    view.edit_gate(|gate| {
        gate.closed = true;
        gate.stop = Some(Stop {
            by: event.actor.clone(),
            at: event.at,
            reason: reason.clone(),
            mode: *mode,
            plan_sha256: plan_sha256.clone(),
            lapsed: std::mem::take(&mut gate.holds),
            deadline_at,
        });
        gate.thaw(event.at);
    })?;
    view.edit_header(|header| {
        header.phase = Phase::Closing { ending: Ending::Cancelled };
        header.task_holds = 0;
        header.paused = false;
        header.deadline_at = None;
    })
}

/// A task that ends is not held any more: its `finally` steps must be free to start.
fn task_failing(view: &mut View, at: Time, reason: &str) -> Result<(), Halt> {
    view.edit_gate(|gate| {
        gate.closed = true;
        gate.holds.clear();
        gate.thaw(at);
    })?;
    view.edit_header(|header| {
        header.phase = Phase::Closing { ending: Ending::Failed };
        header.task_holds = 0;
        header.paused = false;
        header.deadline_at = None;
        header.failure = Some(reason.to_owned());
    })
}

fn task_ended(view: &mut View, at: Time, ending: Ending, remove_at: Time) -> Result<(), Halt> {
    view.edit_header(|header| {
        header.phase = Phase::Ended { ending, at };
        header.remove_at = Some(remove_at);
        header.deadline_at = None;
        // A redone step may still be telling dependents that need no telling any more.
        header.uncleared = header.open + header.finally_open > 0 || header.round > 1;
    })
}

fn task_held(view: &mut View, at: Time, hold: &Hold) -> Result<(), Halt> {
    let pauses = hold.reason == HoldReason::Paused;
    view.edit_gate(|gate| {
        gate.holds.retain(|other| other.reason != hold.reason || other.by != hold.by);
        gate.holds.push(hold.clone());
        if pauses {
            gate.paused_at.get_or_insert(at);
        }
    })?;
    let holds = u32::try_from(view.gate()?.holds.len()).unwrap_or(u32::MAX);
    view.edit_header(|header| {
        header.task_holds = holds;
        header.paused |= pauses;
    })
}

/// With the last pause its clocks run on: the deadline moves by as much as the pause was long,
/// if it was given as a span; a time stays the time that it is.
fn task_released(
    view: &mut View,
    at: Time,
    reason: HoldReason,
    by: Option<&StepId>,
) -> Result<(), Halt> {
    let mut still = None;
    view.edit_gate(|gate| {
        gate.holds.retain(|hold| hold.reason != reason || hold.by.as_ref() != by);
        gate.released_at = gate.holds.is_empty().then_some(at);
        still = gate.thaw(at);
    })?;
    let left = u32::try_from(view.gate()?.holds.len()).unwrap_or(u32::MAX);
    view.edit_header(|header| {
        header.task_holds = left;
        header.paused &= still.is_none();
    })?;
    if let Some(still) = still.filter(|_| view.header().is_ok_and(|h| h.deadline_at.is_some()))
        && let Some(Deadline { when: When::In(_), .. }) = view.meta()?.deadline
    {
        view.edit_header(|header| {
            header.deadline_at = header.deadline_at.map(|deadline| deadline.after(still));
        })?;
    }
    Ok(())
}

fn finally_started(view: &mut View, ending: Ending) -> Result<(), Halt> {
    let steps = view.meta()?.finally.clone();
    view.need(steps.iter().map(|step| Key::Definition(step.clone())))?;
    view.need(steps.iter().map(|step| Key::Step(step.clone())))?;
    view.edit_gate(|gate| gate.closed = true)?;
    view.edit_header(|header| {
        header.phase = Phase::Finally { ending };
        header.deadline_at = None;
    })?;
    for step in &steps {
        if view.definition(step)?.needs_count == 0 {
            open(view, step)?;
        }
    }
    Ok(())
}

/// Takes the last landing off those to be undone; its run is a step like any other.
fn undo_added(view: &mut View, step: &StepId, landing: u32) -> Result<(), Halt> {
    let below = view.landing(landing)?.below;
    view.put(Key::Step(step.clone()), Some(Record::Step(StepState::pending(0))))?;
    view.edit_header(|header| {
        header.undo_top = below;
        header.undos += 1;
        header.undo_open += 1;
        header.order_chunks += 1;
    })?;
    view.todo.push_back(Todo::Release(step.clone()));
    Ok(())
}
