//! A store in memory for the simulator: what the port promises and nothing else, without threads,
//! files or a clock of its own, so that the same calls always give the same answers. The
//! conformance suite holds it to the same cases as the stores of the product.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use standfast_domain::commit::{Commit, CommitAnswer, CommitId, Home, Scope, StoredRecord};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;
use standfast_engine::ports::{BATCH_MAX, Load, Range, Store, StoreError, StoreHealth};

/// The record that makes a task exist for its claims; it is removed first.
const HEADER: &str = "header";

/// All that is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Records by scope and field.
    pub records: BTreeMap<Scope, BTreeMap<String, StoredRecord>>,
    /// Events by scope and number.
    pub events: BTreeMap<Scope, BTreeMap<u64, Vec<u8>>>,
    /// Members of indexes; no index is empty.
    pub indexes: BTreeMap<Home, BTreeMap<String, BTreeSet<String>>>,
}

/// What the store said to one commit.
pub struct Applied {
    pub answer: CommitAnswer,
    /// True if it was written now, false if it was refused or had been written before.
    pub written: bool,
}

/// The store.
pub struct MemoryStore {
    contents: Mutex<Contents>,
    latest: Mutex<Time>,
    clock: Box<dyn Fn() -> Time + Send + Sync>,
}

impl MemoryStore {
    /// Makes an empty store over a clock; the time it gives never goes back.
    pub fn new(clock: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        let latest = Mutex::new(Time(0));
        Self { contents: Mutex::default(), latest, clock: Box::new(clock) }
    }

    /// Gives the time.
    pub fn time(&self) -> Time {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = (*latest).max((self.clock)());
        *latest
    }

    /// Looks at everything.
    pub fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn load_now(&self, loads: &[Load]) -> Vec<Vec<Option<StoredRecord>>> {
        let contents = self.contents();
        let one = |load: &Load| {
            assert!(load.fields.len() <= BATCH_MAX, "a load names at most {BATCH_MAX} records");
            load.fields.iter().map(|field| contents.record(&load.scope, field).cloned()).collect()
        };
        loads.iter().map(one).collect()
    }

    pub fn commit_now(&self, commits: &[Commit]) -> Vec<Applied> {
        let mut contents = self.contents();
        commits.iter().map(|commit| contents.commit(commit)).collect()
    }

    pub fn events_now(&self, scope: &Scope, from: u64, limit: usize) -> Vec<Vec<u8>> {
        let contents = self.contents();
        let events = contents.events.get(scope).into_iter().flat_map(|events| events.range(from..));
        events.take(limit).map(|(_, event)| event.clone()).collect()
    }

    pub fn ranges_now(&self, ranges: &[Range]) -> Vec<Vec<String>> {
        let contents = self.contents();
        ranges.iter().map(|range| contents.range(range)).collect()
    }

    pub fn counts_now(&self, indexes: &[(Home, String)]) -> Vec<u64> {
        let contents = self.contents();
        let count = |(home, index): &(Home, String)| {
            let members = contents.indexes.get(home).and_then(|indexes| indexes.get(index));
            members.map_or(0, |members| members.len() as u64)
        };
        indexes.iter().map(count).collect()
    }

    pub fn erase_now(&self, task: &TaskId, limit: usize) -> bool {
        self.contents().erase(&Scope::Task(task.clone()), limit)
    }
}

impl Contents {
    /// Gives one record.
    pub fn record(&self, scope: &Scope, field: &str) -> Option<&StoredRecord> {
        self.records.get(scope)?.get(field)
    }

    fn commit(&mut self, commit: &Commit) -> Applied {
        check(commit);
        let stands = self.stands(commit);
        let written = !stands && self.allowed(commit);
        if written {
            self.write(commit);
        }
        let record = |field: &String| self.record(&commit.scope, field).cloned();
        let records = commit.returns.iter().map(record).collect();
        Applied { answer: CommitAnswer { applied: stands || written, records }, written }
    }

    fn stands(&self, commit: &Commit) -> bool {
        if !commit.events.is_empty() {
            let events = self.events.get(&commit.scope);
            let found = events.and_then(|events| events.get(&commit.first_event));
            return found.is_some_and(|event| starts_with(event, commit.id));
        }
        let first = commit.writes.iter().find(|(_, bytes)| bytes.is_some());
        first
            .and_then(|(field, _)| self.record(&commit.scope, field))
            .is_some_and(|found| found.version == commit.id)
    }

