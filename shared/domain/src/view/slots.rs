//! Where a view keeps its records. Each command looks dozens of times at the same few: those of
//! the task as a whole stand in a row, those of a step together, and only the rest is searched
//! for by its whole key.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::commit::CommitId;
use crate::ids::StepId;
use crate::record::{Key, Record};

/// One known record.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    pub record: Option<Arc<Record>>,
    pub version: Option<CommitId>,
    /// The savepoint after which it was last changed: what stood here before is noted then, and
    /// further changes need not note it again.
    pub noted: u64,
    /// True while the batch has changed it.
    pub changed: bool,
}

impl Slot {
    /// True if what stood here at a savepoint is noted, so that it may be changed in place.
    pub fn is_noted(&self, savepoint: u64) -> bool {
        self.changed && self.noted == savepoint
    }
}

/// Known records by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    of_task: [Option<Slot>; TASK_PLACES],
    of_steps: BTreeMap<StepId, [Option<Slot>; STEP_PLACES]>,
    others: BTreeMap<Key, Slot>,
    len: usize,
}

const TASK_PLACES: usize = 4;
const STEP_PLACES: usize = 3;

/// Where among a step's records one stands.
#[derive(Clone, Copy)]
pub(super) enum Row {
    Definition,
    Step,
    Claim,
}

impl Row {
    /// Gives the record's key.
    pub fn key(self, step: &StepId) -> Key {
        match self {
            Self::Definition => Key::Definition(step.clone()),
            Self::Step => Key::Step(step.clone()),
            Self::Claim => Key::Claim(step.clone()),
        }
    }
}

/// Where a key's slot stands.
enum Place<'a> {
    OfTask(usize),
    OfStep(&'a StepId, Row),
    Other,
}

fn place(key: &Key) -> Place<'_> {
    match key {
        Key::Header => Place::OfTask(0),
        Key::Gate => Place::OfTask(1),
        Key::Meta => Place::OfTask(2),
        Key::Owner => Place::OfTask(3),
        Key::Definition(step) => Place::OfStep(step, Row::Definition),
        Key::Step(step) => Place::OfStep(step, Row::Step),
        Key::Claim(step) => Place::OfStep(step, Row::Claim),
        Key::Ahead
        | Key::Order(_)
        | Key::Roots(_)
        | Key::Needs(..)
        | Key::Dependents(..)
        | Key::Resolution(..)
        | Key::Output(..)
        | Key::Artifacts(_)
        | Key::Failure(_)
        | Key::Log(..)
        | Key::Check(..)
        | Key::Effects(_)
        | Key::Request(..)
        | Key::Receipt(..)
        | Key::Landing(_)
        | Key::Outgoing(_) => Place::Other,
    }
}

/// The keys of [`Place::OfTask`], in order.
const OF_TASK: [Key; TASK_PLACES] = [Key::Header, Key::Gate, Key::Meta, Key::Owner];

/// The keys of [`Place::OfStep`], in order.
fn of_step(step: &StepId) -> [Key; STEP_PLACES] {
    [Row::Definition, Row::Step, Row::Claim].map(|row| row.key(step))
}

