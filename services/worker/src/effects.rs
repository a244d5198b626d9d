//! The gate of one attempt: records its step's effect before it is sent, asks the effect's
//! check what an earlier attempt has left, and tells receipts that came too late.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::decide::Speaker;
use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::record::{MAIN_EFFECT, NotLanded};
use standfast_domain::time::Span;
use standfast_domain::view::Attempt;
use standfast_engine::EngineError;
use standfast_engine::claims::{Claims, Renewed};
use standfast_engine::effects::{
    DeclaredCheck, DeclaredEffect, EffectAsk, Intended, SEND_WINDOW, Told,
};
use tokio_util::sync::CancellationToken;

use crate::directories::Directories;
use crate::handlers::{
    Class, Failure, Handler, Intents, Job, LogSink, MaySend, NamedSecrets, Pulse, Report, Secrets,
    Sent,
};
use crate::heartbeat::{Heart, Standing};

/// The wait between two tries while the store does not answer.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// The name of a check's directory within its attempt's.
const DIRECTORY: &str = ".check";

/// What the gate of one attempt needs.
pub(crate) struct Gate {
    pub claims: Arc<Claims>,
    pub task: TaskId,
    pub at: Attempt,
    pub actor: Principal,
    pub heart: Heart,
    /// What the heart has heard of the claim.
    pub declared: DeclaredEffect,
    /// Runs the effect's check; none if it has none, or its handler is not here.
    pub checker: Option<Checker>,
    /// Ends the waiting for a store that does not answer.
    pub cancel: CancellationToken,
    /// Ends the waiting for a store that does not take what is known.
    pub give_up: CancellationToken,
    /// Set once the attempt has ended there and then: nothing is told of it any more.
    pub over: AtomicBool,
}

/// Runs the check of an effect.
pub(crate) struct Checker {
    pub handler: Arc<dyn Handler>,
    pub check: DeclaredCheck,
    pub step: String,
    pub attempt: u32,
    pub round: u32,
    pub traceparent: Option<String>,
    /// The attempt's directory, in which the check has one of its own.
    pub directory: PathBuf,
    pub directories: Arc<dyn Directories>,
    pub log: LogSink,
    pub secrets: Arc<dyn Secrets>,
}

/// What a check found out.
enum Found {
    Happened(Value),
    NotHappened,
    Nothing(Failure),
}

#[async_trait]
impl Intents for Gate {
    async fn may_send(&self, request_timeout: Duration) -> MaySend {
        let mut first = None; // an intent whose answer was lost may be as old as its first call
        loop {
            if let Some(ended) = self.heard() {
                return ended;
            }
            if let Some(ended) = self.hold_fast().await {
                return ended;
            }
            let asked = *first.get_or_insert(self.monotonic());
            if !self.declared.class.needs_durable_store() {
                // The claim is the intent, and both are over at the same time.
                return MaySend::Before((asked + request_timeout).min(self.heart.held.get()));
            }
            let (at, ask) = (self.at.clone(), self.ask(request_timeout));
            match self.claims.intend(&self.task, at, ask, self.actor.clone()).await {
                Ok(Intended::Send { .. }) => {
                    let window = asked + SEND_WINDOW.to_std();
                    if self.monotonic() < window {
                        return MaySend::Before(window.min(self.heart.held.get()));
                    }
                    self.tell(Told::NotLanded(NotLanded::NotSent)).await; // and record it anew
                    first = None;
                }
                Ok(Intended::Kept { receipt }) => return MaySend::Kept(receipt),
                Ok(Intended::Ended) => return self.ended(),
                Ok(Intended::Check { .. }) => match self.find_out(request_timeout).await {
                    Some(answer) => return answer,
                    None => first = None,
                },
                Err(EngineError::Refused(refusal)) => {
                    return self.refused(&format!("failed to {refusal}"));
                }
                Err(EngineError::Store(error)) => {
                    tracing::debug!(task = %self.task, step = %self.at.step, %error,
                        "an effect waits until the store answers");
                    if let Some(cancelled) = self.wait().await {
                        return cancelled;
                    }
                }
            }
        }
    }

    fn monotonic(&self) -> Duration {
        self.claims.engine().clock().monotonic()
    }
}

impl Gate {
    /// True once the attempt has ended there and then.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Gives the end of an attempt of which a heartbeat has told that it is over: its claim may not
    /// have run out yet, and is no intent any more.
    fn heard(&self) -> Option<MaySend> {
        let why = match self.heart.standing.get() {
            Standing::Held => return None,
            Standing::ToEnd => "told to end before it sent anything",
            Standing::Lost => "taken from its worker before it sent anything",
        };
        Some(MaySend::Ended(unsent(Class::Cancelled, why)))
    }

    /// Renews a claim that is about to run out, since this worker was cut off or slow: what is
    /// sent under a claim that has run out may be another's to send. Gives the end of an attempt
    /// that may send nothing any more.
    async fn hold_fast(&self) -> Option<MaySend> {
        while self.heart.held.runs_out(self.monotonic()) {
            match self.heart.beat().await {
                Ok(Renewed { stop: true, .. }) => {
                    let why = "told to end before it sent anything";
                    return Some(MaySend::Ended(unsent(Class::Cancelled, why)));
                }
                // The end of the attempt's time cuts its claim, and no renewal makes it longer.
                Ok(Renewed { stop: false, .. }) if self.monotonic() < self.heart.held.get() => {
                    return None;
                }
                Ok(Renewed { stop: false, .. }) => {
                    let why = "its time was over before it sent anything";
                    return Some(MaySend::Ended(unsent(Class::Timeout, why)));
                }
                Err(EngineError::Refused(_)) => {
                    let why = "taken over before it sent anything";
                    return Some(MaySend::Ended(unsent(Class::Cancelled, why)));
                }
                Err(EngineError::Store(error)) => {
                    tracing::debug!(task = %self.task, step = %self.at.step, %error,
                        "an effect waits until its claim is renewed");
                }
            }
            if let Some(cancelled) = self.wait().await {
                return Some(cancelled);
            }
        }
        None
    }