    fn allowed(&self, commit: &Commit) -> bool {
        let version = |field| self.record(&commit.scope, field).map(|found| found.version);
        let guarded = commit.guards.iter().all(|guard| version(&guard.field) == guard.version);
        let events = self.events.get(&commit.scope);
        let last = events.and_then(|events| events.last_key_value());
        let next = last.map_or(0, |(number, _)| number + 1);
        guarded && (commit.events.is_empty() || next == commit.first_event)
    }

    fn write(&mut self, commit: &Commit) {
        let records = self.records.entry(commit.scope.clone()).or_default();
        for (field, bytes) in &commit.writes {
            match bytes {
                Some(bytes) => {
                    let record = StoredRecord { version: commit.id, bytes: bytes.clone() };
                    records.insert(field.clone(), record);
                }
                None => drop(records.remove(field)),
            }
        }
        if records.is_empty() {
            self.records.remove(&commit.scope);
        }
        if !commit.events.is_empty() {
            let events = self.events.entry(commit.scope.clone()).or_default();
            events.extend((commit.first_event..).zip(commit.events.iter().cloned()));
        }
        let indexes = self.indexes.entry(commit.scope.home()).or_default();
        for change in &commit.indexes {
            let members = indexes.entry(change.index.clone()).or_default();
            match change.add {
                true => drop(members.insert(change.member.clone())),
                false => drop(members.remove(&change.member)),
            }
            if members.is_empty() {
                indexes.remove(&change.index);
            }
        }
    }

    fn range(&self, range: &Range) -> Vec<String> {
        assert!(range.limit <= BATCH_MAX, "a page has at most {BATCH_MAX} members");
        let members = self.indexes.get(&range.home).and_then(|found| found.get(&range.index));
        let Some(members) = members else { return Vec::new() };
        let after = match range.after.is_empty() {
            true => Bound::Unbounded,
            false => Bound::Excluded(range.after.as_str()),
        };
        let before = range.before.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        if let (Bound::Excluded(after), Bound::Excluded(before)) = (after, before)
            && after >= before
        {
            return Vec::new();
        }
        let found = members.range::<str, _>((after, before));
        match range.reverse {
            true => found.rev().take(range.limit).cloned().collect(),
            false => found.take(range.limit).cloned().collect(),
        }
    }

    fn erase(&mut self, scope: &Scope, limit: usize) -> bool {
        let mut room = limit.max(1);
        let records = self.records.entry(scope.clone()).or_default();
        room -= usize::from(records.remove(HEADER).is_some());
        while room > 0 && records.pop_first().is_some() {
            room -= 1;
        }
        let events = self.events.entry(scope.clone()).or_default();
        while room > 0 && events.pop_first().is_some() {
            room -= 1;
        }
        let left = !records.is_empty() || !events.is_empty();
        self.records.retain(|_, records| !records.is_empty());
        self.events.retain(|_, events| !events.is_empty());
        left
    }
}

fn starts_with(event: &[u8], id: CommitId) -> bool {
    CommitId::parse_prefix(event).is_some_and(|(found, _)| found == id)
}

/// A breach is a bug of the caller, as it is for the stores of the product.
fn check(commit: &Commit) {
    let most = [commit.guards.len(), commit.writes.len(), commit.events.len()];
    let most = most.into_iter().chain([commit.indexes.len(), commit.returns.len()]).max();
    assert!(most <= Some(BATCH_MAX), "a commit changes at most {BATCH_MAX} of each");
    let fields: BTreeSet<&str> = commit.writes.iter().map(|(field, _)| field.as_str()).collect();
    assert!(fields.len() == commit.writes.len(), "commit {} writes a record twice", commit.id);
    let own = commit.events.iter().all(|event| starts_with(event, commit.id));
    assert!(own, "an event of commit {} does not start with its id", commit.id);
}

#[async_trait]
impl Store for MemoryStore {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        Ok((self.time(), self.load_now(loads)))
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let answers = self.commit_now(commits).into_iter().map(|applied| applied.answer);
        Ok((self.time(), answers.collect()))
    }

    async fn events(
        &self,
        scope: &Scope,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        Ok(self.events_now(scope, from, limit))
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        Ok(self.ranges_now(ranges))
    }

    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError> {
        Ok(self.counts_now(indexes))
    }

    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError> {
        Ok(self.erase_now(task, limit))
    }

    async fn now(&self) -> Result<Time, StoreError> {
        Ok(self.time())
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        Ok(StoreHealth { product: "memory".to_owned(), durable: true, ..StoreHealth::default() })
    }
}