impl Slots {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, key: &Key) -> Option<&Slot> {
        match place(key) {
            Place::OfTask(place) => self.of_task[place].as_ref(),
            Place::OfStep(step, row) => self.of_step(step, row),
            Place::Other => self.others.get(key),
        }
    }

    pub fn of_step(&self, step: &StepId, row: Row) -> Option<&Slot> {
        self.of_steps.get(step)?[row as usize].as_ref()
    }

    pub fn get_mut(&mut self, key: &Key) -> Option<&mut Slot> {
        match place(key) {
            Place::OfTask(place) => self.of_task[place].as_mut(),
            Place::OfStep(step, row) => self.of_steps.get_mut(step)?[row as usize].as_mut(),
            Place::Other => self.others.get_mut(key),
        }
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.get(key).is_some()
    }

    pub fn insert(&mut self, key: Key, slot: Slot) {
        let before = match place(&key) {
            Place::OfTask(place) => self.of_task[place].replace(slot),
            Place::OfStep(step, row) => match self.of_steps.get_mut(step) {
                Some(of_step) => of_step[row as usize].replace(slot),
                None => self.of_steps.entry(step.clone()).or_default()[row as usize].replace(slot),
            },
            Place::Other => self.others.insert(key, slot),
        };
        self.len += usize::from(before.is_none());
    }

    /// A step of which nothing is left keeps its row, empty: most rows are filled again.
    pub fn remove(&mut self, key: &Key) {
        let before = match place(key) {
            Place::OfTask(place) => self.of_task[place].take(),
            Place::OfStep(step, row) => {
                self.of_steps.get_mut(step).and_then(|of_step| of_step[row as usize].take())
            }
            Place::Other => self.others.remove(key),
        };
        self.len -= usize::from(before.is_some());
    }

    /// Removes what `keep` does not want.
    pub fn retain(&mut self, keep: impl Fn(&Key, &Slot) -> bool) {
        let keep_row = |keys: &[Key], row: &mut [Option<Slot>]| {
            for (key, slot) in keys.iter().zip(row) {
                slot.take_if(|slot| !keep(key, slot));
            }
        };
        keep_row(&OF_TASK, &mut self.of_task);
        for (step, row) in &mut self.of_steps {
            keep_row(&of_step(step), row);
        }
        self.of_steps.retain(|_, row| row.iter().any(Option::is_some));
        self.others.retain(|key, slot| keep(key, slot));
        self.len = self.keys().count();
    }

    /// Walks all keys.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        let of_steps = self.of_steps.iter().flat_map(|(step, row)| filled(of_step(step), row));
        filled(OF_TASK, &self.of_task).chain(of_steps).chain(self.others.keys().cloned())
    }
}

fn filled<const N: usize>(keys: [Key; N], row: &[Option<Slot>; N]) -> impl Iterator<Item = Key> {
    keys.into_iter().zip(row).filter(|(_, slot)| slot.is_some()).map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_keys() -> Vec<Key> {
        let step = |name| StepId::new(name).unwrap();
        let mut keys = OF_TASK.to_vec();
        keys.extend(of_step(&step("a")).into_iter().chain(of_step(&step("b"))));
        keys.extend([Key::Ahead, Key::Output(step("a"), 1), Key::Output(step("a"), 2)]);
        keys
    }

    #[test]
    fn each_key_has_a_place_of_its_own() {
        let mut slots = Slots::default();
        for (noted, key) in (1..).zip(some_keys()) {
            slots.insert(key.clone(), Slot { noted, ..Slot::default() });
            slots.insert(key, Slot { noted, ..Slot::default() });
        }
        assert_eq!(slots.len(), some_keys().len());
        for (noted, key) in (1..).zip(some_keys()) {
            assert_eq!(slots.get(&key).map(|slot| slot.noted), Some(noted), "{key:?}");
            assert_eq!(slots.get_mut(&key).map(|slot| slot.noted), Some(noted), "{key:?}");
        }
        let (mut known, mut wanted) = (slots.keys().collect::<Vec<_>>(), some_keys());
        known.sort();
        wanted.sort();
        assert_eq!(known, wanted);
    }

    #[test]
    fn what_is_removed_is_gone_and_counted() {
        let mut slots = Slots::default();
        some_keys().into_iter().for_each(|key| slots.insert(key, Slot::default()));
        let gone = some_keys().swap_remove(5);
        slots.remove(&gone);
        slots.remove(&gone);
        assert!(!slots.contains(&gone) && slots.len() == some_keys().len() - 1);
        slots.retain(|key, _| key.is_immutable());
        assert!(slots.keys().all(|key| key.is_immutable()));
        assert_eq!(slots.len(), some_keys().iter().filter(|key| key.is_immutable()).count());
    }
}
