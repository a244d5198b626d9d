//! Workers outside: a step's whole life over HTTP, holds and their answers.

use serde_json::{Value, json};
use standfast_domain::ids::{StepId, TaskId, WorkerId};
use standfast_domain::record::AttemptLog;
use standfast_domain::view::Attempt;
use standfast_engine::tokens::Role;
use standfast_protocol::limits::NOTE_BYTES_MAX;

use super::{JSON, World, chain, request};

fn place(claim: &Value, rest: &str) -> String {
    let text = |name: &str| claim[name].as_str().unwrap();
    format!("/v1/claims/{}/{}/{rest}", text("task"), text("step"))
}

fn holder(claim: &Value) -> String {
    format!("worker=w&attempt={}&epoch={}", claim["attempt"], claim["epoch"])
}

const TEXT: (&str, &str) = ("content-type", "text/plain; charset=utf-8");

#[tokio::test]
async fn a_worker_logs_puts_completes_and_the_next_step_reads() {
    let world = World::open().await;
    let mut plan = chain(&["a", "b"]);
    plan["steps"][0]["artifact"] = json!("out/notes.md");
    let task = world.submit(&plan).await;
    let claim = world.claim().await;
    let beat = json!({"worker": "w", "attempt": 1, "epoch": 1, "details": "half\u{1b}way"});
    let answer = world.post(&place(&claim, "heartbeat"), &beat).await.json();
    assert_eq!(answer["stop"], false);
    let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!((&step["state"], &step["worker"]), (&json!("running"), &json!("w")));
    assert_eq!(step["summary"], "half\\u{1b}way");
    for _ in 0..2 {
        let path = place(&claim, &format!("log?{}&offset=0", holder(&claim)));
        let answer = world.send(request("POST", &path, &[TEXT], "one\n")).await;
        assert_eq!(answer.json()["next_offset"], 4);
    }
    let path = place(&claim, &format!("log?{}&offset=9", holder(&claim)));
    assert_eq!(world.send(request("POST", &path, &[TEXT], "x")).await.status, 409);
    let early = world.complete(&claim, json!({"status": "succeeded"})).await;
    assert_eq!(early.status, 422, "the artifact is missing: {}", early.json());
    let path = place(&claim, &format!("artifacts/out%2Fnotes.md?{}", holder(&claim)));
    let put = world.send(request("PUT", &path, &[], "# <script>")).await;
    assert_eq!((put.status.as_u16(), put.json()["bytes"].clone()), (200, json!(10)));
    let outcome =
        json!({"status": "succeeded", "artifacts": ["out/notes.md"], "cost_usd_micros": 7});
    for _ in 0..2 {
        assert_eq!(world.complete(&claim, outcome.clone()).await.status, 200);
    }
    let log = world.get(&format!("/v1/tasks/{task}/steps/a/log")).await.json();
    assert_eq!((&log["text"], &log["ended"]), (&json!("one\n"), &json!(true)));
    let next = world.claim().await;
    let url = next["inputs"][0]["url"].as_str().unwrap();
    let input = world.get(url).await;
    assert_eq!(&input.body[..], b"# <script>");
    assert_eq!(input.headers["content-type"], "application/octet-stream");
    assert!(input.headers["content-disposition"].to_str().unwrap().starts_with("attachment"));
    let list = world.get(&format!("/v1/tasks/{task}/artifacts")).await.json();
    assert_eq!(list["artifacts"][0]["name"], "out/notes.md");
    let view = world.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!((&view["cost_usd_micros"], &view["attempts"]), (&json!(7), &json!(2)));
}

