//! A whole installation in this process, over given ports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::ids::{Principal, Queue, TaskId, WorkerId};
use standfast_domain::plan::Fault;
use standfast_domain::record::{Key, Record, TaskState};
use standfast_domain::time::Time;
use standfast_engine::Engine;
use standfast_engine::blobs::Blobs;
use standfast_engine::claims::{CLAIM_LENGTH, Claims};
use standfast_engine::installation::Installation;
use standfast_engine::ports::{Broker, Ids, Store};
use standfast_engine::registry::Registry;
use standfast_engine::submission::{RETENTION_DEFAULT, Submitted, prepare};
use standfast_engine::time::{SystemClock, SystemIds};
use standfast_scheduler::Scheduler;
use standfast_worker::handlers::Handler;
use standfast_worker::{BuiltinHandlers, EnvironmentSecrets, Gauges, Settings, Worker};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::front::{Exchange, Front};
use crate::noop::Noop;
use crate::system::{Door, Entrance, Stands, System, SystemError};

/// The one queue of the benchmark.
const QUEUE: &str = "default";
/// How long attempts may go on when it ends: none runs by then.
const GRACE: Duration = Duration::from_secs(5);
/// How often its counts are looked at: far below what a job takes.
const LOOK: Duration = Duration::from_millis(1);

/// Gives the one queue of the benchmark.
pub fn queue() -> Queue {
    Queue::new(QUEUE).expect("a name")
}

/// How a site is made.
#[derive(Clone, Debug)]
pub struct Sites {
    /// Attempts that its worker runs at a time.
    pub in_flight: u16,
    /// Steps of one task that an attempt may take after its own without a message, in a row.
    pub stay: u32,
    /// Where messages to its intake go; none without a RabbitMQ.
    pub exchange: Option<Exchange>,
}

/// A running installation.
pub struct Site {
    engine: Engine,
    claims: Arc<Claims>,
    registry: Arc<Registry>,
    handlers: BuiltinHandlers,
    gauges: Arc<Gauges>,
    exchange: Option<Exchange>,
    shutdown: CancellationToken,
    running: Vec<JoinHandle<()>>,
}

impl Site {
    /// Starts engine, worker and scheduler; `folder` takes blobs and the directories of attempts.
    pub async fn start(
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        folder: &Path,
        how: &Sites,
    ) -> Result<Self, SystemError> {
        let engine =
            Engine::start(store, broker, Arc::new(SystemClock::default()), Arc::new(SystemIds));
        let installation = Installation::open(&engine).await?;
        let blobs = folder.join("blobs").display().to_string();
        let blobs = Blobs::open(&blobs, &installation.id).await?;
        let registry = Arc::new(Registry::new(engine.clone()));
        let noop: Arc<dyn Handler> = Arc::new(Noop);
        let handlers = BuiltinHandlers::new([noop]);
        let known = Arc::new(handlers.clone());
        let claims = Arc::new(Claims::new(engine.clone(), blobs.clone(), known, registry.clone()));
        let settings = Settings {
            worker: process_id("w"),
            queues: vec![queue()],
            concurrency: how.in_flight,
            stay: how.stay,
            grace: GRACE,
            claim_length: CLAIM_LENGTH,
            attempts: folder.join("attempts"),
            secrets: Arc::new(EnvironmentSecrets::default()),
        };
        let worker = Worker::new(settings, claims.clone(), registry.clone(), handlers.clone());
        let gauges = worker.gauges();
        let shutdown = CancellationToken::new();
        let ended = shutdown.clone();
        let working = tokio::spawn(async move {
            // A fault here leaves the jobs without progress, which they report.
            let _ = worker.run(ended, CancellationToken::new()).await;
        });
        let settings = standfast_scheduler::Settings::new(process_id("s"));
        let scheduler = Scheduler::new(engine.clone(), blobs, settings);
        let scheduling = tokio::spawn(scheduler.run(shutdown.clone()));
        let (exchange, running) = (how.exchange.clone(), vec![working, scheduling]);
        Ok(Self { engine, claims, registry, handlers, gauges, exchange, shutdown, running })
    }

    /// Gives the engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Gives the workers' side, for an api over this site.
    pub fn claims(&self) -> &Arc<Claims> {
        &self.claims
    }

    /// Gives what announces workers, for an api over this site.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Gives the handlers: the one that does nothing.
    pub fn handlers(&self) -> &BuiltinHandlers {
        &self.handlers
    }

    /// Gives where messages to its intake go.
    pub fn exchange(&self) -> Option<&Exchange> {
        self.exchange.as_ref()
    }

    /// Counts what the engine and the worker did since the start: commits and those refused, wakes
    /// and those not confirmed, and deliveries that woke for nothing, by reason.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let [commits, refused, wakes, unconfirmed] = self.engine.counters().read();
        let mut counts = self.gauges.spent.read();
        counts.extend([("commits", commits), ("commits_refused", refused)]);
        counts.extend([("wakes", wakes), ("wakes_unconfirmed", unconfirmed)]);
        counts
    }

    /// Ends the worker and the scheduler.
    pub async fn close(self) {
        self.shutdown.cancel();
        for task in self.running {
            let _ = task.await; // a panic there was reported by the runtime
        }
    }
}

#[async_trait]
impl Entrance for Site {
    /// Checks and accepts, as the api does.
    async fn submit(&self, plan: &Value) -> Result<TaskId, SystemError> {
        let (body, by) = (plan.clone(), Principal::local());
        let submitted = Submitted { body, plan_dir: None, by, key: None, traceparent: None };
        let submission = prepare(submitted, RETENTION_DEFAULT, &self.handlers, &BTreeSet::new())
            .map_err(|faults| SystemError::Plan(first(&faults)))?;
        Ok(self.engine.submit(submission).await?.0)
    }
}

#[async_trait]
impl System for Site {
    async fn carry_out(&self, plan: &Value) -> Result<TaskId, SystemError> {
        let mut changes = self.engine.listen();
        let task = self.submit(plan).await?;
        // Submitted, claimed, completed.
        let mut seen = 0;
        while seen < 3 {
            match changes.recv().await {
                Ok(changed) if changed == task => seen += 1,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            }
        }
        Ok(task)
    }

    async fn succeeded(&self) -> Result<u64, SystemError> {
        Ok(self.gauges.queues().values().map(|counts| counts.succeeded).sum())
    }

    async fn stands(&self, task: &TaskId) -> Result<Stands, SystemError> {
        let mut records = self.engine.read(task, &[Key::Header]).await?;
        let Some(Record::Header(header)) = records.remove(&Key::Header).flatten() else {
            return Ok(Stands::Missing);
        };
        Ok(match header.state == TaskState::Completed {
            true => Stands::Completed,
            false => Stands::Open,
        })
    }

    async fn now(&self) -> Result<Time, SystemError> {
        Ok(self.engine.now().await?)
    }

    async fn open(&self, door: Door) -> Result<Front, SystemError> {
        Front::of(self, door).await
    }

    fn look(&self) -> Duration {
        LOOK
    }
}

fn first(faults: &[Fault]) -> String {
    faults.first().map_or_else(String::new, |fault| format!("{}: {}", fault.pointer, fault.message))
}

fn process_id(kind: &str) -> WorkerId {
    WorkerId::random(kind, SystemIds.random()).expect("a name")
}
