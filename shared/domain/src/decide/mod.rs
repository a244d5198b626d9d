//! Decisions: from what is known and what is asked, to what happens. One file a command.
//!
//! A decision reads the view, never changes it, and is the same whatever else the view knows.

mod advance;
mod again;
mod answer;
mod claim;
mod complete;
mod effect;
mod end_attempt;
mod hand_over;
mod open;
mod pause;
mod round;
mod stop;
mod stop_attempt;
mod submit;
mod timer;
mod undo;
mod verify;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::event::Change;
use crate::hold::Answer;
use crate::ids::{HandlerName, Principal, StepId, WorkerId};
use crate::outcome::Outcome;
use crate::record::{Key, NotLanded, Payload, Record, StopMode};
use crate::refusal::Halt;
use crate::stop_plan::Basis;
use crate::time::{Span, Time};
use crate::view::{Attempt, View};

pub use complete::Addition;
pub use effect::{Intent, Speaker};
pub use open::{Resolution, to_resolve};
pub use submit::{Submission, ahead, written_at_birth};
pub use timer::TimerKind;
pub use undo::UNDO_ALLOWANCE;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Accept a task.
    Submit(Box<Submission>),
    /// Open the next chunk of steps without needs.
    OpenRoots,
    /// Make a step without open needs ready, or skip, hold or fail it.
    ReleaseStep {
        /// The step.
        step: StepId,
        /// What evaluating its templates gave.
        resolution: Resolution,
    },
    /// Tell the next chunk of a settled step's dependents.
    TellDependents {
        /// The settled step.
        step: StepId,
    },
    /// Complete the task, or say why not.
    Verify {
        /// The check that does not hold, if one does not.
        fault: Option<String>,
    },
    /// Go on with ending the task.
    Advance {
        /// The steps that have a claim, all of them, read after the gate was closed.
        claimed: Vec<StepId>,
    },
    /// Give an attempt to a worker.
    ClaimStep {
        /// The step.
        step: StepId,
        /// The attempt a message spoke of; `None`: whichever is next.
        attempt: Option<u32>,
        /// Who asks.
        worker: WorkerId,
        /// How long the claim lasts unless renewed.
        length: Span,
        /// The handlers that the worker has; `None`: not to be checked.
        handlers: Option<Arc<BTreeSet<HandlerName>>>,
    },
    /// Keep a claim alive.
    RenewClaim {
        /// The attempt.
        at: Attempt,
        /// What the handler says of its progress.
        details: Option<String>,
        /// True if the handler gave a sign of life since the last renewal.
        alive: bool,
    },
    /// Take an attempt's outcome.
    CompleteAttempt {
        /// The attempt.
        at: Attempt,
        /// How it ended.
        outcome: Box<Outcome>,
        /// What is to be known of the steps it adds.
        added: Vec<Addition>,
        /// What it cost.
        cost_usd_micros: u64,
    },
    /// Record that an attempt is about to change something outside.
    Intend {
        /// The attempt.
        at: Attempt,
        /// What it is about to do.
        intent: Box<Intent>,
    },
    /// Take a receipt: an effect has happened.
    ConfirmEffect {
        /// Who says so.
        by: Speaker,
        /// What the outside world answered.
        receipt: Payload,
    },
    /// Take back an intent: the effect has not happened.
    RetractEffect {
        /// Who says so.
        by: Speaker,
        /// How that is known.
        how: NotLanded,
    },
    /// Take an attempt back from a worker that cannot go on; it is not charged.
    HandBack {
        /// The attempt.
        at: Attempt,
        /// Why.
        why: String,
    },
    /// Take an attempt from a worker that fell silent; it is charged.
    ExpireClaim {
        /// The step.
        step: StepId,
        /// The attempt that was seen to be silent.
        attempt: u32,
        /// True if it is proven that no earlier process lives (an exclusive lock), so that
        /// the claim's time need not have passed.
        proven: bool,
    },
    /// A timer has come due.
    FireTimer {
        /// The step, or the task itself.
        step: Option<StepId>,
        /// Which of its timers.
        kind: TimerKind,
        /// Of a step's queue time: why no worker has started it, as far as that is known.
        why: Option<String>,
    },
    /// A person answers a hold.
    Answer {
        /// The step, or the task itself.
        step: Option<StepId>,
        /// What is said.
        answer: Answer,
        /// In the person's words.
        note: Option<String>,
        /// Of which effect the answer speaks, if it speaks of one.
        effect: Option<String>,
        /// What the outside world answered, with `happened`.
        receipt: Option<Payload>,
    },
    /// Stop the task.
    Stop {
        /// In the asker's words.
        reason: Option<String>,
        /// What it does to attempts that run and to what has landed.
        mode: StopMode,
    },
    /// Stop the task if what a stop plan was made on still stands.
    StopAsPlanned {
        /// In the asker's words.
        reason: Option<String>,
        /// What it does to attempts that run and to what has landed.
        mode: StopMode,
        /// What the plan was made on.
        basis: Box<Basis>,
    },
    /// Take an attempt from its worker, so that another one starts; it is not charged.
    StopAttempt {
        /// The step.
        step: StepId,
        /// The attempt.
        attempt: u32,
        /// In the asker's words.
        reason: Option<String>,
    },
    /// Let nothing new start, and let the task's clocks stand still.
    Pause {
        /// In the asker's words.
        reason: Option<String>,
    },
    /// End every pause of the task.
    Resume {
        /// In the asker's words.
        reason: Option<String>,
    },
    /// Give the task to another owner.
    HandOver {
        /// Who owned it when the asker was found to have the right.
        from: Principal,
        /// Who is to own it.
        to: Principal,
        /// In the asker's words.
        reason: Option<String>,
    },
    /// Note that index entries of an ended task are gone.
    EntriesCleared,
}

