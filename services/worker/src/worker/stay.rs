//! An attempt in its slot, and those that the worker stays with: each is claimed in the commit
//! that takes the outcome of the one before.

use std::sync::Arc;
use std::time::Duration;

use standfast_domain::ids::Queue;
use standfast_engine::claims::{Claimed, Stay};
use standfast_engine::crash;
use standfast_engine::ports::Acker;
use standfast_engine::recalls::Listener;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{StepMessage, Work, Worker};
use crate::attempt::Ended;
use crate::gauges::Came;

/// What an attempt holds of its worker.
pub(super) struct Held<'w> {
    pub acker: Box<dyn Acker>,
    pub slot: OwnedSemaphorePermit,
    pub listener: Listener<'w>,
}

/// An attempt that begins: when it was asked for, and what makes its heart beat at once.
struct Running {
    claimed: Box<Claimed>,
    asked: Duration,
    news: Arc<Notify>,
}

async fn acknowledge(acker: Box<dyn Acker>) {
    crash::point("ack.before");
    acker.ack().await;
    crash::point("ack.after");
}

impl Worker {
    /// Runs an attempt, and those that the worker stays with. The delivery woke for the first: it
    /// is acked as soon as that one's result is stored or refused.
    pub(super) async fn stay<'w>(
        &self,
        queue: &Queue,
        (claimed, asked): (Box<Claimed>, Duration),
        Held { acker, slot, listener }: Held<'w>,
        work: &'w Work,
    ) {
        let (mut acker, mut left) = (Some(acker), self.settings.stay);
        let mut next = Some((claimed, asked, listener));
        while let Some((claimed, asked, listener)) = next.take() {
            let told = if work.shutdown.is_cancelled() {
                // Claimed while the shutdown began: nothing new starts after it.
                Box::pin(work.bench.hand_back(&claimed)).await
            } else {
                let stay = (left > 0).then(|| self.terms(queue));
                left = left.saturating_sub(1);
                // Counted from before it was claimed: how old the answer is, nobody knows. Heard
                // from then on, too: a stop may come before the answer.
                let began = self.claims.engine().clock().monotonic();
                let ahead = work.recalls.listen_ahead(&claimed.task);
                let running = Running { claimed, asked, news: listener.beat.clone() };
                let ended = self.attempt(queue, running, stay, work).await;
                next = ended.next.map(|claimed| {
                    ahead.settle(&claimed.step, claimed.attempt);
                    (claimed, began, ahead)
                });
                ended.told
            };
            let acked = acker.take_if(|_| told).map(acknowledge);
            match (acked, &next) {
                (Some(acked), Some(_)) => drop(work.running.spawn(acked)),
                (Some(acked), None) => {
                    drop(slot); // the next attempt need not wait for the ack
                    return acked.await;
                }
                (None, _) => {}
            }
        }
    }

    async fn attempt(
        &self,
        queue: &Queue,
        Running { claimed, asked, news }: Running,
        stay: Option<Stay>,
        work: &Work,
    ) -> Ended {
        let Some(handler) = self.handlers.get(claimed.handler.as_str()) else {
            return Ended { told: false, came: Came::GivenUp, next: None }; // it was asked for
        };
        let (task, step) = (claimed.task.clone(), claimed.step.clone());
        let (epoch, attempt) = (claimed.epoch, claimed.attempt);
        let place = StepMessage { task, step, epoch, attempt };
        self.gauges.started(queue);
        work.here().insert(place.clone());
        let ended = work.bench.run(claimed, asked, news, handler, stay).await;
        work.here().remove(&place);
        self.gauges.ended(queue, ended.came);
        ended
    }

    /// Says on what terms this worker stays with a task.
    fn terms(&self, queue: &Queue) -> Stay {
        Stay {
            queue: queue.clone(),
            worker: self.settings.worker.clone(),
            principal: self.actor(),
            length: self.settings.claim_length,
            handlers: self.names.clone(),
        }
    }
}
