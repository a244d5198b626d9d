//! How the client behaves over an api that fails and comes back.

use std::time::Duration;

use crate::support::{Answer, Api, ok, problem, stream};
use serde_json::{Value, json};
use standfast_protocol::holds::AnswerRequest;
use standfast_protocol::problem::ProblemKind;
use standfast_protocol::tasks::{SubmitRequest, TaskQuery};
use standfast_sdk::{Client, Error, EventStream};

fn client(api: &Api) -> Client {
    Client::new(&api.url, "a-token").unwrap()
}

fn submitted() -> Answer {
    ok(json!({"id": "t1", "created": true, "state": "queued", "url": "/v1/tasks/t1"}))
}

fn event(sequence: u64) -> Value {
    json!({"sequence": sequence, "at": "", "type": "x", "actor": "user:a", "data": {}})
}

fn message(sequence: u64) -> String {
    format!("id: t1:{sequence}\nevent: x\ndata: {}\n\n", event(sequence))
}

async fn numbers(mut events: EventStream) -> Vec<u64> {
    let mut numbers = Vec::new();
    while let Some(event) = events.next().await.unwrap() {
        numbers.push(event.sequence);
    }
    numbers
}

#[tokio::test]
async fn a_submission_is_repeated_with_the_same_key() {
    let api = Api::start(|call| async move {
        if call.before < 2 { problem(503, "unavailable") } else { submitted() }
    });
    let answer = client(&api).submit(json!({"kind": "k"})).await.unwrap();
    assert_eq!((answer.id.as_str(), answer.created), ("t1", true));
    let calls = api.calls("/v1/tasks");
    let keys: Vec<_> = calls.iter().map(|call| call.header("idempotency-key")).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys[0].is_some() && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    assert_eq!(calls[0].json(), json!({"plan": {"kind": "k"}}));
}

#[tokio::test]
async fn an_empty_token_is_not_sent() {
    let api = Api::start(|_| async { submitted() });
    Client::new(&api.url, "").unwrap().submit(json!({})).await.unwrap();
    client(&api).submit(json!({})).await.unwrap();
    let calls = api.calls("/v1/tasks");
    assert_eq!(calls[0].header("authorization"), None);
    assert!(calls[1].header("authorization").is_some());
}

#[tokio::test]
async fn two_submissions_have_two_keys() {
    let api = Api::start(|_| async { submitted() });
    let client = client(&api);
    for _ in 0..2 {
        client.submit(json!({})).await.unwrap();
    }
    let calls = api.calls("/v1/tasks");
    assert_ne!(calls[0].header("idempotency-key"), calls[1].header("idempotency-key"));
}

#[tokio::test]
async fn a_refusal_is_a_problem_and_is_not_repeated() {
    let api = Api::start(|_| async { problem(422, "invalid_plan") });
    let request = SubmitRequest { plan: json!({}), plan_dir: None };
    let error = client(&api).submit_keyed(&request, "k1").await.unwrap_err();
    assert_eq!(error.problem(), Some(ProblemKind::InvalidPlan));
    assert_eq!(api.calls("/v1/tasks").len(), 1);
    let error = client(&api).submit_keyed(&request, "k\n1").await.unwrap_err();
    assert!(matches!(error, Error::Setup(_)), "{error}");
}

#[tokio::test]
async fn an_answer_that_may_have_been_taken_is_not_repeated() {
    let api = Api::start(|_| async { problem(503, "unavailable") });
    let answer = AnswerRequest::new("retry");
    let error = client(&api).answer("t1", Some("a"), &answer).await.unwrap_err();
    assert_eq!(error.problem(), Some(ProblemKind::Unavailable));
    assert_eq!(api.calls("/v1/tasks/t1/steps/a/answers").len(), 1);
}

#[tokio::test]
async fn patience_ends_with_the_last_error() {
    let api = Api::start(|_| async { problem(503, "unavailable") });
    let error = client(&api).patience(Duration::from_millis(250)).get("t1").await.unwrap_err();
    assert_eq!(error.problem(), Some(ProblemKind::Unavailable));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = Client::new(&format!("http://{nobody}"), "t").unwrap().patience(Duration::ZERO);
    let error = gone.get("t1").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn an_answer_of_a_stranger_is_an_error_that_names_the_address() {
    let api = Api::start(|_| async { Answer { body: b"<html>".to_vec(), ..ok(Value::Null) } });
    let error = client(&api).get("t1").await.unwrap_err();
    assert!(error.to_string().contains(&api.url), "{error}");
}

#[tokio::test]
async fn filters_are_sent_encoded() {
    let api = Api::start(|_| async { ok(json!({"tasks": []})) });
    let query = TaskQuery { labels: vec![("team".into(), "a&b".into())], ..TaskQuery::default() };
    client(&api).list(&query).await.unwrap();
    assert_eq!(api.calls("/v1/tasks")[0].query, "label=team%3Da%26b");
}

#[tokio::test]
async fn a_broken_stream_is_resumed_after_the_last_event() {
    let api = Api::start(|call| async move {
        match call.before {
            0 => stream(&(message(1) + &message(2) + "id: t1:3\nevent: x\nda")),
            1 => problem(503, "unavailable"),
            // A server that repeats an event is no reason to give it twice.
            _ => stream(&(message(2) + &message(3) + "event: ended\ndata: {}\n\n")),
        }
    });
    assert_eq!(numbers(client(&api).events("t1", None)).await, [1, 2, 3]);
    let calls = api.calls("/events");
    let resumed: Vec<_> = calls.iter().map(|call| call.header("last-event-id")).collect();
    assert_eq!(resumed, [None, Some("t1:2"), Some("t1:2")]);
    assert_eq!(calls[0].header("accept"), Some("text/event-stream"));
}

#[tokio::test]
async fn a_server_that_answers_with_pages_is_asked_for_the_next() {
    let api = Api::start(|call| async move {
        match call.before {
            0 => ok(json!({"events": [event(1), event(2)], "next": "t1:2"})),
            _ => ok(json!({"events": [event(3)], "next": "t1:3", "ended": true})),
        }
    });
    assert_eq!(numbers(client(&api).events("t1", None)).await, [1, 2, 3]);
    assert!(api.calls("/events")[1].query.contains("after=t1%3A2"));
}

#[tokio::test]
async fn a_stream_of_a_task_that_is_not_there_ends_with_the_problem() {
    let api = Api::start(|_| async { problem(404, "not_found") });
    let error = client(&api).events("t1", None).next().await.unwrap_err();
    assert_eq!(error.problem(), Some(ProblemKind::NotFound));
}

#[tokio::test]
async fn waiting_for_a_task_reads_it_when_it_has_ended() {
    let task = |state: &str| {
        ok(json!({
            "id": "t1", "kind": "k", "goal": "g", "state": state, "owner": "user:a",
            "created_at": "", "changed_at": "", "steps": {"total": 0}, "attempts": 0,
            "cost_usd_micros": 0, "a_field_of_a_later_version": 1,
        }))
    };
    let api = Api::start(move |call| async move {
        match (call.is("/events"), call.before) {
            (true, _) => stream(&(message(1) + "event: ended\ndata: {}\n\n")),
            (false, 0) => task("running"),
            (false, _) => task("completed"),
        }
    });
    assert!(client(&api).wait("t1").await.unwrap().state.is_ended());
}
