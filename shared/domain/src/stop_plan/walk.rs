//! One walk over all of a task's records, for plans and settlements alike.

use std::collections::{BTreeMap, BTreeSet};

use super::item::{Fate, Item, Now, Subject};
use crate::ids::{HandlerName, StepId, WorkerId};
use crate::record::{
    Claim, Definition, Effect, EffectClass, Effects, Gate, Header, Key, LastAttempt, MAIN_EFFECT,
    Part, Record, Standing, Status, StepState, StopMode,
};
use crate::refusal::Halt;
use crate::time::Time;
use crate::view::View;

/// At which moment items are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// As they are.
    Now,
    /// As they were when the stop was asked for.
    Stop,
}

/// A task and those of its steps that a stop may touch, in the order of the plan.
pub(super) struct Walk<'v> {
    pub header: &'v Header,
    pub gate: Gate,
    /// In the order of the plan; runs of an `undo` last.
    pub steps: Vec<Seen<'v>>,
    places: BTreeMap<&'v StepId, usize>,
    /// The number of each effect that has landed and can be undone, in the order of landing.
    landings: BTreeMap<(&'v StepId, &'v str, u32), u32>,
}

/// A step with its records.
pub(super) struct Seen<'v> {
    pub step: &'v StepId,
    pub definition: &'v Definition,
    pub state: Option<&'v StepState>,
    pub claim: Option<&'v Claim>,
    pub effects: Option<&'v Effects>,
}

/// Reads what there is to read, asking for many records at a time.
pub(super) fn walk(view: &View) -> Result<Walk<'_>, Halt> {
    view.need([Key::Header, Key::Gate, Key::Meta])?;
    let header = view.header()?;
    view.need((0..header.order_chunks).map(Key::Order))?;
    let mut names = Vec::new();
    for chunk in 0..header.order_chunks {
        names.extend(view.names(&Key::Order(chunk))?);
    }
    view.need(names.iter().map(|step| Key::Step((*step).clone())))?;
    let finally: BTreeSet<&StepId> = view.meta()?.finally.iter().collect();
    let mut touched = Vec::new();
    for step in names {
        let state = state(view, step)?;
        let at_the_end = finally.contains(step) || step.undone().is_some();
        if is_touched(state) || at_the_end {
            touched.push((step, state));
        }
    }
    view.need(touched.iter().flat_map(|(step, state)| wants(step, *state)))?;
    let mut steps = Vec::with_capacity(touched.len());
    for (step, state) in touched {
        let definition = view.definition(step)?;
        let claim = if may_be_claimed(state) { view.claim(step)? } else { None };
        let effects = match has_effects(state) {
            true => view.get(&Key::Effects(step.clone()))?,
            false => None,
        };
        let effects = match effects {
            Some(Record::Effects(effects)) => Some(effects),
            _ => None,
        };
        steps.push(Seen { step, definition, state, claim, effects });
    }
    view.need((1..=header.landings).map(Key::Landing))?;
    let mut landings = BTreeMap::new();
    for number in 1..=header.landings {
        let landing = view.landing(number)?;
        landings.insert((&landing.step, landing.name.as_str(), landing.generation), number);
    }
    let places = steps.iter().enumerate().map(|(place, seen)| (seen.step, place)).collect();
    Ok(Walk { header, gate: view.gate()?, steps, places, landings })
}

fn state<'v>(view: &'v View, step: &StepId) -> Result<Option<&'v StepState>, Halt> {
    match view.get(&Key::Step(step.clone()))? {
        Some(Record::Step(state)) => Ok(Some(state)),
        _ => Ok(None),
    }
}

/// True unless the step had settled, for good and without effects, before any stop.
fn is_touched(state: Option<&StepState>) -> bool {
    state.is_none_or(|state| {
        !state.is_settled() || state.effects > 0 || ended_after_stop(state).is_some()
    })
}

fn may_be_claimed(state: Option<&StepState>) -> bool {
    state.is_some_and(|state| matches!(state.status, Status::Ready { .. }))
}

fn has_effects(state: Option<&StepState>) -> bool {
    state.is_some_and(|state| state.effects > 0)
}

fn wants(step: &StepId, state: Option<&StepState>) -> Vec<Key> {
    let mut keys = vec![Key::Definition(step.clone())];
    keys.extend(may_be_claimed(state).then(|| Key::Claim(step.clone())));
    keys.extend(has_effects(state).then(|| Key::Effects(step.clone())));
    keys
}

/// Gives the attempt that ran when the stop was asked for, once it has ended.
fn ended_after_stop(state: &StepState) -> Option<&LastAttempt> {
    state.last.as_ref().filter(|last| last.after_stop)
}

