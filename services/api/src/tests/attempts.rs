//! Attempts of workers outside: signs of life, what the next attempt is told, what follows each
//! class of failure, and why a step is not started.

use serde_json::{Value, json};
use standfast_domain::ids::{HandlerName, Principal, Queue, WorkerId};
use standfast_engine::registry::{Announcement, WorkerLoad};
use standfast_engine::tokens::Role;

use super::{JSON, World, chain, request};

fn place(claim: &Value, rest: &str) -> String {
    let text = |name: &str| claim[name].as_str().unwrap();
    format!("/v1/claims/{}/{}/{rest}", text("task"), text("step"))
}

/// A plan of one step with more fields.
fn one(fields: Value) -> Value {
    let mut step = json!({"id": "a", "uses": "echo"});
    step.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"kind": "test", "steps": [step]})
}

async fn beat(world: &World, claim: &Value, details: Option<&str>) -> Value {
    let mut body = json!({"worker": "w", "attempt": claim["attempt"], "epoch": claim["epoch"]});
    if let Some(details) = details {
        body["details"] = json!(details);
    }
    world.post(&place(claim, "heartbeat"), &body).await.json()
}

#[tokio::test]
async fn the_next_attempt_is_given_what_the_last_one_said() {
    let world = World::open().await;
    let task = world.submit(&one(json!({"retry": {"backoff": "0s"}}))).await;
    let first = world.claim().await;
    assert_eq!(first["last_details"], Value::Null);
    beat(&world, &first, Some("row 400")).await;
    beat(&world, &first, None).await;
    let failed = json!({"status": "failed", "class": "retryable", "message": "no"});
    assert_eq!(world.complete(&first, failed).await.status, 200);
    let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!(step["summary"], "row 400");
    let second = world.claim().await;
    assert_eq!((&second["attempt"], &second["last_details"]), (&json!(2), &json!("row 400")));
    let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!(step["summary"], Value::Null, "the running attempt has said nothing yet");
    world.complete(&second, json!({"status": "succeeded"})).await;
    let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!(step["summary"], Value::Null);
}

#[tokio::test]
async fn details_are_cut_and_nothing_is_added_to_them() {
    let world = World::open().await;
    world.submit(&one(json!({"retry": {"backoff": "0s"}}))).await;
    let first = world.claim().await;
    beat(&world, &first, Some(&"ä".repeat(4096))).await;
    let failed = json!({"status": "failed", "class": "retryable", "message": "no"});
    world.complete(&first, failed).await;
    assert_eq!(world.claim().await["last_details"], "ä".repeat(2048));
}

#[tokio::test]
async fn a_claim_tells_how_long_its_handler_may_be_silent() {
    let world = World::open().await;
    world.submit(&one(json!({"timeout": {"heartbeat": "6s"}}))).await;
    let claim = world.claim().await;
    assert_eq!(claim["heartbeat_timeout_ms"], 6_000);
    assert_eq!(claim["heartbeat_ms"], 3_000, "twice within it");
    let free = World::open().await;
    free.submit(&one(json!({}))).await;
    let claim = free.claim().await;
    assert_eq!(
        (&claim["heartbeat_timeout_ms"], &claim["heartbeat_ms"]),
        (&Value::Null, &json!(10_000))
    );
}

#[tokio::test]
async fn each_class_of_failure_of_a_worker_outside_is_followed_by_what_it_calls_for() {
    for (class, state) in [
        ("retryable", "retrying"),
        ("rate_limited", "retrying"),
        ("timeout", "retrying"),
        ("cancelled", "retrying"),
        ("permanent", "held"),
    ] {
        let world = World::open().await;
        let task = world.submit(&one(json!({"retry": {"max_attempts": 2}}))).await;
        let claim = world.claim().await;
        let outcome = json!({
            "status": "failed", "class": class, "message": "no", "retry_after_ms": 3_600_000,
        });
        let answer = world.complete(&claim, outcome).await.json();
        assert_eq!(answer["state"], state, "{class}");
        let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
        assert_eq!((&step["failure"]["class"], &step["charged"]), (&json!(class), &json!(1)));
        let explain = world.get(&format!("/v1/tasks/{task}/explain")).await.json();
        let minutes = explain["next"]["text"].to_string().contains("a clock moves it at");
        assert_eq!(minutes, state == "retrying", "{class}: {explain}");
    }
    let world = World::open().await;
    world.submit(&one(json!({}))).await;
    let claim = world.claim().await;
    let lost = json!({"status": "failed", "class": "lost", "message": "no"});
    assert_eq!(world.complete(&claim, lost).await.status, 422, "nobody reports its own loss");
}

