//! A Redis that is gone, or frozen, for longer than claims last fences nobody.

use std::time::Duration;

use serde_json::json;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

use crate::fleet::{Process, failures, noted, once_each, started, wait_for};

/// Attempts that run meanwhile.
const RUNNING: usize = 10;
/// Looks at the timers, five a second, during which a take-over that was wrong would come: a
/// claim's length and some.
const ROUNDS: u64 = 25;

/// How long Redis is away: more than two claim lengths. `STANDFAST_TEST_OUTAGE` seconds, and
/// claims of 30 s, for the form that people meet.
fn lengths() -> (&'static str, Duration) {
    match std::env::var("STANDFAST_TEST_OUTAGE").ok().and_then(|text| text.parse().ok()) {
        Some(seconds) => ("30s", Duration::from_secs(seconds)),
        None => ("2s", Duration::from_millis(4_500)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_running_attempts_are_not_taken_over_and_all_complete() {
    let (claim_length, away) = lengths();
    let mut own = Installation::start(claim_length).await;
    let _api = own.api().await;
    let schedulers = [
        Process::start(&own, "scheduler-1", &["scheduler"], &[]),
        Process::start(&own, "scheduler-2", &["scheduler"], &[]),
    ];
    let worker = Process::start(&own, "worker", &["worker", "--concurrency", "10"], &[]);
    let gate = own.path().join("gate");
    let mut tasks = Vec::new();
    for _ in 0..RUNNING {
        let step = noted(&own, "only", &[], &wait_for(&gate));
        let plan = json!({ "kind": "outage", "steps": [step] });
        tasks.push(own.client().submit(plan).await.unwrap().id);
    }
    started(&own, RUNNING).await;

    for frozen in [false, true] {
        match frozen {
            true => own.redis.signal("STOP"),
            false => own.redis.kill(),
        }
        wait::pass(away).await;
        match frozen {
            true => own.redis.signal("CONT"),
            false => own.redis.revive().await,
        }
        for process in schedulers.iter().chain([&worker]) {
            process.green(Duration::from_secs(10)).await;
        }
        for scheduler in &schedulers {
            let name = "standfast_scheduler_timer_rounds_total";
            let before = scheduler.metric(name).await;
            wait::until("the schedulers to look", async || {
                (scheduler.metric(name).await >= before + ROUNDS).then_some(())
            })
            .await;
            let taken = scheduler.metric("standfast_scheduler_claims_taken_over_total").await;
            assert_eq!(taken, 0, "frozen: {frozen}");
        }
    }
    std::fs::write(&gate, "").unwrap();
    own.completed(&tasks).await;
    once_each(&own, RUNNING);
    for task in &tasks {
        assert_eq!(failures(&own, task).await, Vec::<serde_json::Value>::new());
    }
}