impl Walk<'_> {
    /// Lists the items as they are, or were when the stop was asked for, and what a stop of this
    /// mode does with each.
    pub fn items(&self, moment: Moment, mode: StopMode) -> Vec<Item> {
        let mut items = Vec::new();
        for seen in &self.steps {
            match seen.definition.part() {
                Part::Main => items.extend(seen.own(moment, mode)),
                Part::Undo | Part::Finally => {}
            }
            items.extend(self.effects(seen, moment, mode));
        }
        items.extend(self.holds(moment));
        items.extend(self.deadline(moment));
        let finally = self.steps.iter().filter(|seen| seen.definition.finally);
        items.extend(finally.map(|seen| {
            let subject = Subject::Finally { step: seen.step.clone() };
            Item::new(subject, Now::Waiting, Fate::Runs)
        }));
        items
    }

    /// Lists a step's effects that have happened, or may have.
    fn effects(&self, seen: &Seen<'_>, moment: Moment, mode: StopMode) -> Vec<Item> {
        let mut items = seen.effects(moment);
        for item in &mut items {
            if let (Now::Landed, StopMode::Undo, Some(number)) =
                (item.now, mode, self.landing(&item.subject))
            {
                item.fate = Fate::Undone { position: self.header.landings - number + 1 };
            }
        }
        items
    }

    /// Gives the number of an effect in the order of landing, if it has one: it can be undone.
    pub fn landing(&self, subject: &Subject) -> Option<u32> {
        match subject {
            Subject::Effect { step, name, generation } => {
                self.landings.get(&(step, name.as_str(), *generation)).copied()
            }
            Subject::Attempt { .. }
            | Subject::Step { .. }
            | Subject::Hold { .. }
            | Subject::Deadline
            | Subject::Finally { .. } => None,
        }
    }

    /// Finds a step.
    pub fn seen(&self, step: &StepId) -> Option<&Seen<'_>> {
        self.places.get(step).map(|place| &self.steps[*place])
    }

    fn holds(&self, moment: Moment) -> impl Iterator<Item = Item> {
        let holds = match (moment, &self.gate.stop) {
            (Moment::Stop, Some(stop)) => &stop.lapsed,
            (Moment::Stop, None) | (Moment::Now, _) => &self.gate.holds,
        };
        holds.iter().map(|hold| {
            let subject = Subject::Hold { reason: hold.reason, by: hold.by.clone() };
            let (since, due) = (Some(hold.since), hold.due);
            Item { since, due, ..Item::new(subject, Now::Held, Fate::Lapses) }
        })
    }

    fn deadline(&self, moment: Moment) -> Option<Item> {
        let due = match (moment, &self.gate.stop) {
            (Moment::Stop, Some(stop)) => stop.deadline_at,
            (Moment::Stop, None) | (Moment::Now, _) => self.header.deadline_at,
        };
        let due = Some(due?);
        Some(Item { due, ..Item::new(Subject::Deadline, Now::Waiting, Fate::Lapses) })
    }
}

