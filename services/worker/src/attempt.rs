//! One attempt from its claim to its result.

mod run;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::Value;
use standfast_domain::ids::{Principal, WorkerId};
use standfast_domain::outcome::FailureClass;
use standfast_domain::record::NotLanded;
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;
use standfast_engine::EngineError;
use standfast_engine::claims::{Claimed, Claims, Renewed, Report, Stay};
use standfast_engine::effects::{DeclaredEffect, Told};
use standfast_engine::ports::StoreError;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::builtin::BuiltinHandlers;
use crate::directories::{self, Directories};
use crate::effects::{self, Checker, Gate};
use crate::files::FilesError;
use crate::gauges::Came;
use crate::handlers::{
    self, Class, Effect, Failure, Handler, Job, LogLimits, LogSink, NamedSecrets, Pulse, Secrets,
};
use crate::heartbeat::{Heart, HeldUntil, Shown, Standing};
use crate::log_keeper;

pub(crate) use self::run::HandlersRun;
use self::run::{OVERRUN, Silence, run_handler};

/// The wait between two tries of telling a result.
const TELL_AGAIN: Duration = Duration::from_millis(500);

/// What an attempt needs of its worker.
pub(crate) struct Bench {
    pub claims: Arc<Claims>,
    pub worker: WorkerId,
    pub actor: Principal,
    pub directories: Arc<dyn Directories>,
    pub handlers_run: HandlersRun,
    pub secrets: Arc<dyn Secrets>,
    /// Runs the checks of effects.
    pub handlers: BuiltinHandlers,
    /// Cancelled when running attempts are to be handed back.
    pub hand_back: CancellationToken,
    /// Cancelled when the process may wait no longer.
    pub give_up: CancellationToken,
}

impl Bench {
    /// Runs an attempt whose claim was asked for at a time of the local clock, and tells its
    /// result; with `stay`, its worker would go on with a step that this releases. `news` makes
    /// it ask the store at once whether it is to go on.
    pub async fn run(
        &self,
        claimed: Box<Claimed>,
        asked: Duration,
        news: Arc<Notify>,
        handler: Arc<dyn Handler>,
        stay: Option<Stay>,
    ) -> Ended {
        let cancel = self.hand_back.child_token();
        let heart = Heart {
            claims: self.claims.clone(),
            task: claimed.task.clone(),
            at: claimed.at(&self.worker),
            actor: self.actor.clone(),
            pulse: Pulse::default(),
            now: news,
            held: HeldUntil::new(claimed.length.to_std(), asked),
            standing: Shown::default(),
        };
        let interval = claimed.interval.to_std();
        let mut course = pin!(self.course(claimed, asked, (&heart, &cancel), handler, stay));
        heart.beat_along(interval, &cancel, course.as_mut()).await
    }

    /// The attempt itself, while its heart beats. It is part of a task's future, of which there
    /// are as many as attempts: what most attempts never come to is kept out of it, in boxes.
    async fn course(
        &self,
        claimed: Box<Claimed>,
        asked: Duration,
        (heart, cancel): (&Heart, &CancellationToken),
        handler: Arc<dyn Handler>,
        stay: Option<Stay>,
    ) -> Ended {
        let name = format!("{}-{}-{}", claimed.task, claimed.step, claimed.attempt);
        let (made, directory) = self.directory(&claimed, &*handler, &name).await;
        let before = match self.is_fresh(&claimed, asked) {
            true => Standing::Held,
            false => Box::pin(self.still_held(&claimed, heart)).await,
        };
        let (mut gate, mut spooled) = (None, false);
        let report = match (&directory, before) {
            (Ok(directory), Standing::Held) => {
                let log = LogSink::new(LogLimits::default(), Some(&directories::spool(directory)));
                gate = self.gate(&claimed, directory, &log, (heart, cancel));
                let (cancel, pulse, gate) = (cancel.clone(), heart.pulse.clone(), gate.clone());
                let course = Course { cancel, pulse, log: log.clone(), gate };
                let report = self.work(&claimed, handler, directory, course).await;
                spooled = log.is_spooled();
                report
            }
            (Ok(_), Standing::ToEnd | Standing::Lost) => {
                let failure = Failure::new(Class::Cancelled, "it was told to end before it began");
                failed(failure, false)
            }
            (Err(error), _) => failed_files(error, Told::NotLanded(NotLanded::NotSent)),
        };
        let ended = match (before, heart.standing.get()) {
            (Standing::Lost, _) => {
                tracing::info!(task = %claimed.task, step = %claimed.step,
                    attempt = claimed.attempt, "attempt was lost before it began");
                Ended::given_up(true)
            }
            (Standing::Held | Standing::ToEnd, standing) => {
                if standing == Standing::Held && matches!(report, Report::Failed { .. }) {
                    Box::pin(heart.last_words()).await;
                }
                self.end(&claimed, standing, gate.as_deref(), report, stay).await
            }
        };
        if let Ok(directory) = directory
            && (made || spooled)
        {
            self.directories.remove(&directory).await;
        }
        ended
    }

