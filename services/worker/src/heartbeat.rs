//! Keeps an attempt's claim alive beside its course, tells what its handler says of its progress,
//! and hears when the attempt is to end. Its handler runs elsewhere, so one that blocks its
//! thread does not keep the heart from beating.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::time::Time;
use standfast_domain::view::Attempt;
use standfast_engine::EngineError;
use standfast_engine::claims::{Claims, News, Renewed};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::handlers::Pulse;

/// What became of a claim while its attempt ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is the worker's.
    #[default]
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
    pub held: HeldUntil,
    pub standing: Shown,
}

/// Shows what the heart has heard of its claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown(Arc<Mutex<Standing>>);

impl Shown {
    pub(crate) fn get(&self) -> Standing {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, standing: Standing) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }
}

/// Until when a claim surely holds, on the local monotonic clock: before that, nobody takes the
/// attempt over, whatever the store's clock does.
#[derive(Clone, Debug)]
pub(crate) struct HeldUntil {
    length: Duration,
    until: Arc<Mutex<Duration>>,
}

impl HeldUntil {
    /// Takes a claim's length and when it was asked for. How old the time in a late answer is,
    /// nobody knows, so it counts from the asking.
    pub(crate) fn new(length: Duration, asked: Duration) -> Self {
        Self { length, until: Arc::new(Mutex::new(asked + length)) }
    }

    /// Notes a renewal: when it was asked for, when its answer came, and how much of the claim
    /// that answer left, which the end of the attempt's time may cut.
    fn renewed(&self, asked: Duration, answered: Duration, left: Duration) {
        let until = (asked + self.length).min(answered + left);
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Gives the moment.
    pub(crate) fn get(&self) -> Duration {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if less than one heartbeat's time is left.
    pub(crate) fn runs_out(&self, now: Duration) -> bool {
        now + self.length / 3 >= self.get()
    }
}

impl Heart {
    /// Renews again and again while an attempt takes its course. A store that does not answer is
    /// asked again and fences nobody; a refusal ends the attempt at once, for its step may run
    /// elsewhere.
    pub(crate) async fn beat_along<T>(
        &self,
        interval: Duration,
        cancel: &CancellationToken,
        mut course: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        loop {
            tokio::select! {
                biased;
                ended = course.as_mut() => return ended,
                () = self.now.notified() => {}
                () = tokio::time::sleep(interval) => {}
            }
            // Most attempts end before the first beat, so its future is not part of theirs.
            let beat = Box::pin(self.beat());
            let renewed = tokio::select! {
                biased;
                ended = course.as_mut() => return ended,
                renewed = beat => renewed,
            };
            match renewed {
                Ok(Renewed { stop: false, .. }) => {}
                Ok(Renewed { stop: true, .. }) => {
                    self.standing.set(Standing::ToEnd);
                    cancel.cancel();
                }
                Err(EngineError::Refused(_)) => {
                    self.standing.set(Standing::Lost);
                    cancel.cancel();
                    return course.await;
                }
                Err(EngineError::Store(error)) => {
                    let step = &self.at.step;
                    tracing::debug!(task = %self.task, %step, %error, "heartbeat not stored");
                }
            }
        }
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

    /// Renews the claim once and tells what was not told.
    pub(crate) async fn beat(&self) -> Result<Renewed, EngineError> {
        let clock = self.claims.engine().clock();
        let asked = clock.monotonic();
        let untold = self.pulse.untold();
        let news = News { details: untold.details.clone(), alive: untold.alive };
        let (at, actor) = (self.at.clone(), self.actor.clone());
        let renewed = self.claims.renew(&self.task, at, news, actor).await?;
        self.pulse.told(&untold);
        let now: Time = self.claims.engine().now().await?;
        let left = renewed.expires_at.since(now).to_std();
        self.held.renewed(asked, clock.monotonic(), left);
        Ok(renewed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_claim_holds_for_its_length_from_when_it_was_asked_for() {
        let held = HeldUntil::new(s(30), s(100));
        assert_eq!(held.get(), s(130));
        held.renewed(s(110), s(125), s(29));
        assert_eq!(held.get(), s(140), "the answer was slow, and nobody knows on which way");
    }

    #[test]
    fn the_end_of_an_attempts_time_cuts_its_claim() {
        let held = HeldUntil::new(s(30), s(100));
        held.renewed(s(110), s(111), s(4));
        assert_eq!(held.get(), s(115));
    }

    #[test]
    fn a_claim_runs_out_when_a_heartbeat_is_overdue() {
        let held = HeldUntil::new(s(30), s(100));
        assert!(!held.runs_out(s(119)));
        assert!(held.runs_out(s(120)));
    }
}
