//! Pauses a task and resumes it. While it is paused nothing new starts and its clocks stand
//! still: the deadline if it was given as a span, the total times of steps, waits for a span.
//! Attempts that run go on. Twice is once, either way.

use super::{Decision, Given, stop};
use crate::event::Change;
use crate::hold::{Answer, Hold, HoldReason};
use crate::outcome::truncate;
use crate::record::{Key, Phase};
use crate::refusal::{Halt, Refusal};
use crate::view::View;

pub(super) fn pause(view: &View, reason: Option<&str>, given: &Given) -> Result<Decision, Halt> {
    live(view)?;
    let own = |hold: &Hold| hold.reason == HoldReason::Paused && hold.by.is_none();
    if view.gate()?.holds.iter().any(own) {
        return Ok(Decision::nothing());
    }
    let why = reason.map_or_else(String::new, |reason| format!(": {}", words(reason)));
    let message = format!("paused by {}{why}", given.actor);
    Ok(Change::TaskHeld { hold: Hold::new(HoldReason::Paused, message, given.now) }.into())
}

/// Ends the pauses of the task, whoever or whatever made them. A step whose failure made one
/// stays held: that is a question of its own.
pub(super) fn resume(view: &View, reason: Option<&str>) -> Result<Decision, Halt> {
    live(view)?;
    let mut holds = view.gate()?.holds;
    holds.retain(|hold| hold.reason == HoldReason::Paused);
    if holds.is_empty() {
        return Ok(Decision::nothing());
    }
    let reason_held = HoldReason::Paused;
    let note = reason.map(words);
    let answered =
        Change::HoldAnswered { step: None, reason: reason_held, answer: Answer::Retry, note };
    let released =
        holds.into_iter().map(|hold| Change::TaskReleased { reason: hold.reason, by: hold.by });
    Ok(std::iter::once(answered).chain(released).collect::<Vec<_>>().into())
}

fn words(text: &str) -> String {
    truncate(text, stop::NOTE_BYTES_MAX)
}

/// Refuses what is ending: it cannot be kept from its end.
fn live(view: &View) -> Result<(), Halt> {
    view.need([Key::Header, Key::Gate])?;
    let header = view.header()?;
    match header.phase {
        Phase::Main => Ok(()),
        Phase::Closing { .. } | Phase::Undoing { .. } | Phase::Finally { .. } => {
            Err(Refusal::Ending(header.state).into())
        }
        Phase::Ended { .. } => Err(Refusal::Ended(header.state).into()),
    }
}
