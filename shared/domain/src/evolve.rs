//! The only place where a task's records change: one match over what has happened.
//!
//! Live running, recovery and `verify` all use it. It halts with `Need` where a record that
//! the change touches is not known, so a decision and its evolution ask for the same records.

mod course;
mod effects;
mod owner;
mod roots;

use crate::event::{Change, Event};
use crate::hold::HoldClass;
use crate::ids::{Principal, StepId, WorkerId};
use crate::plan::When;
use crate::record::{
    Dependent, Header, Key, LastAttempt, LastFailure, Part, Phase, Record, Settled, SkipReason,
    Status, StepState,
};
use crate::refusal::Halt;
use crate::time::Time;
use crate::view::{Todo, View};

/// Carries out one event on the view.
pub fn evolve(view: &mut View, event: &Event) -> Result<(), Halt> {
    change(view, event)?;
    if event.change.is_logged() {
        let at = event.at;
        view.edit_header(|header| {
            header.changed_at = at;
            header.state = header.shown();
        })?;
        follow(view)?;
    }
    Ok(())
}

/// Names what the header now calls for.
fn follow(view: &mut View) -> Result<(), Halt> {
    let todo = header_todo(view.header()?);
    if let Some(todo) = todo
        && !view.todo.contains(&todo)
    {
        view.todo.push_back(todo);
    }
    Ok(())
}

/// Says what a header alone calls for; also what the `work` index entry of a header means.
pub fn header_todo(header: &Header) -> Option<Todo> {
    match header.phase {
        Phase::Main if header.roots_from.is_some() => Some(Todo::Roots),
        Phase::Main if header.open == 0 && header.task_holds == 0 => Some(Todo::Verify),
        Phase::Closing { .. } => Some(Todo::Advance),
        Phase::Undoing { .. } if header.undo_open == 0 => Some(Todo::Advance),
        Phase::Finally { .. } if header.finally_open == 0 => Some(Todo::Advance),
        Phase::Main | Phase::Undoing { .. } | Phase::Finally { .. } | Phase::Ended { .. } => None,
    }
}

fn change(view: &mut View, event: &Event) -> Result<(), Halt> {
    let at = event.at;
    match &event.change {
        Change::TaskSubmitted { steps, .. } => task_submitted(view, at, *steps),
        Change::TaskStarted { .. } => view.edit_header(|header| header.started = true),
        Change::RootsOpened { chunk } => roots_opened(view, *chunk),
        Change::StepReady { step, .. } => step_ready(view, step, event),
        Change::StartPostponed { step, start_by } => {
            view.edit_step(step, |state| state.start_by = Some(*start_by))
        }
        Change::ClockPostponed { step, look_at } => {
            view.edit_step(step, |state| state.look_at = Some(*look_at))
        }
        Change::StepReopened { step } => {
            leave(view, step)?;
            enter(view, step, Status::Pending)?;
            view.todo.push_back(Todo::Release(step.clone()));
            Ok(())
        }
        Change::StepHeld { step, hold } => {
            leave(view, step)?;
            enter(view, step, Status::Held { hold: Box::new(hold.clone()) })?;
            view.edit_step(step, |state| state.look_at = None)
        }
        Change::StepSkipped { step, reason } => {
            settle(view, step, Status::Skipped { at, reason: *reason })
        }
        Change::TimerFired { step } => settle(view, step, Status::Succeeded { at }),
        Change::StepSucceeded { .. } => step_succeeded(view, event),
        Change::StepsAdded { by, steps, .. } => steps_added(view, by, steps),
        Change::StepsRepeated { by, round, steps } => steps_repeated(view, by, *round, steps),
        Change::AttemptFailed { .. } => attempt_failed(view, event),
        Change::LateResultRefused { step, cost_usd_micros, .. } => {
            late_result_refused(view, step, *cost_usd_micros)
        }
        Change::EffectIntended { .. }
        | Change::EffectDoubted { .. }
        | Change::EffectLanded { .. }
        | Change::EffectNotLanded { .. }
        | Change::EffectKept { .. }
        | Change::EffectReopened { .. } => effects::change(view, event),
        Change::RetryScheduled { step, due } => {
            leave(view, step)?;
            enter(view, step, Status::Retrying { at: *due })
        }
        Change::StepFailed { .. } => step_failed(view, event),
        Change::RoundOpened { by, round, steps, .. } => round_opened(view, by, *round, steps),
        Change::DependentsTold { step, chunk } => dependents_told(view, step, *chunk),
        Change::TaskHeld { .. }
        | Change::TaskReleased { .. }
        | Change::DeadlinePassed
        | Change::StopRequested { .. }
        | Change::StopStrengthened { .. }
        | Change::UndoAllowed { .. }
        | Change::UndoAdded { .. }
        | Change::TaskFailing { .. }
        | Change::EpochRaised { .. }
        | Change::FinallyStarted { .. }
        | Change::TaskEnded { .. }
        | Change::EntriesCleared => course::change(view, event),
        Change::HandedOver { to, .. } => owner::handed_over(view, to),
        Change::HoldAnswered { .. } => Ok(()), // a fact; what follows from it has its own events
        Change::StepClaimed { .. } | Change::ClaimRenewed { .. } => claim(view, &event.change),
    }
}

