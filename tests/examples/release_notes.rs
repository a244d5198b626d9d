//! `release-notes.yaml`, in repositories made for it and in the one it lies in.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use standfast_domain::record::TaskState;
use standfast_tests::embedded::World;

use crate::support;

/// Git with nothing of this machine's settings.
fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", "user.name=Ana", "-c", "user.email=ana@example.com", "-C"])
        .arg(folder);
    command
}

/// Commits nothing, with a subject of any bytes: git would mend what is not UTF-8 unless it is
/// told that the subject is in an encoding that it does not know.
fn commit(folder: &Path, subject: &[u8]) {
    let mut command = git(folder);
    command.args(["-c", "i18n.commitEncoding=unknown"]);
    command.args(["commit", "--quiet", "--allow-empty", "--no-verify", "--file=-"]);
    let mut running = command.stdin(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(subject).unwrap();
    assert!(running.wait().unwrap().success());
}

/// Makes a repository that has the example and some commits.
fn repository(subjects: &[&[u8]]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    support::stdout(git(folder.path()).args(["init", "--quiet"]));
    with_example(folder.path());
    for subject in subjects {
        commit(folder.path(), subject);
    }
    folder
}

fn with_example(root: &Path) {
    let (from, to) = (support::examples(), root.join("examples"));
    support::copy(&from.join("release-notes"), &to.join("release-notes"));
    std::fs::copy(from.join("release-notes.yaml"), to.join("release-notes.yaml")).unwrap();
}

fn plan() -> Value {
    support::read_plan(&support::examples().join("release-notes.yaml"))
}

/// Runs a plan to its good end; gives the notes and what the check said.
async fn notes(world: &World, examples: &Path, plan: Value) -> (String, String) {
    let task = support::submit(world, examples, plan).await;
    support::ended(world, &task, TaskState::Completed).await;
    let notes = support::artifact(world, &task, "draft", "RELEASE_NOTES.md").await;
    let checked = world.output(&task, "check").await.unwrap()["stdout"].clone();
    assert!(!examples.join("release-notes/.draft").exists(), "the preview is still there");
    (notes, checked.as_str().unwrap().to_owned())
}

async fn notes_of(subjects: &[&[u8]]) -> (String, String) {
    let repository = repository(subjects);
    let (_directory, world) = support::world().await;
    let read = notes(&world, &repository.path().join("examples"), plan()).await;
    world.close().await;
    read
}

/// Replaces hashes, the only part that differs from run to run.
fn without_hashes(notes: &str) -> String {
    let parts = notes.split('`').map(|part| {
        let hash = part.len() >= 7 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        if hash { "HASH" } else { part }
    });
    parts.collect::<Vec<_>>().join("`")
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_are_grouped_by_area_newest_first() {
    let subjects: [&[u8]; 5] = [
        b"Begin",
        b"domain: plans have deadlines",
        b"api!: tasks have owners",
        b"feat(cli): colours",
        b"domain: steps are states",
    ];
    let (notes, checked) = notes_of(&subjects).await;
    insta::assert_snapshot!(without_hashes(&notes), @"
    # Release notes

    5 changes, newest first, from `HASH` back to `HASH`.

    ## domain

    - steps are states (`HASH`)
    - plans have deadlines (`HASH`)

    ## feat(cli)

    - colours (`HASH`)

    ## api

    - **breaking:** tasks have owners (`HASH`)

    ## Other changes

    - Begin (`HASH`)
    ");
    assert_eq!(checked, "5 of 5 commits are in the notes");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_commit_is_enough() {
    let (notes, checked) = notes_of(&[b"domain: everything at once"]).await;
    assert!(notes.contains("One change: `"), "{notes}");
    assert!(notes.contains("## domain\n\n- everything at once (`"), "{notes}");
    assert_eq!(checked, "1 of 1 commits are in the notes");
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_characters_in_subjects_are_only_characters() {
    let subjects: [&[u8]; 9] = [
        b"a: $(touch stolen) `touch stolen` ; rm -rf \"$HOME\" '",
        b"b: 100% %s %n \\n \\t & | end",
        b"c: tab\there, bell\x07 there",
        "d: grüße, 你好 🦀".as_bytes(),
        b"e: caf\xe9 with a byte that is not UTF-8",
        b"f: <script>alert(1)</script> [link](javascript:1) *bold* `a[0]`",
        b"g: ${{ input.count }} }} {{",
        b"http://example.com/x: not an area",
        b": nothing before, - nothing after:",
    ];
    let (notes, checked) = notes_of(&subjects).await;
    for line in [
        "- $(touch stolen) `touch stolen` ; rm -rf \"$HOME\" ' (`",
        "- 100% %s %n \\\\n \\\\t & | end (`",
        "- tab here, bell  there (`",
        "- grüße, 你好 🦀 (`",
        "- caf\u{fffd} with a byte that is not UTF-8 (`",
        "- \\<script>alert(1)\\</script> \\[link\\](javascript:1) \\*bold\\* `a[0]` (`",
        "- ${{ input.count }} }} {{ (`",
        "- http://example.com/x: not an area (`",
        "- : nothing before, - nothing after: (`",
    ] {
        assert!(notes.contains(line), "{line}\n{notes}");
    }
    assert_eq!(checked, "9 of 9 commits are in the notes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shallow_clone_gives_what_it_has() {
    let subjects: [&[u8]; 3] = [b"a: one", b"a: two", b"a: three"];
    let origin = repository(&subjects);
    let clone = tempfile::tempdir().unwrap();
    let url = format!("file://{}", origin.path().display());
    support::stdout(git(clone.path()).args(["clone", "--quiet", "--depth=1", &url, "."]));
    with_example(clone.path());
    let (_directory, world) = support::world().await;
    let (notes, _) = notes(&world, &clone.path().join("examples"), plan()).await;
    assert!(notes.contains("three") && !notes.contains("two"), "{notes}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_commits_is_an_input() {
    let subjects: [&[u8]; 3] = [b"a: one", b"a: two", b"a: three"];
    let repository = repository(&subjects);
    let (_directory, world) = support::world().await;
    let mut plan = plan();
    plan["input"]["count"] = json!(2);
    let (notes, checked) = notes(&world, &repository.path().join("examples"), plan).await;
    assert!(notes.contains("- two (`") && !notes.contains("- one (`"), "{notes}");
    assert_eq!(checked, "2 of 2 commits are in the notes");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_that_another_user_owns_is_read() {
    // Git's own switch for this, since only root could make such a clone.
    let foreign = ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1");
    let repository = repository(&[b"a: one"]);
    let refused = support::run(git(repository.path()).env(foreign.0, foreign.1).arg("log"));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("dubious ownership"), "{why}");
    let (_directory, world) = support::world().await;
    let mut plan = plan();
    plan["steps"][0]["with"]["env"] = json!({ foreign.0: foreign.1 });
    let (notes, _) = notes(&world, &repository.path().join("examples"), plan).await;
    assert!(notes.contains("- one (`"), "{notes}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_repository_the_task_fails_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    with_example(folder.path());
    let (_directory, world) = support::world().await;
    let task = support::submit(&world, &folder.path().join("examples"), plan()).await;
    let header = support::ended(&world, &task, TaskState::Failed).await;
    assert_eq!(header.attempts, 2, "log once, tidy once");
    let events = serde_json::to_string(&world.events(&task).await).unwrap();
    assert!(events.contains("not a git repository"), "{events}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_notes_of_this_repository_are_drafted() {
    let examples = support::examples();
    let here = ["-c", "safe.directory=*", "log", "--no-merges", "-n1", "--format=%h"];
    let newest = support::run(git(&examples).args(here));
    if !newest.status.success() {
        // A copy of the files without their history, such as a release's archive.
        let why = String::from_utf8_lossy(&newest.stderr);
        assert!(why.contains("not a git repository"), "{why}");
        return;
    }
    let newest = String::from_utf8_lossy(&newest.stdout).trim().to_owned();
    let (directory, world) = support::world().await;
    let mut plan = plan();
    // Other tests read the repository meanwhile, so the preview is not made within it.
    let preview = json!(directory.path().join("preview"));
    plan["steps"][1]["with"]["env"]["PREVIEW"] = preview.clone();
    plan["finally"][0]["with"]["command"][2] = preview;
    let task = support::submit(&world, &examples, plan).await;
    support::ended(&world, &task, TaskState::Completed).await;
    let notes = support::artifact(&world, &task, "draft", "RELEASE_NOTES.md").await;
    assert!(notes.starts_with("# Release notes\n\n") && notes.contains(&newest), "{notes}");
    world.close().await;
}
