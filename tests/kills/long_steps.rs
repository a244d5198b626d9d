//! A broker that loses patience with unacknowledged deliveries, steps that take longer than
//! that, and waiting that holds no message at all.

use std::time::Duration;

use serde_json::json;
use standfast_domain::time::Time;
use standfast_protocol::tasks::TaskState;
use standfast_tests::wait;

use standfast_tests::fleet::Fleet;

/// The broker closes a channel whose delivery is not acknowledged for this long: a fraction of
/// what the long step takes, so that it could happen over and over. (The default is 30 minutes.)
const CONSUMER_TIMEOUT: &str = "consumer_timeout = 3000";
/// Seconds that the long steps take.
const LONG: &str = "11";
/// How late a timer may fire.
const LATE_MAX: i64 = 2_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_step_outlasts_the_brokers_patience_and_what_waits_holds_no_message() {
    let narrow: &[&str] = &["worker", "--concurrency", "1"];
    let wide: &[&str] = &["worker", "--queue", "research", "--concurrency", "3"];
    let words = [&["api"][..], &["scheduler"], &["scheduler"], narrow, wide];
    let mut fleet = Fleet::start(&[CONSUMER_TIMEOUT], "5s", &words).await;
    let alone = fleet.submit("alone", &fleet.chain(1, LONG)).await.0;
    let beside = research(&fleet, "beside", &format!("sleep {LONG}")).await;
    let failed = fleet.own.path().join("failed");
    let script = format!("sleep 4; test -e {0} || {{ touch {0}; exit 1; }}", failed.display());
    let twice = research(&fleet, "twice", &script).await;
    for task in [&alone, &beside, &twice] {
        fleet.started(task, "s0").await;
    }
    let timers = timers(&fleet).await;

    for number in [3, 4] {
        wait::until("the broker to lose patience", async || {
            let made = fleet.members[number].metric("standfast_rabbitmq_resubscriptions_total");
            (made.await >= 1.0).then_some(())
        })
        .await;
    }
    assert_eq!(fleet.members[2].running.terminate(), Some(0));
    fleet.again(2);
    let next = research(&fleet, "next", "true").await;
    wait::within(Duration::from_secs(5), "the next step to start", async || {
        fleet.own.starts().contains_key(&format!("{next}/s0")).then_some(())
    })
    .await;

    fleet.completed_once(&[alone, beside, next], 1).await;
    fleet.own.completed(std::slice::from_ref(&twice)).await;
    assert_eq!(fleet.own.starts()[&format!("{twice}/s0")], 2, "one failed, one succeeded");
    // The message that came again did not wait for the only slot, where the broker would have
    // lost patience with it once more.
    let narrow = &fleet.members[3];
    assert_eq!(narrow.metric("standfast_rabbitmq_resubscriptions_total").await, 1.0);
    let here = r#"standfast_worker_deliveries_spent_total{reason="runs_here"}"#;
    assert_eq!(narrow.metric(here).await, 1.0);
    wait::until("the late acknowledgement to count as none", async || {
        (narrow.metric("standfast_rabbitmq_acks_lost_total").await == 1.0).then_some(())
    })
    .await;
    timers_fire_once_and_in_time(&fleet, &timers).await;
    what_waits_is_not_delivered(&fleet).await;
}

/// Submits a task of one step for the queue `research`.
async fn research(fleet: &Fleet, key: &str, script: &str) -> String {
    let mut step = fleet.step("s0", &[], script);
    step["queue"] = json!("research");
    fleet.submit(key, &json!({ "kind": "research", "steps": [step] })).await.0
}

/// Submits timers, those of an hour first; gives the tasks of the others with their spans in
/// milliseconds.
async fn timers(fleet: &Fleet) -> Vec<(String, i64)> {
    let plan = |span: i64| {
        let timer =
            json!({ "id": "wait", "uses": "timer", "with": { "for": format!("{span}ms") } });
        json!({ "kind": "timer", "steps": [timer] })
    };
    fleet.submit_all("hour", &plan(3_600_000), 30).await;
    let mut timers = Vec::new();
    for span in [6_000, 500, 9_000, 2_000, 1_000] {
        let (task, _) = fleet.submit(&format!("timer-{span}"), &plan(span)).await;
        timers.push((task, span));
    }
    timers
}

async fn timers_fire_once_and_in_time(fleet: &Fleet, timers: &[(String, i64)]) {
    for (task, span) in timers {
        assert_eq!(fleet.own.ended(task).await.state, TaskState::Completed);
        let events = fleet.own.events(task).await;
        let times = |kind: &str| -> Vec<i64> {
            let of_kind = events.iter().filter(|event| event.kind == kind);
            of_kind.map(|event| Time::parse_rfc3339(&event.at).unwrap().0).collect()
        };
        let (held, fired) = (times("step_held"), times("timer_fired"));
        assert_eq!((held.len(), fired.len()), (1, 1), "{events:?}");
        let late = fired[0] - held[0] - span;
        assert!((0..LATE_MAX).contains(&late), "the timer of {span} ms came {late} ms late");
    }
}

/// Many steps wait for an hour, by a timer or a retry; one that is ready starts at once.
async fn what_waits_is_not_delivered(fleet: &Fleet) {
    let mut delayed = fleet.step("s0", &["wait".to_owned()], "true");
    delayed["queue"] = json!("research");
    let timer = json!({ "id": "wait", "uses": "timer", "with": { "for": "1h" } });
    let delayed = json!({ "kind": "delayed", "steps": [timer, delayed] });
    fleet.submit_all("delayed", &delayed, 40).await;
    let mut failing = fleet.step("s0", &[], "exit 1");
    failing["queue"] = json!("research");
    failing["retry"] = json!({ "max_attempts": 5, "backoff": "1h", "max_backoff": "1h" });
    let failing = json!({ "kind": "failing", "steps": [failing] });
    let retried = fleet.submit_all("failing", &failing, 20).await;
    for task in &retried {
        fleet.started(task, "s0").await;
    }
    let ended = r#"standfast_worker_attempts_ended_total{queue="research",outcome="failed"}"#;
    wait::until("all to have failed once", async || {
        (fleet.members[4].metric(ended).await >= retried.len() as f64).then_some(())
    })
    .await;
    let now = research(fleet, "now", "true").await;
    wait::within(Duration::from_secs(3), "the ready step to start", async || {
        fleet.own.starts().contains_key(&format!("{now}/s0")).then_some(())
    })
    .await;
    fleet.own.completed(std::slice::from_ref(&now)).await;
    let columns = ["name", "messages_ready", "messages_unacknowledged"];
    let words = [&["list_queues", "--no-table-headers"][..], &columns[..]].concat();
    let line = format!("{}\t0\t0", fleet.steps_queue("research"));
    wait::until("the queue to be empty", async || {
        fleet.node.control(&words).await.lines().any(|found| found == line).then_some(())
    })
    .await;
}
