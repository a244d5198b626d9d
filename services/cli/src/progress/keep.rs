//! Artifacts of `run` as files: `DIR/artifacts/TASK/NAME`.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use standfast_protocol::artifacts::ArtifactView;
use standfast_sdk::Client;

use crate::failure::Failure;

/// Writes a task's artifacts below `DIR/artifacts/TASK` and gives their paths. Where several
/// steps left the same name, the later ones stand in a folder of their step.
pub async fn keep_artifacts(
    client: &Client,
    task: &str,
    dir: &Path,
) -> Result<Vec<PathBuf>, Failure> {
    let page = client.artifacts(task).await?;
    let folder = dir.join("artifacts").join(task);
    let mut files = Vec::new();
    for (artifact, place) in page.artifacts.iter().zip(places(&page.artifacts)) {
        let Some(place) = place else { continue };
        let bytes = client.artifact(task, artifact).await?;
        let file = folder.join(place);
        write(&file, &bytes).map_err(|error| {
            Failure::new(format!("failed to write {}: {error}", file.display()))
        })?;
        files.push(file);
    }
    Ok(files)
}

/// Gives each artifact its place below the task's folder; none for a name that leads out of
/// it. Names come from plans and handlers, and these from anywhere.
fn places(artifacts: &[ArtifactView]) -> Vec<Option<PathBuf>> {
    let mut taken = BTreeSet::new();
    let place = |artifact: &ArtifactView| {
        let name = below(&artifact.name)?;
        let place = match taken.insert(name.clone()) {
            true => name,
            false => below(&artifact.step)?.join(name),
        };
        Some(place)
    };
    artifacts.iter().map(place).collect()
}

/// Gives a name as a relative path of ordinary parts.
fn below(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let ordinary = path.components().all(|part| matches!(part, Component::Normal(_)));
    (ordinary && !name.is_empty() && !name.contains('\0')).then(|| path.to_owned())
}

/// Writes a file whole or not at all.
fn write(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = folder.join(name);
    std::fs::write(&part, bytes)?;
    std::fs::rename(&part, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::samples::artifact;

    #[test]
    fn names_that_lead_out_have_no_place() {
        for name in ["../x", "/etc/passwd", "a/../../x", "", "..", "a\0b"] {
            assert_eq!(below(name), None, "{name:?}");
        }
        assert_eq!(below("out/notes.md"), Some(PathBuf::from("out/notes.md")));
    }

    #[test]
    fn the_second_of_a_name_stands_with_its_step() {
        let all = [artifact("a", "x", 1), artifact("b", "x", 1), artifact("b", "../x", 1)];
        let expected = [Some("x".into()), Some("b/x".into()), None];
        assert_eq!(places(&all), expected);
    }

    #[test]
    fn a_file_is_written_with_its_folders() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t/out/notes.md");
        write(&file, b"one").unwrap();
        write(&file, b"two").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    }
}
