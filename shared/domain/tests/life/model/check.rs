//! What is watched over the whole life of a task, and checked after each commit.

use std::collections::{BTreeMap, BTreeSet};

use standfast_domain::decide::Submission;
use standfast_domain::event::{Change, Event, FIRST_HASH, decode_event, verify_event};
use standfast_domain::evolve::evolve;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::index::entries;
use standfast_domain::invariants::{Records, faults};
use standfast_domain::record::{EffectClass, Header, Key, Part, Phase, Record, Status, StopMode};
use standfast_domain::refusal::Halt;
use standfast_domain::time::Time;
use standfast_domain::view::View;

use super::planned::Planned;
use super::store::Store;

/// What may have become of an effect in its newest generation.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Outside {
    #[default]
    Nothing,
    Sent,
    Landed,
}

/// What has happened so far.
pub struct Watch {
    finally: BTreeSet<StepId>,
    charged: BTreeMap<StepId, u32>,
    settled: BTreeSet<StepId>,
    claimed: BTreeSet<(StepId, u32)>,
    ended: BTreeSet<(StepId, u32)>,
    effects: BTreeMap<(StepId, String), Outside>,
    last: Time,
    planned: Planned,
    /// The stop that was asked for, if one was.
    pub stop: Option<StopMode>,
    /// True once attempts of the plan have ended for good.
    raised: bool,
    /// What has landed, can be undone and is not yet: each by its number.
    to_undo: BTreeSet<u32>,
    landings: u32,
    pub history: Vec<Change>,
}

impl Watch {
    pub fn new(submission: &Submission) -> Self {
        let plan = &submission.plan;
        Self {
            finally: plan.finally.iter().map(|step| step.id.clone()).collect(),
            charged: BTreeMap::new(),
            settled: BTreeSet::new(),
            claimed: BTreeSet::new(),
            ended: BTreeSet::new(),
            effects: BTreeMap::new(),
            last: Time(0),
            planned: Planned::default(),
            stop: None,
            raised: false,
            to_undo: BTreeSet::new(),
            landings: 0,
            history: Vec::new(),
        }
    }

    /// Checks a commit that was applied over the records `before`.
    pub fn commit(&mut self, task: &TaskId, store: &mut Store, before: &Records, events: &[Event]) {
        let now = store.records();
        for event in events {
            self.event(event, before, &now);
        }
        let found = faults(&now);
        assert!(found.is_empty(), "{found:#?}\nafter {:#?}", self.history);
        self.immutable(before, &now);
        self.indexes(task, store, &now);
        self.planned.commit(task, before, &now, events);
    }

    fn event(&mut self, event: &Event, before: &Records, now: &Records) {
        self.history.push(event.change.clone());
        let trail = &self.history;
        if event.change.is_logged() {
            assert!(event.at >= self.last, "time goes back: {trail:#?}");
            self.last = event.at;
        }
        match &event.change {
            Change::StopRequested { mode, .. } => self.stop = Some(*mode),
            Change::StopStrengthened { mode, .. } => {
                assert!(self.stop < Some(*mode) && !self.raised, "a stop is weakened: {trail:#?}");
                self.stop = Some(*mode);
            }
            Change::EpochRaised { .. } => {
                let claims = now.keys().any(|key| matches!(key, Key::Claim(_)));
                assert!(!claims, "an attempt outlives its epoch: {trail:#?}");
                self.raised = true;
            }
            Change::UndoAdded { landing, .. } => {
                assert_eq!(self.stop, Some(StopMode::Undo), "undone unasked: {trail:#?}");
                let last = self.to_undo.pop_last();
                assert_eq!(last, Some(*landing), "undone out of order: {trail:#?}");
            }
            Change::StepReady { step, afresh, .. } => {
                let allowed = self.stop.is_none() || self.is_of_the_end(step);
                assert!(allowed, "`{step}` starts after a stop: {trail:#?}");
                assert!(!self.settled.contains(step), "settled `{step}` starts: {trail:#?}");
                if *afresh {
                    self.charged.remove(step);
                }
            }
            Change::StepClaimed { step, claim } => {
                let allowed = self.stop.is_none() || self.is_of_the_end(step);
                assert!(allowed, "`{step}` is claimed after a stop: {trail:#?}");
                let new = self.claimed.insert((step.clone(), claim.attempt));
                assert!(new, "attempt {} of `{step}` is used again: {trail:#?}", claim.attempt);
            }
            Change::AttemptFailed { step, attempt, charged, .. } => {
                self.attempt_ends(step, *attempt, before);
                let count = self.charged.entry(step.clone()).or_default();
                *count += u32::from(*charged);
                let most = max_attempts(now, step);
                assert!(*count <= most, "`{step}` had {count} attempts: {:#?}", self.history);
            }
            Change::StepSucceeded { step, attempt, .. } => {
                self.attempt_ends(step, *attempt, before);
                self.settled.insert(step.clone());
            }
            Change::StepFailed { step, .. }
            | Change::StepSkipped { step, .. }
            | Change::TimerFired { step } => {
                let new = self.settled.insert(step.clone());
                assert!(new, "`{step}` settles twice: {trail:#?}");
            }
            Change::RoundOpened { steps, .. } | Change::StepsRepeated { steps, .. } => {
                for (step, _) in steps {
                    self.settled.remove(step);
                    self.charged.remove(step);
                }
            }
            _ => {}
        }
        self.effect(&event.change);
        if let Change::EffectLanded { step, .. } = &event.change
            && has_undo(now, step)
        {
            self.landings += 1;
            self.to_undo.insert(self.landings);
        }
    }

