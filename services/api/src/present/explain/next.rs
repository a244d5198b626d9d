//! 3: what comes next, by itself or on each answer.

use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::record::Status;
use standfast_domain::time::Time;
use standfast_protocol::explain::{Next, NextStep};
use standfast_protocol::steps::StepState;
use standfast_protocol::tasks::TaskView;

use super::super::text::{clock, names};
use super::{Facts, SHOWN_MAX};

/// Lists what follows on the current steps.
pub(super) fn next(facts: &Facts<'_>, view: &TaskView) -> Next {
    let mut steps = Vec::new();
    let mut text = Vec::new();
    let mut moving: Vec<StepId> = Vec::new();
    for (live, word, _) in facts.current().into_iter().take(SHOWN_MAX) {
        let after = facts.after(&live.step);
        let held = match &live.state.status {
            Status::Held { hold } if word == StepState::Held => Some(hold.reason),
            _ => None,
        };
        match held {
            Some(HoldReason::Timer) | None => {
                moving.extend(
                    after.into_iter().filter(|step| !moving.contains(step)).collect::<Vec<_>>(),
                );
            }
            Some(reason) => text.push(after_answers(reason, &live.step, after, &mut steps)),
        }
    }
    if !moving.is_empty() {
        let list: Vec<&str> = moving.iter().map(StepId::as_str).collect();
        text.insert(0, format!("then: {}", names(&list)));
        let by_itself = |step: &StepId| NextStep { step: step.to_string(), after: None };
        steps.splice(0..0, moving.iter().take(SHOWN_MAX).map(by_itself));
    }
    let at = next_time(facts);
    text.extend(at.map(|at| format!("a clock moves it at {}", clock(at, facts.now()))));
    let finally: Vec<&str> = facts.survey.base.meta.finally.iter().map(StepId::as_str).collect();
    if view.state.is_ended() {
        text = vec!["nothing: it has ended".to_owned()];
    } else if text.is_empty() {
        text.push("the checks of completion, then the end".to_owned());
    }
    if !finally.is_empty() && !view.state.is_ended() {
        text.push(format!("finally: {}", names(&finally)));
    }
    Next { steps, at: at.map(Time::rfc3339), text }
}

/// Says what follows on each answer to a held step.
fn after_answers(
    reason: HoldReason,
    step: &StepId,
    after: Vec<StepId>,
    steps: &mut Vec<NextStep>,
) -> String {
    let after: Vec<String> = after.iter().map(StepId::to_string).collect();
    let again: Vec<String> =
        std::iter::once(step.to_string()).chain(after.iter().cloned()).collect();
    let each = match reason {
        HoldReason::UncertainEffect => [(Answer::Happened, &after), (Answer::NotHappened, &again)],
        HoldReason::EffectChanged => [(Answer::Keep, &after), (Answer::SendAlso, &again)],
        HoldReason::Timer
        | HoldReason::Paused
        | HoldReason::Failures
        | HoldReason::WorkerDied
        | HoldReason::Verification
        | HoldReason::UndoFailed => [(Answer::Retry, &again), (Answer::Skip, &after)],
    };
    for (answer, list) in each {
        let after = Some(answer.to_string());
        steps.extend(list.iter().map(|name| NextStep { step: name.clone(), after: after.clone() }));
    }
    let each = each.map(|(answer, list)| format!("{answer}: {}", names(list)));
    each.join(" · ")
}

/// Finds the next moment at which a clock moves the task; clocks that stand still do not count.
fn next_time(facts: &Facts<'_>) -> Option<Time> {
    let (header, gate, now) = (&facts.survey.base.header, &facts.survey.base.gate, facts.now());
    let paused = gate.paused_at.is_some();
    if header.state.is_final() {
        return None;
    }
    let of_steps =
        facts.current().into_iter().filter_map(|(live, _, _)| match &live.state.status {
            Status::Retrying { at } => Some(*at),
            Status::Held { hold } => hold.ends_at(gate, now).filter(|_| !hold.stands_still(gate)),
            Status::Ready { .. } => {
                let waits = live.claim.is_none() && gate.holds.is_empty();
                let start_by = live.state.start_by.filter(|_| waits);
                let give_up_at = live.state.gives_up_at(gate, now).filter(|_| !paused);
                start_by.into_iter().chain(give_up_at).min()
            }
            Status::Pending
            | Status::Succeeded { .. }
            | Status::Failed { .. }
            | Status::Skipped { .. } => None,
        });
    of_steps.chain(header.deadline_at.filter(|_| !paused)).min()
}
