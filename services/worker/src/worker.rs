//! The loop: as many attempts at a time as the worker has room for.

mod stay;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use standfast_domain::ids::{HandlerName, Principal, Queue, StepId, TaskId, WorkerId};
use standfast_domain::refusal::Refusal;
use standfast_domain::stage::Wake;
use standfast_domain::time::Span;
use standfast_engine::EngineError;
use standfast_engine::claims::{ClaimAsk, Claimed, Claims};
use standfast_engine::ports::{BrokerError, Delivery, Source, StoreError, Subscription};
use standfast_engine::recalls::Recalls;
use standfast_engine::registry::{ANNOUNCEMENT, Announcement, Registry, WorkerLoad};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::attempt::{Bench, HandlersRun};
use crate::builtin::BuiltinHandlers;
use crate::directories::{Directories, LocalDirectories};
use crate::folder::Folder;
use crate::gauges::Gauges;
use crate::handlers::Secrets;
use crate::pool::Pool;
use crate::reserve::Supply;

/// The wait between two tries of a claim while the store does not answer.
const CLAIM_AGAIN: Duration = Duration::from_millis(500);
/// How often each queue's loop says for health that it lives.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often a worker that follows looks for new queues, besides when a task has changed.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// The shortest time between becoming full or free and saying so: short attempts make a worker
/// both many times a second.
const LOAD_PAUSE: Duration = Duration::from_secs(1);
/// The shortest pause between two looks for new queues: tasks may change often.
const FOLLOW_PAUSE: Duration = Duration::from_millis(20);

/// Why a worker could not begin.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// A queue could not be consumed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The folder for attempts could not be made.
    #[error("make a folder for attempts in {}: {error}", root.display())]
    Attempts {
        /// Where it was to be.
        root: PathBuf,
        /// What the file system said.
        error: io::Error,
    },
}

/// What a worker is told at its start.
pub struct Settings {
    /// Its id; new at each start of the process.
    pub worker: WorkerId,
    /// Queues it takes from.
    pub queues: Vec<Queue>,
    /// Attempts it runs at a time, over all its queues.
    pub concurrency: u16,
    /// Steps of one task that an attempt's slot may take over in a row, without a message, from
    /// the steps that its outcome releases in the same queue.
    pub stay: u32,
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
    names: Arc<BTreeSet<HandlerName>>,
    gauges: Arc<Gauges>,
    /// Told when the worker takes from one queue more, or one fewer.
    subscribed: Notify,
    /// Told when the worker has become full, or has room again.
    loaded: Notify,
    follows: bool,
    simulated: Option<Arc<dyn Directories>>,
}

/// What the loops of all queues share.
struct Work {
    worker: Arc<Worker>,
    bench: Bench,
    slots: Arc<Semaphore>,
    running: TaskTracker,
    /// The attempts that run here.
    here: Mutex<BTreeSet<StepMessage>>,
    /// What makes their hearts beat at once.
    recalls: Arc<Recalls>,
    shutdown: CancellationToken,
}

/// The loop of each queue; at its end it gives its subscriptions back, to be closed last.
type Loops = BTreeMap<Queue, JoinHandle<Subscriptions>>;

/// What a queue was received by.
type Subscriptions = Vec<Box<dyn Subscription>>;

/// A step message's body.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct StepMessage {
    task: TaskId,
    step: StepId,
    epoch: u32,
    attempt: u32,
}

/// A delivery that has arrived, and what it says.
struct Arrived {
    /// None if it cannot be read.
    message: Option<StepMessage>,
    delivery: Delivery,
}

impl Arrived {
    fn new(delivery: Delivery) -> Self {
        Self { message: serde_json::from_slice(&delivery.body).ok(), delivery }
    }
}

/// What a delivery came to.
enum Woken {
    /// Claimed, and when that was asked for, by the local clock.
    Attempt(Box<Claimed>, Duration),
    Nothing(&'static str),
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
        let names = handlers.names().filter_map(|name| HandlerName::new(name).ok());
        let names = Arc::new(names.collect());
        let gauges = Arc::new(Gauges::default());
        let (subscribed, loaded) = (Notify::new(), Notify::new());
        let follows = false;
        Self {
            settings,
            claims,
            registry,
            handlers,
            names,
            gauges,
            subscribed,
            loaded,
            follows,
            simulated: None,
        }
    }

