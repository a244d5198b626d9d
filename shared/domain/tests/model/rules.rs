//! What must never happen, looked at with each commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use standfast_domain::event::{Change, Event};
use standfast_domain::ids::StepId;
use standfast_domain::index::{Entry, TIMERS, WORK, entries};
use standfast_domain::invariants::faults;
use standfast_domain::record::{Key, NotLanded, Part, Phase, Record, Status};

use super::effects;
use super::setting::{Setting, Sight};
use super::state::{Kept, State};

/// A rule, named after the property that states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An outcome is taken only of the attempt that is claimed, in the task's epoch.
    Fences,
    /// An attempt number starts at most once.
    Starts,
    /// A step that has settled does not start again in its round.
    Settled,
    /// Nothing of the plan starts after a stop, or once the task is failing.
    Stops,
    /// A task that has ended changes no more.
    Ends,
    /// What the domain itself says must hold of all records.
    Invariants,
    /// The indexes hold the entries of the records.
    Indexes,
    /// Something or somebody can move the task on.
    Movers,
    /// No effect is sent again unless its class or a person allows it.
    Sends,
    /// What is known to have landed stays so.
    Receipts,
    /// Each landed effect is undone at most once, and the last of them first.
    Undoes,
    /// What follows from a command is never refused.
    FollowUps,
}

/// A broken rule.
#[derive(Clone, Debug)]
pub struct Broken {
    pub rule: Rule,
    pub why: String,
}

type Before = Arc<BTreeMap<Key, Arc<Kept>>>;

impl Setting {
    /// Looks at a commit that was just applied over the records `before`.
    pub fn judge(&self, state: &mut State, before: &Before, events: &[Event]) {
        let found = self.of_events(state, before, events).err().or_else(|| self.of_records(state));
        state.broken = state.broken.take().or(found);
    }

    fn of_events(
        &self,
        state: &mut State,
        before: &Before,
        events: &[Event],
    ) -> Result<(), Broken> {
        let ended = matches!(before.get(&Key::Header).map(|kept| &kept.record),
            Some(Record::Header(header)) if matches!(header.phase, Phase::Ended { .. }));
        for event in events {
            if ended && !is_late(&event.change) {
                return broken(Rule::Ends, format!("{:?}", event.change));
            }
            if ended && matches!(event.change, Change::EffectLanded { .. }) {
                self.see(Sight::LandedLate);
            }
            self.of_event(state, before, &event.change)?;
        }
        effects::landed_stays(state)
    }

    fn of_event(&self, state: &mut State, before: &Before, change: &Change) -> Result<(), Broken> {
        match change {
            Change::StepClaimed { step, claim } => {
                self.starts(before, step)?;
                unsettled(state, step, round(state, step), "is claimed")?;
                let attempt = (step.clone(), claim.attempt);
                if !Arc::make_mut(&mut state.started).insert(attempt) {
                    let why = format!("attempt {} of `{step}` starts again", claim.attempt);
                    return broken(Rule::Starts, why);
                }
                Ok(())
            }
            Change::StepReady { step, round, .. } => {
                self.starts(before, step)?;
                unsettled(state, step, *round, "becomes ready")
            }
            Change::AttemptFailed { step, attempt, .. } => fence(before, step, *attempt),
            Change::StepSucceeded { step, attempt, .. } => {
                fence(before, step, *attempt)?;
                if drains(before) {
                    self.see(Sight::Drained);
                }
                settle(state, step)
            }
            Change::EffectIntended { step, intent, .. } if drains(before) => {
                fence(before, step, intent.attempt)
            }
            Change::EffectIntended { step, .. } => self.starts(before, step),
            Change::UndoAdded { landing, .. } => undoes(state, *landing),
            Change::StopStrengthened { .. } => {
                self.see(Sight::Strengthened);
                Ok(())
            }
            Change::ClockPostponed { .. } => {
                self.see(Sight::Postponed);
                Ok(())
            }
            Change::EffectLanded { step, generation, .. } => {
                effects::landed(state, step, *generation)
            }
            Change::EffectReopened { step, .. }
            | Change::EffectNotLanded { step, how: NotLanded::Answered, .. } => {
                effects::allowed(state, step);
                Ok(())
            }
            Change::StepFailed { step, .. }
            | Change::StepSkipped { step, .. }
            | Change::TimerFired { step } => settle(state, step),
            _ => Ok(()),
        }
    }

