//! After the retention nothing of a task is left: no key, no index entry, no blob.

use std::sync::Arc;

use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::decide::Command;
use standfast_domain::ids::TaskId;
use standfast_domain::record::{Key, StopMode, TaskState};
use standfast_stores::redis::{RedisOptions, RedisStore};
use standfast_tests::embedded::World;
use standfast_tests::private_redis::PrivateRedis;
use standfast_tests::wait;

use crate::support::{Server, count, embedded, step};

/// Indexes that a task of this test can stand in.
const INDEXES: [&str; 18] = [
    "timers",
    "expiries",
    "work",
    "claims",
    "tasks",
    "ready:default",
    "ready:nobody",
    "state:queued",
    "state:running",
    "state:waiting",
    "state:blocked",
    "state:paused",
    "state:cancelling",
    "state:completed",
    "state:failed",
    "state:cancelled",
    "kind:mixed",
    "label:n=1",
];

/// Gives the `n`th plan of a mixture: successes, failures, retries, redos, large outputs and
/// artifacts, timers, many steps, steps for which there is no worker.
fn mixed(n: usize) -> Value {
    let mut steps = match n % 8 {
        0 => vec![step("a", &[], "true"), step("b", &["a"], "echo done")],
        1 => vec![step("a", &[], "exit 1")],
        2 => vec![step(
            "a",
            &[],
            "test -e ${{ plan.dir }}/again-$STANDFAST_TASK || \
                                  { touch ${{ plan.dir }}/again-$STANDFAST_TASK; exit 1; }",
        )],
        3 => vec![step("a", &[], "head -c 300000 /dev/zero | tr '\\0' x")],
        4 => vec![step("a", &[], "echo artifact > out.txt")],
        5 => (0..60).map(|n| step(&format!("s{n}"), &[], "true")).collect(),
        6 => vec![json!({"id": "a", "uses": "timer", "with": {"for": "1h"}})],
        _ => vec![step("a", &[], "true")],
    };
    match n % 8 {
        1 => steps[0]["on_failure"] = json!("fail"),
        2 => steps[0]["retry"] = json!({"max_attempts": 3, "backoff": "1ms"}),
        4 => steps[0]["artifact"] = json!("out.txt"),
        5 if n % 16 == 5 => {
            for step in &mut steps[1..] {
                step["if"] = json!("false");
            }
        }
        7 => steps[0]["queue"] = json!("nobody"),
        _ => {}
    }
    json!({"kind": "mixed", "labels": {"n": "1"}, "retention": "1s", "steps": steps})
}

/// Runs many tasks of all kinds and waits until they are gone. Gives their ids.
async fn come_and_go(world: &World, tasks: usize) -> Vec<TaskId> {
    let mut made = Vec::new();
    for n in 0..tasks {
        made.push(world.submit(mixed(n)).await.unwrap());
    }
    for (n, task) in made.iter().enumerate() {
        if n % 8 >= 6 {
            let stop = Command::Stop { reason: None, mode: StopMode::Halt };
            world.command(task, stop).await.unwrap();
        }
    }
    for task in &made {
        wait::until(&format!("task {task} to be gone"), async || {
            world.header(task).await.is_none().then_some(())
        })
        .await;
    }
    wait::until("every entry to be gone", async || {
        (count(&world.engine, "tasks").await == 0 && count(&world.engine, "timers").await == 0)
            .then_some(())
    })
    .await;
    made
}

async fn nothing_is_left(world: &World, directory: &std::path::Path, made: &[TaskId]) {
    for index in INDEXES {
        assert_eq!(count(&world.engine, index).await, 0, "{index}");
    }
    for task in made {
        let records = world.engine.read(task, &[Key::Header, Key::Meta, Key::Gate]).await.unwrap();
        assert!(records.values().all(Option::is_none), "{task}");
        assert_eq!(world.events(task).await, []);
    }
    let left: Vec<String> = std::fs::read_dir(directory.join("blobs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["standfast-installation"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_as_large_as_before_once_tasks_are_removed() {
    let redis = PrivateRedis::start(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let store = RedisStore::connect(&RedisOptions::new(redis.url())).await.unwrap();
    let broker = Arc::new(InProcessBroker::new());
    let mut world = World::over(Arc::new(store), broker, directory.path()).await;
    world.work(&["default"], 8);
    world.schedule();
    let first = come_and_go(&world, 8).await;
    nothing_is_left(&world, directory.path(), &first).await;
    let base = keys(&redis).await;
    let made = come_and_go(&world, 120).await;
    nothing_is_left(&world, directory.path(), &made).await;
    assert_eq!(keys(&redis).await, base);
    world.close().await;
}

async fn keys(redis: &PrivateRedis) -> Vec<String> {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let keys = redis::cmd("KEYS").arg("*").query_async(&mut connection).await;
    let mut keys: Vec<String> = keys.unwrap();
    keys.sort();
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_holds_no_entry_record_or_blob_once_tasks_are_removed() {
    let (directory, mut world) = embedded().await;
    world.work(&["default"], 8);
    world.schedule();
    let made = come_and_go(&world, 64).await;
    nothing_is_left(&world, directory.path(), &made).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_output_goes_with_its_task() {
    let (directory, mut world) = embedded().await;
    world.work(&["default"], 1);
    let server = Server::start(&world).await;
    let task = world.submit(mixed(3)).await.unwrap();
    world.wait(&task, &[TaskState::Completed]).await;
    let blobs = directory.path().join("blobs").join(task.as_str());
    assert!(blobs.read_dir().unwrap().count() > 0, "the output is a blob");
    world.schedule();
    wait::until("the blob to be gone", async || (!blobs.exists()).then_some(())).await;
    let gone = wait::until("the task to be gone", async || {
        let answer = server.get(&format!("/v1/tasks/{task}")).await;
        (answer.status == 404).then_some(answer)
    });
    assert!(gone.await.json()["type"].as_str().unwrap().ends_with("not_found"));
    server.stop().await;
    world.close().await;
}