    /// Makes it also take from every queue that a plan has named or will name: for the one
    /// worker of an installation.
    pub fn following_queues(self) -> Self {
        Self { follows: true, ..self }
    }

    /// Makes it keep attempts' directories elsewhere and run handlers as tasks of its own
    /// runtime, without threads: for runs that are the same under one seed.
    pub fn with_directories(self, directories: Arc<dyn Directories>) -> Self {
        Self { simulated: Some(directories), ..self }
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
    ) -> Result<(), WorkError> {
        let (directories, handlers_run, _folder) = self.place().await?;
        let (hand_back, give_up) = (CancellationToken::new(), CancellationToken::new());
        let bench = Bench {
            claims: self.claims.clone(),
            worker: self.settings.worker.clone(),
            actor: self.actor(),
            directories,
            handlers_run,
            secrets: self.settings.secrets.clone(),
            handlers: self.handlers.clone(),
            hand_back: hand_back.clone(),
            give_up: give_up.clone(),
        };
        let worker = Arc::new(self);
        let slots = Arc::new(Semaphore::new(usize::from(worker.settings.concurrency)));
        let running = TaskTracker::new();
        let recalls = Arc::new(Recalls::default());
        let (engine, id) = (worker.claims.engine().clone(), worker.settings.worker.to_string());
        let listening = AbortOnDropHandle::new(tokio::spawn(recalls.clone().follow(engine, id)));
        let work = Arc::new(Work {
            worker: worker.clone(),
            bench,
            slots,
            running: running.clone(),
            here: Mutex::default(),
            recalls: recalls.clone(),
            shutdown: shutdown.clone(),
        });
        let mut loops = Loops::new();
        for queue in &worker.settings.queues {
            loops.insert(queue.clone(), work.clone().start(queue).await?);
        }
        let announcing = tokio::spawn(work.clone().announce());
        if worker.follows {
            work.follow(&mut loops).await;
        }
        let mut subscriptions = Vec::new();
        for consuming in loops.into_values() {
            // A panic there was reported by the runtime.
            subscriptions.extend(consuming.await.into_iter().flatten());
        }
        running.close();
        tokio::select! {
            biased;
            () = running.wait() => {}
            () = tokio::time::sleep(worker.settings.grace) => {}
            () = hurry.cancelled() => {}
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
        drop(listening);
        if let Err(error) = worker.registry.withdraw(&worker.settings.worker, None).await {
            tracing::debug!(%error, "announcement not withdrawn; it expires");
        }
        Ok(())
    }

    /// Gives where attempts have their directories and where their handlers run.
    async fn place(
        &self,
    ) -> Result<(Arc<dyn Directories>, HandlersRun, Option<Folder>), WorkError> {
        if let Some(directories) = &self.simulated {
            return Ok((directories.clone(), HandlersRun::Here, None));
        }
        let folder = open_folder(&self.settings).await?;
        let blobs = self.claims.blobs().clone();
        let local = LocalDirectories::new(folder.path().to_owned(), blobs);
        Ok((Arc::new(local), HandlersRun::OnThreads(Arc::new(Pool::new())), Some(folder)))
    }

    /// Handles one delivery: claims, runs, tells, acknowledges.
    async fn take(
        &self,
        queue: &Queue,
        Arrived { message, delivery }: Arrived,
        slot: OwnedSemaphorePermit,
        work: &Work,
    ) {
        let Some(message) = message else {
            self.gauges.malformed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(message_id = ?delivery.message_id, "step message cannot be read");
            delivery.acker.dead_letter().await;
            return;
        };
        let listener = work.recalls.listen(&message.task, &message.step, message.attempt);
        match self.wake(&message, &work.shutdown).await {
            Woken::Nothing(reason) => {
                self.gauges.spent.add(reason);
                delivery.acker.ack().await;
            }
            Woken::ShuttingDown => Box::pin(self.give_back(queue, message, delivery)).await,
            Woken::Attempt(claimed, asked) => {
                let held = stay::Held { acker: delivery.acker, slot, listener };
                self.stay(queue, (claimed, asked), held, work).await;
            }
        }
    }

    /// Sends a message that was not looked at to the queue again, so that another worker has it
    /// before this one has ended.
    async fn give_back(&self, queue: &Queue, message: StepMessage, delivery: Delivery) {
        let StepMessage { task, step, epoch, attempt } = message;
        let wake = Wake { queue: queue.clone(), task, step, epoch, attempt };
        if self.claims.engine().wake_again(&[wake]).await == [true] {
            delivery.acker.ack().await;
        }
    }

    /// Says as whom this worker claims and tells: who claimed an attempt may tell late what it
    /// came to.
    fn actor(&self) -> Principal {
        Principal::new(format!("worker:{}", self.settings.worker)).expect("a worker's id is a name")
    }

    /// Claims what a message speaks of; holds on while the store does not answer.
    async fn wake(&self, message: &StepMessage, shutdown: &CancellationToken) -> Woken {
        let ask = ClaimAsk {
            task: message.task.clone(),
            step: message.step.clone(),
            attempt: Some(message.attempt),
            worker: self.settings.worker.clone(),
            principal: self.actor(),
            length: self.settings.claim_length,
            handlers: Some(self.names.clone()),
        };
        let mut held = None;
        loop {
            if shutdown.is_cancelled() {
                return Woken::ShuttingDown;
            }
            let asked = self.claims.engine().clock().monotonic();
            match self.claims.claim(&ask).await {
                Ok(claimed) => return Woken::Attempt(Box::new(claimed), asked),
                Err(EngineError::Refused(refusal)) => {
                    tracing::debug!(task = %message.task, step = %message.step, %refusal,
                        "woken for nothing");
                    return Woken::Nothing(reason(&refusal));
                }
                Err(EngineError::Store(StoreError::Corrupt(error))) => {
                    tracing::error!(task = %message.task, step = %message.step, error,
                        "step left alone; a person must look");
                    return Woken::Nothing("corrupt");
                }
                Err(EngineError::Store(error)) => {
                    tracing::debug!(task = %message.task, step = %message.step, %error,
                        "delivery held until the store answers");
                    held.get_or_insert_with(|| self.gauges.hold());
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(CLAIM_AGAIN) => {}
                        () = shutdown.cancelled() => return Woken::ShuttingDown,
                    }
                }
            }
        }
    }
}

