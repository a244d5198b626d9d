//! Runs handlers for the steps of tasks, as a process outside the installation.
//!
//! ```text
//!   announce ──▶ receive ──▶ claim ──▶ run ──▶ report ──▶ ack
//!                (long poll            │ heartbeats, log
//!                 or AMQP)             ▼ on a thread of their own
//! ```
//!
//! A message only says where to look; the claim decides. Nothing is acked before the report of
//! its attempt is answered.

mod announce;
mod attempt;
mod context;
mod control;
mod deliveries;
mod effect;
mod heart;
mod log_buffer;
mod poll;
mod shutdown;
mod word;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::uri::AMQPUri;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::amqp::parse_uri;
use crate::error::Error;
use crate::handler::{HandlerError, Run, erase};
use crate::http::Http;

use control::Recalls;
use heart::Heart;
use shutdown::Shutdown;

pub(crate) use attempt::{flat, outcome};
pub use context::Context;
pub(crate) use context::Place;
pub use effect::Effect;
pub use effect::SendError;

/// The queue of steps that name none.
const DEFAULT_QUEUE: &str = "default";
/// How long running attempts may go on after the worker was told to end, by default: below the
/// 30 seconds after which common supervisors kill.
const GRACE: Duration = Duration::from_secs(20);

/// A worker: handlers, and where their steps come from.
///
/// Told to end by SIGTERM or Ctrl-C, it takes nothing new, lets running attempts end within the
/// grace period and hands the rest back, which are then not charged. Told twice, it does not
/// wait.
pub struct Worker {
    http: Http,
    id: String,
    queues: Vec<String>,
    concurrency: usize,
    grace: Duration,
    broker: Result<Option<AMQPUri>, Error>,
    handlers: BTreeMap<String, Run>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.id)
            .field("queues", &self.queues)
            .field("handlers", &self.handlers.keys())
            .finish_non_exhaustive()
    }
}

/// A worker at work: what its receivers and attempts share.
pub(crate) struct Crew {
    http: Http,
    id: String,
    queues: Vec<String>,
    concurrency: usize,
    handlers: BTreeMap<String, Run>,
    heart: Heart,
    recalls: Arc<Recalls>,
    slots: Arc<Semaphore>,
    /// Attempts that run; the announcer is told of each change.
    running: AtomicU32,
    loaded: Notify,
    attempts: TaskTracker,
    connections: TaskTracker,
    shutdown: Shutdown,
    fatal: Mutex<Option<Error>>,
}

impl Worker {
    /// Makes a worker for the api at an address; nothing is sent yet.
    pub fn connect(url: &str, token: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self {
            http: Http::new(url, token.as_ref())?,
            id: format!("w-{}", uuid::Uuid::now_v7().simple()),
            queues: Vec::new(),
            concurrency: 1,
            grace: GRACE,
            broker: Ok(None),
            handlers: BTreeMap::new(),
        })
    }

    /// Takes steps from a queue. May be called several times; without, it is `default`.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Runs up to this many attempts at once; 1 by default.
    pub fn concurrency(mut self, attempts: usize) -> Self {
        self.concurrency = attempts.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// Sets how long running attempts may go on after the worker was told to end; 20 seconds by
    /// default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Is woken by AMQP messages from this broker rather than by long polls. Claims, heartbeats
    /// and results go over HTTP all the same.
    pub fn amqp(mut self, url: &str) -> Self {
        self.broker = parse_uri(url).map(Some);
        self
    }

    /// Adds a handler. An attempt may run again after a crash, so what it changes in the outside
    /// world goes through [`Context::effect`], or must bear that.
    pub fn handler<I, O, F, Fut>(mut self, name: impl Into<String>, handler: F) -> Self
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Context, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, HandlerError>> + Send + 'static,
    {
        self.handlers.insert(name.into(), erase(handler));
        self
    }

    /// Works until SIGTERM or Ctrl-C, or until the api refuses the worker for good.
    pub async fn run(self) -> Result<(), Error> {
        let signals = shutdown::Signals::listen()?;
        let shutdown = Shutdown::default();
        let watcher = tokio::spawn(signals.drive(shutdown.clone()));
        let ended = self.work(shutdown).await;
        watcher.abort();
        ended
    }

    /// Works until a future is ready, or until the api refuses the worker for good. Signals are
    /// left to the caller.
    pub async fn run_until(
        self,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let shutdown = Shutdown::default();
        let drain = shutdown.drain.clone();
        let watcher = tokio::spawn(async move {
            end.await;
            drain.cancel();
        });
        let ended = self.work(shutdown).await;
        watcher.abort();
        ended
    }

    async fn work(mut self, shutdown: Shutdown) -> Result<(), Error> {
        if self.handlers.is_empty() {
            return Err(Error::Setup("run a worker without handlers".to_owned()));
        }
        if self.queues.is_empty() {
            self.queues.push(DEFAULT_QUEUE.to_owned());
        }
        let (broker, grace) = (self.broker?, self.grace);
        let crew = Arc::new(Crew {
            heart: Heart::start(&self.http)?,
            recalls: Arc::default(),
            http: self.http,
            id: self.id,
            queues: self.queues,
            concurrency: self.concurrency,
            handlers: self.handlers,
            slots: Arc::new(Semaphore::new(self.concurrency)),
            running: AtomicU32::new(0),
            loaded: Notify::new(),
            attempts: TaskTracker::new(),
            connections: TaskTracker::new(),
            shutdown,
            fatal: Mutex::new(None),
        });
        let Some(again) = announce::first(&crew).await? else { return Ok(()) };
        let announcer = tokio::spawn(announce::repeat(Arc::clone(&crew), again));
        let mut receivers = JoinSet::new();
        match broker {
            Some(uri) => {
                receivers.spawn(deliveries::receive(Arc::clone(&crew), uri));
            }
            None => {
                for queue in crew.queues.clone() {
                    receivers.spawn(poll::receive(Arc::clone(&crew), queue));
                }
            }
        }
        // Receivers end when the worker is told to; what they hold is dropped after the attempts.
        crew.shutdown.drain.cancelled().await;
        let leaving = announce::leave(&crew);
        tokio::join!(leaving, shutdown::drain(&crew, &mut receivers, grace));
        announcer.abort();
        crew.connections.close();
        crew.connections.wait().await;
        crew.fatal.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Crew {
    /// Ends the worker because of an error that will not pass.
    fn give_up(&self, error: Error) {
        self.fatal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.shutdown.drain.cancel();
    }

    /// Counts an attempt that runs until what is given is dropped.
    fn count(&self) -> Counted<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.loaded.notify_one();
        Counted(self)
    }

    fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    fn is_full(&self) -> bool {
        self.running() as usize >= self.concurrency
    }

    fn handler_names(&self) -> Vec<String> {
        self.handlers.keys().cloned().collect()
    }
}

/// An attempt that is counted as running.
struct Counted<'c>(&'c Crew);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
        self.0.loaded.notify_one();
    }
}
