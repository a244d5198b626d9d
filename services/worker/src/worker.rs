//! The loop: as many attempts at a time as the worker has room for.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Deserialize;
use standfast_domain::ids::{HandlerName, Principal, Queue, StepId, TaskId, WorkerId};
use standfast_domain::time::Span;
use standfast_engine::EngineError;
use standfast_engine::claims::{ClaimAsk, Claimed, Claims};
use standfast_engine::ports::{BrokerError, Delivery, Source, StoreError, Subscription};
use standfast_engine::registry::{ANNOUNCEMENT, Registry};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::attempt::Bench;
use crate::builtin::BuiltinHandlers;
use crate::directories::{Directories, LocalDirectories};
use crate::gauges::Gauges;
use crate::handlers::Secrets;

/// The wait between two tries of a claim while the store does not answer.
const CLAIM_AGAIN: Duration = Duration::from_millis(500);
/// How often each queue's loop says for health that it lives.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often a worker that follows looks for new queues, besides when a task has changed.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// The shortest pause between two looks for new queues: tasks may change often.
const FOLLOW_PAUSE: Duration = Duration::from_millis(20);

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

/// A worker process.
pub struct Worker {
    settings: Settings,
    claims: Arc<Claims>,
    registry: Arc<Registry>,
    handlers: BuiltinHandlers,
    names: BTreeSet<HandlerName>,
    gauges: Arc<Gauges>,
    /// Told when the worker takes from one queue more.
    subscribed: Notify,
    follows: bool,
    directories: Arc<dyn Directories>,
}

/// What the loops of all queues share.
struct Work {
    worker: Arc<Worker>,
    bench: Bench,
    slots: Arc<Semaphore>,
    running: TaskTracker,
    shutdown: CancellationToken,
}

/// The loop of each queue; at its end it gives the subscription back, to be closed last.
type Loops = BTreeMap<Queue, JoinHandle<Box<dyn Subscription>>>;

/// A step message's body.
#[derive(Deserialize)]
struct StepMessage {
    task: TaskId,
    step: StepId,
    attempt: u32,
}

