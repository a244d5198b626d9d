//! Gives a task to another owner. Twice is once.

use super::{Decision, stop};
use crate::event::Change;
use crate::ids::Principal;
use crate::outcome::truncate;
use crate::record::{Key, Phase};
use crate::refusal::{Halt, Refusal};
use crate::view::View;

/// `from` is who owned the task when the asker was found to have the right: if somebody else
/// owns it by now, that right is gone.
pub(super) fn decide(
    view: &View,
    from: &Principal,
    to: &Principal,
    reason: Option<&str>,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Owner])?;
    let header = view.header()?;
    let owner = view.owner()?.owner;
    if owner == *to {
        return Ok(Decision::nothing());
    }
    match header.phase {
        Phase::Main | Phase::Closing { .. } | Phase::Undoing { .. } | Phase::Finally { .. } => {}
        // Nothing waits for its owner any more, and what has ended stays as it is.
        Phase::Ended { .. } => return Err(Refusal::Ended(header.state).into()),
    }
    if owner != *from {
        return Err(Refusal::OwnerChanged(owner).into());
    }
    let reason = reason.map(|reason| truncate(reason, stop::NOTE_BYTES_MAX));
    Ok(Change::HandedOver { from: owner, to: to.clone(), reason }.into())
}
