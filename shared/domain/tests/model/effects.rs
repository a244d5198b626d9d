//! Workers that change the outside world: they record an intent, send, and hear an answer or
//! not; and what the outside world knows of it, which no rule can see.
//!
//! ```text
//! Begun ──intend──▶ Intended ──send──▶ Answered ──▶ a success, or a late receipt
//!   ▲  └──intend──▶ Asking               Unanswered ──▶ a failure, nobody knows
//!   └───not there───┘  └──there──▶ Answered
//! ```
//!
//! A step whose effect is idempotent sends without an intent: its claim is the intent.

use std::sync::Arc;

use standfast_domain::decide::{Command, Intent, Speaker};
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::outcome::FailureClass;
use standfast_domain::record::{
    Effect, EffectClass, Key, MAIN_EFFECT, NotLanded, Payload, Record, Standing, Status,
};
use standfast_domain::time::Span;
use standfast_domain::time::Time;

use super::deeds::{Deed, name};
use super::rules::{Broken, Rule};
use super::setting::{Setting, Sight};
use super::state::{Run, Said, State};

/// How long an intent may be sent after: longer than a claim, so that a worker may still send
/// when its attempt has been taken over.
const WINDOW: Span = Span::from_secs(40);
/// How long a request may take.
const REQUEST: Span = Span::from_secs(5);

/// How far an attempt has come with its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Nothing was sent, and nothing may be before its intent is recorded.
    Begun,
    /// The intent is recorded: it may be sent, for a while.
    Intended,
    /// It was sent and no answer came.
    Unanswered,
    /// It has happened: the worker has the receipt, or was told that there is one.
    Answered,
    /// An earlier attempt may have sent it: the outside world must be asked first.
    Asking,
}

/// What the outside world knows of a step's effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Outside {
    /// How often it was sent.
    pub sent: u8,
    /// How often a person has let it be sent once more.
    pub allowed: u8,
    /// True once it has happened.
    pub happened: bool,
}

impl Setting {
    /// Gives the class of a step's effect.
    pub fn class(&self, step: &StepId) -> EffectClass {
        let plan = &self.submission.plan;
        if let Some((of, _)) = step.undone() {
            let mut undos = plan.steps.iter().filter(|own| own.id == of);
            let effect = undos.find_map(|own| own.undo.as_ref()?.effect.as_ref());
            return effect.map_or(EffectClass::None, |effect| effect.class);
        }
        let own = plan.steps.iter().chain(&plan.finally).find(|own| own.id == *step);
        own.map_or(EffectClass::None, |own| own.effect_class())
    }

    /// Lists what a worker may do about its effect before its attempt ends.
    pub fn of_effect(&self, state: &State, worker: usize, run: &Run, deeds: &mut Vec<Deed>) {
        let class = self.class(&run.step);
        let faults = state.left.faults > 0;
        let send = |heard| Deed::Send { worker, heard };
        let may_send = match run.stage {
            Stage::Begun => class == EffectClass::Idempotent,
            Stage::Intended => state.now < run.send_before,
            Stage::Unanswered | Stage::Answered | Stage::Asking => false,
        };
        if may_send {
            deeds.push(send(true));
            deeds.extend(faults.then(|| send(false)));
        }
        match run.stage {
            Stage::Begun if class.needs_durable_store() => deeds.push(Deed::Intend { worker }),
            Stage::Answered if class.needs_durable_store() && !is_held(state, worker, run) => {
                deeds.push(Deed::Confirm { worker });
            }
            Stage::Asking => deeds.push(Deed::Ask { worker }),
            Stage::Begun | Stage::Intended | Stage::Unanswered | Stage::Answered => {}
        }
    }

    /// Lists how an attempt may end now.
    pub fn ends(&self, state: &State, run: &Run) -> Vec<Said> {
        let class = self.class(&run.step);
        let failures = self.fails.iter().filter(|_| state.left.failures > 0);
        let failures = failures.map(|class| Said::Failure(*class));
        match run.stage {
            Stage::Begun if class == EffectClass::None => failures.chain([Said::Success]).collect(),
            Stage::Begun => failures.collect(),
            Stage::Intended if state.now >= run.send_before => {
                vec![Said::Failure(FailureClass::Retryable)]
            }
            Stage::Intended => failures.collect(),
            Stage::Unanswered => vec![Said::Failure(FailureClass::Timeout)],
            Stage::Answered => vec![Said::Success],
            Stage::Asking => Vec::new(),
        }
    }

    /// Chooses what a patient worker does about its effect, if there is something.
    pub fn patient_effect(&self, state: &State, worker: usize, run: &Run) -> Option<Deed> {
        let mut deeds = Vec::new();
        self.of_effect(state, worker, run, &mut deeds);
        deeds.into_iter().next()
    }

    /// A worker records that it is about to send, and reads what stands there then.
    pub fn intend(&self, next: &mut State, worker: usize) {
        let run = next.workers[worker].clone().expect("it runs an attempt");
        let intent = Intent {
            name: MAIN_EFFECT.to_owned(),
            class: self.class(&run.step),
            request: None,
            request_sha256: String::new(),
            window: WINDOW,
            request_timeout: REQUEST,
            target: None,
            says: None,
        };
        let at = self.attempt(next, worker);
        let command = Command::Intend { at: at.clone(), intent: Box::new(intent) };
        let said = self.say(next, worker, &at, &command);
        if said.is_err() || !is_held(next, worker, &run) {
            return; // refused, or ended there and then
        }
        let Some(effect) = effect(next, &run.step) else { return };
        let (stage, send_before) = match &effect.standing {
            Standing::Landed { .. } => (Stage::Answered, run.send_before),
            Standing::InFlight if effect.attempt == run.attempt => {
                (Stage::Intended, effect.send_before)
            }
            Standing::InFlight | Standing::Uncertain { .. } => (Stage::Asking, run.send_before),
            Standing::NotLanded { .. } => return,
        };
        next.workers[worker] = Some(Run { stage, send_before, ..run });
    }

