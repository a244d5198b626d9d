//! Events: pages and streams that resume without gaps.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures::StreamExt;
use serde_json::json;
use standfast_domain::commit::{Commit, Scope};
use standfast_domain::ids::TaskId;
use standfast_engine::ports::Load;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{World, chain, request};

const ACCEPT: (&str, &str) = ("accept", "text/event-stream");

/// Reads a stream message by message.
pub(super) struct Reading {
    body: BodyDataStream,
    text: String,
}

impl Reading {
    async fn begin(world: &World, task: &str, last: Option<&str>) -> Self {
        let headers: Vec<(&str, &str)> =
            last.map(|last| ("last-event-id", last)).into_iter().collect();
        Self::begin_with(world, task, &headers).await
    }

    /// Begins to read with more headers, such as a token.
    pub async fn begin_with(world: &World, task: &str, more: &[(&str, &str)]) -> Self {
        let path = format!("/v1/tasks/{task}/events");
        let headers = [&[ACCEPT], more].concat();
        let response = world.stream(request("GET", &path, &headers, "")).await;
        assert_eq!(response.status(), 200);
        let body: Body = response.into_body();
        Self { body: body.into_data_stream(), text: String::new() }
    }

    /// Gives id and type of the next message; nothing at the end of the stream.
    pub async fn next(&mut self) -> Option<(String, String)> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let message: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    let found = message.lines().find_map(|line| line.strip_prefix(name));
                    found.unwrap_or_default().trim().to_owned()
                };
                if message.contains("data:") {
                    return Some((field("id:"), field("event:")));
                }
                continue;
            }
            let piece =
                tokio::time::timeout(Duration::from_secs(10), self.body.next()).await.unwrap()?;
            self.text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
    }
}

#[tokio::test]
async fn a_stream_resumes_where_it_broke_and_ends_with_the_task() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a", "b"])).await;
    let mut seen = Vec::new();
    let mut reading = Reading::begin(&world, &task, None).await;
    seen.push(reading.next().await.unwrap().0);
    for _ in 0..2 {
        drop(reading);
        let claim = world.claim().await;
        world.complete(&claim, json!({"status": "succeeded"})).await;
        reading = Reading::begin(&world, &task, seen.last().map(String::as_str)).await;
        seen.push(reading.next().await.unwrap().0);
    }
    let mut last = String::new();
    let mut kinds = Vec::new();
    while let Some((id, kind)) = reading.next().await {
        if id.is_empty() {
            last = kind;
        } else {
            seen.push(id);
            kinds.push(kind);
        }
    }
    assert_eq!(last, "ended");
    assert_eq!(kinds.iter().filter(|kind| *kind == "task_ended").count(), 1);
    let expected: Vec<String> = (1..=seen.len()).map(|n| format!("{task}:{n}")).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_stream_hears_of_changes_as_they_happen() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let mut reading = Reading::begin(&world, &task, None).await;
    while reading.next().await.unwrap().1 != "step_ready" {}
    world.post(&format!("/v1/tasks/{task}/stop"), &json!({"mode": "halt"})).await;
    assert_eq!(reading.next().await.unwrap().1, "stop_requested");
}

#[tokio::test]
async fn a_stream_ends_when_the_process_does() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let mut reading = Reading::begin(&world, &task, None).await;
    while reading.next().await.unwrap().1 != "step_ready" {}
    world.shutdown.cancel();
    assert_eq!(reading.next().await, None);
}

#[tokio::test]
async fn a_cursor_of_another_task_or_from_the_future_is_refused() {
    let world = World::open().await;
    let one = world.submit(&chain(&["a"])).await;
    let two = world.submit(&chain(&["b"])).await;
    for last in [format!("{one}:1"), "x".to_owned(), "999".to_owned(), format!("{two}:999")] {
        let path = format!("/v1/tasks/{two}/events");
        let headers = [ACCEPT, ("last-event-id", last.as_str())];
        let answer = world.send(request("GET", &path, &headers, "")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_str()),
            (400, "bad_cursor"),
            "{last}"
        );
    }
}

