//! Names that users choose: each is refused by its rule, or comes back as it went in.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use standfast_tests::embedded::World;

use crate::support::{Server, claim_path, embedded, over_redis, plan, step};

/// Sets one field of a plan to a name, by its pointer.
fn named(pointer: &str, name: &str) -> Value {
    let mut plan = plan(vec![step("a", &[], "true")]);
    plan["steps"][0]["queue"] = json!("default");
    plan["idempotency_key"] = json!("k");
    *plan.pointer_mut(pointer).unwrap() = json!(name);
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_measured_in_bytes_and_one_too_long_is_named_and_harms_nobody() {
    let (_directory, world) = embedded().await;
    let server = Server::start(&world).await;
    let (fits, long, wide) = ("x".repeat(255), "x".repeat(256), "é".repeat(128));
    let name = "x".repeat(64);
    for (pointer, value, status) in [
        ("/kind", &name, 201),
        ("/kind", &fits, 422),
        ("/kind", &long, 422),
        ("/kind", &wide, 422),
        ("/steps/0/queue", &name, 201),
        ("/steps/0/queue", &fits, 422),
        ("/steps/0/queue", &wide, 422),
        ("/steps/0/id", &name, 201),
        ("/steps/0/id", &long, 422),
        ("/idempotency_key", &fits, 201),
        ("/idempotency_key", &long, 422),
        ("/idempotency_key", &wide, 422),
    ] {
        let mut plan = named(pointer, value);
        if pointer != "/idempotency_key" {
            plan.as_object_mut().unwrap().remove("idempotency_key");
        }
        let answer = server.submit(&plan).await;
        assert_eq!(answer.status, status, "{pointer} of {} bytes: {answer:?}", value.len());
        if status == 422 {
            assert_eq!(answer.pointers(), [pointer]);
        }
    }
    let body = plan(vec![step("b", &[], "true")]).to_string();
    let other = "y".repeat(255);
    for (key, status) in [(&other, 201), (&long, 422), (&wide, 422)] {
        let headers =
            [("content-type", &b"application/json"[..]), ("idempotency-key", key.as_bytes())];
        let answer = server.send("POST", "/v1/tasks", &headers, body.clone().into_bytes()).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let task = server.submit(&plan(vec![step("c", &[], "true")])).await.task();
    for (worker, status) in [(&name, 200), (&fits, 422), (&wide, 422)] {
        let claim = json!({"worker": worker, "queue": "default", "handlers": ["exec"]});
        let answer = server.post("/v1/claims", claim.to_string()).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert_eq!(server.get(&format!("/v1/tasks/{task}")).await.status, 200);
    server.stop().await;
}

/// Strings that some part on the way could take for its own syntax.
const STRANGE: [&str; 15] = [
    "a/b",
    "a:b",
    "a{b}c",
    "a}b{",
    "..",
    "%2F",
    "a b",
    "a|b",
    "a\nb",
    "a\0b",
    "\u{202e}ab",
    "🦀",
    "",
    "*",
    "é",
];
/// Strings that are names, and must stay apart.
const PLAIN: [&str; 6] = ["a", "A", "0", "null", "a.b-c_d", "true"];

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

async fn names_pass(world: &World) {
    let server = Server::start(world).await;
    for strange in STRANGE {
        for pointer in ["/kind", "/steps/0/id", "/steps/0/queue"] {
            let answer = server.submit(&named(pointer, strange)).await;
            assert_eq!((answer.status, answer.pointers()), (422, vec![pointer.to_owned()]));
        }
    }
    let mut made = BTreeMap::new();
    for name in PLAIN {
        let mut plan = named("/kind", name);
        plan["steps"] = json!([step(name, &[], "true")]);
        plan["idempotency_key"] = json!(name);
        plan["labels"] = json!({name: name});
        let answer = server.submit(&plan).await;
        assert_eq!(answer.status, 201, "{name}: {answer:?}");
        let task = answer.task();
        assert_eq!(server.submit(&plan).await.task(), task);
        let claim = server.claim().await;
        assert_eq!((&claim["task"], &claim["step"]), (&json!(task), &json!(name)));
        let (attempt, epoch) = (&claim["attempt"], &claim["epoch"]);
        let beat = json!({"worker": "outside", "attempt": attempt, "epoch": epoch});
        let beat = server.post(&claim_path(&claim, "heartbeat"), beat.to_string()).await;
        assert_eq!(beat.status, 200, "{beat:?}");
        let view = server.get(&format!("/v1/tasks/{task}/steps/{}", encoded(name))).await;
        assert_eq!((view.status, &view.json()["id"]), (200, &json!(name)));
        for filter in [format!("kind={}", encoded(name)), format!("label={name}={name}")] {
            let list = server.get(&format!("/v1/tasks?{filter}")).await.json();
            let ids: Vec<&Value> =
                list["tasks"].as_array().unwrap().iter().map(|task| &task["id"]).collect();
            assert_eq!(ids, [&json!(task)], "{filter}");
        }
        let stop = server.post(&format!("/v1/tasks/{task}/stop"), r#"{"mode":"halt"}"#).await;
        assert_eq!(stop.status, 200, "{stop:?}");
        let done = server.complete(&claim, r#"{"status":"succeeded"}"#).await;
        assert_eq!(done.status, 200, "{done:?}");
        let stream = [("accept", &b"text/event-stream"[..])];
        let path = format!("/v1/tasks/{task}/events");
        let told = server.send("GET", &path, &stream, Vec::new()).await;
        assert!(told.text.contains("event: ended"), "{told:?}");
        made.insert(task, name);
    }
    assert_eq!(made.len(), PLAIN.len());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_refused_by_their_rule_or_stay_apart_in_the_file() {
    let (_directory, world) = embedded().await;
    names_pass(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_refused_by_their_rule_or_stay_apart_in_redis() {
    let (place, _directory, world) = over_redis().await;
    names_pass(&world).await;
    place.clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn free_texts_find_exactly_their_task_or_are_refused() {
    let (place, _directory, world) = over_redis().await;
    let server = Server::start(&world).await;
    let texts = STRANGE.iter().chain(&PLAIN).copied().chain(["e\u{301}", "a=b", "a&b", "a,b"]);
    let mut found = BTreeMap::new();
    for text in texts {
        let mut plan = plan(vec![step("a", &[], "true")]);
        plan["labels"] = json!({"text": text});
        let answer = server.submit(&plan).await;
        if text.chars().any(char::is_control) {
            assert_eq!((answer.status, answer.pointers()), (422, vec!["/labels/text".to_owned()]));
            continue;
        }
        let task = answer.task();
        let list = server.get(&format!("/v1/tasks?label=text={}", encoded(text))).await.json();
        let ids: Vec<&Value> =
            list["tasks"].as_array().unwrap().iter().map(|task| &task["id"]).collect();
        assert_eq!(ids, [&json!(task)], "{text:?}");
        assert_eq!(server.get(&format!("/v1/tasks/{task}")).await.json()["labels"]["text"], text);
        plan["idempotency_key"] = json!(text);
        let keyed = server.submit(&plan).await;
        if text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') && !text.is_empty() {
            assert_eq!(keyed.status, 201, "{text:?}: {keyed:?}");
            assert_eq!(server.submit(&plan).await.task(), keyed.task());
            assert_eq!(found.insert(keyed.task(), text), None);
            // The next look is to find one task only.
            let stop = format!("/v1/tasks/{}/stop", keyed.task());
            assert_eq!(server.post(&stop, r#"{"mode":"halt"}"#).await.status, 200);
        } else {
            assert_eq!((keyed.status, keyed.pointers()), (422, vec!["/idempotency_key".into()]));
        }
    }
    server.stop().await;
    place.clean(&[]).await;
}
