//! Who owns a task: set at its birth, changed by hand-overs.

use crate::ids::Principal;
use crate::record::{Key, Owner, Record};
use crate::refusal::Halt;
use crate::view::View;

/// Gives a task that is born its first owner.
pub(super) fn born(view: &mut View) -> Result<(), Halt> {
    let first = Owner::first(view.meta()?);
    view.put(Key::Owner, Some(Record::Owner(first)))
}

/// Gives a task to another owner.
pub(super) fn handed_over(view: &mut View, to: &Principal) -> Result<(), Halt> {
    let owner = Owner { owner: to.clone(), ..view.owner()? };
    view.put(Key::Owner, Some(Record::Owner(owner)))
}
