//! How a worker behaves towards an api that behaves in every way.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::support::{Answer, Api, Call, PATIENCE, claim, nothing, ok, problem, usual};
use serde_json::{Value, json};
use standfast_sdk::{Context, Error, HandlerError, Worker};
use tokio::sync::{oneshot, watch};

/// Starts an api that answers as usual but where `special` gives something else.
pub fn api(
    first: fn() -> Answer,
    special: impl Fn(&Call) -> Option<Answer> + Send + Sync + 'static,
) -> Api {
    let (leave, left) = watch::channel(false);
    let special = Arc::new(special);
    Api::start(move |call| {
        if call.is("/workers") && call.json()["leaving"] == true {
            leave.send_replace(true);
        }
        let (mut left, special) = (left.clone(), Arc::clone(&special));
        async move {
            match special(&call) {
                Some(answer) => answer,
                None => usual(&call, &mut left, first()).await,
            }
        }
    })
}

pub fn plain() -> Answer {
    claim(json!({}))
}

/// Runs a worker until the api got a number of calls of a path, and gives those calls.
pub async fn run_until(api: &Api, worker: Worker, path_end: &str, count: usize) -> Vec<Call> {
    let (end, ended) = oneshot::channel::<()>();
    let running = worker.run_until(async { drop(ended.await) });
    let watching = async {
        api.until(path_end, count).await;
        drop(end);
    };
    let (run, ()) = tokio::join!(tokio::time::timeout(PATIENCE, running), watching);
    run.expect("the worker ends in time").expect("the worker ends well");
    api.calls(path_end)
}

pub fn worker(api: &Api) -> Worker {
    Worker::connect(&api.url, "a-token").unwrap()
}

async fn echo(_: Context, input: Value) -> Result<Value, HandlerError> {
    Ok(input)
}

pub async fn until_cancelled(context: Context, _: Value) -> Result<Value, HandlerError> {
    context.cancellation().cancelled().await;
    Err(HandlerError::cancelled())
}

