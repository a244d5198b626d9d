//! Workers that stand still are taken over and lose; workers that are only busy are not.

use serde_json::json;
use standfast_tests::fleet::Process;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

use crate::ledger::{failures, noted, once_each, started, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_worker_that_comes_back_overwrites_nothing() {
    let own = Installation::start("2s").await;
    let _api = own.api().await;
    let scheduler = Process::start(&own, "scheduler", &["scheduler"], &[]);
    let stalled = Process::start(&own, "stalled", &["worker"], &[("LANG", "stalled")]);
    let (first, second) = (own.path().join("first"), own.path().join("second"));
    // The first attempt ends while its worker stands still, the second after that.
    let script = format!(
        "if test $STANDFAST_ATTEMPT = 1; then {}; else {}; fi; echo $LANG",
        wait_for(&first),
        wait_for(&second)
    );
    let steps = json!([noted(&own, "one", &[], &script), noted(&own, "two", &["one"], "true")]);
    let plan = json!({ "kind": "stall", "steps": steps });
    let task = own.client().submit(plan).await.unwrap().id;
    started(&own, 1).await;

    stalled.signal("STOP");
    let healthy = Process::start(&own, "healthy", &["worker"], &[("LANG", "healthy")]);
    let starts = started(&own, 2).await;
    assert_eq!(starts[1].worker, "healthy");
    std::fs::write(&first, "").unwrap(); // its process ends; its worker does not hear of it
    stalled.signal("CONT");
    wait::until("the stalled worker to hear that it lost", async || {
        (stalled.said("attempt was taken over") + stalled.said("result not taken") > 0)
            .then_some(())
    })
    .await;
    std::fs::write(&second, "").unwrap();
    own.completed(std::slice::from_ref(&task)).await;

    let output = own.client().step(&task, "one").await.unwrap().output.unwrap();
    assert_eq!(output["stdout"], "healthy");
    let lost = failures(&own, &task).await;
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert_eq!((&lost[0]["class"], &lost[0]["attempt"]), (&json!("lost"), &json!(1)));
    let events = own.events(&task).await;
    let succeeded: Vec<_> = events.iter().filter(|event| event.kind == "step_succeeded").collect();
    assert_eq!(succeeded.len(), 2, "{events:?}");
    assert_eq!(started(&own, 3).await.len(), 3, "the next step started once");
    drop((scheduler, healthy));
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_of_six_claim_lengths_on_a_busy_machine_start_once() {
    let own = Installation::start("2s").await;
    let _api = own.api().await;
    let processes = [
        Process::start(&own, "scheduler-1", &["scheduler"], &[]),
        Process::start(&own, "scheduler-2", &["scheduler"], &[]),
        Process::start(&own, "worker", &["worker", "--concurrency", "5"], &[]),
        Process::start(&own, "idle", &["worker", "--concurrency", "5"], &[]),
    ];
    let spin = "end=$(($(date +%s) + 12)); \
                while test $(date +%s) -lt $end; do for i in 1 2 3 4 5 6 7 8 9; do :; done; done";
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let plan = json!({ "kind": "busy", "steps": [noted(&own, "spin", &[], spin)] });
        tasks.push(own.client().submit(plan).await.unwrap().id);
    }
    own.completed(&tasks).await;
    once_each(&own, 5);
    for task in &tasks {
        assert_eq!(failures(&own, task).await, Vec::<serde_json::Value>::new());
    }
    drop(processes);
}