    /// Nothing of the plan starts, or is made ready to, once the task is ending.
    fn starts(&self, before: &Before, step: &StepId) -> Result<(), Broken> {
        let stopped = match before.get(&Key::Gate).map(|kept| &kept.record) {
            Some(Record::Gate(gate)) => gate.closed || gate.stop.is_some(),
            _ => false,
        };
        let ending = match before.get(&Key::Header).map(|kept| &kept.record) {
            Some(Record::Header(header)) => header.phase != Phase::Main,
            _ => false,
        };
        match (stopped || ending) && !self.is_of_the_end(step) {
            true => broken(Rule::Stops, format!("`{step}` starts")),
            false => Ok(()),
        }
    }

    /// What holds of a store depends on nothing else, so each store is looked at once.
    fn of_records(&self, state: &State) -> Option<Broken> {
        if self.sound.lock().expect("no check panics").contains(&state.stored()) {
            return None;
        }
        let found = self.indexes(state).or_else(|| explained(state)).or_else(|| {
            let why = faults(&state.all()).into_iter().next()?;
            Some(Broken { rule: Rule::Invariants, why })
        });
        if found.is_none() {
            self.sound.lock().expect("no check panics").insert(state.stored());
        }
        found
    }

    /// The indexes hold the entries of the records; of a ready step that is claimed, or whose
    /// attempt ended in an ending task, none in the ready index; after the end some are gone.
    fn indexes(&self, state: &State) -> Option<Broken> {
        let mut wanted = BTreeSet::new();
        for (key, kept) in state.records.iter() {
            let claimed = match key {
                Key::Step(step) => state.records.contains_key(&Key::Claim(step.clone())),
                _ => false,
            };
            let own = entries(&self.task, key, &kept.record).into_iter();
            wanted.extend(own.filter(|(index, _)| !claimed || !index.starts_with("ready:")));
        }
        if let Some(extra) = state.entries.difference(&wanted).next() {
            let why = format!("an entry of nothing: {extra:?}");
            return Some(Broken { rule: Rule::Indexes, why });
        }
        let missing = wanted.difference(&state.entries).find(|entry| !self.excused(state, entry));
        let why = format!("an entry is missing: {:?}", missing?);
        Some(Broken { rule: Rule::Indexes, why })
    }

    /// True for entries that may be missing: of steps that will not start any more.
    fn excused(&self, state: &State, (index, member): &Entry) -> bool {
        let header = state.header();
        let starts = !matches!(header.phase, Phase::Closing { .. } | Phase::Ended { .. });
        let finally = &self.submission.plan.finally;
        let of_plan = !member.contains("~undo-")
            && !finally.iter().any(|step| member.ends_with(&format!("|{}", step.id)));
        let ready = index.starts_with("ready:");
        let of_the_end =
            index.starts_with("state:") || index == "tasks" || member.ends_with("|remove");
        let unstarted = ready && (!starts || (header.phase != Phase::Main && of_plan));
        unstarted || (header.state.is_final() && !of_the_end)
    }

    /// True for a step that runs once the task ends, whatever its end.
    pub fn is_of_the_end(&self, step: &StepId) -> bool {
        self.is_finally(step) || step.undone().is_some()
    }

    /// True for a step that runs at the task's end.
    pub fn is_finally(&self, step: &StepId) -> bool {
        self.submission.plan.finally.iter().any(|own| own.id == *step)
    }
}

/// True if attempts of the plan may finish, although the task is stopped.
fn drains(before: &Before) -> bool {
    match before.get(&Key::Gate).map(|kept| &kept.record) {
        Some(Record::Gate(gate)) => gate.closed && !gate.ends_attempts(),
        _ => false,
    }
}

