//! `code-fix`: the test fails in the first round, passes in a later one, and the diff is good.

use std::process::Command;

use standfast_domain::event::Change;
use standfast_domain::record::TaskState;

use crate::support;

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_test_leads_to_another_patch_and_the_diff_mends_the_project() {
    let example = support::examples().join("code-fix");
    let plan = support::read_plan(&example.join("plan.yaml"));
    let (_directory, world) = support::world().await;
    let task = support::submit(&world, &example, plan).await;
    let header = support::ended(&world, &task, TaskState::Completed).await;
    assert_eq!((header.round, header.succeeded), (2, 7));

    let mut failed = Vec::new();
    for event in world.events(&task).await {
        if let Change::AttemptFailed { step, message, .. } = event.change {
            failed.push(format!("{step}: {message}"));
        }
    }
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].starts_with("test: ") && failed[0].ends_with("2 failed"), "{failed:?}");
    let patched = world.output(&task, "patch").await.unwrap();
    assert_eq!(patched["stdout"], "round 2 takes outer-dashes.sed");
    let told = patched["stderr"].as_str().unwrap();
    assert!(told.starts_with("the last round: exec: "), "{told}");
    assert_eq!(world.output(&task, "search").await.unwrap()["file"], "slugify.sh");

    let diff = support::artifact(&world, &task, "diff", "fix.diff").await;
    world.close().await;
    insta::assert_snapshot!(diff, @r#"
    diff -ruN a/slugify.sh b/slugify.sh
    --- a/slugify.sh
    +++ b/slugify.sh
    @@ -10,4 +10,4 @@
     title=$1
     printf '%s\n' "$title" |
         tr '[:upper:]' '[:lower:]' |
    -    sed -e 's/[^a-z0-9][^a-z0-9]*/-/g'
    +    sed -e 's/[^a-z0-9][^a-z0-9]*/-/g' -e 's/^-//' -e 's/-$//'
    "#);
    let copy = tempfile::tempdir().unwrap();
    let project = copy.path().join("project");
    support::copy(&example.join("project"), &project);
    let tests = || support::run(Command::new("sh").arg(project.join("tests/run.sh")));
    assert!(!tests().status.success(), "the shipped project should be broken");
    std::fs::write(copy.path().join("fix.diff"), &diff).unwrap();
    let apply = ["apply", "--verbose", "../fix.diff"];
    support::stdout(Command::new("git").args(apply).current_dir(&project));
    let mended = tests();
    assert!(mended.status.success(), "{}", String::from_utf8_lossy(&mended.stdout));
}
