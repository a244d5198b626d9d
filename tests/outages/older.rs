//! A Redis that came back from an earlier state, older than the broker and than what the
//! processes remember.

use std::time::Duration;

use serde_json::{Value, json};
use standfast_sdk::Error;
use standfast_tests::fleet::Process;
use standfast_tests::processes::Installation;
use standfast_tests::services::amqp_url;
use standfast_tests::wait;

use crate::ledger::{failures, noted, started, starts, wait_for};

fn one_step(own: &Installation, queue: &str, then: &str) -> Value {
    let mut step = noted(own, "only", &[], then);
    step["queue"] = json!(queue);
    json!({ "kind": "older", "steps": [step] })
}

/// Removes the messages of a queue.
async fn purge(own: &Installation, queue: &str) {
    let properties = lapin::ConnectionProperties::default();
    let connection = lapin::Connection::connect(&amqp_url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let name = format!("{}.steps.{queue}", own.place.prefix);
    channel.queue_purge(name.as_str().into(), Default::default()).await.unwrap();
    connection.close(200, "done".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_from_before_is_gone_on_from_and_messages_of_lost_tasks_end() {
    let mut own = Installation::start("2s").await;
    let client = own.client();
    let _api = own.api().await;
    let scheduler = Process::start(&own, "scheduler", &["scheduler"], &[]);
    let worker = Process::start(&own, "worker", &["worker"], &[]);
    let gate = own.path().join("gate");
    let kept = client.submit(one_step(&own, "default", "true")).await.unwrap().id;
    own.ended(&kept).await;
    let running = client.submit(one_step(&own, "default", &wait_for(&gate))).await.unwrap().id;
    started(&own, 2).await;
    let copy = own.path().join("copy");
    own.redis.copy_files(&copy);

    // What follows is forgotten: an end, a task, a queue, and a message that stays behind.
    std::fs::write(&gate, "").unwrap();
    own.ended(&running).await;
    let lost = client.submit(one_step(&own, "default", "true")).await.unwrap().id;
    own.ended(&lost).await;
    let waiting = client.submit(one_step(&own, "research", "true")).await.unwrap().id;
    own.redis.kill();
    own.redis.put_files(&copy);
    own.redis.revive().await;

    // The task that had ended runs again: nobody knows that it had.
    own.completed(&[kept.clone(), running.clone()]).await;
    let again = failures(&own, &running).await;
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(again[0]["class"], "lost");
    for task in [&lost, &waiting] {
        let gone = client.get(task).await;
        assert!(matches!(&gone, Err(Error::Problem(_))), "{gone:?}");
    }
    // A queue that the api had noted is noted anew: the sweep finds what it wakes for.
    let new = client.submit(one_step(&own, "research", "true")).await.unwrap().id;
    purge(&own, "research").await;
    let research = Process::start(&own, "research", &["worker", "--queue", "research"], &[]);
    own.completed(std::slice::from_ref(&new)).await;
    let of = |task: &str| starts(&own).iter().filter(|start| start.task == task).count();
    assert_eq!([of(&kept), of(&running), of(&lost), of(&waiting), of(&new)], [1, 2, 1, 0, 1]);
    for process in [&scheduler, &worker, &research] {
        process.green(Duration::from_secs(10)).await;
        assert_eq!(process.said("ERROR"), 0, "{}", own.log(&process.name));
    }
    // Messages of what is not there any more are ended, not kept and not sent round.
    wait::until("the queues to be empty", async || {
        let properties = lapin::ConnectionProperties::default();
        let connection = lapin::Connection::connect(&amqp_url(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let mut left = 0;
        for queue in ["default", "research"] {
            let name = format!("{}.steps.{queue}", own.place.prefix);
            let passive =
                lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
            let name = name.as_str().into();
            let found = channel.queue_declare(name, passive, Default::default()).await.unwrap();
            left += found.message_count();
        }
        (left == 0).then_some(())
    })
    .await;
}
