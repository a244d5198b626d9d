//! What follows failures, and how people answer.

use serde_json::{Value, json};
use standfast_domain::decide::Command;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::record::{Status, StopMode, TaskState};
use standfast_tests::embedded::World;

async fn world() -> (tempfile::TempDir, World) {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::open(directory.path()).await;
    world.work(&["default"], 4);
    world.schedule();
    (directory, world)
}

fn failing(id: &str, script: &str, extra: Value) -> Value {
    let mut step = json!({
        "id": id, "uses": "exec", "with": { "command": ["sh", "-c", script] },
        "retry": { "max_attempts": 2, "backoff": "10ms" },
    });
    step.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    step
}

fn answer(step: Option<&str>, answer: Answer) -> Command {
    let step = step.map(|id| StepId::new(id).unwrap());
    Command::Answer { step, answer, note: None, effect: None, receipt: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_is_retried_then_blocks_for_its_owner_and_a_retry_goes_on() {
    let (directory, world) = world().await;
    let script = "echo . >> ${{ plan.dir }}/starts; test -e ${{ plan.dir }}/mended";
    let steps = json!([failing("a", script, json!({}))]);
    let task = world.submit(json!({ "kind": "f", "steps": steps })).await.unwrap();
    world.wait_verified(&task, TaskState::Blocked).await;
    let starts = || std::fs::read_to_string(directory.path().join("starts")).unwrap().len() / 2;
    assert_eq!(starts(), 2);
    let state = world.step(&task, "a").await.unwrap();
    assert!(matches!(&state.status, Status::Held { hold } if hold.reason == HoldReason::Failures));
    std::fs::write(directory.path().join("mended"), "").unwrap();
    world.command(&task, answer(Some("a"), Answer::Retry)).await.unwrap();
    world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!(starts(), 3);
    assert!(world.command(&task, answer(Some("a"), Answer::Retry)).await.is_err());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn skip_goes_on_without_the_step_and_stop_ends_the_task() {
    let (_directory, world) = world().await;
    let after = failing("after", "true", json!({ "needs": ["a"] }));
    let steps = json!([failing("a", "false", json!({})), after]);
    let plan = json!({ "kind": "f", "steps": steps });
    let (one, two) = (world.submit(plan.clone()).await.unwrap(), world.submit(plan).await.unwrap());
    for task in [&one, &two] {
        world.wait(task, &[TaskState::Blocked]).await;
    }
    world.command(&one, answer(Some("a"), Answer::Skip)).await.unwrap();
    let header = world.wait_verified(&one, TaskState::Completed).await;
    assert_eq!((header.skipped, header.succeeded), (1, 1));
    world.command(&two, answer(Some("a"), Answer::Stop)).await.unwrap();
    world.wait_verified(&two, TaskState::Cancelled).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_failure_decides() {
    let (_directory, world) = world().await;
    let cases = [
        (json!({ "on_failure": "continue" }), TaskState::Completed),
        (json!({ "on_failure": "fail" }), TaskState::Failed),
        (json!({ "on_failure": "pause" }), TaskState::Blocked),
    ];
    for (extra, state) in cases {
        let after = json!({ "id": "after", "uses": "exec", "needs": ["a"],
                            "with": { "command": ["true"] } });
        let steps = json!([failing("a", "exit 3", extra.clone()), after]);
        let task = world.submit(json!({ "kind": "f", "steps": steps })).await.unwrap();
        world.wait_verified(&task, state).await;
        if state == TaskState::Blocked {
            world.command(&task, answer(Some("a"), Answer::Skip)).await.unwrap();
            world.wait_verified(&task, TaskState::Completed).await;
        }
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redo_opens_a_round_that_knows_the_failure() {
    let (_directory, world) = world().await;
    let patch = json!({ "id": "patch", "uses": "exec", "with": { "command":
        ["sh", "-c", "echo ${{ failure == null ? \"none\" : failure.step + string(failure.round) }}"] } });
    let test = json!({
        "id": "test", "uses": "exec", "needs": ["patch"], "retry": { "max_attempts": 1 },
        "with": { "command": ["sh", "-c", "test ${{ steps.patch.output.stdout }} = test3"] },
        "on_failure": { "redo": "patch", "max": 5 },
    });
    let after = json!({ "id": "after", "uses": "exec", "needs": ["test"],
                        "with": { "command": ["true"] } });
    let task =
        world.submit(json!({ "kind": "redo", "steps": [patch, test, after] })).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.round, header.succeeded, header.attempts), (3, 3, 7));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_outside_a_round_reads_the_output_of_the_round_before() {
    let (directory, world) = world().await;
    let until = "until test -e ${{ plan.dir }}/$0; do sleep 0.02; done";
    let draft = format!(
        "echo draft ${{{{ failure == null ? 1 : failure.round }}}}; \
         test -z \"${{{{ failure == null ? \"\" : \"again\" }}}}\" || {{ \
           touch ${{{{ plan.dir }}}}/again; {until}; }}"
    );
    let step = |id: &str, needs: &[&str], script: &str, file: &str, extra: Value| {
        let mut step = failing(id, script, extra);
        step["needs"] = json!(needs);
        step["retry"] = json!({ "max_attempts": 1 });
        step["with"]["command"].as_array_mut().unwrap().push(json!(file));
        step
    };
    let check = "test \"${{ steps.draft.output.stdout }}\" = \"draft 2\"";
    let read =
        "echo ${{ steps.draft.status }} ${{ steps.draft.output.stdout }}; touch ${{ plan.dir }}/$0";
    let steps = json!([
        step("draft", &[], &draft, "read", json!({})),
        step(
            "check",
            &["draft"],
            check,
            "",
            json!({ "on_failure": { "redo": "draft", "max": 2 } })
        ),
        step("gate", &[], until, "again", json!({})),
        step("read", &["draft", "gate"], read, "read", json!({})),
    ]);
    let task = world.submit(json!({ "kind": "redo", "steps": steps })).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.round, header.succeeded), (2, 4));
    assert_eq!(world.output(&task, "read").await.unwrap()["stdout"], "succeeded draft 1");
    assert!(directory.path().join("read").exists());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_a_running_attempt_and_nothing_starts_after() {
    let (directory, world) = world().await;
    let steps = json!([
        failing("long", "touch ${{ plan.dir }}/started; sleep 600", json!({})),
        failing("next", "touch ${{ plan.dir }}/next", json!({ "needs": ["long"] })),
    ]);
    let task = world.submit(json!({ "kind": "f", "steps": steps })).await.unwrap();
    let started = directory.path().join("started");
    standfast_tests::wait::until("the start", async || started.exists().then_some(())).await;
    let stop = Command::Stop { reason: None, mode: StopMode::Halt };
    assert!(world.command(&task, stop.clone()).await.unwrap());
    assert!(!world.command(&task, stop).await.unwrap());
    world.wait_verified(&task, TaskState::Cancelled).await;
    assert!(!directory.path().join("next").exists());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_fails_is_a_hold_and_skip_completes() {
    let (_directory, world) = world().await;
    let steps = json!([failing("a", "true", json!({}))]);
    let plan = json!({ "kind": "f", "steps": steps, "complete_when": "1 == 2" });
    let task = world.submit(plan).await.unwrap();
    world.wait_verified(&task, TaskState::Blocked).await;
    world.command(&task, answer(None, Answer::Skip)).await.unwrap();
    world.wait_verified(&task, TaskState::Completed).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_pauses_fails_or_stops() {
    let (_directory, world) = world().await;
    let cases = [
        ("pause", TaskState::Blocked),
        ("fail", TaskState::Failed),
        ("stop", TaskState::Cancelled),
    ];
    for (then, state) in cases {
        let task = world
            .submit(json!({
                "kind": "f", "deadline": { "in": "100ms", "then": then },
                "steps": [{ "id": "wait", "uses": "timer", "with": { "for": "1h" } }],
            }))
            .await
            .unwrap();
        world.wait_verified(&task, state).await;
    }
    world.close().await;
}
