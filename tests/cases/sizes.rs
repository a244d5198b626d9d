//! Outputs and errors around their limits: kept, kept by reference, or refused for good with
//! the limit's name; and whatever they are, the task can be read and stopped.

use serde_json::{Value, json};
use standfast_domain::ids::{Principal, StepId, TaskId, WorkerId};
use standfast_domain::json::OUTPUT_INLINE_BYTES_MAX;
use standfast_domain::outcome::{FailureClass, MESSAGE_BYTES_MAX};
use standfast_domain::record::{Key, Payload, Record, TaskState};
use standfast_engine::claims::{CLAIM_LENGTH, ClaimAsk, OUTPUT_BYTES_MAX, Report};
use standfast_tests::embedded::World;

use crate::support::{Server, embedded, plan, step};

/// Submits a task of one step and one that needs it, and claims the first.
async fn begin(world: &World) -> (TaskId, standfast_domain::view::Attempt) {
    let mut first = step("a", &[], "true");
    first["retry"] = json!({"max_attempts": 5, "backoff": "0s"});
    let task = world.submit(plan(vec![first, step("b", &["a"], "true")])).await.unwrap();
    let worker = WorkerId::new("outside").unwrap();
    let ask = ClaimAsk {
        task: task.clone(),
        step: StepId::new("a").unwrap(),
        attempt: None,
        worker: worker.clone(),
        principal: Principal::local(),
        length: CLAIM_LENGTH,
        handlers: None,
    };
    let claimed = world.claims.claim(&ask).await.unwrap();
    (task, claimed.at(&worker))
}

async fn report(world: &World, report: Report) -> TaskId {
    let (task, at) = begin(world).await;
    world.claims.complete(&task, at, report, Principal::local()).await.unwrap();
    task
}

/// Makes an output of so many bytes as JSON.
fn succeeded(bytes: usize) -> Report {
    let output = Value::String("x".repeat(bytes - 2));
    Report::Succeeded {
        output,
        artifacts: Vec::new(),
        cost_usd_micros: 0,
        checkpoint: None,
        then: Value::Null,
    }
}

async fn payload(world: &World, task: &TaskId) -> Payload {
    let key = Key::Output(StepId::new("a").unwrap(), 1);
    let mut records = world.engine.read(task, std::slice::from_ref(&key)).await.unwrap();
    match records.remove(&key) {
        Some(Some(Record::Payload(payload))) => payload,
        other => panic!("found {other:?}"),
    }
}