    /// A worker sends, and it happens.
    pub fn send(&self, next: &mut State, worker: usize, heard: bool) {
        let run = next.workers[worker].as_mut().expect("it runs an attempt");
        run.stage = if heard { Stage::Answered } else { Stage::Unanswered };
        let step = run.step.clone();
        next.left.faults -= u8::from(!heard);
        let outside = next.outside.entry(step.clone()).or_default();
        outside.happened = true;
        if self.class(&step) == EffectClass::Idempotent {
            return; // it may be repeated under its key
        }
        outside.sent += 1;
        let Outside { sent, allowed, .. } = *outside;
        if sent > 1 {
            self.see(Sight::SentAgain);
        }
        if sent > 1 + allowed {
            let why = format!("the effect of `{step}` is sent {sent} times");
            next.broken = Some(Broken { rule: Rule::Sends, why });
        }
    }

    /// A worker tells a receipt after its attempt was taken from it.
    pub fn confirm(&self, next: &mut State, worker: usize) {
        let run = next.workers[worker].take().expect("it runs an attempt");
        let held = |state: &State| {
            let mut steps = state.statuses().filter(|(step, _)| **step == run.step);
            steps.any(|(_, status)| match status {
                Status::Held { hold } => hold.reason == HoldReason::UncertainEffect,
                _ => false,
            })
        };
        let was = held(next);
        let receipt = Payload::Inline(serde_json::Value::Null);
        let command = Command::ConfirmEffect { by: speaker(worker, &run), receipt };
        if self.execute(next, worker, &command) == Ok(true) && was && !held(next) {
            self.see(Sight::ReceiptEndsHold);
        }
    }

    /// A worker asks the outside world whether it has happened, and tells.
    pub fn ask(&self, next: &mut State, worker: usize) {
        let run = next.workers[worker].clone().expect("it runs an attempt");
        let happened = next.outside.get(&run.step).is_some_and(|outside| outside.happened);
        let by = speaker(worker, &run);
        let receipt = Payload::Inline(serde_json::Value::Null);
        let (command, stage) = match happened {
            true => (Command::ConfirmEffect { by, receipt }, Stage::Answered),
            false => (Command::RetractEffect { by, how: NotLanded::Checked }, Stage::Begun),
        };
        let said = self.execute(next, worker, &command);
        next.workers[worker] = said.is_ok().then_some(Run { stage, ..run });
    }
}

/// Gives when no request of a step's effects can be under way any more.
pub fn settled_by(state: &State, step: &StepId) -> Time {
    match state.records.get(&Key::Effects(step.clone())).map(|kept| &kept.record) {
        Some(Record::Effects(effects)) => {
            effects.values().map(|effect| effect.settled_by).max().unwrap_or(state.now)
        }
        _ => state.now,
    }
}

/// What a person may say of effects of which nobody knows, in every phase.
pub fn answers(state: &State, deeds: &mut Vec<Deed>) {
    for (key, kept) in state.records.iter() {
        let (Key::Effects(step), Record::Effects(effects)) = (key, &kept.record) else { continue };
        let claimed = state.claims().any(|(own, _)| own == step);
        if !claimed && effects.values().any(Effect::is_open) {
            let answer = |answer| Deed::Answer { step: Some(step.clone()), answer };
            deeds.extend([Answer::Happened, Answer::NotHappened].map(answer));
        }
    }
}

/// What has landed stays so, in its generation.
pub fn landed_stays(state: &State) -> Result<(), Broken> {
    for (step, generation) in state.receipts.iter() {
        let Some(effect) = effect(state, step) else { continue };
        if effect.generation == *generation && !effect.has_landed() {
            let why = format!("the effect of `{step}` had landed and is {:?}", effect.standing);
            return Err(Broken { rule: Rule::Receipts, why });
        }
    }
    Ok(())
}

/// Notes that an effect is known to have happened.
pub fn landed(state: &mut State, step: &StepId, generation: u32) -> Result<(), Broken> {
    match Arc::make_mut(&mut state.receipts).insert((step.clone(), generation)) {
        true => Ok(()),
        false => {
            let why = format!("the effect of `{step}` lands twice");
            Err(Broken { rule: Rule::Receipts, why })
        }
    }
}

/// Notes that a person lets an effect be sent once more.
pub fn allowed(state: &mut State, step: &StepId) {
    state.outside.entry(step.clone()).or_default().allowed += 1;
}

fn effect<'a>(state: &'a State, step: &StepId) -> Option<&'a Effect> {
    match state.get(&Key::Effects(step.clone())) {
        Some(Record::Effects(effects)) => effects.get(MAIN_EFFECT),
        _ => None,
    }
}

fn is_held(state: &State, worker: usize, run: &Run) -> bool {
    state.claims().any(|(step, claim)| {
        *step == run.step && claim.attempt == run.attempt && claim.worker == name(worker)
    })
}

fn speaker(worker: usize, run: &Run) -> Speaker {
    let (step, effect) = (run.step.clone(), MAIN_EFFECT.to_owned());
    let (attempt, epoch) = (run.attempt, run.epoch);
    Speaker { step, name: effect, attempt, epoch, worker: name(worker) }
}