#[tokio::test]
async fn a_heartbeat_tells_of_a_stop_and_a_lost_claim_is_refused() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let claim = world.claim().await;
    assert_eq!(beat(&world, &claim, None).await["stop"], false);
    world.post(&format!("/v1/tasks/{task}/stop"), &json!({"mode": "halt"})).await;
    assert_eq!(beat(&world, &claim, None).await["stop"], true);
    let ended = json!({"status": "failed", "class": "cancelled", "message": "told to end"});
    assert_eq!(world.complete(&claim, ended).await.status, 200);
    let late = beat(&world, &claim, None).await;
    assert!(late["type"].to_string().contains("fenced"), "{late}");
}

#[tokio::test]
async fn a_ready_step_says_what_it_waits_for() {
    let announce = |load: Value| {
        let mut body =
            json!({"worker": "w", "queues": ["default"], "handlers": [{"name": "echo"}]});
        body.as_object_mut().unwrap().extend(load.as_object().unwrap().clone());
        body
    };
    for (load, reason) in [
        (None, Some("no_worker")),
        (Some(json!({"concurrency": 2, "running": 2})), Some("concurrency")),
        (Some(json!({"concurrency": 2, "running": 1})), None),
        (Some(json!({})), None),
    ] {
        let world = World::open().await;
        if let Some(load) = &load {
            assert_eq!(world.post("/v1/workers", &announce(load.clone())).await.status, 200);
        }
        let task = world.submit(&one(json!({"timeout": {"queue": "1h", "total": "2h"}}))).await;
        let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
        assert_eq!(step["waiting_for"].as_str(), reason, "{load:?}");
        let view = world.get(&format!("/v1/tasks/{task}")).await.json();
        assert_eq!(view["waiting_for"].as_str(), reason, "{load:?}");
        let list = world.get("/v1/tasks").await.json();
        assert_eq!(list["tasks"][0]["waiting_for"].as_str(), reason, "{load:?}");
        let explain = world.get(&format!("/v1/tasks/{task}/explain")).await.json();
        assert_eq!(explain["why"]["waiting"][0]["waiting_for"].as_str(), reason, "{load:?}");
        let text = explain["why"]["text"].to_string();
        assert!(text.contains(reason.unwrap_or("for a free worker of queue")), "{text}");
        assert!(text.contains("it fails unless a worker starts it by"), "{text}");
        assert!(text.contains("it fails unless it is done by"), "{text}");
    }
}

#[tokio::test]
async fn a_running_step_says_how_long_it_may_take_and_be_silent() {
    let world = World::open().await;
    let task = world.submit(&one(json!({"timeout": {"attempt": "1h", "heartbeat": "90s"}}))).await;
    let claim = world.claim().await;
    beat(&world, &claim, Some("row 7")).await;
    let explain = world.get(&format!("/v1/tasks/{task}/explain")).await.json();
    let text = explain["why"]["text"].to_string();
    assert!(text.contains("its handler silent for 1m30s at most: row 7"), "{text}");
    assert_eq!(explain["stands"].get("stalled"), None);
}

