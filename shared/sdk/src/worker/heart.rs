//! Keeps claims alive from a thread of its own.
//!
//! A handler may block the thread it runs on, and with it every task there. Heartbeats must not
//! wait for that, so they have their own thread, runtime and connections. Logs travel the same
//! way. What the server answers comes back as the [`Course`] of the attempt.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use standfast_protocol::claims::{Claim, Heartbeat, HeartbeatAnswer, LogAppend, LogAppended};
use standfast_protocol::headers::PLAIN_TEXT;
use standfast_protocol::paths::{self, fill};
use standfast_protocol::problem::ProblemKind;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::context::Context;
use super::word;
use crate::client::query_pairs;
use crate::error::Error;
use crate::http::Http;

/// Longest wait for the answer to one heartbeat; the next one is then due anyway.
const BEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// Shortest interval that is taken from a claim, so that a wrong one does not become a flood.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
/// How long lines are gathered before they are sent.
const LOG_GATHER: Duration = Duration::from_millis(300);

/// Where an attempt is going, as the server has said it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// On.
    Holding,
    /// To an end: the task is being stopped, or the attempt's time is over.
    Stopping,
    /// Nowhere: the claim is no longer held, and nothing of it will be accepted.
    Fenced,
}

/// The thread. Ends when this is dropped.
pub(crate) struct Heart {
    runtime: Handle,
    http: Http,
    _alive: oneshot::Sender<()>,
}

/// Keeps one claim alive until it is dropped.
pub(crate) struct Beat {
    pub(crate) course: watch::Receiver<Course>,
    end: CancellationToken,
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl Heart {
    pub(crate) fn start(http: &Http) -> Result<Self, Error> {
        let setup = |error: std::io::Error| Error::Setup(format!("start a thread: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(setup)?;
        let handle = runtime.handle().clone();
        let (alive, gone) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("standfast-heart".to_owned())
            .spawn(move || drop(runtime.block_on(gone)))
            .map_err(setup)?;
        Ok(Self { runtime: handle, http: http.twin()?, _alive: alive })
    }

    /// Begins to keep a claim alive and to send its log; beats at once when there is news.
    pub(crate) fn beat(&self, context: &Context, news: Arc<Notify>) -> Beat {
        let (sender, course) = watch::channel(Course::Holding);
        let end = CancellationToken::new();
        let beat = keep(self.http.clone(), context.clone(), sender, news);
        self.runtime.spawn(end.clone().run_until_cancelled_owned(beat));
        let log = follow_log(self.http.clone(), context.clone());
        self.runtime.spawn(end.clone().run_until_cancelled_owned(log));
        Beat { course, end }
    }

    /// Begins to wait for word that an attempt is to end, until what is given is dropped. Word
    /// makes its heart beat.
    pub(crate) fn listen(&self, worker: &str, claim: &Claim, news: &Arc<Notify>) -> DropGuard {
        let end = CancellationToken::new();
        let listening = word::follow(self.http.clone(), worker, claim, Arc::clone(news));
        self.runtime.spawn(end.clone().run_until_cancelled_owned(listening));
        end.drop_guard()
    }
}

/// Sends heartbeats until the claim is lost. An api that does not answer fences nobody: the
/// attempt goes on, and whether it still holds is decided when the api is back.
async fn keep(http: Http, context: Context, course: watch::Sender<Course>, news: Arc<Notify>) {
    let interval = Duration::from_millis(context.claim().heartbeat_ms).max(INTERVAL_MIN);
    let mut silent = false;
    loop {
        tokio::select! {
            biased;
            () = news.notified() => {}
            () = tokio::time::sleep(interval) => {}
        }
        match beat_once(&http, &context).await {
            Ok(answer) => {
                silent = false;
                if answer.stop && course.send_replace(Course::Stopping) == Course::Holding {
                    context.cancellation().cancel();
                }
            }
            Err(error) if is_fenced(&error) => {
                course.send_replace(Course::Fenced);
                context.cancellation().cancel();
                return;
            }
            Err(error) => {
                if !silent {
                    let (task, step) = (context.task(), context.step());
                    tracing::warn!(%error, task, step, "heartbeats do not get through");
                }
                silent = true;
            }
        }
    }
}

/// Tells what the handler said last, if that was not told: the next attempt may go on from
/// there.
pub(crate) async fn last_words(http: &Http, context: &Context) -> Result<(), Error> {
    match context.untold() {
        (Some(_), _) => beat_once(http, context).await.map(drop),
        (None, _) => Ok(()),
    }
}

async fn beat_once(http: &Http, context: &Context) -> Result<HeartbeatAnswer, Error> {
    let holder = context.holder();
    let (details, beats) = context.untold();
    let body = Heartbeat {
        worker: holder.worker.clone(),
        attempt: holder.attempt,
        epoch: holder.epoch,
        details,
    };
    let path = fill(paths::HEARTBEAT, &[context.task(), context.step()]);
    let call = http.call(Method::POST, &path).timeout(Some(BEAT_TIMEOUT)).json(&body)?;
    let answer = http.fetch(call).await?;
    context.told(beats);
    Ok(answer)
}

/// Says whether the server has said that the claim is not held. A task that is not there is one
/// whose records are gone, and the claim with them.
pub(crate) fn is_fenced(error: &Error) -> bool {
    matches!(error.problem(), Some(ProblemKind::Fenced | ProblemKind::NotFound))
}

async fn follow_log(http: Http, context: Context) {
    loop {
        context.log_buffer().written().await;
        tokio::time::sleep(LOG_GATHER).await;
        if let Err(error) = send_log(&http, &context).await {
            tracing::debug!(%error, "the log will be sent with the next lines");
        }
    }
}

/// Sends all of the log that is not sent yet.
pub(crate) async fn send_log(http: &Http, context: &Context) -> Result<(), Error> {
    let path = fill(paths::CLAIM_LOG, &[context.task(), context.step()]);
    let holder = context.holder();
    let _sender = context.log_buffer().sender().await;
    while let Some((offset, text)) = context.log_buffer().next() {
        let query = LogAppend {
            worker: holder.worker.clone(),
            attempt: holder.attempt,
            epoch: holder.epoch,
            offset,
        };
        let bytes = text.len();
        let call = http.call(Method::POST, &path).query(query_pairs(&query)?);
        let call = call.timeout(Some(BEAT_TIMEOUT)).body(PLAIN_TEXT, text);
        http.fetch::<LogAppended>(call).await?;
        context.log_buffer().sent(bytes);
    }
    Ok(())
}
