//! One attempt from its claim to its result.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use standfast_domain::ids::{Principal, WorkerId};
use standfast_domain::outcome::FailureClass;
use standfast_domain::time::Span;
use standfast_engine::EngineError;
use standfast_engine::claims::{Claimed, Claims, Renewed, Report};
use standfast_engine::effects::Told;
use tokio_util::sync::CancellationToken;

use crate::directories::{self, Directories};
use crate::files::FilesError;
use crate::gauges::Came;
use crate::handlers::{
    self, Class, Failure, Handler, Job, LogLimits, LogSink, NamedSecrets, Secrets,
};
use crate::heartbeat::{self, Standing};
use crate::log_keeper;

/// What a handler may overrun its own deadline by before it is dropped: it needs some time to
/// end its processes.
const OVERRUN: Duration = Duration::from_secs(15);
/// The wait between two tries of telling a result.
const TELL_AGAIN: Duration = Duration::from_millis(500);

/// What an attempt needs of its worker.
pub(crate) struct Bench {
    pub claims: Arc<Claims>,
    pub worker: WorkerId,
    pub actor: Principal,
    pub directories: Arc<dyn Directories>,
    pub secrets: Arc<dyn Secrets>,
    /// Cancelled when running attempts are to be handed back.
    pub hand_back: CancellationToken,
    /// Cancelled when the process may wait no longer.
    pub give_up: CancellationToken,
}

impl Bench {
    /// Runs an attempt whose claim was asked for at a time of the local clock, and tells its
    /// result; true once that is stored or refused.
    pub async fn run(
        &self,
        claimed: Claimed,
        asked: Duration,
        handler: Arc<dyn Handler>,
    ) -> (bool, Came) {
        let at = claimed.at(&self.worker);
        let cancel = self.hand_back.child_token();
        let length = claimed.length.to_std();
        let (standing, beat) = heartbeat::start(
            self.claims.clone(),
            claimed.task.clone(),
            at.clone(),
            self.actor.clone(),
            length,
            cancel.clone(),
        );
        let name = format!("{}-{}-{}", claimed.task, claimed.step, claimed.attempt);
        let directory = self.directories.make(&name, &claimed.inputs).await;
        let before = self.still_held(&claimed, asked).await;
        let worked = match (&directory, before) {
            (Ok(directory), Standing::Held) => {
                self.work(&claimed, handler, directory, cancel.clone()).await
            }
            (Ok(_), Standing::ToEnd | Standing::Lost) => {
                Ok(Report::failed(FailureClass::Cancelled, "it was told to end before it began"))
            }
            (Err(error), _) => Ok(failed_files(error)),
        };
        let report = worked.unwrap_or_else(|error| failed_files(&error));
        let standing = if before == Standing::Lost { before } else { *standing.borrow() };
        let (told, came) = match standing {
            Standing::Lost => {
                tracing::info!(task = %claimed.task, step = %claimed.step,
                    attempt = claimed.attempt, "attempt was taken over; its result is dropped");
                (true, Came::GivenUp)
            }
            Standing::Held if self.hand_back.is_cancelled() && is_cancelled(&report) => {
                (self.tell(&claimed, None).await, Came::GivenUp)
            }
            Standing::Held | Standing::ToEnd => {
                let came = match &report {
                    Report::Succeeded { .. } => Came::Succeeded,
                    Report::Failed { .. } => Came::Failed,
                };
                (self.tell(&claimed, Some(report)).await, came)
            }
        };
        drop(beat);
        if let Ok(directory) = directory {
            self.directories.remove(&directory).await;
        }
        (told, came)
    }

