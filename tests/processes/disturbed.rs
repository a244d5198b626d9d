//! A fleet whose processes are killed with -9 and whose messages are purged at random moments.

use std::collections::BTreeMap;
use std::time::Duration;

use standfast_protocol::steps::{StepQuery, StepState};
use standfast_tests::binary::{self, Draw};
use standfast_tests::processes::Installation;
use standfast_tests::services::amqp_url;

/// Removes all messages that wait for workers.
async fn purge(prefix: &str) {
    let properties = lapin::ConnectionProperties::default();
    let connection = lapin::Connection::connect(&amqp_url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    for queue in ["default", "research"] {
        let name = format!("{prefix}.steps.{queue}");
        channel.queue_purge(name.as_str().into(), Default::default()).await.unwrap();
    }
    connection.close(200, "done".into()).await.unwrap();
}

/// Notes how often each step had started that is settled by now.
async fn note_settled(own: &Installation, tasks: &[String], kept: &mut BTreeMap<String, usize>) {
    let client = own.client();
    for task in tasks {
        let page = client.steps(task, &StepQuery::default()).await.unwrap();
        // Read after the page: what settled before it had started before it.
        let starts = own.starts();
        for step in page.steps.iter().filter(|step| step.state == StepState::Succeeded) {
            let name = format!("{task}/{}", step.id);
            let times = starts[&name];
            kept.entry(name).or_insert(times);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_purges_lose_no_task_and_repeat_no_settled_step() {
    let mut draw = Draw::new();
    let own = Installation::start("3s").await;
    let mut api = own.api().await;
    let commands: [&[&str]; 4] = [
        &["scheduler"],
        &["scheduler"],
        &["worker", "--queue", "default", "--concurrency", "4"],
        &["worker", "--queue", "research", "--concurrency", "4"],
    ];
    let mut processes: Vec<_> = commands.iter().map(|words| own.process(words)).collect();
    let count = if binary::repeats(0) > 0 { 200 } else { 40 };
    let tasks = own.publish(&own.two_queue_plan("0.1"), count).await;

    // One each of api, scheduler, worker and purge, in an order and at moments of the seed.
    let mut deeds = vec!["api", "scheduler", "worker", "purge"];
    let mut kept = BTreeMap::new();
    while !deeds.is_empty() {
        let deed = deeds.remove(draw.below(deeds.len() as u64) as usize);
        tokio::time::sleep(Duration::from_millis(draw.below(600))).await; // the moment, no wait
        note_settled(&own, &tasks, &mut kept).await;
        let one = match deed {
            "scheduler" => draw.below(2) as usize,
            _ => 2 + draw.below(2) as usize,
        };
        println!("{deed} {one}, with {} of {} steps settled", kept.len(), 3 * count);
        match deed {
            "api" => {
                api.kill();
                api = own.api().await;
            }
            "purge" => purge(&own.place.prefix).await,
            _ => {
                processes[one].kill();
                processes[one] = own.process(commands[one]);
            }
        }
    }
    own.completed(&tasks).await;
    let starts = own.starts();
    assert_eq!(starts.len(), 3 * count);
    for (step, times) in kept {
        assert_eq!(starts[&step], times, "settled step {step} started again");
    }
    drop(api);
}
