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
    match fault {
        Some(message) => {
            let hold = Hold {
                reason: HoldReason::Verification,
                message: message.to_owned(),
                since: given.now,
                due: None,
            };
            Ok(Change::TaskHeld { hold }.into())
        }
        None => Ok(finish(view, Ending::Completed, given)?.into()),
    }
}

/// Begins the `finally` steps, or ends the task if it has none left.
pub(super) fn finish(view: &View, ending: Ending, given: &Given) -> Result<Vec<Change>, Halt> {
    if view.header()?.finally_open > 0 {
        return Ok(vec![Change::FinallyStarted { ending }]);
    }
    Ok(vec![advance::ended(view, ending, given)?])
}
