//! The loop: as many attempts at a time as the worker has room for.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Deserialize;
use standfast_domain::ids::{HandlerName, Principal, Queue, StepId, TaskId, WorkerId};
use standfast_domain::time::Span;
use standfast_engine::EngineError;
use standfast_engine::claims::{ClaimAsk, Claimed, Claims};
use standfast_engine::ports::{BrokerError, Delivery, Source, StoreError, Subscription};
use standfast_engine::registry::{ANNOUNCEMENT, Registry};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::Bench;
use crate::builtin::BuiltinHandlers;
use crate::handlers::Secrets;

/// The wait between two tries of a claim while the store does not answer.
const CLAIM_AGAIN: Duration = Duration::from_millis(500);

/// What a worker is told at its start.
pub struct Settings {
    /// Its id; new at each start of the process.
    pub worker: WorkerId,
    /// Queues it takes from.
    pub queues: Vec<Queue>,
    /// Attempts it runs at a time, over all its queues.
    pub concurrency: u16,
    /// How long attempts may go on after the shutdown began, before they are handed back.
    pub grace: Duration,
    /// How long a claim lasts unless renewed.
    pub claim_length: Span,
    /// Where attempts have their directories.
    pub attempts: PathBuf,
    /// Where secrets come from.
    pub secrets: Arc<dyn Secrets>,
}

/// Counts for metrics and health.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Attempts that run now.
    pub running: AtomicU64,
    /// Attempts started since the process started.
    pub starts: AtomicU64,
    /// Deliveries that woke for nothing.
    pub spent: AtomicU64,
    /// Deliveries that could not be read.
    pub malformed: AtomicU64,
    /// Subscriptions that the broker has now.
    pub subscribed: AtomicU64,
    /// True while the store does not answer and deliveries are held.
    pub held: AtomicU64,
}

/// A worker process.
pub struct Worker {
    settings: Settings,
    claims: Arc<Claims>,
    registry: Arc<Registry>,
    handlers: BuiltinHandlers,
    names: BTreeSet<HandlerName>,
    gauges: Arc<Gauges>,
}

/// A step message's body.
#[derive(Deserialize)]
struct StepMessage {
    task: TaskId,
    step: StepId,
    attempt: u32,
}

/// What a delivery came to.
enum Woken {
    Attempt(Box<Claimed>),
    Nothing,
    ShuttingDown,
}

impl Worker {
    /// Makes a worker; nothing happens until [`Worker::run`].
    pub fn new(
        settings: Settings,
        claims: Arc<Claims>,
        registry: Arc<Registry>,
        handlers: BuiltinHandlers,
    ) -> Self {
        let names = handlers.names().filter_map(|name| HandlerName::new(name).ok()).collect();
        let gauges = Arc::new(Gauges::default());
        Self { settings, claims, registry, handlers, names, gauges }
    }

    /// Gives the counts.
    pub fn gauges(&self) -> Arc<Gauges> {
        self.gauges.clone()
    }

    /// Works until `shutdown`; then takes nothing new, waits for the grace period, hands back
    /// what still runs. `hurry` cuts the grace period short.
    pub async fn run(
        self,
        shutdown: CancellationToken,
        hurry: CancellationToken,
    ) -> Result<(), BrokerError> {
        let (hand_back, give_up) = (CancellationToken::new(), CancellationToken::new());
        let bench = Arc::new(Bench {
            claims: self.claims.clone(),
            worker: self.settings.worker.clone(),
            actor: Principal::new(format!("worker:{}", self.settings.worker))
                .expect("a worker's id is a name"),
            attempts: self.settings.attempts.clone(),
            secrets: self.settings.secrets.clone(),
            hand_back: hand_back.clone(),
            give_up: give_up.clone(),
        });
        let worker = Arc::new(self);
        let slots = Arc::new(Semaphore::new(usize::from(worker.settings.concurrency)));
        let running = TaskTracker::new();
        let broker = worker.claims.engine().clone();
        let mut loops = Vec::new();
        for queue in &worker.settings.queues {
            let source = Source::Steps(queue.clone());
            broker.broker().declare(queue).await?;
            let subscription =
                broker.broker().subscribe(source, worker.settings.concurrency).await?;
            loops.push(tokio::spawn(worker.clone().consume(
                subscription,
                bench.clone(),
                slots.clone(),
                running.clone(),
                shutdown.clone(),
            )));
        }
        let announcing = tokio::spawn(worker.clone().announce(shutdown.clone()));
        let mut subscriptions = Vec::new();
        for consuming in loops {
            subscriptions.extend(consuming.await); // a panic there was reported by the runtime
        }
        running.close();
        tokio::select! {
            () = running.wait() => {}
            () = tokio::time::sleep(worker.settings.grace) => {}
            () = hurry.cancelled() => {}
        }
        hand_back.cancel();
        tokio::select! {
            () = running.wait() => {}
            () = tokio::time::sleep(worker.settings.grace.max(Duration::from_secs(10))) => {}
        }
        give_up.cancel();
        for mut subscription in subscriptions {
            subscription.close().await; // now nothing of it is held by an attempt
        }
        announcing.abort();
        if let Err(error) = worker.registry.withdraw(&worker.settings.worker).await {
            tracing::debug!(%error, "announcement not withdrawn; it expires");
        }
        Ok(())
    }

