//! What a stop would do, a stop by that plan, and what it came to.

use serde_json::{Value, json};
use standfast_domain::ids::TaskId;
use standfast_engine::tokens::Role;

use super::{World, chain, request};

async fn plan(world: &World, task: &str, mode: &str) -> Value {
    let answer = world.get(&format!("/v1/tasks/{task}/stop-plan?mode={mode}")).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer.json()
}

async fn settlement(world: &World, task: &str) -> Value {
    let answer = world.get(&format!("/v1/tasks/{task}/settlement")).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer.json()
}

fn ids(body: &Value) -> Vec<String> {
    let items = body["items"].as_array().unwrap();
    let id = |item: &Value| format!("{} {}", item["kind"], item["id"]).replace('"', "");
    items.iter().map(id).collect()
}

#[tokio::test]
async fn a_stop_follows_the_plan_with_its_digest_and_reports_the_same_items() {
    let world = World::open().await;
    let task = world.submit(&chain(&["build", "ship"])).await;
    let claim = world.claim().await;
    let before = plan(&world, &task, "halt").await;
    assert_eq!(ids(&before), ["attempt build#1", "step ship"]);
    assert_eq!(before["items"][0]["fate"], "told_to_end");
    assert_eq!(plan(&world, &task, "drain").await["items"][0]["fate"], "may_finish");
    let beat = json!({"worker": "w", "attempt": 1, "epoch": 1, "details": "half way"});
    let path = format!("/v1/claims/{task}/build/heartbeat");
    assert_eq!(world.post(&path, &beat).await.status, 200);
    assert_eq!(plan(&world, &task, "halt").await["digest"], before["digest"]);

    let digest = before["digest"].as_str().unwrap();
    let stop = json!({"mode": "halt", "digest": &digest[..8], "reason": "wrong branch"});
    let path = format!("/v1/tasks/{task}/stop");
    let stopped = world.post(&path, &stop).await;
    assert_eq!((stopped.status.as_u16(), &stopped.json()["state"]), (200, &json!("cancelling")));
    assert_eq!(world.post(&path, &stop).await.status, 200, "twice is once");
    let strengthened = json!({"mode": "undo", "digest": digest});
    let refused = world.post(&path, &strengthened).await;
    assert_eq!(refused.problem(), "plan_moved", "it is the digest of another mode");
    assert_eq!(refused.json()["stop_plan"]["mode"], "undo");

    let under_way = settlement(&world, &task).await;
    assert_eq!(ids(&under_way), ids(&before));
    assert_eq!(under_way["items"][0]["became"], "running");
    assert_eq!(under_way["waits_for"], json!(["attempt 1 of `build` on worker w"]));
    let outcome = json!({"status": "failed", "class": "cancelled", "message": "told to end"});
    assert_eq!(world.complete(&claim, outcome).await.status, 200);
    world.api.engine().settle(&TaskId::parse(&task).unwrap()).await.unwrap();
    let after = settlement(&world, &task).await;
    assert_eq!(ids(&after), ids(&before));
    assert_eq!((&after["state"], &after["plan_digest"]), (&json!("cancelled"), &json!(digest)));
    assert_eq!(
        (&after["stop"]["reason"], &after["waits_for"]),
        (&json!("wrong branch"), &json!([]))
    );
    let became = after["items"].as_array().unwrap().iter();
    assert!(became.clone().all(|item| item["became"] == "cancelled"), "{after}");
    assert!(after["took_ms"].is_u64() && after["ended_at"].is_string(), "{after}");
    let explain = world.get(&format!("/v1/tasks/{task}/explain")).await.json();
    let line = explain["stop_now"]["text"][0].as_str().unwrap();
    assert!(line.starts_with("stopped by user:local"), "{line}");
}

#[tokio::test]
async fn a_stop_by_an_outdated_plan_stops_nothing_and_shows_the_new_one() {
    let world = World::open().await;
    let task = world.submit(&chain(&["build", "ship"])).await;
    let before = plan(&world, &task, "halt").await;
    world.claim().await;
    let digest = before["digest"].as_str().unwrap();
    let path = format!("/v1/tasks/{task}/stop");
    let refused = world.post(&path, &json!({"mode": "halt", "digest": digest})).await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (409, "plan_moved"));
    let now = &refused.json()["stop_plan"];
    assert_eq!(ids(now), ["attempt build#1", "step ship"]);
    let view = world.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!(view["state"], "running");
    let other_mode = json!({"mode": "drain", "digest": now["digest"]});
    assert_eq!(world.post(&path, &other_mode).await.problem(), "plan_moved");
    let right = json!({"mode": "halt", "digest": now["digest"]});
    assert_eq!(world.post(&path, &right).await.status, 200);
}

