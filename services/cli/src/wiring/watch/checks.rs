//! What a process needs to work, looked at one by one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use standfast_api::admin::Check;
use standfast_domain::commit::{Commit, Scope};
use standfast_engine::Engine;
use tokio_util::task::AbortOnDropHandle;

/// How often a process writes to the store only to see whether it can.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// The same after a write that failed, so that a store that came back is seen soon.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
/// The longest that the last such write may be ago: a store that hangs fails none of them.
const WRITE_AGE_MAX: Duration = Duration::from_secs(15);
/// The longest that a loop which looks every few seconds may be silent: with the time between
/// two probes, a loop that stands still is seen within half a minute.
const LOOP_SILENT_MAX: Duration = Duration::from_secs(20);
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

/// Writes to the store again and again, and looks at its settings, for as long as it lives.
pub struct Pulse {
    last: Arc<Mutex<Last>>,
    _writing: AbortOnDropHandle<()>,
}

/// How many faults the store's settings and role have, for metrics.
pub type FaultCount = Arc<AtomicU64>;

#[derive(Default)]
struct Last {
    written: Option<Instant>,
    /// Why the last write failed, if it did.
    error: Option<String>,
}

impl Pulse {
    /// Begins to write, and to count the store's faults.
    pub fn start(engine: &Engine, faults: FaultCount) -> Self {
        let last = Arc::new(Mutex::new(Last::default()));
        let (engine, noted) = (engine.clone(), last.clone());
        let writing = tokio::spawn(async move {
            let mut known = Vec::new();
            loop {
                write(&engine, &noted).await;
                look(&engine, &mut known, &faults).await;
                let failed = lock(&noted).error.is_some();
                tokio::time::sleep(if failed { WRITE_AGAIN } else { WRITE_EVERY }).await;
            }
        });
        Self { last, _writing: AbortOnDropHandle::new(writing) }
    }
}

async fn write(engine: &Engine, last: &Mutex<Last>) {
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
    let mut last = lock(last);
    match written {
        Ok(_) => *last = Last { written: Some(Instant::now()), error: None },
        Err(error) => last.error = Some(error.to_string()),
    }
}

/// Logs once that the store's settings have become such that they lose or refuse data, whoever
/// changed them, and once that they are in order again.
async fn look(engine: &Engine, known: &mut Vec<String>, count: &AtomicU64) {
    let Ok(health) = engine.store().health().await else { return };
    count.store(health.faults.len() as u64, Ordering::Relaxed);
    if health.faults == *known {
        return;
    }
    match health.faults.is_empty() {
        true => tracing::info!("the store's settings are in order again"),
        false => tracing::warn!(faults = health.faults.join("; "), "the store may lose data"),
    }
    *known = health.faults;
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
        let recent = last.written.is_some_and(|at| at.elapsed() <= WRITE_AGE_MAX);
        if recent && last.error.is_none() {
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
