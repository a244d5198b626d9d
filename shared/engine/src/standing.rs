//! How the store stands with this process. Every call goes through here, so that an outage is
//! said once, when it begins, and once more when it is over, however many duties, attempts and
//! requests meet it. What they do about it is theirs.
//!
//! Two troubles are told apart. A store that is *away* answers nothing; the next answer to any
//! call ends that. One that *refuses writes* (no memory, a replica, a disk that is full) still
//! answers reads, so only a write that was taken ends that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;

use crate::ports::{Clock, Load, Range, Store, StoreError, StoreHealth};

/// A read that failed within this span did not wait for an answer.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The wait before such a read is made once more.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What keeps the store from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Away,
    RefusesWrites,
}

/// What a call that went well has proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// The store answers.
    Answers,
    /// It takes writes.
    Writes,
}

#[derive(Default)]
struct State {
    /// The trouble, and when it began.
    trouble: Option<(Trouble, Duration)>,
    /// When the last trouble ended: what was asked before tells nothing new.
    well_since: Duration,
}

/// How the store stands, for logs, health and metrics.
#[derive(Default)]
pub struct Standing {
    state: Mutex<State>,
    failures: AtomicU64,
    outages: AtomicU64,
}

impl Standing {
    /// True while calls go well.
    pub fn is_well(&self) -> bool {
        self.lock().trouble.is_none()
    }

    /// Counts calls that the store did not carry out.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Counts how often a trouble began. After one the store may be older than it was: what a
    /// process remembers of it from before is to be read again.
    pub fn outages(&self) -> u64 {
        self.outages.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: &StoreError, asked: Duration, now: Duration) {
        let trouble = match error {
            StoreError::Unavailable(_) => Trouble::Away,
            StoreError::ReadOnly(_) => Trouble::RefusesWrites,
            StoreError::Corrupt(_) => return, // one record's trouble, told where it is read
        };
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        let known = state.trouble.map(|(known, _)| known);
        if asked < state.well_since || known == Some(trouble) {
            return;
        }
        let since = state.trouble.map_or(now, |(_, since)| since);
        state.trouble = Some((trouble, since));
        drop(state);
        self.outages.fetch_add(u64::from(known.is_none()), Ordering::Release);
        match trouble {
            Trouble::Away => {
                tracing::warn!(%error, "the store does not answer; work waits for it");
            }
            Trouble::RefusesWrites => {
                tracing::warn!(%error, "the store refuses writes; work waits for it");
            }
        }
    }

    fn went_well(&self, proof: Proof, asked: Duration, now: Duration) {
        let mut state = self.lock();
        let Some((trouble, since)) = state.trouble else { return };
        // An answer to what was asked before the trouble began says nothing of its end.
        if asked < since || (trouble == Trouble::RefusesWrites && proof == Proof::Answers) {
            return;
        }
        *state = State { trouble: None, well_since: now };
        drop(state);
        let seconds = now.saturating_sub(since).as_secs();
        tracing::info!(seconds, "the store answers and takes writes again; work goes on");
    }
}

/// Says whether a commit that was applied shows that writes are taken: what only removes is
/// done without memory too.
fn writes(commit: &Commit) -> bool {
    commit.writes.iter().any(|(_, bytes)| bytes.is_some())
        || !commit.events.is_empty()
        || commit.indexes.iter().any(|change| change.add)
}

/// A store whose calls are noted.
pub(crate) struct Noted {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub standing: Arc<Standing>,
}

impl Noted {
    async fn note<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send,
        proof: impl FnOnce(&T) -> Proof,
    ) -> Result<T, StoreError> {
        let asked = self.clock.monotonic();
        let answer = call.await;
        let now = self.clock.monotonic();
        match &answer {
            Ok(value) => self.standing.went_well(proof(value), asked, now),
            Err(error) => self.standing.failed(error, asked, now),
        }
        answer
    }
}

impl Noted {
    /// Reads; once more if that failed at once. The connection may have been an old one that
    /// was cut while nobody used it, which is no reason to refuse anybody anything.
    async fn read<T, F>(&self, call: impl Fn() -> F + Send + Sync) -> Result<T, StoreError>
    where
        T: Send,
        F: Future<Output = Result<T, StoreError>> + Send,
    {
        let asked = self.clock.monotonic();
        match self.note(call(), answers).await {
            Err(StoreError::Unavailable(_))
                if self.clock.monotonic().saturating_sub(asked) < AT_ONCE =>
            {
                self.clock.sleep(AGAIN_AFTER).await;
                self.note(call(), answers).await
            }
            answer => answer,
        }
    }
}

fn answers<T>(_: &T) -> Proof {
    Proof::Answers
}

#[async_trait]
impl Store for Noted {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        self.read(|| self.store.load(loads)).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let proof = |(_, given): &(Time, Vec<CommitAnswer>)| {
            let mut pairs = commits.iter().zip(given);
            match pairs.any(|(commit, answer)| answer.applied && writes(commit)) {
                true => Proof::Writes,
                false => Proof::Answers,
            }
        };
        self.note(self.store.commit(commits), proof).await
    }

    async fn events(
        &self,
        scope: &Scope,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.read(|| self.store.events(scope, from, limit)).await
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        self.read(|| self.store.ranges(ranges)).await
    }

    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError> {
        self.read(|| self.store.counts(indexes)).await
    }

    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError> {
        self.note(self.store.erase(task, limit), answers).await
    }

    async fn now(&self) -> Result<Time, StoreError> {
        self.read(|| self.store.now()).await
    }

    /// Health has connections of its own and is asked while nothing else is: it is not noted.
    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.store.health().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn away() -> StoreError {
        StoreError::Unavailable("gone".into())
    }

    fn refuses() -> StoreError {
        StoreError::ReadOnly("full".into())
    }

    #[test]
    fn an_outage_is_one_however_many_calls_meet_it() {
        let standing = Standing::default();
        for ms in 10..20 {
            standing.failed(&away(), at(ms), at(ms + 5));
        }
        assert_eq!((standing.is_well(), standing.outages(), standing.failures()), (false, 1, 10));
        standing.went_well(Proof::Answers, at(30), at(31));
        assert_eq!((standing.is_well(), standing.outages()), (true, 1));
    }

    #[test]
    fn calls_from_before_a_change_do_not_undo_it() {
        let standing = Standing::default();
        standing.failed(&away(), at(10), at(20));
        standing.went_well(Proof::Writes, at(15), at(21)); // asked before it was away
        assert!(!standing.is_well());
        standing.went_well(Proof::Writes, at(25), at(26));
        standing.failed(&away(), at(12), at(27)); // of the old connection
        assert_eq!((standing.is_well(), standing.outages()), (true, 1));
        standing.failed(&away(), at(28), at(29));
        assert_eq!((standing.is_well(), standing.outages()), (false, 2));
    }

    #[test]
    fn only_a_write_shows_that_writes_are_taken() {
        let standing = Standing::default();
        standing.failed(&refuses(), at(1), at(2));
        standing.went_well(Proof::Answers, at(3), at(4));
        assert!(!standing.is_well());
        standing.failed(&away(), at(5), at(6)); // it gets worse: still one outage
        standing.failed(&refuses(), at(7), at(8));
        assert_eq!(standing.outages(), 1);
        standing.went_well(Proof::Writes, at(9), at(10));
        assert!(standing.is_well());
    }

    #[test]
    fn a_corrupt_record_is_no_outage() {
        let standing = Standing::default();
        standing.failed(&StoreError::Corrupt("bytes".into()), at(1), at(2));
        assert_eq!((standing.is_well(), standing.failures()), (true, 0));
    }
}
