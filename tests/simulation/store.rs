//! The way from one process to the store: slow, lossy, sometimes shut.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;
use standfast_engine::ports::{Load, Range, Store, StoreError, StoreHealth};
use standfast_tests::memory_store::MemoryStore;

use crate::faults::Fault;
use crate::process::Process;
use crate::trace::pause;

/// A process's store.
pub struct WireStore(pub Arc<Process>);

/// What becomes of one call.
struct Fate {
    /// The way there.
    there: Duration,
    /// The way back.
    back: Duration,
    half: bool,
    lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

impl WireStore {
    /// Draws what becomes of a call; an error if it never gets there.
    fn fate(&self, kind: Kind) -> Result<Fate, (Duration, StoreError)> {
        let world = &self.0.world;
        let strikes = |fault, scale| {
            let struck = world.faults.strikes(fault, scale, &world.random);
            if struck {
                world.trace.count(&fault.name());
            }
            struck
        };
        let span = |first, last| world.random.lock().unwrap().millis(first, last);
        let (now, shut) = (world.trace.elapsed(), "it does not answer".to_owned());
        if world.faults.store_down(now) || self.0.is_cut_off() {
            return Err((span(0, 2_000), StoreError::Unavailable(shut)));
        }
        if kind == Kind::Write && world.faults.read_only(now) {
            return Err((span(0, 20), StoreError::ReadOnly("it takes no writes".to_owned())));
        }
        if strikes(Fault::StoreFails, 1) {
            return Err((span(0, 1_000), StoreError::Unavailable(shut)));
        }
        let mut fate = Fate { there: span(0, 2), back: span(0, 2), half: false, lost: false };
        if strikes(Fault::SlowAnswer, 1) {
            fate.there = span(0, 3_000);
            fate.back = span(0, 3_000);
        }
        if kind == Kind::Write {
            fate.half = strikes(Fault::HalfApplied, 2);
            fate.lost = fate.half || strikes(Fault::AnswerLost, 1);
        }
        Ok(fate)
    }

    /// Carries out a call. Once it has left, it gets there whatever becomes of its caller.
    async fn call<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl FnOnce(&Process, &MemoryStore, bool) -> T + Send + 'static,
    ) -> Result<(Time, T), StoreError> {
        self.0.pass().await;
        let fate = match self.fate(kind) {
            Ok(fate) => fate,
            Err((after, error)) => {
                pause(after).await;
                self.0.pass().await;
                return Err(error);
            }
        };
        let process = self.0.clone();
        let arrive = move || {
            let answer = work(&process, &process.world.store, fate.half);
            (process.world.store.time(), answer)
        };
        let answer = if fate.there.is_zero() {
            arrive()
        } else {
            let (process, (reply, answer)) = (self.0.clone(), tokio::sync::oneshot::channel());
            tokio::spawn(async move {
                pause(fate.there).await;
                if process.whole && process.is_down() {
                    return; // its store is within it
                }
                let _ = reply.send(arrive()); // its caller may be gone
            });
            match answer.await {
                Ok(answer) => answer,
                Err(_) => std::future::pending().await,
            }
        };
        pause(fate.back).await;
        self.0.pass().await;
        if fate.lost || self.0.is_cut_off() {
            return Err(StoreError::Unavailable("the answer was lost".to_owned()));
        }
        Ok(answer)
    }
}

#[async_trait]
impl Store for WireStore {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        let loads = loads.to_vec();
        self.call(Kind::Read, move |_, store, _| store.load_now(&loads)).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let commits = commits.to_vec();
        let fails = *self.0.world.fails.lock().unwrap();
        if fails.is_some_and(|fails| commits.iter().any(fails)) {
            self.0.pass().await;
            return Err(StoreError::Unavailable("it does not answer".to_owned()));
        }
        let work = move |process: &Process, store: &MemoryStore, half: bool| {
            let first = if half { commits.len() / 2 } else { commits.len() };
            let one = |commit: &Commit| {
                let before = process.world.before_stop(commit);
                let applied = store.commit_now(std::slice::from_ref(commit)).remove(0);
                process.world.saw_commit(&process.name, commit, &applied);
                if applied.written {
                    process.world.settles(commit, before);
                }
                applied.answer
            };
            commits[..first].iter().map(one).collect()
        };
        self.call(Kind::Write, work).await
    }

    async fn events(
        &self,
        scope: &Scope,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let scope = scope.clone();
        let work = move |_: &Process, store: &MemoryStore, _| store.events_now(&scope, from, limit);
        Ok(self.call(Kind::Read, work).await?.1)
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        let ranges = ranges.to_vec();
        Ok(self.call(Kind::Read, move |_, store, _| store.ranges_now(&ranges)).await?.1)
    }

    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError> {
        let indexes = indexes.to_vec();
        Ok(self.call(Kind::Read, move |_, store, _| store.counts_now(&indexes)).await?.1)
    }

    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError> {
        let task = task.clone();
        let work = move |process: &Process, store: &MemoryStore, _| {
            let left = store.erase_now(&task, limit);
            process.world.trace.say(&process.name, format_args!("erase {task}, left: {left}"));
            left
        };
        Ok(self.call(Kind::Write, work).await?.1)
    }

    async fn now(&self) -> Result<Time, StoreError> {
        Ok(self.call(Kind::Read, |_, _, _| ()).await?.0)
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.0.world.store.health().await
    }
}
