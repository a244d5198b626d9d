//! Connections that are closed over and over, a broker that is stopped, a broker that is killed:
//! no step is lost, none runs twice, and nobody has to touch a process.

use std::path::Path;

use serde_json::json;
use standfast_protocol::steps::StepState;
use standfast_tests::wait;

use standfast_tests::fleet::Fleet;

/// Erlang that closes one connection of the node, drawn at random, every 300 ms for six seconds.
const DRILL: &str = "register(drill, spawn(fun() -> [begin timer:sleep(300), \
    case rabbit_networking:connections() of [] -> ok; \
    Cs -> rabbit_networking:close_connection(lists:nth(rand:uniform(length(Cs)), Cs), \"drill\") \
    end end || _ <- lists:seq(1, 20)] end)), ok.";

/// A script that goes on once a file is there.
fn until_there(file: &Path) -> String {
    format!("until test -e {}; do sleep 0.05; done", file.display())
}

fn touch(file: &Path) {
    std::fs::write(file, "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_closes_stops_and_dies_costs_no_step_and_repeats_none() {
    let worker: &[&str] = &["worker", "--concurrency", "4"];
    let mut fleet = Fleet::start(&[], "30s", &[&["api"], &["scheduler"], worker, worker]).await;
    a_late_acknowledgement_counts_as_none(&fleet).await;
    connections_close_all_the_time(&fleet).await;
    the_broker_is_stopped_and_started(&fleet).await;
    the_broker_and_the_workers_are_killed(&mut fleet).await;
}

async fn a_late_acknowledgement_counts_as_none(fleet: &Fleet) {
    let gate = fleet.own.path().join("gate-of-late");
    let plan = json!({ "kind": "late", "steps": [fleet.step("s0", &[], &until_there(&gate))] });
    let (task, _) = fleet.submit("late", &plan).await;
    fleet.started(&task, "s0").await;
    fleet.node.control(&["close_all_connections", "drill"]).await;
    fleet.consumers("default", 2).await;
    let spent = async || {
        let here = fleet.metric(r#"standfast_worker_deliveries_spent_total{reason="runs_here"}"#);
        let there =
            fleet.metric(r#"standfast_worker_deliveries_spent_total{reason="not_claimable"}"#);
        here.await + there.await
    };
    wait::until("the redelivery to be answered from what is stored", async || {
        (spent().await >= 1.0).then_some(())
    })
    .await;
    touch(&gate);
    fleet.completed_once(&[task], 1).await;
    wait::until("the acknowledgement to count as lost", async || {
        (fleet.metric("standfast_rabbitmq_acks_lost_total").await >= 1.0).then_some(())
    })
    .await;
}

async fn connections_close_all_the_time(fleet: &Fleet) {
    let tasks = fleet.submit_all("drill", &fleet.chain(2, "0.2"), 5).await;
    fleet.node.control(&["eval", DRILL]).await;
    let more = fleet.submit_all("drilled", &fleet.chain(2, "0.2"), 25).await;
    fleet.completed_once(&[tasks, more].concat(), 2).await;
    wait::until("the drill to end", async || {
        let ended = fleet.node.control(&["eval", "whereis(drill) =:= undefined."]).await;
        ended.contains("true").then_some(())
    })
    .await;
    fleet.consumers("default", 2).await;
    for number in 0..fleet.members.len() {
        fleet.green(number).await;
    }
    let log = fleet.node.log();
    assert!(!log.contains("unknown delivery tag"), "{log}");
}

async fn the_broker_is_stopped_and_started(fleet: &Fleet) {
    let tasks = fleet.submit_all("stopped", &fleet.chain(3, "0.5"), 8).await;
    let marks = fleet.marks();
    fleet.node.control(&["stop_app"]).await;
    for number in 0..fleet.members.len() {
        fleet.red(number, "not connected").await;
    }
    let (during, took) = fleet.submit("during", &fleet.chain(1, "0")).await;
    assert!(took.as_secs() < 15, "submitting without a broker took {took:?}");
    fleet.node.control(&["start_app"]).await;
    for number in 0..fleet.members.len() {
        fleet.green(number).await;
    }
    fleet.calm_since(&marks);
    fleet.completed_once(&tasks, 3).await;
    fleet.completed_once(&[during], 1).await;
    fleet.consumers("default", 2).await;
}

/// The broker freezes, so that acknowledgements stay on their way; then it and both workers are
/// killed. What was stored is not run again, and a retry that was due meanwhile runs once.
async fn the_broker_and_the_workers_are_killed(fleet: &mut Fleet) {
    let (gate, failed) = (fleet.own.path().join("gate-of-kill"), fleet.own.path().join("failed"));
    let gated = json!({ "kind": "gated", "steps": [
        fleet.step("s0", &[], &until_there(&gate)), fleet.step("s1", &["s0".to_owned()], "true"),
    ]});
    let script = format!("test -e {0} || {{ touch {0}; exit 1; }}", failed.display());
    let mut once = fleet.step("s0", &[], &script);
    once["retry"] = json!({ "max_attempts": 2, "backoff": "6s" });
    let (stored, _) = fleet.submit("stored", &gated).await;
    let (retried, _) = fleet.submit("retried", &json!({ "kind": "once", "steps": [once] })).await;
    fleet.started(&stored, "s0").await;
    let state = async |task: &str, step: &str| {
        fleet.own.client().step(task, step).await.ok().map(|view| view.state)
    };
    wait::until("the retry to be stored", async || {
        (state(&retried, "s0").await? == StepState::Retrying).then_some(())
    })
    .await;
    fleet.node.signal("-STOP");
    touch(&gate);
    wait::until("the output to be stored", async || {
        (state(&stored, "s0").await? == StepState::Succeeded).then_some(())
    })
    .await;
    for number in [2, 3] {
        fleet.members[number].running.kill();
    }
    fleet.node.signal("-9");
    fleet.node.boot().await;
    wait::until("the retry to be due", async || {
        (state(&retried, "s0").await? == StepState::Ready).then_some(())
    })
    .await;
    for number in [2, 3] {
        fleet.again(number);
    }
    fleet.completed_once(std::slice::from_ref(&stored), 2).await;
    fleet.own.completed(std::slice::from_ref(&retried)).await;
    assert_eq!(fleet.own.starts()[&format!("{retried}/s0")], 2);
}
