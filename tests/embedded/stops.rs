//! Stops and pauses, with real workers: nothing runs that was stopped, what has landed is undone
//! in reverse, and a person settles what could not be.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::decide::Command;
use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::record::{Status, StopMode, TaskState};
use standfast_engine::ports::Store;
use standfast_stores::redb::RedbStore;
use standfast_tests::embedded::World;
use standfast_tests::wait;

async fn world(directory: &Path) -> World {
    let mut world = World::open(directory).await;
    world.work(&["default"], 2);
    world.schedule();
    world
}

/// What a shell runs in the installation's folder.
fn shell(script: &str) -> Value {
    json!({ "command": ["sh", "-c", format!("cd \"$0\"; {script}"), "${{ plan.dir }}"] })
}

/// A step that writes a line to the file `done`, irreversibly, and may be undone: that takes its
/// receipt out of what is left, as `undone`.
fn lands(name: &str, needs: &[&str]) -> Value {
    json!({
        "id": name, "uses": "exec", "needs": needs,
        "effect": { "class": "irreversible" },
        "with": shell(&format!("echo {name} >> done; echo receipt-{name}")),
        "undo": {
            "uses": "exec",
            "with": {
                "command": ["sh", "-c",
                            format!("cd \"$0\"; test ! -e stuck-{name} && echo \"$1\" >> undone"),
                            "${{ plan.dir }}",
                            "${{ effect.receipt.stdout.trim() }} ${{ effect.name }}"]
            },
            "retry": { "max_attempts": 2, "backoff": "10ms" }
        }
    })
}

/// Effects that land one after the other, and then a wait for whoever stops the task.
fn plan(names: &[&str]) -> Value {
    let mut steps: Vec<Value> = Vec::new();
    for (n, name) in names.iter().enumerate() {
        steps.push(lands(name, &names[n.saturating_sub(1)..n]));
    }
    let last = &names[names.len() - 1..];
    steps.push(json!({ "id": "wait", "uses": "timer", "needs": last, "with": { "for": "1d" } }));
    json!({ "kind": "stopped", "steps": steps })
}

