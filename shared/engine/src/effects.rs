//! What a worker does about an effect: record its intent, tell what became of it, hear what an
//! earlier attempt has left. The shipped worker and the api, for workers outside, both go
//! through here.

use serde_json::Value;
use standfast_domain::canonical::digest_hex;
use standfast_domain::decide::{Command, Intent, Speaker, Submission};
use standfast_domain::ids::{HandlerName, Principal, StepId, TaskId};
use standfast_domain::json::{DEPTH_MAX, check_value};
use standfast_domain::outcome::EffectEnd;
use standfast_domain::plan::{Fault, StepPlan};
use standfast_domain::record::{
    Definition, Effect, EffectClass, Effects, Key, MAIN_EFFECT, NotLanded, Payload, Record,
    Standing, effect_key,
};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;
use standfast_domain::view::Attempt;

use crate::claims::{Claims, broken};
use crate::ports::StoreError;
use crate::{Engine, EngineError};

/// How long after its intent an effect may be sent, unless its worker says otherwise: enough
/// for the intent's answer on a slow day, short enough that a repeat need not wait long.
pub const SEND_WINDOW: Span = Span::from_secs(10);
/// Bytes of an effect's request or receipt: what does not fit inline is kept as a blob.
pub const EXCHANGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What an attempt is about to do.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectAsk {
    /// The effect's name within its step.
    pub name: String,
    /// Its class.
    pub class: EffectClass,
    /// The exact request; `None`: the step's resolved input.
    pub request: Option<Value>,
    /// How long after now it may be sent.
    pub window: Span,
    /// How long the request may take once it is sent.
    pub request_timeout: Span,
    /// Whom or what it touches.
    pub target: Option<String>,
    /// What it does.
    pub says: Option<String>,
}

/// What is to be done about an effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Intended {
    /// Send it, under this key, before the window that was asked for is over by the sender's
    /// own monotonic clock, counted from before it asked.
    Send {
        /// The key under which the outside world may know it.
        key: String,
    },
    /// It has happened: this is its receipt.
    Kept {
        /// What the outside world answered.
        receipt: Value,
    },
    /// An earlier attempt may have sent it: find out whether it has happened, tell, and ask
    /// again if it has not.
    Check {
        /// The key under which the outside world may know it.
        key: String,
    },
    /// The attempt is over, there and then: its task is ending, or a person is needed.
    Ended,
}

/// What a failed attempt tells of the effect that its step declares.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Told {
    /// Nothing.
    #[default]
    Unknown,
    /// It has not happened.
    NotLanded(NotLanded),
    /// It has happened all the same; this is the receipt.
    Landed(Value),
}

/// The one effect that a step declares, as a claim hands it over.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredEffect {
    /// Its class; never `none`.
    pub class: EffectClass,
    /// The key under which the outside world may know it.
    pub key: String,
    /// Whom or what it touches.
    pub target: Option<String>,
    /// What it does.
    pub says: Option<String>,
    /// Its receipt, if it has happened: it is not sent again.
    pub kept: Option<Value>,
    /// What finds out whether it has happened.
    pub check: Option<DeclaredCheck>,
}

/// What finds out whether an effect has happened.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredCheck {
    /// The handler that asks.
    pub uses: HandlerName,
    /// Its input, templates resolved.
    pub with: Value,
    /// Its input as the plan defines it, before any template.
    pub defined_with: Value,
}

impl Claims {
    /// Records that an attempt is about to change something outside. An `Unavailable` store
    /// leaves it unknown whether that was recorded: nothing may be sent, asking again is right.
    pub async fn intend(
        &self,
        task: &TaskId,
        at: Attempt,
        ask: EffectAsk,
        actor: Principal,
    ) -> Result<Intended, EngineError> {
        if ask.class.needs_durable_store() && !self.engine().may_record_intents().await? {
            let (step, name) = (at.step.clone(), ask.name.clone());
            return Err(Refusal::Effect { step, name, why: RELAXED.to_owned() }.into());
        }
        let (name, step) = (ask.name.clone(), at.step.clone());
        let request_sha256 = ask.request.as_ref().map(digest_hex);
        let request = match ask.request {
            Some(request) => Some(exchange(self, task, &step, &name, request).await?),
            None => None,
        };
        let intent = Intent {
            name: ask.name,
            class: ask.class,
            request,
            request_sha256: request_sha256.unwrap_or_default(),
            window: ask.window,
            request_timeout: ask.request_timeout,
            target: ask.target,
            says: ask.says,
        };
        let attempt = at.attempt;
        let command = Command::Intend { at, intent: Box::new(intent) };
        let wants = vec![Key::Effects(step.clone()), Key::Claim(step.clone())];
        let done = self.engine().execute(task, command, actor, wants).await?;
        let claim = done.records.claim(&step).map_err(broken)?;
        if claim.is_none_or(|claim| claim.attempt != attempt) {
            return Ok(Intended::Ended);
        }
        let effect = done.records.effects(&step).map_err(broken)?.remove(&name);
        let Some(effect) = effect else { return Ok(Intended::Ended) };
        self.intended(task, &step, &name, &effect, attempt).await
    }