/// The task can be read in every way, and stopped.
async fn readable_and_stoppable(world: &World, server: &Server, task: &TaskId) {
    for path in ["", "/explain", "/steps", "/steps/a", "/events", "/verify"] {
        let answer = server.get(&format!("/v1/tasks/{task}{path}")).await;
        assert_eq!(answer.status, 200, "{path}");
    }
    let stop = server.post(&format!("/v1/tasks/{task}/stop"), r#"{"mode":"halt"}"#).await;
    assert_eq!(stop.status, 200, "{stop:?}");
    world.wait(task, &[TaskState::Cancelled]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_above_the_inline_limit_goes_to_the_blobs_and_reads_the_same() {
    let (_directory, world) = embedded().await;
    let server = Server::start(&world).await;
    let limit = OUTPUT_INLINE_BYTES_MAX;
    for (bytes, inline) in [(limit - 1, true), (limit, true), (limit + 1, false)] {
        let task = report(&world, succeeded(bytes)).await;
        match payload(&world, &task).await {
            Payload::Inline(value) => {
                assert!(inline, "{bytes} bytes");
                assert_eq!(value.to_string().len(), bytes);
            }
            Payload::Blob { name, bytes: kept, .. } => {
                assert!(!inline, "{bytes} bytes");
                assert_eq!(kept, bytes as u64);
                assert_eq!(world.blobs.get(&name).await.unwrap().len(), bytes);
            }
        }
        let shown = server.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
        assert_eq!(shown["state"], "succeeded");
        assert!(!shown["output"].is_null(), "{bytes}: the output is shown or named");
        readable_and_stoppable(&world, &server, &task).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_above_the_limit_fails_the_step_for_good_and_names_the_limit() {
    let (_directory, world) = embedded().await;
    let server = Server::start(&world).await;
    let kept = report(&world, succeeded(OUTPUT_BYTES_MAX)).await;
    assert!(matches!(
        payload(&world, &kept).await,
        Payload::Blob { bytes, .. } if bytes == OUTPUT_BYTES_MAX as u64
    ));
    readable_and_stoppable(&world, &server, &kept).await;
    let task = report(&world, succeeded(OUTPUT_BYTES_MAX + 1)).await;
    let shown = server.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!((&shown["state"], &shown["attempt"]), (&json!("held"), &json!(1)), "{shown}");
    assert_eq!(shown["failure"]["class"], "permanent");
    let message = shown["failure"]["message"].as_str().unwrap();
    for number in [OUTPUT_BYTES_MAX, OUTPUT_BYTES_MAX + 1] {
        assert!(message.contains(&number.to_string()), "{message}");
    }
    readable_and_stoppable(&world, &server, &task).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_error_is_cut_and_not_lost() {
    let (_directory, mut world) = embedded().await;
    let server = Server::start(&world).await;
    let long = format!("begin {}", "é".repeat(5 << 19));
    let task = report(&world, Report::failed(FailureClass::Permanent, long)).await;
    let shown = server.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    let message = shown["failure"]["message"].as_str().unwrap();
    assert!(message.starts_with("begin é") && message.len() <= MESSAGE_BYTES_MAX, "{message}");
    readable_and_stoppable(&world, &server, &task).await;
    world.work(&["default"], 1);
    world.schedule();
    let script = r#"{ printf '{"error":{"class":"permanent","message":"begin ';
        head -c 5242880 /dev/zero | tr '\0' x; printf '"}}'; } > $STANDFAST_OUTCOME"#;
    let task = world.submit(plan(vec![step("a", &[], script)])).await.unwrap();
    world.wait(&task, &[TaskState::Blocked]).await;
    let shown = server.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    let message = shown["failure"]["message"].as_str().unwrap();
    assert!(message.starts_with("begin xxx") && message.len() <= MESSAGE_BYTES_MAX, "{message}");
    readable_and_stoppable(&world, &server, &task).await;
    server.stop().await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_and_files_above_their_limits_are_refused_once_and_named() {
    let (_directory, mut world) = embedded().await;
    let server = Server::start(&world).await;
    let mut named = plan(vec![step("a", &[], "true")]);
    named["kind"] = json!("x".repeat(1 << 20));
    let answer = server.submit(&named).await;
    assert_eq!(answer.status, 413, "{}", answer.text);
    named["kind"] = json!("x".repeat(900 << 10));
    let answer = server.submit(&named).await;
    assert_eq!((answer.status, answer.pointers()), (422, vec!["/kind".to_owned()]));
    assert!(answer.text.len() < 4_096, "a refusal does not repeat what was sent");
    world.work(&["default"], 1);
    world.schedule();
    let script = "head -c 67108865 /dev/zero > $STANDFAST_OUTCOME";
    let mut only = step("a", &[], script);
    only["retry"] = json!({"max_attempts": 5, "backoff": "0s"});
    let task = world.submit(plan(vec![only])).await.unwrap();
    world.wait(&task, &[TaskState::Blocked]).await;
    let shown = server.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!((&shown["attempt"], &shown["failure"]["class"]), (&json!(1), &json!("permanent")));
    let message = shown["failure"]["message"].as_str().unwrap();
    assert!(message.contains("67108864"), "{message}");
    readable_and_stoppable(&world, &server, &task).await;
    server.stop().await;
    world.close().await;
}
