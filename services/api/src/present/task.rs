//! A task as readers see it.

use standfast_domain::hold::HoldReason;
use standfast_domain::ids::{Principal, StepId};
use standfast_domain::record::{Part, Phase, Stop, TaskState as State};
use standfast_domain::time::Time;
use standfast_protocol::steps::StepState;
use standfast_protocol::tasks::{
    FailureView, PauseView, StepCounts, StopView, TaskState, TaskView,
};

use super::text::plain;
use super::{hold, step};
use crate::reads::Survey;

/// Gives a state in the protocol's words.
pub(crate) fn state(state: State) -> TaskState {
    match state {
        State::Queued => TaskState::Queued,
        State::Running => TaskState::Running,
        State::Waiting => TaskState::Waiting,
        State::Blocked => TaskState::Blocked,
        State::Cancelling => TaskState::Cancelling,
        State::Cancelled => TaskState::Cancelled,
        State::Completed => TaskState::Completed,
        State::Failed => TaskState::Failed,
    }
}

/// Shows a task.
pub(crate) fn view(survey: &Survey) -> TaskView {
    let base = &survey.base;
    let (header, meta) = (&base.header, &base.meta);
    let running = survey.live.iter().filter(|live| live.claim.is_some()).count() as u64;
    TaskView {
        id: base.task.to_string(),
        kind: meta.kind.to_string(),
        goal: meta.goal.clone(),
        state: state(header.state),
        stalled: is_stalled(survey),
        waiting_for: survey.waiting_for,
        owner: meta.owner.to_string(),
        operators: names(&meta.operators),
        approvers: names(&meta.approvers),
        viewers: names(&meta.viewers),
        labels: meta.labels.clone(),
        created_at: header.created_at.rfc3339(),
        changed_at: header.changed_at.rfc3339(),
        ended_at: ended_at(survey).map(Time::rfc3339),
        steps: counts(survey),
        attempts: header.attempts + running,
        cost_usd_micros: header.cost_usd_micros,
        holds: holds(survey),
        deadline: header.deadline_at.map(Time::rfc3339),
        checkpoint: header.checkpoint.clone(),
        pause: pause(survey),
        stop: base.gate.stop.as_ref().map(stop),
        failure: failure(survey),
    }
}

fn names(people: &[Principal]) -> Vec<String> {
    people.iter().map(Principal::to_string).collect()
}

/// Says whether a running attempt's heartbeat is overdue.
pub(crate) fn is_stalled(survey: &Survey) -> bool {
    survey
        .live
        .iter()
        .any(|live| live.claim.as_ref().is_some_and(|claim| step::is_stalled(claim, survey.now)))
}

fn ended_at(survey: &Survey) -> Option<Time> {
    match survey.base.header.phase {
        Phase::Ended { at, .. } => Some(at),
        Phase::Main | Phase::Closing { .. } | Phase::Undoing { .. } | Phase::Finally { .. } => None,
    }
}

/// Shows the pause of a task that is paused.
pub(crate) fn pause(survey: &Survey) -> Option<PauseView> {
    let paused = survey.base.gate.holds.iter().filter(|hold| hold.reason == HoldReason::Paused);
    let since = paused.map(|hold| hold.since).min()?;
    let drained = survey.live.iter().all(|live| live.claim.is_none());
    Some(PauseView { since: since.rfc3339(), drained })
}

/// Shows a stop.
pub(crate) fn stop(stop: &Stop) -> StopView {
    StopView {
        mode: stop.mode.to_string(),
        reason: stop.reason.as_deref().map(plain),
        by: stop.by.to_string(),
        at: stop.at.rfc3339(),
    }
}

/// Lists every open hold, the task's own first. What has ended holds nothing any more.
pub(crate) fn holds(survey: &Survey) -> Vec<standfast_protocol::holds::HoldView> {
    let base = &survey.base;
    if base.header.state.is_final() {
        return Vec::new();
    }
    let own = base.gate.holds.iter().map(|open| hold::view(base, survey.now, None, open));
    let of_steps = survey.live.iter().filter_map(|live| {
        let open = step::open_hold(&base.header.phase, live.part, &live.state)?;
        Some(hold::view(base, survey.now, Some(&live.step), open))
    });
    own.chain(of_steps).collect()
}

