//! What holds of every task after every commit, checked over all of its records at once. The
//! product never does this, since it would cost as much as the task is large; tests do, after
//! each commit, and so may whoever repairs a store.

use std::collections::{BTreeMap, BTreeSet};

use crate::evolve::header_todo;
use crate::hold::HoldClass;
use crate::ids::StepId;
use crate::record::{
    Claim, Definition, Dependent, EffectCounts, Effects, Ending, Gate, Header, Key, Landing, Part,
    Phase, Record, Standing, Status, StepState, StopMode,
};

/// All records of one task, by their keys.
pub type Records = BTreeMap<Key, Record>;

/// Says what does not hold, a sentence each. `records` are all records of one task.
pub fn faults(records: &Records) -> Vec<String> {
    let Some(Record::Header(header)) = records.get(&Key::Header) else {
        return Vec::new(); // not born yet, or about to be erased
    };
    let task = Task { records, header };
    let mut faults = Vec::new();
    task.counts(&mut faults);
    task.holds(&mut faults);
    task.claims(&mut faults);
    task.effects(&mut faults);
    task.landings(&mut faults);
    let (waits, added) = (task.waits(), task.added());
    let count = |counts: &BTreeMap<&StepId, u32>, step| counts.get(step).copied().unwrap_or(0);
    for (step, definition) in task.definitions() {
        let state = task.state(step, definition);
        task.remaining(step, &state, count(&waits, step), &mut faults);
        if task.is_wanted(definition) {
            task.mover(step, &state, count(&added, step), &mut faults);
        }
    }
    task.end(&mut faults);
    faults
}

struct Task<'r> {
    records: &'r Records,
    header: &'r Header,
}

impl<'r> Task<'r> {
    fn definitions(&self) -> impl Iterator<Item = (&'r StepId, &'r Definition)> {
        self.records.iter().filter_map(|(key, record)| match (key, record) {
            (Key::Definition(step), Record::Definition(definition)) => Some((step, &**definition)),
            _ => None,
        })
    }

    fn state(&self, step: &StepId, definition: &Definition) -> StepState {
        match self.records.get(&Key::Step(step.clone())) {
            Some(Record::Step(state)) => state.clone(),
            _ => StepState::pending(definition.needs_count),
        }
    }

    fn gate(&self) -> Gate {
        match self.records.get(&Key::Gate) {
            Some(Record::Gate(gate)) => gate.clone(),
            _ => Gate::default(),
        }
    }