#[tokio::test]
async fn a_worker_reads_only_the_inputs_of_what_it_holds() {
    let world = World::open().await;
    let admin = world.token(Role::Admin, "user:ana").await;
    let one = world.token(Role::Worker, "worker:one").await;
    let two = world.token(Role::Worker, "worker:two").await;
    let send = |method: &'static str, path: String, token: &str, body: Value| {
        let token = format!("Bearer {token}");
        let headers = [JSON, ("authorization", token.as_str())];
        world.send(request(method, &path, &headers, body.to_string()))
    };
    send("POST", "/v1/tasks".into(), &admin, chain(&["a", "b"])).await;
    let ask = json!({"worker": "w", "queue": "default", "handlers": ["echo"]});
    let claim = send("POST", "/v1/claims".into(), &one, ask.clone()).await.json();
    let path = place(&claim, &format!("artifacts/x?{}", holder(&claim)));
    assert_eq!(send("PUT", path.clone(), &two, json!(1)).await.status, 409);
    assert_eq!(send("PUT", path, &one, json!(1)).await.status, 200);
    let done = json!({
        "worker": "w", "attempt": claim["attempt"], "epoch": claim["epoch"],
        "outcome": {"status": "succeeded", "artifacts": ["x"]},
    });
    let stolen = send("POST", place(&claim, "complete"), &two, done.clone()).await;
    assert_eq!(stolen.problem(), "fenced");
    assert_eq!(send("POST", place(&claim, "complete"), &one, done).await.status, 200);
    let next = send("POST", "/v1/claims".into(), &one, ask).await.json();
    let url = next["inputs"][0]["url"].as_str().unwrap().to_owned();
    assert_eq!(send("GET", url.clone(), &one, Value::Null).await.status, 200);
    assert_eq!(send("GET", url.clone(), &two, Value::Null).await.status, 404);
    let bare = url.split('?').next().unwrap().to_owned();
    assert_eq!(send("GET", bare, &one, Value::Null).await.status, 404);
}

#[tokio::test]
async fn a_claim_waits_for_work_and_leaves_what_it_cannot_run() {
    let world = World::open().await;
    let body = json!({"worker": "w", "queue": "default", "handlers": ["other"], "wait_ms": 0});
    world.submit(&chain(&["a"])).await;
    assert_eq!(world.post("/v1/claims", &body).await.status, 204);
    let body = json!({"worker": "w", "queue": "late", "handlers": ["echo"], "wait_ms": 10_000});
    let mut plan = chain(&["a"]);
    plan["steps"][0]["queue"] = json!("late");
    let (claimed, _) = tokio::join!(world.post("/v1/claims", &body), world.submit(&plan));
    assert_eq!((claimed.status.as_u16(), claimed.json()["handler"].clone()), (200, json!("echo")));
    let body = json!({"worker": "w", "queue": "late", "handlers": ["echo"], "wait_ms": 30_001});
    assert_eq!(world.post("/v1/claims", &body).await.status, 422);
}

#[tokio::test]
async fn a_failed_step_is_explained_and_answered() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a", "b"])).await;
    let claim = world.claim().await;
    let outcome = json!({"status": "failed", "class": "permanent", "message": "no\u{1b}[31m"});
    world.complete(&claim, outcome).await;
    let view = world.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!(
        (&view["state"], &view["holds"][0]["suggested"]),
        (&json!("blocked"), &json!("retry"))
    );
    assert_eq!(view["steps"]["held"], 1);
    let explain = world.get(&format!("/v1/tasks/{task}/explain")).await;
    let text = String::from_utf8_lossy(&explain.body).into_owned();
    assert!(!text.contains('\u{1b}') && !text.contains("\\u001b"), "{text}");
    let why = explain.json()["why"]["text"].to_string();
    assert!(why.contains(&format!("standfast answer {task}/a retry")), "{why}");
    let path = format!("/v1/tasks/{task}/answers");
    let answered = world.post(&path, &json!({"answer": "retry"})).await.json();
    assert_eq!((&answered["step"], &answered["step_state"]), (&json!("a"), &json!("ready")));
    let claim = world.claim().await;
    assert_eq!(claim["attempt"], 2);
    world.complete(&claim, json!({"status": "succeeded"})).await;
    let stopped = world.post(&format!("/v1/tasks/{task}/stop"), &json!({"mode": "halt"})).await;
    assert_eq!(stopped.json()["stop"]["mode"], "halt");
}

