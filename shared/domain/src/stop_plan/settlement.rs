//! What a stop came to, item by item.

use super::item::{Item, Now, Subject};
use super::walk::{Moment, Seen, Walk};
use crate::hold::Hold;
use crate::ids::StepId;
use crate::outcome::FailureClass;
use crate::record::{NotLanded, Part, Phase, Standing, Status, Stop, StopMode};
use crate::refusal::{Halt, Refusal};
use crate::time::{Span, Time};
use crate::view::View;

/// What became of an item so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    /// An effect that had happened before, and stays.
    Stays,
    /// An effect that was known to have happened only after the stop was asked for.
    LandedLate,
    /// An effect that is now known not to have happened.
    NotLanded(NotLanded),
    /// An effect that was undone.
    Undone,
    /// An effect whose undo has its turn: it is about to run, runs, or is tried again.
    Undoing,
    /// An effect whose undo waits for its turn.
    ToUndo,
    /// An effect whose undo a person must settle.
    UndoHeld,
    /// An effect that a person has let stay without its undo.
    LeftByAnswer,
    /// An effect whose attempt still runs.
    InFlight,
    /// An effect that a person must settle.
    ToSettle,
    /// An effect that stays uncertain, which harms nobody.
    StaysUncertain,
    /// An attempt or a `finally` step that runs.
    Running,
    /// It did not happen, or was ended.
    Cancelled,
    /// An attempt, or a `finally` step, that worked.
    Succeeded,
    /// An attempt, or a `finally` step, that did not.
    Failed(Option<FailureClass>),
    /// A `finally` step that was left out.
    Skipped,
    /// A hold or deadline that ended with the stop.
    Lapsed,
    /// A `finally` step that has not begun.
    Waiting,
}

impl Became {
    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stays => "stays",
            Self::LandedLate => "landed_late",
            Self::NotLanded(_) => "not_landed",
            Self::Undone => "undone",
            Self::Undoing => "undoing",
            Self::ToUndo => "to_undo",
            Self::UndoHeld => "undo_held",
            Self::LeftByAnswer => "left",
            Self::InFlight => "in_flight",
            Self::ToSettle => "to_settle",
            Self::StaysUncertain => "stays_uncertain",
            Self::Running => "running",
            Self::Cancelled => "cancelled",
            Self::Succeeded => "succeeded",
            Self::Failed(_) => "failed",
            Self::Skipped => "skipped",
            Self::Lapsed => "lapsed",
            Self::Waiting => "waiting",
        }
    }
}

/// One item of a settlement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What it was when the stop was asked for, and what was to be done with it.
    pub item: Item,
    /// What became of it.
    pub became: Became,
    /// When, where a record says so.
    pub at: Option<Time>,
    /// True if it came only after the stop was asked for.
    pub since_stop: bool,
    /// The hold that keeps its undo, or itself, from going on, and of which step that is.
    pub hold: Option<(StepId, Hold)>,
    /// Of an attempt: true if its worker told a result after it had been taken from it.
    pub told_late: bool,
}

/// What a stop came to, or has come to so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Who stopped it, when, why and how.
    pub stop: Stop,
    /// The same items as in the last plan before it, and what came later.
    pub items: Vec<Settled>,
    /// When the task ended; none: the stop is under way.
    pub ended_at: Option<Time>,
}

impl Settlement {
    /// Gives how long it took from the stop to the end.
    pub fn took(&self) -> Option<Span> {
        self.ended_at.map(|ended| ended.since(self.stop.at))
    }
}

/// Says what a stop came to. Halts with what is to be loaded; refuses if none was asked for.
pub fn settlement(view: &View) -> Result<Settlement, Halt> {
    let walk = super::walk(view)?;
    let Some(stop) = walk.gate.stop.clone() else { return Err(Refusal::NotStopped.into()) };
    let items = walk.items(Moment::Stop, stop.mode);
    let settled = items.into_iter().map(|item| walk.settled(item));
    let ended_at = match walk.header.phase {
        Phase::Ended { at, .. } => Some(at),
        Phase::Main | Phase::Closing { .. } | Phase::Undoing { .. } | Phase::Finally { .. } => None,
    };
    Ok(Settlement { items: settled.collect(), stop, ended_at })
}

