//! What a stop would do, and what it came to: two functions of a task's records.
//!
//! A *stop plan* lists, item by item, what a stop of some mode would find and do: what has
//! landed, what runs, what is staged, what is uncertain, which holds lapse, what cleans up. A
//! *settlement* lists the same items after the stop, and what became of each. Both come from one
//! walk over the records (`walk`), which sees them as they are, or, for a settlement, as they
//! were when the stop was asked for: what an attempt or effect came to later says so in its
//! record. So the last plan before a stop and the settlement after it name the same items.
//!
//! A plan's *digest* covers every item with all that is said of it, and nothing else: neither
//! the time nor a heartbeat changes it. Claims are not logged, so a stop that demands a digest
//! is given the [`Basis`] on which the plan was made: the header's version and who holds which
//! step. The stop is decided only if all of that still stands, and its commit guards it.

mod basis;
mod digest;
mod item;
mod settlement;
mod walk;

use crate::ids::TaskId;
use crate::record::{Ending, Key, Phase, StopMode};
use crate::refusal::{Halt, Refusal};
use crate::view::View;

pub use basis::Basis;
pub use basis::CLAIMS_COVERED_MAX;
pub use basis::basis;
pub(crate) use basis::stands;
pub use item::Fate;
pub use item::Item;
pub use item::Now;
pub use item::Subject;
pub use settlement::Became;
pub use settlement::Settled;
pub use settlement::Settlement;
pub use settlement::settlement;

use walk::{Moment, Walk};

/// What a stop of one mode would find and do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopPlan {
    /// The mode.
    pub mode: StopMode,
    /// What it touches, in the order of the plan.
    pub items: Vec<Item>,
    /// Names all of it.
    pub digest: String,
    /// False if so many steps may run that the digest does not tell apart which of them do.
    pub covers_claims: bool,
}

/// Says what a stop would do. Halts with what is to be loaded; refuses where there is nothing
/// left to stop, or a stop stands that is as strong.
pub fn plan(view: &View, mode: StopMode) -> Result<StopPlan, Halt> {
    Ok(of(&stoppable(view, Some(mode))?, view.task(), mode))
}

/// Says what a stop of each of these modes would do, each with what it was made on: nothing if
/// the view does not know versions. One walk serves all of them; refuses if one of them would do
/// nothing.
pub fn plans(view: &View, modes: &[StopMode]) -> Result<Vec<(StopPlan, Option<Basis>)>, Halt> {
    let walk = stoppable(view, modes.iter().min().copied())?;
    let with_basis = |mode: &StopMode| {
        let plan = of(&walk, view.task(), *mode);
        let basis = basis::of(view, &walk, &plan.digest);
        (plan, basis)
    };
    Ok(modes.iter().map(with_basis).collect())
}

fn of(walk: &Walk<'_>, task: &TaskId, mode: StopMode) -> StopPlan {
    let items = walk.items(Moment::Now, mode);
    let covers_claims = basis::covers_claims(walk);
    let digest = digest::digest(task, mode, &items, covers_claims);
    StopPlan { mode, items, digest, covers_claims }
}

fn walk(view: &View) -> Result<Walk<'_>, Halt> {
    walk::walk(view)
}

/// Walks a task that can be stopped in a mode; refuses one whose end is decided, or that was
/// stopped already. While attempts still run, a stronger stop takes the place of a weaker one.
fn stoppable(view: &View, mode: Option<StopMode>) -> Result<Walk<'_>, Halt> {
    view.need([Key::Header, Key::Gate])?;
    let known = view.gate()?.stop.map(|stop| stop.mode);
    if known.is_some_and(|known| mode.is_none_or(|mode| mode <= known)) {
        return Err(Refusal::Stopped.into());
    }
    match view.header()?.phase {
        Phase::Main | Phase::Closing { ending: Ending::Failed } => walk(view),
        Phase::Closing { ending: Ending::Cancelled } if known.is_some() => walk(view),
        Phase::Closing { ending } | Phase::Finally { ending } => {
            Err(Refusal::EndDecided(ending).into())
        }
        Phase::Undoing { .. } => Err(Refusal::EndDecided(Ending::Cancelled).into()),
        Phase::Ended { .. } => Err(Refusal::Ended(view.header()?.state).into()),
    }
}
