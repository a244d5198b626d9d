//! What a step changes outside: the intent before it is sent, the receipt once it is answered,
//! and what is done when neither is known.
//!
//! ```text
//!            intend                 confirm
//!   (none) ─────────▶ in flight ─────────────▶ landed ──(send_also)──▶ not landed, generation + 1
//!                      │      │ retract                                    ▲
//!       attempt ends,  │      └──────────────▶ not landed ──(intend)──▶ in flight
//!       nothing known  ▼                           ▲
//!                  uncertain ──(check, answer)─────┴──▶ landed
//! ```
//!
//! A fence closes the task's course, not the truth: receipts are taken in every phase.

mod aftermath;

pub(super) use aftermath::{aftermath, landed_with, sends_until};

use serde_json::Value;

use super::open::Start;
use super::{Decision, Given, digest, end_attempt, open};
use crate::event::{Change, IntentFact};
use crate::hold::{HeldEffect, Hold, HoldReason};
use crate::ids::{StepId, WorkerId, check_name};
use crate::outcome::{Failure, FailureClass};
use crate::record::{
    Definition, EFFECTS_MAX, Effect, EffectClass, Effects, Key, MAIN_EFFECT, NotLanded, Payload,
    Phase, Record, Standing, StepState, effect_key,
};
use crate::refusal::{Halt, Refusal};
use crate::time::{Span, Time};
use crate::view::{Attempt, View};
use aftermath::input_digest;

/// What an attempt is about to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Intent {
    /// The effect's name within its step.
    pub name: String,
    /// Its class.
    pub class: EffectClass,
    /// The exact request; `None`: the step's resolved input.
    pub request: Option<Payload>,
    /// Digest of the exact request; not looked at for the step's resolved input.
    pub request_sha256: String,
    /// How long after now it may be sent.
    pub window: Span,
    /// How long the request may take once it is sent.
    pub request_timeout: Span,
    /// Whom or what it touches.
    pub target: Option<String>,
    /// What it does.
    pub says: Option<String>,
}

/// Who speaks of an effect: the attempt that recorded its intent, or one that has checked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// The step.
    pub step: StepId,
    /// The effect's name.
    pub name: String,
    /// The attempt.
    pub attempt: u32,
    /// The epoch it started in.
    pub epoch: u32,
    /// Who runs or ran it.
    pub worker: WorkerId,
}

/// Decides an intent. Whether it may be sent is read from what stands in the record afterwards.
pub(super) fn intend(
    view: &View,
    at: &Attempt,
    intent: &Intent,
    given: &Given,
) -> Result<Decision, Halt> {
    view.need([Key::Effects(at.step.clone())])?;
    let (_, state) = view.attempt(at)?;
    if end_attempt::are_ended(view)? {
        let why = "the task is ending: nothing more may be sent";
        return end_uncharged(view, at, why, Vec::new());
    }
    let refuse = |why: String| {
        let (step, name) = (at.step.clone(), intent.name.clone());
        Err(Halt::from(Refusal::Effect { step, name, why }))
    };
    if let Err(fault) = check_name(&intent.name) {
        return refuse(fault.to_string());
    }
    let planned = view.definition(&at.step)?.plan.effect_class();
    if intent.name == MAIN_EFFECT && intent.class < planned {
        // The author has said what may follow while nobody knows whether it has happened.
        let class = intent.class;
        return refuse(format!("the plan declares it {planned}, and its worker {class}"));
    }
    let allowed = &view.definition(&at.step)?.effects_allowed;
    if allowed.as_ref().is_some_and(|allowed| !allowed.contains(&intent.class)) {
        let class = intent.class;
        return refuse(format!("its submitter's ceiling does not allow effects that are {class}"));
    }
    let effects = view.effects(&at.step)?;
    let sha256 = match &intent.request {
        Some(_) => intent.request_sha256.clone(),
        None => input_digest(view, view.definition(&at.step)?, &state)?,
    };
    let Some(effect) = effects.get(&intent.name) else {
        if effects.len() >= EFFECTS_MAX {
            return refuse(format!("a step has at most {EFFECTS_MAX} effects"));
        }
        return intended(view, at, intent, 1, sha256);
    };
    let same = effect.request_sha256 == sha256;
    match &effect.standing {
        Standing::Landed { .. } if same => Ok(Decision::nothing()),
        Standing::Landed { .. } => changed(view, at, intent, sha256, given),
        // A request stands under its attempt's number, and what stands there is never changed.
        Standing::NotLanded { .. } if effect.attempt == at.attempt && !same => {
            refuse("this attempt has recorded another request under its name".to_owned())
        }
        Standing::NotLanded { .. } => {
            view.need([Key::Request(at.step.clone(), intent.name.clone(), at.attempt)])?;
            intended(view, at, intent, effect.generation, sha256)
        }
        Standing::InFlight | Standing::Uncertain { .. } if effect.attempt == at.attempt => {
            match same {
                true => Ok(Decision::nothing()), // the answer was lost on its way
                false => refuse("this attempt has sent another request under its name".to_owned()),
            }
        }
        Standing::InFlight | Standing::Uncertain { .. } => {
            again(view, at, intent, effect, sha256, given)
        }
    }
}