/// What a delivery came to.
enum Woken {
    /// Claimed, and when that was asked for, by the local clock.
    Attempt(Box<Claimed>, Duration),
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
        let subscribed = Notify::new();
        let follows = false;
        let (attempts, blobs) = (settings.attempts.clone(), claims.blobs().clone());
        let directories = Arc::new(LocalDirectories::new(attempts, blobs));
        Self {
            settings,
            claims,
            registry,
            handlers,
            names,
            gauges,
            subscribed,
            follows,
            directories,
        }
    }

    /// Makes it also take from every queue that a plan has named or will name: for the one
    /// worker of an installation.
    pub fn following_queues(self) -> Self {
        Self { follows: true, ..self }
    }

    /// Makes it keep the directories of attempts elsewhere than in the local file system.
    pub fn with_directories(self, directories: Arc<dyn Directories>) -> Self {
        Self { directories, ..self }
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
        let bench = Bench {
            claims: self.claims.clone(),
            worker: self.settings.worker.clone(),
            actor: Principal::new(format!("worker:{}", self.settings.worker))
                .expect("a worker's id is a name"),
            directories: self.directories.clone(),
            secrets: self.settings.secrets.clone(),
            hand_back: hand_back.clone(),
            give_up: give_up.clone(),
        };
        let worker = Arc::new(self);
        let slots = Arc::new(Semaphore::new(usize::from(worker.settings.concurrency)));
        let running = TaskTracker::new();
        let work = Arc::new(Work {
            worker: worker.clone(),
            bench,
            slots,
            running: running.clone(),
            shutdown: shutdown.clone(),
        });
        let mut loops = Loops::new();
        for queue in &worker.settings.queues {
            loops.insert(queue.clone(), work.clone().start(queue).await?);
        }
        let announcing = tokio::spawn(worker.clone().announce(shutdown.clone()));
        if worker.follows {
            work.follow(&mut loops).await;
        }
        let mut subscriptions = Vec::new();
        for consuming in loops.into_values() {
            subscriptions.extend(consuming.await); // a panic there was reported by the runtime
        }
        running.close();
        tokio::select! {
            biased;
            () = running.wait() => {}
            () = hurry.cancelled() => {}
            () = tokio::time::sleep(worker.settings.grace) => {}
        }
        hand_back.cancel();
        tokio::select! {
            biased;
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

    /// Says again and again that this worker lives, and at once when it takes from one queue
    /// more.
    async fn announce(self: Arc<Self>, shutdown: CancellationToken) {
        let names: Vec<HandlerName> = self.names.iter().cloned().collect();
        loop {
            let queues: Vec<Queue> = self.gauges.queues().into_keys().collect();
            let announced = self.registry.announce(&self.settings.worker, &queues, &names).await;
            if let Err(error) = announced {
                tracing::debug!(%error, "worker not announced");
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.subscribed.notified() => {}
                () = tokio::time::sleep(ANNOUNCEMENT.to_std() / 3) => {}
            }
        }
    }

    /// Handles one delivery: claims, runs, tells, acknowledges.
    async fn take(
        &self,
        queue: &Queue,
        delivery: Delivery,
        slot: OwnedSemaphorePermit,
        work: &Work,
    ) {
        let Ok(message) = serde_json::from_slice::<StepMessage>(&delivery.body) else {
            self.gauges.malformed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(message_id = ?delivery.message_id, "step message cannot be read");
            delivery.acker.dead_letter().await;
            return;
        };
        match self.wake(&message, &work.shutdown).await {
            Woken::Nothing => {
                self.gauges.spent.fetch_add(1, Ordering::Relaxed);
                delivery.acker.ack().await;
            }
            Woken::ShuttingDown => {}
            Woken::Attempt(claimed, asked) => {
                let Some(handler) = self.handlers.get(claimed.handler.as_str()) else { return };
                self.gauges.started(queue);
                let (told, came) = work.bench.run(*claimed, asked, handler).await;
                self.gauges.ended(queue, came);
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
            let asked = self.claims.engine().clock().monotonic();
            match self.claims.claim(&ask).await {
                Ok(claimed) => {
                    self.gauges.held.store(0, Ordering::Relaxed);
                    return Woken::Attempt(Box::new(claimed), asked);
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
                        biased;
                        () = shutdown.cancelled() => return Woken::ShuttingDown,
                        () = tokio::time::sleep(CLAIM_AGAIN) => {}
                    }
                }
            }
        }
    }
}

impl Work {
    /// Subscribes to a queue and begins to take from it.
    async fn start(
        self: Arc<Self>,
        queue: &Queue,
    ) -> Result<JoinHandle<Box<dyn Subscription>>, BrokerError> {
        let broker = self.worker.claims.engine().broker();
        broker.declare(queue).await?;
        let prefetch = self.worker.settings.concurrency;
        let subscription = broker.subscribe(Source::Steps(queue.clone()), prefetch).await?;
        self.worker.gauges.look(queue, subscription.subscribed());
        self.worker.subscribed.notify_one();
        Ok(tokio::spawn(self.clone().consume(queue.clone(), subscription)))
    }

    /// Takes from each queue that plans name, as they come, until the shutdown.
    async fn follow(self: &Arc<Self>, loops: &mut Loops) {
        let engine = self.worker.claims.engine();
        let mut changes = engine.listen();
        let mut failing = false;
        loop {
            let outcome = self.follow_once(loops).await;
            if let Err(error) = &outcome
                && !failing
            {
                tracing::warn!(%error, "new queues wait");
            }
            failing = outcome.is_err();
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return,
                // Missed notices are no loss: each look sees all queues.
                _ = changes.recv() => tokio::time::sleep(FOLLOW_PAUSE).await,
                () = tokio::time::sleep(FOLLOW_EVERY) => {}
            }
            changes = changes.resubscribe();
        }
    }

    async fn follow_once(self: &Arc<Self>, loops: &mut Loops) -> Result<(), String> {
        let queues = self.worker.claims.engine().queues().await;
        for queue in queues.map_err(|error| error.to_string())? {
            if let Entry::Vacant(place) = loops.entry(queue) {
                let started = self.clone().start(place.key()).await;
                place.insert(started.map_err(|error| error.to_string())?);
            }
        }
        Ok(())
    }

    /// Takes deliveries as they come, each once there is room for its attempt. The delivery
    /// comes first: a queue that only waits must not keep the room from the others.
    async fn consume(
        self: Arc<Self>,
        queue: Queue,
        mut subscription: Box<dyn Subscription>,
    ) -> Box<dyn Subscription> {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let mut next: Option<Delivery> = None;
        loop {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break,
                _ = looks.tick() => self.worker.gauges.look(&queue, subscription.subscribed()),
                delivery = subscription.next(), if next.is_none() => match delivery {
                    Some(delivery) => next = Some(delivery),
                    None => break,
                },
                slot = self.slots.clone().acquire_owned(), if next.is_some() => {
                    let slot = slot.expect("never closed");
                    let Some(delivery) = next.take() else { continue };
                    let (work, queue) = (self.clone(), queue.clone());
                    self.running.spawn(async move {
                        work.worker.take(&queue, delivery, slot, &work).await;
                    });
                }
            }
        }
        subscription
    }
}