#[tokio::test]
async fn a_worker_that_waits_for_word_hears_of_a_stop_at_once() {
    let world = World::open().await;
    let free = world.api.control().free();
    for (mode, stop) in [("drain", false), ("halt", true)] {
        let task = world.submit(&one(json!({"timeout": {"attempt": "1h"}}))).await;
        let claim = world.claim().await;
        let (attempt, epoch) = (&claim["attempt"], &claim["epoch"]);
        let word = |wait_ms: u64| {
            let query = format!("worker=w&attempt={attempt}&epoch={epoch}&wait_ms={wait_ms}");
            format!("/v1/claims/{task}/a/control?{query}")
        };
        assert_eq!(world.get(&word(0)).await.json()["stop"], false, "nothing was said yet");
        let (path, body) = (format!("/v1/tasks/{task}/stop"), json!({"mode": mode}));
        let wait_ms = if stop { 30_000 } else { 50 };
        let long = word(wait_ms);
        let began = std::time::Instant::now();
        let (heard, stopped) = tokio::join!(world.get(&long), world.post(&path, &body));
        assert_eq!((stopped.status.as_u16(), heard.json()), (200, json!({"stop": stop})), "{mode}");
        assert!(began.elapsed().as_secs() < 5, "told, not found by a look");
        let lost = format!("/v1/claims/{task}/a/control?worker=v&attempt={attempt}&epoch={epoch}");
        assert_eq!(world.get(&lost).await.problem(), "fenced", "another worker");
        world.complete(&claim, json!({"status": "succeeded"})).await;
        assert_eq!(world.get(&word(0)).await.problem(), "fenced", "it is over");
    }
    assert_eq!(world.api.control().free(), free, "every place is free again");
}

#[tokio::test]
async fn what_waits_gets_nothing_once_its_token_is_revoked() {
    let world = World::open().await;
    let admin = world.token(Role::Admin, "user:ana").await;
    let principal = Principal::new("worker:one").unwrap();
    let made = world.api.tokens().create(Role::Worker, &principal, "test").await.unwrap();
    let send = |method: &'static str, path: String, token: &str, body: Value| {
        let token = format!("Bearer {token}");
        let headers = [JSON, ("authorization", token.as_str())];
        world.send(request(method, &path, &headers, body.to_string()))
    };
    let plan = one(json!({"timeout": {"attempt": "1h"}}));
    let first = send("POST", "/v1/tasks".into(), &admin, plan.clone()).await.json();
    let ask = json!({"worker": "w", "queue": "default", "handlers": ["echo"]});
    let claim = send("POST", "/v1/claims".into(), &made.secret, ask.clone()).await.json();
    assert_eq!(claim["task"], first["id"]);
    let task = claim["task"].as_str().unwrap();
    let word = format!("/v1/claims/{task}/a/control?worker=w&attempt=1&epoch=1&wait_ms=30000");
    let mut waiting = ask;
    waiting["wait_ms"] = json!(30_000);
    let revoke_then_submit = async {
        assert!(world.api.tokens().revoke(&made.id).await.unwrap());
        send("POST", format!("/v1/tasks/{task}/stop"), &admin, json!({"mode": "halt"})).await;
        send("POST", "/v1/tasks".into(), &admin, plan).await.json()
    };
    let (word, claimed, second) = tokio::join!(
        send("GET", word, &made.secret, Value::Null),
        send("POST", "/v1/claims".into(), &made.secret, waiting),
        revoke_then_submit,
    );
    assert_eq!((word.status.as_u16(), claimed.status.as_u16()), (401, 401));
    let second = second["id"].as_str().unwrap().to_owned();
    let step = send("GET", format!("/v1/tasks/{second}/steps/a"), &admin, Value::Null).await;
    assert_eq!(step.json()["state"], "ready", "nobody has claimed it");
}

#[tokio::test]
async fn a_ready_step_whose_workers_are_cut_off_from_its_queue_says_so() {
    let world = World::open().await;
    let (worker, queue) = (WorkerId::new("w").unwrap(), Queue::new("default").unwrap());
    let echo = HandlerName::new("echo").unwrap();
    let queues = std::slice::from_ref(&queue);
    let announced = Announcement {
        worker: &worker,
        principal: &Principal::system(),
        queues,
        unsubscribed: queues,
        handlers: std::slice::from_ref(&echo),
        load: Some(WorkerLoad { concurrency: 2, running: 0 }),
    };
    world.api.registry().announce(announced).await.unwrap();
    let task = world.submit(&one(json!({}))).await;
    let view = world.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!(view["waiting_for"], "unsubscribed");
    let explain = world.get(&format!("/v1/tasks/{task}/explain")).await.json();
    let text = explain["why"]["text"].to_string();
    assert!(text.contains("no worker takes from queue `default` at the moment"), "{text}");
    assert!(!text.contains("free worker"), "{text}");
}