/// What a decision takes from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The store's time.
    pub now: Time,
    /// Who acts.
    pub actor: Principal,
}

/// What happens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// What happens, in order.
    pub changes: Vec<Change>,
    /// Records that come with it and that no event carries.
    pub payloads: Vec<(Key, Record)>,
}

impl Decision {
    /// Nothing happens: it is as was asked already.
    fn nothing() -> Self {
        Self::default()
    }
}

impl From<Change> for Decision {
    fn from(change: Change) -> Self {
        Self { changes: vec![change], payloads: Vec::new() }
    }
}

impl From<Vec<Change>> for Decision {
    fn from(changes: Vec<Change>) -> Self {
        Self { changes, payloads: Vec::new() }
    }
}

/// Names the records that a command relies on if it changes something, and that may change
/// without the header: who runs what. A stop by a plan and the end of an epoch look at the claims
/// they were told of; no others can come to stand once the gate is closed.
pub fn relied_on(command: &Command) -> Vec<Key> {
    match command {
        Command::Advance { claimed } => claimed.iter().cloned().map(Key::Claim).collect(),
        Command::StopAsPlanned { basis, .. } => {
            basis.claims.iter().map(|(step, _)| Key::Claim(step.clone())).collect()
        }
        _ => Vec::new(),
    }
}

/// Records that [`hint`] names for most commands.
const HINTED_USUALLY: usize = 6;

/// Names the records to load first for a command. It decides nothing.
pub fn hint(command: &Command) -> Vec<Key> {
    let mut keys = Vec::with_capacity(HINTED_USUALLY);
    keys.extend([Key::Header, Key::Gate]);
    match command {
        Command::Submit(submission) => {
            keys = vec![Key::Header, Key::Meta]; // of a repeat
            keys.extend(submission.written_ahead.then_some(Key::Ahead));
        }
        Command::OpenRoots
        | Command::Stop { .. }
        | Command::Pause { .. }
        | Command::Resume { .. }
        | Command::EntriesCleared => {}
        Command::StopAsPlanned { basis, .. } => {
            keys.extend(basis.claims.iter().map(|(step, _)| Key::Claim(step.clone())));
        }
        Command::Verify { .. } | Command::Advance { .. } => keys.push(Key::Meta),
        Command::HandOver { .. } => keys = vec![Key::Header, Key::Owner],
        Command::ReleaseStep { step, .. } | Command::TellDependents { step } => {
            keys.extend([Key::Definition(step.clone()), Key::Step(step.clone())]);
        }
        Command::ClaimStep { step, .. }
        | Command::ExpireClaim { step, .. }
        | Command::StopAttempt { step, .. } => {
            keys.extend(step_keys(step));
        }
        Command::RenewClaim { at, .. } => keys = vec![Key::Gate, Key::Claim(at.step.clone())],
        Command::CompleteAttempt { at, .. } | Command::HandBack { at, .. } => {
            keys.extend(step_keys(&at.step));
        }
        Command::Intend { at, .. } => {
            keys.extend(step_keys(&at.step));
            keys.push(Key::Effects(at.step.clone()));
        }
        Command::ConfirmEffect { by, .. } | Command::RetractEffect { by, .. } => {
            keys.extend(step_keys(&by.step));
            keys.push(Key::Effects(by.step.clone()));
        }
        Command::FireTimer { step, .. } | Command::Answer { step, .. } => {
            keys.extend(step.iter().flat_map(step_keys));
        }
    }
    keys
}

