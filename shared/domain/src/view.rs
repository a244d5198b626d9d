//! What is known of one task at one header version: records that were loaded (missing means
//! unknown, `None` means absent), changed in place while a batch of commands is decided.

mod slots;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::commit::CommitId;
use crate::ids::{StepId, TaskId};
use crate::outcome::Artifact;
use crate::record::{
    Claim, Definition, Dependent, Effects, Gate, Header, Key, Landing, Meta, Owner, Payload,
    Record, StepState,
};
use crate::refusal::{Halt, Refusal};

use self::slots::{Row, Slot, Slots};

/// What must follow a change, in the same commit if it has room, else found by an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Todo {
    /// A step has no needs left: resolve and release it.
    Release(StepId),
    /// A settled step has more dependents to tell.
    Tell(StepId),
    /// The next chunk of steps without needs must be released.
    Roots,
    /// No step is open: check completion.
    Verify,
    /// The task is closing: when no attempt runs any more, raise the epoch and go on.
    Advance,
}

/// A point to go back to.
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    undo: usize,
}

/// The records of one task that are known.
#[derive(Clone, Debug)]
pub struct View {
    task: TaskId,
    slots: Slots,
    /// Records whose slots are marked as changed, as they were before the batch. By key once
    /// `settled`, else as they came.
    changed: Vec<(Key, Option<Arc<Record>>)>,
    /// What stood there before each change; `None`: nothing was known.
    undo: Vec<(Key, Option<Slot>)>,
    /// Rises with each savepoint and each commit.
    savepoints: u64,
    /// True while the header is known to be absent: then everything unknown is absent too.
    unborn: bool,
    /// False while a change may have left its record as it was.
    settled: bool,
    /// True from a birth that this view has seen on, as long as it sees all that follows: then
    /// everything unknown is absent, but for what changes without the header.
    whole: bool,
    /// What evolving has made necessary, in order.
    pub todo: VecDeque<Todo>,
}

impl View {
    /// Makes a view that knows nothing.
    pub fn new(task: TaskId) -> Self {
        Self {
            task,
            slots: Slots::default(),
            changed: Vec::new(),
            undo: Vec::new(),
            savepoints: 1,
            settled: true,
            unborn: false,
            whole: false,
            todo: VecDeque::new(),
        }
    }

    /// Makes a view of a task that does not exist: all its records are known to be absent.
    pub fn unborn(task: TaskId) -> Self {
        let mut view = Self::new(task);
        view.load(Key::Header, None, None);
        view
    }

    /// Gives the task's id.
    pub fn task(&self) -> &TaskId {
        &self.task
    }

    /// Takes in a loaded record, or its absence.
    pub fn load(&mut self, key: Key, record: Option<Record>, version: Option<CommitId>) {
        if key == Key::Header {
            self.unborn = record.is_none();
        }
        let record = record.map(Arc::new);
        self.slots.insert(key, Slot { record, version, ..Slot::default() });
    }

    /// Takes in that a record is absent, and nothing more: unlike [`View::load`], an absent
    /// header says nothing of the rest. For folding a log from its beginning.
    pub fn load_absent(&mut self, key: Key) {
        self.slots.insert(key, Slot::default());
    }

    /// Takes in that a record is absent unless something is known of it: also beyond a birth, when
    /// not all that is unknown is absent any more.
    pub fn presume_absent(&mut self, key: Key) {
        if !self.slots.contains(&key) {
            self.load_absent(key);
        }
    }

    /// Gives a view of some of the records, as far as they are known. It shares them.
    #[must_use]
    pub fn part(&self, keys: impl IntoIterator<Item = Key>) -> Self {
        let mut part = Self::new(self.task.clone());
        for key in keys {
            match self.slots.get(&key) {
                Some(slot) => part.slots.insert(key, slot.clone()),
                None if self.lacks(&key) => part.load_absent(key),
                None => {}
            }
        }
        part
    }

    /// Forgets a record.
    pub fn forget(&mut self, key: &Key) {
        self.slots.remove(key);
    }

    /// Forgets what may have changed elsewhere: everything but immutable records that exist.
    pub fn forget_mutable(&mut self) {
        (self.unborn, self.whole) = (false, false);
        self.slots.retain(|key, slot| key.is_immutable() && slot.record.is_some());
    }

    /// Counts the records known.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the record is known, be it as absent.
    pub fn knows(&self, key: &Key) -> bool {
        self.slots.contains(key) || self.lacks(key)
    }

