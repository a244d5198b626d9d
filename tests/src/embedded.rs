//! A whole embedded installation within the test's process: one file, in-process queues, a
//! worker, a scheduler.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::Scope;
use standfast_domain::decide::Submission;
use standfast_domain::event::{Event, decode_event};
use standfast_domain::ids::{Principal, Queue, StepId, TaskId, WorkerId};
use standfast_domain::plan::Fault;
use standfast_domain::record::{Header, Key, Payload, Record, StepState, TaskState};
use standfast_domain::time::Span;
use standfast_engine::blobs::Blobs;
use standfast_engine::claims::{CLAIM_LENGTH, Claims};
use standfast_engine::installation::Installation;
use standfast_engine::ports::{Broker, Store};
use standfast_engine::registry::Registry;
use standfast_engine::submission::{RETENTION_DEFAULT, Submitted, prepare};
use standfast_engine::time::{SystemClock, SystemIds};
use standfast_engine::{Engine, EngineError};
use standfast_scheduler::{Scheduler, Settings as SchedulerSettings};
use standfast_stores::redb::RedbStore;
use standfast_worker::handlers::Handler;
use standfast_worker::handlers::exec::{Exec, ExecSettings};
use standfast_worker::handlers::http::Http;
use standfast_worker::{BuiltinHandlers, EnvironmentSecrets, Settings, Worker};
use tokio_util::sync::CancellationToken;

use crate::wait;

/// One installation.
pub struct World {
    pub engine: Engine,
    pub claims: Arc<Claims>,
    pub registry: Arc<Registry>,
    pub handlers: BuiltinHandlers,
    pub blobs: Blobs,
    pub directory: PathBuf,
    /// How long claims last unless renewed.
    pub claim_length: Span,
    shutdown: CancellationToken,
    running: Vec<tokio::task::JoinHandle<()>>,
}

impl World {
    /// Opens an installation in a directory, without worker and scheduler.
    pub async fn open(directory: &std::path::Path) -> Self {
        let store: Arc<dyn Store> = Arc::new(RedbStore::open(directory).unwrap());
        let broker: Arc<dyn Broker> = Arc::new(InProcessBroker::new());
        Self::over(store, broker, directory).await
    }

    /// Opens an installation over given ports.
    pub async fn over(
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        directory: &std::path::Path,
    ) -> Self {
        let clock = Arc::new(SystemClock::default());
        let engine = Engine::start(store, broker, clock, Arc::new(SystemIds));
        let installation = Installation::open(&engine).await.unwrap();
        let url = directory.join("blobs").display().to_string();
        let blobs = Blobs::open(&url, &installation.id).await.unwrap();
        let registry = Arc::new(Registry::new(engine.clone()));
        let exec: Arc<dyn Handler> = Arc::new(Exec::new(ExecSettings::new("test")));
        let http: Arc<dyn Handler> = Arc::new(Http::new(true).unwrap());
        let handlers = BuiltinHandlers::new([exec, http]);
        let claims = Arc::new(Claims::new(
            engine.clone(),
            blobs.clone(),
            Arc::new(handlers.clone()),
            registry.clone(),
        ));
        let shutdown = CancellationToken::new();
        let directory = directory.to_owned();
        let (claim_length, running) = (CLAIM_LENGTH, Vec::new());
        Self {
            engine,
            claims,
            registry,
            handlers,
            blobs,
            directory,
            claim_length,
            shutdown,
            running,
        }
    }

    /// Starts a worker for queues.
    pub fn work(&mut self, queues: &[&str], concurrency: u16) {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let settings = Settings {
            worker: WorkerId::new(format!("w-{id}")).unwrap(),
            queues: queues.iter().map(|name| Queue::new(*name).unwrap()).collect(),
            concurrency,
            grace: Duration::from_secs(5),
            stay: 0,
            claim_length: self.claim_length,
            attempts: self.directory.join("attempts"),
            secrets: Arc::new(EnvironmentSecrets::default()),
        };
        let worker = Worker::new(
            settings,
            self.claims.clone(),
            self.registry.clone(),
            self.handlers.clone(),
        );
        let shutdown = self.shutdown.clone();
        self.running.push(tokio::spawn(async move {
            worker.run(shutdown, CancellationToken::new()).await.unwrap();
        }));
    }

