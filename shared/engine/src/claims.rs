//! What a worker does with an attempt: claim, renew, complete, hand back. The shipped worker
//! and the api, for workers outside, both go through here.

mod given;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use standfast_domain::ceiling::Ceiling;
use standfast_domain::commit::{Commit, Guard, Home, Scope};
use standfast_domain::decide::{Addition, Command};
use standfast_domain::ids::{
    HandlerName, Partition, Principal, Queue, StepId, TaskId, WorkerId, check_name,
};
use standfast_domain::index::{parse_ready_member, ready_index};
use standfast_domain::json::{DEPTH_MAX, OUTPUT_INLINE_BYTES_MAX, check_value};
use standfast_domain::outcome::{ARTIFACTS_MAX, Artifact, Failure, FailureClass, Outcome, Success};
use standfast_domain::plan::StepPlan;
use standfast_domain::record::{AttemptLog, Definition, Key, LastAttempt, Part, Payload, Record};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::{SPAN_MAX, Span, Time};
use standfast_domain::view::{Attempt, View};

pub use crate::batch::Stay;
use crate::batch::claim_wants;
use crate::blobs::Blobs;
use crate::effects::{DeclaredEffect, Told, relaxed};
use crate::ports::{Load, Range, StoreError};
use crate::registry::Registry;
use crate::submission::{Grown, Handlers, prepare_added};
use crate::{Engine, EngineError};

/// How long a claim lasts unless renewed; a heartbeat comes each third of it.
pub const CLAIM_LENGTH: Span = Span::from_secs(30);
/// Bytes of an output that is kept as a blob.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of what a handler says of its progress.
pub const DETAILS_BYTES_MAX: usize = 4 * 1024;

/// Who wants which attempt.
#[derive(Clone, Debug)]
pub struct ClaimAsk {
    /// The task.
    pub task: TaskId,
    /// The step.
    pub step: StepId,
    /// The attempt that a message spoke of.
    pub attempt: Option<u32>,
    /// The worker's id.
    pub worker: WorkerId,
    /// As whom it acts.
    pub principal: Principal,
    /// How long the claim lasts unless renewed.
    pub length: Span,
    /// The handlers that the worker has; `None`: not to be checked.
    pub handlers: Option<Arc<BTreeSet<HandlerName>>>,
}

/// An attempt that was given to a worker, with all it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The task.
    pub task: TaskId,
    /// The step.
    pub step: StepId,
    /// What runs.
    pub handler: HandlerName,
    /// The attempt's number.
    pub attempt: u32,
    /// The epoch.
    pub epoch: u32,
    /// The round.
    pub round: u32,
    /// The resolved input.
    pub with: Value,
    /// The input as the plan defines it, before any template.
    pub defined_with: Value,
    /// Why the round was opened.
    pub failure: Option<Value>,
    /// When it started.
    pub started_at: Time,
    /// When it must have ended.
    pub ends_at: Time,
    /// When the claim dies unless renewed.
    pub expires_at: Time,
    /// How long a renewal lasts.
    pub length: Span,
    /// How often its worker renews the claim.
    pub interval: Span,
    /// The longest silence of its handler.
    pub heartbeat: Option<Span>,
    /// What the attempt before it last said of its progress, in the same round.
    pub last_details: Option<String>,
    /// What must exist after a success.
    pub artifact: Option<String>,
    /// Artifacts of the steps it needs.
    pub inputs: Vec<(StepId, Artifact)>,
    /// What it changes outside.
    pub effect: Option<DeclaredEffect>,
    /// W3C trace context of the submission.
    pub traceparent: Option<String>,
}

impl Claimed {
    /// Names the attempt for later commands of its worker.
    pub fn at(&self, worker: &WorkerId) -> Attempt {
        Attempt {
            step: self.step.clone(),
            attempt: self.attempt,
            epoch: self.epoch,
            worker: worker.clone(),
        }
    }
}

/// What a handler reports, before the engine has checked it.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// It worked.
    Succeeded {
        /// What it gave.
        output: Value,
        /// What it left, already in the blobs.
        artifacts: Vec<Artifact>,
        /// What it cost.
        cost_usd_micros: u64,
        /// A checkpoint's name.
        checkpoint: Option<String>,
        /// Steps to add, as an array; null for none.
        then: Value,
    },
    /// It did not.
    Failed {
        /// How.
        class: FailureClass,
        /// Why.
        message: String,
        /// Not again before this span has passed.
        retry_after: Option<Span>,
        /// What it gave all the same.
        output: Value,
        /// What it cost.
        cost_usd_micros: u64,
        /// What is known of the effect that the step declares.
        effect: Told,
    },
}