    /// Waits between two tries; gives the end of an attempt that is cancelled meanwhile.
    async fn wait(&self) -> Option<MaySend> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => {
                let why = "cancelled while its effect waited for the store";
                Some(MaySend::Ended(unsent(Class::Cancelled, why)))
            }
            () = tokio::time::sleep(ASK_AGAIN) => None,
        }
    }

    fn ask(&self, request_timeout: Duration) -> EffectAsk {
        let millis = u64::try_from(request_timeout.as_millis()).unwrap_or(u64::MAX);
        EffectAsk {
            name: MAIN_EFFECT.to_owned(),
            class: self.declared.class,
            request: None,
            window: SEND_WINDOW,
            request_timeout: Span(millis),
            target: self.declared.target.clone(),
            says: self.declared.says.clone(),
        }
    }

    fn ended(&self) -> MaySend {
        self.over.store(true, Ordering::SeqCst);
        MaySend::Ended(unsent(Class::Cancelled, "the attempt has ended before it sent anything"))
    }

    fn refused(&self, why: &str) -> MaySend {
        MaySend::Ended(unsent(Class::Permanent, why))
    }

    /// Asks the check; `None`: it has not happened and may be recorded anew.
    async fn find_out(&self, request_timeout: Duration) -> Option<MaySend> {
        let found = match &self.checker {
            Some(checker) => checker.run(&self.task, request_timeout, &self.cancel).await,
            None => Found::Nothing(unsent(Class::Permanent, "its effect has no check here")),
        };
        match found {
            Found::Happened(receipt) => {
                self.tell(Told::Landed(receipt.clone())).await;
                Some(MaySend::Kept(receipt))
            }
            Found::NotHappened => {
                self.tell(Told::NotLanded(NotLanded::Checked)).await;
                None
            }
            Found::Nothing(failure) => Some(MaySend::Ended(failure)),
        }
    }

    /// Tells what became of the effect, until the store has answered.
    pub(crate) async fn tell(&self, told: Told) {
        loop {
            let (by, actor) = (self.speaker(), self.actor.clone());
            let said = match told.clone() {
                Told::Unknown => return,
                Told::Landed(receipt) => {
                    self.claims.confirm_effect(&self.task, by, receipt, actor).await
                }
                Told::NotLanded(how) => {
                    self.claims.retract_effect(&self.task, by, how, actor).await
                }
            };
            match said {
                Ok(()) => return,
                Err(EngineError::Refused(refusal)) => {
                    tracing::info!(task = %self.task, step = %self.at.step, %refusal,
                        "what became of an effect was not taken");
                    return;
                }
                Err(EngineError::Store(error)) => {
                    tracing::debug!(task = %self.task, step = %self.at.step, %error,
                        "a receipt waits until the store answers");
                }
            }
            tokio::select! {
                biased;
                () = self.give_up.cancelled() => return,
                () = tokio::time::sleep(ASK_AGAIN) => {}
            }
        }
    }

    fn speaker(&self) -> Speaker {
        let Attempt { step, attempt, epoch, worker } = self.at.clone();
        Speaker { step, name: MAIN_EFFECT.to_owned(), attempt, epoch, worker }
    }
}

impl Checker {
    async fn run(&self, task: &TaskId, time: Duration, cancel: &CancellationToken) -> Found {
        let directory = match self.directories.make_within(&self.directory, DIRECTORY).await {
            Ok(directory) => directory,
            Err(error) => {
                return Found::Nothing(unsent(Class::Retryable, &format!("its check: {error}")));
            }
        };
        let job = Job {
            task: task.to_string(),
            step: self.step.clone(),
            attempt: self.attempt,
            round: self.round,
            input: self.check.with.clone(),
            directory,
            artifact: None,
            deadline: time,
            cancel: cancel.clone(),
            log: self.log.clone(),
            secrets: Arc::new(NamedSecrets::of(&self.check.defined_with, self.secrets.clone())),
            traceparent: self.traceparent.clone(),
            last_details: None,
            pulse: Pulse::default(),
            effect: None,
        };
        match self.handler.run(job).await {
            Report::Succeeded(success) => Found::Happened(success.output),
            Report::Failed(failure) if self.handler.says_no(&failure) => Found::NotHappened,
            Report::Failed(failure) => {
                let message = format!("its effect could not be checked: {}", failure.message);
                Found::Nothing(Failure { sent: Sent::Not, message, ..failure })
            }
        }
    }
}

fn unsent(class: Class, why: &str) -> Failure {
    Failure { sent: Sent::Not, ..Failure::new(class, why) }
}

/// What a failed attempt tells the engine of its effect.
pub(crate) fn told(failure: &Failure, may_have_been_sent: bool) -> Told {
    match &failure.sent {
        Sent::Unknown if may_have_been_sent => Told::Unknown,
        Sent::Unknown | Sent::Not => Told::NotLanded(NotLanded::NotSent),
        Sent::Refused => Told::NotLanded(NotLanded::Refused),
        Sent::Landed(receipt) => Told::Landed(receipt.clone()),
    }
}