    /// True if everything unknown is known to be absent, but for what changes without the header.
    pub fn is_whole(&self) -> bool {
        self.unborn || self.whole
    }

    /// True if a record that stands in no slot is known to be absent.
    fn lacks(&self, key: &Key) -> bool {
        self.unborn || (self.whole && !key.is_loose())
    }

    /// Walks the keys of all records that are known.
    pub fn known(&self) -> impl Iterator<Item = Key> {
        self.slots.keys()
    }

    /// Gives the version at which a record is known.
    pub fn version(&self, key: &Key) -> Option<CommitId> {
        self.slots.get(key).and_then(|slot| slot.version)
    }

    /// Halts with all of `keys` that are not known.
    pub fn need(&self, keys: impl IntoIterator<Item = Key>) -> Result<(), Halt> {
        let missing: Vec<Key> = keys.into_iter().filter(|key| !self.knows(key)).collect();
        if missing.is_empty() { Ok(()) } else { Err(Halt::Need(missing)) }
    }

    /// Gives a record: unknown halts, absent is `None`.
    pub fn get(&self, key: &Key) -> Result<Option<&Record>, Halt> {
        match self.slots.get(key) {
            Some(slot) => Ok(slot.record.as_deref()),
            None if self.lacks(key) => Ok(None),
            None => Err(Halt::Need(vec![key.clone()])),
        }
    }

    /// Gives one of a step's records: unknown halts, absent is `None`.
    fn of_step(&self, step: &StepId, row: Row) -> Result<Option<&Record>, Halt> {
        match self.slots.of_step(step, row) {
            Some(slot) => Ok(slot.record.as_deref()),
            None => self.get(&row.key(step)),
        }
    }

    /// Gives the header; absent means that there is no such task.
    pub fn header(&self) -> Result<&Header, Halt> {
        match self.get(&Key::Header)? {
            Some(Record::Header(header)) => Ok(header),
            _ => Err(Refusal::NoTask(self.task.clone()).into()),
        }
    }

    /// Gives the gate; absent means an open one.
    pub fn gate(&self) -> Result<Gate, Halt> {
        match self.get(&Key::Gate)? {
            Some(Record::Gate(gate)) => Ok(gate.clone()),
            _ => Ok(Gate::default()),
        }
    }

    /// Gives what was submitted.
    pub fn meta(&self) -> Result<&Meta, Halt> {
        match self.get(&Key::Meta)? {
            Some(Record::Meta(meta)) => Ok(meta),
            _ => Err(Refusal::NoTask(self.task.clone()).into()),
        }
    }

    /// Gives who owns the task.
    pub fn owner(&self) -> Result<Owner, Halt> {
        match self.get(&Key::Owner)? {
            Some(Record::Owner(owner)) => Ok(owner.clone()),
            _ => Ok(Owner::first(self.meta()?)),
        }
    }

    /// Gives a step's definition; absent means that the task has no such step.
    pub fn definition(&self, step: &StepId) -> Result<&Definition, Halt> {
        match self.of_step(step, Row::Definition)? {
            Some(Record::Definition(definition)) => Ok(definition),
            _ => Err(Refusal::NoStep(step.clone()).into()),
        }
    }

