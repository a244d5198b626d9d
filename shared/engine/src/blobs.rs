//! Blobs: large outputs, artifacts and whole logs, shared by all processes of an installation.
//!
//! A blob is named by its task and the SHA-256 of its content, so writing it twice changes
//! nothing. A marker object ties the place to one installation.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as BlobPath;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, WriteMultipart};
use sha2::{Digest, Sha256};
use standfast_domain::ids::TaskId;
use tokio::io::AsyncReadExt;

/// The object that names the installation that a place belongs to.
const MARKER: &str = "standfast-installation";
/// Bytes that are read and hashed at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// Why a blob could not be kept or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// The URL names no place that this program can use.
    #[error("open blobs at `{url}`: {reason}")]
    Url {
        /// What was given.
        url: String,
        /// What was expected.
        reason: String,
    },
    /// The place belongs to another installation.
    #[error("open blobs: they belong to installation {found}, not to {wanted}; check `--blobs`")]
    Foreign {
        /// The installation that the store belongs to.
        wanted: String,
        /// The one that the place belongs to.
        found: String,
    },
    /// There is no such blob.
    #[error("find blob `{0}`")]
    Missing(String),
    /// Reading or writing failed; asking again may help.
    #[error("reach the blobs: {0}")]
    Unavailable(String),
}

impl From<object_store::Error> for BlobError {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { path, .. } => Self::Missing(path),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<std::io::Error> for BlobError {
    fn from(error: std::io::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// A blob that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its content, in hex.
    pub sha256: String,
}

/// The place of an installation's blobs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
    /// The folder behind the store, which is synced; none in memory.
    root: Option<PathBuf>,
}

impl Blobs {
    /// Opens the place at a `file:` URL or plain path; makes it, and its marker, if it is new.
    pub async fn open(url: &str, installation: &str) -> Result<Self, BlobError> {
        let fault =
            |reason: &str| BlobError::Url { url: url.to_owned(), reason: reason.to_owned() };
        let path = match url.split_once("://") {
            Some(("file", path)) => path,
            Some(_) => {
                return Err(fault("expected `file:///PATH`, a folder that all processes share"));
            }
            None => url,
        };
        if path.is_empty() {
            return Err(fault("the path is empty"));
        }
        std::fs::create_dir_all(path).map_err(|error| fault(&error.to_string()))?;
        let root = std::fs::canonicalize(path).map_err(|error| fault(&error.to_string()))?;
        let store =
            LocalFileSystem::new_with_prefix(&root).map_err(|error| fault(&error.to_string()))?;
        let blobs = Self { store: Arc::new(store), root: Some(root) };
        blobs.check_marker(installation).await?;
        Ok(blobs)
    }

    /// Makes a place in this process's memory: for simulations, which may touch no disk.
    pub fn in_memory() -> Self {
        Self { store: Arc::new(InMemory::new()), root: None }
    }