impl Report {
    /// Makes a failure with nothing but a class and a text.
    pub fn failed(class: FailureClass, message: impl Into<String>) -> Self {
        Self::Failed {
            class,
            message: message.into(),
            retry_after: None,
            output: Value::Null,
            cost_usd_micros: 0,
            effect: Told::Unknown,
        }
    }
}

/// What a renewal tells of the handler since the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// What it says of its progress, if that is new.
    pub details: Option<String>,
    /// True if it gave a sign of life.
    pub alive: bool,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// When the claim dies unless renewed again.
    pub expires_at: Time,
    /// True if the attempt is to end: its task is ending.
    pub stop: bool,
}

/// Gives attempts to workers and takes their results.
pub struct Claims {
    engine: Engine,
    blobs: Blobs,
    handlers: Arc<dyn Handlers>,
    registry: Arc<Registry>,
}

impl Claims {
    /// Makes the workers' side of an engine.
    pub fn new(
        engine: Engine,
        blobs: Blobs,
        handlers: Arc<dyn Handlers>,
        registry: Arc<Registry>,
    ) -> Self {
        Self { engine, blobs, handlers, registry }
    }

    /// Gives the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Gives the blobs.
    pub fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    /// Claims an attempt. A claim is given once, also to the same worker: one whose answer was
    /// lost on the way is left to expire, since giving it again could start the step twice.
    pub async fn claim(&self, ask: &ClaimAsk) -> Result<Claimed, EngineError> {
        let command = Command::ClaimStep {
            step: ask.step.clone(),
            attempt: ask.attempt,
            worker: ask.worker.clone(),
            length: ask.length,
            handlers: ask.handlers.clone(),
        };
        let wants = claim_wants(&ask.step);
        let done = self.engine.execute(&ask.task, command, ask.principal.clone(), wants).await?;
        self.given(ask, done.records).await
    }

    /// Puts together what a worker needs for an attempt that it has claimed.
    async fn given(&self, ask: &ClaimAsk, mut view: View) -> Result<Claimed, EngineError> {
        let state = view.step(&ask.step).map_err(broken)?;
        let (round, resolved) = (state.round, state.resolved);
        let definition = view.definition(&ask.step).map_err(broken)?.clone();
        let more = self.more_keys(&definition, round, resolved);
        self.complete_view(&mut view, more).await?;
        let inputs = self.inputs(&mut view, &definition).await?;
        let mut claimed = given::claimed(&view, ask, &definition, inputs).map_err(broken)?;
        claimed.effect = self.declared_effect(&ask.task, &definition, round).await?;
        Ok(claimed)
    }

    fn more_keys(&self, definition: &Definition, round: u32, resolved: bool) -> Vec<Key> {
        let step = &definition.plan.id;
        let mut keys = Vec::new();
        if round > 1 {
            keys.push(Key::Failure(round));
            keys.extend(resolved.then(|| Key::Resolution(step.clone(), round)));
        }
        let chunks = definition.needs_count.div_ceil(standfast_domain::record::LIST_CHUNK as u32);
        keys.extend((0..chunks).map(|chunk| Key::Needs(step.clone(), chunk)));
        keys
    }