/// An earlier attempt may have sent it: what now depends on the class. Whether another request
/// than the one of now has happened, only a person finds out.
fn again(
    view: &View,
    at: &Attempt,
    intent: &Intent,
    effect: &Effect,
    sha256: String,
    given: &Given,
) -> Result<Decision, Halt> {
    if effect.class == EffectClass::Irreversible || effect.request_sha256 != sha256 {
        let hold = uncertain(view, &at.step, &intent.name, effect, given.now);
        let held = Change::StepHeld { step: at.step.clone(), hold };
        return end_uncharged(view, at, "its effect is uncertain", vec![held]);
    }
    if given.now < effect.settled_by {
        let later = Change::RetryScheduled { step: at.step.clone(), due: effect.settled_by };
        let why = "an earlier request may still be under way";
        return end_uncharged(view, at, why, vec![later]);
    }
    match effect.class {
        EffectClass::Checkable => Ok(Decision::nothing()), // the attempt checks first
        EffectClass::None | EffectClass::Idempotent | EffectClass::Irreversible => {
            intended(view, at, intent, effect.generation, sha256)
        }
    }
}

fn intended(
    view: &View,
    at: &Attempt,
    intent: &Intent,
    generation: u32,
    sha256: String,
) -> Result<Decision, Halt> {
    let claim = view.claim(&at.step)?.ok_or_else(|| end_attempt::fenced(at))?;
    let fact = IntentFact {
        class: intent.class,
        request_sha256: sha256,
        stored: intent.request.is_some(),
        attempt: at.attempt,
        worker: at.worker.clone(),
        principal: Some(claim.principal.clone()),
        target: intent.target.clone(),
        says: intent.says.clone(),
    };
    let change = Change::EffectIntended {
        step: at.step.clone(),
        name: intent.name.clone(),
        generation,
        intent: fact,
        window: intent.window,
        request_timeout: intent.request_timeout,
    };
    let key = Key::Request(at.step.clone(), intent.name.clone(), at.attempt);
    let payloads = intent.request.iter().map(|request| {
        let record = Record::Payload(request.clone());
        (key.clone(), record)
    });
    Ok(Decision { changes: vec![change], payloads: payloads.collect() })
}

/// Ends the attempt there and then, uncharged, with what follows.
fn end_uncharged(
    view: &View,
    at: &Attempt,
    why: &str,
    follows: Vec<Change>,
) -> Result<Decision, Halt> {
    let claim = view.claim(&at.step)?.ok_or_else(|| end_attempt::fenced(at))?;
    let failure = Failure::new(FailureClass::Cancelled, why);
    let mut changes = vec![end_attempt::attempt_failed(&at.step, claim, &failure, 0, false)];
    changes.extend(follows);
    Ok(changes.into())
}

fn changed(
    view: &View,
    at: &Attempt,
    intent: &Intent,
    sha256: String,
    given: &Given,
) -> Result<Decision, Halt> {
    let effects = view.effects(&at.step)?;
    let generation = effects.get(&intent.name).map_or(1, |effect| effect.generation);
    let hold = changed_hold(view, &at.step, &intent.name, generation, sha256, given.now);
    let held = Change::StepHeld { step: at.step.clone(), hold };
    end_uncharged(view, at, "its effect has happened with another request", vec![held])
}

