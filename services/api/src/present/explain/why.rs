//! 2: why a task is not moving, and who or what can change that.

use standfast_domain::plan::Uses;
use standfast_domain::record::{Claim, Status};
use standfast_domain::time::Time;
use standfast_protocol::explain::{NotStarting, Unattended, Why};
use standfast_protocol::holds::HoldView;
use standfast_protocol::steps::{StepState, WaitingFor};
use standfast_protocol::tasks::TaskView;

use super::super::step;
use super::super::text::{clock, line};
use super::{Facts, SHOWN_MAX, ago, effects};
use crate::reads::Live;
use crate::steps::waiting_for;

/// Characters of a message within a line.
const MESSAGE_CHARS_MAX: usize = 160;

/// Lists holds, attempts and waits, each as a line that says what ends it.
pub(super) fn why(facts: &Facts<'_>, view: &TaskView) -> Why {
    let now = facts.now();
    let mut waiting = Vec::new();
    let unattended = facts.unattended;
    let shown = |hold| effects::hold_lines(facts, hold).unwrap_or_else(|| hold_lines(hold));
    let mut text: Vec<String> = unattended.map(unattended_line).into_iter().collect();
    text.extend(view.holds.iter().flat_map(shown));
    for (live, word, since) in facts.current().into_iter().take(SHOWN_MAX) {
        match word {
            StepState::Running => text.push(running_line(live, now)),
            StepState::Ready | StepState::Retrying => {
                let found = not_starting(facts, live, since);
                text.extend(not_starting_lines(facts, live, since, &found));
                waiting.push(found);
            }
            StepState::Pending
            | StepState::Held
            | StepState::Succeeded
            | StepState::Failed
            | StepState::Skipped
            | StepState::Cancelled => {}
        }
    }
    if text.is_empty() {
        text.push(quiet_line(view));
    }
    Why { holds: view.holds.clone(), waiting, unattended, text }
}

fn unattended_line(who: Unattended) -> String {
    match who {
        Unattended::Nobody => {
            "nobody works on this folder, so nothing moves: standfast run \
                               --resume, or standfast dev"
        }
        Unattended::NoScheduler => {
            "no scheduler lives, so clocks, retries and attempts of lost \
                                    workers wait: standfast scheduler"
        }
    }
    .to_owned()
}

/// Says why a task has no step at work and no hold.
fn quiet_line(view: &TaskView) -> String {
    let failure = view.failure.as_ref().map(|failure| failure.message.as_str());
    match (view.state.is_ended(), failure) {
        (true, Some(failure)) => {
            format!("it has failed and stays so: {}", line(failure, MESSAGE_CHARS_MAX))
        }
        (true, None) => format!("it is {} and stays so", view.state),
        (false, _) => "it moves: its next steps are being released".to_owned(),
    }
}

fn running_line(live: &Live, now: Time) -> String {
    let name = &live.step;
    let Some(claim) = &live.claim else { return format!("`{name}` runs") };
    let details = claim
        .details
        .as_deref()
        .map_or_else(String::new, |details| format!(": {}", line(details, MESSAGE_CHARS_MAX)));
    let watched = claim
        .heartbeat
        .map_or_else(String::new, |most| format!(", its handler silent for {most} at most"));
    format!(
        "`{name}` has run for {} on worker {} (attempt {}), until {} at most{watched}{}{details}",
        ago(claim.started_at, now),
        claim.worker,
        claim.attempt,
        clock(claim.ends_at, now),
        stalled(claim, now)
    )
}

/// Says whose heartbeat is overdue, if one is, and what follows.
fn stalled(claim: &Claim, now: Time) -> String {
    let loses = match claim.expires_at > now {
        true => format!("loses it at {}", clock(claim.expires_at, now)),
        // A scheduler does not trust clocks: it looks for as long as a claim lasts.
        false => format!("loses it once a scheduler has watched it for {}", claim.length),
    };
    if step::handler_overdue_at(claim).is_some_and(|at| at <= now) {
        let heard = clock(claim.heard_at(), now);
        return format!("; stalled: its handler was last heard {heard} and {loses}");
    }
    match step::is_stalled(claim, now) {
        true => format!("; stalled: its worker is silent and {loses}"),
        false => String::new(),
    }
}