    /// Tells what an attempt came to, as far as that is still for its worker to say.
    async fn end(
        &self,
        claimed: &Claimed,
        standing: Standing,
        gate: Option<&Gate>,
        report: Report,
        stay: Option<Stay>,
    ) -> Ended {
        match standing {
            _ if gate.is_some_and(Gate::is_over) => Ended::given_up(true),
            Standing::Lost => {
                Box::pin(tell_apart(gate, &report)).await;
                // It will be refused, but what it cost counts, and the log says that it came.
                Box::pin(self.tell(claimed, &report, None)).await;
                Ended::given_up(true)
            }
            Standing::Held if self.hand_back.is_cancelled() && is_cancelled(&report) => {
                Box::pin(tell_apart(gate, &report)).await; // a hand-back knows nothing of it
                Ended::given_up(Box::pin(self.hand_back(claimed)).await)
            }
            Standing::Held | Standing::ToEnd => {
                let came = match &report {
                    Report::Succeeded { .. } => Came::Succeeded,
                    Report::Failed { .. } => Came::Failed,
                };
                let told = self.tell(claimed, &report, stay).await;
                if matches!(told, Some(Taken::No)) {
                    Box::pin(tell_apart(gate, &report)).await;
                }
                let (told, next) = (told.is_some(), told.and_then(Taken::next));
                Ended { told, came, next }
            }
        }
    }

    /// Makes the attempt's directory, unless nothing would ever be in it; says whether it did.
    async fn directory(
        &self,
        claimed: &Claimed,
        handler: &dyn Handler,
        name: &str,
    ) -> (bool, Result<PathBuf, FilesError>) {
        let checked = claimed.effect.as_ref().is_some_and(|effect| effect.check.is_some());
        let empty = claimed.inputs.is_empty() && claimed.artifact.is_none() && !checked;
        match empty && !handler.uses_directory() {
            true => (false, Ok(self.directories.place(name))),
            false => (true, self.directories.make(name, &claimed.inputs).await),
        }
    }

    /// True if a claim cannot have run out yet. Counted is from when it was asked for: how old the
    /// time in a late answer is, nobody knows.
    fn is_fresh(&self, claimed: &Claimed, asked: Duration) -> bool {
        let now = self.claims.engine().clock().monotonic();
        now.saturating_sub(asked) < claimed.length.to_std()
    }

    /// Renews a claim that may have run out on the way to its handler, since the store was slow
    /// or this process stood still: nothing starts on a claim that may be another's.
    async fn still_held(&self, claimed: &Claimed, heart: &Heart) -> Standing {
        loop {
            let asked = self.claims.engine().clock().monotonic();
            match heart.beat().await {
                Ok(Renewed { stop: false, .. }) if self.is_fresh(claimed, asked) => {
                    return Standing::Held;
                }
                Ok(Renewed { stop: false, .. }) => continue,
                Ok(Renewed { stop: true, .. }) => return Standing::ToEnd,
                Err(EngineError::Refused(_)) => return Standing::Lost,
                Err(EngineError::Store(error)) => {
                    tracing::debug!(task = %claimed.task, step = %claimed.step, %error,
                        "start held until the store answers");
                }
            }
            tokio::select! {
                biased;
                () = self.give_up.cancelled() => return Standing::Lost,
                () = tokio::time::sleep(TELL_AGAIN) => {}
            }
        }
    }