fn changed_hold(
    view: &View,
    step: &StepId,
    name: &str,
    generation: u32,
    sha256: String,
    now: Time,
) -> Hold {
    let message = format!(
        "effect `{name}` was sent before with another request; it is not sent again by itself"
    );
    let key = effect_key(view.task(), step, name, generation);
    let effect = HeldEffect { name: name.to_owned(), key, request_sha256: Some(sha256) };
    Hold { effect: Some(effect), ..Hold::new(HoldReason::EffectChanged, message, now) }
}

/// Says whether a step that is about to be ready once more would send another request than one
/// that has landed, or may have.
pub(super) fn changed_at_release(
    view: &View,
    definition: &Definition,
    state: &StepState,
    sent: &Value,
    now: Time,
) -> Result<Option<Hold>, Halt> {
    let step = &definition.plan.id;
    if state.effects == 0 || definition.plan.effect_class() == EffectClass::None {
        return Ok(None);
    }
    let effects = view.effects(step)?;
    let sha256 = digest(sent);
    let Some(effect) = effects.get(MAIN_EFFECT).filter(|one| one.request_sha256 != sha256) else {
        return Ok(None);
    };
    Ok(match &effect.standing {
        Standing::Landed { .. } => {
            Some(changed_hold(view, step, MAIN_EFFECT, effect.generation, sha256, now))
        }
        Standing::InFlight | Standing::Uncertain { .. } => {
            Some(uncertain(view, step, MAIN_EFFECT, effect, now))
        }
        Standing::NotLanded { .. } => None,
    })
}

/// Gives the hold of a step that ends while an effect of it is owed.
pub(super) fn in_doubt(
    view: &View,
    step: &StepId,
    state: &StepState,
    now: Time,
) -> Result<Option<Hold>, Halt> {
    if state.effects_owed == 0 {
        return Ok(None);
    }
    let effects = view.effects(step)?;
    let owed = effects.iter().find(|(_, effect)| effect.is_owed());
    Ok(owed.map(|(name, effect)| uncertain(view, step, name, effect, now)))
}

fn uncertain(view: &View, step: &StepId, name: &str, effect: &Effect, now: Time) -> Hold {
    let key = effect_key(view.task(), step, name, effect.generation);
    let what = effect.says.clone().unwrap_or_else(|| format!("effect `{name}`"));
    let message = format!(
        "{what}: recorded {} by worker {}, no answer kept; whether it has happened cannot be \
         known from here, and it is not sent again by itself. Look for key {key}",
        effect.intended_at.rfc3339(),
        effect.worker,
    );
    let held = HeldEffect { name: name.to_owned(), key, request_sha256: None };
    Hold { effect: Some(held), ..Hold::new(HoldReason::UncertainEffect, message, now) }
}

/// Takes a receipt: once, in every phase.
pub(super) fn confirm(
    view: &View,
    by: &Speaker,
    receipt: &Payload,
    given: &Given,
) -> Result<Decision, Halt> {
    let effect = spoken_of(view, by)?;
    match effect.standing {
        Standing::Landed { .. } => return Ok(Decision::nothing()),
        Standing::InFlight | Standing::Uncertain { .. } | Standing::NotLanded { .. } => {}
    }
    let (step, name) = (by.step.clone(), by.name.clone());
    let landed = Change::EffectLanded {
        step: step.clone(),
        name: name.clone(),
        generation: effect.generation,
        receipt_sha256: digest(receipt),
        output_round: None,
        intent: None,
    };
    let mut changes = vec![landed];
    changes.extend(released(view, &step, &name, true, given)?);
    let key = Key::Receipt(step, name, effect.generation);
    Ok(Decision { changes, payloads: vec![(key, Record::Payload(receipt.clone()))] })
}

/// Takes back an intent whose effect is known not to have happened.
pub(super) fn retract(
    view: &View,
    by: &Speaker,
    how: NotLanded,
    given: &Given,
) -> Result<Decision, Halt> {
    let effect = spoken_of(view, by)?;
    if !effect.is_open() {
        return Ok(Decision::nothing());
    }
    // That one attempt has sent nothing says nothing of what an earlier one has, nor of what an
    // earlier one has sent under the same key.
    let knows = match how {
        NotLanded::Checked => true,
        NotLanded::NotSent | NotLanded::Refused | NotLanded::Answered => {
            effect.worker == by.worker && effect.attempt == by.attempt && !effect.repeated
        }
    };
    if !knows {
        let (step, name) = (by.step.clone(), by.name.clone());
        let why = "an earlier attempt may have sent it; only a check can tell".to_owned();
        return Err(Refusal::Effect { step, name, why }.into());
    }
    let (step, name) = (by.step.clone(), by.name.clone());
    let generation = effect.generation;
    let mut changes = vec![Change::EffectNotLanded { step, name, generation, how }];
    changes.extend(released(view, &by.step, &by.name, false, given)?);
    Ok(changes.into())
}