    /// Says when in its task's life a step runs.
    pub fn part(&self, step: &StepId) -> Part {
        match (self.finally.contains(step), step.undone()) {
            (true, _) => Part::Finally,
            (false, Some(_)) => Part::Undo,
            (false, None) => Part::Main,
        }
    }

    fn is_of_the_end(&self, step: &StepId) -> bool {
        self.finally.contains(step) || (self.raised && step.undone().is_some())
    }

    /// What may have been sent is sent again only where its class or a person allows it; what
    /// has landed stays so.
    fn effect(&mut self, change: &Change) {
        let trail = &self.history;
        let (step, name) = match change {
            Change::EffectIntended { step, name, .. }
            | Change::EffectLanded { step, name, .. }
            | Change::EffectNotLanded { step, name, .. }
            | Change::EffectReopened { step, name, .. } => (step.clone(), name.clone()),
            _ => return,
        };
        let drains = self.stop == Some(StopMode::Drain) && !self.raised;
        let may_send = self.stop.is_none() || drains || self.is_of_the_end(&step);
        let outside = self.effects.entry((step, name)).or_default();
        match change {
            Change::EffectIntended { intent, .. } => {
                assert!(*outside != Outside::Landed, "what has landed is sent: {trail:#?}");
                let free = intent.class != EffectClass::Irreversible;
                assert!(free || *outside == Outside::Nothing, "it is sent twice: {trail:#?}");
                assert!(may_send, "it is sent after a stop: {trail:#?}");
                *outside = Outside::Sent;
            }
            Change::EffectLanded { .. } => {
                assert!(*outside != Outside::Landed, "it lands twice: {trail:#?}");
                *outside = Outside::Landed;
            }
            Change::EffectNotLanded { .. } => {
                assert!(*outside != Outside::Landed, "a landed effect vanishes: {trail:#?}");
                *outside = Outside::Nothing;
            }
            _ => {
                assert!(*outside == Outside::Landed, "it is sent also, unsent: {trail:#?}");
                *outside = Outside::Nothing;
            }
        }
    }

    /// An attempt ends once, and only by what stands in its claim.
    fn attempt_ends(&mut self, step: &StepId, attempt: u32, before: &Records) {
        let held = match before.get(&Key::Claim(step.clone())) {
            Some(Record::Claim(claim)) => claim.attempt == attempt,
            _ => self.claimed.contains(&(step.clone(), attempt)), // claimed in the same batch
        };
        assert!(held, "attempt {attempt} of `{step}` ends, not held: {:#?}", self.history);
        let new = self.ended.insert((step.clone(), attempt));
        assert!(new, "attempt {attempt} of `{step}` ends twice: {:#?}", self.history);
    }

    fn immutable(&self, before: &Records, now: &Records) {
        for (key, record) in before.iter().filter(|(key, _)| key.is_immutable()) {
            assert_eq!(now.get(key), Some(record), "{key:?} changes: {:#?}", self.history);
        }
    }