    /// Gives a step's state; absent means pending with all needs left.
    pub fn step(&self, step: &StepId) -> Result<Cow<'_, StepState>, Halt> {
        match self.of_step(step, Row::Step)? {
            Some(Record::Step(state)) => Ok(Cow::Borrowed(state)),
            _ => Ok(Cow::Owned(StepState::pending(self.definition(step)?.needs_count))),
        }
    }

    /// Gives the claim on a step, if there is one.
    pub fn claim(&self, step: &StepId) -> Result<Option<&Claim>, Halt> {
        match self.of_step(step, Row::Claim)? {
            Some(Record::Claim(claim)) => Ok(Some(claim)),
            _ => Ok(None),
        }
    }

    /// Says whether the attempts of a step are to end: those of `finally` and `undo` go on.
    pub fn is_to_end(&self, step: &StepId) -> Result<bool, Halt> {
        self.need([Key::Gate, Key::Definition(step.clone())])?;
        Ok(self.gate()?.ends(self.definition(step)?.part()))
    }

    /// Gives one chunk of a step's further dependents.
    pub fn dependents(&self, step: &StepId, chunk: u32) -> Result<&[Dependent], Halt> {
        match self.get(&Key::Dependents(step.clone(), chunk))? {
            Some(Record::Dependents(dependents)) => Ok(dependents),
            _ => Ok(&[]),
        }
    }

    /// Gives a record that lists names.
    pub fn names(&self, key: &Key) -> Result<&[StepId], Halt> {
        match self.get(key)? {
            Some(Record::Names(names)) => Ok(names),
            _ => Ok(&[]),
        }
    }

    /// Gives a step's output of one round.
    pub fn output(&self, step: &StepId, round: u32) -> Result<Option<&Payload>, Halt> {
        match self.get(&Key::Output(step.clone(), round))? {
            Some(Record::Payload(payload)) => Ok(Some(payload)),
            _ => Ok(None),
        }
    }

    /// Gives the artifacts of a step.
    pub fn artifacts(&self, step: &StepId) -> Result<&[Artifact], Halt> {
        match self.get(&Key::Artifacts(step.clone()))? {
            Some(Record::Artifacts(artifacts)) => Ok(artifacts),
            _ => Ok(&[]),
        }
    }

    /// Gives a step's effects, by name.
    pub fn effects(&self, step: &StepId) -> Result<Effects, Halt> {
        match self.get(&Key::Effects(step.clone()))? {
            Some(Record::Effects(effects)) => Ok(effects.clone()),
            _ => Ok(Effects::new()),
        }
    }

    /// Gives an effect that has landed, by its number in the order of landing.
    pub fn landing(&self, number: u32) -> Result<&Landing, Halt> {
        match self.get(&Key::Landing(number))? {
            Some(Record::Landing(landing)) => Ok(landing),
            _ => Err(Refusal::NoTask(self.task.clone()).into()),
        }
    }

    /// The one fence test: gives header and step if `attempt` of `step` in `epoch` is still
    /// the one that `worker` may end.
    pub fn attempt(&self, at: &Attempt) -> Result<(&Header, Cow<'_, StepState>), Halt> {
        let claim_key = Key::Claim(at.step.clone());
        self.need([Key::Header, Key::Gate, Key::Step(at.step.clone()), claim_key])?;
        self.need([Key::Definition(at.step.clone())])?;
        let header = self.header()?;
        let state = self.step(&at.step)?;
        let held = self.claim(&at.step)?.is_some_and(|claim| {
            claim.attempt == at.attempt && claim.worker == at.worker && claim.epoch == at.epoch
        });
        if held && state.attempt == at.attempt && self.gate()?.epoch == at.epoch {
            return Ok((header, state));
        }
        Err(Refusal::Fenced { step: at.step.clone(), attempt: at.attempt }.into())
    }

    /// Marks a point to go back to if a command fails half-way.
    pub fn savepoint(&mut self) -> Savepoint {
        self.savepoints += 1;
        Savepoint { undo: self.undo.len() }
    }

    /// Takes back all changes since the savepoint. What must follow is computed anew by the
    /// caller, who keeps its own copy of `todo`.
    pub fn rollback(&mut self, savepoint: Savepoint) {
        while self.undo.len() > savepoint.undo {
            let (key, slot) = self.undo.pop().expect("longer than the savepoint");
            if !slot.as_ref().is_some_and(|slot| slot.changed) {
                let place = self.changed.iter().rposition(|(changed, _)| *changed == key);
                place.map(|place| self.changed.remove(place));
            }
            self.restore(key, slot);
        }
    }

    /// Puts back what was known; what was not known is unknown again, not absent.
    fn restore(&mut self, key: Key, slot: Option<Slot>) {
        match slot {
            Some(slot) => self.slots.insert(key, slot),
            None => self.slots.remove(&key),
        }
    }

    /// Writes or removes a record. It must be known.
    pub fn put(&mut self, key: Key, record: Option<Record>) -> Result<(), Halt> {
        if !self.knows(&key) {
            return Err(Halt::Need(vec![key]));
        }
        self.set(key, record);
        Ok(())
    }

    /// Writes a record that is new by construction (an immutable one), known or not.
    pub fn create(&mut self, key: Key, record: Record) {
        self.set(key, Some(record));
    }

    fn set(&mut self, key: Key, record: Option<Record>) {
        self.settled = false;
        let record = record.map(Arc::new);
        let noted = self.savepoints;
        let before = match self.slots.get_mut(&key) {
            Some(slot) if slot.is_noted(noted) => {
                slot.record = record;
                return;
            }
            Some(slot) => {
                let version = slot.version;
                Some(std::mem::replace(slot, Slot { record, version, noted, changed: true }))
            }
            None => {
                let slot = Slot { record, version: None, noted, changed: true };
                self.slots.insert(key.clone(), slot);
                None
            }
        };
        self.note(key, before);
    }

    /// Notes what stood under a key before it was first changed after a savepoint.
    fn note(&mut self, key: Key, before: Option<Slot>) {
        if !before.as_ref().is_some_and(|slot| slot.changed) {
            let record = before.as_ref().and_then(|slot| slot.record.clone());
            self.changed.push((key.clone(), record));
        }
        self.undo.push((key, before));
    }

    /// Gives a record that is there, to be changed in place.
    fn record_mut(&mut self, key: Key) -> Option<&mut Record> {
        self.settled = false;
        let slot = self.slots.get_mut(&key).filter(|slot| slot.record.is_some())?;
        if !slot.is_noted(self.savepoints) {
            let before = slot.clone();
            (slot.noted, slot.changed) = (self.savepoints, true);
            self.note(key.clone(), Some(before));
        }
        self.slots.get_mut(&key)?.record.as_mut().map(Arc::make_mut)
    }

    /// Changes the header in place.
    pub fn edit_header(&mut self, edit: impl FnOnce(&mut Header)) -> Result<(), Halt> {
        self.header()?;
        if let Some(Record::Header(header)) = self.record_mut(Key::Header) {
            edit(header);
        }
        Ok(())
    }

    /// Changes the gate in place.
    pub fn edit_gate(&mut self, edit: impl FnOnce(&mut Gate)) -> Result<(), Halt> {
        let mut gate = self.gate()?;
        edit(&mut gate);
        self.put(Key::Gate, Some(Record::Gate(gate)))
    }

    /// Changes a step's state in place.
    pub fn edit_step(
        &mut self,
        step: &StepId,
        edit: impl FnOnce(&mut StepState),
    ) -> Result<(), Halt> {
        if let Some(Record::Step(state)) = self.record_mut(Key::Step(step.clone())) {
            edit(state);
            return Ok(());
        }
        let mut state = self.step(step)?.into_owned();
        edit(&mut state);
        self.put(Key::Step(step.clone()), Some(Record::Step(state)))
    }

    /// Walks what has changed: key, record before, record now. By key once idle changes are
    /// dropped, else as they came.
    pub fn changes(&self) -> impl Iterator<Item = (&Key, Option<&Record>, Option<&Record>)> {
        self.changed.iter().map(|(key, before)| {
            let now = self.slots.get(key).and_then(|slot| slot.record.as_deref());
            (key, before.as_deref(), now)
        })
    }

    /// Forgets of the changes those that have left a record as it was, and puts the rest in the
    /// order of their keys.
    pub fn drop_idle_changes(&mut self) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let slots = &mut self.slots;
        self.changed.retain(|(key, before)| {
            let Some(slot) = slots.get_mut(key) else { return before.is_some() };
            slot.changed = match (before, &slot.record) {
                (Some(before), Some(now)) => !Arc::ptr_eq(before, now) && before != now,
                (before, now) => before.is_some() || now.is_some(),
            };
            slot.changed
        });
        self.changed.sort_by(|(one, _), (other, _)| one.cmp(other));
    }

    /// Counts the records that have changed.
    pub fn changes_len(&self) -> usize {
        self.changed.len()
    }

    /// Ends a batch: what has changed is now what is stored, under the commit's id.
    pub fn committed(&mut self, id: CommitId) {
        self.drop_idle_changes();
        for (key, _) in self.changed.drain(..) {
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.changed = false;
                slot.version = slot.record.is_some().then_some(id);
            }
        }
        self.whole |= self.unborn && self.slots.contains(&Key::Header);
        self.unborn = false;
        self.undo.clear();
        self.savepoints += 1;
        self.todo.clear();
    }

    /// Ends a batch that was refused: nothing that was known can be relied on but immutable
    /// records.
    pub fn refused(&mut self) {
        while let Some((key, slot)) = self.undo.pop() {
            self.restore(key, slot);
        }
        self.changed.clear();
        self.todo.clear();
        self.forget_mutable();
    }
}

/// Names an attempt and who claims to hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The step.
    pub step: StepId,
    /// The attempt's number.
    pub attempt: u32,
    /// The epoch it started in.
    pub epoch: u32,
    /// The worker.
    pub worker: crate::ids::WorkerId,
}

#[cfg(test)]
mod tests;
