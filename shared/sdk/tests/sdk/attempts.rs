//! What a worker tells of an attempt while it runs, and what ends one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use standfast_protocol::claims::FailureClass;
use standfast_sdk::{Context, HandlerError};
use tokio::sync::{mpsc, oneshot};

use crate::support::{Answer, PATIENCE, claim, problem};
use crate::worker::{api, plain, run_until, until_cancelled, worker};

#[tokio::test]
async fn details_are_told_once_and_those_of_the_end_before_the_failure() {
    let (beats, arrived) = mpsc::unbounded_channel();
    let api = api(plain, move |call| {
        if call.is("/heartbeat") {
            let _ = beats.send(call.json().get("details").cloned());
        }
        None
    });
    let arrived = Arc::new(tokio::sync::Mutex::new(arrived));
    let handler = move |context: Context, _: Value| {
        let arrived = Arc::clone(&arrived);
        async move {
            let mut arrived = arrived.lock().await;
            context.heartbeat("half");
            while arrived.recv().await.flatten().is_none() {}
            assert_eq!(arrived.recv().await, Some(None), "nothing new was said");
            context.heartbeat("half");
            while arrived.recv().await.flatten().is_none() {}
            context.heartbeat("row 900");
            Err::<(), _>(HandlerError::retryable("enough"))
        }
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["message"], "enough");
    let told = api.calls("/heartbeat").last().unwrap().json()["details"].clone();
    assert!(told == "row 900" || told.is_null(), "{told}");
    let all: Vec<Value> =
        api.calls("/heartbeat").iter().map(|call| call.json()["details"].clone()).collect();
    assert!(all.contains(&json!("row 900")), "{all:?}");
}

#[tokio::test]
async fn a_handler_finds_what_the_attempt_before_it_said_last() {
    let api = api(|| claim(json!({"last_details": "row 400"})), |_| None);
    let handler =
        |context: Context, _: Value| async move { Ok(context.last_details().map(str::to_owned)) };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["output"], "row 400");
}

#[tokio::test]
async fn a_silent_handler_is_ended_as_a_timeout() {
    let api = api(|| claim(json!({"heartbeat_timeout_ms": 60})), |_| None);
    let calls = run_until(&api, worker(&api).handler("h", until_cancelled), "/complete", 1).await;
    let outcome = &calls[0].json()["outcome"];
    assert_eq!(outcome["class"], "timeout");
    assert!(outcome["message"].to_string().contains("no sign of life"), "{outcome}");
}

#[tokio::test]
async fn a_handler_that_gives_signs_of_life_is_not_silent() {
    let api = api(|| claim(json!({"heartbeat_timeout_ms": 2_000})), |_| None);
    let handler = |context: Context, _: Value| async move {
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_millis(2_500) {
            context.heartbeat("on");
            tokio::task::yield_now().await;
        }
        Ok("done")
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["output"], "done");
}

/// Tells when a handler is dropped.
struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.take().unwrap().send(()).unwrap();
    }
}

#[tokio::test]
async fn a_handler_that_does_not_listen_is_dropped_soon_after_its_claim_is_lost() {
    let api = api(plain, |call| call.is("/heartbeat").then(|| problem(409, "fenced")));
    let (sender, dropped) = oneshot::channel();
    let guard = Mutex::new(Some(Dropped(Some(sender))));
    let handler = move |_: Context, _: Value| {
        let guard = guard.lock().unwrap().take();
        async move {
            let _guard = guard;
            std::future::pending::<()>().await;
            Ok(())
        }
    };
    let begun = std::time::Instant::now();
    let end = async { dropped.await.unwrap() };
    let run = worker(&api).handler("h", handler).run_until(end);
    tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4), "a zombie goes on: {:?}", begun.elapsed());
    assert_eq!(api.calls("/complete")[0].json()["outcome"]["class"], "cancelled");
    assert_eq!(api.calls("/complete").len() + api.calls("/hand-back").len(), 1);
}

#[tokio::test]
async fn each_class_of_failure_is_told_as_the_handler_names_it() {
    let soon = Duration::from_millis(1_500);
    let errors: [fn(Duration) -> HandlerError; 5] = [
        |_| HandlerError::retryable("no"),
        |_| HandlerError::permanent("no"),
        |soon| HandlerError::rate_limited("no", soon),
        |_| HandlerError::new(FailureClass::Timeout, "no"),
        |_| HandlerError::cancelled(),
    ];
    let words = ["retryable", "permanent", "rate_limited", "timeout", "cancelled"];
    for (error, word) in errors.into_iter().zip(words) {
        let api = api(plain, |_| None);
        let handler = move |_: Context, _: Value| async move { Err::<(), _>(error(soon)) };
        let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
        let outcome = &calls[0].json()["outcome"];
        assert_eq!(outcome["class"], word);
        let asked = if word == "rate_limited" { json!(1_500) } else { Value::Null };
        assert_eq!(outcome["retry_after_ms"], asked, "{word}");
    }
}

#[tokio::test]
async fn a_full_worker_says_so_and_that_it_has_room_again() {
    let (full, was_told) = oneshot::channel();
    let full = Mutex::new(Some(full));
    let api = api(plain, move |call| {
        if call.is("/workers")
            && call.json()["running"] == 1
            && let Some(full) = full.lock().unwrap().take()
        {
            full.send(()).unwrap();
        }
        None::<Answer>
    });
    let was_told = Arc::new(Mutex::new(Some(was_told)));
    let handler = move |_: Context, _: Value| {
        let was_told = was_told.lock().unwrap().take().unwrap();
        async move { Ok(was_told.await.is_ok()) }
    };
    run_until(&api, worker(&api).handler("h", handler), "/workers", 3).await;
    let told: Vec<Value> = api.calls("/workers").iter().map(|call| call.json()).collect();
    let running: Vec<&Value> = told.iter().map(|announced| &announced["running"]).collect();
    assert_eq!(running[..3], [&json!(0), &json!(1), &json!(0)], "{told:?}");
    assert!(told.iter().all(|announced| announced["concurrency"] == 1), "{told:?}");
}
