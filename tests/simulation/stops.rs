//! What a stop was to do, and what it came to: the plan as it was in the very commit that brought
//! the stop, and after each later commit the settlement beside it.

use std::collections::{BTreeMap, BTreeSet};

use standfast_domain::commit::{Commit, Scope};
use standfast_domain::event::{Change, Event, decode_event};
use standfast_domain::evolve::evolve;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::invariants::Records;
use standfast_domain::record::{Key, Record, StopMode};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::stop_plan::{self, Became, Fate, Item, Now, Settled, Settlement, Subject};
use standfast_domain::view::View;

use crate::records::{header, key_of, records};
use crate::world::{Seen, World};

/// Steps of a task up to which each commit after a stop is looked at; of larger ones the first
/// and the last are.
const STEPS_MAX: u32 = 20;

/// The stops of a world.
#[derive(Default)]
pub struct Stops {
    planned: BTreeMap<TaskId, Vec<Item>>,
    pub faults: Vec<String>,
}

impl Stops {
    /// Gives the items of the last plan before a task's stop.
    pub fn planned(&self, task: &TaskId) -> Option<Vec<Item>> {
        self.planned.get(task).cloned()
    }
}

impl World {
    /// Gives a task's records before a commit that would bring its stop.
    pub fn before_stop(&self, commit: &Commit) -> Option<Records> {
        let mark = b"\"stop_requested\"";
        let stops =
            commit.events.iter().any(|bytes| bytes.windows(mark.len()).any(|part| part == mark));
        let Scope::Task(task) = &commit.scope else { return None };
        stops.then(|| records(&self.store.contents(), task, &mut Vec::new()))
    }

    fn drained(&self, task: &TaskId) -> Drained {
        let history = self.history.lock().unwrap();
        history.events.get(task).map(|events| drained(events)).unwrap_or_default()
    }

    /// Looks at a commit that was written: remembers the plan if it brought a stop; compares
    /// plan and settlement if that stop stands.
    pub fn settles(&self, commit: &Commit, before: Option<Records>) {
        let Scope::Task(task) = &commit.scope else { return };
        let known = self.stops.lock().unwrap().planned(task);
        let asked = before.is_some();
        if known.is_none() && !asked {
            return;
        }
        let now = records(&self.store.contents(), task, &mut Vec::new());
        let mut faults = Vec::new();
        let planned = match (known, before) {
            (Some(items), _) => items,
            (None, Some(before)) => last_plan(task, commit, &before, &now, &mut faults),
            (None, None) => return,
        };
        let Some(header) = header(&now) else { return };
        if asked || header.steps <= STEPS_MAX {
            match over(&mut view_of(task, &now), stop_plan::settlement) {
                Ok(settlement) => compare(&planned, &settlement, &self.drained(task), &mut faults),
                Err(refusal) => faults.push(format!("no settlement: {refusal}")),
            }
        }
        let mut stops = self.stops.lock().unwrap();
        stops.planned.insert(task.clone(), planned);
        stops.faults.extend(faults.into_iter().map(|fault| format!("{task}: {fault}")));
    }
}

/// Attempts that a drain let succeed.
pub type Drained = BTreeSet<(StepId, u32)>;

/// Gives the attempts that succeeded while a drain stood, before a stronger stop came. Those that
/// were still running then are told to end, and none of them succeeds any more; but what has
/// succeeded stays so, whatever the stop that came to be the task's does with attempts.
pub fn drained(events: &[Seen]) -> Drained {
    let mut drained = Drained::new();
    let mut mode = None;
    for Seen { event, .. } in events {
        match &event.change {
            Change::StopRequested { mode: asked, .. }
            | Change::StopStrengthened { mode: asked, .. } => mode = Some(*asked),
            Change::StepSucceeded { step, attempt, .. } if mode == Some(StopMode::Drain) => {
                drained.insert((step.clone(), *attempt));
            }
            _ => {}
        }
    }
    drained
}

/// Gives the items of the plan as it was just before the stop, in the midst of its commit. A
/// stop that was asked for by a digest must have been asked for by this plan's.
fn last_plan(
    task: &TaskId,
    commit: &Commit,
    before: &Records,
    now: &Records,
    faults: &mut Vec<String>,
) -> Vec<Item> {
    let mut view = view_of(task, before);
    for (key, record) in now.iter().filter(|(key, _)| key.is_immutable()) {
        view.load(key.clone(), Some(record.clone()), None);
    }
    let events = (commit.first_event..).zip(&commit.events);
    for (number, bytes) in events {
        let event = decode_event(number, bytes).expect("an event as it was encoded").event;
        if let Change::StopRequested { mode, plan_sha256, .. } = &event.change {
            claims_of_the_commit(&mut view, commit, before);
            let plan = over(&mut view, |view| stop_plan::plan(view, *mode)).expect("it is stopped");
            if plan_sha256.as_ref().is_some_and(|digest| *digest != plan.digest) {
                faults.push(format!("was stopped by {plan_sha256:?} at {plan:#?}"));
            }
            return plan.items;
        }
        follow(&mut view, &event);
    }
    panic!("the commit brings a stop")
}

