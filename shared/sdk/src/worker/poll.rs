//! Receives steps by long polls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use standfast_protocol::amqp::StepMessage;
use standfast_protocol::claims::{Claim, ClaimRequest};
use standfast_protocol::paths;

use super::{Crew, attempt};
use crate::backoff::Backoff;
use crate::client::waiting;
use crate::error::Error;
use crate::http::{read_json, retry_after};

/// How long a poll waits: short of the grace period, since a worker that ends waits for it.
const WAIT_MS: u64 = 10_000;
/// How long a poll waits while it keeps another queue from the only slot.
const WAIT_SHARED_MS: u64 = 1_000;
/// Shortest time from one poll to the next when there is nothing to claim, whatever the api or
/// a proxy before it makes of the wait.
const POLL_MIN: Duration = Duration::from_millis(100);

/// Claims and runs steps of one queue until the worker is told to end.
pub(crate) async fn receive(crew: Arc<Crew>, queue: String) {
    let shared = crew.queues.len() > crew.concurrency;
    let wait_ms = if shared { WAIT_SHARED_MS } else { WAIT_MS };
    let mut backoff = Backoff::new();
    while !crew.shutdown.drain.is_cancelled() {
        let slots = Arc::clone(&crew.slots);
        let slot = tokio::select! {
            slot = slots.acquire_owned() => slot,
            () = crew.shutdown.drain.cancelled() => return,
        };
        let began = Instant::now();
        // The call is not dropped when the worker is told to end: it may have claimed already.
        let answer = tokio::select! {
            answer = claim(&crew, &queue, wait_ms, None) => answer,
            () = crew.shutdown.now.cancelled() => return,
        };
        match answer {
            Ok(Some(claim)) => {
                backoff.reset();
                let crew_of_attempt = Arc::clone(&crew);
                crew.attempts.spawn(async move {
                    let news = Arc::default();
                    let _word = crew_of_attempt.heart.listen(&crew_of_attempt.id, &claim, &news);
                    attempt::run(&crew_of_attempt, claim, news).await;
                    drop(slot);
                });
            }
            Ok(None) => {
                backoff.reset();
                drop(slot);
                pause(&crew, POLL_MIN.saturating_sub(began.elapsed())).await;
            }
            Err(error) if error.is_passing() => {
                drop(slot);
                tracing::warn!(%error, queue, "the api gives no claims");
                pause(&crew, backoff.pause(retry_after(&error))).await;
            }
            Err(error) => return crew.give_up(error),
        }
    }
}

/// Waits, but not when the worker is told to end.
pub(crate) async fn pause(crew: &Crew, span: Duration) {
    tokio::select! {
        () = tokio::time::sleep(span) => {}
        () = crew.shutdown.drain.cancelled() => {}
    }
}

/// Asks once for a claim, of any step or of the one that a message spoke of.
pub(crate) async fn claim(
    crew: &Crew,
    queue: &str,
    wait_ms: u64,
    step: Option<StepMessage>,
) -> Result<Option<Claim>, Error> {
    let body = ClaimRequest {
        worker: crew.id.clone(),
        queue: queue.to_owned(),
        handlers: crew.handler_names(),
        wait_ms,
        step,
    };
    let call = crew.http.call(Method::POST, paths::CLAIMS).json(&body)?;
    let response = crew.http.send(call.timeout(Some(waiting(Some(wait_ms))))).await?;
    if response.status() == StatusCode::NO_CONTENT {
        return Ok(None);
    }
    let url = response.url().clone();
    read_json(&url, response).await.map(Some)
}
