//! Which steps of a plan wait for no other.

use crate::ids::StepId;
use crate::record::{Key, Part};
use crate::refusal::Halt;
use crate::view::View;

/// Gives one chunk of the steps without needs, in plan order. A plan of few steps keeps no list
/// of them: their definitions say it.
pub(super) fn chunk(view: &View, chunk: u32) -> Result<Vec<StepId>, Halt> {
    let listed = view.names(&Key::Roots(chunk))?;
    match listed.is_empty() && chunk == 0 {
        true => of_few(view),
        false => Ok(listed.to_vec()),
    }
}

fn of_few(view: &View) -> Result<Vec<StepId>, Halt> {
    let names = view.names(&Key::Order(0))?;
    view.need(names.iter().cloned().map(Key::Definition))?;
    let mut roots = Vec::with_capacity(names.len());
    for step in names {
        let definition = view.definition(step)?;
        if definition.needs_count == 0 && definition.part() == Part::Main {
            roots.push(step.clone());
        }
    }
    Ok(roots)
}
