//! The six questions, answered as facts and as lines to show.

use std::collections::{BTreeMap, BTreeSet};

use standfast_domain::hold::HoldReason;
use standfast_domain::ids::StepId;
use standfast_domain::outcome::FailureClass;
use standfast_domain::record::{Definition, Status};
use standfast_domain::time::Time;
use standfast_engine::registry::WorkerInfo;
use standfast_protocol::artifacts::ArtifactView;
use standfast_protocol::explain::{
    CurrentStep, Explain, ExplainedTask, Landed, Next, NextStep, NotStarting, Open, Stands,
    StopNow, Why,
};
use standfast_protocol::holds::HoldView;
use standfast_protocol::steps::{StepState, WaitingFor};
use standfast_protocol::tasks::{StepCounts, TaskView};

use super::text::{bytes, clock, count, line, money, names, plain, span};
use super::{step, task};
use crate::reads::{Live, Survey};
use crate::steps::waiting_for;

/// Names that a list of the answers holds.
pub(crate) const SHOWN_MAX: usize = 20;
/// Characters of a message within a line.
const MESSAGE_CHARS_MAX: usize = 160;
/// Artifacts that are named one by one.
const ARTIFACTS_SHOWN: usize = 8;

/// What the answers are made of.
pub(crate) struct Facts<'a> {
    pub survey: &'a Survey,
    /// Of the current steps and what follows on them.
    pub definitions: &'a BTreeMap<StepId, Definition>,
    pub artifacts: &'a [ArtifactView],
    /// The first of the plan's steps that are not settled.
    pub pending: &'a [StepId],
    pub workers: &'a [WorkerInfo],
}

/// Answers all six.
pub(crate) fn explain(facts: &Facts<'_>) -> Explain {
    let view = task::view(facts.survey);
    Explain {
        task: head(facts, &view),
        stands: stands(facts, &view),
        why: why(facts, &view),
        next: next(facts, &view),
        landed: landed(facts),
        open: open(facts),
        stop_now: stop_now(facts, &view),
    }
}

impl Facts<'_> {
    fn now(&self) -> Time {
        self.survey.now
    }

    fn word(&self, live: &Live) -> StepState {
        let phase = &self.survey.base.header.phase;
        step::state(phase, live.finally, &live.state, live.claim.is_some())
    }

    /// Walks the steps at work or held that the task still wants, oldest first.
    fn current(&self) -> Vec<(&Live, StepState, Time)> {
        let base = &self.survey.base;
        let mut current: Vec<_> = self
            .survey
            .live
            .iter()
            .map(|live| (live, self.word(live)))
            .filter(|(_, word)| *word != StepState::Cancelled)
            .map(|(live, word)| {
                (live, word, step::since(base, word, &live.state, live.claim.as_ref()))
            })
            .collect();
        current.sort_by_key(|(live, _, since)| (*since, live.number));
        current
    }

    fn running(&self) -> Vec<String> {
        let running = self.survey.live.iter().filter(|live| live.claim.is_some());
        running.map(|live| live.step.to_string()).collect()
    }

    /// Names what follows on a step, nearest first.
    fn after(&self, from: &StepId) -> Vec<StepId> {
        let mut seen = BTreeSet::from([from]);
        let mut order: Vec<&StepId> = vec![from];
        let mut at = 0;
        while at < order.len() && order.len() <= SHOWN_MAX {
            let dependents = self.definitions.get(order[at]).map(|found| &found.dependents[..]);
            for dependent in dependents.unwrap_or_default() {
                if seen.insert(&dependent.step) {
                    order.push(&dependent.step);
                }
            }
            at += 1;
        }
        order.into_iter().skip(1).take(SHOWN_MAX).cloned().collect()
    }
}

fn ago(since: Time, now: Time) -> String {
    span(now.since(since))
}

fn head(facts: &Facts<'_>, view: &TaskView) -> ExplainedTask {
    let base = &facts.survey.base;
    let (since, now) = (base.header.changed_at, facts.now());
    let hold = view.holds.iter().find(|hold| {
        (hold.class == standfast_protocol::holds::HoldClass::Blocked)
            == (view.state == standfast_protocol::tasks::TaskState::Blocked)
    });
    let reason = match (view.state.is_ended(), hold) {
        (false, Some(hold)) if !is_moving(view) => format!(": {}", hold.reason),
        _ => String::new(),
    };
    let stalled = if view.stalled { " (stalled)" } else { "" };
    let first = format!(
        "{} {} · {}{reason}{stalled} since {} ({}) · owner {}",
        view.kind,
        view.id,
        view.state,
        clock(since, now),
        ago(since, now),
        view.owner
    );
    ExplainedTask {
        id: view.id.clone(),
        kind: view.kind.clone(),
        goal: view.goal.clone(),
        owner: view.owner.clone(),
        at: now.rfc3339(),
        text: vec![first],
    }
}