    /// Checks that the place belongs to the installation; takes it if it belongs to none.
    pub async fn check_marker(&self, installation: &str) -> Result<(), BlobError> {
        let path = BlobPath::from(MARKER);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let payload = PutPayload::from(installation.to_owned().into_bytes());
        match self.store.put_opts(&path, payload, options).await {
            Ok(_) => return Ok(()),
            Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let bytes = self.store.get(&path).await?.bytes().await?;
        let found = String::from_utf8_lossy(&bytes).trim().to_owned();
        let wanted = installation.to_owned();
        if found == wanted { Ok(()) } else { Err(BlobError::Foreign { wanted, found }) }
    }

    /// Keeps bytes for a task. They are on disk when this returns.
    pub async fn put(&self, task: &TaskId, bytes: Bytes) -> Result<Kept, BlobError> {
        let sha256 = hex::encode(Sha256::digest(&bytes));
        let kept = Kept { name: name(task, &sha256), bytes: bytes.len() as u64, sha256 };
        let path = BlobPath::from(kept.name.as_str());
        self.store.put(&path, PutPayload::from_bytes(bytes)).await?;
        self.sync(&kept.name).await?;
        Ok(kept)
    }

    /// Keeps a file's content for a task. It is on disk when this returns.
    pub async fn put_file(&self, task: &TaskId, file: &Path) -> Result<Kept, BlobError> {
        let (sha256, bytes) = digest_file(file).await?;
        let kept = Kept { name: name(task, &sha256), bytes, sha256 };
        let path = BlobPath::from(kept.name.as_str());
        let mut writer = WriteMultipart::new(self.store.put_multipart(&path).await?);
        let mut reader = tokio::fs::File::open(file).await?;
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        while reader.read_buf(&mut piece).await? > 0 {
            writer.put(piece.split().freeze());
            writer.wait_for_capacity(4).await?;
            piece.reserve(PIECE_BYTES);
        }
        writer.finish().await?;
        self.sync(&kept.name).await?;
        Ok(kept)
    }

    async fn sync(&self, name: &str) -> Result<(), BlobError> {
        let Some(root) = &self.root else { return Ok(()) };
        tokio::fs::File::open(root.join(name)).await?.sync_all().await?;
        Ok(())
    }

    /// Reads a blob whole.
    pub async fn get(&self, name: &str) -> Result<Bytes, BlobError> {
        Ok(self.store.get(&BlobPath::from(name)).await?.bytes().await?)
    }

    /// Reads a blob piece by piece.
    pub async fn stream(
        &self,
        name: &str,
    ) -> Result<BoxStream<'static, Result<Bytes, BlobError>>, BlobError> {
        let result = self.store.get(&BlobPath::from(name)).await?;
        Ok(result.into_stream().map_err(BlobError::from).boxed())
    }

    /// Removes all blobs of a task. A crash leaves the rest for the next call.
    pub async fn remove_task(&self, task: &TaskId) -> Result<(), BlobError> {
        let prefix = BlobPath::from(task.as_str());
        let found = self.store.list(Some(&prefix)).map_ok(|meta| meta.location).boxed();
        let removed: Result<Vec<BlobPath>, _> = self.store.delete_stream(found).try_collect().await;
        removed?;
        let Some(root) = &self.root else { return Ok(()) };
        match tokio::fs::remove_dir(root.join(task.as_str())).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn name(task: &TaskId, sha256: &str) -> String {
    format!("{task}/{sha256}")
}

async fn digest_file(file: &Path) -> Result<(String, u64), BlobError> {
    let mut reader = tokio::fs::File::open(file).await?;
    let mut hash = Sha256::new();
    let mut bytes = 0;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = reader.read(&mut piece).await?;
        if read == 0 {
            return Ok((hex::encode(hash.finalize()), bytes));
        }
        hash.update(&piece[..read]);
        bytes += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_blob_reads_back_and_goes_with_its_task() {
        let place = tempfile::tempdir().unwrap();
        let url = format!("file://{}", place.path().display());
        let blobs = Blobs::open(&url, "one").await.unwrap();
        let task = TaskId::random([1; 16]);
        let kept = blobs.put(&task, Bytes::from_static(b"hello")).await.unwrap();
        assert_eq!(blobs.get(&kept.name).await.unwrap(), "hello");
        let file = place.path().join("file");
        std::fs::write(&file, b"hello").unwrap();
        assert_eq!(blobs.put_file(&task, &file).await.unwrap(), kept);
        blobs.remove_task(&task).await.unwrap();
        assert!(blobs.get(&kept.name).await.is_err());
        blobs.remove_task(&task).await.unwrap();
    }

    #[tokio::test]
    async fn another_installation_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let url = place.path().display().to_string();
        Blobs::open(&url, "one").await.unwrap();
        let other = Blobs::open(&url, "two").await.unwrap_err();
        assert!(matches!(other, BlobError::Foreign { .. }), "{other}");
        assert!(matches!(Blobs::open("s3://x", "one").await, Err(BlobError::Url { .. })));
    }
}