    async fn work(
        &self,
        claimed: &Claimed,
        handler: Arc<dyn Handler>,
        directory: &Path,
        Course { cancel, pulse, log, gate }: Course,
    ) -> Report {
        if let Some(receipt) = claimed.effect.as_ref().and_then(|effect| effect.kept.clone()) {
            return kept(receipt);
        }
        let at = claimed.at(&self.worker);
        let left = self
            .claims
            .engine()
            .now()
            .await
            .map_or(Span::default(), |now| claimed.ends_at.since(now));
        let job = Job {
            task: claimed.task.to_string(),
            step: claimed.step.to_string(),
            attempt: claimed.attempt,
            round: claimed.round,
            input: claimed.with.clone(),
            directory: directory.to_owned(),
            artifact: claimed.artifact.clone(),
            deadline: left.to_std(),
            cancel: cancel.clone(),
            log: log.clone(),
            traceparent: claimed.traceparent.clone(),
            last_details: claimed.last_details.clone(),
            pulse: pulse.clone(),
            secrets: Arc::new(NamedSecrets::of(&claimed.defined_with, self.secrets.clone())),
            effect: gate.map(|gate| {
                let DeclaredEffect { class, key, .. } = &gate.declared;
                Arc::new(Effect::new(*class, key.clone(), gate.clone()))
            }),
        };
        let effect = job.effect.clone();
        let heartbeat = claimed.heartbeat.map(Span::to_std);
        let watch = Silence::watch(pulse, heartbeat, cancel);
        let bound = left.to_std() + OVERRUN;
        let mut running = pin!(run_handler(handler, job, bound, &self.handlers_run));
        let running = running.as_mut();
        let ran = log_keeper::keep_along(&self.claims, &claimed.task, &at, &log, running).await;
        let report = watch.judge(ran);
        let sent = effect.is_some_and(|effect| effect.may_have_been_sent());
        let report = self.keep(claimed, directory, report, sent).await;
        if !log.is_empty() {
            Box::pin(log_keeper::finish(&self.claims, &claimed.task, &at, &log)).await;
        }
        report
    }

    /// Keeps what a success has left and turns the handler's report into the engine's.
    async fn keep(
        &self,
        claimed: &Claimed,
        directory: &Path,
        report: handlers::Report,
        sent: bool,
    ) -> Report {
        let success = match report {
            handlers::Report::Succeeded(success) if success.kept => return kept(success.output),
            handlers::Report::Succeeded(success) => success,
            handlers::Report::Failed(failure) => return failed(failure, sent),
        };
        let mut names: Vec<String> = claimed.artifact.iter().cloned().collect();
        let declared = claimed.artifact.as_ref();
        names.extend(success.artifacts.into_iter().filter(|name| declared != Some(name)));
        match self.directories.keep(&claimed.task, directory, &names).await {
            Ok(artifacts) => Report::Succeeded {
                output: success.output,
                artifacts,
                cost_usd_micros: success.cost_usd_micros,
                checkpoint: success.checkpoint,
                then: Value::Array(success.then),
            },
            Err(error) => failed_files(&error, Told::Landed(success.output)),
        }
    }

    /// Makes the gate of an attempt whose step declares an effect.
    fn gate(
        &self,
        claimed: &Claimed,
        directory: &Path,
        log: &LogSink,
        (heart, cancel): (&Heart, &CancellationToken),
    ) -> Option<Arc<Gate>> {
        let declared = claimed.effect.clone()?;
        let checker = declared.check.clone().and_then(|check| {
            Some(Checker {
                handler: self.handlers.get(check.uses.as_str())?,
                check,
                step: claimed.step.to_string(),
                attempt: claimed.attempt,
                round: claimed.round,
                traceparent: claimed.traceparent.clone(),
                directory: directory.to_owned(),
                directories: self.directories.clone(),
                log: log.clone(),
                secrets: self.secrets.clone(),
            })
        });
        Some(Arc::new(Gate {
            claims: self.claims.clone(),
            task: claimed.task.clone(),
            at: claimed.at(&self.worker),
            actor: self.actor.clone(),
            heart: heart.clone(),
            declared,
            checker,
            cancel: cancel.clone(),
            give_up: self.give_up.clone(),
            over: AtomicBool::new(false),
        }))
    }

    /// Tells the result until the store has answered; `None`: it never did.
    async fn tell(&self, claimed: &Claimed, report: &Report, stay: Option<Stay>) -> Option<Taken> {
        let mut patience = Patience::default();
        loop {
            let (task, at, actor) = (&claimed.task, claimed.at(&self.worker), self.actor.clone());
            let (report, stay) = (report.clone(), stay.clone());
            match self.claims.complete_and_stay(task, at, report, actor, stay).await {
                Ok(next) => return Some(Taken::Yes(next.map(Box::new))),
                Err(EngineError::Refused(refusal)) => {
                    not_taken(claimed, &refusal);
                    return Some(Taken::No);
                }
                Err(EngineError::Store(error)) => patience.wait(claimed, error, self).await?,
            }
        }
    }

