//! Stop plans and settlements over a whole life: what a plan's digest changes with and what not,
//! and that the last plan before a stop and the settlement after it name the same.

use std::collections::BTreeSet;

use standfast_domain::event::{Change, Event};
use standfast_domain::evolve::evolve;
use standfast_domain::ids::TaskId;
use standfast_domain::invariants::Records;
use standfast_domain::record::{Key, Phase, Record, StopMode};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::stop_plan::{
    Became, Fate, Item, Settled, Settlement, StopPlan, Subject, plan, settlement,
};
use standfast_domain::view::View;

/// Steps of a task up to which each commit is looked at: a look reads all of them.
const STEPS_MAX: u32 = 60;

/// The items of the last plan before the stop, once it was asked for.
#[derive(Default)]
pub struct Planned {
    items: Option<Vec<Item>>,
}

/// A view of these records and no others.
pub fn view_of(task: &TaskId, records: &Records) -> View {
    let mut view = View::new(task.clone());
    for (key, record) in records {
        view.load(key.clone(), Some(record.clone()), None);
    }
    view
}

/// Computes over a view; what it does not know is absent.
pub fn over<T>(view: &mut View, compute: impl Fn(&View) -> Result<T, Halt>) -> Result<T, Refusal> {
    loop {
        match compute(view) {
            Ok(value) => return Ok(value),
            Err(Halt::Refuse(refusal)) => return Err(refusal),
            Err(Halt::Need(keys)) => keys.into_iter().for_each(|key| view.load_absent(key)),
        }
    }
}

fn planned(view: &mut View, mode: StopMode) -> Result<StopPlan, Refusal> {
    over(view, |view| plan(view, mode))
}

impl Planned {
    /// Looks at a commit that was applied over the records `before`.
    pub fn commit(&mut self, task: &TaskId, before: &Records, now: &Records, events: &[Event]) {
        let small = match before.get(&Key::Header) {
            Some(Record::Header(header)) => header.steps <= STEPS_MAX,
            _ => false,
        };
        if !small {
            return;
        }
        let stop = events.iter().position(|event| is_stop(&event.change));
        if let (Some(place), None) = (stop, &self.items) {
            self.items = last_plan(task, before, now, &events[..place]);
        }
        match &self.items {
            None => digests(task, before, now, events),
            Some(items) => {
                let came_to = over(&mut view_of(task, now), settlement).expect("it was stopped");
                same_items(items, &came_to);
                if came_to.ended_at.is_some() {
                    came_to.items.iter().for_each(rests);
                }
            }
        }
    }
}

fn is_stop(change: &Change) -> bool {
    matches!(change, Change::StopRequested { .. })
}

/// The plan as it was in the midst of a commit, just before the stop.
fn last_plan(
    task: &TaskId,
    before: &Records,
    now: &Records,
    events: &[Event],
) -> Option<Vec<Item>> {
    let mut view = view_of(task, before);
    for (key, record) in now.iter().filter(|(key, _)| key.is_immutable()) {
        view.load(key.clone(), Some(record.clone()), None);
    }
    for event in events {
        over_mut(&mut view, |view| evolve(view, event));
    }
    Some(planned(&mut view, StopMode::Halt).expect("it can be stopped").items)
}

fn over_mut(view: &mut View, change: impl Fn(&mut View) -> Result<(), Halt>) {
    loop {
        let savepoint = view.savepoint();
        match change(view) {
            Ok(()) => return,
            Err(Halt::Refuse(refusal)) => panic!("an event does not follow: {refusal}"),
            Err(Halt::Need(keys)) => {
                view.rollback(savepoint);
                keys.into_iter().for_each(|key| view.load_absent(key));
            }
        }
    }
}

