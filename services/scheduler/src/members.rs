//! Which schedulers live, and so which partitions are whose: partition `p` belongs to the
//! living scheduler at place `p mod n` of the sorted list. While the list changes, two may look
//! after one partition, or none for some seconds; both are harmless.

use std::sync::Mutex;
use std::time::Duration;

use standfast_domain::commit::{Commit, IndexChange, Scope};
use standfast_domain::ids::{Partition, WorkerId};
use standfast_domain::time::Span;
use standfast_engine::schedulers::{change, entries, entry, parse};
use standfast_engine::{Engine, EngineError};

/// How long a scheduler counts as living after it last said so: so much later, at most, timers
/// fire whose scheduler was killed. Several times the interval, so that a slow store moves no
/// partitions to and fro.
const LIVES: Span = Span::from_secs(5);

/// The list of living schedulers.
pub(crate) struct Members {
    id: WorkerId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    alive: Vec<String>,
    own: Option<String>,
}

impl Members {
    /// How often a scheduler says that it lives and reads who else does: so much later, at most,
    /// timers fire whose scheduler was told to end.
    pub const INTERVAL: Duration = Duration::from_secs(1);

    pub fn new(id: WorkerId) -> Self {
        Self { id, state: Mutex::default() }
    }

    /// True if the partition is this scheduler's.
    pub fn owns(&self, partition: Partition) -> bool {
        let state = self.state.lock().expect("no panic while held");
        let place = state.alive.iter().position(|name| name == self.id.as_str());
        match place {
            Some(place) => usize::from(partition.number()) % state.alive.len() == place,
            None => true, // not listed yet: better twice than never
        }
    }

    /// Says that this scheduler lives, and reads who else does.
    pub async fn refresh(&self, engine: &Engine) -> Result<(), EngineError> {
        let now = engine.now().await?;
        let own = entry(self.id.as_str(), now.after(LIVES));
        let before = self.state.lock().expect("no panic while held").own.replace(own.clone());
        let mut changes = vec![change(own, true)];
        changes.extend(before.map(|before| change(before, false)));
        let mut alive = vec![self.id.to_string()];
        for entry in entries(engine).await? {
            match parse(&entry) {
                Some((name, until)) if until > now => alive.push(name.to_owned()),
                Some(_) | None => changes.push(change(entry, false)),
            }
        }
        engine.commit_raw(commit(engine, changes)).await?;
        alive.sort();
        alive.dedup();
        self.state.lock().expect("no panic while held").alive = alive;
        Ok(())
    }

    /// Says that this scheduler ends, so that others take over at once.
    pub async fn withdraw(&self, engine: &Engine) {
        let own = self.state.lock().expect("no panic while held").own.take();
        let Some(own) = own else { return };
        if let Err(error) = engine.commit_raw(commit(engine, vec![change(own, false)])).await {
            tracing::debug!(%error, "not withdrawn; it expires");
        }
    }
}

/// Forgets all schedulers, at the start of the embedded mode, whose exclusive lock proves that
/// none lives: until its entry expired, a dead one would keep half of the partitions.
pub async fn forget_schedulers(engine: &Engine) -> Result<(), EngineError> {
    loop {
        let entries = entries(engine).await?;
        if entries.is_empty() {
            return Ok(());
        }
        let gone = entries.into_iter().map(|entry| change(entry, false)).collect();
        engine.commit_raw(commit(engine, gone)).await?;
    }
}

fn commit(engine: &Engine, indexes: Vec<IndexChange>) -> Commit {
    Commit {
        id: engine.commit_id(),
        scope: Scope::Installation,
        guards: Vec::new(),
        writes: Vec::new(),
        first_event: 0,
        events: Vec::new(),
        indexes,
        returns: Vec::new(),
    }
}