    /// The indexes hold the entries of the records; of a ready step that is claimed, or whose
    /// attempt ended in an ending task, none in the ready index; after the end some are gone.
    fn indexes(&self, task: &TaskId, store: &mut Store, now: &Records) {
        let mut wanted = BTreeSet::new();
        for (key, record) in now {
            let claimed = match key {
                Key::Step(step) => now.contains_key(&Key::Claim(step.clone())),
                _ => false,
            };
            let own = entries(task, key, record).into_iter();
            wanted.extend(own.filter(|entry| !claimed || !is_startable(entry)));
        }
        let header = store.header();
        let starts = !matches!(header.phase, Phase::Closing { .. } | Phase::Ended { .. });
        let extra: Vec<_> = store.indexes.difference(&wanted).collect();
        assert!(extra.is_empty(), "entries of nothing: {extra:?}\nafter {:#?}", self.history);
        let missing = wanted.difference(&store.indexes).filter(|entry @ (index, member)| {
            let ready = is_startable(entry);
            let member_step = member.trim_end_matches("|queue");
            let mut finally = self.finally.iter();
            let of_plan = !finally.any(|step| member_step.ends_with(&format!("|{step}")))
                && !member_step.contains("~undo-");
            let excused = ready && (!starts || (header.phase != Phase::Main && of_plan));
            !excused && (!header.state.is_final() || of_the_end(index, member))
        });
        let missing: Vec<_> = missing.collect();
        assert!(missing.is_empty(), "entries are missing: {missing:?}\nafter {:#?}", self.history);
    }

    /// Folding the log over the immutable records gives the mutable ones.
    pub fn fold(&self, task: &TaskId, store: &mut Store) {
        let mut view = View::new(task.clone());
        let mut hash = FIRST_HASH.to_owned();
        for (number, bytes) in (0..).zip(store.events.clone()) {
            hash = verify_event(number, &bytes, &hash).expect("the chain is whole");
            let event = decode_event(number, &bytes).expect("an event reads back").event;
            fold_one(&mut view, store, &event);
        }
        let stored = store.header();
        assert_eq!(stored.hash, hash, "the header names the last event");
        for (key, record) in store.records() {
            let folded = match (&key, view.get(&key).ok().flatten()) {
                (Key::Header, Some(Record::Header(header))) => {
                    let (next_event, hash) = (stored.next_event, stored.hash.clone());
                    Some(Record::Header(Header { next_event, hash, ..header.clone() }))
                }
                (Key::Gate | Key::Owner | Key::Step(_) | Key::Effects(_), folded) => {
                    folded.cloned()
                }
                _ => continue,
            };
            assert_eq!(folded, Some(record), "{key:?} is not what the log gives");
        }
    }
}

/// True for entries that a ready step has only while nobody has claimed it.
fn is_startable((index, member): &(String, String)) -> bool {
    index.starts_with("ready:") || (index == "timers" && member.ends_with("|queue"))
}

/// True for entries that a task keeps after its end.
fn of_the_end(index: &str, member: &str) -> bool {
    index.starts_with("state:") || index == "tasks" || member.ends_with("|remove")
}

fn has_undo(records: &Records, step: &StepId) -> bool {
    match records.get(&Key::Definition(step.clone())) {
        Some(Record::Definition(definition)) => definition.plan.undo.is_some(),
        _ => panic!("`{step}` has no definition"),
    }
}

fn max_attempts(records: &Records, step: &StepId) -> u32 {
    match records.get(&Key::Definition(step.clone())) {
        Some(Record::Definition(definition)) => definition.plan.retry.max_attempts,
        _ => panic!("`{step}` has no definition"),
    }
}

fn fold_one(view: &mut View, store: &mut Store, event: &Event) {
    loop {
        let savepoint = view.savepoint();
        match evolve(view, event) {
            Ok(()) => {
                view.todo.clear();
                return;
            }
            Err(Halt::Need(keys)) => {
                view.rollback(savepoint);
                for key in keys {
                    match key.is_immutable() {
                        true => {
                            let (record, _) = store.load(&key);
                            view.load(key, record, None);
                        }
                        false => view.load_absent(key),
                    }
                }
            }
            Err(Halt::Refuse(refusal)) => panic!("an event does not follow: {refusal}"),
        }
    }
}

/// Gives the status of a step.
pub fn status(store: &mut Store, step: &StepId) -> Option<Status> {
    match store.load(&Key::Step(step.clone())).0 {
        Some(Record::Step(state)) => Some(state.status),
        _ => None,
    }
}