#[tokio::test]
async fn what_cannot_be_planned_or_settled_says_why() {
    let world = World::open().await;
    let task = world.submit(&chain(&["build"])).await;
    let path = format!("/v1/tasks/{task}");
    let none = world.get(&format!("{path}/settlement")).await;
    assert_eq!((none.status.as_u16(), none.problem().as_str()), (409, "not_applicable"));
    for digest in ["1234567", "ABCDEF0123", "12345678…9", ""] {
        let stop = json!({"mode": "halt", "digest": digest});
        let refused = world.post(&format!("{path}/stop"), &stop).await;
        assert_eq!(refused.problem(), "invalid_request", "{digest}");
        assert_eq!(refused.json()["errors"][0]["pointer"], "/digest");
    }
    assert_eq!(world.get(&format!("{path}/stop-plan?mode=kill")).await.status, 422);
    assert_eq!(world.post(&format!("{path}/stop"), &json!({})).await.status, 200);
    let twice = world.get(&format!("{path}/stop-plan")).await;
    assert_eq!((twice.status.as_u16(), twice.problem().as_str()), (409, "not_applicable"));
}

#[tokio::test]
async fn a_plan_is_shown_to_those_who_see_the_task_and_to_nobody_else() {
    let world = World::open().await;
    let task = world.submit(&chain(&["build"])).await;
    let stranger = format!("Bearer {}", world.token(Role::Publisher, "user:eve").await);
    for path in ["stop-plan", "settlement"] {
        let uri = format!("/v1/tasks/{task}/{path}");
        let headers = [("authorization", stranger.as_str())];
        let answer = world.send(request("GET", &uri, &headers, "")).await;
        assert_eq!(answer.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_stronger_stop_by_digest_is_taken_as_long_as_its_plan_stands() {
    let world = World::open().await;
    let mut steps = chain(&["build", "ship"]);
    steps["steps"].as_array_mut().unwrap().push(json!({"id": "check", "uses": "echo"}));
    let task = world.submit(&steps).await;
    let claims = [world.claim().await, world.claim().await];
    let path = format!("/v1/tasks/{task}/stop");
    let first = plan(&world, &task, "halt").await;
    assert_eq!(world.post(&path, &json!({"mode": "drain"})).await.status, 200);
    let shown = plan(&world, &task, "halt").await;
    assert_eq!(shown["digest"], first["digest"], "a drain changes nothing of what a halt does");
    assert_eq!(ids(&shown), ["attempt build#1", "step ship", "attempt check#1"]);
    assert_eq!(shown["items"][0]["fate"], "told_to_end");
    let same = world.get(&format!("/v1/tasks/{task}/stop-plan?mode=drain")).await;
    assert_eq!(same.problem(), "not_applicable", "it was stopped so already");

    let check = claims.iter().find(|claim| claim["step"] == "check").unwrap();
    let outcome = json!({"status": "succeeded", "output": 1});
    assert_eq!(world.complete(check, outcome).await.status, 200);
    let halt = |digest: &Value| json!({"mode": "halt", "digest": digest});
    let refused = world.post(&path, &halt(&shown["digest"])).await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (409, "plan_moved"));
    let now = refused.json()["stop_plan"].clone();
    assert_eq!(ids(&now), ["attempt build#1", "step ship"]);
    assert_eq!(world.get(&format!("/v1/tasks/{task}")).await.json()["stop"]["mode"], "drain");

    let stopped = world.post(&path, &halt(&now["digest"])).await;
    assert_eq!((stopped.status.as_u16(), &stopped.json()["stop"]["mode"]), (200, &json!("halt")));
    assert_eq!(world.post(&path, &halt(&now["digest"])).await.status, 200, "twice is once");
    let beat = json!({"worker": "w", "attempt": 1, "epoch": 1});
    let beat = world.post(&format!("/v1/claims/{task}/build/heartbeat"), &beat).await;
    assert_eq!(beat.json()["stop"], true);
    let events = world.get(&format!("/v1/tasks/{task}/events")).await.json();
    let stronger = events["events"].as_array().unwrap().iter();
    let stronger: Vec<_> = stronger.filter(|event| event["type"] == "stop_strengthened").collect();
    assert_eq!(stronger.len(), 1);
    assert_eq!(stronger[0]["data"]["plan_sha256"], now["digest"]);
}
