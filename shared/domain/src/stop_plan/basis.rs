//! What a stop plan was made on, and whether that still stands.

use super::walk::{Seen, Walk};
use crate::commit::CommitId;
use crate::ids::{StepId, WorkerId};
use crate::record::{Key, Part, Status};
use crate::refusal::Halt;
use crate::view::View;

/// Steps that may run of which a digest tells apart who runs and who waits: the stop's commit
/// guards the claim of each, and no commit looks at more than a batch of records.
pub const CLAIMS_COVERED_MAX: usize = 400;

/// What a stop plan was made on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The plan's digest, for the log.
    pub digest: String,
    /// The version of the header: that of every logged record.
    pub header: CommitId,
    /// The steps that a worker may hold, and which attempt which worker holds; none if there
    /// are too many.
    pub claims: Vec<(StepId, Option<(u32, WorkerId)>)>,
}

/// Gives what a plan with this digest was made on; nothing if the view does not know versions.
pub fn basis(view: &View, digest: &str) -> Result<Option<Basis>, Halt> {
    Ok(of(view, &super::walk(view)?, digest))
}

/// The same, of a walk over the view.
pub(super) fn of(view: &View, walk: &Walk<'_>, digest: &str) -> Option<Basis> {
    let header = view.version(&Key::Header)?;
    let claims = match covers_claims(walk) {
        true => walk.steps.iter().filter(|seen| may_run(seen)).map(held).collect(),
        false => Vec::new(),
    };
    Some(Basis { digest: digest.to_owned(), header, claims })
}

pub(super) fn covers_claims(walk: &Walk<'_>) -> bool {
    walk.steps.iter().filter(|seen| may_run(seen)).count() <= CLAIMS_COVERED_MAX
}

fn may_run(seen: &Seen<'_>) -> bool {
    seen.definition.part() == Part::Main
        && seen.state.is_some_and(|state| matches!(state.status, Status::Ready { .. }))
}

fn held(seen: &Seen<'_>) -> (StepId, Option<(u32, WorkerId)>) {
    let claim = seen.claim.map(|claim| (claim.attempt, claim.worker.clone()));
    (seen.step.clone(), claim)
}

/// Says whether all that a plan was made on is still so in this view: nothing was logged since,
/// not in this batch either, and the same workers hold the same attempts.
pub(crate) fn stands(view: &View, basis: &Basis) -> Result<bool, Halt> {
    view.need([Key::Header])?;
    view.need(basis.claims.iter().map(|(step, _)| Key::Claim(step.clone())))?;
    let moved = view.changes().any(|(key, _, _)| *key == Key::Header);
    if moved || view.version(&Key::Header) != Some(basis.header) {
        return Ok(false);
    }
    for (step, held) in &basis.claims {
        let claim = view.claim(step)?.map(|claim| (claim.attempt, &claim.worker));
        if claim != held.as_ref().map(|(attempt, worker)| (*attempt, worker)) {
            return Ok(false);
        }
    }
    Ok(true)
}
