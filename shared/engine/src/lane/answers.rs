//! What becomes of a batch's commands: those that were decided are answered, those whose commit
//! came out too large get another round, and a fault is told to all.

use standfast_domain::decide::Command;
use standfast_domain::ids::StepId;
use standfast_domain::record::Key;

use super::{Batch, Done, Request};
use crate::EngineError;
use crate::batch::{Decided, ROOM, claim_wants, given_by_needs};
use crate::ports::StoreError;

/// Answers the commands of a batch that were decided; those that had no room stay.
pub(super) fn reply(batch: &mut Batch, decided: Box<Decided>) {
    let now = decided.now;
    let count = decided.results.len();
    let results = decided.results.into_iter().zip(decided.acted).enumerate();
    for (request, (place, (result, acted))) in batch.requests.drain(..count).zip(results) {
        let Request { command, wants, reply: Some(reply), .. } = request else { continue };
        let claim = decided.stayed.get(&place);
        let view = &batch.view;
        let answer = match result {
            Ok(()) => {
                let stayed = claim.and_then(claimed_step);
                let own = wants.into_iter().chain(given_by_needs(view, &command));
                let records = match (claim, &stayed) {
                    (Some(claim), Some(step)) => {
                        let next = claim_wants(step).into_iter();
                        view.part(own.chain(next).chain(given_by_needs(view, claim)))
                    }
                    _ => view.part(own),
                };
                Ok(Done { now, acted, records, stayed })
            }
            Err(refusal) => Err(EngineError::Refused(refusal)),
        };
        let _ = reply.send(answer); // whoever asked may have gone
    }
}

fn claimed_step(command: &Command) -> Option<StepId> {
    match command {
        Command::ClaimStep { step, .. } => Some(step.clone()),
        _ => None,
    }
}

/// Gives a batch whose commit came out too large for another round with less room. What does not
/// fit by itself is answered with that; what follows from earlier commits is left to the sweep.
pub(super) fn narrowed(mut batch: Batch, excess: String) -> Option<(Batch, Vec<Key>)> {
    if batch.room > 1 {
        batch.room /= 2;
        return Some((batch, Vec::new()));
    }
    tracing::error!(task = %batch.task, excess, "a command does not fit into a commit");
    if batch.requests.is_empty() {
        return None;
    }
    let first = batch.requests.remove(0);
    if let Some(reply) = first.reply {
        let _ = reply.send(Err(StoreError::Corrupt(excess).into())); // whoever asked may have gone
    }
    batch.room = ROOM;
    (!batch.requests.is_empty()).then_some((batch, Vec::new()))
}

pub(super) fn fail(batch: Batch, error: &EngineError) {
    for request in batch.requests {
        if let Some(reply) = request.reply {
            let _ = reply.send(Err(error.clone())); // whoever asked may have gone
        }
    }
}