    /// Renews a claim that may have run out on the way to its handler, since the store was slow
    /// or this process stood still: nothing starts on a claim that may be another's. Counted is
    /// from when it was asked for: how old the time in a late answer is, nobody knows.
    async fn still_held(&self, claimed: &Claimed, mut asked: Duration) -> Standing {
        let clock = self.claims.engine().clock();
        loop {
            if clock.monotonic().saturating_sub(asked) < claimed.length.to_std() {
                return Standing::Held;
            }
            asked = clock.monotonic();
            let (at, actor) = (claimed.at(&self.worker), self.actor.clone());
            match self.claims.renew(&claimed.task, at, None, actor).await {
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
        cancel: CancellationToken,
    ) -> Result<Report, FilesError> {
        let spool = directories::spool(directory);
        let log = LogSink::new(LogLimits::default(), Some(&spool));
        let at = claimed.at(&self.worker);
        let keeper =
            log_keeper::start(self.claims.clone(), claimed.task.clone(), at.clone(), log.clone());
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
            cancel,
            log: log.clone(),
            secrets: Arc::new(NamedSecrets::of(&claimed.defined_with, self.secrets.clone())),
        };
        let report = run_handler(handler, job, left.to_std() + OVERRUN).await;
        drop(keeper);
        let report = self.keep(claimed, directory, report).await;
        log_keeper::finish(&self.claims, &claimed.task, &at, &log).await;
        report
    }

    /// Keeps what a success has left and turns the handler's report into the engine's.
    async fn keep(
        &self,
        claimed: &Claimed,
        directory: &Path,
        report: handlers::Report,
    ) -> Result<Report, FilesError> {
        let success = match report {
            handlers::Report::Succeeded(success) => success,
            handlers::Report::Failed(failure) => return Ok(failed(failure)),
        };
        let mut names: Vec<String> = claimed.artifact.iter().cloned().collect();
        let declared = claimed.artifact.as_ref();
        names.extend(success.artifacts.into_iter().filter(|name| declared != Some(name)));
        let artifacts = self.directories.keep(&claimed.task, directory, &names).await?;
        Ok(Report::Succeeded {
            output: success.output,
            artifacts,
            cost_usd_micros: success.cost_usd_micros,
            checkpoint: success.checkpoint,
            then: serde_json::Value::Array(success.then),
        })
    }

    /// Tells the result, or hands the attempt back, until the store has answered.
    async fn tell(&self, claimed: &Claimed, report: Option<Report>) -> bool {
        let at = claimed.at(&self.worker);
        let mut failing = false;
        loop {
            let actor = self.actor.clone();
            let told = match report.clone() {
                Some(report) => {
                    self.claims.complete(&claimed.task, at.clone(), report, actor).await
                }
                None => {
                    let why = "its worker is shutting down".to_owned();
                    self.claims.hand_back(&claimed.task, at.clone(), why, actor).await
                }
            };
            let error = match told {
                Ok(()) => return true,
                Err(EngineError::Refused(refusal)) => {
                    tracing::info!(task = %claimed.task, step = %claimed.step,
                        attempt = claimed.attempt, %refusal, "result not taken");
                    return true;
                }
                Err(EngineError::Store(error)) => error,
            };
            if !failing {
                tracing::warn!(task = %claimed.task, step = %claimed.step, %error,
                    "result held until the store answers");
                failing = true;
            }
            tokio::select! {
                biased;
                () = self.give_up.cancelled() => return false,
                () = tokio::time::sleep(TELL_AGAIN) => {}
            }
        }
    }
}

/// Runs the handler on a task of its own, so that a panic or an endless one is only its own.
async fn run_handler(handler: Arc<dyn Handler>, job: Job, bound: Duration) -> handlers::Report {
    let running = tokio::spawn(async move { handler.run(job).await });
    let running = tokio_util::task::AbortOnDropHandle::new(running);
    match tokio::time::timeout(bound, running).await {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => {
            let text = match error.try_into_panic() {
                Ok(panic) => panic_text(&*panic),
                Err(error) => error.to_string(),
            };
            Failure::new(Class::Retryable, format!("the handler panicked: {text}")).into()
        }
        Err(_) => {
            let text = "it overran its time and did not end when told to";
            Failure::new(Class::Timeout, text).into()
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

fn is_cancelled(report: &Report) -> bool {
    matches!(report, Report::Failed { class: FailureClass::Cancelled, .. })
}

fn failed(failure: Failure) -> Report {
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
        effect: Told::Unknown,
    }
}

fn failed_files(error: &FilesError) -> Report {
    let class = match error {
        FilesError::Blobs(_) | FilesError::Io(_) => FailureClass::Retryable,
        FilesError::Artifact { .. } => FailureClass::Permanent,
    };
    Report::failed(class, error.to_string())
}
