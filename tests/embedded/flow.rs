//! How steps follow one another.

use std::sync::Arc;

use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::record::{SkipReason, Status, TaskState};
use standfast_stores::redb::RedbStore;
use standfast_tests::embedded::World;

async fn world() -> (tempfile::TempDir, World) {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::open(directory.path()).await;
    world.work(&["default"], 8);
    world.schedule();
    (directory, world)
}

fn sh(id: &str, needs: &[&str], script: &str) -> Value {
    json!({ "id": id, "uses": "exec", "needs": needs, "with": { "command": ["sh", "-c", script] } })
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_flow_into_templates_and_the_end_is_checked() {
    let (_directory, world) = world().await;
    let task = world
        .submit(json!({
            "kind": "flow", "goal": "g", "input": { "n": 3 },
            "steps": [
                sh("a", &[], "echo $(( ${{ input.n }} + 1 ))"),
                sh("b", &["a"], "echo got ${{ steps.a.output.stdout }}"),
            ],
            "complete_when": "steps.b.output.stdout == \"got 4\"",
        }))
        .await
        .unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.succeeded, header.attempts), (2, 2));
    assert_eq!(world.output(&task, "b").await.unwrap()["stdout"], "got 4");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_false_condition_skips_and_the_skip_goes_downstream_unless_named() {
    let (_directory, world) = world().await;
    let mut no = sh("no", &[], "true");
    no["if"] = json!("1 == 2");
    let mut named = sh("named", &["no"], "true");
    named["if"] = json!("steps.no.status == \"skipped\"");
    let task = world
        .submit(json!({
            "kind": "flow", "steps": [no, sh("after", &["no"], "true"), named],
        }))
        .await
        .unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.succeeded, header.skipped), (1, 2));
    let after = world.step(&task, "after").await.unwrap();
    assert!(matches!(after.status, Status::Skipped { reason: SkipReason::Need, .. }));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_of_many_runs_once_after_all() {
    let (_directory, world) = world().await;
    let mut steps: Vec<Value> = (0..300).map(|n| sh(&format!("s{n}"), &[], "true")).collect();
    let needs: Vec<String> = (0..300).map(|n| format!("s{n}")).collect();
    let needs: Vec<&str> = needs.iter().map(String::as_str).collect();
    steps.push(sh("join", &needs, "echo joined"));
    let task = world.submit(json!({ "kind": "wide", "steps": steps })).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.succeeded, header.attempts), (301, 301));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_with_many_dependents_releases_them_all() {
    let (_directory, world) = world().await;
    let mut steps = vec![sh("root", &[], "true")];
    steps.extend((0..450).map(|n| {
        let mut step = sh(&format!("s{n}"), &["root"], "true");
        step["if"] = json!("false");
        step
    }));
    let task = world.submit(json!({ "kind": "wide", "steps": steps })).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.succeeded, header.skipped), (1, 450));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_step_waits_without_a_worker() {
    let (_directory, world) = world().await;
    let task = world
        .submit(json!({ "kind": "timer", "steps": [
            { "id": "wait", "uses": "timer", "with": { "for": "300ms" } },
            sh("then", &["wait"], "true"),
        ]}))
        .await
        .unwrap();
    world.wait(&task, &[TaskState::Waiting, TaskState::Running, TaskState::Completed]).await;
    world.wait_verified(&task, TaskState::Completed).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_go_from_step_to_step_and_finally_runs_at_the_end() {
    let (directory, world) = world().await;
    let mut make = sh("make", &[], "mkdir -p d/e && echo hi > d/e/f && ln -s e/f d/l");
    make["artifact"] = json!("d");
    let mut read = sh("read", &["make"], "cat inputs/make/d/l > out.txt");
    read["artifact"] = json!("out.txt");
    let tidy = sh("tidy", &[], "touch ${{ plan.dir }}/tidied");
    let task = world
        .submit(json!({
            "kind": "files", "steps": [make, read], "finally": [tidy],
            "artifacts": ["read/out.txt"],
            "complete_when": "artifacts[\"read/out.txt\"].bytes == 3",
        }))
        .await
        .unwrap();
    world.wait_verified(&task, TaskState::Completed).await;
    assert!(directory.path().join("tidied").exists());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_adds_steps_and_what_needs_it_waits_for_them() {
    let (_directory, world) = world().await;
    let then = json!([
        { "id": "x", "uses": "exec", "with": { "command": ["sh", "-c", "echo x"] } },
        { "id": "y", "uses": "exec", "needs": ["x"],
          "with": { "command": ["sh", "-c", "echo y${{ steps.x.output.stdout }}"] } },
    ]);
    let outcome = json!({ "output": 1, "then": then }).to_string();
    let agent = json!({ "id": "agent", "uses": "exec", "with": {
        "command": ["sh", "-c", "cat > $STANDFAST_OUTCOME"],
        "stdin": outcome.replace("${{", "${{ \"${{\" }}"),
    }});
    let task = world
        .submit(json!({ "kind": "grow", "steps": [agent, sh("after", &["agent"], "true")] }))
        .await
        .unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.steps, header.succeeded), (4, 4));
    assert_eq!(world.output(&task, "y").await.unwrap()["stdout"], "yx");
    let order: Vec<String> = world
        .events(&task)
        .await
        .iter()
        .filter_map(|event| match &event.change {
            standfast_domain::event::Change::StepSucceeded { step, .. } => Some(step.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(order, ["agent", "x", "y", "after"]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_for_one_attempt_start_it_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::open(directory.path()).await;
    let script = "echo . >> ${{ plan.dir }}/starts; sleep 0.2";
    let steps = json!([sh("a", &[], script)]);
    let task = world.submit(json!({ "kind": "once", "steps": steps })).await.unwrap();
    for _ in 0..20 {
        standfast_scheduler::publish_ready(&world.engine).await.unwrap();
    }
    world.work(&["default"], 8);
    world.schedule();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    let starts = std::fs::read_to_string(directory.path().join("starts")).unwrap();
    assert_eq!((starts.lines().count(), header.attempts), (1, 1));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_results_with_many_dependents_each_do_not_overfill_a_commit() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::open(directory.path()).await;
    let mut steps: Vec<Value> = (0..24).map(|n| sh(&format!("s{n}"), &[], "true")).collect();
    for n in 0..24 {
        for m in 0..60 {
            let mut step = sh(&format!("d{n}-{m}"), &[&format!("s{n}")], "true");
            step["if"] = json!("false");
            steps.push(step);
        }
    }
    let task = world.submit(json!({ "kind": "wide", "steps": steps })).await.unwrap();
    world.work(&["default"], 24);
    world.schedule();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.succeeded, header.skipped), (24, 24 * 60));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_nobody_has_any_more_is_gone_with_its_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::open(directory.path()).unwrap());
    let held = Arc::downgrade(&store);
    let mut world = World::over(store, Arc::new(InProcessBroker::new()), directory.path()).await;
    world.work(&["default"], 1);
    world.schedule();
    let plan = json!({ "kind": "flow", "steps": [sh("a", &[], "true")] });
    let task = world.submit(plan).await.unwrap();
    world.wait_verified(&task, TaskState::Completed).await;
    world.close().await;
    let gone = async || held.upgrade().is_none().then_some(());
    standfast_tests::wait::until("the store to be let go", gone).await;
}
