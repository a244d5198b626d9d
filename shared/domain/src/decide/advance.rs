//! Goes on with ending a task: once no attempt runs, the epoch rises, what a stop undoes is
//! undone, `finally` runs, and the end is written.

use super::{Decision, Given, undo, verify};
use crate::event::Change;
use crate::ids::StepId;
use crate::record::{Ending, Key, Phase};
use crate::refusal::Halt;
use crate::stop_plan::CLAIMS_COVERED_MAX;
use crate::view::View;

pub(super) fn decide(view: &View, claimed: &[StepId], given: &Given) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate, Key::Meta])?;
    let header = view.header()?;
    match header.phase {
        Phase::Closing { ending } => close(view, claimed, ending, given),
        Phase::Undoing { .. } if header.undo_open == 0 => on(view, Ending::Cancelled, given),
        Phase::Finally { ending } if header.finally_open == 0 => on(view, ending, given),
        Phase::Main | Phase::Undoing { .. } | Phase::Finally { .. } | Phase::Ended { .. } => {
            Ok(Decision::nothing())
        }
    }
}

/// Ends the epoch if none of the attempts that were running still is. More of them than a commit
/// can guard wait for the next look: those that have ended are not named again.
fn close(view: &View, claimed: &[StepId], ending: Ending, given: &Given) -> Result<Decision, Halt> {
    if claimed.len() > CLAIMS_COVERED_MAX {
        return Ok(Decision::nothing());
    }
    view.need(claimed.iter().map(|step| Key::Claim(step.clone())))?;
    for step in claimed {
        if view.claim(step)?.is_some() {
            return Ok(Decision::nothing());
        }
    }
    let mut decision = on(view, ending, given)?;
    decision.changes.insert(0, Change::EpochRaised { epoch: view.gate()?.epoch + 1 });
    Ok(decision)
}

/// Takes the next step towards the end, once no attempt runs: what is left to undo, the
/// `finally` steps, the end. An effect that turns out to have landed while `finally` steps ran
/// is undone after them.
fn on(view: &View, ending: Ending, given: &Given) -> Result<Decision, Halt> {
    if let Some(undo) = undo::next(view, ending, given)? {
        return Ok(undo);
    }
    Ok(verify::finish(view, ending, given)?.into())
}

/// Writes the end, and when everything about the task is removed.
pub(super) fn ended(view: &View, ending: Ending, given: &Given) -> Result<Change, Halt> {
    let remove_at = given.now.after(view.meta()?.retention);
    Ok(Change::TaskEnded { ending, remove_at })
}
