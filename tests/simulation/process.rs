//! One process of a simulated installation, as its ports see it.
//!
//! A process acts on the world only through its ports and its handlers, and each of their calls
//! goes through [`Process::pass`]. So a killed process is one whose calls never return: like
//! one that was killed with -9 it runs no destructor and does nothing more, wherever it stood.
//! A frozen one's calls return when it is thawed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use standfast_engine::ports::{Clock, Ids};
use tokio_util::sync::CancellationToken;

use crate::faults::Fault;
use crate::random::Random;
use crate::trace::pause;
use crate::world::World;

/// How much more often than elsewhere something strikes at a moment that matters.
const MATTERS: u64 = 600;

/// The process.
pub struct Process {
    pub name: String,
    pub world: Arc<World>,
    /// True if its store and broker are within it: what it sent dies with it.
    pub whole: bool,
    state: Mutex<State>,
    down: CancellationToken,
    ids: Mutex<Random>,
    /// Its monotonic clock begins anywhere.
    began: Duration,
}

/// What keeps a process from its work; the gravest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    Down,
    Frozen,
    CutOff,
}

#[derive(Default)]
struct State {
    /// Cancelled when it goes on; none while it runs.
    thaw: Option<CancellationToken>,
    frozen_at: Duration,
    suspended: bool,
    /// The time that its clock has stood still.
    lost: Duration,
    /// Until when it does not reach the store.
    cut_off: Duration,
    /// From when to when it was in trouble.
    troubles: Vec<(Trouble, Duration, Duration)>,
}

impl Process {
    pub fn new(world: &Arc<World>, name: String, whole: bool) -> Arc<Self> {
        let (began, ids) = {
            let mut random = world.random.lock().unwrap();
            (random.millis(0, 1_000_000_000), random.fork())
        };
        Arc::new(Self {
            name,
            world: world.clone(),
            whole,
            state: Mutex::default(),
            down: CancellationToken::new(),
            ids: Mutex::new(ids),
            began,
        })
    }

    /// Returns while the process runs; never if it was killed. At times it is killed or frozen
    /// right here: between a call's effect and its answer, for instance.
    pub async fn pass(self: &Arc<Self>) {
        self.strike(1);
        self.wait().await;
    }

    /// Like [`Process::pass`], at a moment that is worth striking at.
    pub async fn pass_at(self: &Arc<Self>, moment: &str) {
        if let Some(fault) = self.strike(MATTERS) {
            self.world.trace.count(&format!("{fault:?} {moment}"));
        }
        self.wait().await;
    }

    fn strike(self: &Arc<Self>, scale: u64) -> Option<Fault> {
        let world = &self.world;
        if self.is_down() || self.state.lock().unwrap().thaw.is_some() {
            return None;
        }
        for fault in [Fault::Killed, Fault::Stopped, Fault::Suspended] {
            if !world.faults.strikes_rarely(fault, scale, &world.random) {
                continue;
            }
            world.trace.count(&fault.name());
            world.trace.say(&self.name, format_args!("{fault:?} at a call"));
            if fault == Fault::Killed {
                self.kill();
                return Some(fault);
            }
            self.freeze(fault == Fault::Suspended);
            let (frozen, span) = (self.clone(), world.span(100, 4 * world.claim_length.0));
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = frozen.world.calm.cancelled() => {}
                    () = pause(span) => {}
                }
                frozen.world.trace.say(&frozen.name, format_args!("goes on"));
                frozen.thaw();
            });
            return Some(fault);
        }
        None
    }

    async fn wait(&self) {
        loop {
            if self.down.is_cancelled() {
                return std::future::pending().await;
            }
            let Some(thaw) = self.state.lock().unwrap().thaw.clone() else { return };
            tokio::select! {
                biased;
                () = self.down.cancelled() => {}
                () = thaw.cancelled() => {}
            }
        }
    }

    pub fn is_down(&self) -> bool {
        self.down.is_cancelled()
    }

    /// Waits until it is killed or has ended.
    pub async fn down(&self) {
        self.down.cancelled().await;
    }

    pub fn kill(&self) {
        if !self.is_down() {
            self.suffers(Trouble::Down, Duration::MAX);
        }
        self.down.cancel();
    }

    pub fn freeze(&self, suspended: bool) {
        let mut state = self.state.lock().unwrap();
        if state.thaw.is_some() {
            return;
        }
        state.thaw = Some(CancellationToken::new());
        state.frozen_at = self.world.trace.elapsed();
        state.suspended = suspended;
    }

    pub fn thaw(&self) {
        let mut state = self.state.lock().unwrap();
        let Some(thaw) = state.thaw.take() else { return };
        let (from, to) = (state.frozen_at, self.world.trace.elapsed());
        state.troubles.push((Trouble::Frozen, from, to));
        if state.suspended {
            state.lost += to - from;
        }
        thaw.cancel();
    }

    /// True if its clock is behind, since it was suspended at some time.
    pub fn clock_stood_still(&self) -> bool {
        !self.stood_still().is_zero()
    }

    /// Gives for how long its clock has stood still.
    pub fn stood_still(&self) -> Duration {
        self.state.lock().unwrap().lost
    }

    fn suffers(&self, trouble: Trouble, until: Duration) {
        let now = self.world.trace.elapsed();
        self.state.lock().unwrap().troubles.push((trouble, now, until));
    }

    /// Gives what kept it from its work at some moment of a time.
    pub fn trouble_between(&self, from: Duration, to: Duration) -> Option<Trouble> {
        let state = self.state.lock().unwrap();
        let frozen = state.thaw.is_some().then_some((Trouble::Frozen, state.frozen_at, to));
        let within =
            |(_, began, ended): &&(Trouble, Duration, Duration)| *began <= to && *ended >= from;
        let all = state.troubles.iter().chain(frozen.as_ref());
        all.filter(within).map(|(trouble, _, _)| *trouble).min()
    }

    pub fn cut_off(&self, until: Duration) {
        self.suffers(Trouble::CutOff, until);
        self.state.lock().unwrap().cut_off = until;
    }

    pub fn is_cut_off(&self) -> bool {
        let cut_off = self.state.lock().unwrap().cut_off;
        !self.world.faults.is_calm() && self.world.trace.elapsed() < cut_off
    }
}

/// A process under the name of its clock and ids.
pub struct Own(pub Arc<Process>);

#[async_trait]
impl Clock for Own {
    fn monotonic(&self) -> Duration {
        let state = self.0.state.lock().unwrap();
        let stands = state.thaw.is_some() && state.suspended;
        let now = if stands { state.frozen_at } else { self.0.world.trace.elapsed() };
        self.0.began + now - state.lost
    }

    async fn sleep(&self, span: Duration) {
        pause(span).await;
        self.0.pass().await;
    }
}

impl Ids for Own {
    fn random(&self) -> [u8; 16] {
        let mut ids = self.0.ids.lock().unwrap();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&ids.next().to_be_bytes());
        bytes[8..].copy_from_slice(&ids.next().to_be_bytes());
        bytes
    }
}