#[tokio::test]
async fn words_for_the_history_are_kept_whole_or_refused() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let claim = world.claim().await;
    let (fits, long) = ("x".repeat(NOTE_BYTES_MAX), "x".repeat(NOTE_BYTES_MAX + 1));
    let back = |reason: &str| json!({"worker": "w", "attempt": 1, "epoch": 1, "reason": reason});
    let stop = |reason: &str| json!({"mode": "halt", "reason": reason});
    for (path, body) in
        [(place(&claim, "hand-back"), back(&long)), (format!("/v1/tasks/{task}/stop"), stop(&long))]
    {
        let refused = world.post(&path, &body).await;
        assert_eq!(refused.status, 422, "{path}");
        assert!(refused.json()["detail"].to_string().contains("1024"), "{}", refused.json());
    }
    assert_eq!(world.post(&place(&claim, "hand-back"), &back(&fits)).await.status, 200);
    let stopped = world.post(&format!("/v1/tasks/{task}/stop"), &stop(&fits)).await;
    assert_eq!(stopped.json()["stop"]["reason"], fits, "{}", stopped.json());
}

#[test]
fn the_limits_of_the_wire_are_those_behind_it() {
    use standfast_domain::{json, outcome};
    use standfast_engine::claims;
    use standfast_protocol::limits;
    assert_eq!(limits::MESSAGE_BYTES_MAX, outcome::MESSAGE_BYTES_MAX);
    assert_eq!(limits::ARTIFACTS_MAX, outcome::ARTIFACTS_MAX);
    assert_eq!(limits::DETAILS_BYTES_MAX, claims::DETAILS_BYTES_MAX);
    assert_eq!(limits::PLAN_BYTES_MAX, json::PLAN_BYTES_MAX);
    assert_eq!(limits::WORDS_BYTES_MAX, standfast_domain::plan::read::WORDS_BYTES_MAX);
    let window = standfast_engine::effects::SEND_WINDOW.0;
    assert_eq!(limits::SEND_WINDOW_MS_DEFAULT, window);
    assert_eq!(limits::OUTPUT_INLINE_BYTES_MAX, json::OUTPUT_INLINE_BYTES_MAX);
}

#[tokio::test]
async fn a_step_keeps_who_ran_it_when_and_at_what_cost() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let claim = world.claim().await;
    world.complete(&claim, json!({"status": "succeeded", "cost_usd_micros": 9})).await;
    let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!((&step["worker"], &step["cost_usd_micros"]), (&json!("w"), &json!(9)));
    assert!(step["started_at"].is_string() && step["ended_at"].is_string(), "{step}");
}

#[tokio::test]
async fn a_fenced_attempt_changes_nothing() {
    let world = World::open().await;
    world.submit(&chain(&["a"])).await;
    let claim = world.claim().await;
    let back = json!({"worker": "w", "attempt": 1, "epoch": 1, "reason": "ending"});
    assert_eq!(world.post(&place(&claim, "hand-back"), &back).await.status, 200);
    let again = world.claim().await;
    assert_eq!(world.complete(&again, json!({"status": "succeeded"})).await.status, 200);
    for path in ["heartbeat", "hand-back"] {
        let body = json!({"worker": "w", "attempt": 1, "epoch": 1});
        let answer = world.post(&place(&claim, path), &body).await;
        assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (409, "fenced"), "{path}");
    }
    let path = place(&claim, &format!("artifacts/x?{}", holder(&claim)));
    assert_eq!(world.send(request("PUT", &path, &[], "x")).await.problem(), "fenced");
}

#[tokio::test]
async fn announced_handlers_may_be_used_and_silence_is_named() {
    let world = World::open().await;
    let mut plan = chain(&["a"]);
    plan["steps"][0]["uses"] = json!("mine");
    assert_eq!(world.post("/v1/tasks", &plan).await.status, 422);
    let handler = json!({"name": "mine"});
    let me = json!({"worker": "w", "queues": ["default"], "handlers": [handler]});
    let fresh = World::open().await;
    assert!(fresh.post("/v1/workers", &me).await.json()["again_ms"].as_u64().unwrap() > 0);
    let task = fresh.submit(&plan).await;
    let step = fresh.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!((&step["state"], &step["waiting_for"]), (&json!("ready"), &Value::Null));
    let lonely = world.submit(&chain(&["b"])).await;
    let step = world.get(&format!("/v1/tasks/{lonely}/steps/b")).await.json();
    assert_eq!(step["waiting_for"], "no_worker");
    let echo = json!({"worker": "w", "queues": ["default"], "handlers": [{"name": "echo"}]});
    assert_eq!(world.post("/v1/workers", &echo).await.status, 200);
    let step = world.get(&format!("/v1/tasks/{lonely}/steps/b")).await.json();
    assert_eq!(step["waiting_for"], Value::Null, "what was announced a moment ago is known");
}

