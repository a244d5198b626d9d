//! What the end of an attempt means for its step's effects.

use super::uncertain;
use crate::decide::{Given, digest, end_attempt};
use crate::event::{Change, IntentFact};
use crate::hold::Hold;
use crate::ids::StepId;
use crate::outcome::{EffectEnd, Failure};
use crate::record::{
    Claim, Definition, Effect, EffectClass, Effects, Key, MAIN_EFFECT, Record, Standing, StepState,
};
use crate::refusal::Halt;
use crate::time::Time;
use crate::view::{Attempt, View};

/// What an attempt's end without success means for the step's effects.
#[derive(Default)]
pub(in crate::decide) struct Aftermath {
    /// What is known of them now.
    pub changes: Vec<Change>,
    /// Records that come with that.
    pub payloads: Vec<(Key, Record)>,
    /// The hold that needs a person before the step may start again.
    pub hold: Option<Hold>,
    /// No next attempt before this.
    pub not_before: Option<Time>,
    /// The hold to come if no attempt is left that could find out.
    pub in_doubt: Option<Hold>,
}

/// Looks at a step's effects when its attempt has ended without success.
pub(in crate::decide) fn aftermath(
    view: &View,
    step: &StepId,
    claim: &Claim,
    failure: &Failure,
    given: &Given,
) -> Result<Aftermath, Halt> {
    let (definition, state) = (view.definition(step)?, view.step(step)?);
    let mut after = Aftermath::default();
    if state.effects == 0 && definition.plan.effect_class() != EffectClass::Idempotent {
        return Ok(after); // nothing was recorded, and the claim was no intent
    }
    let effects = match state.effects {
        0 => Effects::new(),
        _ => view.effects(step)?,
    };
    let ended = Ended { view, definition, state: &state, effects: &effects, claim };
    let told = ended.main(&failure.effect, &mut after)?;
    let open = effects.iter().filter(|(_, effect)| effect.is_open());
    for (name, effect) in open.filter(|(name, _)| !told || *name != MAIN_EFFECT) {
        let hold = || Some(uncertain(view, step, name, effect, given.now));
        match effect.class {
            EffectClass::Irreversible => after.hold = after.hold.take().or_else(hold),
            EffectClass::Checkable => after.in_doubt = after.in_doubt.take().or_else(hold),
            EffectClass::None | EffectClass::Idempotent => {}
        }
        after.not_before = after.not_before.max(Some(effect.settled_by));
    }
    Ok(after)
}

/// Gives until when an attempt may send without asking once more: an idempotent effect while its
/// claim lasts, which is the intent, and what it has intended within the window of that.
pub(in crate::decide) fn sends_until(
    view: &View,
    definition: &Definition,
    state: &StepState,
    claim: &Claim,
) -> Result<Option<Time>, Halt> {
    let effects = match state.effects {
        0 => Effects::new(),
        _ => view.effects(&definition.plan.id)?,
    };
    let kept = effects.get(MAIN_EFFECT).is_some_and(Effect::has_landed);
    if definition.plan.effect_class() == EffectClass::Idempotent && !kept {
        return Ok(Some(claim.expires_at));
    }
    let own =
        |effect: &&Effect| effect.attempt == claim.attempt && effect.standing == Standing::InFlight;
    let windows = effects.values().filter(own).map(|effect| effect.send_before);
    Ok(windows.max().map(|window| window.min(claim.expires_at)))
}

/// An attempt that has ended, and what its step looks like.
struct Ended<'a> {
    view: &'a View,
    definition: &'a Definition,
    state: &'a StepState,
    effects: &'a Effects,
    claim: &'a Claim,
}

