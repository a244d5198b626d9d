//! A step queue whose server the broker has lost: its tasks say what they wait for, go on by
//! themselves, and no step runs twice.

use standfast_protocol::steps::WaitingFor;
use standfast_tests::wait;

use standfast_tests::fleet::Fleet;

/// What a process logs once for each time that it declares a queue anew.
const DONE: &str = "deleted and declared anew";

#[tokio::test(flavor = "multi_thread")]
async fn a_step_queue_that_the_broker_cannot_serve_strands_no_task() {
    let worker: &[&str] = &["worker", "--concurrency", "4"];
    let fleet = Fleet::start(&[], "30s", &[&["api"], &["scheduler"], worker, worker]).await;
    let queue = fleet.steps_queue("default");
    let before = fleet.submit_all("before", &fleet.chain(3, "1"), 4).await;
    fleet.started(&before[0], "s0").await;
    fleet.node.lose_servers(&[&queue]).await;
    let (task, _) = fleet.submit("during", &fleet.chain(2, "0")).await;
    let explained = wait::until("the task to say that nobody takes from its queue", async || {
        let explain = fleet.own.client().explain(&task).await.ok()?;
        let waiting = explain.why.waiting.first()?.waiting_for;
        (waiting == Some(WaitingFor::Unsubscribed)).then_some(explain.why.text.join("\n"))
    })
    .await;
    assert!(explained.contains("no worker takes from queue `default`"), "{explained}");
    let reason = fleet.red(2, "INTERNAL_ERROR").await;
    assert!(reason.contains(&queue), "{reason}");
    fleet.completed_once(&[task], 2).await;
    fleet.completed_once(&before, 3).await;
    for number in 0..fleet.members.len() {
        fleet.green(number).await;
    }
    let renewals = fleet.metric("standfast_rabbitmq_renewals_total").await;
    let said: usize = fleet.members.iter().map(|member| member.said(DONE)).sum();
    assert!((1..=2).contains(&said), "by whoever noticed, once each: {said}");
    assert_eq!(renewals, said as f64);
}
