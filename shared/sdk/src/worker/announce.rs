//! Tells the api what this worker can do, again and again, and that it leaves.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use standfast_protocol::claims::{Announce, Announced, AnnouncedHandler};
use standfast_protocol::paths;

use super::Crew;
use crate::backoff::Backoff;
use crate::error::Error;
use crate::http::{Http, retry_after};

/// Shortest interval that is taken from the api.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// Shortest time between becoming full or free and saying so: short attempts make a worker both
/// many times a second.
const LOAD_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for the answer to a farewell.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Announces until the api answers. Gives when to do it again, or nothing when the worker is
/// told to end before that.
pub(crate) async fn first(crew: &Crew) -> Result<Option<Duration>, Error> {
    let mut backoff = Backoff::new();
    loop {
        let error = tokio::select! {
            answer = once(&crew.http, crew, false) => match answer {
                Ok(again) => return Ok(Some(again)),
                Err(error) => error,
            },
            () = crew.shutdown.drain.cancelled() => return Ok(None),
        };
        if !error.is_passing() {
            return Err(error);
        }
        tracing::warn!(%error, "the api does not answer yet");
        tokio::select! {
            () = tokio::time::sleep(backoff.pause(retry_after(&error))) => {}
            () = crew.shutdown.drain.cancelled() => return Ok(None),
        }
    }
}

/// Announces again before the api forgets, and soon after the worker has become full or has room
/// again, until this is dropped.
pub(crate) async fn repeat(crew: Arc<Crew>, mut again: Duration) {
    let mut told_full = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(again) => {}
            () = loaded(&crew, told_full) => {}
            () = crew.shutdown.drain.cancelled() => return,
        }
        told_full = crew.is_full();
        match once(&crew.http, &crew, false).await {
            Ok(next) => again = next,
            Err(error) if error.is_passing() => {
                tracing::warn!(%error, "the api does not answer");
                again = AGAIN_MIN;
            }
            Err(error) => return crew.give_up(error),
        }
    }
}

/// Waits until the worker has become full or has room again, and a little longer.
async fn loaded(crew: &Crew, told_full: bool) {
    while crew.is_full() == told_full {
        crew.loaded.notified().await;
    }
    tokio::time::sleep(LOAD_PAUSE).await;
}

/// Says that the worker leaves, so that the api ends its long polls and lets nobody wait for it.
pub(crate) async fn leave(crew: &Crew) {
    let farewell = tokio::time::timeout(LEAVE_TIMEOUT, once(&crew.http, crew, true)).await;
    if !matches!(farewell, Ok(Ok(_))) {
        tracing::debug!("the api did not take leave of the worker");
    }
}

async fn once(http: &Http, crew: &Crew, leaving: bool) -> Result<Duration, Error> {
    let handlers = crew.handlers.keys();
    let body = Announce {
        worker: crew.id.clone(),
        queues: crew.queues.clone(),
        handlers: handlers.map(|name| AnnouncedHandler { name: name.clone() }).collect(),
        concurrency: Some(u32::try_from(crew.concurrency).unwrap_or(u32::MAX)),
        running: Some(crew.running()),
        leaving,
    };
    let call = http.call(Method::POST, paths::WORKERS).json(&body)?;
    let answer: Announced = http.fetch(call).await?;
    Ok(Duration::from_millis(answer.again_ms).max(AGAIN_MIN))
}
