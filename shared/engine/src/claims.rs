//! What a worker does with an attempt: claim, renew, complete, hand back. The shipped worker
//! and the api, for workers outside, both go through here.

mod given;
mod log;
mod outcome;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use standfast_domain::commit::Home;
use standfast_domain::decide::Command;
use standfast_domain::ids::{HandlerName, Partition, Principal, Queue, StepId, TaskId, WorkerId};
use standfast_domain::index::{parse_ready_member, ready_index};
use standfast_domain::outcome::Artifact;
use standfast_domain::record::Key;
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::time::{Span, Time};
use standfast_domain::view::{Attempt, View};

pub use self::outcome::OUTPUT_BYTES_MAX;
pub use self::outcome::Report;
pub use crate::batch::Stay;
use crate::batch::claim_wants;
use crate::blobs::Blobs;
use crate::effects::DeclaredEffect;
use crate::ports::{Range, StoreError};
use crate::registry::Registry;
use crate::submission::Handlers;
use crate::{Engine, EngineError};

/// How long a claim lasts unless renewed; a heartbeat comes each third of it.
pub const CLAIM_LENGTH: Span = Span::from_secs(30);
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
        Ok(Renewed { expires_at, stop: view.is_to_end(&step).map_err(broken)? })
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
        view.is_to_end(step).map_err(broken)
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
}

/// Cuts what a handler says of its progress at a character's edge. Nothing is added, since
/// the next attempt may read it.
fn cut_details(text: &str) -> String {
    text[..text.floor_char_boundary(DETAILS_BYTES_MAX)].to_owned()
}

pub(crate) fn broken(halt: Halt) -> EngineError {
    match halt {
        Halt::Refuse(refusal) => refusal.into(),
        Halt::Need(keys) => {
            let names: Vec<String> = keys.iter().map(Key::field).collect();
            StoreError::Corrupt(format!("records {} are not known", names.join(", "))).into()
        }
    }
}
