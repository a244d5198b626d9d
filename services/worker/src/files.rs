//! An attempt's directory: fresh, with the artifacts of needed steps in it, emptied of what it
//! leaves.

use std::io;
use std::path::{Component, Path, PathBuf};

use futures::StreamExt;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::outcome::Artifact;
use standfast_engine::blobs::{BlobError, Blobs};
use tokio::io::AsyncWriteExt;

/// Why a directory could not be prepared or an artifact not kept.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The blobs did not answer; another attempt may work.
    #[error(transparent)]
    Blobs(#[from] BlobError),
    /// The file system refused.
    #[error("use the attempt's directory: {0}")]
    Io(#[from] io::Error),
    /// The handler did not leave what it had to, or left what may not be kept.
    #[error("keep artifact `{name}`: {why}")]
    Artifact {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
}

/// Writes `inputs/STEP/NAME` for each artifact of a needed step, read-only.
pub(crate) async fn write_inputs(
    blobs: &Blobs,
    directory: &Path,
    inputs: &[(StepId, Artifact)],
) -> Result<(), FilesError> {
    for (step, artifact) in inputs {
        let target = directory.join("inputs").join(step.as_str()).join(relative(&artifact.name)?);
        if let Some(parent) = target.parent() {
            tokio::fs::create_dir_all(parent).await?;
        }
        if artifact.directory {
            let bytes = blobs.get(&artifact.blob).await?;
            tokio::task::spawn_blocking(move || unpack(&bytes, &target))
                .await
                .map_err(joined)??;
            continue;
        }
        let mut file = tokio::fs::File::create(&target).await?;
        let mut pieces = blobs.stream(&artifact.blob).await?;
        while let Some(piece) = pieces.next().await {
            file.write_all(&piece?).await?;
        }
        file.flush().await?;
        drop(file);
        set_read_only(&target)?;
    }
    Ok(())
}

/// Keeps the artifacts of a successful attempt.
pub(crate) async fn keep_artifacts(
    blobs: &Blobs,
    task: &TaskId,
    directory: &Path,
    names: &[String],
) -> Result<Vec<Artifact>, FilesError> {
    let mut kept = Vec::new();
    for name in names {
        let path = inside(directory, name)?;
        let is_directory = tokio::fs::metadata(&path).await?.is_dir();
        let (file, archive) = if is_directory {
            let archive = tempfile::NamedTempFile::new_in(directory)?;
            let (from, to) = (path.clone(), archive.path().to_owned());
            tokio::task::spawn_blocking(move || pack(&from, &to)).await.map_err(joined)??;
            (archive.path().to_owned(), Some(archive))
        } else {
            (path, None)
        };
        let blob = blobs.put_file(task, &file).await?;
        drop(archive);
        kept.push(Artifact {
            name: name.clone(),
            blob: blob.name,
            bytes: blob.bytes,
            sha256: blob.sha256,
            directory: is_directory,
        });
    }
    Ok(kept)
}

fn joined(error: tokio::task::JoinError) -> io::Error {
    io::Error::other(error)
}

/// Checks that a name is a plain relative path.
fn relative(name: &str) -> Result<&Path, FilesError> {
    let path = Path::new(name);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if plain && !name.is_empty() {
        return Ok(path);
    }
    let why = "expected a relative path without `..`".to_owned();
    Err(FilesError::Artifact { name: name.to_owned(), why })
}

/// Finds an artifact and makes sure that no link leads out of the attempt's directory.
fn inside(directory: &Path, name: &str) -> Result<PathBuf, FilesError> {
    let fault = |why: &str| FilesError::Artifact { name: name.to_owned(), why: why.to_owned() };
    let path = directory.join(relative(name)?);
    let real = path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => fault("the attempt did not leave it in its directory"),
        _ => fault(&error.to_string()),
    })?;
    let root = directory.canonicalize()?;
    if real.starts_with(&root) && real != root {
        return Ok(real);
    }
    Err(fault("it lies outside of the attempt's directory"))
}

/// Packs a directory with sorted names and without times, so that the same content gives the
/// same bytes.
fn pack(from: &Path, to: &Path) -> io::Result<()> {
    let mut archive = tar::Builder::new(std::fs::File::create(to)?);
    archive.mode(tar::HeaderMode::Deterministic);
    archive.follow_symlinks(false);
    pack_folder(&mut archive, from, Path::new(""))?;
    archive.into_inner()?.sync_all()
}

fn pack_folder(
    archive: &mut tar::Builder<std::fs::File>,
    root: &Path,
    within: &Path,
) -> io::Result<()> {
    let mut entries: Vec<_> =
        std::fs::read_dir(root.join(within))?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = within.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            archive.append_dir(&name, entry.path())?;
            pack_folder(archive, root, &name)?;
        } else if kind.is_file() || kind.is_symlink() {
            archive.append_path_with_name(entry.path(), &name)?;
        }
    }
    Ok(())
}

fn unpack(bytes: &[u8], target: &Path) -> io::Result<()> {
    std::fs::create_dir_all(target)?;
    let mut archive = tar::Archive::new(bytes);
    archive.set_overwrite(false);
    archive.unpack(target)
}

fn set_read_only(path: &Path) -> io::Result<()> {
    let mut permissions = std::fs::metadata(path)?.permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(path, permissions)
}
