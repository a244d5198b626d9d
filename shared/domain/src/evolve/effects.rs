//! Changes of a step's effects, and of the counts that follow from them.

use crate::event::{Change, Event, IntentFact};
use crate::ids::StepId;
use crate::record::{
    Effect, EffectCounts, Effects, Key, Landing, MAIN_EFFECT, NotLanded, Record, Standing,
};
use crate::refusal::Halt;
use crate::time::Time;
use crate::view::View;

/// Carries out what happened to an effect; other events change nothing here.
pub(super) fn change(view: &mut View, event: &Event) -> Result<(), Halt> {
    let at = event.at;
    match &event.change {
        Change::EffectIntended { step, name, generation, intent, window, request_timeout } => {
            let send_before = at.after(*window);
            let times = [send_before, send_before.after(*request_timeout)];
            let intended_after_stop = view.gate()?.stop.is_some();
            let effect = intended(at, *generation, intent, times);
            let repeated = view.effects(step)?.get(name).is_some_and(Effect::is_open);
            put(view, step, name, Effect { repeated, intended_after_stop, ..effect })
        }
        Change::EffectDoubted { step, generation, intent } => {
            let effect = intended(at, *generation, intent, [at, at]);
            put(
                view,
                step,
                MAIN_EFFECT,
                Effect { standing: Standing::Uncertain { since: at }, ..effect },
            )
        }
        Change::EffectLanded { step, name, generation, receipt_sha256, output_round, intent } => {
            if let Some(intent) = intent {
                let effect = intended(at, *generation, intent, [at, at]);
                put(view, step, name, effect)?;
            }
            edit(view, step, name, |effect| {
                let (receipt_sha256, output_round) = (receipt_sha256.clone(), *output_round);
                effect.standing = Standing::Landed { at, receipt_sha256, output_round };
            })?;
            let (step, name) = (step.clone(), name.clone());
            let (generation, output_round) = (*generation, *output_round);
            landed(view, Landing { step, name, generation, at, output_round, below: 0 })
        }
        Change::EffectNotLanded { step, name, how, .. } => edit(view, step, name, |effect| {
            effect.standing = Standing::NotLanded { at, how: *how };
        }),
        Change::EffectKept { step, name, request_sha256 } => edit(view, step, name, |effect| {
            effect.request_sha256 = request_sha256.clone();
        }),
        Change::EffectReopened { step, name, generation } => edit(view, step, name, |effect| {
            effect.generation = *generation;
            effect.standing = Standing::NotLanded { at, how: NotLanded::NotSent };
        }),
        _ => Ok(()),
    }
}

/// Puts what can be undone on top of the others, so that a stop finds the last one first and
/// never looks for it.
fn landed(view: &mut View, landing: Landing) -> Result<(), Halt> {
    if view.definition(&landing.step)?.plan.undo.is_none() {
        return Ok(());
    }
    let header = view.header()?;
    let (number, below) = (header.landings + 1, header.undo_top);
    view.create(Key::Landing(number), Record::Landing(Landing { below, ..landing }));
    view.edit_header(|header| {
        header.landings = number;
        header.undo_top = number;
    })
}

/// Makes an effect of an intent; `times` are when it may last be sent and when its request is
/// settled.
fn intended(at: Time, generation: u32, intent: &IntentFact, times: [Time; 2]) -> Effect {
    let [send_before, settled_by] = times;
    Effect {
        class: intent.class,
        generation,
        standing: Standing::InFlight,
        request_sha256: intent.request_sha256.clone(),
        request_attempt: intent.stored.then_some(intent.attempt),
        attempt: intent.attempt,
        worker: intent.worker.clone(),
        principal: intent.principal.clone(),
        intended_at: at,
        send_before,
        settled_by,
        repeated: false,
        target: intent.target.clone(),
        says: intent.says.clone(),
        after_stop: false,
        intended_after_stop: false,
        uncertain_at_stop: None,
    }
}

/// Writes an effect, new or once more.
fn put(view: &mut View, step: &StepId, name: &str, effect: Effect) -> Result<(), Halt> {
    update(view, step, |effects| {
        effects.insert(name.to_owned(), effect);
    })
}

/// Changes an effect in place; one that is not there stays so.
fn edit(
    view: &mut View,
    step: &StepId,
    name: &str,
    edit: impl FnOnce(&mut Effect),
) -> Result<(), Halt> {
    update(view, step, |effects| {
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
    update(view, step, |effects| {
        let in_flight = |effect: &&mut Effect| {
            effect.attempt == attempt && effect.standing == Standing::InFlight
        };
        for effect in effects.values_mut().filter(in_flight) {
            effect.standing = Standing::Uncertain { since };
        }
    })
}

/// Carries out a change and moves the counts of step and header by what it has changed.
fn update(view: &mut View, step: &StepId, change: impl FnOnce(&mut Effects)) -> Result<(), Halt> {
    let before = view.effects(step)?;
    let mut effects = before.clone();
    change(&mut effects);
    if effects == before {
        return Ok(());
    }
    if view.gate()?.stop.is_some() {
        mark(&before, &mut effects);
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
        header.effects = (header.effects + now.all).saturating_sub(was.all);
        header.effects_owed = (header.effects_owed + now.owed).saturating_sub(was.owed);
        header.effects_landed = (header.effects_landed + now.landed).saturating_sub(was.landed);
    })
}

/// Marks what came to stand where it stands after the task was stopped.
fn mark(before: &Effects, effects: &mut Effects) {
    for (name, effect) in effects {
        let was = before.get(name);
        let same = was.filter(|was| was.generation == effect.generation);
        effect.uncertain_at_stop = match same.map(|was| (&was.standing, was.after_stop)) {
            Some((Standing::Uncertain { since }, false)) if was != Some(&*effect) => Some(*since),
            _ => same.and_then(|was| was.uncertain_at_stop),
        };
        effect.after_stop |= was.is_none_or(|was| was.standing != effect.standing);
        // An intent that is renewed was there before. What was known not to have happened was no
        // item of the stop, whether it is intended anew or turns out to have happened after all;
        // but it was one if a later attempt's claim let it fly then, of which this is the end.
        let by_claim = |was: &Effect| was.attempt != effect.attempt && !effect.intended_after_stop;
        let reopened =
            |was: &Effect| was.was_closed() && was.standing != effect.standing && !by_claim(was);
        effect.intended_after_stop = was.is_some_and(reopened)
            || (effect.intended_after_stop && was.is_none_or(|was| was.intended_after_stop));
    }
}