impl Ended<'_> {
    /// Takes what the attempt says of the one effect that its step declares; false if it says
    /// nothing, or only of a request that an earlier attempt may have sent too.
    fn main(&self, end: &EffectEnd, after: &mut Aftermath) -> Result<bool, Halt> {
        let (definition, claim) = (self.definition, self.claim);
        let step = definition.plan.id.clone();
        let main = self.effects.get(MAIN_EFFECT);
        let by_claim = definition.plan.effect_class() == EffectClass::Idempotent;
        let own = main.is_some_and(|main| main.is_open() && main.attempt == claim.attempt);
        let fresh = main.is_none_or(|main| !main.is_open() && !main.has_landed());
        let generation = main.map_or(1, |main| main.generation);
        let name = MAIN_EFFECT.to_owned();
        match end {
            EffectEnd::NotLanded(how) if own && !main.is_some_and(|main| main.repeated) => {
                let how = *how;
                after.changes.push(Change::EffectNotLanded { step, name, generation, how });
                Ok(true)
            }
            EffectEnd::Landed(receipt)
                if own || (by_claim && main.is_none_or(|main| !main.has_landed())) =>
            {
                let intent = match own {
                    true => None,
                    false => Some(claimed(self.view, definition, self.state, claim)?),
                };
                let key = Key::Receipt(step.clone(), name.clone(), generation);
                let receipt_sha256 = digest(receipt);
                let output_round = None;
                after.payloads.push((key, Record::Payload(receipt.clone())));
                after.changes.push(Change::EffectLanded {
                    step,
                    name,
                    generation,
                    receipt_sha256,
                    output_round,
                    intent,
                });
                Ok(true)
            }
            EffectEnd::Unknown if by_claim && fresh => {
                let intent = claimed(self.view, definition, self.state, claim)?;
                after.changes.push(Change::EffectDoubted { step, generation, intent });
                Ok(false)
            }
            EffectEnd::NotLanded(_) | EffectEnd::Landed(_) | EffectEnd::Unknown => Ok(false),
        }
    }
}

/// The intent that a claim was, of a step whose one effect is idempotent.
fn claimed(
    view: &View,
    definition: &Definition,
    state: &StepState,
    claim: &Claim,
) -> Result<IntentFact, Halt> {
    let plan = definition.plan.effect.as_ref();
    Ok(IntentFact {
        class: definition.plan.effect_class(),
        request_sha256: input_digest(view, definition, state)?,
        stored: false,
        attempt: claim.attempt,
        worker: claim.worker.clone(),
        principal: Some(claim.principal.clone()),
        target: plan.and_then(|effect| effect.target.clone()),
        says: plan.and_then(|effect| effect.says.clone()),
    })
}

/// Digest of a step's input, templates resolved.
pub(super) fn input_digest(
    view: &View,
    definition: &Definition,
    state: &StepState,
) -> Result<String, Halt> {
    if !state.resolved {
        return Ok(digest(&definition.plan.with));
    }
    match view.get(&Key::Resolution(definition.plan.id.clone(), state.round))? {
        Some(Record::Value(with)) => Ok(digest(with)),
        _ => Ok(digest(&definition.plan.with)),
    }
}

/// What a success says of the step's declared effect, and what stands against it: an effect of
/// this attempt without a receipt.
pub(in crate::decide) fn landed_with(
    view: &View,
    at: &Attempt,
    output_sha256: &str,
) -> Result<Result<Option<Change>, String>, Halt> {
    let (definition, state) = (view.definition(&at.step)?, view.step(&at.step)?);
    let class = definition.plan.effect_class();
    if state.effects == 0 && class != EffectClass::Idempotent {
        return Ok(Ok(None));
    }
    let effects = match state.effects {
        0 => Effects::new(),
        _ => view.effects(&at.step)?,
    };
    let open = effects.iter().find(|(name, effect)| *name != MAIN_EFFECT && effect.is_owed());
    if let Some((name, _)) = open {
        return Ok(Err(format!("it ended while nobody knows whether effect `{name}` happened")));
    }
    let main = effects.get(MAIN_EFFECT);
    let intent = match (class, main) {
        (EffectClass::None, _) => return Ok(Ok(None)),
        (_, Some(effect)) if effect.has_landed() => return Ok(Ok(None)), // its receipt was kept
        (EffectClass::Idempotent, _) => {
            let claim = view.claim(&at.step)?.ok_or_else(|| end_attempt::fenced(at))?;
            Some(claimed(view, definition, &state, claim)?)
        }
        (EffectClass::Checkable | EffectClass::Irreversible, Some(effect)) if effect.is_open() => {
            None
        }
        (EffectClass::Checkable | EffectClass::Irreversible, _) => return Ok(Ok(None)),
    };
    Ok(Ok(Some(Change::EffectLanded {
        step: at.step.clone(),
        name: MAIN_EFFECT.to_owned(),
        generation: main.map_or(1, |effect| effect.generation),
        receipt_sha256: output_sha256.to_owned(),
        output_round: Some(state.round),
        intent,
    })))
}