    /// Hands the attempt back until the store has answered; false: it never did.
    pub async fn hand_back(&self, claimed: &Claimed) -> bool {
        let mut patience = Patience::default();
        loop {
            let (at, actor) = (claimed.at(&self.worker), self.actor.clone());
            let why = "its worker is shutting down".to_owned();
            match self.claims.hand_back(&claimed.task, at, why, actor).await {
                Ok(()) => return true,
                Err(EngineError::Refused(refusal)) => {
                    not_taken(claimed, &refusal);
                    return true;
                }
                Err(EngineError::Store(error)) => {
                    if patience.wait(claimed, error, self).await.is_none() {
                        return false;
                    }
                }
            }
        }
    }
}

fn not_taken(claimed: &Claimed, refusal: &Refusal) {
    tracing::info!(task = %claimed.task, step = %claimed.step, attempt = claimed.attempt, %refusal,
        "result not taken");
}

/// Waits for a store that does not take a result.
#[derive(Default)]
struct Patience {
    /// True once it was said that a result is held.
    said: bool,
}

impl Patience {
    /// Waits until the next try; `None`: the process may wait no longer.
    async fn wait(&mut self, claimed: &Claimed, error: StoreError, bench: &Bench) -> Option<()> {
        let outage = EngineError::Store(error.clone()).is_outage(); // said once for all
        if !outage && !self.said {
            tracing::warn!(task = %claimed.task, step = %claimed.step, %error, "result held");
            self.said = true;
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(TELL_AGAIN) => Some(()),
            () = bench.give_up.cancelled() => None,
        }
    }
}

/// Whether a result was taken.
pub(crate) enum Taken {
    /// It was, and this is the attempt that the worker stays with.
    Yes(Option<Box<Claimed>>),
    No,
}

impl Taken {
    fn next(self) -> Option<Box<Claimed>> {
        match self {
            Self::Yes(next) => next,
            Self::No => None,
        }
    }
}

/// What became of an attempt.
pub(crate) struct Ended {
    /// True once its result is stored or refused.
    pub told: bool,
    pub came: Came,
    /// The attempt that was claimed with the result.
    pub next: Option<Box<Claimed>>,
}

impl Ended {
    fn given_up(told: bool) -> Self {
        Self { told, came: Came::GivenUp, next: None }
    }
}

/// What an attempt runs with, besides its claim.
struct Course {
    cancel: CancellationToken,
    pulse: Pulse,
    log: LogSink,
    gate: Option<Arc<Gate>>,
}

/// The report of an attempt that needed to send nothing: an earlier one has.
fn kept(receipt: Value) -> Report {
    Report::Succeeded {
        output: receipt,
        artifacts: Vec::new(),
        cost_usd_micros: 0,
        checkpoint: None,
        then: Value::Null,
    }
}

/// Tells what became of an effect whose attempt's result is not taken: it is true all the same.
async fn tell_apart(gate: Option<&Gate>, report: &Report) {
    let Some(gate) = gate else { return };
    gate.tell(match report {
        Report::Succeeded { output, .. } => Told::Landed(output.clone()),
        Report::Failed { effect, .. } => effect.clone(),
    })
    .await;
}

fn is_cancelled(report: &Report) -> bool {
    matches!(report, Report::Failed { class: FailureClass::Cancelled, .. })
}

fn failed(failure: Failure, sent: bool) -> Report {
    let effect = effects::told(&failure, sent);
    let class = match failure.class {
        Class::Retryable => FailureClass::Retryable,
        Class::Permanent => FailureClass::Permanent,
        Class::RateLimited => FailureClass::RateLimited,
        Class::Timeout => FailureClass::Timeout,
        Class::Cancelled => FailureClass::Cancelled,
        Class::Lost => FailureClass::Lost,
    };
    let millis = |span: Duration| Span(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    Report::Failed {
        class,
        message: failure.message,
        retry_after: failure.retry_after.map(millis),
        output: failure.output.unwrap_or_default(),
        cost_usd_micros: failure.cost_usd_micros,
        effect,
    }
}

fn failed_files(error: &FilesError, told: Told) -> Report {
    let class = match error {
        FilesError::Blobs(_) | FilesError::Io(_) => FailureClass::Retryable,
        FilesError::Artifact { .. } => FailureClass::Permanent,
    };
    let (message, output) = (error.to_string(), Value::Null);
    let (retry_after, cost_usd_micros) = (None, 0);
    Report::Failed { class, message, retry_after, output, cost_usd_micros, effect: told }
}

#[cfg(test)]
mod tests;