/// Claims are not logged: those that the same commit gives are found in what it writes.
fn claims_of_the_commit(view: &mut View, commit: &Commit, before: &Records) {
    for (field, bytes) in &commit.writes {
        let (Some(key @ Key::Claim(_)), Some(bytes)) = (key_of(field), bytes) else { continue };
        let Ok(Record::Claim(claim)) = Record::decode(&key, bytes) else { continue };
        let held = match before.get(&key) {
            Some(Record::Claim(held)) => held.attempt == claim.attempt,
            _ => false,
        };
        if !held {
            view.load(key, Some(Record::Claim(claim)), None);
        }
    }
}

fn follow(view: &mut View, event: &Event) {
    loop {
        let savepoint = view.savepoint();
        match evolve(view, event) {
            Ok(()) => return,
            Err(Halt::Refuse(refusal)) => panic!("an event does not follow: {refusal}"),
            Err(Halt::Need(keys)) => {
                view.rollback(savepoint);
                keys.into_iter().for_each(|key| view.load_absent(key));
            }
        }
    }
}

/// Makes a view of these records and no others.
fn view_of(task: &TaskId, records: &Records) -> View {
    let mut view = View::new(task.clone());
    for (key, record) in records {
        view.load(key.clone(), Some(record.clone()), None);
    }
    view
}

/// Computes over a view; what it does not know is absent.
fn over<T>(view: &mut View, compute: impl Fn(&View) -> Result<T, Halt>) -> Result<T, Refusal> {
    loop {
        match compute(view) {
            Ok(value) => return Ok(value),
            Err(Halt::Refuse(refusal)) => return Err(refusal),
            Err(Halt::Need(keys)) => keys.into_iter().for_each(|key| view.load_absent(key)),
        }
    }
}

/// The settlement names each item of the plan once, doing what it did then, and nothing else but
/// what came later. After the end nothing is under way, and what was to be done was done.
pub fn compare(
    planned: &[Item],
    settlement: &Settlement,
    drained: &Drained,
    faults: &mut Vec<String>,
) {
    let wanted: BTreeMap<&Subject, Now> =
        planned.iter().map(|item| (&item.subject, item.now)).collect();
    if wanted.len() != planned.len() {
        faults.push(format!("the plan names an item twice: {planned:#?}"));
    }
    let mut found = BTreeSet::new();
    for settled in settlement.items.iter().filter(|settled| !settled.since_stop) {
        let subject = &settled.item.subject;
        if !found.insert(subject) {
            faults.push(format!("is settled twice: {subject:?}"));
        }
        match wanted.get(subject) {
            None => faults.push(format!("is settled and was not planned: {settled:?}")),
            Some(now) if *now != settled.item.now => {
                faults.push(format!("was planned as {now:?} and is settled as {settled:?}"));
            }
            Some(_) => {}
        }
    }
    for subject in wanted.keys().filter(|subject| !found.contains(*subject)) {
        faults.push(format!("was planned and is not settled: {subject:?}"));
    }
    if settlement.ended_at.is_some() {
        // What a drain let finish has finished, though a stronger stop came after it: its fate is
        // the one that the last stop has for attempts, what became of it is the truth.
        let finished = |settled: &Settled| match &settled.item.subject {
            Subject::Attempt { step, attempt } => {
                settled.item.fate == Fate::ToldToEnd
                    && settled.became == Became::Succeeded
                    && drained.contains(&(step.clone(), *attempt))
            }
            _ => false,
        };
        let items = settlement.items.iter().filter(|settled| !finished(settled));
        let left = items.filter(|settled| !rests(settled));
        faults.extend(left.map(|settled| format!("does not rest: {settled:?}")));
    }
}

fn rests(settled: &Settled) -> bool {
    let became = settled.became;
    match settled.item.fate {
        Fate::Undone { .. } => {
            matches!(became, Became::Undone | Became::LeftByAnswer | Became::LandedLate)
        }
        Fate::ToldToEnd | Fate::WillNotHappen => became == Became::Cancelled,
        Fate::MayFinish => {
            matches!(became, Became::Succeeded | Became::Failed(_) | Became::Cancelled)
        }
        Fate::Stays => became == Became::Stays,
        Fate::Lapses => became == Became::Lapsed,
        Fate::Runs => matches!(
            became,
            Became::Succeeded | Became::Failed(_) | Became::Skipped | Became::Cancelled
        ),
        Fate::MayLand | Fate::ToSettle | Fate::StaysUncertain => !matches!(
            became,
            Became::InFlight | Became::Undoing | Became::ToUndo | Became::UndoHeld
        ),
    }
}
