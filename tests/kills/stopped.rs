//! What was stopped while no worker was up never starts, whatever is restarted meanwhile.

use standfast_protocol::tasks::{StopMode, StopRequest, TaskState};
use standfast_tests::fleet::Fleet;
use standfast_tests::wait;

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_workers_holds_over_a_restart_of_everything() {
    let mut fleet = Fleet::start(&[], "3s", &[&["api"], &["scheduler"]]).await;
    let tasks = fleet.submit_all("queued", &fleet.chain(2, "0"), 10).await;
    let name = fleet.steps_queue("default");
    wait::until("the messages of all first steps to lie in the queue", async || {
        let listed = fleet.node.control(&["list_queues", "-q", "name", "messages_ready"]).await;
        listed.lines().any(|line| line.trim() == format!("{name}\t10")).then_some(())
    })
    .await;
    fleet.members[1].running.kill();

    let (stopped, left) = tasks.split_at(5);
    let request = StopRequest { mode: StopMode::Halt, reason: None, digest: None };
    for task in stopped {
        fleet.own.client().stop(task, &request).await.unwrap();
    }
    fleet.members[0].running.kill();
    fleet.own.redis.restart().await;
    fleet.node.signal("-9");
    fleet.node.boot().await;

    fleet.again(0);
    fleet.again(1);
    let worker = fleet.member(&["worker"]);
    for number in [0, 1, worker] {
        fleet.green(number).await;
    }
    fleet.completed_once(left, 2).await;
    for task in stopped {
        assert_eq!(fleet.own.ended(task).await.state, TaskState::Cancelled);
    }
    wait::until("the queue to hold nothing", async || {
        let listed = fleet.node.control(&["list_queues", "-q", "name", "messages"]).await;
        listed.lines().any(|line| line.trim() == format!("{name}\t0")).then_some(())
    })
    .await;
    let starts = fleet.own.starts();
    assert_eq!(starts.len(), 10, "only the other five ran, two steps each: {starts:?}");
}