impl Seen<'_> {
    /// Gives the attempt that runs at a moment: its number, its worker and since when.
    fn runs(&self, moment: Moment) -> Option<(u32, &WorkerId, Time)> {
        if let Some(claim) = self.claim {
            return Some((claim.attempt, &claim.worker, claim.started_at));
        }
        let last = self.state.and_then(ended_after_stop).filter(|_| moment == Moment::Stop)?;
        Some((last.attempt, &last.worker, last.started_at))
    }

    /// Gives the item of the step itself: its running attempt, or that it is staged.
    fn own(&self, moment: Moment, mode: StopMode) -> Option<Item> {
        if let Some((attempt, worker, since)) = self.runs(moment) {
            let subject = Subject::Attempt { step: self.step.clone(), attempt };
            let fate = match mode {
                StopMode::Drain => Fate::MayFinish,
                StopMode::Halt | StopMode::Undo => Fate::ToldToEnd,
            };
            let (since, worker) = (Some(since), Some(worker.clone()));
            let item = Item { since, worker, ..Item::new(subject, Now::Running, fate) };
            return Some(self.declared(item));
        }
        let pending = StepState::pending(0);
        let state = self.state.unwrap_or(&pending);
        let (now, since, due, reason) = match &state.status {
            Status::Pending => (Now::Pending, None, None, None),
            Status::Ready { since, .. } => (Now::Ready, Some(*since), state.start_by, None),
            Status::Retrying { at } => {
                let failed = state.failure.as_ref().map(|failure| failure.at);
                (Now::Retrying, failed, Some(*at), None)
            }
            Status::Held { hold } => (Now::Held, Some(hold.since), hold.due, Some(hold.reason)),
            Status::Succeeded { .. } | Status::Failed { .. } | Status::Skipped { .. } => {
                return None;
            }
        };
        let subject = Subject::Step { step: self.step.clone() };
        let attempt = Some(state.attempt);
        let item = Item::new(subject, now, Fate::WillNotHappen);
        Some(self.declared(Item { since, due, reason, attempt, ..item }))
    }

    /// Adds which effect the step declares.
    fn declared(&self, item: Item) -> Item {
        let class = self.definition.plan.effect_class();
        let plan = self.definition.plan.effect.as_ref();
        Item {
            class: (class != EffectClass::None).then_some(class),
            undo: self.undo(),
            target: plan.and_then(|effect| effect.target.clone()),
            says: plan.and_then(|effect| effect.says.clone()),
            ..item
        }
    }

    /// Lists the effects that have happened, or may have.
    fn effects(&self, moment: Moment) -> Vec<Item> {
        let mut items = Vec::new();
        for (name, effect) in self.effects.into_iter().flatten() {
            items.extend((1..effect.generation).map(|generation| {
                let item = Item::new(self.effect(name, generation), Now::Landed, Fate::Stays);
                Item { class: Some(effect.class), undo: self.undo(), ..item }
            }));
            items.extend(self.newest(moment, name, effect));
        }
        items.extend(self.by_claim(moment));
        items
    }

    fn undo(&self) -> Option<HandlerName> {
        self.definition.plan.undo.as_ref().map(|undo| undo.uses.clone())
    }

    fn effect(&self, name: &str, generation: u32) -> Subject {
        Subject::Effect { step: self.step.clone(), name: name.to_owned(), generation }
    }

    /// Gives the newest generation of an effect, unless it was known not to have happened.
    fn newest(&self, moment: Moment, name: &str, effect: &Effect) -> Option<Item> {
        let known_later = moment == Moment::Stop && effect.after_stop;
        let (now, fate, since) = match &effect.standing {
            Standing::Landed { at, .. } if !known_later => (Now::Landed, Fate::Stays, Some(*at)),
            Standing::NotLanded { .. } if !known_later => return None,
            Standing::Uncertain { since } if !known_later => {
                (Now::Uncertain, uncertain(effect.class), Some(*since))
            }
            Standing::InFlight
            | Standing::Uncertain { .. }
            | Standing::Landed { .. }
            | Standing::NotLanded { .. } => match effect.uncertain_at_stop {
                Some(since) if moment == Moment::Stop => {
                    (Now::Uncertain, uncertain(effect.class), Some(since))
                }
                _ => (Now::InFlight, Fate::MayLand, Some(effect.intended_at)),
            },
        };
        let item = Item::new(self.effect(name, effect.generation), now, fate);
        Some(Item {
            class: Some(effect.class),
            undo: self.undo(),
            target: effect.target.clone(),
            says: effect.says.clone(),
            since,
            worker: Some(effect.worker.clone()),
            attempt: Some(effect.attempt),
            request_sha256: Some(effect.request_sha256.clone()),
            receipt_sha256: match &effect.standing {
                Standing::Landed { receipt_sha256, .. } => Some(receipt_sha256.clone()),
                Standing::InFlight | Standing::Uncertain { .. } | Standing::NotLanded { .. } => {
                    None
                }
            },
            ..item
        })
    }

    /// Gives the effect that a running attempt's claim lets fly: no record knows of it.
    fn by_claim(&self, moment: Moment) -> Option<Item> {
        let (attempt, worker, since) = self.runs(moment)?;
        if self.definition.plan.effect_class() != EffectClass::Idempotent {
            return None;
        }
        let main = self.effects.and_then(|effects| effects.get(MAIN_EFFECT));
        let generation = match main {
            None => 1,
            Some(effect) => match effect.standing {
                Standing::NotLanded { .. } if !(moment == Moment::Stop && effect.after_stop) => {
                    effect.generation
                }
                Standing::InFlight
                | Standing::Uncertain { .. }
                | Standing::Landed { .. }
                | Standing::NotLanded { .. } => return None, // its record speaks for it
            },
        };
        let subject = self.effect(MAIN_EFFECT, generation);
        let item = Item::new(subject, Now::InFlight, Fate::MayLand);
        let (since, worker, attempt) = (Some(since), Some(worker.clone()), Some(attempt));
        Some(self.declared(Item { since, worker, attempt, ..item }))
    }
}

/// What a stop leaves of an effect of which nobody knows whether it has happened.
fn uncertain(class: EffectClass) -> Fate {
    match class.needs_durable_store() {
        true => Fate::ToSettle,
        false => Fate::StaysUncertain,
    }
}
