//! Runs a handler for a claim and reports what came of it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use standfast_protocol::claims::{Claim, Complete, FailureClass, HandBack, Outcome, Settled};
use standfast_protocol::paths::{self, fill};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::context::{Context, Place};
use super::heart::{Course, is_fenced, last_words, send_log};
use super::{Crew, Shutdown};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::handler::HandlerError;
use crate::http::{Http, retry_after};

/// How long a handler that is told to end may take for it. One that does not listen is dropped
/// at its next await; one that blocks its thread goes on unheard.
const END_GRACE: Duration = Duration::from_secs(5);
/// The same once the worker must go: short, since whoever asks twice means it.
const HAND_BACK_GRACE: Duration = Duration::from_secs(1);
/// The same once the claim is lost: short, since another worker may run the step already.
const FENCED_GRACE: Duration = Duration::from_secs(1);
/// What is reported of a handler that was silent for longer than its step allows.
const SILENT: &str = "the handler gave no sign of life within the step's `timeout.heartbeat`";
/// How long a result is offered to a silent api once the worker's grace period is over.
const LAST_WORD: Duration = Duration::from_secs(3);
/// How long the rest of a log may hold up a result.
const LAST_LOG: Duration = Duration::from_secs(5);

/// What is reported of an attempt.
enum Report {
    Complete(Outcome),
    HandBack,
}

/// Whether the server knows how an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// It answered, be it with a refusal: a delivery may be acked.
    Yes,
    /// It did not; the claim will expire.
    No,
}

/// Runs a claimed attempt from start to report. `news` makes it ask the api at once whether it
/// is to go on.
pub(crate) async fn run(crew: &Crew, claim: Claim, news: Arc<Notify>) -> Answered {
    let _counted = crew.count();
    let place = Place::Api(crew.http.clone());
    let context = Context::new(claim, crew.id.clone(), place);
    let mut beat = crew.heart.beat(&context, news);
    let report = match crew.handlers.get(&context.claim().handler) {
        Some(handler) if !crew.shutdown.drain.is_cancelled() => {
            let input = context.claim().input.clone();
            let running = tokio::spawn(handler(context.clone(), input));
            watch_over(&context, running, &mut beat.course, &crew.shutdown).await
        }
        Some(_) => Report::HandBack,
        None => {
            let name = &context.claim().handler;
            tracing::error!(handler = name, "the api gave a claim for a handler not announced");
            Report::HandBack
        }
    };
    tokio::select! {
        () = context.effects_told() => {}
        () = last_word(&crew.shutdown) => {
            tracing::warn!(task = context.task(), step = context.step(), "an effect is not told");
        }
    }
    if context.is_over() {
        let (task, step) = (context.task(), context.step());
        tracing::info!(task, step, "the api has ended the attempt at one of its effects");
        return Answered::Yes;
    }
    if *beat.course.borrow() == Course::Fenced {
        // An outcome will be refused, but what it cost counts, and the task's history says that
        // it came.
        return match report {
            Report::Complete(_) => settle(crew, &context, report).await,
            Report::HandBack => Answered::Yes,
        };
    }
    if !matches!(report, Report::Complete(Outcome::Succeeded { .. })) {
        let words = tokio::time::timeout(LAST_LOG, last_words(&crew.http, &context)).await;
        if !matches!(words, Ok(Ok(()))) {
            tracing::debug!(task = context.task(), step = context.step(), "progress not told");
        }
    }
    let log = tokio::time::timeout(LAST_LOG, send_log(&crew.http, &context)).await;
    if !matches!(log, Ok(Ok(()))) {
        tracing::warn!(task = context.task(), step = context.step(), "lost the end of a log");
    }
    // Heartbeats go on until the report is answered: `beat` is dropped at the end.
    settle(crew, &context, report).await
}

/// Waits for the handler, or for a reason to end it.
async fn watch_over(
    context: &Context,
    mut running: JoinHandle<Result<Value, HandlerError>>,
    course: &mut watch::Receiver<Course>,
    shutdown: &Shutdown,
) -> Report {
    let deadline = async {
        match context.claim().attempt_deadline_ms {
            Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            None => std::future::pending().await,
        }
    };
    let left_course = async {
        // The sender goes only with the attempt's heartbeats, so there is a course.
        course.wait_for(|course| *course != Course::Holding).await.map_or(Course::Fenced, |to| *to)
    };
    let (cut_short, grace): (fn(String) -> Report, _) = tokio::select! {
        ended = &mut running => return Report::Complete(outcome(context, flat(ended))),
        () = deadline => (|message| failed(FailureClass::Timeout, message), END_GRACE),
        () = context.silent() => (|_| failed(FailureClass::Timeout, SILENT.to_owned()), END_GRACE),
        course = left_course => {
            let grace = if course == Course::Fenced { FENCED_GRACE } else { END_GRACE };
            (|message| failed(FailureClass::Cancelled, message), grace)
        }
        () = shutdown.now.cancelled() => (|_| Report::HandBack, HAND_BACK_GRACE),
    };
    context.cancellation().cancel();
    let mut ended = tokio::time::timeout(grace, &mut running).await;
    if ended.is_err() && context.has_effects_under_way() {
        // What has been sent is not cut off: its receipt would be lost.
        tokio::select! {
            () = context.effects_told() => {}
            () = last_word(shutdown) => {}
        }
        ended = tokio::time::timeout(HAND_BACK_GRACE, &mut running).await;
    }
    running.abort();
    match ended.map(flat) {
        Ok(Ok(output)) => Report::Complete(context.succeeded(output)),
        Ok(Err(error)) => cut_short(error.message().to_owned()),
        Err(_) => cut_short("the handler did not end when it was told to".to_owned()),
    }
    .with_cost(context.cost_usd_micros())
}

