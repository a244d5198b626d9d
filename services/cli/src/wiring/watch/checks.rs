//! What a process needs to work, looked at one by one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use standfast_api::admin::Check;
use standfast_domain::commit::{Commit, Scope};
use standfast_engine::Engine;
use tokio_util::task::AbortOnDropHandle;

/// How often a process writes to the store only to see whether it can.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// The longest that the last such write may be ago: two may be missed.
const WRITE_AGE_MAX: Duration = Duration::from_secs(15);
/// The longest that a loop which looks every few seconds may be silent.
const LOOP_SILENT_MAX: Duration = Duration::from_secs(30);
/// The record of the installation that is written to see whether the store takes writes.
const FIELD: &str = "pulse";

/// The store answers, and nothing about its settings and role loses or refuses data.
pub struct StoreCheck(pub Engine);

#[async_trait]
impl Check for StoreCheck {
    fn name(&self) -> &str {
        "store"
    }

    async fn check(&self) -> Result<(), String> {
        let health = self.0.store().health().await.map_err(|error| error.to_string())?;
        match health.faults.is_empty() {
            true => Ok(()),
            false => Err(health.faults.join("; ")),
        }
    }
}

/// Writes to the store again and again, for as long as it lives.
pub struct Pulse {
    last: Arc<Mutex<Last>>,
    _writing: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Last {
    written: Option<Instant>,
    error: Option<String>,
}

impl Pulse {
    /// Begins to write.
    pub fn start(engine: &Engine) -> Self {
        let last = Arc::new(Mutex::new(Last::default()));
        let writing = tokio::spawn(write_again(engine.clone(), last.clone()));
        Self { last, _writing: AbortOnDropHandle::new(writing) }
    }
}

async fn write_again(engine: Engine, last: Arc<Mutex<Last>>) {
    loop {
        let commit = Commit {
            id: engine.commit_id(),
            scope: Scope::Installation,
            guards: Vec::new(),
            writes: vec![(FIELD.to_owned(), Some(b"{}".to_vec()))],
            first_event: 0,
            events: Vec::new(),
            indexes: Vec::new(),
            returns: Vec::new(),
        };
        let written = engine.commit_raw(commit).await;
        {
            let mut last = lock(&last);
            match written {
                Ok(_) => *last = Last { written: Some(Instant::now()), error: None },
                Err(error) => last.error = Some(error.to_string()),
            }
        }
        tokio::time::sleep(WRITE_EVERY).await;
    }
}

fn lock(last: &Mutex<Last>) -> MutexGuard<'_, Last> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store took a write within the last seconds.
pub struct WriteCheck(pub Pulse);

#[async_trait]
impl Check for WriteCheck {
    fn name(&self) -> &str {
        "write"
    }

    async fn check(&self) -> Result<(), String> {
        let last = lock(&self.0.last);
        if last.written.is_some_and(|at| at.elapsed() <= WRITE_AGE_MAX) {
            return Ok(());
        }
        let why = last.error.clone().unwrap_or_else(|| "no answer yet".to_owned());
        Err(match last.written {
            Some(at) => format!("the last write was {} s ago: {why}", at.elapsed().as_secs()),
            None => format!("nothing was written yet: {why}"),
        })
    }
}

/// Publishing is possible, and no subscription has a fault.
pub struct BrokerCheck(pub Engine);

#[async_trait]
impl Check for BrokerCheck {
    fn name(&self) -> &str {
        "broker"
    }

    async fn check(&self) -> Result<(), String> {
        let health = self.0.broker().health().await;
        match (health.connected, health.faults.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => Err("not connected".to_owned()),
            (true | false, false) => Err(health.faults.join("; ")),
        }
    }
}

/// The worker is subscribed to each of its queues, and its loops live.
pub struct WorkerCheck(pub Arc<standfast_worker::Gauges>);

#[async_trait]
impl Check for WorkerCheck {
    fn name(&self) -> &str {
        "worker"
    }

    async fn check(&self) -> Result<(), String> {
        self.0.fault(LOOP_SILENT_MAX).map_or(Ok(()), Err)
    }
}

/// The scheduler's timers are looked at.
pub struct SchedulerCheck(pub Arc<standfast_scheduler::Gauges>);

#[async_trait]
impl Check for SchedulerCheck {
    fn name(&self) -> &str {
        "scheduler"
    }

    async fn check(&self) -> Result<(), String> {
        match self.0.timers_silent() {
            None => Err("timers were not looked at yet".to_owned()),
            Some(silent) if silent > LOOP_SILENT_MAX => {
                Err(format!("timers were not looked at for {} s", silent.as_secs()))
            }
            Some(_) => Ok(()),
        }
    }
}
