//! Keeps an attempt's claim alive, on a task of its own, and hears when the attempt is to end.

use std::sync::Arc;
use std::time::Duration;

use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::view::Attempt;
use standfast_engine::EngineError;
use standfast_engine::claims::{Claims, Renewed};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What became of a claim while its attempt ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is the worker's.
    Held,
    /// The task is ending; the attempt is to end and to say so.
    ToEnd,
    /// It is another's; whatever the attempt gives is refused.
    Lost,
}

/// Renews every third of the claim's length until dropped. A store that does not answer is
/// asked again and fences nobody.
pub(crate) fn start(
    claims: Arc<Claims>,
    task: TaskId,
    at: Attempt,
    actor: Principal,
    length: Duration,
    cancel: CancellationToken,
) -> (watch::Receiver<Standing>, tokio_util::task::AbortOnDropHandle<()>) {
    let (standing, receiver) = watch::channel(Standing::Held);
    let beat = tokio::spawn(async move {
        loop {
            tokio::time::sleep(length / 3).await;
            match claims.renew(&task, at.clone(), None, actor.clone()).await {
                Ok(Renewed { stop: false, .. }) => {}
                Ok(Renewed { stop: true, .. }) => {
                    let _ = standing.send(Standing::ToEnd); // the attempt may be over
                    cancel.cancel();
                }
                Err(EngineError::Refused(_)) => {
                    let _ = standing.send(Standing::Lost); // likewise
                    cancel.cancel();
                    return;
                }
                Err(EngineError::Store(error)) => {
                    tracing::debug!(%task, step = %at.step, %error, "heartbeat not stored");
                }
            }
        }
    });
    (receiver, tokio_util::task::AbortOnDropHandle::new(beat))
}