/// Counts steps by where they stand; the counts add up.
pub(crate) fn counts(survey: &Survey) -> StepCounts {
    let header = &survey.base.header;
    let phase = &header.phase;
    let total = u64::from(header.steps + header.undos) + survey.base.meta.finally.len() as u64;
    let mut counts = StepCounts {
        total,
        succeeded: header.succeeded.into(),
        failed: header.failed.into(),
        skipped: header.skipped.into(),
        ..StepCounts::default()
    };
    for live in &survey.live {
        match step::state(phase, live.part, &live.state, live.claim.is_some()) {
            StepState::Ready => counts.ready += 1,
            StepState::Running => counts.running += 1,
            StepState::Retrying => counts.retrying += 1,
            StepState::Held => counts.held += 1,
            StepState::Pending
            | StepState::Succeeded
            | StepState::Failed
            | StepState::Skipped
            | StepState::Cancelled => {}
        }
    }
    let moving = counts.ready + counts.running + counts.retrying + counts.held;
    let (open, finally_open) = (u64::from(header.open), u64::from(header.finally_open));
    let running_of_plan =
        survey.live.iter().filter(|live| live.claim.is_some() && live.part == Part::Main).count()
            as u64;
    counts.cancelled = match phase {
        Phase::Main => 0,
        Phase::Closing { .. } => open.saturating_sub(running_of_plan),
        Phase::Undoing { .. } | Phase::Finally { .. } => open,
        Phase::Ended { .. } => open + finally_open,
    };
    let settled = counts.succeeded + counts.failed + counts.skipped + counts.cancelled;
    counts.pending = total.saturating_sub(settled + moving);
    counts
}

/// Reads the step out of the reason that a failed task was given.
pub(crate) fn failing_step(reason: &str) -> Option<StepId> {
    let (name, _) = reason.strip_prefix("step `")?.split_once('`')?;
    StepId::new(name).ok()
}

/// Says why a task has failed.
fn failure(survey: &Survey) -> Option<FailureView> {
    let header = &survey.base.header;
    if header.state != State::Failed {
        return None;
    }
    let reason = header.failure.as_deref()?;
    let of_step = survey.cause.as_ref().and_then(|(_, state)| state.failure.as_ref());
    let class = match (&survey.cause, of_step) {
        (_, Some(failure)) => failure.class.as_str(),
        (Some(_), None) => "permanent",
        (None, None) => "timeout", // without a step it was the deadline
    };
    Some(FailureView {
        step: survey.cause.as_ref().map(|(step, _)| step.to_string()),
        class: class.to_owned(),
        message: plain(reason),
        at: of_step.map_or(header.changed_at, |failure| failure.at).rfc3339(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;
    use standfast_domain::ceiling::Ceiling;
    use standfast_domain::ids::{Kind, TaskId};
    use standfast_domain::record::{Ending, Gate, Header, Meta};
    use standfast_domain::time::Span;

    use super::*;
    use crate::reads::Base;

    pub(crate) fn base() -> Base {
        let who = |text: &str| Principal::new(text).unwrap();
        let meta = Meta {
            kind: Kind::new("refund").unwrap(),
            goal: String::new(),
            input: Value::Null,
            owner: who("user:ana"),
            submitted_by: who("user:ana"),
            viewers: Vec::new(),
            operators: vec![who("group:finance")],
            approvers: Vec::new(),
            ceiling: Ceiling::default(),
            labels: BTreeMap::new(),
            idempotency_key: None,
            body_sha256: None,
            created_at: Time(0),
            plan_dir: None,
            complete_when: None,
            artifacts: Vec::new(),
            deadline: None,
            retention: Span(0),
            finally: vec![StepId::new("tidy").unwrap()],
            traceparent: None,
        };
        let header = Header::new(Time(0), 3, 1, None);
        Base { task: TaskId::random([1; 16]), header, gate: Gate::default(), meta }
    }

    fn survey(edit: impl FnOnce(&mut Header)) -> Survey {
        let mut base = base();
        edit(&mut base.header);
        Survey::of(base, Vec::new())
    }

    fn sum(counts: &StepCounts) -> u64 {
        let StepCounts { total: _, pending, ready, running, retrying, held, .. } = counts;
        let settled = counts.succeeded + counts.failed + counts.skipped + counts.cancelled;
        pending + ready + running + retrying + held + settled
    }

    #[test]
    fn counts_add_up_in_every_phase() {
        let ending = Ending::Cancelled;
        for (phase, cancelled, pending) in [
            (Phase::Main, 0, 3),
            (Phase::Closing { ending }, 2, 1),
            (Phase::Finally { ending }, 2, 1),
            (Phase::Ended { ending, at: Time(1) }, 3, 0),
        ] {
            let counts = counts(&survey(|header| {
                header.phase = phase;
                header.open = 2;
                header.succeeded = 1;
            }));
            assert_eq!((counts.cancelled, counts.pending), (cancelled, pending), "{phase:?}");
            assert_eq!(sum(&counts), counts.total, "{phase:?}");
        }
    }

    #[test]
    fn a_failed_task_names_its_step() {
        let step = failing_step("step `a.b` failed: it said `no`").unwrap();
        assert_eq!(step.as_str(), "a.b");
        assert_eq!(failing_step("its deadline has passed"), None);
    }
}
