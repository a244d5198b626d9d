//! What a batch reads ahead of its need, so that the next command finds it in the view: each load
//! is a round trip.

use standfast_domain::decide::Command;
use standfast_domain::event::{Change, Event};
use standfast_domain::ids::StepId;
use standfast_domain::outcome::Outcome;
use standfast_domain::record::{Dependent, Key};
use standfast_domain::view::View;

/// Dependents of a step that are read ahead: most have one or two, and one that has hundreds may
/// release none of them.
const FORESEEN_MAX: usize = 8;

/// Records that one commit gives back for the commands that will follow.
const RETURNS_MAX: usize = 64;

/// Needs of a step whose artifacts are looked up with its claim: they lie in one chunk.
const NEEDS_MAX: u32 = 50;

/// Names the records that the answer to a claim of a step is to hold.
pub(crate) fn claim_wants(step: &StepId) -> Vec<Key> {
    vec![
        Key::Definition(step.clone()),
        Key::Step(step.clone()),
        Key::Claim(step.clone()),
        Key::Resolution(step.clone(), 1),
        Key::Needs(step.clone(), 0),
        Key::Meta,
    ]
}

/// Names records that will be asked for one after the other, so that they are read in one call:
/// those of the steps that a success releases, as far as the view knows who they are.
pub(super) fn foreseen<'v>(
    view: &'v View,
    command: &Command,
) -> impl Iterator<Item = Key> + use<'v> {
    let succeeded = match command {
        Command::CompleteAttempt { at, outcome, .. } => {
            matches!(**outcome, Outcome::Succeeded(_)).then_some(&at.step)
        }
        _ => None,
    };
    let definition = succeeded.and_then(|step| view.definition(step).ok());
    let dependents = definition.map_or(&[][..], |definition| &definition.dependents);
    dependents
        .iter()
        .take(FORESEEN_MAX)
        .flat_map(|Dependent { step, .. }| [Key::Step(step.clone()), Key::Definition(step.clone())])
}

/// Names what the answer to a claim is to hold besides the records asked for: what the step's
/// needs have left, as far as the view knows who they are. A step of many needs reads those by
/// itself.
pub(crate) fn given_by_needs<'v>(
    view: &'v View,
    command: &Command,
) -> impl Iterator<Item = Key> + use<'v> {
    let step = match command {
        Command::ClaimStep { step, .. } => Some(step),
        _ => None,
    };
    let few = |step: &&StepId| match view.definition(step) {
        Ok(definition) => (1..=NEEDS_MAX).contains(&definition.needs_count),
        Err(_) => false,
    };
    let names = step.filter(few).and_then(|step| view.names(&Key::Needs(step.clone(), 0)).ok());
    names.unwrap_or_default().iter().cloned().map(Key::Artifacts)
}

/// Names what the next commands will need and the view does not know. Only changes that are logged
/// ask for it: their commit guards the header, so what comes back is of the view's own version.
pub(super) fn returns(view: &View, events: &[Event]) -> Vec<Key> {
    let mut keys = Vec::new();
    if view.is_whole() {
        return keys;
    }
    for key in events.iter().flat_map(|event| needed_after(view, &event.change)) {
        if keys.len() == RETURNS_MAX {
            break;
        }
        if !view.knows(&key) && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Names, with a step that may start, what its claim and its end read; with the first that starts,
/// what its end does; with one that succeeded, what those after it are given.
fn needed_after(view: &View, change: &Change) -> Vec<Key> {
    let dependents = |step| view.definition(step).map_or(&[][..], |found| &found.dependents);
    let of_dependents = |step| {
        let some = dependents(step).iter().take(FORESEEN_MAX);
        some.flat_map(|dependent| read_by_claim(&dependent.step))
    };
    match change {
        Change::StepReady { step, .. } => {
            read_by_claim(step).into_iter().chain(of_dependents(step)).collect()
        }
        Change::TaskStarted { step, .. } => of_dependents(step).collect(),
        Change::StepSucceeded { step, .. } => {
            let is_given = dependents(step).iter().any(|dependent| dependent.needs <= NEEDS_MAX);
            is_given.then(|| Key::Artifacts(step.clone())).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Names the records by which a step is released, and claimed for the first time.
fn read_by_claim(step: &StepId) -> [Key; 4] {
    let (needs, resolution) = (Key::Needs(step.clone(), 0), Key::Resolution(step.clone(), 1));
    [Key::Definition(step.clone()), Key::Step(step.clone()), resolution, needs]
}