/// Gives an attempt to a worker, or keeps it there.
fn claim(view: &mut View, change: &Change) -> Result<(), Halt> {
    match change {
        Change::StepClaimed { step, claim } => {
            view.put(Key::Claim(step.clone()), Some(Record::Claim(claim.clone())))
        }
        Change::ClaimRenewed { step, expires_at, details, heard_at } => {
            let Some(mut claim) = view.claim(step)?.cloned() else { return Ok(()) };
            claim.expires_at = *expires_at;
            claim.details = details.clone().or(claim.details);
            claim.heard_at = Some(*heard_at);
            view.put(Key::Claim(step.clone()), Some(Record::Claim(claim)))
        }
        _ => Ok(()),
    }
}

fn task_submitted(view: &mut View, at: Time, steps: u32) -> Result<(), Halt> {
    let meta = view.meta()?;
    let deadline_at = meta.deadline.map(|deadline| match deadline.when {
        When::In(span) => at.after(span),
        When::At(time) => time,
    });
    let finally_open = u32::try_from(meta.finally.len()).expect("fewer than the limit of steps");
    let header = Header::new(at, steps, finally_open, deadline_at);
    view.put(Key::Header, Some(Record::Header(header)))?;
    owner::born(view)?;
    if view.get(&Key::Ahead)?.is_some() {
        view.put(Key::Ahead, None)?; // and with it the timer that would clean up
    }
    if view.names(&Key::Roots(1))?.is_empty() {
        return roots_opened(view, 0);
    }
    view.edit_header(|header| header.roots_from = Some(0))
}

fn roots_opened(view: &mut View, chunk: u32) -> Result<(), Halt> {
    let next = view.names(&Key::Roots(chunk + 1))?.first().map(|_| chunk + 1);
    let roots = roots::chunk(view, chunk)?;
    view.need(roots.iter().map(|step| Key::Step(step.clone())))?;
    for step in &roots {
        open(view, step)?;
    }
    view.edit_header(|header| header.roots_from = next)
}

/// Gives a step without open needs its state record, so that it gets released.
pub(crate) fn open(view: &mut View, step: &StepId) -> Result<(), Halt> {
    if view.get(&Key::Step(step.clone()))?.is_none() {
        view.put(Key::Step(step.clone()), Some(Record::Step(StepState::pending(0))))?;
    }
    view.todo.push_back(Todo::Release(step.clone()));
    Ok(())
}

/// Counts one less. A view may mix an old header with newer records; what is decided on it is
/// refused by the header's guard, and must not panic before that.
fn less(count: &mut u32) {
    *count = count.saturating_sub(1);
}

/// Gives the count of a header that a step of this status stands in.
fn place(status: &Status) -> Option<fn(&mut Header) -> &mut u32> {
    match status {
        Status::Ready { .. } | Status::Retrying { .. } => Some(|header| &mut header.active),
        Status::Held { hold } => match hold.reason.class() {
            HoldClass::Waiting => Some(|header| &mut header.waiting),
            HoldClass::Blocked => Some(|header| &mut header.blocked),
        },
        Status::Succeeded { .. } => Some(|header| &mut header.succeeded),
        Status::Failed { .. } => Some(|header| &mut header.failed),
        Status::Skipped { .. } => Some(|header| &mut header.skipped),
        Status::Pending => None,
    }
}

/// Takes a step out of the count that its status stands in.
fn leave(view: &mut View, step: &StepId) -> Result<(), Halt> {
    match place(&view.step(step)?.status) {
        Some(place) => view.edit_header(|header| less(place(header))),
        None => Ok(()),
    }
}

