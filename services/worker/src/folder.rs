//! The folder in which a worker's attempts have theirs, and what killed workers left beside it.
//!
//! ```text
//! ROOT/WORKER.lock   locked as long as the worker's process lives; the kernel lets go of it
//! ROOT/WORKER/       the attempts of that worker
//! ```
//!
//! The lock is the proof: a folder whose lock is free belongs to nobody and is removed. An
//! announcement would be none, for it runs out while a worker is cut off from the store. The lock
//! is there before the folder and goes after it.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use standfast_domain::ids::WorkerId;

const LOCK: &str = "lock";

/// A worker's folder; it goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Held open: closing it lets go of the lock.
    _lock: File,
}

impl Folder {
    /// Makes the folder of a worker and removes those of workers that do not live any more.
    /// Processes that they left behind must have been ended before.
    pub fn open(root: &Path, worker: &WorkerId) -> io::Result<Self> {
        std::fs::create_dir_all(root)?;
        remove_leftovers(root);
        let path = root.join(worker.as_str());
        let lock = own_lock(&lock_of(&path))?;
        std::fs::create_dir_all(&path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Gives where attempts have their directories.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn lock_of(folder: &Path) -> PathBuf {
    folder.with_extension(LOCK)
}

/// Locks a file that another worker, at its start, may take for a leftover and remove.
fn own_lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::create(path)?;
        if file.try_lock().is_ok() && path.exists() {
            return Ok(file);
        }
    }
}

fn remove_leftovers(root: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|extension| extension != LOCK) {
            continue;
        }
        let Ok(lock) = File::open(&path) else { continue };
        match lock.try_lock() {
            Ok(()) => remove(&path.with_extension("")),
            Err(TryLockError::WouldBlock) => {} // its worker lives
            Err(TryLockError::Error(error)) => {
                tracing::debug!(path = %path.display(), %error, "lock not tried");
            }
        }
    }
}

/// Removes a folder and then its lock; what cannot be removed is tried again by the next start.
fn remove(folder: &Path) {
    let gone = match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => std::fs::remove_file(lock_of(folder)),
    };
    if let Err(error) = gone {
        tracing::warn!(folder = %folder.display(), %error, "attempts' folder not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str) -> WorkerId {
        WorkerId::new(name).unwrap()
    }

    fn names(root: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(root).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_worker_left_goes_and_what_a_live_one_has_stays() {
        let root = tempfile::tempdir().unwrap();
        let live = Folder::open(root.path(), &worker("live")).unwrap();
        std::fs::write(live.path().join("a"), "x").unwrap();
        // A killed process drops nothing, and the kernel lets go of its lock.
        std::fs::write(root.path().join("killed.lock"), "").unwrap();
        std::fs::create_dir_all(root.path().join("killed/task-step-1/inputs")).unwrap();
        std::fs::create_dir_all(root.path().join("not-ours")).unwrap();
        let next = Folder::open(root.path(), &worker("next")).unwrap();
        let all = ["live", "live.lock", "next", "next.lock", "not-ours"];
        assert_eq!(names(root.path()), all);
        assert!(live.path().join("a").exists());
        drop((live, next));
        assert_eq!(names(root.path()), ["not-ours"]);
    }
}
