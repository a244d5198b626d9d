//! The six questions, answered as facts and as lines to show.

mod effects;
mod next;
mod stop;
mod why;

use std::collections::{BTreeMap, BTreeSet};

use standfast_domain::ids::StepId;
use standfast_domain::record::Definition;
use standfast_domain::stop_plan::{Became, Item, Subject};
use standfast_domain::time::Time;
use standfast_engine::registry::WorkerInfo;
use standfast_protocol::artifacts::ArtifactView;
use standfast_protocol::explain::{CurrentStep, Explain, ExplainedTask, Stands, Unattended};
use standfast_protocol::holds::{HoldClass, HoldView};
use standfast_protocol::steps::StepState;
use standfast_protocol::tasks::{StepCounts, TaskState, TaskView};

pub(crate) use stop::Stopping;

use super::effect::Seen;
use super::text::{clock, count, line, money, names, span};
use super::{step, task};
use crate::reads::{Live, Survey};

/// Names that a list of the answers holds.
pub(crate) const SHOWN_MAX: usize = 20;

/// What a task's effects have done outside, or may have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outside {
    /// In flight or uncertain, in the order of the plan.
    pub open: Vec<Seen>,
    /// Landed, oldest first.
    pub landed: Vec<Seen>,
}

/// What the answers are made of.
pub(crate) struct Facts<'a> {
    pub survey: &'a Survey,
    /// Of the current steps and what follows on them.
    pub definitions: &'a BTreeMap<StepId, Definition>,
    pub artifacts: &'a [ArtifactView],
    pub workers: &'a [WorkerInfo],
    /// Who is missing so that it can move at all.
    pub unattended: Option<Unattended>,
    pub outside: &'a Outside,
    /// Of the first of the plan's steps that are not settled: those that declare an effect.
    pub staged: &'a [StepId],
    /// Among how many of them was looked.
    pub staged_among: usize,
    /// What a stop would do, or has done.
    pub stopping: &'a Stopping,
}

/// Answers all six.
pub(crate) fn explain(facts: &Facts<'_>) -> Explain {
    let view = task::view(facts.survey);
    Explain {
        task: head(facts, &view),
        stands: stands(facts, &view),
        why: why::why(facts, &view),
        next: next::next(facts, &view),
        landed: effects::landed(facts),
        open: effects::open(facts, &view.holds),
        stop_now: stop::stop_now(facts),
    }
}

impl Facts<'_> {
    fn now(&self) -> Time {
        self.survey.now
    }

    fn word(&self, live: &Live) -> StepState {
        let phase = &self.survey.base.header.phase;
        step::state(phase, live.part, &live.state, live.claim.is_some())
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

    /// True if the plan says how to undo an effect that has landed, and nothing has yet.
    fn can_be_undone(&self, seen: &Seen) -> bool {
        if seen.undone_at.is_some() {
            return false;
        }
        let of = |item: &Item| {
            let Subject::Effect { step, name, generation } = &item.subject else { return false };
            *step == seen.step && *name == seen.name && *generation == seen.effect.generation
        };
        let item = match self.stopping {
            Stopping::Planned(plans) => {
                plans.first().and_then(|planned| planned.plan.items.iter().find(|item| of(item)))
            }
            Stopping::Stopped(settlement) => {
                let to_come =
                    |became| matches!(became, Became::ToUndo | Became::Undoing | Became::UndoHeld);
                let left = settlement.items.iter().filter(|settled| to_come(settled.became));
                left.map(|settled| &settled.item).find(|item| of(item))
            }
            Stopping::Decided => None,
        };
        item.is_some_and(|item| item.undo.is_some())
    }

    /// Names what follows on a step, nearest first, of what its task still comes to.
    fn after(&self, from: &StepId) -> Vec<StepId> {
        let base = &self.survey.base;
        let comes = |step: &&StepId| !base.header.phase.is_past(base.meta.part(step));
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
        order.into_iter().skip(1).filter(comes).take(SHOWN_MAX).cloned().collect()
    }
}

fn ago(since: Time, now: Time) -> String {
    span(now.since(since))
}

fn head(facts: &Facts<'_>, view: &TaskView) -> ExplainedTask {
    let (since, now) = (since(facts, view), facts.now());
    let reason = telling_hold(view).map_or_else(String::new, |hold| format!(": {}", hold.reason));
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

/// Finds the hold that says why the task stands still, if one does.
fn telling_hold(view: &TaskView) -> Option<&HoldView> {
    let blocked = view.state == TaskState::Blocked;
    let stands = !view.state.is_ended() && view.state != TaskState::Running;
    view.holds.iter().find(|hold| stands && (hold.class == HoldClass::Blocked) == blocked)
}

/// Since when it stands where it stands: a hold lasts whatever else happens meanwhile.
fn since(facts: &Facts<'_>, view: &TaskView) -> Time {
    let held = telling_hold(view).and_then(|hold| Time::parse_rfc3339(&hold.since));
    held.unwrap_or(facts.survey.base.header.changed_at)
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
        since: since(facts, view).rfc3339(),
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

#[cfg(test)]
mod tests;