    async fn intended(
        &self,
        task: &TaskId,
        step: &StepId,
        name: &str,
        effect: &Effect,
        attempt: u32,
    ) -> Result<Intended, EngineError> {
        let key = effect_key(task, step, name, effect.generation);
        Ok(match &effect.standing {
            Standing::Landed { .. } => {
                let receipt = self.receipt(task, step, name, effect).await?;
                Intended::Kept { receipt: receipt.unwrap_or_default() }
            }
            Standing::InFlight if effect.attempt == attempt => Intended::Send { key },
            Standing::InFlight | Standing::Uncertain { .. } => Intended::Check { key },
            Standing::NotLanded { .. } => {
                let why = "it was taken back at the same moment".to_owned();
                let (step, name) = (step.clone(), name.to_owned());
                return Err(Refusal::Effect { step, name, why }.into());
            }
        })
    }

    /// Tells that an effect has happened. Accepted once, in every phase and under every epoch.
    pub async fn confirm_effect(
        &self,
        task: &TaskId,
        by: Speaker,
        receipt: Value,
        actor: Principal,
    ) -> Result<(), EngineError> {
        let receipt = exchange(self, task, &by.step, &by.name, receipt).await?;
        let command = Command::ConfirmEffect { by, receipt };
        self.engine().execute(task, command, actor, Vec::new()).await?;
        Ok(())
    }

    /// Tells that an effect has not happened.
    pub async fn retract_effect(
        &self,
        task: &TaskId,
        by: Speaker,
        how: NotLanded,
        actor: Principal,
    ) -> Result<(), EngineError> {
        let command = Command::RetractEffect { by, how };
        self.engine().execute(task, command, actor, Vec::new()).await?;
        Ok(())
    }

    pub(crate) async fn effect_end(
        &self,
        task: &TaskId,
        told: Told,
    ) -> Result<EffectEnd, EngineError> {
        Ok(match told {
            Told::Unknown => EffectEnd::Unknown,
            Told::NotLanded(how) => EffectEnd::NotLanded(how),
            Told::Landed(receipt) => {
                let bytes = serde_json::to_vec(&receipt).expect("values are JSON");
                EffectEnd::Landed(self.payload(task, receipt, bytes).await?)
            }
        })
    }

    /// Gives what the outside world answered to an effect that has happened.
    pub async fn receipt(
        &self,
        task: &TaskId,
        step: &StepId,
        name: &str,
        effect: &Effect,
    ) -> Result<Option<Value>, EngineError> {
        let Standing::Landed { output_round, .. } = &effect.standing else { return Ok(None) };
        let key = match output_round {
            Some(round) => Key::Output(step.clone(), *round),
            None => Key::Receipt(step.clone(), name.to_owned(), effect.generation),
        };
        let record =
            self.engine().read(task, std::slice::from_ref(&key)).await?.remove(&key).flatten();
        match record {
            Some(Record::Payload(payload)) => Ok(Some(value_of(self, payload).await?)),
            _ => Ok(None),
        }
    }

    /// Gives the effect that a step declares, with what earlier attempts have left.
    pub(crate) async fn declared_effect(
        &self,
        task: &TaskId,
        definition: &Definition,
        round: u32,
    ) -> Result<Option<DeclaredEffect>, EngineError> {
        let step = &definition.plan.id;
        let Some(plan) = definition.plan.effect.as_ref() else { return Ok(None) };
        if plan.class == EffectClass::None {
            return Ok(None);
        }
        let keys = [Key::Effects(step.clone()), Key::Check(step.clone(), round)];
        let mut records = self.engine().read(task, &keys).await?;
        let mut effects = match records.remove(&keys[0]).flatten() {
            Some(Record::Effects(effects)) => effects,
            _ => Effects::new(),
        };
        let main = effects.remove(MAIN_EFFECT);
        let kept = match main.as_ref().filter(|main| main.has_landed()) {
            Some(main) => {
                Some(self.receipt(task, step, MAIN_EFFECT, main).await?.unwrap_or_default())
            }
            None => None,
        };
        let generation = main.map_or(1, |main| main.generation);
        let resolved = match records.remove(&keys[1]).flatten() {
            Some(Record::Value(with)) => Some(with),
            _ => None,
        };
        let check = plan.check.as_ref().map(|check| {
            let defined_with = check.with.clone();
            let with = resolved.unwrap_or_else(|| defined_with.clone());
            DeclaredCheck { uses: check.uses.clone(), with, defined_with }
        });
        Ok(Some(DeclaredEffect {
            class: plan.class,
            key: effect_key(task, step, MAIN_EFFECT, generation),
            target: plan.target.clone(),
            says: plan.says.clone(),
            kept,
            check,
        }))
    }
}

