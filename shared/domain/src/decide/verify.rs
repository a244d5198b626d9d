//! Completes a task whose steps are all settled, if all its checks hold.

use super::{Decision, Given, advance};
use crate::event::Change;
use crate::hold::{Hold, HoldReason};
use crate::record::{Ending, Key, Phase};
use crate::refusal::Halt;
use crate::view::View;

pub(super) fn decide(view: &View, fault: Option<&str>, given: &Given) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Meta])?;
    let header = view.header()?;
    if header.phase != Phase::Main || header.open > 0 || header.task_holds > 0 {
        return Ok(Decision::nothing());
    }
    let owed = Some(header.effects_owed).filter(|owed| *owed > 0).map(owed);
    match owed.as_deref().or(fault) {
        Some(message) => {
            let hold = Hold::new(HoldReason::Verification, message, given.now);
            Ok(Change::TaskHeld { hold }.into())
        }
        None => Ok(finish(view, Ending::Completed, given)?.into()),
    }
}

/// Says that effects keep a task from completing, and what ends that.
pub(super) fn owed(count: u32) -> String {
    format!(
        "of {count} effect(s) nobody knows whether they have happened: `standfast effects` names \
         them; answer each with TASK/STEP happened or not_happened"
    )
}

/// Begins the `finally` steps, or ends the task if it has none left.
pub(super) fn finish(view: &View, ending: Ending, given: &Given) -> Result<Vec<Change>, Halt> {
    if view.header()?.finally_open > 0 {
        return Ok(vec![Change::FinallyStarted { ending }]);
    }
    Ok(vec![advance::ended(view, ending, given)?])
}