impl Work {
    /// Says again and again that this worker lives, at once when it takes from one queue more or
    /// one fewer, and soon when it has become full or has room again.
    async fn announce(self: Arc<Self>) {
        let worker = &self.worker;
        let names: Vec<HandlerName> = worker.names.iter().cloned().collect();
        let (id, principal) = (&worker.settings.worker, &self.bench.actor);
        loop {
            let known = worker.gauges.queues();
            let queues: Vec<Queue> = known.keys().cloned().collect();
            let cut_off = known.into_iter().filter(|(_, counts)| !counts.subscribed);
            let announced = Announcement {
                worker: id,
                principal,
                queues: &queues,
                unsubscribed: &cut_off.map(|(queue, _)| queue).collect::<Vec<_>>(),
                handlers: &names,
                load: Some(self.load()),
            };
            if let Err(error) = worker.registry.announce(announced).await {
                tracing::debug!(%error, "worker not announced");
            }
            let loaded = async {
                worker.loaded.notified().await;
                tokio::time::sleep(LOAD_PAUSE).await;
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep(ANNOUNCEMENT.to_std() / 3) => {}
                () = worker.subscribed.notified() => {}
                () = loaded => {}
                () = self.shutdown.cancelled() => return,
            }
        }
    }

    fn load(&self) -> WorkerLoad {
        let concurrency = u32::from(self.worker.settings.concurrency);
        let free = u32::try_from(self.slots.available_permits()).unwrap_or(u32::MAX);
        WorkerLoad { concurrency, running: concurrency.saturating_sub(free) }
    }