/// Finds the effect, if the speaker recorded its intent or holds the step now.
fn spoken_of(view: &View, by: &Speaker) -> Result<Effect, Halt> {
    let step = || by.step.clone();
    view.need([Key::Header, Key::Gate, Key::Definition(step()), Key::Step(step())])?;
    view.need([Key::Claim(step()), Key::Effects(step())])?;
    view.header()?;
    view.definition(&by.step)?;
    let unknown = || Refusal::Effect {
        step: by.step.clone(),
        name: by.name.clone(),
        why: "this attempt has recorded no such effect".to_owned(),
    };
    let effect = view.effects(&by.step)?.remove(&by.name).ok_or_else(unknown)?;
    let holds = view.claim(&by.step)?.is_some_and(|claim| {
        claim.worker == by.worker && claim.attempt == by.attempt && claim.epoch == by.epoch
    });
    let own = effect.worker == by.worker && effect.attempt == by.attempt;
    if own || holds { Ok(effect) } else { Err(unknown().into()) }
}

/// A step that was held for nothing but this effect's uncertainty goes on; so does a task that
/// was held at its end for it.
pub(super) fn released(
    view: &View,
    step: &StepId,
    name: &str,
    landed: bool,
    given: &Given,
) -> Result<Vec<Change>, Halt> {
    let mut changes = Vec::new();
    let (definition, state) = (view.definition(step)?, view.step(step)?);
    let wanted = open::is_wanted(&view.header()?.phase, definition);
    let rest = rest(view, step, name)?;
    if let crate::record::Status::Held { hold } = &state.status
        && hold.reason == HoldReason::UncertainEffect
        && wanted
    {
        let next = rest.iter().find(|(_, effect)| effect.class == EffectClass::Irreversible);
        changes.push(match next {
            Some((name, effect)) => {
                let hold = uncertain(view, step, name, effect, given.now);
                Change::StepHeld { step: step.clone(), hold }
            }
            None => match landed.then(|| outdated(view, definition, &state, name, given)) {
                Some(hold) => hold?,
                None => open::ready(view, definition, &state, given.now, Start::Afresh)?,
            },
        });
    }
    changes.extend(unverify(view, step, name)?);
    Ok(changes)
}

/// What follows when a held step's effect has landed: it goes on, unless it would send another
/// request by now.
fn outdated(
    view: &View,
    definition: &Definition,
    state: &StepState,
    name: &str,
    given: &Given,
) -> Result<Change, Halt> {
    let step = &definition.plan.id;
    let effects = view.effects(step)?;
    if let Some(effect) = effects.get(name).filter(|_| name == MAIN_EFFECT) {
        let sends = input_digest(view, definition, state)?;
        if sends != effect.request_sha256 {
            let hold = changed_hold(view, step, name, effect.generation, sends, given.now);
            return Ok(Change::StepHeld { step: step.clone(), hold });
        }
    }
    open::ready(view, definition, state, given.now, Start::Afresh)
}

/// Gives the step's other effects that are owed.
fn rest(view: &View, step: &StepId, name: &str) -> Result<Effects, Halt> {
    let mut effects = view.effects(step)?;
    effects.retain(|other, effect| other != name && effect.is_owed());
    Ok(effects)
}

/// A `verification` hold ends with the last effect that was owed, so that the check runs anew.
fn unverify(view: &View, step: &StepId, name: &str) -> Result<Option<Change>, Halt> {
    let owed = view.effects(step)?.get(name).is_some_and(Effect::is_owed);
    let header = view.header()?;
    if !owed || header.effects_owed > 1 || header.phase != Phase::Main {
        return Ok(None);
    }
    let reason = HoldReason::Verification;
    let held = view.gate()?.holds.iter().any(|hold| hold.reason == reason);
    Ok(held.then_some(Change::TaskReleased { reason, by: None }))
}