/// The settlement names each item of the plan, and nothing else but what came later.
fn same_items(items: &[Item], came_to: &Settlement) {
    let planned: BTreeSet<&Subject> = items.iter().map(|item| &item.subject).collect();
    assert_eq!(planned.len(), items.len(), "an item is named twice: {items:#?}");
    let settled = came_to.items.iter().filter(|settled| !settled.since_stop);
    let settled: Vec<&Subject> = settled.map(|settled| &settled.item.subject).collect();
    let named: BTreeSet<&Subject> = settled.iter().copied().collect();
    assert_eq!(named.len(), settled.len(), "an item is settled twice: {came_to:#?}");
    let (lost, new): (Vec<_>, Vec<_>) =
        (planned.difference(&named).collect(), named.difference(&planned).collect());
    assert!(lost.is_empty() && new.is_empty(), "lost {lost:?}, new {new:?}: {came_to:#?}");
    for settled in came_to.items.iter().filter(|settled| !settled.since_stop) {
        let was = items.iter().find(|item| item.subject == settled.item.subject);
        let was = was.map(|item| item.now);
        assert_eq!(was, Some(settled.item.now), "it was something else: {settled:#?}");
    }
}

/// After the end nothing is under way, and what was to be done with an item was done.
fn rests(settled: &Settled) {
    let right = match settled.item.fate {
        Fate::Undone { .. } => {
            matches!(settled.became, Became::Undone | Became::LeftByAnswer | Became::LandedLate)
        }
        Fate::ToldToEnd | Fate::WillNotHappen => settled.became == Became::Cancelled,
        Fate::MayFinish => {
            matches!(settled.became, Became::Succeeded | Became::Failed(_) | Became::Cancelled)
        }
        Fate::Stays => settled.became == Became::Stays,
        Fate::Lapses => settled.became == Became::Lapsed,
        Fate::Runs => matches!(
            settled.became,
            Became::Succeeded | Became::Failed(_) | Became::Skipped | Became::Cancelled
        ),
        Fate::MayLand | Fate::ToSettle | Fate::StaysUncertain => !matches!(
            settled.became,
            Became::InFlight | Became::Undoing | Became::ToUndo | Became::UndoHeld
        ),
    };
    assert!(right, "it does not rest: {settled:#?}");
}

/// A digest changes with what changes an item, and with nothing else.
fn digests(task: &TaskId, before: &Records, now: &Records, events: &[Event]) {
    let was = planned(&mut view_of(task, before), StopMode::Halt);
    let is = planned(&mut view_of(task, now), StopMode::Halt);
    let (Ok(was), Ok(is)) = (was, is) else { return };
    let same = was.digest == is.digest;
    assert_eq!(same, was.items == is.items, "a digest is of its items: {events:#?}");
    let logged = events.iter().any(|event| event.change.is_logged());
    let claims = events.iter().any(|event| matches!(event.change, Change::StepClaimed { .. }));
    if !logged && !claims {
        assert!(same, "a heartbeat changes a plan: {events:#?}");
    }
    if events.iter().any(|event| moves(event, before, now)) {
        assert!(!same, "a plan stays as it is: {events:#?}");
    }
}

/// True for what changes an item whatever else happens in its commit.
fn moves(event: &Event, before: &Records, now: &Records) -> bool {
    let Some(Record::Header(header)) = now.get(&Key::Header) else { return false };
    let of_plan = |step| match now.get(&Key::Definition(step)) {
        Some(Record::Definition(definition)) => !definition.finally,
        _ => false,
    };
    match &event.change {
        Change::StepReady { step, .. }
        | Change::StepSkipped { step, .. }
        | Change::StepSucceeded { step, .. }
        | Change::AttemptFailed { step, .. }
        | Change::RetryScheduled { step, .. }
        | Change::TimerFired { step } => header.phase == Phase::Main && of_plan(step.clone()),
        Change::StepClaimed { step, .. } => {
            let key = Key::Claim(step.clone());
            before.get(&key).is_none() && now.get(&key).is_some() && of_plan(step.clone())
        }
        Change::EffectLanded { step, .. } => of_plan(step.clone()),
        _ => false,
    }
}
