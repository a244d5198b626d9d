//! Attempts of the shipped worker: silence, signs of life, what the next one is told, zombies.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use standfast_domain::decide::Command;
use standfast_domain::event::Change;
use standfast_domain::hold::HoldReason;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::outcome::FailureClass;
use standfast_domain::record::{Key, Record, Status, TaskState};
use standfast_tests::embedded::World;
use standfast_tests::wait;

async fn world() -> (tempfile::TempDir, World) {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::open(directory.path()).await;
    world.work(&["default"], 1);
    world.schedule();
    (directory, world)
}

fn plan(script: &str, fields: Value) -> Value {
    let mut step = json!({ "id": "a", "uses": "exec", "with": { "command": ["sh", "-c", script] },
                           "retry": { "max_attempts": 2, "backoff": "10ms" } });
    step.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "kind": "attempts", "steps": [step] })
}

/// Lists how attempts failed.
async fn failures(world: &World, task: &TaskId) -> Vec<(FailureClass, String)> {
    let events = world.events(task).await;
    let failed = events.into_iter().filter_map(|event| match event.change {
        Change::AttemptFailed { class, message, .. } => Some((class, message)),
        _ => None,
    });
    failed.collect()
}

/// Takes the first attempt from its worker.
async fn take(world: &World, task: &TaskId) {
    let step = StepId::new("a").unwrap();
    let taken = Command::ExpireClaim { step, attempt: 1, proven: true };
    assert!(world.command(task, taken).await.unwrap());
}

