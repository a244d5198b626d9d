//! Waits over HTTP for word that an attempt is to end, so that its next heartbeat is not the
//! first to hear of a stop.
//!
//! Word is never believed: it makes the attempt's heart beat now, and the api's answer to that is
//! what counts. Without word heartbeats do alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use standfast_protocol::claims::{Claim, ControlAnswer, ControlQuery};
use standfast_protocol::limits::WAIT_MS_MAX;
use standfast_protocol::paths::{self, fill};
use tokio::sync::Notify;

use super::heart::is_fenced;
use crate::backoff::Backoff;
use crate::client::{query_pairs, waiting};
use crate::error::Error;
use crate::http::{Http, Repeat, retry_after};

/// Shortest time from one wait to the next, whatever the api or a proxy before it makes of it.
const AGAIN_MIN: Duration = Duration::from_secs(1);

/// Waits for word of one attempt, and passes it on once: what follows, heartbeats tell.
pub(super) fn follow(
    http: Http,
    worker: &str,
    claim: &Claim,
    news: Arc<Notify>,
) -> impl Future<Output = ()> + Send + use<> {
    let path = fill(paths::CONTROL, &[&claim.task, &claim.step]);
    let query = ControlQuery {
        worker: worker.to_owned(),
        attempt: claim.attempt,
        epoch: claim.epoch,
        wait_ms: Some(WAIT_MS_MAX),
    };
    async move {
        let mut backoff = Backoff::new();
        loop {
            let began = Instant::now();
            let pause = match wait_once(&http, &path, &query).await {
                Ok(ControlAnswer { stop: true }) => return news.notify_one(),
                Ok(ControlAnswer { stop: false }) => {
                    backoff.reset();
                    AGAIN_MIN.saturating_sub(began.elapsed())
                }
                // A claim that is lost; or an api that is older than this, which a heartbeat
                // tells from it.
                Err(error) if is_fenced(&error) => return news.notify_one(),
                Err(error) if error.is_passing() => backoff.pause(retry_after(&error)),
                Err(error) => {
                    tracing::debug!(%error, "stops are heard of by heartbeats alone");
                    return;
                }
            };
            tokio::time::sleep(pause).await;
        }
    }
}

async fn wait_once(http: &Http, path: &str, query: &ControlQuery) -> Result<ControlAnswer, Error> {
    let call = http.call(Method::GET, path).query(query_pairs(query)?).repeat(Repeat::Never);
    http.fetch(call.timeout(Some(waiting(query.wait_ms)))).await
}
