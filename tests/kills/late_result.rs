//! What an attempt says after its task was stopped changes nothing, be it that its handler is
//! deaf or that its worker stood still meanwhile.

use std::path::PathBuf;

use serde_json::{Value, json};
use standfast_protocol::events::EventView;
use standfast_protocol::steps::{StepState, StepView};
use standfast_protocol::tasks::{StopMode, StopRequest, TaskState};
use standfast_tests::fleet::Fleet;
use standfast_tests::wait;

/// Number of the worker in the fleet.
const WORKER: usize = 2;

/// Three steps in a row, of which the second does not hear that it is to end. Behind its gate it
/// goes on to say that all is well.
fn deaf(fleet: &Fleet, gate: &str) -> (Value, PathBuf) {
    let gate = fleet.own.path().join(gate);
    let script = format!("trap '' TERM; until test -e {}; do sleep 0.05; done", gate.display());
    let steps = [
        fleet.step("s0", &[], "true"),
        fleet.step("s1", &["s0".to_owned()], &format!("{script}; echo all is well")),
        fleet.step("s2", &["s1".to_owned()], "true"),
    ];
    (json!({ "kind": "deaf", "steps": steps }), gate)
}

async fn halt(fleet: &Fleet, task: &str) {
    let request = StopRequest { mode: StopMode::Halt, reason: None, digest: None };
    fleet.own.client().stop(task, &request).await.unwrap();
}

/// Gives the events of a kind.
async fn of_kind(fleet: &Fleet, task: &str, kind: &str) -> Vec<EventView> {
    let events = fleet.own.events(task).await;
    events.into_iter().filter(|event| event.kind == kind).collect()
}

/// Checks that the task is cancelled, that nothing has followed on what was said late, and that
/// its log is whole. Gives the step that said it.
async fn nothing_followed(fleet: &Fleet, task: &str) -> StepView {
    let client = fleet.own.client();
    let view = client.get(task).await.unwrap();
    assert_eq!((view.state, view.steps.succeeded), (TaskState::Cancelled, 1));
    let step = client.step(task, "s1").await.unwrap();
    assert_eq!((step.state, step.attempt), (StepState::Cancelled, 1), "{step:?}");
    let starts = fleet.own.starts();
    assert_eq!(starts[&format!("{task}/s1")], 1);
    assert!(!starts.contains_key(&format!("{task}/s2")), "a step started after the stop");
    for kind in ["step_succeeded", "task_ended"] {
        assert_eq!(of_kind(fleet, task, kind).await.len(), 1, "{kind}: s0, and the end");
    }
    let report = client.verify(task).await.unwrap();
    assert!(report.ok, "{:?}", report.fault);
    step
}

/// The worker is there and tells it to end in vain; the result comes within its grace.
async fn a_deaf_handler_says_that_all_is_well(fleet: &Fleet) {
    let (plan, gate) = deaf(fleet, "gate-of-deaf");
    let task = fleet.submit("deaf", &plan).await.0;
    fleet.started(&task, "s1").await;
    halt(fleet, &task).await;
    assert_eq!(fleet.own.client().get(&task).await.unwrap().state, TaskState::Cancelling);
    std::fs::write(&gate, "").unwrap();
    assert_eq!(fleet.own.ended(&task).await.state, TaskState::Cancelled);
    let step = nothing_followed(fleet, &task).await;
    let failed = &of_kind(fleet, &task, "attempt_failed").await[0];
    assert_eq!((failed.step.as_deref(), &failed.data["class"]), (Some("s1"), &json!("cancelled")));
    assert_eq!(failed.data["charged"], false);
    assert!(step.output.is_none(), "what it said is no output: {step:?}");
}

/// The worker stands still over the stop, so that the attempt is taken from it and the task ends;
/// the handler goes on to its end. Thawed, the worker finds its result.
async fn a_worker_that_stood_still_finds_a_result(fleet: &Fleet) {
    let (plan, gate) = deaf(fleet, "gate-of-frozen");
    let task = fleet.submit("frozen", &plan).await.0;
    fleet.started(&task, "s1").await;
    let worker = &fleet.members[WORKER];
    worker.signal("STOP");
    halt(fleet, &task).await;
    assert_eq!(fleet.own.ended(&task).await.state, TaskState::Cancelled);
    let taken = &of_kind(fleet, &task, "attempt_failed").await[0];
    assert_eq!((taken.step.as_deref(), &taken.data["class"]), (Some("s1"), &json!("cancelled")));
    std::fs::write(&gate, "").unwrap();
    worker.signal("CONT");
    // It tells even if its heart has heard first that the attempt is another's.
    wait::until("the late result to be refused", async || {
        (worker.said("result not taken") > 0).then_some(())
    })
    .await;
    nothing_followed(fleet, &task).await;
    let late = of_kind(fleet, &task, "late_result_refused").await;
    assert_eq!(late.len(), 1, "recorded once: {late:?}");
    let events = fleet.own.events(&task).await;
    let end = events.iter().position(|event| event.kind == "task_ended").unwrap();
    let after = events[end + 1..].iter().map(|event| event.kind.as_str());
    let strange: Vec<&str> =
        after.filter(|kind| !["late_result_refused", "entries_cleared"].contains(kind)).collect();
    assert_eq!(strange, [""; 0], "followed on the end");
    fleet.green(WORKER).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_result_does_not_overwrite_a_stop() {
    let fleet = Fleet::start(&[], "3s", &[&["api"], &["scheduler"], &["worker"]]).await;
    a_deaf_handler_says_that_all_is_well(&fleet).await;
    a_worker_that_stood_still_finds_a_result(&fleet).await;
    let after = fleet.submit("after", &fleet.chain(2, "0")).await.0;
    fleet.completed_once(&[after], 2).await;
}
