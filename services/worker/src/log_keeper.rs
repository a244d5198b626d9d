//! Stores an attempt's log while it grows, and once more, whole, when it ends.

use std::pin::Pin;
use std::time::Duration;

use standfast_domain::ids::TaskId;
use standfast_domain::record::AttemptLog;
use standfast_domain::view::Attempt;
use standfast_engine::EngineError;
use standfast_engine::claims::Claims;
use tokio::sync::watch;

use crate::handlers::{LogSink, LogSnapshot};

/// How often a growing log is stored: often enough to follow, seldom enough to cost little.
const INTERVAL: Duration = Duration::from_secs(1);
/// Tries of the last write against heartbeats that come in between.
const LAST_TRIES: u32 = 5;

/// Runs an attempt's handler and stores the log every second while it grows.
pub(crate) async fn keep_along<T>(
    claims: &Claims,
    task: &TaskId,
    at: &Attempt,
    log: &LogSink,
    mut running: Pin<&mut impl Future<Output = T>>,
) -> T {
    let mut grown = log.watch();
    tokio::select! {
        biased;
        ended = running.as_mut() => return ended,
        _ = grown.changed() => {}
    }
    // Short attempts say nothing, so what follows is not part of theirs.
    let keeping = Box::pin(keep(claims, task, at, log, grown));
    tokio::select! {
        biased;
        ended = running.as_mut() => ended,
        () = keeping => running.await,
    }
}

/// Stores a log that has grown, and does so again whenever it grows, until its claim is lost.
async fn keep(
    claims: &Claims,
    task: &TaskId,
    at: &Attempt,
    log: &LogSink,
    mut grown: watch::Receiver<u64>,
) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        grown.mark_unchanged();
        let record = record(&log.snapshot(), None, false);
        match claims.append_log(task, at, record).await {
            Ok(_) => {}
            Err(EngineError::Refused(_)) => return,
            Err(EngineError::Store(error)) => {
                tracing::debug!(%task, step = %at.step, %error, "log not stored");
            }
        }
        if grown.changed().await.is_err() {
            return;
        }
    }
}

/// Stores the log of an attempt that has ended, which is not empty; a log that cannot be stored
/// costs no result.
pub(crate) async fn finish(claims: &Claims, task: &TaskId, at: &Attempt, log: &LogSink) {
    let snapshot = log.snapshot();
    let mut blob = None;
    if snapshot.dropped_bytes > 0
        && let Some(spool) = &snapshot.spool
    {
        match claims.blobs().put_file(task, spool).await {
            Ok(kept) => blob = Some(kept.name),
            Err(error) => tracing::warn!(%task, step = %at.step, %error, "whole log not kept"),
        }
    }
    for _ in 0..LAST_TRIES {
        let record = record(&snapshot, blob.clone(), true);
        match claims.append_log(task, at, record).await {
            Ok(true) | Err(EngineError::Refused(_)) => return,
            Ok(false) => {}
            Err(EngineError::Store(error)) => {
                tracing::debug!(%task, step = %at.step, %error, "log not stored");
                return;
            }
        }
    }
}

fn record(snapshot: &LogSnapshot, blob: Option<String>, ended: bool) -> AttemptLog {
    AttemptLog {
        head: snapshot.head.clone(),
        tail: snapshot.tail.clone(),
        omitted: snapshot.dropped_bytes,
        blob,
        ended,
    }
}