#[tokio::test]
async fn an_attempt_that_never_was_has_no_log() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let log = |attempt: u32| format!("/v1/tasks/{task}/steps/a/log?attempt={attempt}");
    let claim = world.claim().await;
    assert_eq!(world.get(&log(2)).await.status, 200, "it may come");
    let outcome = json!({"status": "succeeded", "output": null});
    assert_eq!(world.complete(&claim, outcome).await.status, 200);
    assert_eq!(world.get(&log(1)).await.status, 200);
    for never in [0, 2] {
        let answer = world.get(&log(never)).await;
        assert_eq!(answer.status, 404);
        assert!(answer.json()["detail"].to_string().contains("the last was 1"));
    }
}

#[tokio::test]
async fn the_middle_of_a_long_log_comes_from_the_blobs() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    world.claim().await;
    let id = TaskId::parse(&task).unwrap();
    let blob = world.api.blobs().put(&id, "0123456é89".into()).await.unwrap().name;
    let log = AttemptLog {
        head: "01".into(),
        tail: "yz".into(),
        omitted: 10,
        blob: Some(blob),
        ended: false,
    };
    let at = Attempt {
        step: StepId::new("a").unwrap(),
        attempt: 1,
        epoch: 1,
        worker: WorkerId::new("w").unwrap(),
    };
    assert!(world.api.claims().append_log(&id, &at, log).await.unwrap());
    for (offset, text, next, dropped) in
        [(0, "01", 2, 0), (2, "23456é89", 11, 0), (11, "yz", 14, 1), (14, "", 14, 0)]
    {
        let path = format!("/v1/tasks/{task}/steps/a/log?offset={offset}");
        let page = world.get(&path).await.json();
        assert_eq!(page["text"], text, "at {offset}");
        assert_eq!((&page["next_offset"], &page["dropped_bytes"]), (&json!(next), &json!(dropped)));
    }
}

#[tokio::test]
async fn steps_of_other_handlers_hide_none_behind_them() {
    let world = World::open().await;
    world
        .post(
            "/v1/workers",
            &json!({"worker": "o", "queues": ["default"], "handlers": [{"name": "other"}]}),
        )
        .await;
    let step = |n: usize| json!({"id": format!("s{n}"), "uses": "other"});
    let steps: Vec<Value> = (0..520).map(step).collect();
    world.submit(&json!({"kind": "k", "steps": steps})).await;
    let task = world.submit(&chain(&["a"])).await;
    let ready = async || {
        let queue = standfast_domain::ids::Queue::new("default").unwrap();
        let (first, more) = world.api.claims().ready(&queue, "", 500).await.unwrap();
        let more = more?;
        Some(first.len() + world.api.claims().ready(&queue, &more, 500).await.unwrap().0.len())
    };
    while ready().await != Some(521) {
        tokio::task::yield_now().await; // roots are opened in several commits
    }
    let claim = world.claim().await;
    assert_eq!((&claim["task"], &claim["step"]), (&json!(task), &json!("a")));
}

#[tokio::test]
async fn an_added_step_may_name_the_plans_folder_only_where_the_task_has_one() {
    let world = World::open().await;
    for (folder, state) in [(None, "failed"), (Some("/plans"), "succeeded")] {
        let mut plan = chain(&["a"]);
        plan["steps"][0]["on_failure"] = json!("continue");
        let mut body = json!({"plan": plan});
        if let Some(folder) = folder {
            body["plan_dir"] = json!(folder);
        }
        let task = world.submit(&body).await;
        let claim = world.claim().await;
        let then = json!([{"id": "x", "uses": "echo", "with": {"in": "${{ plan.dir }}"}}]);
        world.complete(&claim, json!({"status": "succeeded", "then": then})).await;
        let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
        assert_eq!(step["state"], state, "{step}");
        if folder.is_none() {
            let message = step["failure"]["message"].as_str().unwrap();
            assert!(message.contains("plan.dir"), "{message}");
        }
    }
}