/// Sets a step's status and puts the step into the count that it stands in.
fn enter(view: &mut View, step: &StepId, status: Status) -> Result<(), Halt> {
    if let Some(place) = place(&status) {
        view.edit_header(|header| *place(header) += 1)?;
    }
    view.edit_step(step, |state| {
        state.status = status;
        if state.is_settled() {
            state.earlier = None;
        }
    })
}

fn step_ready(view: &mut View, step: &StepId, event: &Event) -> Result<(), Halt> {
    let Change::StepReady {
        attempt,
        queue,
        with_sha256,
        give_up_at,
        start_by,
        paused_ms,
        afresh,
        ..
    } = &event.change
    else {
        return Ok(());
    };
    let claim = Key::Claim(step.clone());
    if view.step(step)?.status == Status::Pending {
        view.presume_absent(claim); // nobody can have claimed it; whoever relies on that guards it
    }
    leave(view, step)?;
    enter(view, step, Status::Ready { since: event.at, queue: queue.clone() })?;
    view.edit_step(step, |state| {
        state.attempt = *attempt;
        state.resolved |= with_sha256.is_some();
        if *afresh {
            state.charged = 0;
            state.first_ready_at = None;
        }
        state.first_ready_at.get_or_insert(event.at);
        state.give_up_at = *give_up_at;
        state.paused_ms = *paused_ms;
        state.look_at = None;
        state.start_by = *start_by;
    })
}

fn step_succeeded(view: &mut View, event: &Event) -> Result<(), Halt> {
    let Change::StepSucceeded {
        step,
        attempt,
        worker,
        started_at,
        cost_usd_micros,
        checkpoint,
        ..
    } = &event.change
    else {
        return Ok(());
    };
    let at = event.at;
    let (worker, started_at, attempt) = (worker.clone(), *started_at, *attempt);
    let ran = Ran { worker, started_at, attempt, taken_from: None };
    attempt_ended(view, step, (ran, at), *cost_usd_micros)?;
    effects::doubt(view, step, attempt, at)?;
    view.edit_step(step, |state| state.details = None)?;
    if let Some(name) = checkpoint {
        view.edit_header(|header| header.checkpoint = Some(name.clone()))?;
    }
    settle(view, step, Status::Succeeded { at })
}

fn step_failed(view: &mut View, event: &Event) -> Result<(), Halt> {
    let Change::StepFailed { step, class, message, unattempted } = &event.change else {
        return Ok(());
    };
    // What the last attempt told is why its step came to this, and tells who says it again.
    if *unattempted && view.step(step)?.failure.is_none() {
        let (class, message, at) = (*class, message.clone(), event.at);
        view.edit_step(step, |state| {
            let attempt = state.attempt;
            state.failure = Some(Box::new(LastFailure { class, message, attempt, at }));
        })?;
    }
    settle(view, step, Status::Failed { at: event.at, class: Some(*class) })
}

fn attempt_failed(view: &mut View, event: &Event) -> Result<(), Halt> {
    let Change::AttemptFailed {
        step,
        attempt,
        worker,
        started_at,
        class,
        message,
        cost_usd_micros,
        charged,
        details,
        claimed_by,
        ..
    } = &event.change
    else {
        return Ok(());
    };
    let taken_from = claimed_by.clone();
    let (worker, started_at) = (worker.clone(), *started_at);
    let ran = Ran { worker, started_at, attempt: *attempt, taken_from };
    attempt_ended(view, step, (ran, event.at), *cost_usd_micros)?;
    effects::doubt(view, step, *attempt, event.at)?;
    let failure =
        LastFailure { class: *class, message: message.clone(), attempt: *attempt, at: event.at };
    view.edit_step(step, |state| {
        state.attempt = attempt.saturating_add(1);
        state.charged += u32::from(*charged);
        state.failure = Some(Box::new(failure));
        state.details = details.clone().or(state.details.take());
    })
}

fn late_result_refused(view: &mut View, step: &StepId, cost_usd_micros: u64) -> Result<(), Halt> {
    view.edit_header(|header| {
        header.cost_usd_micros = header.cost_usd_micros.saturating_add(cost_usd_micros);
    })?;
    view.edit_step(step, |state| {
        state.cost_usd_micros = state.cost_usd_micros.saturating_add(cost_usd_micros);
        if let Some(last) = &mut state.last {
            last.late = true;
        }
    })
}

