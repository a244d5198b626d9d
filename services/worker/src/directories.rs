//! The port through which the worker loop keeps the directories of attempts, and its adapter for
//! the local file system. A simulation brings another: file calls run on threads of their own,
//! whose order no seed repeats.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::outcome::Artifact;
use standfast_engine::blobs::Blobs;

use crate::files::{self, FilesError};

/// Keeps the directories of attempts.
#[async_trait]
pub trait Directories: Send + Sync {
    /// Says where the directory of a name would be, without making it.
    fn place(&self, name: &str) -> PathBuf;

    /// Makes a fresh directory with the artifacts of needed steps at `inputs/STEP/NAME`. What a
    /// crash left under the name is removed first.
    async fn make(&self, name: &str, inputs: &[(StepId, Artifact)]) -> Result<PathBuf, FilesError>;

    /// Makes a directory within an attempt's, with which it goes.
    async fn make_within(&self, directory: &Path, name: &str) -> Result<PathBuf, FilesError>;

    /// Keeps artifacts in the blobs. A crash leaves blobs that go with their task.
    async fn keep(
        &self,
        task: &TaskId,
        directory: &Path,
        names: &[String],
    ) -> Result<Vec<Artifact>, FilesError>;

    /// Removes a directory, and the log file beside it. A crash leaves both, to be removed when
    /// the name is used again.
    async fn remove(&self, directory: &Path);
}

/// Names the file beside an attempt's directory that takes its whole log.
pub(crate) fn spool(directory: &Path) -> PathBuf {
    directory.with_extension("log")
}

/// Directories in one folder of the local file system.
pub struct LocalDirectories {
    root: PathBuf,
    blobs: Blobs,
}

impl LocalDirectories {
    /// Keeps directories in `root`, which is made when it is first needed.
    pub fn new(root: PathBuf, blobs: Blobs) -> Self {
        Self { root, blobs }
    }

    async fn fill(
        &self,
        directory: &Path,
        inputs: &[(StepId, Artifact)],
    ) -> Result<(), FilesError> {
        if tokio::fs::try_exists(directory).await? {
            tokio::fs::remove_dir_all(directory).await?;
        }
        tokio::fs::create_dir_all(directory).await?;
        files::write_inputs(&self.blobs, directory, inputs).await
    }
}

#[async_trait]
impl Directories for LocalDirectories {
    fn place(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    async fn make(&self, name: &str, inputs: &[(StepId, Artifact)]) -> Result<PathBuf, FilesError> {
        let directory = self.place(name);
        match self.fill(&directory, inputs).await {
            Ok(()) => Ok(directory),
            Err(error) => {
                self.remove(&directory).await;
                Err(error)
            }
        }
    }

    async fn make_within(&self, directory: &Path, name: &str) -> Result<PathBuf, FilesError> {
        let within = directory.join(name);
        tokio::fs::create_dir_all(&within).await?;
        Ok(within)
    }

    async fn keep(
        &self,
        task: &TaskId,
        directory: &Path,
        names: &[String],
    ) -> Result<Vec<Artifact>, FilesError> {
        files::keep_artifacts(&self.blobs, task, directory, names).await
    }

    async fn remove(&self, directory: &Path) {
        let _ = tokio::fs::remove_file(spool(directory)).await; // it may never have been made
        match tokio::fs::remove_dir_all(directory).await {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::debug!(directory = %directory.display(), %error, "directory not removed");
            }
            Ok(()) | Err(_) => {}
        }
    }
}
