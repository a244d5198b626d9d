//! Examples as they lie in the repository, and an installation to run them in.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::record::{Header, Key, Record, TaskState};
use standfast_tests::embedded::World;
use standfast_tests::wait;

/// The folder of all examples.
pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples")
}

/// Reads a plan in YAML as the command line does: only `true` and `false` are truth values.
pub fn read_plan(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap();
    let options = serde_saphyr::Options { strict_booleans: true, ..Default::default() };
    serde_saphyr::from_str_with_options(&text, options)
        .unwrap_or_else(|fault| panic!("{}: {fault}", file.display()))
}

/// An installation with a worker and a scheduler, and the folder it lives in.
pub async fn world() -> (tempfile::TempDir, World) {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::open(directory.path()).await;
    world.work(&["default"], 8);
    world.schedule();
    (directory, world)
}

/// Submits a plan of a folder that has no faults.
pub async fn submit(world: &World, folder: &Path, plan: Value) -> TaskId {
    world.submit_from(folder, plan).await.unwrap_or_else(|faults| panic!("{faults:#?}"))
}

/// Waits for the end and the clearing of entries behind it, then checks that the log gives the
/// records; nothing moves any more while it is checked.
pub async fn ended(world: &World, task: &TaskId, state: TaskState) -> Header {
    let what = format!("task {task} to be {state:?}, with its entries cleared");
    world.wait(task, &[state]).await;
    wait::until(&what, async || world.header(task).await.filter(|header| !header.uncleared)).await;
    world.wait_verified(task, state).await
}

/// Gives an artifact's text.
pub async fn artifact(world: &World, task: &TaskId, step: &str, name: &str) -> String {
    let key = Key::Artifacts(StepId::new(step).unwrap());
    let mut records = world.engine.read(task, std::slice::from_ref(&key)).await.unwrap();
    let Some(Some(Record::Artifacts(artifacts))) = records.remove(&key) else {
        panic!("step {step} left no artifact");
    };
    let kept = artifacts.iter().find(|artifact| artifact.name == name).unwrap();
    let bytes = world.blobs.get(&kept.blob).await.unwrap();
    assert_eq!(bytes.len() as u64, kept.bytes);
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Copies a folder with the modes of its files.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().unwrap_or_else(|fault| {
        panic!("the examples' tests need the program `{program}` on the PATH: {fault}")
    })
}

/// Gives a program's standard output; it must succeed.
pub fn stdout(command: &mut Command) -> String {
    let output = run(command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
