//! The open database, and its reopening.
//!
//! After an I/O error redb refuses everything until the database is opened again, which also
//! checks the file and drops what was half written. So an error here marks the database as
//! failed, and the next call opens it anew, at most once a second: a disk that was full heals
//! without a restart.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ::redb::{Database, DatabaseError, Durability, Error, WriteTransaction};
use standfast_engine::ports::StoreError;

use super::OpenError;
use super::tables::{self, FORMAT};

/// Bytes of redb's page cache: the embedded mode shares its machine with other work.
const CACHE_BYTES: usize = 64 << 20;
/// The least time between two attempts to reopen, since each may read the whole file.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

type Opener = Box<dyn Fn() -> Result<Database, OpenError> + Send + Sync>;

enum State {
    Open(Database),
    /// The database must be opened before it can be used; when that last failed, and how.
    Failed(Option<(Instant, StoreError)>),
    Closed,
}

/// The database, for as long as the store lives.
pub(super) struct File {
    state: RwLock<State>,
    opener: Opener,
    /// Held until the database is closed.
    lock: Mutex<Option<std::fs::File>>,
}

impl File {
    /// Locks the directory and opens the database in it.
    pub(super) fn open(directory: &Path, path: PathBuf) -> Result<Self, OpenError> {
        let lock = lock(directory)?;
        Self::with_opener(Some(lock), Box::new(move || open_database(&path)))
    }

    pub(super) fn with_opener(
        lock: Option<std::fs::File>,
        opener: Opener,
    ) -> Result<Self, OpenError> {
        let state = RwLock::new(State::Open(opener()?));
        Ok(Self { state, opener, lock: Mutex::new(lock) })
    }

    /// Runs work on the database, opening it first if it failed earlier.
    pub(super) fn run<T>(
        &self,
        work: impl FnOnce(&Database) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.reopen_if_failed()?;
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let database = match &*state {
            State::Open(database) => database,
            State::Failed(_) => return Err(StoreError::Unavailable("it just failed".into())),
            State::Closed => return Err(StoreError::Unavailable("it was closed".into())),
        };
        let result = catch_unwind(AssertUnwindSafe(|| work(database)));
        drop(state);
        let (error, reopen) = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => judge(error),
            Err(_) => (StoreError::Corrupt("redb panicked over its file".into()), true),
        };
        if reopen {
            tracing::warn!(%error, "the database is opened anew after an error");
            *self.state.write().unwrap_or_else(PoisonError::into_inner) = State::Failed(None);
        }
        Err(error)
    }

    /// Waits for work under way, closes the database and frees the directory.
    pub(super) fn close(&self) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = State::Closed;
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn reopen_if_failed(&self) -> Result<(), StoreError> {
        let failed = |state: &State| matches!(state, State::Failed(_));
        if !failed(&self.state.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State::Failed(last) = &*state else {
            return Ok(());
        };
        if let Some((at, error)) = last
            && at.elapsed() < REOPEN_PAUSE
        {
            return Err(error.clone());
        }
        match (self.opener)() {
            Ok(database) => {
                *state = State::Open(database);
                Ok(())
            }
            Err(error) => {
                let error = match &error {
                    OpenError::Io { source, .. } => judge_io(source),
                    OpenError::Held(_) => StoreError::Unavailable(error.to_string()),
                    OpenError::Corrupt { .. } | OpenError::Newer { .. } => {
                        StoreError::Corrupt(error.to_string())
                    }
                };
                *state = State::Failed(Some((Instant::now(), error.clone())));
                Err(error)
            }
        }
    }
}

fn lock(directory: &Path) -> Result<std::fs::File, OpenError> {
    let path = directory.join("standfast.lock");
    let io = |source| OpenError::Io { path: path.clone(), source };
    std::fs::create_dir_all(directory).map_err(io)?;
    let options = std::fs::File::options().write(true).create(true).truncate(false).to_owned();
    let file = options.open(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::Held(directory.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(io(source)),
    }
}

fn open_database(path: &Path) -> Result<Database, OpenError> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    prepared(path, || builder.create(path))
}

/// Opens a database, makes its tables and checks its format. redb may panic over a file that
/// someone else changed; that is damage, not a reason to end the process.
pub(super) fn prepared(
    path: &Path,
    open: impl FnOnce() -> Result<Database, DatabaseError>,
) -> Result<Database, OpenError> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let database = open()?;
        let transaction = begin_write(&database)?;
        let found = tables::prepare(&transaction)?;
        if found == Some(FORMAT) {
            transaction.commit()?;
        } else {
            transaction.abort()?;
        }
        Ok((database, found))
    }));
    let path = path.to_owned();
    let corrupt = |reason: &str| OpenError::Corrupt { path: path.clone(), reason: reason.into() };
    match result {
        Ok(Ok((database, Some(FORMAT)))) => Ok(database),
        Ok(Ok((_, Some(found)))) if found > FORMAT => {
            Err(OpenError::Newer { path, found, known: FORMAT })
        }
        Ok(Ok(_)) => Err(corrupt("it is a redb database, but not one of Standfast's")),
        Ok(Err(Error::DatabaseAlreadyOpen | Error::LockProtocolMismatch)) => {
            Err(OpenError::Held(path))
        }
        Ok(Err(Error::Io(source))) if source.kind() != ErrorKind::InvalidData => {
            Err(OpenError::Io { path, source })
        }
        Ok(Err(error)) => Err(corrupt(&error.to_string())),
        Err(_) => Err(corrupt("redb panicked over it: it is damaged")),
    }
}

/// Begins a transaction that is on disk once it is committed.
pub(super) fn begin_write(database: &Database) -> Result<WriteTransaction, Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    Ok(transaction)
}

/// Says what an error means, and whether the database must be opened anew.
fn judge(error: Error) -> (StoreError, bool) {
    match error {
        Error::Io(source) => (judge_io(&source), true),
        Error::PreviousIo | Error::DatabaseClosed => {
            (StoreError::Unavailable(error.to_string()), true)
        }
        Error::ValueTooLarge(_) => (StoreError::ReadOnly(error.to_string()), false),
        other => (StoreError::Corrupt(other.to_string()), false),
    }
}

fn judge_io(source: &std::io::Error) -> StoreError {
    match source.kind() {
        ErrorKind::StorageFull
        | ErrorKind::QuotaExceeded
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::FileTooLarge
        | ErrorKind::PermissionDenied => StoreError::ReadOnly(source.to_string()),
        _ => StoreError::Unavailable(source.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use ::redb::StorageError;

    use super::*;

    #[test]
    fn a_disk_without_room_is_told_from_one_that_fails() {
        let full = Error::Io(std::io::Error::from(ErrorKind::StorageFull));
        assert!(matches!(judge(full), (StoreError::ReadOnly(_), true)));
        let broken = Error::Io(std::io::Error::other("broken"));
        assert!(matches!(judge(broken), (StoreError::Unavailable(_), true)));
        let damaged = Error::from(StorageError::Corrupted("x".into()));
        assert!(matches!(judge(damaged), (StoreError::Corrupt(_), false)));
    }
}
