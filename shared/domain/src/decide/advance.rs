//! Goes on with ending a task: once no attempt runs, the epoch rises, `finally` runs, and the
//! end is written.

use super::{Decision, Given, verify};
use crate::event::Change;
use crate::ids::StepId;
use crate::record::{Ending, Key, Phase};
use crate::refusal::Halt;
use crate::view::View;

pub(super) fn decide(view: &View, claimed: &[StepId], given: &Given) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate, Key::Meta])?;
    let header = view.header()?;
    match header.phase {
        Phase::Closing { ending } => close(view, claimed, ending, given),
        Phase::Finally { ending } if header.finally_open == 0 => {
            Ok(ended(view, ending, given)?.into())
        }
        Phase::Main | Phase::Finally { .. } | Phase::Ended { .. } => Ok(Decision::nothing()),
    }
}

fn close(view: &View, claimed: &[StepId], ending: Ending, given: &Given) -> Result<Decision, Halt> {
    view.need(claimed.iter().map(|step| Key::Claim(step.clone())))?;
    for step in claimed {
        if view.claim(step)?.is_some() {
            return Ok(Decision::nothing());
        }
    }
    let mut changes = vec![Change::EpochRaised { epoch: view.gate()?.epoch + 1 }];
    changes.extend(verify::finish(view, ending, given)?);
    Ok(changes.into())
}

/// Writes the end, and when everything about the task is removed.
pub(super) fn ended(view: &View, ending: Ending, given: &Given) -> Result<Change, Halt> {
    let remove_at = given.now.after(view.meta()?.retention);
    Ok(Change::TaskEnded { ending, remove_at })
}
