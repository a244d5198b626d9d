//! What a due timer does. A timer that is early, late or spent does nothing.

use super::open::Start;
use super::{Decision, Given, end_attempt, open, stop};
use crate::event::Change;
use crate::hold::{Hold, HoldReason};
use crate::ids::StepId;
use crate::plan::DeadlineThen;
use crate::record::{Gate, Key, Phase, Status, StopMode};
use crate::refusal::Halt;
use crate::time::{Span, Time};
use crate::view::View;

/// The timers that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimerKind {
    /// A step is tried again.
    Retry,
    /// A timer step's time has come.
    Hold,
    /// A step's total time is used up.
    GiveUp,
    /// A step has been ready for too long without being started.
    Queue,
    /// The task's deadline.
    Deadline,
    /// An ended task is removed; not a command, the scheduler erases.
    Remove,
    /// A submission that wrote ahead may have been given up.
    Birth,
}

impl TimerKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Retry,
        Self::Hold,
        Self::GiveUp,
        Self::Queue,
        Self::Deadline,
        Self::Remove,
        Self::Birth,
    ];

    /// Gives the word in index entries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Hold => "hold",
            Self::GiveUp => "give_up",
            Self::Queue => "queue",
            Self::Deadline => "deadline",
            Self::Remove => "remove",
            Self::Birth => "birth",
        }
    }
}

pub(super) fn fire_step(
    view: &View,
    step: &StepId,
    kind: TimerKind,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate, Key::Definition(step.clone()), Key::Step(step.clone())])?;
    let (definition, state, gate) = (view.definition(step)?, view.step(step)?, view.gate()?);
    if !open::is_wanted(&view.header()?.phase, definition) {
        return Ok(Decision::nothing());
    }
    match (kind, &state.status) {
        (TimerKind::Retry, Status::Retrying { at }) if *at <= given.now => {
            Ok(open::ready(view, definition, &state, given.now, Start::Again)?.into())
        }
        (TimerKind::Hold, Status::Held { hold })
            if hold.reason == HoldReason::Timer && hold.due.is_some_and(|due| due <= given.now) =>
        {
            let due = hold.ends_at(&gate, given.now);
            Ok(postponed(step, due, &gate, given.now)
                .unwrap_or_else(|| Change::TimerFired { step: step.clone() })
                .into())
        }
        (TimerKind::GiveUp, Status::Ready { .. } | Status::Retrying { .. })
            if state.give_up_at.is_some_and(|at| at <= given.now) =>
        {
            view.need([Key::Claim(step.clone())])?;
            if view.claim(step)?.is_some() {
                return Ok(Decision::nothing()); // the attempt ends by then, or its claim dies
            }
            let due = state.gives_up_at(&gate, given.now);
            if let Some(later) = postponed(step, due, &gate, given.now) {
                return Ok(later.into());
            }
            let message = "its total time is used up";
            end_attempt::time_over(view, definition, &state, message, given)
        }
        (
            TimerKind::Retry
            | TimerKind::Hold
            | TimerKind::GiveUp
            | TimerKind::Queue
            | TimerKind::Deadline
            | TimerKind::Remove
            | TimerKind::Birth,
            _,
        ) => Ok(Decision::nothing()),
    }
}

/// Says when a clock is looked at next that struck too early: it stood still in a pause. While
/// the pause lasts its end is not known, so the looks grow apart with it.
fn postponed(step: &StepId, due: Option<Time>, gate: &Gate, now: Time) -> Option<Change> {
    let due = due.filter(|due| *due > now)?;
    let look_at = gate.paused_at.map_or(due, |since| due.max(now.after(between_looks(since, now))));
    Some(Change::ClockPostponed { step: step.clone(), look_at })
}

/// Gives the least time between two looks at a clock that stands still since then: a hundredth
/// of the pause, so that a long one costs few commits and no clock strikes much too late.
fn between_looks(since: Time, now: Time) -> Span {
    Span(now.since(since).0 / 100).clamp(Span::from_secs(1), Span::from_secs(60 * 60))
}

/// Fails a step that no worker has started within its queue time. Another wait would be no
/// better, so it is not tried again: that is for whoever sees to the workers. Time under a
/// hold of the task does not count: the queue time begins anew when the last hold ends.
pub(super) fn queue_over(
    view: &View,
    step: &StepId,
    why: Option<&str>,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate, Key::Definition(step.clone()), Key::Step(step.clone())])?;
    let (definition, state) = (view.definition(step)?, view.step(step)?);
    let wanted = open::is_wanted(&view.header()?.phase, definition);
    let over = matches!(state.status, Status::Ready { .. })
        && state.start_by.is_some_and(|at| at <= given.now);
    let Some(most) = definition.plan.timeout.queue.filter(|_| wanted && over) else {
        return Ok(Decision::nothing());
    };
    view.need([Key::Claim(step.clone())])?;
    if view.claim(step)?.is_some() {
        return Ok(Decision::nothing());
    }
    let gate = view.gate()?;
    let held_until = if gate.holds.is_empty() { gate.released_at } else { Some(given.now) };
    let apart = gate.holds.first().map_or(most, |hold| between_looks(hold.since, given.now));
    let most_or_more = most.max(apart);
    let start_by = held_until.map(|until| until.after(most_or_more)).filter(|by| *by > given.now);
    if let Some(start_by) = start_by {
        return Ok(Change::StartPostponed { step: step.clone(), start_by }.into());
    }
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let message = format!("no worker started it within its queue time of {most}{why}");
    end_attempt::time_over(view, definition, &state, &message, given)
}

pub(super) fn fire_task(view: &View, kind: TimerKind, given: &Given) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate, Key::Meta])?;
    let header = view.header()?;
    let due = header.deadline_at.is_some_and(|at| at <= given.now);
    let paused = view.gate()?.paused_at.is_some();
    if kind != TimerKind::Deadline || header.phase != Phase::Main || !due || paused {
        return Ok(Decision::nothing());
    }
    let then = view.meta()?.deadline.map_or(DeadlineThen::Pause, |deadline| deadline.then);
    let mut changes = vec![Change::DeadlinePassed];
    match then {
        DeadlineThen::Pause => {
            let message = "its deadline has passed and its plan pauses it".to_owned();
            let hold = Hold::new(HoldReason::Paused, message, given.now);
            changes.push(Change::TaskHeld { hold });
        }
        DeadlineThen::Fail => {
            changes.push(Change::TaskFailing { reason: "its deadline has passed".to_owned() });
        }
        DeadlineThen::Stop => {
            let reason = Some("its deadline has passed".to_owned());
            changes.extend(stop::decide(view, reason, StopMode::Halt)?.changes);
        }
    }
    Ok(changes.into())
}
