//! The store for one process: one file, `standfast.redb`, in a directory of its own.
//!
//! A file `standfast.lock` beside it is locked for as long as the store lives, so a second
//! process is refused ([`OpenError::Held`]) even in the moment when the database is reopened
//! after an I/O error.
//!
//! Writing: one thread takes all calls that wait and makes one transaction of them
//! (`writer`), synced to disk before anyone is answered: the sync is nearly all of the cost.
//! Reading: snapshots, on tokio's blocking threads, since a page may have to come from disk.
//!
//! Time is the later of the system's and the latest given, which each transaction stores.

mod file;
mod read;
mod tables;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::TaskId;
use standfast_domain::time::{Span, Time};
use standfast_engine::ports::{Load, Range, Store, StoreError, StoreHealth};

use self::file::File;
use self::writer::{Job, Writer};
use crate::limits;

/// How far the system's clock may lag behind the latest time given before health says so.
const CLOCK_LAG_MAX: Span = Span::from_secs(5);

/// Why a directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory; only one may.
    #[error("open {}: another process holds it, stop that one first", .0.display())]
    Held(PathBuf),
    /// The file system said no.
    #[error("open {}: {source}", path.display())]
    Io {
        /// What was opened.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The file is not one of ours, or damaged: restore a copy.
    #[error("open {}: {reason}", path.display())]
    Corrupt {
        /// What was opened.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A newer version wrote the file: use that version.
    #[error("open {}: format {found} is newer than format {known} of this version", path.display())]
    Newer {
        /// What was opened.
        path: PathBuf,
        /// The format found.
        found: u64,
        /// The newest format known here.
        known: u64,
    },
}

/// The time that never goes back.
struct Latest {
    /// In milliseconds.
    given: AtomicI64,
    /// The system's clock; tests give another.
    system: Box<dyn Fn() -> Time + Send + Sync>,
}

impl Latest {
    fn now(&self) -> Time {
        let system = (self.system)();
        Time(system.0.max(self.given.fetch_max(system.0, Ordering::AcqRel)))
    }
}

fn system_time() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Keeps everything in one file. Methods need a tokio runtime; dropping the store waits for the
/// transaction under way and frees the directory.
pub struct RedbStore {
    path: PathBuf,
    file: Arc<File>,
    latest: Arc<Latest>,
    writer: Writer,
}

impl RedbStore {
    /// Opens a directory, making it and the file where they are missing. Blocks: after a crash
    /// the file is checked, which takes about as long as reading it.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.join("standfast.redb");
        Self::build(path.clone(), File::open(directory, path)?, Box::new(system_time))
    }

    fn build(
        path: PathBuf,
        file: File,
        system: Box<dyn Fn() -> Time + Send + Sync>,
    ) -> Result<Self, OpenError> {
        let io = |source| OpenError::Io { path: path.clone(), source };
        let stored = file.run(read::latest).map_err(|error| io(std::io::Error::other(error)))?;
        let file = Arc::new(file);
        let latest = Arc::new(Latest { given: AtomicI64::new(stored.0), system });
        let writer = Writer::start(Arc::clone(&file), Arc::clone(&latest)).map_err(io)?;
        Ok(Self { path, file, latest, writer })
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&::redb::Database) -> Result<T, ::redb::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        tokio::task::spawn_blocking(move || file.run(work))
            .await
            .map_err(|error| StoreError::Unavailable(format!("the read was cut off: {error}")))?
    }
}

impl Drop for RedbStore {
    fn drop(&mut self) {
        self.writer.stop();
        self.file.close();
    }
}

#[async_trait]
impl Store for RedbStore {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        limits::check_loads(loads);
        let loads = loads.to_vec();
        let records = self.read(move |database| read::records(database, &loads)).await?;
        Ok((self.latest.now(), tables::decoded(records)?))
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        limits::check_commits(commits);
        let commits = commits.to_vec();
        self.writer.ask(|reply| Job::Commit { commits, reply }).await
    }

    async fn events(
        &self,
        scope: &Scope,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        limits::check_size("events read", limit);
        let scope = scope.clone();
        self.read(move |database| read::events(database, &scope, from, limit)).await
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        limits::check_ranges(ranges);
        let ranges = ranges.to_vec();
        self.read(move |database| read::ranges(database, &ranges)).await
    }

    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError> {
        let indexes = indexes.to_vec();
        self.read(move |database| read::counts(database, &indexes)).await
    }

    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError> {
        limits::check_size("records and events erased", limit);
        let task = task.clone();
        self.writer.ask(|reply| Job::Erase { task, limit, reply }).await
    }

    async fn now(&self) -> Result<Time, StoreError> {
        self.read(read::latest).await?;
        Ok(self.latest.now())
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.now().await?;
        let mut health = StoreHealth {
            product: format!("redb {}", self.path.display()),
            durable: true,
            ..StoreHealth::default()
        };
        let lag = self.latest.now().since((self.latest.system)());
        if lag > CLOCK_LAG_MAX {
            health.warnings.push(format!(
                "the system's clock is {} s behind the latest time given, and timers wait until \
                 it has caught up: correct it",
                lag.0 / 1_000
            ));
        }
        Ok(health)
    }
}
