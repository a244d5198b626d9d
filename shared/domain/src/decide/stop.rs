//! Stops a task: nothing of its plan starts any more. Attempts that run are told to end, or may
//! finish (`drain`); what has landed stays, or is undone (`undo`).
//!
//! A stop is write-once: asking again for the same or less changes nothing. Asking for more is
//! heard while attempts still run; afterwards it is refused, since they have ended as they were
//! told to.

use super::Decision;
use crate::event::Change;
use crate::outcome::truncate;
use crate::record::{Ending, Key, Phase, StopMode};
use crate::refusal::{Halt, Refusal};
use crate::stop_plan::{self, Basis};
use crate::view::View;

/// Bytes of a reason or note in a person's words.
pub const NOTE_BYTES_MAX: usize = 1024;

pub(super) fn decide(
    view: &View,
    reason: Option<String>,
    mode: StopMode,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate])?;
    let header = view.header()?;
    let reason = reason.map(|reason| truncate(&reason, NOTE_BYTES_MAX));
    let known = view.gate()?.stop.map(|stop| stop.mode);
    let stronger = known.is_some_and(|known| mode > known);
    match header.phase {
        Phase::Main | Phase::Closing { ending: Ending::Failed } => {
            Ok(Change::StopRequested { reason, mode, plan_sha256: None }.into())
        }
        Phase::Closing { ending: Ending::Cancelled } if stronger => {
            Ok(Change::StopStrengthened { reason, mode, plan_sha256: None }.into())
        }
        Phase::Closing { ending: Ending::Cancelled | Ending::Completed } => Ok(Decision::nothing()),
        // What runs now cleans up after the end that was decided: there is nothing to stop.
        Phase::Finally { ending: ending @ (Ending::Completed | Ending::Failed) } => {
            Err(Refusal::EndDecided(ending).into())
        }
        Phase::Undoing { .. } | Phase::Finally { ending: Ending::Cancelled } => match stronger {
            true => Err(Refusal::EndDecided(Ending::Cancelled).into()),
            false => Ok(Decision::nothing()),
        },
        Phase::Ended { ending: Ending::Cancelled, .. } if !stronger => Ok(Decision::nothing()),
        Phase::Ended { .. } => Err(Refusal::Ended(header.state).into()),
    }
}

/// Stops a task, or strengthens its stop, only if what a stop plan was made on still stands. One
/// that was stopped as hard already stays as it is, whoever asked and by which plan.
pub(super) fn as_planned(
    view: &View,
    reason: Option<String>,
    mode: StopMode,
    basis: &Basis,
) -> Result<Decision, Halt> {
    let mut decision = decide(view, reason, mode)?;
    if !decision.changes.is_empty() && !stop_plan::stands(view, basis)? {
        return Err(Refusal::PlanMoved.into());
    }
    for change in &mut decision.changes {
        if let Change::StopRequested { plan_sha256, .. }
        | Change::StopStrengthened { plan_sha256, .. } = change
        {
            *plan_sha256 = Some(basis.digest.clone());
        }
    }
    Ok(decision)
}
