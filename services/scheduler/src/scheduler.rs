//! The duties of a scheduler process, each on a loop of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use standfast_domain::ids::{Partition, WorkerId};
use standfast_domain::time::Span;
use standfast_engine::Engine;
use standfast_engine::EngineError;
use standfast_engine::blobs::Blobs;
use standfast_engine::registry::Registry;
use standfast_engine::tally::Tally;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dead_steps;
use crate::intake::IntakeGauges;
use crate::members::Members;
use crate::outbox_sweep::OutboxSweep;
use crate::ready_sweep::ReadySweep;
use crate::retention::Retention;
use crate::takeover::TakeOver;
use crate::timers::Timers;
use crate::work_sweep::WorkSweep;

/// The longest wait after failures in a row: how late a store that came back may be noticed.
/// Calls to one that is away cost next to nothing, since all share one attempt to connect.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What a scheduler is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its id; new at each start of the process.
    pub id: WorkerId,
    /// How long a claim lasts unless renewed; take-over watches for as long.
    pub claim_length: Span,
    /// How often timers are looked at.
    pub timers_every: Duration,
    /// How often the sweeps look.
    pub sweeps_every: Duration,
}

impl Settings {
    /// Gives the usual settings.
    pub fn new(id: WorkerId) -> Self {
        Self {
            id,
            claim_length: standfast_engine::claims::CLAIM_LENGTH,
            timers_every: Duration::from_millis(200),
            sweeps_every: Duration::from_secs(5),
        }
    }
}

/// Counts for metrics and health.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Rounds of the timer loop that the store let through.
    pub rounds: AtomicU64,
    /// When the last of these rounds ended.
    timers_ran: Mutex<Option<Instant>>,
    /// Timers that did something.
    pub fired: AtomicU64,
    /// Claims taken over.
    pub taken_over: AtomicU64,
    /// Step messages sent again by the sweep.
    pub swept: AtomicU64,
    /// Outgoing messages sent again by the sweep of the outbox.
    pub outgoing_swept: AtomicU64,
    /// Step messages that died on the broker, by reason.
    pub dead: Tally,
    /// What came of messages that others sent.
    pub intake: Arc<IntakeGauges>,
    /// Tasks removed after their retention.
    pub removed: AtomicU64,
}

impl Gauges {
    /// Says how long ago the timer loop last got through; `None` before it ever did.
    pub fn timers_silent(&self) -> Option<Duration> {
        self.timers_ran.lock().expect("no panic while held").map(|at| at.elapsed())
    }

    pub(crate) fn timers_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        *self.timers_ran.lock().expect("no panic while held") = Some(Instant::now());
    }
}

/// What the duties share.
pub(crate) struct Shared {
    pub engine: Engine,
    pub blobs: Blobs,
    pub registry: Registry,
    pub settings: Settings,
    pub members: Members,
    pub gauges: Arc<Gauges>,
}

impl Shared {
    /// Gives the partitions that are this scheduler's to look after now.
    pub fn partitions(&self) -> Vec<Partition> {
        Partition::all().filter(|partition| self.members.owns(*partition)).collect()
    }
}

/// A scheduler process.
pub struct Scheduler {
    shared: Arc<Shared>,
}

impl Scheduler {
    /// Makes a scheduler; nothing happens until [`Scheduler::run`].
    pub fn new(engine: Engine, blobs: Blobs, settings: Settings) -> Self {
        let members = Members::new(settings.id.clone());
        let gauges = Arc::new(Gauges::default());
        let registry = Registry::new(engine.clone());
        Self { shared: Arc::new(Shared { engine, blobs, registry, settings, members, gauges }) }
    }

    /// Gives the counts.
    pub fn gauges(&self) -> Arc<Gauges> {
        self.shared.gauges.clone()
    }

    /// Carries out all duties until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let shared = self.shared;
        let timers_every = shared.settings.timers_every;
        let sweeps_every = shared.settings.sweeps_every;
        let takeover_every = shared.settings.claim_length.to_std() / 10;
        let mut duties = JoinSet::new();
        let given = || (shared.clone(), shutdown.clone());
        duties.spawn(every(Membership, Members::INTERVAL, given()));
        duties.spawn(every(Timers::default(), timers_every, given()));
        duties.spawn(every(TakeOver::default(), takeover_every, given()));
        duties.spawn(every(ReadySweep::default(), sweeps_every, given()));
        duties.spawn(every(WorkSweep, sweeps_every, given()));
        duties.spawn(every(OutboxSweep, sweeps_every, given()));
        duties.spawn(every(Retention::default(), timers_every * 5, given()));
        duties.spawn(dead_steps::run(shared.clone(), shutdown.clone()));
        while let Some(ended) = duties.join_next().await {
            if let Err(error) = ended {
                // A scheduler that lacks a duty looks alive and is not: the process must end.
                tracing::error!(%error, "a duty ended by itself");
                shutdown.cancel();
            }
        }
        shared.members.withdraw(&shared.engine).await;
    }
}

/// Something a scheduler does again and again.
pub(crate) trait Duty: Send + 'static {
    /// What logs call it.
    const NAME: &'static str;

    /// Does it once.
    fn round(&mut self, shared: &Shared) -> impl Future<Output = Result<(), EngineError>> + Send;
}

/// Says that this scheduler lives, and hears of the others.
struct Membership;

impl Duty for Membership {
    const NAME: &'static str = "membership";

    async fn round(&mut self, shared: &Shared) -> Result<(), EngineError> {
        shared.members.refresh(&shared.engine).await
    }
}

/// Does a duty again and again. After a failure it waits longer, and says so once, unless the
/// engine has said it for all duties.
async fn every<D: Duty>(
    mut duty: D,
    interval: Duration,
    (shared, shutdown): (Arc<Shared>, CancellationToken),
) {
    let mut pause = interval;
    let mut failing = false;
    loop {
        match duty.round(&shared).await {
            Ok(()) => {
                if failing {
                    tracing::info!(duty = D::NAME, "duty goes on");
                }
                (pause, failing) = (interval, false);
            }
            Err(error) => {
                if error.is_outage() {
                    tracing::debug!(duty = D::NAME, %error, "duty waits");
                } else if !failing {
                    tracing::warn!(duty = D::NAME, %error, "duty waits");
                    failing = true;
                }
                pause = (pause * 2).min(PAUSE_MAX).max(interval);
            }
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