/// Why steps with effects that need an intent are refused.
pub const RELAXED: &str = "the store answers before a write is on disk, so an intent could be \
                           lost: let it sync each write (Redis: `appendonly yes`, `appendfsync \
                           always`), or accept the risk with `--accept-relaxed-durability`";

/// How long what the store said of its durability is believed.
const DURABILITY_FOR: std::time::Duration = std::time::Duration::from_secs(30);

/// What is known of the store's durability.
#[derive(Debug, Default)]
pub(crate) struct Durability {
    accepted: std::sync::atomic::AtomicBool,
    heard: std::sync::Mutex<Option<(std::time::Duration, bool)>>,
}

impl Engine {
    /// Lets effects be recorded in a store that may lose what it has answered: the operator's
    /// decision.
    pub fn accept_relaxed_durability(&self) {
        self.core().durability.accepted.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Refuses a plan whose effects need intents that the store could lose.
    pub(crate) async fn check_durability(
        &self,
        submission: &Submission,
    ) -> Result<(), EngineError> {
        let plan = &submission.plan;
        let lists = [(&plan.steps, "/steps"), (&plan.finally, "/finally")];
        let mut faults = Vec::new();
        for (steps, base) in lists {
            faults.extend(relaxed(steps, base));
        }
        if faults.is_empty() || self.may_record_intents().await? {
            return Ok(());
        }
        Err(Refusal::InvalidPlan(faults).into())
    }

    /// Says whether intents may be recorded: the store syncs each write, or the operator has
    /// accepted that it does not.
    pub async fn may_record_intents(&self) -> Result<bool, EngineError> {
        let durability = &self.core().durability;
        if durability.accepted.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(true);
        }
        self.is_durable().await
    }

    /// Says whether the store syncs each write before it answers.
    pub async fn is_durable(&self) -> Result<bool, EngineError> {
        let durability = &self.core().durability;
        let now = self.clock().monotonic();
        let heard = *durability.heard.lock().expect("no panic while held");
        if let Some((at, durable)) = heard
            && now.saturating_sub(at) < DURABILITY_FOR
        {
            return Ok(durable);
        }
        let durable = self.store().health().await?.durable;
        *durability.heard.lock().expect("no panic while held") = Some((now, durable));
        Ok(durable)
    }
}

/// Names the steps whose effects need a store that syncs each write.
pub(crate) fn relaxed(steps: &[StepPlan], base: &str) -> Vec<Fault> {
    let needy = steps.iter().enumerate();
    let needy = needy.filter(|(_, step)| step.effect_class().needs_durable_store());
    needy
        .map(|(n, step)| Fault {
            pointer: format!("{base}/{n}/effect"),
            message: format!("`{}` is refused: {RELAXED}", step.effect_class()),
        })
        .collect()
}

/// Keeps a request or receipt inline or as a blob.
async fn exchange(
    claims: &Claims,
    task: &TaskId,
    step: &StepId,
    name: &str,
    value: Value,
) -> Result<Payload, EngineError> {
    let bytes = serde_json::to_vec(&value).expect("values are JSON");
    let fault = check_value(&value, DEPTH_MAX).first().map(|fault| fault.message.clone());
    let large = (bytes.len() > EXCHANGE_BYTES_MAX)
        .then(|| format!("it has {} bytes; at most {EXCHANGE_BYTES_MAX} are kept", bytes.len()));
    if let Some(why) = fault.or(large) {
        let (step, name) = (step.clone(), name.to_owned());
        return Err(Refusal::Effect { step, name, why }.into());
    }
    claims.payload(task, value, bytes).await
}

async fn value_of(claims: &Claims, payload: Payload) -> Result<Value, EngineError> {
    match payload {
        Payload::Inline(value) => Ok(value),
        Payload::Blob { name, .. } => {
            let corrupt = |error: String| EngineError::from(StoreError::Corrupt(error));
            let bytes =
                claims.blobs().get(&name).await.map_err(|error| corrupt(error.to_string()))?;
            serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))
        }
    }
}
