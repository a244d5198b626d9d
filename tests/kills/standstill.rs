//! A broker that is there and does nothing for us: rights taken away, an alarm, a freeze, a
//! queue that is gone or another's. Each process says so with the cause, goes on with what it
//! can, and comes back by itself.

use std::time::Duration;

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use serde_json::json;
use standfast_protocol::steps::StepState;
use standfast_tests::wait;

use standfast_tests::fleet::Fleet;

/// Within this a submission is answered, whatever the broker does.
const ANSWERED: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_stands_still_is_named_by_health_and_holds_nobody_up() {
    let worker: &[&str] = &["worker", "--concurrency", "4"];
    let fleet = Fleet::start(&[], "30s", &[&["api"], &["scheduler"], worker, worker]).await;
    rights_are_taken_and_given_back(&fleet).await;
    an_alarm_blocks_publishers(&fleet).await;
    the_broker_freezes(&fleet).await;
    the_queue_is_deleted_and_another_stands_there(&fleet).await;
    a_worker_freezes(&fleet).await;
}

async fn all_green(fleet: &Fleet) {
    for number in 0..fleet.members.len() {
        fleet.green(number).await;
    }
}

async fn rights_are_taken_and_given_back(fleet: &Fleet) {
    let marks = fleet.marks();
    fleet.node.control(&["clear_permissions", "guest"]).await;
    for number in 0..fleet.members.len() {
        fleet.red(number, "may not publish").await;
    }
    fleet.node.control(&["set_permissions", "guest", ".*", ".*", ".*"]).await;
    all_green(fleet).await;
    fleet.calm_since(&marks);
}

async fn an_alarm_blocks_publishers(fleet: &Fleet) {
    let gate = fleet.own.path().join("gate-of-alarm");
    let script = format!("until test -e {}; do sleep 0.05; done", gate.display());
    let plan = json!({ "kind": "gated", "steps": [
        fleet.step("s0", &[], &script), fleet.step("s1", &["s0".to_owned()], "true"),
    ]});
    let running = fleet.submit_all("running", &plan, 4).await;
    for task in &running {
        fleet.started(task, "s0").await;
    }
    let marks = fleet.marks();
    fleet.node.control(&["set_vm_memory_high_watermark", "0.00001"]).await;
    for number in 0..fleet.members.len() {
        fleet.red(number, "blocks publishers").await;
    }
    assert_eq!(fleet.metric("standfast_rabbitmq_blocked").await, 4.0);
    let mut during = Vec::new();
    for number in 0..3 {
        let (task, took) = fleet.submit(&format!("alarm-{number}"), &fleet.chain(1, "0")).await;
        assert!(took < ANSWERED, "submitting during the alarm took {took:?}");
        during.push(task);
    }
    std::fs::write(&gate, "").unwrap();
    for task in &running {
        wait::until("the running steps to be stored", async || {
            let step = fleet.own.client().step(task, "s0").await.ok()?;
            (step.state == StepState::Succeeded).then_some(())
        })
        .await;
    }
    // They were acknowledged meanwhile: on a connection that does not publish.
    let columns = ["list_queues", "--no-table-headers", "name", "messages_unacknowledged"];
    let line = format!("{}\t0", fleet.steps_queue("default"));
    wait::within(Duration::from_secs(10), "nothing to be unacknowledged", async || {
        let listed = fleet.node.control(&columns).await;
        listed.lines().any(|found| found == line).then_some(())
    })
    .await;
    fleet.node.control(&["set_vm_memory_high_watermark", "0.4"]).await;
    all_green(fleet).await;
    fleet.calm_since(&marks);
    fleet.completed_once(&running, 2).await;
    fleet.completed_once(&during, 1).await;
}

async fn the_broker_freezes(fleet: &Fleet) {
    let marks = fleet.marks();
    fleet.node.signal("-STOP");
    let mut first = Vec::new();
    for number in 0..5 {
        let (task, took) = fleet.submit(&format!("frozen-{number}"), &fleet.chain(1, "0")).await;
        assert!(took < ANSWERED, "submitting to a frozen broker took {took:?}");
        first.push(task);
    }
    for number in 0..fleet.members.len() {
        fleet.red(number, "broker").await;
    }
    fleet.node.signal("-CONT");
    all_green(fleet).await;
    fleet.calm_since(&marks);
    let again = fleet.submit_all("frozen", &fleet.chain(1, "0"), 5).await;
    assert_eq!(again, first, "the same keys lead to the same tasks");
    fleet.completed_once(&first, 1).await;
    fleet.consumers("default", 2).await;
}

async fn the_queue_is_deleted_and_another_stands_there(fleet: &Fleet) {
    let marks = fleet.marks();
    let name = fleet.steps_queue("default");
    let (_connection, channel) = fleet.channel().await;
    let delete = || channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default());
    delete().await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    let foreign = channel.queue_declare(name.as_str().into(), durable, FieldTable::default());
    foreign.await.unwrap();
    for number in [2, 3] {
        let text = fleet.red(number, "exists with another `x-").await;
        assert!(text.contains(&name) && text.contains("wanted"), "{text}");
    }
    let tasks = fleet.submit_all("deleted", &fleet.chain(2, "0"), 4).await;
    delete().await.unwrap();
    all_green(fleet).await;
    fleet.calm_since(&marks);
    fleet.consumers("default", 2).await;
    fleet.completed_once(&tasks, 2).await;
}

async fn a_worker_freezes(fleet: &Fleet) {
    let frozen = fleet.members[3].running.0.id().to_string();
    let signal = |signal: &str| {
        let sent = std::process::Command::new("kill").args([signal, &frozen]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    fleet.red(3, "").await;
    let tasks = fleet.submit_all("one-of-two", &fleet.chain(1, "0"), 2).await;
    signal("-CONT");
    fleet.green(3).await;
    fleet.completed_once(&tasks, 1).await;
}