/// An attempt that has ended.
struct Ran {
    worker: WorkerId,
    started_at: Time,
    attempt: u32,
    /// As whom it was claimed, if it was taken from its worker.
    taken_from: Option<Principal>,
}

/// Takes the claim away and counts the attempt and its cost.
fn attempt_ended(
    view: &mut View,
    step: &StepId,
    (ran, ended_at): (Ran, Time),
    cost_usd_micros: u64,
) -> Result<(), Halt> {
    let Ran { worker, started_at, attempt, taken_from } = ran;
    let gate = view.gate()?;
    let last = LastAttempt {
        worker,
        started_at,
        ended_at,
        attempt,
        epoch: gate.epoch,
        taken_from,
        late: false,
        after_stop: gate.stop.is_some(),
    };
    view.put(Key::Claim(step.clone()), None)?;
    view.edit_header(|header| {
        header.attempts += 1;
        header.cost_usd_micros = header.cost_usd_micros.saturating_add(cost_usd_micros);
    })?;
    view.edit_step(step, |state| {
        state.last = Some(last);
        state.attempts += 1;
        state.cost_usd_micros = state.cost_usd_micros.saturating_add(cost_usd_micros);
    })
}

/// Settles a step and tells its dependents, unless steps it has added are still open.
fn settle(view: &mut View, step: &StepId, status: Status) -> Result<(), Halt> {
    let part = view.definition(step)?.part();
    leave(view, step)?;
    enter(view, step, status)?;
    view.edit_header(|header| match part {
        Part::Main => less(&mut header.open),
        Part::Undo => less(&mut header.undo_open),
        Part::Finally => less(&mut header.finally_open),
    })?;
    let mut next = Some(step.clone());
    while let Some(step) = next.take() {
        if view.step(&step)?.added_open > 0 || !view.step(&step)?.is_settled() {
            break;
        }
        next = tell(view, &step)?;
    }
    Ok(())
}

/// Tells a settled step's dependents; gives the step that added it, if that may be next.
fn tell(view: &mut View, step: &StepId) -> Result<Option<StepId>, Halt> {
    let definition = view.definition(step)?;
    let (dependents, chunks) = (definition.dependents.clone(), definition.dependents_chunks);
    tell_each(view, step, 0, &dependents)?;
    if chunks > 0 {
        view.edit_step(step, |state| state.telling = Some(0))?;
        view.todo.push_back(Todo::Tell(step.clone()));
        return Ok(None);
    }
    told(view, step)
}

fn told(view: &mut View, step: &StepId) -> Result<Option<StepId>, Halt> {
    let first = !view.step(step)?.told;
    view.edit_step(step, |state| {
        state.told = true;
        state.telling = None;
    })?;
    let parent = view.definition(step)?.added_by.clone();
    if let Some(parent) = &parent
        && first
    {
        view.edit_step(parent, |state| less(&mut state.added_open))?;
    }
    Ok(parent.filter(|_| first))
}

fn dependents_told(view: &mut View, step: &StepId, chunk: u32) -> Result<(), Halt> {
    let chunks = view.definition(step)?.dependents_chunks;
    let dependents = view.dependents(step, chunk)?.to_vec();
    tell_each(view, step, chunk + 1, &dependents)?;
    if chunk + 1 < chunks {
        view.edit_step(step, |state| state.telling = Some(chunk + 1))?;
        view.todo.push_back(Todo::Tell(step.clone()));
        return Ok(());
    }
    let mut next = told(view, step)?;
    while let Some(parent) = next.take() {
        if view.step(&parent)?.added_open == 0 && view.step(&parent)?.is_settled() {
            next = tell(view, &parent)?;
        }
    }
    Ok(())
}