    /// Says again and again that this worker lives.
    async fn announce(self: Arc<Self>, shutdown: CancellationToken) {
        let names: Vec<HandlerName> = self.names.iter().cloned().collect();
        loop {
            let queues = &self.settings.queues;
            let announced = self.registry.announce(&self.settings.worker, queues, &names).await;
            if let Err(error) = announced {
                tracing::debug!(%error, "worker not announced");
            }
            tokio::select! {
                () = tokio::time::sleep(ANNOUNCEMENT.to_std() / 3) => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn consume(
        self: Arc<Self>,
        mut subscription: Box<dyn Subscription>,
        bench: Arc<Bench>,
        slots: Arc<Semaphore>,
        running: TaskTracker,
        shutdown: CancellationToken,
    ) -> Box<dyn Subscription> {
        loop {
            let slot = tokio::select! {
                slot = slots.clone().acquire_owned() => slot.expect("never closed"),
                () = shutdown.cancelled() => break,
            };
            let delivery = tokio::select! {
                delivery = subscription.next() => delivery,
                () = shutdown.cancelled() => break,
            };
            let Some(delivery) = delivery else { break };
            let (worker, bench, shutdown) = (self.clone(), bench.clone(), shutdown.clone());
            running.spawn(async move { worker.take(delivery, &bench, slot, &shutdown).await });
        }
        subscription
    }

    /// Handles one delivery: claims, runs, tells, acknowledges.
    async fn take(
        &self,
        delivery: Delivery,
        bench: &Bench,
        slot: OwnedSemaphorePermit,
        shutdown: &CancellationToken,
    ) {
        let Ok(message) = serde_json::from_slice::<StepMessage>(&delivery.body) else {
            self.gauges.malformed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(message_id = ?delivery.message_id, "step message cannot be read");
            delivery.acker.dead_letter().await;
            return;
        };
        match self.wake(&message, shutdown).await {
            Woken::Nothing => {
                self.gauges.spent.fetch_add(1, Ordering::Relaxed);
                delivery.acker.ack().await;
            }
            Woken::ShuttingDown => {}
            Woken::Attempt(claimed) => {
                let Some(handler) = self.handlers.get(claimed.handler.as_str()) else { return };
                self.gauges.starts.fetch_add(1, Ordering::Relaxed);
                self.gauges.running.fetch_add(1, Ordering::Relaxed);
                let told = bench.run(*claimed, handler).await;
                self.gauges.running.fetch_sub(1, Ordering::Relaxed);
                if told {
                    delivery.acker.ack().await;
                }
            }
        }
        drop(slot);
    }

    /// Claims what a message speaks of; holds on while the store does not answer.
    async fn wake(&self, message: &StepMessage, shutdown: &CancellationToken) -> Woken {
        let ask = ClaimAsk {
            task: message.task.clone(),
            step: message.step.clone(),
            attempt: Some(message.attempt),
            worker: self.settings.worker.clone(),
            principal: Principal::system(),
            length: self.settings.claim_length,
            handlers: Some(self.names.clone()),
        };
        loop {
            if shutdown.is_cancelled() {
                return Woken::ShuttingDown;
            }
            match self.claims.claim(&ask).await {
                Ok(claimed) => {
                    self.gauges.held.store(0, Ordering::Relaxed);
                    return Woken::Attempt(Box::new(claimed));
                }
                Err(EngineError::Refused(refusal)) => {
                    tracing::debug!(task = %message.task, step = %message.step, %refusal,
                        "woken for nothing");
                    return Woken::Nothing;
                }
                Err(EngineError::Store(StoreError::Corrupt(error))) => {
                    tracing::error!(task = %message.task, step = %message.step, error,
                        "step left alone; a person must look");
                    return Woken::Nothing;
                }
                Err(EngineError::Store(error)) => {
                    if self.gauges.held.swap(1, Ordering::Relaxed) == 0 {
                        tracing::warn!(%error, "deliveries held until the store answers");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(CLAIM_AGAIN) => {}
                        () = shutdown.cancelled() => return Woken::ShuttingDown,
                    }
                }
            }
        }
    }
}