    /// Reads what a view does not know yet.
    async fn complete_view(&self, view: &mut View, keys: Vec<Key>) -> Result<(), EngineError> {
        let missing: Vec<Key> = keys.into_iter().filter(|key| !view.knows(key)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        for (key, record) in self.engine.read(view.task(), &missing).await? {
            view.load(key, record, None);
        }
        Ok(())
    }

    /// Gives the artifacts of all steps that a step needs.
    async fn inputs(
        &self,
        view: &mut View,
        definition: &Definition,
    ) -> Result<Vec<(StepId, Artifact)>, EngineError> {
        let step = &definition.plan.id;
        let chunks = definition.needs_count.div_ceil(standfast_domain::record::LIST_CHUNK as u32);
        let mut needs = Vec::new();
        for chunk in 0..chunks {
            let names = view.names(&Key::Needs(step.clone(), chunk)).map_err(broken)?;
            needs.extend(names.iter().cloned());
        }
        needs.sort();
        let keys = needs.iter().cloned().map(Key::Artifacts).collect();
        self.complete_view(view, keys).await?;
        let mut inputs = Vec::new();
        for step in needs {
            let artifacts = view.artifacts(&step).map_err(broken)?;
            inputs.extend(artifacts.iter().cloned().map(|artifact| (step.clone(), artifact)));
        }
        Ok(inputs)
    }

    /// Keeps a claim alive and hears whether the attempt is to end.
    pub async fn renew(
        &self,
        task: &TaskId,
        at: Attempt,
        news: News,
        actor: Principal,
    ) -> Result<Renewed, EngineError> {
        let step = at.step.clone();
        let (details, alive) = (news.details.map(|text| cut_details(&text)), news.alive);
        let command = Command::RenewClaim { at, details, alive };
        let wants = vec![Key::Gate, Key::Claim(step.clone()), Key::Definition(step.clone())];
        let done = self.engine.execute(task, command, actor, wants).await?;
        let view = done.records;
        let claim = view.claim(&step).map_err(broken)?;
        let expires_at = claim.map_or(done.now, |claim| claim.expires_at);
        Ok(Renewed { expires_at, stop: is_to_end(&view, &step)? })
    }

    /// Says whether an attempt should end, as a renewal would, and changes nothing; fenced unless
    /// it holds its step for this principal, or for any with `None`.
    pub async fn look(
        &self,
        task: &TaskId,
        at: &Attempt,
        principal: Option<&Principal>,
    ) -> Result<bool, EngineError> {
        let step = &at.step;
        let keys = [Key::Gate, Key::Claim(step.clone()), Key::Definition(step.clone())];
        let mut view = View::new(task.clone());
        for (key, record) in self.engine.read(task, &keys).await? {
            view.load(key, record, None);
        }
        let holds = view.claim(step).map_err(broken)?.is_some_and(|claim| {
            claim.worker == at.worker
                && (claim.attempt, claim.epoch) == (at.attempt, at.epoch)
                && principal.is_none_or(|principal| claim.principal == *principal)
        });
        if !holds {
            return Err(Refusal::Fenced { step: step.clone(), attempt: at.attempt }.into());
        }
        is_to_end(&view, step)
    }

    /// Takes an attempt's outcome. Telling it again after a lost answer is accepted; from
    /// anyone but the holder of the attempt it is refused as fenced; that the last holder told
    /// it too late is recorded, and what it cost counts.
    pub async fn complete(
        &self,
        task: &TaskId,
        at: Attempt,
        report: Report,
        actor: Principal,
    ) -> Result<(), EngineError> {
        self.complete_and_stay(task, at, report, actor, None).await.map(|_| ())
    }

    /// Takes an attempt's outcome as [`Claims::complete`] does, and gives its worker a step of
    /// the same queue that this has released, claimed in the same commit. An answer that was
    /// lost leaves that claim to expire, as with [`Claims::claim`].
    pub async fn complete_and_stay(
        &self,
        task: &TaskId,
        at: Attempt,
        report: Report,
        actor: Principal,
        stay: Option<Stay>,
    ) -> Result<Option<Claimed>, EngineError> {
        let (outcome, added, cost_usd_micros) = self.checked(task, &at.step, report).await?;
        let outcome = Box::new(outcome);
        let (step, attempt, worker) = (at.step.clone(), at.attempt, at.worker.clone());
        let command = Command::CompleteAttempt { at, outcome, added, cost_usd_micros };
        let wants = vec![Key::Step(step.clone())];
        let ask = stay.clone().map(|stay| (stay, task.clone()));
        let mut done = self.engine.execute_staying(task, command, actor, wants, stay).await?;
        let last = match done.records.get(&Key::Step(step.clone())) {
            Ok(Some(Record::Step(state))) => state.last.clone(),
            _ => None,
        };
        let late =
            |last: LastAttempt| last.late && last.attempt == attempt && last.worker == worker;
        if last.is_some_and(late) {
            return Err(Refusal::Fenced { step, attempt }.into());
        }
        let (Some((stay, task)), Some(step)) = (ask, done.stayed.take()) else { return Ok(None) };
        let Stay { worker, principal, length, handlers, .. } = stay;
        let handlers = Some(handlers);
        let ask = ClaimAsk { task, step, attempt: None, worker, principal, length, handlers };
        match self.given(&ask, done.records).await {
            Ok(claimed) => Ok(Some(claimed)),
            Err(error) => {
                // The outcome is stored; what cannot be read of the next step must not hide that.
                tracing::warn!(task = %ask.task, step = %ask.step, %error, "step left to expire");
                Ok(None)
            }
        }
    }

    /// Takes an attempt back uncharged; another worker may start the step at once.
    pub async fn hand_back(
        &self,
        task: &TaskId,
        at: Attempt,
        why: String,
        actor: Principal,
    ) -> Result<(), EngineError> {
        self.engine.execute(task, Command::HandBack { at, why }, actor, Vec::new()).await?;
        Ok(())
    }

    /// Gives the oldest ready steps of a queue after a place, from its beginning if that is
    /// empty; and the place to go on from, if there may be more. Hints: some may be taken already.
    pub async fn ready(
        &self,
        queue: &Queue,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<(TaskId, StepId)>, Option<String>), EngineError> {
        let ranges: Vec<Range> = Partition::all()
            .map(|partition| Range {
                home: Home::Partition(partition),
                index: ready_index(queue),
                after: after.to_owned(),
                before: None,
                limit,
                reverse: false,
            })
            .collect();
        let pages = self.engine.store().ranges(&ranges).await?;
        let mut members: Vec<String> = pages.into_iter().flatten().collect();
        members.sort();
        let more = members.len() >= limit;
        members.truncate(limit);
        let steps = members.iter().filter_map(|member| parse_ready_member(member));
        let steps = steps.map(|(_, task, step)| (task, step)).collect();
        Ok((steps, members.pop().filter(|_| more)))
    }

    /// Stores what an attempt has written so far; the last call wins. Gives false if a renewal
    /// at the same moment was in the way: then the caller asks again.
    pub async fn append_log(
        &self,
        task: &TaskId,
        at: &Attempt,
        log: AttemptLog,
    ) -> Result<bool, EngineError> {
        let claim = Key::Claim(at.step.clone());
        let key = Key::Log(at.step.clone(), at.attempt);
        // A late line of an attempt that was fenced must not bring its log back to life.
        let scope = Scope::Task(task.clone());
        let load = Load { scope, fields: vec![claim.field()] };
        let (_, records) = self.engine.store().load(&[load]).await?;
        let stored = records.into_iter().flatten().next().flatten();
        let held = stored.as_ref().and_then(|stored| {
            match Record::decode(&claim, &stored.bytes).ok()? {
                Record::Claim(held) => Some(held),
                _ => None,
            }
        });
        let (step, attempt) = (at.step.clone(), at.attempt);
        if held.is_none_or(|held| held.attempt != attempt || held.worker != at.worker) {
            return Err(Refusal::Fenced { step, attempt }.into());
        }
        let version = stored.map(|stored| stored.version);
        let guards = vec![Guard { field: claim.field(), version }];
        let commit = Commit {
            id: self.engine.commit_id(),
            scope: Scope::Task(task.clone()),
            guards,
            writes: vec![(key.field(), Some(Record::Log(log).encode()))],
            first_event: 0,
            events: Vec::new(),
            indexes: Vec::new(),
            returns: Vec::new(),
        };
        self.engine.commit_raw(commit).await
    }

    /// Checks a report; what breaks a limit becomes a permanent failure that names it.
    async fn checked(
        &self,
        task: &TaskId,
        step: &StepId,
        report: Report,
    ) -> Result<(Outcome, Vec<Addition>, u64), EngineError> {
        let refuse = |message: String, cost| {
            let failure = Failure::new(FailureClass::Permanent, message);
            Ok((Outcome::Failed(failure), Vec::new(), cost))
        };
        match report {
            Report::Failed { class, message, retry_after, output, cost_usd_micros, effect } => {
                let effect = self.effect_end(task, effect).await?;
                let small = serde_json::to_vec(&output).map_or(0, |bytes| bytes.len());
                let output = if small <= OUTPUT_INLINE_BYTES_MAX { output } else { Value::Null };
                // A wait beyond what timers may take has no date that can be shown.
                let retry_after = retry_after.map(|wait| wait.min(SPAN_MAX));
                let failure = Failure { class, message, retry_after, output, effect };
                Ok((Outcome::Failed(failure), Vec::new(), cost_usd_micros))
            }
            Report::Succeeded { output, artifacts, cost_usd_micros, checkpoint, then } => {
                if let Some(fault) = report_fault(&output, &artifacts, checkpoint.as_deref()) {
                    return refuse(fault, cost_usd_micros);
                }
                let (then, added) = match self.added(&then, task, step).await? {
                    Ok(added) => added,
                    Err(fault) => return refuse(fault, cost_usd_micros),
                };
                let bytes = serde_json::to_vec(&output).expect("values are JSON");
                if bytes.len() > OUTPUT_BYTES_MAX {
                    let fault = format!(
                        "its output has {} bytes; at most {OUTPUT_BYTES_MAX} are kept",
                        bytes.len()
                    );
                    return refuse(fault, cost_usd_micros);
                }
                let output = self.payload(task, output, bytes).await?;
                let success = Success { output, artifacts, checkpoint, then };
                Ok((Outcome::Succeeded(success), added, cost_usd_micros))
            }
        }
    }

    async fn added(
        &self,
        then: &Value,
        task: &TaskId,
        step: &StepId,
    ) -> Result<Result<(Vec<StepPlan>, Vec<Addition>), String>, EngineError> {
        if then.is_null() || then.as_array().is_some_and(Vec::is_empty) {
            return Ok(Ok((Vec::new(), Vec::new())));
        }
        let handlers = &*self.handlers;
        let meta = self.engine.read(task, &[Key::Meta]).await?.remove(&Key::Meta).flatten();
        let (plan_dir, ceiling) = match meta {
            Some(Record::Meta(meta)) => (meta.plan_dir.is_some(), meta.ceiling),
            _ => (false, Ceiling::default()),
        };
        let of = Grown { by: step.clone(), plan_dir, ceiling };
        let check = |announced: &_| prepare_added(then, &of, handlers, announced);
        let mut prepared = self.registry.check(check).await?;
        if let Ok((steps, _)) = &prepared {
            let faults = relaxed(steps, "/then");
            if !faults.is_empty() && !self.engine.may_record_intents().await? {
                prepared = Err(faults);
            }
        }
        if let Ok((steps, _)) = &prepared {
            self.engine.know_queues(steps.iter().map(|step| &step.queue)).await?;
        }
        Ok(prepared.map_err(|faults| {
            let first = faults
                .first()
                .map_or_else(String::new, |fault| format!("{}: {}", fault.pointer, fault.message));
            format!("`then` has {} fault(s); {first}", faults.len())
        }))
    }

    pub(crate) async fn payload(
        &self,
        task: &TaskId,
        output: Value,
        bytes: Vec<u8>,
    ) -> Result<Payload, EngineError> {
        if bytes.len() <= OUTPUT_INLINE_BYTES_MAX {
            return Ok(Payload::Inline(output));
        }
        let kept = self
            .blobs
            .put(task, Bytes::from(bytes))
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Payload::Blob { name: kept.name, bytes: kept.bytes, sha256: kept.sha256 })
    }
}