/// A dependent is told once by each step it needs, and once more in each redone round that
/// both belong to (then their rounds are equal). `list` is the place of `dependents` among the
/// step's lists of them: a round may begin before all lists were told for the first time.
fn tell_each(
    view: &mut View,
    step: &StepId,
    list: u32,
    dependents: &[Dependent],
) -> Result<(), Halt> {
    view.need(dependents.iter().map(|dependent| Key::Step(dependent.step.clone())))?;
    let state = view.step(step)?;
    let (round, told_lists) = (state.round, state.told_lists);
    let skipped = matches!(
        state.status,
        Status::Skipped { reason: SkipReason::Condition | SkipReason::Need, .. }
    );
    for dependent in dependents {
        let key = Key::Step(dependent.step.clone());
        let mut waiting = match view.get(&key)? {
            Some(Record::Step(waiting)) => waiting.clone(),
            _ => StepState::pending(dependent.needs),
        };
        let again = told_lists > list && waiting.round != round;
        if again || waiting.remaining == 0 {
            continue;
        }
        less(&mut waiting.remaining);
        waiting.need_skipped |= skipped && !dependent.tolerant;
        if waiting.remaining == 0 {
            view.todo.push_back(Todo::Release(dependent.step.clone()));
        }
        view.put(key, Some(Record::Step(waiting)))?;
    }
    view.edit_step(step, |state| state.told_lists = state.told_lists.max(list + 1))
}

fn steps_added(view: &mut View, by: &StepId, steps: &[(StepId, u32)]) -> Result<(), Halt> {
    let count = u32::try_from(steps.len()).expect("fewer than the limit of steps");
    let after_stop = view.gate()?.stop.is_some();
    view.edit_header(|header| {
        header.steps += count;
        header.open += count;
        header.order_chunks += 1;
    })?;
    view.edit_step(by, |state| state.added_open += count)?;
    for (step, remaining) in steps {
        let key = Key::Step(step.clone());
        let state = StepState { after_stop, ..StepState::pending(*remaining) };
        view.put(key, Some(Record::Step(state)))?;
        if *remaining == 0 {
            view.todo.push_back(Todo::Release(step.clone()));
        }
    }
    Ok(())
}

fn round_opened(
    view: &mut View,
    by: &StepId,
    round: u32,
    steps: &[(StepId, u32)],
) -> Result<(), Halt> {
    let skipped = match view.get(&Key::Failure(round))? {
        Some(Record::Failure(failure)) => failure.skipped.clone(),
        _ => Vec::new(),
    };
    view.need(steps.iter().map(|(step, _)| Key::Step(step.clone())))?;
    for (step, remaining) in steps {
        reopen(view, step, round, *remaining)?;
        view.edit_step(step, |state| {
            state.need_skipped = skipped.contains(step);
            if step == by {
                state.redone += 1;
            } else {
                state.attempt += 1;
            }
        })?;
    }
    view.edit_header(|header| header.round = round)
}

/// Runs steps anew that an outcome names once more; its step's dependents wait for them again.
fn steps_repeated(
    view: &mut View,
    by: &StepId,
    round: u32,
    steps: &[(StepId, u32)],
) -> Result<(), Halt> {
    view.need(steps.iter().map(|(step, _)| Key::Step(step.clone())))?;
    for (step, remaining) in steps {
        let told = view.step(step)?.told;
        reopen(view, step, round, *remaining)?;
        view.edit_step(step, |state| {
            state.need_skipped = false;
            state.attempt += 1;
            state.told = false;
        })?;
        if told {
            view.edit_step(by, |state| state.added_open += 1)?;
        }
    }
    view.edit_header(|header| header.round = round)
}

/// Makes a step pending again, in a new round.
fn reopen(view: &mut View, step: &StepId, round: u32, remaining: u32) -> Result<(), Halt> {
    let before = view.step(step)?.into_owned();
    let settled = before.is_settled();
    let after_stop = settled && view.gate()?.stop.is_some();
    leave(view, step)?;
    enter(view, step, Status::Pending)?;
    view.edit_step(step, |state| {
        if settled {
            let (status, round) = (before.status, before.round);
            state.earlier = Some(Box::new(Settled { status, round }));
        }
        state.round = round;
        state.after_stop |= after_stop;
        state.remaining = remaining;
        state.charged = 0;
        state.first_ready_at = None;
        state.give_up_at = None;
        state.paused_ms = 0;
        state.look_at = None;
        state.start_by = None;
        state.details = None;
        state.resolved = false;
        state.telling = None;
    })?;
    if settled {
        view.edit_header(|header| header.open += 1)?;
    }
    if remaining == 0 {
        view.todo.push_back(Todo::Release(step.clone()));
    }
    Ok(())
}

/// Gives the time at which a passing event may be stamped: never before the last one's.
pub fn event_time(header: Option<&Header>, now: Time) -> Time {
    header.map_or(now, |header| now.max(header.changed_at))
}