impl Walk<'_> {
    fn settled(&self, item: Item) -> Settled {
        let seen = match &item.subject {
            Subject::Effect { step, .. }
            | Subject::Attempt { step, .. }
            | Subject::Step { step }
            | Subject::Finally { step } => self.seen(step),
            Subject::Hold { .. } | Subject::Deadline => None,
        };
        let stopped_at = self.gate.stop.as_ref().map(|stop| stop.at);
        let ((became, at), late) = match (&item.subject, seen) {
            (Subject::Effect { name, generation, .. }, Some(seen)) => {
                let became = seen.effect_became(&item, name, *generation);
                (self.undo_became(&item.subject).unwrap_or(became), false)
            }
            (Subject::Attempt { .. }, Some(seen)) => (seen.attempt_became(), seen.told_late()),
            (Subject::Finally { .. }, Some(seen)) => (self.finally_became(seen), false),
            (Subject::Step { .. }, _) => ((Became::Cancelled, stopped_at), false),
            (Subject::Hold { .. } | Subject::Deadline, _) => ((Became::Lapsed, stopped_at), false),
            (Subject::Effect { .. } | Subject::Attempt { .. } | Subject::Finally { .. }, None) => {
                ((Became::Cancelled, None), false)
            }
        };
        let since_stop = seen.is_some_and(|seen| seen.came_later(&item.subject));
        let hold = self.held(&item.subject);
        Settled { item, became, at, since_stop, hold, told_late: late }
    }

    /// What became of an effect that a stop undoes, from its turn on.
    fn undo_became(&self, subject: &Subject) -> Option<(Became, Option<Time>)> {
        let (number, stop) = (self.landing(subject)?, self.gate.stop.as_ref()?);
        let run = subject.step()?.undo(number);
        let Some(run) = self.seen(&run) else {
            let waits = stop.mode == StopMode::Undo && self.is_before_finally();
            return waits.then_some((Became::ToUndo, None));
        };
        Some(match run.state.map(|state| &state.status) {
            Some(Status::Succeeded { at }) => (Became::Undone, Some(*at)),
            Some(Status::Skipped { at, .. }) => (Became::LeftByAnswer, Some(*at)),
            Some(Status::Held { hold }) => (Became::UndoHeld, Some(hold.since)),
            Some(Status::Failed { at, .. }) => (Became::UndoHeld, Some(*at)),
            None | Some(Status::Pending | Status::Ready { .. } | Status::Retrying { .. }) => {
                (Became::Undoing, None)
            }
        })
    }

    /// Finds what holds the undo of an effect, or a `finally` step.
    fn held(&self, subject: &Subject) -> Option<(StepId, Hold)> {
        let step = match subject {
            Subject::Effect { step, .. } => step.undo(self.landing(subject)?),
            Subject::Finally { step } => step.clone(),
            Subject::Attempt { .. }
            | Subject::Step { .. }
            | Subject::Hold { .. }
            | Subject::Deadline => return None,
        };
        match &self.seen(&step)?.state?.status {
            Status::Held { hold } if !matches!(self.header.phase, Phase::Ended { .. }) => {
                Some((step, (**hold).clone()))
            }
            Status::Pending
            | Status::Ready { .. }
            | Status::Retrying { .. }
            | Status::Held { .. }
            | Status::Succeeded { .. }
            | Status::Failed { .. }
            | Status::Skipped { .. } => None,
        }
    }

    fn is_before_finally(&self) -> bool {
        match self.header.phase {
            Phase::Main | Phase::Closing { .. } | Phase::Undoing { .. } => true,
            Phase::Finally { .. } | Phase::Ended { .. } => false,
        }
    }

    fn finally_became(&self, seen: &Seen<'_>) -> (Became, Option<Time>) {
        let ended = matches!(self.header.phase, Phase::Ended { .. });
        let Some(state) = seen.state else {
            let became = if ended { Became::Cancelled } else { Became::Waiting };
            return (became, None);
        };
        match &state.status {
            Status::Succeeded { at } => (Became::Succeeded, Some(*at)),
            Status::Failed { at, class } => (Became::Failed(*class), Some(*at)),
            Status::Skipped { at, .. } => (Became::Skipped, Some(*at)),
            Status::Pending
            | Status::Ready { .. }
            | Status::Retrying { .. }
            | Status::Held { .. }
                if ended =>
            {
                (Became::Cancelled, None)
            }
            Status::Ready { .. } if seen.claim.is_some() => (Became::Running, None),
            Status::Pending
            | Status::Ready { .. }
            | Status::Retrying { .. }
            | Status::Held { .. } => (Became::Waiting, None),
        }
    }
}

