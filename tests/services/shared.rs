//! Many tasks, several processes' worth of parts, lost messages.

use serde_json::{Value, json};
use standfast_domain::ids::{Queue, TaskId};
use standfast_domain::record::TaskState;
use standfast_engine::ports::Broker;
use standfast_tests::embedded::World;
use standfast_tests::services::Place;

fn plan(ledger: &std::path::Path, name: &str) -> Value {
    let step = |id: &str, queue: &str, needs: &[&str]| {
        let line = format!("echo {name}/{id} >> {}", ledger.display());
        json!({ "id": id, "uses": "exec", "queue": queue, "needs": needs,
                "with": { "command": ["sh", "-c", line] } })
    };
    json!({ "kind": "fleet", "steps": [
        step("one", "default", &[]), step("two", "research", &["one"]),
        step("three", "default", &["two"]),
    ]})
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_share_tasks_and_each_step_starts_once() {
    let place = Place::new();
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut first = World::over(place.store().await, place.broker().await, directory.path()).await;
    first.work(&["default"], 8);
    first.schedule();
    let mut second = World::over(place.store().await, place.broker().await, directory.path()).await;
    second.work(&["research"], 8);
    second.schedule();
    let mut tasks: Vec<TaskId> = Vec::new();
    for n in 0..50 {
        tasks.push(first.submit(plan(&ledger, &n.to_string())).await.unwrap());
    }
    for task in &tasks {
        second.wait_verified(task, TaskState::Completed).await;
    }
    let written = std::fs::read_to_string(&ledger).unwrap();
    let mut starts: Vec<&str> = written.lines().collect();
    starts.sort_unstable();
    let all = starts.len();
    starts.dedup();
    assert_eq!((all, starts.len()), (150, 150));
    first.close().await;
    second.close().await;
    place.clean(&["default", "research"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn purged_messages_are_sent_again() {
    let place = Place::new();
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let mut world = World::over(place.store().await, place.broker().await, directory.path()).await;
    let mut tasks = Vec::new();
    for n in 0..5 {
        tasks.push(world.submit(plan(&ledger, &n.to_string())).await.unwrap());
    }
    let broker = place.broker().await;
    let queue = Queue::new("default").unwrap();
    standfast_tests::wait::until("five messages", async || {
        (broker.depth(&queue).await.unwrap().ready == 5).then_some(())
    })
    .await;
    let connection =
        lapin::Connection::connect(&standfast_tests::services::amqp_url(), Default::default())
            .await
            .unwrap();
    let channel = connection.create_channel().await.unwrap();
    let name = format!("{}.steps.default", place.prefix);
    channel.queue_purge(name.as_str().into(), Default::default()).await.unwrap();
    world.work(&["default", "research"], 4);
    world.schedule();
    for task in &tasks {
        world.wait_verified(task, TaskState::Completed).await;
    }
    world.close().await;
    place.clean(&["default", "research"]).await;
}