    /// Subscribes to a queue and begins to take from it.
    async fn start(
        self: Arc<Self>,
        queue: &Queue,
    ) -> Result<JoinHandle<Subscriptions>, BrokerError> {
        let broker = self.worker.claims.engine().broker();
        broker.declare(queue).await?;
        let prefetch = self.worker.settings.concurrency;
        let subscription = broker.subscribe(Source::Steps(queue.clone()), prefetch).await?;
        self.worker.gauges.look(queue, subscription.subscribed());
        self.worker.subscribed.notify_one();
        let engine = self.worker.claims.engine().clone();
        let supply = Supply::new(engine, queue.clone(), prefetch, subscription);
        Ok(tokio::spawn(self.clone().consume(queue.clone(), supply)))
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
                () = tokio::time::sleep(FOLLOW_EVERY) => {}
                // Missed notices are no loss: each look sees all queues.
                _ = changes.recv() => tokio::time::sleep(FOLLOW_PAUSE).await,
                () = self.shutdown.cancelled() => return,
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
    async fn consume(self: Arc<Self>, queue: Queue, mut supply: Supply) -> Subscriptions {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let mut next: Option<Arrived> = None;
        loop {
            tokio::select! {
                biased;
                _ = looks.tick() => {
                    if self.worker.gauges.look(&queue, supply.subscribed()) {
                        self.worker.subscribed.notify_one();
                    }
                    supply.look(self.worker.gauges.ended_of(&queue)).await;
                }
                () = self.shutdown.cancelled() => break,
                delivery = supply.next(), if next.is_none() => match delivery {
                    Some(delivery) => next = self.unless_here(Arrived::new(delivery)),
                    None => break,
                },
                slot = self.slots.clone().acquire_owned(), if next.is_some() => {
                    let slot = slot.expect("never closed");
                    let Some(arrived) = next.take() else { continue };
                    self.begin(&queue, arrived, slot);
                    supply.look(self.worker.gauges.ended_of(&queue)).await;
                }
            }
        }
        let subscriptions = supply.cease().await;
        if let Some(Arrived { message: Some(message), delivery }) = next {
            self.worker.give_back(&queue, message, delivery).await;
        }
        subscriptions
    }

    /// Lets a delivery's attempt run in its slot.
    fn begin(self: &Arc<Self>, queue: &Queue, arrived: Arrived, slot: OwnedSemaphorePermit) {
        if self.slots.available_permits() == 0 {
            self.worker.loaded.notify_one();
        }
        let (work, queue) = (self.clone(), queue.clone());
        // In a box from the first: the runtime moves a task twice until it stands.
        self.running.spawn(Box::pin(async move {
            work.worker.take(&queue, arrived, slot, &work).await;
            if work.slots.available_permits() == 1 {
                work.worker.loaded.notify_one();
            }
        }));
    }

    fn here(&self) -> MutexGuard<'_, BTreeSet<StepMessage>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acks a message whose attempt runs in this worker, and gives any other: its channel was
    /// lost, or the broker had enough of waiting for the acknowledgement. It must not wait for
    /// room, because that room may be the attempt's own, and the broker would lose patience once
    /// more.
    fn unless_here(&self, arrived: Arrived) -> Option<Arrived> {
        let here = |message: &StepMessage| self.here().contains(message);
        if !arrived.message.as_ref().is_some_and(here) {
            return Some(arrived);
        }
        self.worker.gauges.spent.add("runs_here");
        self.running.spawn(async move { arrived.delivery.acker.ack().await });
        None
    }
}

/// Gives the word that a delivery which woke for nothing is counted under.
fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NoTask(_) => "no_task",
        Refusal::NoStep(_) => "no_step",
        Refusal::NotClaimable { .. } => "not_claimable",
        Refusal::InvalidPlan(_)
        | Refusal::KeyReused(_)
        | Refusal::Fenced { .. }
        | Refusal::NotStoppable { .. }
        | Refusal::NotApplicable { .. }
        | Refusal::Ended(_)
        | Refusal::Ending(_)
        | Refusal::OwnerChanged(_)
        | Refusal::EndDecided(_)
        | Refusal::Stopped
        | Refusal::NotStopped
        | Refusal::PlanMoved
        | Refusal::Effect { .. }
        | Refusal::Forbidden(_) => "refused",
    }
}

/// Makes this worker's folder; what killed ones left may be much to remove.
async fn open_folder(settings: &Settings) -> Result<Folder, WorkError> {
    let (root, worker) = (settings.attempts.clone(), settings.worker.clone());
    let opened = tokio::task::spawn_blocking(move || Folder::open(&root, &worker)).await;
    let error = match opened.map_err(io::Error::other) {
        Ok(Ok(folder)) => return Ok(folder),
        Ok(Err(error)) | Err(error) => error,
    };
    Err(WorkError::Attempts { root: settings.attempts.clone(), error })
}