fn failed(class: FailureClass, message: String) -> Report {
    Report::Complete(HandlerError::new(class, message).into_outcome(0))
}

impl Report {
    fn with_cost(mut self, cost: u64) -> Self {
        if let Self::Complete(Outcome::Failed { cost_usd_micros, .. }) = &mut self {
            *cost_usd_micros = cost;
        }
        self
    }
}

/// Makes an outcome of what a handler returned.
pub(crate) fn outcome(context: &Context, ended: Result<Value, HandlerError>) -> Outcome {
    match ended {
        Ok(output) => context.succeeded(output),
        Err(error) => error.into_outcome(context.cost_usd_micros()),
    }
}

/// Makes a panic an error like any other.
pub(crate) fn flat(
    ended: Result<Result<Value, HandlerError>, tokio::task::JoinError>,
) -> Result<Value, HandlerError> {
    match ended {
        Ok(result) => result,
        Err(error) if error.is_panic() => {
            let text = panic_text(error.into_panic());
            Err(HandlerError::retryable(format!("the handler panicked: {text}")))
        }
        Err(_) => Err(HandlerError::retryable("the handler was dropped before its end")),
    }
}

fn panic_text(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&'static str>()
            .map_or_else(|_| "no text".to_owned(), |text| (*text).to_owned()),
    }
}

/// Tells the server, as often as it takes. An outcome that is refused for what it holds becomes
/// a permanent failure that says so; one that is refused because the claim is lost was told.
async fn settle(crew: &Crew, context: &Context, report: Report) -> Answered {
    let (task, step) = (context.task(), context.step());
    let mut report = report;
    loop {
        let error = match offer(crew, context, &report).await {
            Ok(()) => return Answered::Yes,
            Err(error) => error,
        };
        if is_fenced(&error) {
            tracing::warn!(%error, task, step, "the result came too late and is not used");
            return Answered::Yes;
        }
        if !is_refusal(&error) {
            tracing::error!(%error, task, step, "the result could not be reported");
            return Answered::No;
        }
        tracing::error!(%error, task, step, "the result was refused");
        if !matches!(&report, Report::Complete(Outcome::Succeeded { .. })) {
            return Answered::Yes;
        }
        let why = match &error {
            Error::Problem(problem) => problem.to_string(),
            other => other.to_string(),
        };
        report = failed(FailureClass::Permanent, format!("the outcome was refused: {why}"))
            .with_cost(context.cost_usd_micros());
    }
}

/// Says whether the server has read the report and will not take it. Other errors, such as a
/// token that is no longer valid, say nothing about the report.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Problem(problem) if matches!(problem.status, 400 | 409 | 413 | 422))
}

/// Repeats one report until it is answered; gives up only when the worker must go.
async fn offer(crew: &Crew, context: &Context, report: &Report) -> Result<(), Error> {
    let mut backoff = Backoff::new();
    let last_word = last_word(&crew.shutdown);
    tokio::pin!(last_word);
    loop {
        let error = match report_once(&crew.http, context, report).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if !error.is_passing() {
            return Err(error);
        }
        let pause = backoff.pause(retry_after(&error));
        tracing::warn!(%error, task = context.task(), step = context.step(), "result kept");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = &mut last_word => return Err(error),
        }
    }
}

/// Waits until the worker must go, and a moment more.
async fn last_word(shutdown: &Shutdown) {
    shutdown.now.cancelled().await;
    tokio::time::sleep(LAST_WORD).await;
}

async fn report_once(http: &Http, context: &Context, report: &Report) -> Result<(), Error> {
    let holder = context.holder();
    let place = [context.task(), context.step()];
    let call = match report {
        Report::Complete(outcome) => {
            http.call(Method::POST, &fill(paths::COMPLETE, &place)).json(&Complete {
                worker: holder.worker.clone(),
                attempt: holder.attempt,
                epoch: holder.epoch,
                outcome: outcome.clone(),
            })?
        }
        Report::HandBack => {
            http.call(Method::POST, &fill(paths::HAND_BACK, &place)).json(&HandBack {
                worker: holder.worker.clone(),
                attempt: holder.attempt,
                epoch: holder.epoch,
                reason: Some("the worker is shutting down".to_owned()),
            })?
        }
    };
    http.fetch::<Settled>(call).await.map(drop)
}
