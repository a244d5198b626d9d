//! Keeps an attempt's claim alive, on a task of its own, tells what its handler says of its
//! progress, and hears when the attempt is to end.

use std::sync::Arc;
use std::time::Duration;

use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::view::Attempt;
use standfast_engine::EngineError;
use standfast_engine::claims::{Claims, News, Renewed};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::handlers::Pulse;

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

/// One claim's heart.
#[derive(Clone)]
pub(crate) struct Heart {
    pub claims: Arc<Claims>,
    pub task: TaskId,
    pub at: Attempt,
    pub actor: Principal,
    pub pulse: Pulse,
    /// Told when there is news for the attempt: it does not wait for the next beat then.
    pub now: Arc<Notify>,
}

impl Heart {
    /// Renews again and again until dropped. A store that does not answer is asked again and
    /// fences nobody; a refusal ends the attempt at once, for its step may run elsewhere.
    pub(crate) fn start(
        self,
        interval: Duration,
        cancel: CancellationToken,
    ) -> (watch::Receiver<Standing>, AbortOnDropHandle<()>) {
        let (standing, receiver) = watch::channel(Standing::Held);
        let beat = tokio::spawn(async move {
            loop {
                tokio::select! {
                    biased;
                    () = self.now.notified() => {}
                    () = tokio::time::sleep(interval) => {}
                }
                match self.beat().await {
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
                        let step = &self.at.step;
                        tracing::debug!(task = %self.task, %step, %error, "heartbeat not stored");
                    }
                }
            }
        });
        (receiver, AbortOnDropHandle::new(beat))
    }

    /// Tells what the handler said last, if that was not told: the next attempt may go on from
    /// there. What cannot be told costs no result.
    pub(crate) async fn last_words(&self) {
        if self.pulse.untold().details.is_some()
            && let Err(error) = self.beat().await
        {
            tracing::debug!(task = %self.task, step = %self.at.step, %error, "progress not stored");
        }
    }

    async fn beat(&self) -> Result<Renewed, EngineError> {
        let untold = self.pulse.untold();
        let news = News { details: untold.details.clone(), alive: untold.alive };
        let (at, actor) = (self.at.clone(), self.actor.clone());
        let renewed = self.claims.renew(&self.task, at, news, actor).await?;
        self.pulse.told(&untold);
        Ok(renewed)
    }
}