async fn said(world: &World, task: &TaskId) -> Option<String> {
    let key = Key::Claim(StepId::new("a").unwrap());
    let read = world.engine.read(task, std::slice::from_ref(&key)).await.unwrap().remove(&key);
    match read.flatten() {
        Some(Record::Claim(claim)) => claim.details,
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_program_is_ended_and_one_that_speaks_is_not() {
    let (_directory, world) = world().await;
    let heartbeat = json!({ "timeout": { "heartbeat": "2s" } });
    let loud = "for n in 1 2 3 4 5 6 7; do echo $n; sleep 0.5; done";
    let speaking = world.submit(plan(loud, heartbeat.clone())).await.unwrap();
    let header = world.wait_verified(&speaking, TaskState::Completed).await;
    assert_eq!(header.attempts, 1);
    let silent = world.submit(plan("sleep 600", heartbeat)).await.unwrap();
    world.wait_verified(&silent, TaskState::Blocked).await;
    let right = (FailureClass::Timeout, "its handler gave no sign of life for 2s".to_owned());
    assert_eq!(failures(&world, &silent).await, [right.clone(), right]);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_goes_on_from_what_the_attempt_before_said_last() {
    let (_directory, world) = world().await;
    let script = "test -n \"$STANDFAST_LAST_DETAILS\" && echo \"$STANDFAST_LAST_DETAILS\" && exit 0
                  echo row 399 > $STANDFAST_PROGRESS; echo row 400 > $STANDFAST_PROGRESS; exit 1";
    let task = world.submit(plan(script, json!({}))).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!(header.attempts, 2);
    assert_eq!(world.output(&task, "a").await.unwrap()["stdout"], "row 400");
    assert_eq!(world.step(&task, "a").await.unwrap().details, None, "cleared by the success");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_given_the_trace_context_that_its_task_came_with() {
    let (_directory, world) = world().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for (given, seen) in [(trace, trace), ("00-\0", "none")] {
        let script = plan("echo ${TRACEPARENT-none}", json!({}));
        let task = world.submit_traced(script, given).await;
        world.wait_verified(&task, TaskState::Completed).await;
        assert_eq!(world.output(&task, "a").await.unwrap()["stdout"], seen);
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_shown_while_the_program_runs() {
    let (directory, world) = world().await;
    let script = "echo half > $STANDFAST_PROGRESS
                  until test -e ${{ plan.dir }}/gate; do sleep 0.1; done";
    let heartbeat = json!({ "timeout": { "heartbeat": "4s" } });
    let script = script.replace("sleep", "echo .; sleep");
    let task = world.submit(plan(&script, heartbeat)).await.unwrap();
    wait::until("the claim to say `half`", async || said(&world, &task).await).await;
    assert_eq!(said(&world, &task).await.as_deref(), Some("half"));
    std::fs::write(directory.path().join("gate"), "").unwrap();
    world.wait_verified(&task, TaskState::Completed).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_lost_its_claim_is_ended_at_once() {
    let (directory, world) = world().await;
    // The longest silence makes heartbeats come each second; the program itself never ends, and
    // does not listen to SIGTERM.
    let script = "trap '' TERM; echo $$ > ${{ plan.dir }}/pid.new
                  mv ${{ plan.dir }}/pid.new ${{ plan.dir }}/pid
                  while true; do echo on; sleep 0.2; done";
    let fields = json!({ "timeout": { "heartbeat": "2s" }, "retry": { "max_attempts": 1 } });
    let task = world.submit(plan(script, fields)).await.unwrap();
    let file = directory.path().join("pid");
    let pid = wait::until("the program to start", async || std::fs::read_to_string(&file).ok());
    let process = format!("/proc/{}", pid.await.trim());
    take(&world, &task).await;
    let lost = Instant::now();
    wait::until("the zombie to end", async || (!std::fs::exists(&process).unwrap()).then_some(()))
        .await;
    assert!(lost.elapsed() < Duration::from_secs(20), "it went on for {:?}", lost.elapsed());
    let state = world.step(&task, "a").await.unwrap();
    let Status::Held { hold } = &state.status else { panic!("{state:?}") };
    assert_eq!(hold.reason, HoldReason::WorkerDied);
    assert_eq!(failures(&world, &task).await.len(), 1, "nothing of the zombie is taken");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_attempt_cost_counts_though_it_was_taken_from_its_worker() {
    let (directory, world) = world().await;
    let script = "echo '{\"cost\":{\"usd\":3}}' > $STANDFAST_OUTCOME; touch ${{ plan.dir }}/begun
                  while true; do echo on; sleep 0.2; done";
    let fields = json!({ "timeout": { "heartbeat": "2s" }, "retry": { "max_attempts": 1 } });
    let task = world.submit(plan(script, fields)).await.unwrap();
    let begun = directory.path().join("begun");
    wait::until("the program to start", async || begun.exists().then_some(())).await;
    take(&world, &task).await;
    let late = wait::until("its late result", async || {
        let events = world.events(&task).await;
        events.into_iter().find_map(|event| match event.change {
            Change::LateResultRefused { attempt, class, cost_usd_micros, .. } => {
                Some((attempt, class, cost_usd_micros))
            }
            _ => None,
        })
    });
    assert_eq!(late.await, (1, Some(FailureClass::Cancelled), 3_000_000));
    let header = world.wait_verified(&task, TaskState::Blocked).await;
    assert_eq!(header.cost_usd_micros, 3_000_000);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_no_worker_can_start_fails_after_its_queue_time_and_says_why() {
    let (_directory, world) = world().await;
    let elsewhere = json!({ "queue": "elsewhere", "timeout": { "queue": "300ms" } });
    let task = world.submit(plan("true", elsewhere)).await.unwrap();
    world.wait_verified(&task, TaskState::Blocked).await;
    let state = world.step(&task, "a").await.unwrap();
    let Status::Held { hold } = &state.status else { panic!("{state:?}") };
    let right = "no worker started it within its queue time of 300ms: \
                 no live worker of queue `elsewhere` has handler `exec`";
    assert_eq!(hold.message, right);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_behind_a_full_worker_fails_after_its_queue_time_and_says_so() {
    let (directory, world) = world().await;
    let script = "until test -e ${{ plan.dir }}/gate; do sleep 0.1; done";
    let first = world.submit(plan(script, json!({}))).await.unwrap();
    wait::until("the worker to say that it is full", async || {
        let workers = world.registry.workers().await.unwrap();
        workers.iter().any(|worker| worker.load.is_some_and(|of| of.running == 1)).then_some(())
    })
    .await;
    let behind = json!({ "timeout": { "queue": "300ms" } });
    let second = world.submit(plan("true", behind)).await.unwrap();
    world.wait_verified(&second, TaskState::Blocked).await;
    let state = world.step(&second, "a").await.unwrap();
    let Status::Held { hold } = &state.status else { panic!("{state:?}") };
    assert!(hold.message.ends_with("handler `exec` are full"), "{}", hold.message);
    std::fs::write(directory.path().join("gate"), "").unwrap();
    world.wait_verified(&first, TaskState::Completed).await;
    world.close().await;
}
