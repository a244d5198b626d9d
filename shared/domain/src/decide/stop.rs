//! Stops a task (`halt`): nothing of its plan starts any more, attempts are told to end.

use super::Decision;
use crate::event::Change;
use crate::outcome::truncate;
use crate::record::{Ending, Key, Phase};
use crate::refusal::{Halt, Refusal};
use crate::stop_plan::{self, Basis};
use crate::view::View;

/// Bytes of a reason or note in a person's words.
pub const NOTE_BYTES_MAX: usize = 1024;

pub(super) fn decide(view: &View, reason: Option<String>) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate])?;
    let header = view.header()?;
    let reason = reason.map(|reason| truncate(&reason, NOTE_BYTES_MAX));
    match header.phase {
        Phase::Main | Phase::Closing { ending: Ending::Failed } => {
            Ok(Change::StopRequested { reason, plan_sha256: None }.into())
        }
        Phase::Closing { ending: Ending::Cancelled | Ending::Completed }
        | Phase::Finally { ending: Ending::Cancelled }
        | Phase::Ended { ending: Ending::Cancelled, .. } => Ok(Decision::nothing()),
        // Its end is decided, and what runs now cleans up after it: there is nothing to stop.
        Phase::Finally { ending: ending @ (Ending::Completed | Ending::Failed) } => {
            Err(Refusal::EndDecided(ending).into())
        }
        Phase::Ended { ending: Ending::Completed | Ending::Failed, .. } => {
            Err(Refusal::Ended(header.state).into())
        }
    }
}

/// Stops a task only if what a stop plan was made on still stands. One that was stopped already
/// stays as it is, whoever asked and by which plan.
pub(super) fn as_planned(
    view: &View,
    reason: Option<String>,
    basis: &Basis,
) -> Result<Decision, Halt> {
    let mut decision = decide(view, reason)?;
    for change in &mut decision.changes {
        if let Change::StopRequested { plan_sha256, .. } = change {
            if !stop_plan::stands(view, basis)? {
                return Err(Refusal::PlanMoved.into());
            }
            *plan_sha256 = Some(basis.digest.clone());
        }
    }
    Ok(decision)
}
