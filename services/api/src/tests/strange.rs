//! Strange requests, and the document that says what the right ones are.

use std::sync::Arc;

use async_trait::async_trait;
use prometheus_client::registry::Registry;
use serde_json::json;
use tower::ServiceExt;

use super::{JSON, World, chain, request};
use crate::admin::{Admin, Check, Gauge, Gauges};
use crate::auth::Access;

#[tokio::test]
async fn strange_ids_name_nothing() {
    let world = World::open().await;
    let long = "x".repeat(300);
    for id in
        ["..", "%2F", "a%20b", "%0A", "%00", "%E2%80%AE", "a:b", "a%7Bb%7D", "%FF", "null", &long]
    {
        for path in [format!("/v1/tasks/{id}"), format!("/v1/tasks/{id}/steps/{id}")] {
            let answer = world.get(&path).await;
            assert_eq!(answer.status, 404, "{path}");
            assert_eq!(answer.problem(), "not_found", "{path}");
        }
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let world = World::open().await;
    for (method, path, status) in [
        ("GET", "/", 404),
        ("GET", "/v2/tasks", 404),
        ("GET", "/v1/tasks/", 404),
        ("DELETE", "/v1/tasks", 405),
        ("PATCH", "/v1/tasks/t00-0000000000000", 405),
        ("OPTIONS", "/v1/tasks", 405),
        ("GET", "/v1/claims", 405),
    ] {
        let answer = world.send(request(method, path, &[], "")).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}");
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{method} {path}");
    }
}

#[tokio::test]
async fn no_get_changes_anything() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let before = world.get(&format!("/v1/tasks/{task}/events")).await.json();
    for path in ["stop", "answers", "steps/a/answers"] {
        assert_eq!(world.get(&format!("/v1/tasks/{task}/{path}")).await.status, 405);
    }
    for (path, item) in crate::document()["paths"].as_object().unwrap() {
        if item.get("get").is_some() {
            let path = path.replace("{id}", &task).replace("{step}", "a").replace("{name}", "x");
            world.get(&path).await;
        }
    }
    assert_eq!(world.get(&format!("/v1/tasks/{task}/events")).await.json(), before);
}

#[tokio::test]
async fn unknown_fields_and_answers_are_refused() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let long = "x".repeat(5_000);
    for (path, body, status) in [
        ("stop", json!({"mode": "halt", "x": 1}), 422),
        ("stop", json!({"mode": "gently"}), 422),
        ("stop", json!({"mode": "halt", "reason": long}), 422),
        ("answers", json!({"answer": "perhaps"}), 422),
        ("answers", json!({"answer": "retry"}), 409),
        ("steps/a/answers", json!({"answer": "retry"}), 409),
        ("steps/b/answers", json!({"answer": "retry"}), 404),
    ] {
        let answer = world.post(&format!("/v1/tasks/{task}/{path}"), &body).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {}", answer.json());
    }
}

#[tokio::test]
async fn every_documented_route_is_served() {
    let world = World::open().await;
    for (path, item) in crate::document()["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let task = "t00-0000000000000";
            let path = path.replace("{id}", task).replace("{task}", task);
            let path = path.replace("{step}", "a").replace("{name}", "x");
            let answer = world.send(request(&method.to_uppercase(), &path, &[JSON], "{}")).await;
            let text = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
            assert!(
                answer.status != 405 && !text.starts_with("there is no path"),
                "{method} {path}"
            );
        }
    }
}

#[test]
fn operations_have_names_of_their_own() {
    let document = crate::document();
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|item| item.as_object().unwrap().values());
    let ids: Vec<&str> = operations.map(|o| o["operationId"].as_str().unwrap()).collect();
    let distinct: std::collections::BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
}

async fn broken() -> &'static str {
    panic!("a handler with a fault")
}

#[tokio::test]
async fn a_panic_is_an_answer_and_too_many_waits_are_refused() {
    let world = World::open().await;
    let guarded = axum::Router::new()
        .route("/broken", axum::routing::get(broken))
        .layer(axum::middleware::from_fn_with_state(world.api.clone(), crate::guard::guard));
    let answer = guarded.oneshot(request("GET", "/broken", &[], "")).await.unwrap();
    assert_eq!(answer.status(), 500);
    let all = world.api.waits.available_permits() as u32;
    let _taken = world.api.waits.clone().try_acquire_many_owned(all).unwrap();
    let task = world.submit(&chain(&["a"])).await;
    let path = format!("/v1/tasks/{task}/events");
    let answer = world.send(request("GET", &path, &[("accept", "text/event-stream")], "")).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (429, "too_many"));
    assert_eq!(world.get(&path).await.status, 200);
}

#[test]
fn the_document_is_as_it_was() {
    insta::assert_json_snapshot!(crate::document());
}

struct Broken;

#[async_trait]
impl Check for Broken {
    fn name(&self) -> &str {
        "store"
    }

    async fn check(&self) -> Result<(), String> {
        Err("it is away".to_owned())
    }
}

struct Depths;

#[async_trait]
impl Gauges for Depths {
    async fn read(&self) -> Vec<Gauge> {
        let gauge = |queue: &str, value| Gauge {
            name: "standfast_queue_ready",
            help: "Steps that are ready",
            labels: vec![("queue", queue.to_owned())],
            value,
        };
        vec![gauge("default", 3), gauge("gpu\"x", 0)]
    }
}

#[tokio::test]
async fn operators_see_what_is_missing_and_what_is_counted() {
    let admin =
        Admin::new(vec![Arc::new(Broken)], Arc::new(Registry::default()), Some(Arc::new(Depths)));
    let world = World::with(Access::Tokens { open_if_none: true }, Vec::new(), admin).await;
    assert_eq!(world.get("/healthz").await.json()["ok"], true);
    let ready = world.get("/readyz").await;
    assert_eq!(
        (ready.status.as_u16(), ready.json()["detail"].clone()),
        (503, json!("store: it is away"))
    );
    let metrics = world.get("/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(text.contains("standfast_queue_ready{queue=\"default\"} 3"), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
}