/// Cuts what a handler says of its progress at a character's edge. Nothing is added, since
/// the next attempt may read it.
fn cut_details(text: &str) -> String {
    text[..text.floor_char_boundary(DETAILS_BYTES_MAX)].to_owned()
}

fn report_fault(
    output: &Value,
    artifacts: &[Artifact],
    checkpoint: Option<&str>,
) -> Option<String> {
    if let Some(fault) = check_value(output, DEPTH_MAX).first() {
        return Some(format!("its output is not accepted: {}: {}", fault.pointer, fault.message));
    }
    if artifacts.len() > ARTIFACTS_MAX {
        return Some(format!(
            "it left {} artifacts; at most {ARTIFACTS_MAX} are kept",
            artifacts.len()
        ));
    }
    let fault = check_name(checkpoint?).err()?;
    Some(format!("its checkpoint's name is not accepted: {fault}"))
}

/// Says whether a stop ends the attempts of a step; those of `finally` and `undo` go on.
fn is_to_end(view: &View, step: &StepId) -> Result<bool, EngineError> {
    let part = view.definition(step).map_err(broken)?.part();
    Ok(part == Part::Main && view.gate().map_err(broken)?.ends_attempts())
}

pub(crate) fn broken(halt: standfast_domain::refusal::Halt) -> EngineError {
    match halt {
        standfast_domain::refusal::Halt::Refuse(refusal) => refusal.into(),
        standfast_domain::refusal::Halt::Need(keys) => {
            let names: Vec<String> = keys.iter().map(Key::field).collect();
            StoreError::Corrupt(format!("records {} are not known", names.join(", "))).into()
        }
    }
}