    fn claim(&self, step: &StepId) -> Option<&'r Claim> {
        match self.records.get(&Key::Claim(step.clone())) {
            Some(Record::Claim(claim)) => Some(claim),
            _ => None,
        }
    }

    fn is_wanted(&self, definition: &Definition) -> bool {
        self.header.phase.wants(definition.part())
    }

    /// The counts of the header equal a recount.
    fn counts(&self, faults: &mut Vec<String>) {
        let mut found: BTreeMap<&str, u32> = BTreeMap::new();
        let mut count = |name| *found.entry(name).or_default() += 1;
        for (step, definition) in self.definitions() {
            let state = self.state(step, definition);
            let (all, open) = match definition.part() {
                Part::Main => (Some("steps"), "open"),
                Part::Undo => (Some("undos"), "undo_open"),
                Part::Finally => (None, "finally_open"),
            };
            all.into_iter().for_each(&mut count);
            if !state.is_settled() {
                count(open);
            }
            match &state.status {
                Status::Pending => {}
                Status::Ready { .. } | Status::Retrying { .. } => count("active"),
                Status::Held { hold } => match hold.reason.class() {
                    HoldClass::Waiting => count("waiting"),
                    HoldClass::Blocked => count("blocked"),
                },
                Status::Succeeded { .. } => count("succeeded"),
                Status::Failed { .. } => count("failed"),
                Status::Skipped { .. } => count("skipped"),
            }
        }
        let header = self.header;
        for (name, said) in [
            ("steps", header.steps),
            ("open", header.open),
            ("undos", header.undos),
            ("undo_open", header.undo_open),
            ("finally_open", header.finally_open),
            ("active", header.active),
            ("waiting", header.waiting),
            ("blocked", header.blocked),
            ("succeeded", header.succeeded),
            ("failed", header.failed),
            ("skipped", header.skipped),
        ] {
            let counted = found.get(name).copied().unwrap_or(0);
            if counted != said {
                faults.push(format!("the header says {name} is {said}, counted are {counted}"));
            }
        }
        if header.state != header.shown() {
            let (state, right) = (header.state, header.shown());
            faults.push(format!("the header shows {state}, from its fields follows {right}"));
        }
    }

    /// Holds of the task stand in the gate, and the header counts them.
    fn holds(&self, faults: &mut Vec<String>) {
        let holds = self.gate().holds.len();
        if holds as u64 != u64::from(self.header.task_holds) {
            let said = self.header.task_holds;
            faults.push(format!("the header says {said} holds of the task, the gate has {holds}"));
        }
        if holds > 0 && !matches!(self.header.phase, Phase::Main) {
            faults.push("the task is ending and held".to_owned());
        }
    }

    /// A claim stands only over a ready step, with its attempt and the task's epoch.
    fn claims(&self, faults: &mut Vec<String>) {
        for (step, definition) in self.definitions() {
            let Some(claim) = self.claim(step) else { continue };
            let state = self.state(step, definition);
            if !matches!(state.status, Status::Ready { .. }) {
                faults.push(format!("step `{step}` has a claim and is not ready"));
            }
            if state.attempt != claim.attempt {
                let (attempt, claimed) = (state.attempt, claim.attempt);
                faults.push(format!("step `{step}` is at attempt {attempt}, claimed is {claimed}"));
            }
            if claim.epoch != self.gate().epoch {
                faults.push(format!("step `{step}` has a claim of epoch {}", claim.epoch));
            }
        }
    }

    /// The counts of effects equal a recount; what is in flight has an attempt that runs; a task
    /// completes only once it is known of each what became of it.
    fn effects(&self, faults: &mut Vec<String>) {
        let (mut all, mut landed, mut owed) = (0, 0, 0);
        for (step, definition) in self.definitions() {
            let none = Effects::new();
            let effects = match self.records.get(&Key::Effects(step.clone())) {
                Some(Record::Effects(effects)) => effects,
                _ => &none,
            };
            let (state, counts) = (self.state(step, definition), EffectCounts::of(effects));
            if (state.effects, state.effects_owed) != (counts.all, counts.owed) {
                faults.push(format!("step `{step}` counts its effects wrongly: {counts:?}"));
            }
            all += counts.all;
            landed += counts.landed;
            owed += counts.owed;
            for (name, effect) in effects {
                let claim = self.claim(step).filter(|claim| claim.attempt == effect.attempt);
                if effect.standing == Standing::InFlight && claim.is_none() {
                    faults.push(format!("effect `{name}` of step `{step}` flies without attempt"));
                }
            }
        }
        let header = &self.header;
        let (said, are) =
            ((header.effects, header.effects_landed, header.effects_owed), (all, landed, owed));
        if said != are {
            faults.push(format!("the header counts effects {said:?}, there are {are:?}"));
        }
        let completed = matches!(self.header.phase, Phase::Ended { ending: Ending::Completed, .. });
        if completed && owed > 0 {
            faults.push(format!("the task has completed with {owed} effects unknown"));
        }
    }

    /// What has landed and can be undone is numbered without a gap, each once. Its run was added,
    /// or it lies on the pile of those to come, the last on top; a stop that undoes ends only
    /// with an empty pile, but for what was known to have landed after that.
    fn landings(&self, faults: &mut Vec<String>) {
        let mut landings: BTreeMap<u32, &Landing> = BTreeMap::new();
        let mut due = 0;
        for (key, record) in self.records {
            match (key, record) {
                (Key::Landing(number), Record::Landing(landing)) => {
                    landings.insert(*number, landing);
                }
                (Key::Effects(step), Record::Effects(effects)) if self.has_undo(step) => {
                    due += EffectCounts::of(effects).landed;
                }
                _ => {}
            }
        }
        let last = landings.keys().last().copied().unwrap_or(0);
        let (said, found) = (self.header.landings, landings.len() as u64);
        if u64::from(said) != found || last != said || due != said {
            faults.push(format!("{said} landings are said, {found} found up to {last}, {due} due"));
        }
        let mut open: BTreeSet<u32> = landings.keys().copied().collect();
        for (step, definition) in self.definitions() {
            let Some(of) = &definition.undo_of else { continue };
            if !open.remove(&of.landing) {
                faults.push(format!("`{step}` undoes what has not landed, or again"));
            }
        }
        let mut next = self.header.undo_top;
        while let Some(landing) = landings.get(&next) {
            if !open.remove(&next) || landing.below >= next {
                faults.push(format!("landing {next} is on the pile out of its order"));
                break;
            }
            let asked = self.gate().stop.is_some_and(|stop| stop.mode == StopMode::Undo);
            if let Phase::Ended { ending: Ending::Cancelled, at } = self.header.phase
                && asked
                && landing.at < at
            {
                faults.push(format!("landing {next} was never undone"));
            }
            next = landing.below;
        }
        if next != 0 || !open.is_empty() {
            faults.push(format!("of the landings {open:?} nobody knows, after {next}"));
        }
    }

    fn has_undo(&self, step: &StepId) -> bool {
        match self.records.get(&Key::Definition(step.clone())) {
            Some(Record::Definition(definition)) => definition.plan.undo.is_some(),
            _ => false,
        }
    }

    /// Counts, for each step, its needs that have not told it in its round.
    fn waits(&self) -> BTreeMap<&'r StepId, u32> {
        let mut waits = BTreeMap::new();
        for (need, definition) in self.definitions() {
            let of = self.state(need, definition);
            for (list, dependent) in self.dependents(need, definition) {
                let left = of.telling.map_or(of.owes(), |chunk| chunk < list);
                let again = left && of.round == self.round(&dependent.step);
                if of.told_lists <= list || again {
                    *waits.entry(&dependent.step).or_default() += 1;
                }
            }
        }
        waits
    }

    fn round(&self, step: &StepId) -> u32 {
        match self.records.get(&Key::Step(step.clone())) {
            Some(Record::Step(state)) => state.round,
            _ => 1,
        }
    }

    /// Gives the dependents of a step, each with the place of its list.
    fn dependents(
        &self,
        step: &StepId,
        definition: &'r Definition,
    ) -> impl Iterator<Item = (u32, &'r Dependent)> {
        let further = (0..definition.dependents_chunks).flat_map(|chunk| {
            let list = match self.records.get(&Key::Dependents(step.clone(), chunk)) {
                Some(Record::Dependents(list)) => &list[..],
                _ => &[],
            };
            list.iter().map(move |dependent| (chunk + 1, dependent))
        });
        definition.dependents.iter().map(|dependent| (0, dependent)).chain(further)
    }

    /// A step waits for exactly those of its needs that have not told it.
    fn remaining(&self, step: &StepId, state: &StepState, waits: u32, faults: &mut Vec<String>) {
        if waits != state.remaining {
            let said = state.remaining;
            faults.push(format!("step `{step}` says {said} needs are left, there are {waits}"));
        }
        if state.remaining > 0 && state.status != Status::Pending {
            faults.push(format!("step `{step}` moves while needs are left"));
        }
    }

    /// Counts, for each step, the steps that it has added and that are not done.
    fn added(&self) -> BTreeMap<&'r StepId, u32> {
        let mut added = BTreeMap::new();
        for (step, definition) in self.definitions() {
            if let Some(by) = &definition.added_by
                && !self.state(step, definition).told
            {
                *added.entry(by).or_default() += 1;
            }
        }
        added
    }

    /// Something will move every step that is not settled: a need that is not, an entry of the
    /// work index, a worker, a clock or a person.
    fn mover(&self, step: &StepId, state: &StepState, open: u32, faults: &mut Vec<String>) {
        let stored = self.records.contains_key(&Key::Step(step.clone()));
        let moves = match &state.status {
            Status::Pending if state.remaining > 0 => true,
            Status::Pending => stored || self.header.roots_from.is_some(),
            Status::Ready { .. } | Status::Retrying { .. } => true,
            Status::Held { hold } => hold.due.is_some() || !hold.reason.answers().is_empty(),
            Status::Succeeded { .. } | Status::Failed { .. } | Status::Skipped { .. } => {
                state.told || state.added_open > 0 || state.telling.is_some()
            }
        };
        if !moves {
            faults.push(format!("nothing will move step `{step}` on"));
        }
        if open != state.added_open {
            let said = state.added_open;
            faults
                .push(format!("step `{step}` says {said} added steps are open, there are {open}"));
        }
    }

    /// An end leaves no claim and no hold, and no deadline from its decision on; before it, the
    /// header names what moves a task without open steps.
    fn end(&self, faults: &mut Vec<String>) {
        let header = self.header;
        let claimed = || self.records.keys().filter(|key| matches!(key, Key::Claim(_)));
        match header.phase {
            Phase::Ended { .. } => {
                for claim in claimed() {
                    faults.push(format!("the task has ended, and `{}` is left", claim.field()));
                }
                if header.remove_at.is_none() {
                    faults.push("the ended task has no time of removal".to_owned());
                }
            }
            Phase::Main if header.open == 0 => {
                if header_todo(header).is_none() && header.task_holds == 0 {
                    faults.push("no step is open, and nothing completes the task".to_owned());
                }
            }
            Phase::Finally { .. } if header.finally_open == 0 => {
                if header_todo(header).is_none() {
                    faults.push("no `finally` step is open, and nothing ends the task".to_owned());
                }
            }
            Phase::Undoing { .. } if header.undo_open == 0 => {
                if header_todo(header).is_none() {
                    faults.push("nothing is being undone, and nothing goes on".to_owned());
                }
            }
            Phase::Main | Phase::Closing { .. } | Phase::Undoing { .. } | Phase::Finally { .. } => {
            }
        }
        if header.deadline_at.is_some() && header.phase != Phase::Main {
            faults.push("the task is ending, and its deadline may still strike".to_owned());
        }
    }
}