    /// Starts a scheduler.
    pub fn schedule(&mut self) {
        let id = WorkerId::new(format!("s-{}", uuid::Uuid::new_v4().simple())).unwrap();
        let settings = SchedulerSettings {
            timers_every: Duration::from_millis(20),
            sweeps_every: Duration::from_millis(200),
            claim_length: self.claim_length,
            ..SchedulerSettings::new(id)
        };
        let scheduler = Scheduler::new(self.engine.clone(), self.blobs.clone(), settings);
        let shutdown = self.shutdown.clone();
        self.running.push(tokio::spawn(scheduler.run(shutdown)));
    }

    /// Submits a plan whose folder is the installation's; gives its faults if it has any.
    pub async fn submit(&self, plan: Value) -> Result<TaskId, Vec<Fault>> {
        self.submit_from(&self.directory, plan).await
    }

    /// Submits a plan that lies in a folder; gives its faults if it has any.
    pub async fn submit_from(
        &self,
        folder: &std::path::Path,
        plan: Value,
    ) -> Result<TaskId, Vec<Fault>> {
        let submission = self.prepare(folder, plan, None)?;
        Ok(self.engine.submit(submission).await.unwrap().0)
    }

    /// Submits a plan without faults that the engine may refuse.
    pub async fn try_submit(&self, plan: Value) -> Result<TaskId, EngineError> {
        let submission = self.prepare(&self.directory, plan, None).unwrap();
        Ok(self.engine.submit(submission).await?.0)
    }

    /// Submits a plan without faults that comes with a trace context.
    pub async fn submit_traced(&self, plan: Value, traceparent: &str) -> TaskId {
        let traceparent = Some(traceparent.to_owned());
        let submission = self.prepare(&self.directory, plan, traceparent).unwrap();
        self.engine.submit(submission).await.unwrap().0
    }

    fn prepare(
        &self,
        folder: &std::path::Path,
        plan: Value,
        traceparent: Option<String>,
    ) -> Result<Submission, Vec<Fault>> {
        let submitted = Submitted {
            body: plan,
            plan_dir: Some(folder.display().to_string()),
            by: Principal::local(),
            key: None,
            traceparent,
        };
        prepare(submitted, RETENTION_DEFAULT, &self.handlers, &BTreeSet::new())
    }

    pub async fn header(&self, task: &TaskId) -> Option<Header> {
        match self.engine.read(task, &[Key::Header]).await.unwrap().remove(&Key::Header) {
            Some(Some(Record::Header(header))) => Some(header),
            _ => None,
        }
    }

    pub async fn step(&self, task: &TaskId, step: &str) -> Option<StepState> {
        let key = Key::Step(StepId::new(step).unwrap());
        let mut records = self.engine.read(task, std::slice::from_ref(&key)).await.unwrap();
        match records.remove(&key) {
            Some(Some(Record::Step(state))) => Some(state),
            _ => None,
        }
    }

    pub async fn output(&self, task: &TaskId, step: &str) -> Option<Value> {
        let round = self.step(task, step).await?.round;
        let key = Key::Output(StepId::new(step).unwrap(), round);
        let mut records = self.engine.read(task, std::slice::from_ref(&key)).await.unwrap();
        match records.remove(&key) {
            Some(Some(Record::Payload(Payload::Inline(value)))) => Some(value),
            _ => None,
        }
    }

    pub async fn events(&self, task: &TaskId) -> Vec<Event> {
        let scope = Scope::Task(task.clone());
        let stored = self.engine.store().events(&scope, 0, 500).await.unwrap();
        (0..).zip(stored).map(|(n, bytes)| decode_event(n, &bytes).unwrap().event).collect()
    }

    /// Waits until the task is in one of the states.
    pub async fn wait(&self, task: &TaskId, states: &[TaskState]) -> Header {
        let mut last = None;
        let what = format!("task {task} in {states:?}");
        wait::until(&what, async || {
            last = self.header(task).await;
            last.clone().filter(|header| states.contains(&header.state))
        })
        .await
    }

    /// Waits for the end and checks that the log gives the records.
    pub async fn wait_verified(&self, task: &TaskId, state: TaskState) -> Header {
        let header = self.wait(task, &[state]).await;
        let verified = standfast_engine::verify::verify(&self.engine, task).await.unwrap();
        assert_eq!(verified.fault, None);
        header
    }

    /// Gives a command to the engine as the local user.
    pub async fn command(
        &self,
        task: &TaskId,
        command: standfast_domain::decide::Command,
    ) -> Result<bool, EngineError> {
        let done = self.engine.execute(task, command, Principal::local(), vec![]).await?;
        Ok(done.acted)
    }

    /// Shuts worker and scheduler down and waits for them.
    pub async fn close(self) {
        self.shutdown.cancel();
        for running in self.running {
            running.await.unwrap();
        }
    }
}
