//! Changes of a step's effects, and of the counts that follow from them.

use crate::event::IntentFact;
use crate::ids::StepId;
use crate::record::{Effect, EffectCounts, Effects, Key, Record, Standing};
use crate::refusal::Halt;
use crate::time::Time;
use crate::view::View;

/// Makes an effect of an intent; `times` are when it may last be sent and when its request is
/// settled.
pub(super) fn intended(at: Time, generation: u32, intent: &IntentFact, times: [Time; 2]) -> Effect {
    let [send_before, settled_by] = times;
    Effect {
        class: intent.class,
        generation,
        standing: Standing::InFlight,
        request_sha256: intent.request_sha256.clone(),
        request_attempt: intent.stored.then_some(intent.attempt),
        attempt: intent.attempt,
        worker: intent.worker.clone(),
        intended_at: at,
        send_before,
        settled_by,
        target: intent.target.clone(),
        says: intent.says.clone(),
    }
}

/// Writes an effect, new or once more.
pub(super) fn put(view: &mut View, step: &StepId, name: &str, effect: Effect) -> Result<(), Halt> {
    change(view, step, |effects| {
        effects.insert(name.to_owned(), effect);
    })
}

/// Changes an effect in place; one that is not there stays so.
pub(super) fn edit(
    view: &mut View,
    step: &StepId,
    name: &str,
    edit: impl FnOnce(&mut Effect),
) -> Result<(), Halt> {
    change(view, step, |effects| {
        if let Some(effect) = effects.get_mut(name) {
            edit(effect);
        }
    })
}

/// An attempt has ended: what it had in flight is uncertain.
pub(super) fn doubt(view: &mut View, step: &StepId, attempt: u32, since: Time) -> Result<(), Halt> {
    if view.step(step)?.effects == 0 {
        return Ok(());
    }
    change(view, step, |effects| {
        let in_flight = |effect: &&mut Effect| {
            effect.attempt == attempt && effect.standing == Standing::InFlight
        };
        for effect in effects.values_mut().filter(in_flight) {
            effect.standing = Standing::Uncertain { since };
        }
    })
}

/// Carries out a change and moves the counts of step and header by what it has changed.
fn change(view: &mut View, step: &StepId, change: impl FnOnce(&mut Effects)) -> Result<(), Halt> {
    let before = view.effects(step)?;
    let mut effects = before.clone();
    change(&mut effects);
    if effects == before {
        return Ok(());
    }
    let (was, now) = (EffectCounts::of(&before), EffectCounts::of(&effects));
    view.put(Key::Effects(step.clone()), Some(Record::Effects(effects)))?;
    if was == now {
        return Ok(());
    }
    view.edit_step(step, |state| {
        state.effects = now.all;
        state.effects_owed = now.owed;
    })?;
    view.edit_header(|header| {
        header.effects_owed = (header.effects_owed + now.owed).saturating_sub(was.owed);
        header.effects_landed = (header.effects_landed + now.landed).saturating_sub(was.landed);
    })
}