#[tokio::test]
async fn a_result_is_reported_with_all_that_was_left() {
    let api = api(plain, |call| {
        call.is("/artifacts/notes.md").then(|| {
            ok(json!({"step": "s", "name": "notes.md", "bytes": 2, "sha256": "", "url": ""}))
        })
    });
    let handler = |context: Context, input: Value| async move {
        context.log("one");
        context.artifact("notes.md", "hi").await?;
        context.checkpoint("drafted");
        context.add_cost(7);
        context.add_step(json!({"id": "more", "uses": "h"}));
        Ok(json!({"echo": input["text"]}))
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    let body = calls[0].json();
    assert_eq!((&body["attempt"], &body["epoch"]), (&json!(3), &json!(2)));
    assert_eq!(
        body["outcome"],
        json!({
            "status": "succeeded", "output": {"echo": "hello"}, "artifacts": ["notes.md"],
            "cost_usd_micros": 7, "checkpoint": "drafted", "then": [{"id": "more", "uses": "h"}],
        })
    );
    assert_eq!(calls[0].header("authorization"), Some("Bearer a-token"));
    let log = api.calls("/log");
    assert_eq!((log[0].body.as_slice(), log[0].query.contains("offset=0")), (&b"one\n"[..], true));
    let put = &api.calls("/artifacts/notes.md")[0];
    assert_eq!((put.method.as_str(), put.body.as_slice()), ("PUT", &b"hi"[..]));
    assert!(put.query.contains("attempt=3") && put.query.contains("epoch=2"), "{}", put.query);
    let announce = api.calls("/workers")[0].json();
    assert_eq!(announce["handlers"], json!([{"name": "h"}]));
    assert_eq!(announce["queues"], json!(["default"]));
}

#[tokio::test]
async fn heartbeats_go_on_while_a_handler_blocks_its_thread() {
    let (beats, waits) = mpsc::channel::<()>();
    let beats = Mutex::new(beats);
    let api = api(plain, move |call| {
        if call.is("/heartbeat") && call.before == 4 {
            beats.lock().unwrap().send(()).unwrap();
        }
        None
    });
    let waits = Arc::new(Mutex::new(waits));
    // This test's runtime has one thread, and the handler blocks it.
    let handler = move |_: Context, _: Value| {
        let waits = Arc::clone(&waits);
        async move { Ok(waits.lock().unwrap().recv_timeout(PATIENCE).is_ok()) }
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["output"], true, "5 heartbeats never came");
}

#[tokio::test]
async fn a_lost_claim_cancels_the_handler_and_what_it_cost_is_told_once() {
    let fenced = |call: &Call| call.is("/heartbeat") || call.is("/complete");
    let api = api(plain, move |call| fenced(call).then(|| problem(409, "fenced")));
    let handler = |context: Context, _: Value| async move {
        context.add_cost(70);
        context.cancellation().cancelled().await;
        Err::<(), _>(HandlerError::cancelled())
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    let outcome = &calls[0].json()["outcome"];
    assert_eq!((&outcome["class"], &outcome["cost_usd_micros"]), (&json!("cancelled"), &json!(70)));
    assert_eq!(api.calls("/complete").len() + api.calls("/hand-back").len(), 1);
}

#[tokio::test]
async fn word_of_a_stop_comes_before_the_heartbeat_that_is_due_in_an_hour() {
    let slow = || claim(json!({"heartbeat_ms": 3_600_000}));
    let api = api(slow, |call| match call.is("/control") {
        true if call.before == 0 => Some(problem(429, "too_many")),
        true => Some(ok(json!({"stop": true}))),
        false => call.is("/heartbeat").then(|| ok(json!({"stop": true, "expires_ms": 60_000}))),
    });
    let worker = worker(&api).handler("h", until_cancelled);
    let calls = run_until(&api, worker, "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["class"], "cancelled");
    assert_eq!(api.calls("/heartbeat").len(), 1, "the one that the word caused");
    let asked = &api.calls("/control")[0];
    let who = "attempt=3&epoch=2&wait_ms=30000";
    assert!(asked.method == "GET" && asked.query.contains(who), "{}", asked.query);
}

#[tokio::test]
async fn an_api_that_gives_no_word_is_heard_by_heartbeats() {
    let api = api(plain, |call| match call.is("/control") {
        true => Some(problem(404, "not_found")),
        false => (call.is("/heartbeat") && call.before == 3)
            .then(|| ok(json!({"stop": true, "expires_ms": 60_000}))),
    });
    let worker = worker(&api).handler("h", until_cancelled);
    let calls = run_until(&api, worker, "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["class"], "cancelled");
    assert_eq!(api.calls("/control").len(), 1, "an older api is asked once");
}

#[tokio::test]
async fn a_result_that_comes_too_late_is_dropped() {
    let api = api(plain, |call| call.is("/complete").then(|| problem(409, "fenced")));
    let calls = run_until(&api, worker(&api).handler("h", echo), "/complete", 1).await;
    assert_eq!(calls.len(), 1);
}

#[tokio::test]
async fn a_result_is_kept_under_heartbeats_until_the_api_takes_it() {
    let api = api(plain, |call| {
        (call.is("/complete") && call.before < 3).then(|| problem(503, "unavailable"))
    });
    let calls = run_until(&api, worker(&api).handler("h", echo), "/complete", 4).await;
    assert!(calls.iter().all(|call| call.body == calls[0].body));
    assert!(!api.calls("/heartbeat").is_empty(), "no heartbeat while the result was kept");
}

#[tokio::test]
async fn a_refused_outcome_becomes_a_permanent_failure_that_says_why() {
    let api = api(plain, |call| {
        (call.is("/complete") && call.before == 0).then(|| problem(422, "invalid_plan"))
    });
    let calls = run_until(&api, worker(&api).handler("h", echo), "/complete", 2).await;
    let outcome = &calls[1].json()["outcome"];
    assert_eq!(outcome["class"], "permanent");
    assert_eq!(outcome["message"], "the outcome was refused: invalid_plan it is");
}

#[tokio::test]
async fn a_panic_is_a_retryable_failure_with_its_text() {
    let api = api(plain, |_| None);
    let handler = |_: Context, _: Value| async {
        if true {
            panic!("the sky fell {}", 1);
        }
        Ok(())
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    let outcome = &calls[0].json()["outcome"];
    assert_eq!(outcome["class"], "retryable");
    assert_eq!(outcome["message"], "the handler panicked: the sky fell 1");
}

#[tokio::test]
async fn an_input_that_does_not_fit_fails_for_good() {
    let api = api(plain, |_| None);
    let handler = |_: Context, input: u32| async move { Ok(input) };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["class"], "permanent");
}

#[tokio::test]
async fn a_stop_ends_the_attempt_as_cancelled() {
    let api = api(plain, |call| {
        call.is("/heartbeat").then(|| ok(json!({"stop": true, "expires_ms": 60_000})))
    });
    let calls = run_until(&api, worker(&api).handler("h", until_cancelled), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["class"], "cancelled");
}

#[tokio::test]
async fn an_attempt_over_its_time_ends_as_a_timeout() {
    let api = api(|| claim(json!({"attempt_deadline_ms": 30})), |_| None);
    let calls = run_until(&api, worker(&api).handler("h", until_cancelled), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["class"], "timeout");
}

#[tokio::test]
async fn a_worker_that_ends_hands_back_what_does_not_fit_its_grace_period() {
    let api = api(plain, |_| None);
    let worker = worker(&api).grace(Duration::ZERO).handler("h", until_cancelled);
    let calls = run_until(&api, worker, "/heartbeat", 1).await;
    assert!(!calls.is_empty());
    let back = api.calls("/hand-back");
    assert_eq!((back.len(), api.calls("/complete").len()), (1, 0));
    assert_eq!(back[0].json()["attempt"], 3);
    assert_eq!(api.calls("/workers").last().unwrap().json()["leaving"], true);
}

#[tokio::test]
async fn a_worker_that_ends_lets_attempts_finish_within_its_grace_period() {
    let (leave, left) = watch::channel(false);
    let api = api(plain, move |call| {
        if call.is("/workers") && call.json()["leaving"] == true {
            leave.send_replace(true);
        }
        None
    });
    let handler = move |_: Context, _: Value| {
        let mut left = left.clone();
        async move { Ok(left.wait_for(|left| *left).await.is_ok()) }
    };
    let worker = worker(&api).grace(PATIENCE).handler("h", handler);
    run_until(&api, worker, "/heartbeat", 1).await;
    assert_eq!((api.calls("/hand-back").len(), api.calls("/complete").len()), (0, 1));
}

#[tokio::test]
async fn a_claim_that_arrives_after_the_end_is_handed_back_unrun() {
    let (leave, left) = watch::channel(false);
    let api = Api::start(move |call| {
        if call.is("/workers") && call.json()["leaving"] == true {
            leave.send_replace(true);
        }
        let mut left = left.clone();
        async move {
            if call.is("/claims") {
                left.wait_for(|left| *left).await.unwrap();
                return plain();
            }
            usual(&call, &mut left, nothing()).await
        }
    });
    let handler = |_: Context, _: Value| async { Err::<(), _>(HandlerError::permanent("ran")) };
    run_until(&api, worker(&api).handler("h", handler), "/claims", 1).await;
    assert_eq!((api.calls("/hand-back").len(), api.calls("/complete").len()), (1, 0));
}

#[tokio::test]
async fn a_worker_waits_for_an_api_that_is_not_there_yet() {
    let api = api(plain, |call| {
        (call.is("/workers") && call.before < 2).then(|| problem(503, "unavailable"))
    });
    let calls = run_until(&api, worker(&api).handler("h", echo), "/complete", 1).await;
    assert_eq!(calls.len(), 1);
}

#[tokio::test]
async fn a_worker_that_is_not_allowed_ends_with_the_problem() {
    let api = Api::start(|_| async { problem(401, "unauthorized") });
    let run = worker(&api).handler("h", echo).run_until(std::future::pending());
    let error = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Problem(problem) if problem.status == 401));
    let none = worker(&api).run_until(std::future::pending()).await;
    assert!(matches!(none, Err(Error::Setup(_))));
}

#[tokio::test]
async fn an_input_artifact_is_checked_against_its_digest() {
    let first = || {
        let input = json!({"step": "a", "name": "x", "bytes": 2, "sha256": "00", "url": "/bytes"});
        claim(json!({"inputs": [input]}))
    };
    let api = api(first, |call| {
        call.is("/bytes").then(|| Answer { body: b"hi".to_vec(), ..nothing_but_ok() })
    });
    let handler = |context: Context, _: Value| async move {
        let other = context.input_artifact("a", "y").await.unwrap_err().to_string();
        assert_eq!(other, "read artifact a/y: not an input");
        Ok(context.input_artifact("a", "x").await?.len())
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    let message = calls[0].json()["outcome"]["message"].to_string();
    assert!(message.contains("expected bytes with SHA-256 00"), "{message}");
}

fn nothing_but_ok() -> Answer {
    ok(Value::Null)
}
