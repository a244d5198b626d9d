//! What has landed is undone only by a stop that undoes: the last to land first, one after the
//! other, each once. What is not undone stands because a person has said so.

use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::record::{SkipReason, StopMode, effect_key};

use super::Case;
use crate::ledger::Ledger;
use crate::world::Seen;

/// What can be undone, as events tell of it.
#[derive(Default)]
struct Pile {
    /// All that have landed; the place is the number, less one.
    landed: Vec<(StepId, String, u32)>,
    /// Those whose undo has not begun, in the order of landing.
    left: Vec<u32>,
    /// The undo that has begun and not ended.
    runs: Option<StepId>,
    mode: Option<StopMode>,
    raised: bool,
    ended: bool,
    /// True if a person has just let what is held stand.
    skips: bool,
}

impl Pile {
    /// Takes an event; gives what is wrong with it.
    fn take(&mut self, change: &Change) -> Option<String> {
        match change {
            Change::StopRequested { mode, .. } | Change::StopStrengthened { mode, .. } => {
                self.mode = Some(*mode);
            }
            Change::EpochRaised { .. } => self.raised = true,
            Change::HoldAnswered { reason, answer, .. } => {
                self.skips = *reason == HoldReason::UndoFailed && *answer == Answer::Skip;
            }
            Change::UndoAdded { step, landing, .. } => return self.begins(step, *landing),
            Change::StepSucceeded { step, .. } if step.undone().is_some() => {
                return self.ends(step);
            }
            Change::StepSkipped { step, reason, .. } if step.undone().is_some() => {
                if !self.skips || *reason != SkipReason::Answer {
                    return Some(format!("`{step}` was left out, and nobody said so"));
                }
                return self.ends(step);
            }
            Change::StepFailed { step, .. } if step.undone().is_some() => {
                return Some(format!("`{step}` failed, and nobody is asked"));
            }
            Change::FinallyStarted { .. } | Change::TaskEnded { .. } => {
                self.ended |= matches!(change, Change::TaskEnded { .. });
                let undoes = self.mode == Some(StopMode::Undo);
                if undoes && (!self.left.is_empty() || self.runs.is_some()) {
                    return Some(format!("landings {:?} are not undone", self.left));
                }
            }
            _ => {}
        }
        None
    }

    fn begins(&mut self, step: &StepId, landing: u32) -> Option<String> {
        let last = self.left.pop();
        let of = self.landed.get((landing as usize).wrapping_sub(1));
        let right = last == Some(landing) && of.map(|of| of.0.undo(landing)).as_ref() == Some(step);
        let before = self.runs.replace(step.clone());
        if !right || before.is_some() {
            return Some(format!("`{step}` begins where {last:?} is next, and {before:?} runs"));
        }
        let may = self.raised && !self.ended && self.mode == Some(StopMode::Undo);
        (!may).then(|| format!("`{step}` begins though nobody wants it"))
    }

    fn ends(&mut self, step: &StepId) -> Option<String> {
        let ran = self.runs.take();
        (ran.as_ref() != Some(step)).then(|| format!("`{step}` ends where {ran:?} ran"))
    }
}

impl Case<'_> {
    pub(super) fn undos(&mut self) {
        let mut pile = Pile::default();
        for Seen { event, .. } in self.events.clone() {
            if let Change::EffectLanded { step, name, generation, .. } = &event.change
                && self.promises.get(step.as_str()).is_some_and(|promise| promise.undo)
            {
                let place = (step.clone(), name.clone(), *generation);
                if pile.landed.contains(&place) {
                    self.fault(format!("{place:?} has landed twice"));
                }
                pile.landed.push(place);
                pile.left.push(u32::try_from(pile.landed.len()).unwrap());
            }
            self.count_answers(&event.change);
            if let Some(fault) = pile.take(&event.change) {
                self.fault(fault);
            }
        }
        self.undos_know_what_they_undo(&pile);
    }

    fn count_answers(&self, change: &Change) {
        if let Change::HoldAnswered { reason: HoldReason::UndoFailed, answer, .. } = change {
            self.world.trace.count(match answer {
                Answer::Retry => "undo tried anew by a person",
                _ => "undo left by a person",
            });
        }
    }

    /// Each run of an undo is given the receipt of what it undoes: what the outside gave for it.
    fn undos_know_what_they_undo(&mut self, pile: &Pile) {
        let all = self.world.ledger.sent();
        for start in self.starts.clone() {
            let Some((_, number)) = StepId::new(start.step.clone()).unwrap().undone() else {
                continue;
            };
            let Some((step, name, generation)) = pile.landed.get(number as usize - 1) else {
                self.fault(format!("`{}` undoes what has not landed", start.step));
                continue;
            };
            let right = effect_key(self.task, step, name, *generation);
            let given = Ledger::receipted(&all, &start.seen["undone"]);
            let key = given.map(|sent| &sent.request.key);
            if key != Some(&right) {
                self.fault(format!("`{}` was given {}, not {right}", start.step, start.seen));
            }
        }
        let own = |step: &str| StepId::new(step).unwrap().undone().is_some();
        let sent = self.sent.iter().filter(|sent| own(&sent.request.step)).count();
        (0..sent).for_each(|_| self.world.trace.count("undo sent a request"));
    }
}