#[tokio::test]
async fn pages_follow_one_another_and_say_when_a_task_has_ended() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let claim = world.claim().await;
    world.complete(&claim, json!({"status": "succeeded", "output": 1})).await;
    let (mut after, mut numbers, mut ended) = (String::new(), Vec::new(), false);
    while !ended {
        let path = format!("/v1/tasks/{task}/events?limit=2&wait_ms=1000{after}");
        let page = world.get(&path).await.json();
        let events = page["events"].as_array().unwrap();
        numbers.extend(events.iter().map(|event| event["sequence"].as_u64().unwrap()));
        ended = page["ended"].as_bool().unwrap_or(false);
        after = format!("&after={}", page["next"].as_str().unwrap());
    }
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let report = world.get(&format!("/v1/tasks/{task}/verify")).await.json();
    assert_eq!(report["ok"], true, "{report}");
}

#[tokio::test]
async fn serving_ends_with_its_streams() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(crate::serve(listener, world.api.clone()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /v1/tasks/{task}/events HTTP/1.1\r\nhost: {address}\r\n\
         accept: text/event-stream\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    let mut piece = [0; 4_096];
    while !text.contains("step_ready") {
        let length = stream.read(&mut piece).await.unwrap();
        text.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    world.shutdown.cancel();
    serving.await.unwrap().unwrap();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("retry: 2000") && !text.contains("event: ended"), "{text}");
}

/// Changes a stored record behind the engine's back.
async fn tamper(world: &World, task: &str, field: &str, from: &str, to: &str) {
    let scope = Scope::Task(TaskId::parse(task).unwrap());
    let load = Load { scope: scope.clone(), fields: vec![field.to_owned()] };
    let (_, records) = world.api.engine().store().load(&[load]).await.unwrap();
    let stored = records.into_iter().flatten().next().flatten().expect(field);
    let text = String::from_utf8(stored.bytes).unwrap();
    assert!(text.contains(from), "{text}");
    let commit = Commit {
        id: world.api.engine().commit_id(),
        scope,
        guards: Vec::new(),
        writes: vec![(field.to_owned(), Some(text.replace(from, to).into_bytes()))],
        first_event: 0,
        events: Vec::new(),
        indexes: Vec::new(),
        returns: Vec::new(),
    };
    assert!(world.api.engine().commit_raw(commit).await.unwrap());
}

#[tokio::test]
async fn a_changed_input_definition_or_plan_is_found_and_named() {
    for (field, from, to, said) in [
        ("with/b/1", "drink", "drunk", "the resolved input of step `b`"),
        ("out/a/1", "drink", "drunk", "the output of step `a`"),
        ("def/x", "old", "new", "a definition that `a` added (of x)"),
        ("needs/x/0", "\"a\"", "\"b\"", "a definition that `a` added (of x)"),
        ("def/b", "echo", "ecco", "the plan (`meta`, or a step's definition)"),
        ("meta", "bar", "pub", "the plan (`meta`, or a step's definition)"),
    ] {
        let world = World::open().await;
        let mut plan = chain(&["a", "b"]);
        plan["goal"] = json!("bar");
        plan["steps"][1]["with"] = json!({"in": "${{ steps.a.output }}"});
        let task = world.submit(&plan).await;
        let claim = world.claim().await;
        let then = json!([{"id": "x", "uses": "echo", "with": {"in": "old"}}]);
        let outcome = json!({"status": "succeeded", "output": "drink", "then": then});
        world.complete(&claim, outcome).await;
        let claim = world.claim().await;
        world.complete(&claim, json!({"status": "succeeded"})).await;
        let path = format!("/v1/tasks/{task}/verify");
        assert_eq!(world.get(&path).await.json()["ok"], true, "{}", world.get(&path).await.json());
        tamper(&world, &task, field, from, to).await;
        let report = world.get(&path).await.json();
        assert_eq!(report["ok"], false, "{field}: {report}");
        let message = report["fault"]["message"].as_str().unwrap();
        assert!(message.contains(said), "{field}: {message}");
    }
}
