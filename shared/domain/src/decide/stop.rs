//! Stops a task (`halt`): nothing of its plan starts any more, attempts are told to end.

use super::Decision;
use crate::event::Change;
use crate::outcome::truncate;
use crate::record::{Ending, Key, Phase};
use crate::refusal::{Halt, Refusal};
use crate::view::View;

/// Bytes of a reason or note in a person's words.
pub const NOTE_BYTES_MAX: usize = 1024;

pub(super) fn decide(view: &View, reason: Option<String>) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate])?;
    let header = view.header()?;
    let reason = reason.map(|reason| truncate(&reason, NOTE_BYTES_MAX));
    match header.phase {
        Phase::Main | Phase::Closing { ending: Ending::Failed } => {
            Ok(Change::StopRequested { reason }.into())
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