fn lines(world: &World, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(world.directory.join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn stop(mode: StopMode) -> Command {
    Command::Stop { reason: None, mode }
}

async fn until_held(world: &World, task: &TaskId, step: &str) -> HoldReason {
    wait::until(&format!("{step} to be held"), async || {
        match world.step(task, step).await?.status {
            Status::Held { hold } => Some(hold.reason),
            _ => None,
        }
    })
    .await
}

fn undone(name: &str) -> String {
    format!("receipt-{name} main")
}

#[tokio::test(flavor = "multi_thread")]
async fn five_landed_effects_are_undone_in_reverse_and_a_failed_one_waits_for_a_person() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let task = world.submit(plan(&["a", "b", "c", "d", "e"])).await.unwrap();
    until_held(&world, &task, "wait").await;
    assert_eq!(lines(&world, "done"), ["a", "b", "c", "d", "e"]);
    std::fs::write(world.directory.join("stuck-c"), "").unwrap();
    assert!(world.command(&task, stop(StopMode::Undo)).await.unwrap());
    assert_eq!(until_held(&world, &task, "c~undo-3").await, HoldReason::UndoFailed);
    let header = world.header(&task).await.unwrap();
    assert_eq!((header.state, header.blocked > 0), (TaskState::Cancelling, true));
    assert_eq!(lines(&world, "undone"), [undone("e"), undone("d")]);
    assert_eq!(header.undo_top, 2, "two are left");
    let step = Some(StepId::new("c~undo-3").unwrap());
    let (note, effect, receipt) = (None, None, None);
    let settled = Command::Answer { step, answer: Answer::Skip, note, effect, receipt };
    assert!(world.command(&task, settled).await.unwrap());
    let header = world.wait_verified(&task, TaskState::Cancelled).await;
    assert_eq!(lines(&world, "undone"), ["e", "d", "b", "a"].map(undone));
    assert_eq!((header.undos, header.effects_landed), (5, 5));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_undo_that_a_person_retries_is_undone_in_its_turn() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let task = world.submit(plan(&["a", "b"])).await.unwrap();
    until_held(&world, &task, "wait").await;
    std::fs::write(world.directory.join("stuck-b"), "").unwrap();
    assert!(world.command(&task, stop(StopMode::Undo)).await.unwrap());
    until_held(&world, &task, "b~undo-2").await;
    std::fs::remove_file(world.directory.join("stuck-b")).unwrap();
    let step = Some(StepId::new("b~undo-2").unwrap());
    let (note, effect, receipt) = (None, None, None);
    let again = Command::Answer { step, answer: Answer::Retry, note, effect, receipt };
    assert!(world.command(&task, again).await.unwrap());
    world.wait_verified(&task, TaskState::Cancelled).await;
    assert_eq!(lines(&world, "undone"), ["b", "a"].map(undone));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stopped_while_no_worker_was_up_never_runs() {
    let directory = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..10).map(|n| format!("n{n}")).collect();
    let mut tasks = Vec::new();
    let store: Arc<dyn Store> = Arc::new(RedbStore::open(directory.path()).unwrap());
    let over = async || {
        // The queues forget at each start, as a broker that was restarted or purged may.
        World::over(store.clone(), Arc::new(InProcessBroker::new()), directory.path()).await
    };
    let cold = over().await;
    for name in &names {
        let command = format!("echo {name} >> ran");
        tasks.push(
            cold.submit(json!({ "kind": "stopped", "steps": [
                { "id": "a", "uses": "exec", "with": shell(&command) }
            ] }))
            .await
            .unwrap(),
        );
    }
    for task in &tasks[..5] {
        assert!(cold.command(task, stop(StopMode::Halt)).await.unwrap());
    }
    cold.close().await;
    let mut world = over().await;
    world.work(&["default"], 2);
    world.schedule();
    for (n, task) in tasks.iter().enumerate() {
        let state = if n < 5 { TaskState::Cancelled } else { TaskState::Completed };
        world.wait_verified(task, state).await;
    }
    let mut ran = lines(&world, "ran");
    ran.sort();
    assert_eq!(ran, names[5..]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_comes_after_the_stop_is_no_success_and_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    // The handler ignores that it is told to end, until it sees the file.
    let script = "trap '' TERM; echo > started; until test -e go; do sleep 0.05; done; echo done";
    let (own, ran) = (shell(script), shell("echo > ran"));
    let task = world
        .submit(json!({ "kind": "stopped", "steps": [
            { "id": "s1", "uses": "exec", "with": { "command": ["true"] } },
            { "id": "s2", "uses": "exec", "needs": ["s1"], "with": own },
            { "id": "s3", "uses": "exec", "needs": ["s2"], "with": ran }
        ] }))
        .await
        .unwrap();
    wait::until("s2 to run", async || world.directory.join("started").exists().then_some(())).await;
    assert!(world.command(&task, stop(StopMode::Halt)).await.unwrap());
    std::fs::write(world.directory.join("go"), "").unwrap();
    world.wait_verified(&task, TaskState::Cancelled).await;
    let status = world.step(&task, "s2").await.unwrap().status;
    assert!(!matches!(status, Status::Succeeded { .. }), "{status:?}");
    assert_eq!(world.output(&task, "s2").await, None);
    assert!(!world.directory.join("ran").exists());
    let started = |change: &Change| {
        matches!(change, Change::StepReady { step, .. }
        if step.as_str() == "s3")
    };
    assert!(!world.events(&task).await.iter().any(|event| started(&event.change)));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_attempt_finishes_and_its_followers_do_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let script = "echo > started; until test -e go; do sleep 0.05; done; echo sent >> done";
    let task = world
        .submit(json!({ "kind": "stopped", "steps": [
            { "id": "a", "uses": "exec", "effect": { "class": "irreversible" },
              "with": shell(script) },
            { "id": "b", "uses": "exec", "needs": ["a"], "with": { "command": ["true"] } }
        ] }))
        .await
        .unwrap();
    wait::until("a to run", async || world.directory.join("started").exists().then_some(())).await;
    assert!(world.command(&task, stop(StopMode::Drain)).await.unwrap());
    std::fs::write(world.directory.join("go"), "").unwrap();
    let header = world.wait_verified(&task, TaskState::Cancelled).await;
    assert_eq!((header.succeeded, header.effects_landed, header.open), (1, 1, 1));
    assert_eq!(lines(&world, "done"), ["sent"]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_task_starts_nothing_until_it_is_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let script = "echo > started; until test -e go; do sleep 0.05; done";
    let task = world
        .submit(json!({ "kind": "paused", "steps": [
            { "id": "a", "uses": "exec",
              "with": shell(script) },
            { "id": "b", "uses": "exec", "needs": ["a"], "with": { "command": ["true"] } }
        ] }))
        .await
        .unwrap();
    wait::until("a to run", async || world.directory.join("started").exists().then_some(())).await;
    assert!(world.command(&task, Command::Pause { reason: None }).await.unwrap());
    std::fs::write(world.directory.join("go"), "").unwrap();
    wait::until("b to be ready", async || {
        matches!(world.step(&task, "b").await?.status, Status::Ready { .. }).then_some(())
    })
    .await;
    assert_eq!(world.header(&task).await.unwrap().state, TaskState::Blocked);
    assert!(world.command(&task, Command::Resume { reason: None }).await.unwrap());
    world.wait_verified(&task, TaskState::Completed).await;
    world.close().await;
}
