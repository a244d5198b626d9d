//! Stops one attempt, so that another one starts: its worker hangs, or is the wrong one.
//!
//! Not a stop of the task. The attempt is not charged: a person ended it, and that says nothing
//! of the step. What it was sending is as uncertain as after a take-over.

use super::{Decision, Given, end_attempt};
use crate::ids::StepId;
use crate::outcome::{Failure, FailureClass, MESSAGE_BYTES_MAX, truncate};
use crate::record::{Key, Phase};
use crate::refusal::{Halt, Refusal};
use crate::view::View;

pub(super) fn decide(
    view: &View,
    step: &StepId,
    attempt: u32,
    reason: Option<&str>,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Header, Key::Gate, Key::Claim(step.clone())])?;
    view.need([Key::Step(step.clone()), Key::Definition(step.clone())])?;
    view.definition(step)?;
    let header = view.header()?;
    if let Phase::Ended { .. } = header.phase {
        return Err(Refusal::Ended(header.state).into());
    }
    let state = view.step(step)?;
    let refuse =
        |why: String| Err(Refusal::NotStoppable { step: step.clone(), attempt, why }.into());
    let claim = match view.claim(step)? {
        Some(claim) if claim.attempt == attempt => claim,
        Some(claim) => return refuse(format!("attempt {} runs now", claim.attempt)),
        None if state.is_settled() => return refuse("the step is settled".to_owned()),
        None if attempt < state.attempt => return Ok(Decision::nothing()), // it is over already
        None => return refuse("it has not started".to_owned()),
    };
    let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    let message = truncate(&format!("stopped by {}{why}", given.actor), MESSAGE_BYTES_MAX);
    let failure = Failure::new(FailureClass::Cancelled, message);
    let changes = end_attempt::uncharged(view, step, claim, &failure, given)?;
    Ok(end_attempt::taken(view, changes)?.into())
}
