//! A Redis that is gone, frozen or full for longer than claims last fences nobody.

use std::time::Duration;

use serde_json::json;
use standfast_tests::fleet::Process;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

use crate::ledger::{failures, noted, once_each, started, wait_for};

/// Attempts that run meanwhile.
const RUNNING: usize = 10;
/// Looks at the timers, five a second, during which a take-over that was wrong would come: a
/// claim's length and some.
const ROUNDS: f64 = 13.0;

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

    for trouble in ["killed", "frozen", "full"] {
        let memory = |most| ["CONFIG", "SET", "maxmemory", most];
        match trouble {
            "killed" => own.redis.kill(),
            "frozen" => own.redis.signal("STOP"),
            _ => drop(own.redis.command(&memory("1")).await),
        }
        wait::pass(away).await;
        match trouble {
            "killed" => own.redis.revive().await,
            "frozen" => own.redis.signal("CONT"),
            _ => drop(own.redis.command(&memory("0")).await),
        }
        for process in schedulers.iter().chain([&worker]) {
            process.green(Duration::from_secs(10)).await;
        }
        let name = "standfast_scheduler_timer_rounds_total";
        let before = [schedulers[0].metric(name).await, schedulers[1].metric(name).await];
        for (scheduler, before) in schedulers.iter().zip(before) {
            wait::until("the schedulers to look", async || {
                (scheduler.metric(name).await >= before + ROUNDS).then_some(())
            })
            .await;
            let taken = scheduler.metric("standfast_scheduler_claims_taken_over_total").await;
            assert_eq!(taken, 0.0, "{trouble}");
        }
    }
    std::fs::write(&gate, "").unwrap();
    own.completed(&tasks).await;
    once_each(&own, RUNNING);
    for task in &tasks {
        assert_eq!(failures(&own, task).await, Vec::<serde_json::Value>::new());
    }
}