/// Of what has landed and was not undone, the last is undone.
fn undoes(state: &State, landing: u32) -> Result<(), Broken> {
    let begun = |number: u32| {
        let mut keys = state.records.keys();
        keys.any(|key| {
            matches!(key, Key::Definition(step)
            if step.undone().is_some_and(|(_, of)| of == number))
        })
    };
    let landed = state.records.keys().filter_map(|key| match key {
        Key::Landing(number) => Some(*number),
        _ => None,
    });
    let later = landed.filter(|number| *number > landing && !begun(*number)).max();
    let runs = state.records.keys().filter(|key| {
        matches!(key, Key::Definition(step)
        if step.undone().is_some_and(|(_, of)| of == landing))
    });
    match (later, runs.count()) {
        (None, 1) => Ok(()),
        (later, runs) => {
            let why = format!("landing {landing} is undone before {later:?}, {runs} runs");
            broken(Rule::Undoes, why)
        }
    }
}

/// True for facts that are taken of a task that has ended: what became of its effects, and
/// results that came too late.
fn is_late(change: &Change) -> bool {
    matches!(
        change,
        Change::EntriesCleared
            | Change::LateResultRefused { .. }
            | Change::EffectLanded { .. }
            | Change::EffectNotLanded { .. }
            | Change::HoldAnswered { .. }
    )
}

/// In a task that has not ended, something is under way, due, ready or left to be done, or a
/// person may answer.
fn explained(state: &State) -> Option<Broken> {
    let header = state.header();
    if header.state.is_final() {
        return None;
    }
    let gate = state.gate();
    let wanted = |step: &StepId| match step.undone() {
        Some(_) => header.phase.wants(Part::Undo),
        None => header.phase == Phase::Main,
    };
    let mut statuses = state.statuses();
    let ready = || state.entries.iter().any(|(index, _)| index.starts_with("ready:"));
    let moves = state.claims().next().is_some()
        || state.members(WORK).next().is_some()
        || state.members(TIMERS).next().is_some()
        || gate.holds.iter().any(|hold| !hold.reason.answers().is_empty())
        || (gate.holds.is_empty() && ready())
        || statuses.any(|(step, status)| match status {
            Status::Held { hold } => wanted(step) && !hold.reason.answers().is_empty(),
            _ => false,
        });
    let why = "no worker, clock, sweep or person can move the task on".to_owned();
    (!moves).then_some(Broken { rule: Rule::Movers, why })
}

/// Only the attempt that is claimed ends, in the epoch of its task.
fn fence(before: &Before, step: &StepId, attempt: u32) -> Result<(), Broken> {
    let epoch = match before.get(&Key::Gate).map(|kept| &kept.record) {
        Some(Record::Gate(gate)) => gate.epoch,
        _ => 1,
    };
    match before.get(&Key::Claim(step.clone())).map(|kept| &kept.record) {
        Some(Record::Claim(claim)) if claim.attempt == attempt && claim.epoch == epoch => Ok(()),
        _ => broken(Rule::Fences, format!("attempt {attempt} of `{step}` ends, not held")),
    }
}

fn settle(state: &mut State, step: &StepId) -> Result<(), Broken> {
    let settled = (step.clone(), round(state, step));
    match Arc::make_mut(&mut state.settled).insert(settled) {
        true => Ok(()),
        false => broken(Rule::Settled, format!("`{step}` settles twice")),
    }
}

fn unsettled(state: &State, step: &StepId, round: u32, what: &str) -> Result<(), Broken> {
    match state.settled.contains(&(step.clone(), round)) {
        true => broken(Rule::Settled, format!("`{step}` {what}")),
        false => Ok(()),
    }
}

fn round(state: &State, step: &StepId) -> u32 {
    match state.get(&Key::Step(step.clone())) {
        Some(Record::Step(own)) => own.round,
        _ => 1,
    }
}

fn broken(rule: Rule, why: String) -> Result<(), Broken> {
    Err(Broken { rule, why })
}