fn is_moving(view: &TaskView) -> bool {
    view.state == standfast_protocol::tasks::TaskState::Running
}

fn stands(facts: &Facts<'_>, view: &TaskView) -> Stands {
    let current = facts.current();
    let shown = current.iter().take(SHOWN_MAX).map(|(live, word, since)| CurrentStep {
        step: live.step.to_string(),
        number: live.number,
        state: *word,
        since: since.rfc3339(),
        attempt: match (&live.claim, facts.definitions.get(&live.step)) {
            (Some(claim), _) => claim.attempt,
            (None, Some(definition)) => step::last_attempt(definition, &live.state, false),
            (None, None) => live.state.attempt.saturating_sub(1),
        },
        worker: live.claim.as_ref().map(|claim| claim.worker.to_string()),
    });
    let shown: Vec<CurrentStep> = shown.collect();
    let place = match &shown[..] {
        [] => count(view.steps.total, "step"),
        [one] => format!("step {} of {} `{}`", one.number, view.steps.total, one.step),
        many => {
            let list: Vec<&str> = many.iter().map(|one| one.step.as_str()).collect();
            format!("{} of {}: {}", current.len(), count(view.steps.total, "step"), names(&list))
        }
    };
    let attempts = count(view.attempts, "attempt");
    let mut text = vec![format!(
        "{place}; {} · {attempts}, {}",
        counted(&view.steps),
        money(view.cost_usd_micros)
    )];
    text.extend(view.checkpoint.as_ref().map(|name| format!("last checkpoint: {name}")));
    text.extend(view.stop.as_ref().map(|stop| {
        let why = stop.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        line(&format!("stop ({}) asked for by {} at {}{why}", stop.mode, stop.by, stop.at), 400)
    }));
    Stands {
        state: view.state,
        since: facts.survey.base.header.changed_at.rfc3339(),
        stalled: view.stalled,
        current: shown,
        steps: view.steps.clone(),
        attempts: view.attempts,
        cost_usd_micros: view.cost_usd_micros,
        limit_usd_micros: None,
        checkpoint: view.checkpoint.clone(),
        stop: view.stop.clone(),
        text,
    }
}

fn counted(counts: &StepCounts) -> String {
    let each = [
        (counts.succeeded, "succeeded"),
        (counts.failed, "failed"),
        (counts.skipped, "skipped"),
        (counts.cancelled, "cancelled"),
        (counts.running, "running"),
        (counts.ready, "ready"),
        (counts.retrying, "retrying"),
        (counts.held, "held"),
        (counts.pending, "pending"),
    ];
    let some = each.iter().filter(|(number, _)| *number > 0);
    some.map(|(number, word)| format!("{number} {word}")).collect::<Vec<_>>().join(", ")
}

