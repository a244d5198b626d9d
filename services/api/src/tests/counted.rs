//! A store that counts what is asked of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;
use standfast_engine::ports::{Load, Range, Store, StoreError, StoreHealth};

/// Counts the calls to another store and keeps what was written.
pub(crate) struct Counted<S> {
    store: S,
    reads: AtomicUsize,
    records: AtomicUsize,
    ranges: AtomicUsize,
    /// The scopes and fields of all commits and removals.
    written: Mutex<Vec<String>>,
}

impl<S: Store> Counted<S> {
    pub fn new(store: S) -> Self {
        let [reads, records, ranges] = [0; 3].map(AtomicUsize::new);
        Self { store, reads, records, ranges, written: Mutex::default() }
    }

    /// Gives how many calls have read, whatever each has read.
    pub fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    /// Gives how many records were asked for.
    pub fn records(&self) -> usize {
        self.records.load(Ordering::SeqCst)
    }

    /// Gives how many ranges of indexes were asked for.
    pub fn ranges_read(&self) -> usize {
        self.ranges.load(Ordering::SeqCst)
    }

    /// Gives what was written so far.
    pub fn written(&self) -> Vec<String> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::SeqCst);
    }

    fn note(&self, what: String) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

#[async_trait]
impl<S: Store> Store for Counted<S> {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        self.count_read();
        let fields = loads.iter().map(|load| load.fields.len()).sum();
        self.records.fetch_add(fields, Ordering::SeqCst);
        self.store.load(loads).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        for commit in commits {
            let fields: Vec<&String> = commit.writes.iter().map(|(field, _)| field).collect();
            self.note(format!("{:?}: {fields:?}, {} events", commit.scope, commit.events.len()));
        }
        self.store.commit(commits).await
    }

    async fn events(
        &self,
        scope: &Scope,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.count_read();
        self.store.events(scope, from, limit).await
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        self.count_read();
        self.ranges.fetch_add(ranges.len(), Ordering::SeqCst);
        self.store.ranges(ranges).await
    }

    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError> {
        self.count_read();
        self.store.counts(indexes).await
    }

    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError> {
        self.note(format!("{task}: erased"));
        self.store.erase(task, limit).await
    }

    async fn now(&self) -> Result<Time, StoreError> {
        self.count_read();
        self.store.now().await
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.store.health().await
    }
}
