//! What holds for every plan that is shipped.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use standfast_domain::ids::Principal;
use standfast_engine::submission::{RETENTION_DEFAULT, Submitted, prepare};
use standfast_tests::embedded::World;

use crate::support;

/// Handlers of example workers: known once one of them has announced itself.
const ANNOUNCED: [&str; 1] = ["shout"];

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let left_behind = path.join("CACHEDIR.TAG").exists();
        if path.is_dir() && !left_behind {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn every_plan_is_without_fault() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::open(directory.path()).await;
    let announced: BTreeSet<String> = ANNOUNCED.map(str::to_owned).into();
    let plans = files(&support::examples(), "yaml");
    assert!(plans.len() >= 4, "{plans:?}");
    for file in plans {
        let submitted = Submitted {
            body: support::read_plan(&file),
            plan_dir: Some(file.parent().unwrap().display().to_string()),
            by: Principal::local(),
            key: None,
            traceparent: None,
        };
        let prepared = prepare(submitted, RETENTION_DEFAULT, &world.handlers, &announced);
        let faults = prepared.err().unwrap_or_default();
        assert_eq!(faults, [], "{}", file.display());
    }
    world.close().await;
}

#[test]
fn every_shell_script_that_is_run_by_its_name_can_be() {
    for file in files(&support::examples(), "sh") {
        let shebang = std::fs::read(&file).unwrap().starts_with(b"#!");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o111 != 0, shebang, "{}", file.display());
    }
}