fn why(facts: &Facts<'_>, view: &TaskView) -> Why {
    let now = facts.now();
    let mut waiting = Vec::new();
    let mut text: Vec<String> = view.holds.iter().flat_map(hold_lines).collect();
    for (live, word, since) in facts.current().into_iter().take(SHOWN_MAX) {
        match word {
            StepState::Running => text.push(running_line(live, now)),
            StepState::Ready | StepState::Retrying => {
                let found = not_starting(facts, live, since);
                text.push(not_starting_line(facts, live, since, &found));
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
    Why { holds: view.holds.clone(), waiting, text }
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
    let heard = match step::is_stalled(claim, now) {
        true => format!("; its worker is silent and loses it at {}", clock(claim.expires_at, now)),
        false => String::new(),
    };
    format!(
        "`{name}` has run for {} on worker {} (attempt {}), until {} at most{heard}{details}",
        ago(claim.started_at, now),
        claim.worker,
        claim.attempt,
        clock(claim.ends_at, now)
    )
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

fn not_starting_line(facts: &Facts<'_>, live: &Live, since: Time, found: &NotStarting) -> String {
    let now = facts.now();
    let name = &live.step;
    if let Status::Retrying { at } = &live.state.status {
        let why = live.state.failure.as_ref().map_or_else(String::new, |failure| {
            format!(" after: {}", line(&failure.message, MESSAGE_CHARS_MAX))
        });
        return format!(
            "`{name}` is tried again at {} (attempt {}){why}",
            clock(*at, now),
            live.state.attempt
        );
    }
    let waited = ago(since, now);
    let held = facts.survey.base.gate.holds.first();
    match (found.waiting_for, held) {
        (_, Some(hold)) => format!("`{name}` is ready and waits for the hold `{}`", hold.reason),
        (Some(WaitingFor::NoWorker), None) => {
            let queue = &found.queue;
            let handler = facts.definitions.get(&live.step).map(|known| match &known.plan.uses {
                standfast_domain::plan::Uses::Handler(handler) => handler.to_string(),
                standfast_domain::plan::Uses::Timer => "timer".to_owned(),
            });
            format!(
                "`{name}` has waited {waited}: no_worker, no live worker of queue `{queue}` has \
                 handler `{}`; start one: standfast worker --queue {queue}",
                handler.unwrap_or_default()
            )
        }
        (Some(other), None) => format!("`{name}` has waited {waited}: {}", other.as_str()),
        (None, None) => {
            format!("`{name}` has waited {waited} for a free worker of queue `{}`", found.queue)
        }
    }
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

fn next(facts: &Facts<'_>, view: &TaskView) -> Next {
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
            Some(_) => text.push(after_answers(&live.step, after, &mut steps)),
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

/// Says what follows on each answer to a failed step.
fn after_answers(step: &StepId, after: Vec<StepId>, steps: &mut Vec<NextStep>) -> String {
    let after: Vec<String> = after.iter().map(StepId::to_string).collect();
    let again: Vec<String> =
        std::iter::once(step.to_string()).chain(after.iter().cloned()).collect();
    for (answer, list) in [("retry", &again), ("skip", &after)] {
        steps.extend(
            list.iter().map(|name| NextStep { step: name.clone(), after: Some(answer.to_owned()) }),
        );
    }
    format!("retry: {} · skip: {}", names(&again), names(&after))
}

/// Finds the next moment at which a clock moves the task.
fn next_time(facts: &Facts<'_>) -> Option<Time> {
    let header = &facts.survey.base.header;
    if header.state.is_final() {
        return None;
    }
    let of_steps = facts.survey.live.iter().filter_map(|live| match &live.state.status {
        Status::Retrying { at } => Some(*at),
        Status::Held { hold } => hold.due,
        Status::Ready { .. } => live.state.give_up_at,
        Status::Pending
        | Status::Succeeded { .. }
        | Status::Failed { .. }
        | Status::Skipped { .. } => None,
    });
    of_steps.chain(header.deadline_at).min()
}

fn landed(facts: &Facts<'_>) -> Landed {
    let artifacts = facts.artifacts;
    let mut text: Vec<String> = artifacts
        .iter()
        .take(ARTIFACTS_SHOWN)
        .map(|artifact| {
            format!("{}: {} {}", artifact.step, plain(&artifact.name), bytes(artifact.bytes))
        })
        .collect();
    match artifacts.len().saturating_sub(ARTIFACTS_SHOWN) {
        0 => {}
        more => text.push(format!("and {more} more artifacts")),
    }
    if text.is_empty() {
        text.push("no artifacts; what handlers changed elsewhere stands in their logs".to_owned());
    }
    Landed { effects: Vec::new(), artifacts: artifacts.to_vec(), text }
}

/// A running attempt may be changing something now; of one that was lost it is not known.
fn open(facts: &Facts<'_>) -> Open {
    let in_flight = facts.running();
    let lost = |live: &&Live| {
        let failure = live.state.failure.as_ref();
        live.claim.is_none() && failure.is_some_and(|last| last.class == FailureClass::Lost)
    };
    let uncertain: Vec<String> =
        facts.survey.live.iter().filter(lost).map(|live| live.step.to_string()).collect();
    let text = vec![format!(
        "staged: none · in flight: {} · uncertain: {}",
        names(&in_flight),
        names(&uncertain)
    )];
    Open { staged: Vec::new(), in_flight, uncertain, text }
}

fn stop_now(facts: &Facts<'_>, view: &TaskView) -> StopNow {
    let base = &facts.survey.base;
    let nothing = |text: String| StopNow {
        told_to_end: Vec::new(),
        will_not_happen: Vec::new(),
        stays: Vec::new(),
        to_settle: Vec::new(),
        finally: Vec::new(),
        command: None,
        text: vec![text],
    };
    if view.state.is_ended() {
        return nothing("nothing: it has ended".to_owned());
    }
    if !matches!(base.header.phase, standfast_domain::record::Phase::Main) {
        return nothing("nothing more: it is ending already".to_owned());
    }
    let told_to_end = facts.running();
    let will_not_happen: Vec<String> = facts
        .pending
        .iter()
        .map(StepId::to_string)
        .filter(|step| !told_to_end.contains(step))
        .take(SHOWN_MAX)
        .collect();
    let counts = &view.steps;
    let finally: Vec<String> = base.meta.finally.iter().map(StepId::to_string).collect();
    let left = (counts.total - finally.len() as u64)
        .saturating_sub(counts.succeeded + counts.failed + counts.skipped + counts.running);
    let more = left.saturating_sub(will_not_happen.len() as u64);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let command = format!("standfast stop {} --mode halt", base.task);
    let mut text = vec![format!(
        "halt: nothing more starts; told to end: {} · will not happen: {}{rest}",
        names(&told_to_end),
        names(&will_not_happen),
    )];
    text.push("what succeeded stays, with its artifacts".to_owned());
    if !finally.is_empty() {
        text.push(format!("then finally: {}", names(&finally)));
    }
    text.push(command.clone());
    let (stays, to_settle) = (Vec::new(), Vec::new());
    StopNow {
        told_to_end,
        will_not_happen,
        stays,
        to_settle,
        finally,
        command: Some(command),
        text,
    }
}

#[cfg(test)]
mod tests {
    use standfast_domain::hold::Hold;
    use standfast_domain::ids::{HandlerName, Queue};
    use standfast_domain::plan::{Retry, StepPlan, Timeouts, Uses};
    use standfast_domain::record::{Dependent, StepState as Stored};

    use super::super::task::tests::base;
    use super::*;

    fn id(name: &str) -> StepId {
        StepId::new(name).unwrap()
    }

    fn definition(name: &str, dependents: &[&str]) -> (StepId, Definition) {
        let plan = StepPlan {
            id: id(name),
            uses: Uses::Handler(HandlerName::new("exec").unwrap()),
            queue: Queue::new("default").unwrap(),
            needs: Vec::new(),
            condition: None,
            with: serde_json::Value::Null,
            timeout: Timeouts::default(),
            retry: Retry::default(),
            artifact: None,
            checkpoint: None,
            on_failure: None,
        };
        let waiting = dependents
            .iter()
            .map(|name| Dependent { step: id(name), needs: 1, tolerant: false })
            .collect();
        let definition = Definition {
            plan,
            needs_count: 0,
            dependents: waiting,
            dependents_chunks: 0,
            finally: false,
            added_by: None,
            redo: Vec::new(),
            templated: false,
        };
        (id(name), definition)
    }

    fn lines(status: Status, edit: impl FnOnce(&mut Survey)) -> String {
        let mut base = base();
        base.header.started = true;
        base.header.succeeded = 1;
        base.header.open = 2;
        match &status {
            Status::Held { .. } => base.header.blocked = 1,
            _ => base.header.active = 1,
        }
        base.header.state = base.header.shown();
        let state = Stored { status, ..Stored::pending(0) };
        let live = Live { number: 2, step: id("pay"), state, claim: None, finally: false };
        let mut survey = Survey::of(base, vec![live]);
        survey.now = Time(720_000);
        edit(&mut survey);
        let definitions = BTreeMap::from([definition("pay", &["mail"]), definition("mail", &[])]);
        let facts = Facts {
            survey: &survey,
            definitions: &definitions,
            artifacts: &[],
            pending: &[id("pay"), id("mail")],
            workers: &[],
        };
        explain(&facts).lines().join("\n").replace(survey.base.task.as_str(), "TASK")
    }

    #[test]
    fn a_held_step_shows_its_answers() {
        let hold = Hold {
            reason: HoldReason::Failures,
            message: "exit code 1".into(),
            since: Time(0),
            due: None,
        };
        insta::assert_snapshot!(lines(Status::Held { hold }, |_| {}), @"");
    }

    #[test]
    fn a_ready_step_without_a_worker_says_so() {
        let status = Status::Ready { since: Time(0), queue: Queue::new("default").unwrap() };
        insta::assert_snapshot!(lines(status, |_| {}), @"");
    }
}