fn step_keys(step: &StepId) -> [Key; 3] {
    [Key::Definition(step.clone()), Key::Step(step.clone()), Key::Claim(step.clone())]
}

/// Decides a command. The same view, command and givens always give the same answer.
pub fn decide(view: &View, command: &Command, given: &Given) -> Result<Decision, Halt> {
    match command {
        Command::Submit(submission) => submit::decide(view, submission, given),
        Command::OpenRoots => open::roots(view),
        Command::ReleaseStep { step, resolution } => open::release(view, step, resolution, given),
        Command::TellDependents { step } => open::tell(view, step),
        Command::Verify { fault } => verify::decide(view, fault.as_deref(), given),
        Command::Advance { claimed } => advance::decide(view, claimed, given),
        Command::ClaimStep { step, attempt, worker, length, handlers } => {
            let handlers = handlers.as_deref();
            let ask = claim::Ask { step, attempt: *attempt, worker, length: *length, handlers };
            claim::claim(view, &ask, given)
        }
        Command::RenewClaim { at, details, alive } => {
            claim::renew(view, at, (details.clone(), *alive), given)
        }
        Command::CompleteAttempt { at, outcome, added, cost_usd_micros } => {
            complete::decide(view, at, outcome, added, *cost_usd_micros, given)
        }
        Command::Intend { at, intent } => effect::intend(view, at, intent, given),
        Command::ConfirmEffect { by, receipt } => effect::confirm(view, by, receipt, given),
        Command::RetractEffect { by, how } => effect::retract(view, by, *how, given),
        Command::HandBack { at, why } => end_attempt::hand_back(view, at, why, given),
        Command::ExpireClaim { step, attempt, proven } => {
            end_attempt::expire(view, step, *attempt, *proven, given)
        }
        Command::FireTimer { step: Some(step), kind: TimerKind::Queue, why } => {
            timer::queue_over(view, step, why.as_deref(), given)
        }
        Command::FireTimer { step: Some(step), kind, .. } => {
            timer::fire_step(view, step, *kind, given)
        }
        Command::FireTimer { step: None, kind, .. } => timer::fire_task(view, *kind, given),
        Command::Answer { step, answer, note, effect, receipt } => {
            let said = answer::Said {
                answer: *answer,
                note: note.as_deref(),
                effect: effect.as_deref(),
                receipt: receipt.as_ref(),
            };
            answer::decide(view, step.as_ref(), &said, given)
        }
        Command::Stop { reason, mode } => stop::decide(view, reason.clone(), *mode),
        Command::StopAsPlanned { reason, mode, basis } => {
            stop::as_planned(view, reason.clone(), *mode, basis)
        }
        Command::StopAttempt { step, attempt, reason } => {
            stop_attempt::decide(view, step, *attempt, reason.as_deref(), given)
        }
        Command::Pause { reason } => pause::pause(view, reason.as_deref(), given),
        Command::Resume { reason } => pause::resume(view, reason.as_deref()),
        Command::HandOver { from, to, reason } => {
            hand_over::decide(view, from, to, reason.as_deref())
        }
        Command::EntriesCleared => Ok(match view.header()?.uncleared {
            true => Change::EntriesCleared.into(),
            false => Decision::nothing(),
        }),
    }
}

/// Gives the digest by which the log names a payload.
pub(crate) fn digest(value: &impl serde::Serialize) -> String {
    crate::canonical::digest_of(value)
}