fn not_starting(facts: &Facts<'_>, live: &Live, since: Time) -> NotStarting {
    let definition = facts.definitions.get(&live.step);
    NotStarting {
        step: live.step.to_string(),
        queue: definition.map_or_else(String::new, |found| found.plan.queue.to_string()),
        since: since.rfc3339(),
        waiting_for: definition.and_then(|found| waiting_for(found, &live.state, facts.workers)),
        retry_at: match &live.state.status {
            Status::Retrying { at } => Some(at.rfc3339()),
            Status::Pending
            | Status::Ready { .. }
            | Status::Held { .. }
            | Status::Succeeded { .. }
            | Status::Failed { .. }
            | Status::Skipped { .. } => None,
        },
    }
}

fn not_starting_lines(
    facts: &Facts<'_>,
    live: &Live,
    since: Time,
    found: &NotStarting,
) -> Vec<String> {
    let now = facts.now();
    let name = &live.step;
    if let Status::Retrying { at } = &live.state.status {
        let why = live.state.failure.as_ref().map_or_else(String::new, |failure| {
            format!(" after: {}", line(&failure.message, MESSAGE_CHARS_MAX))
        });
        let (at, attempt) = (clock(*at, now), live.state.attempt);
        let mut lines = vec![format!("`{name}` is tried again at {at} (attempt {attempt}){why}")];
        lines.extend(live.state.details.as_ref().map(|details| {
            format!("it goes on from what it last said: {}", line(details, MESSAGE_CHARS_MAX))
        }));
        return lines;
    }
    let (waited, queue) = (ago(since, now), &found.queue);
    let held = facts.survey.base.gate.holds.first();
    let mut lines = match (found.waiting_for, held) {
        (_, Some(hold)) => {
            vec![format!("`{name}` is ready and waits for the hold `{}`", hold.reason)]
        }
        (Some(WaitingFor::NoWorker), None) => {
            let handler = match facts.definitions.get(&live.step).map(|found| &found.plan.uses) {
                Some(Uses::Handler(handler)) => handler.as_str(),
                Some(Uses::Timer) | None => "timer",
            };
            let mut lines = vec![format!(
                "`{name}` has waited {waited}: no_worker, no live worker of queue `{queue}` has \
                 handler `{handler}`"
            )];
            if facts.unattended != Some(Unattended::Nobody) {
                lines.push(match handler {
                    "exec" | "http" => format!("start one: standfast worker --queue {queue}"),
                    own => format!("start the worker of yours that has `{own}`"),
                });
            }
            lines
        }
        (Some(WaitingFor::Unsubscribed), None) => vec![
            format!(
                "`{name}` has waited {waited}: unsubscribed, no worker takes from queue `{queue}` \
                 at the moment"
            ),
            "its workers live; why the broker does not serve them, their /readyz says".to_owned(),
        ],
        (Some(WaitingFor::Concurrency), None) => vec![format!(
            "`{name}` has waited {waited}: concurrency, all workers of queue `{queue}` that can \
             run it are full"
        )],
        (Some(other @ (WaitingFor::Rate | WaitingFor::QueuePaused)), None) => {
            vec![format!("`{name}` has waited {waited}: {}", other.as_str())]
        }
        (None, None) => {
            vec![format!("`{name}` has waited {waited} for a free worker of queue `{queue}`")]
        }
    };
    lines.extend(
        live.state
            .start_by
            .filter(|_| held.is_none())
            .map(|by| format!("it fails unless a worker starts it by {}", clock(by, now))),
    );
    let gate = &facts.survey.base.gate;
    let give_up_at = live.state.gives_up_at(gate, now).filter(|_| gate.paused_at.is_none());
    lines.extend(
        give_up_at.map(|at| {
            format!("it fails unless it is done by {}, attempts included", clock(at, now))
        }),
    );
    lines
}

/// Shows a hold: what happened, who ends it, and the commands.
fn hold_lines(hold: &HoldView) -> Vec<String> {
    let name = hold.step.as_ref().map_or("the task".to_owned(), |step| format!("`{step}`"));
    let until = match (&hold.deadline, &hold.then) {
        (Some(deadline), Some(then)) => format!(" Ends by itself at {deadline} ({then})."),
        (Some(deadline), None) => format!(" Ends by itself at {deadline}."),
        (None, _) => " No deadline.".to_owned(),
    };
    let mut lines = vec![
        format!("{name} is held: {}: {}", hold.reason, line(&hold.message, MESSAGE_CHARS_MAX)),
        format!("{} can end it.{until}", hold.ends_by.join(" or ")),
    ];
    let width = hold.answers.iter().map(|answer| answer.command.len()).max().unwrap_or(0);
    for answer in &hold.answers {
        let mark = if hold.suggested.as_ref() == Some(&answer.answer) { ">" } else { " " };
        lines.push(format!("{mark} {:width$}  ({})", answer.command, answer.effect));
    }
    lines
}
