//! Stops one attempt, so that another one starts: its worker hangs, or is the wrong one.
//!
//! Not a stop of the task. The attempt is not charged: a person ended it, and that says nothing
//! of the step. What it was sending is as uncertain as after a take-over. And as after one, nobody
//! follows while its worker, who has not heard of this yet, may send what its claim alone lets it
//! send; a task that is ending does not end before either, so there such an attempt is not stopped.

use super::{Decision, Given, effect, end_attempt};
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
    let definition = view.definition(step)?;
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
    let sends_until = effect::sends_until(view, definition, &state, claim)?;
    let sends_until = sends_until.filter(|until| *until > given.now);
    if end_attempt::is_closing(&header.phase)
        && let Some(until) = sends_until
    {
        let until = until.rfc3339();
        return refuse(format!(
            "its worker may send its effect until {until}, and the task, which is ending, waits \
             for that; a stop with `halt` tells it to end"
        ));
    }
    let retry_after = sends_until.map(|until| until.since(given.now));
    let failure = Failure { retry_after, ..Failure::new(FailureClass::Cancelled, message) };
    let changes = end_attempt::uncharged(view, step, claim, &failure, given)?;
    Ok(end_attempt::taken(view, changes)?.into())
}