impl Seen<'_> {
    fn attempt_became(&self) -> (Became, Option<Time>) {
        let (None, Some(state)) = (self.claim, self.state) else { return (Became::Running, None) };
        let ended_at = state.last.as_ref().map(|last| last.ended_at);
        let became = match state.seen().0 {
            // A step that is being redone shows how it settled before: with another attempt.
            Status::Succeeded { at } if ended_at == Some(*at) => Became::Succeeded,
            Status::Succeeded { .. }
            | Status::Failed { .. }
            | Status::Skipped { .. }
            | Status::Pending
            | Status::Ready { .. }
            | Status::Retrying { .. }
            | Status::Held { .. } => {
                let class = state.failure.as_ref().map(|failure| failure.class);
                match class {
                    None | Some(FailureClass::Cancelled) => Became::Cancelled,
                    Some(
                        class @ (FailureClass::Retryable
                        | FailureClass::Permanent
                        | FailureClass::RateLimited
                        | FailureClass::Timeout
                        | FailureClass::Lost),
                    ) => Became::Failed(Some(class)),
                }
            }
        };
        (became, ended_at)
    }

    fn told_late(&self) -> bool {
        self.state.and_then(|state| state.last.as_ref()).is_some_and(|last| last.late)
    }

    fn effect_became(&self, item: &Item, name: &str, generation: u32) -> (Became, Option<Time>) {
        let effect = self.effects.and_then(|effects| effects.get(name));
        let Some(effect) = effect.filter(|effect| effect.generation == generation) else {
            return match item.now {
                Now::Landed => (Became::Stays, None), // an earlier generation
                _ => self.claim_became(),
            };
        };
        match &effect.standing {
            Standing::Landed { at, .. } if effect.after_stop => (Became::LandedLate, Some(*at)),
            Standing::Landed { at, .. } => (Became::Stays, Some(*at)),
            Standing::NotLanded { .. } if !effect.after_stop => self.claim_became(),
            Standing::NotLanded { at, how } => (Became::NotLanded(*how), Some(*at)),
            Standing::Uncertain { since } if effect.class.needs_durable_store() => {
                (Became::ToSettle, Some(*since))
            }
            Standing::Uncertain { since } => (Became::StaysUncertain, Some(*since)),
            Standing::InFlight => (Became::InFlight, None),
        }
    }

    /// What became of an effect that a claim alone let fly, and of which no record tells: the
    /// attempt has said that nothing was sent, or still runs.
    fn claim_became(&self) -> (Became, Option<Time>) {
        match self.claim {
            Some(_) => (Became::InFlight, None),
            None => {
                let last = self.state.and_then(|state| state.last.as_ref());
                (Became::NotLanded(NotLanded::NotSent), last.map(|last| last.ended_at))
            }
        }
    }

    /// True for what was not there yet when the stop was asked for.
    fn came_later(&self, subject: &Subject) -> bool {
        let (name, generation) = match subject {
            Subject::Effect { name, generation, .. } => (name, generation),
            Subject::Step { .. } => return self.state.is_some_and(|state| state.after_stop),
            Subject::Attempt { .. }
            | Subject::Hold { .. }
            | Subject::Deadline
            | Subject::Finally { .. } => return false,
        };
        match self.definition.part() {
            Part::Main => {}
            Part::Undo | Part::Finally => return true,
        }
        let effect = self.effects.and_then(|effects| effects.get(name));
        effect.is_some_and(|effect| effect.generation == *generation && effect.intended_after_stop)
    }
}
