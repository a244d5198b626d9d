//! Api, schedulers and workers as processes of their own, tasks published by another program.

use std::collections::BTreeMap;

use standfast_tests::binary;
use standfast_tests::processes::Installation;

/// Tasks of a run: more when long tests were asked for.
fn count() -> usize {
    if binary::repeats(0) > 0 { 200 } else { 40 }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_worker_takes_its_queue_and_each_step_starts_once() {
    let own = Installation::start("30s").await;
    let _api = own.api().await;
    let mut processes = vec![own.process(&["scheduler"]), own.process(&["scheduler"])];
    processes.push(own.process(&["worker", "--queue", "default"]));
    processes.push(own.process(&["worker", "--queue", "research"]));

    let tasks = own.publish(&own.two_queue_plan("0"), count()).await;
    assert_eq!(tasks.len(), count());
    own.completed(&tasks).await;

    let mut workers: BTreeMap<String, String> = BTreeMap::new();
    for task in &tasks {
        for event in own.events(task).await {
            assert_ne!(event.kind, "attempt_failed", "{task}: {event:?}");
            if event.kind == "step_succeeded" {
                let queue =
                    if event.step.as_deref() == Some("study") { "research" } else { "default" };
                let worker = event.data["worker"].as_str().unwrap();
                let known = workers.entry(queue.to_owned()).or_insert_with(|| worker.to_owned());
                assert_eq!(known, worker, "another worker took from `{queue}`");
            }
        }
    }
    assert_eq!(workers.len(), 2);
    assert_ne!(workers["default"], workers["research"]);
    let starts = own.starts();
    assert_eq!(starts.len(), 3 * count());
    assert!(starts.values().all(|&times| times == 1), "{starts:?}");
    for process in &mut processes {
        assert_eq!(process.terminate(), Some(0));
    }
}
