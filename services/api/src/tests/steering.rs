//! Stops in their modes, pauses, and who may ask for them from where.

use serde_json::json;
use standfast_engine::tokens::Role;

use super::{JSON, World, chain, request};

#[tokio::test]
async fn a_stop_has_a_mode_and_without_one_it_is_a_halt() {
    for (body, mode) in [
        (json!({}), "halt"),
        (json!({"mode": "drain"}), "drain"),
        (json!({"mode": "undo", "reason": "wrong order"}), "undo"),
    ] {
        let world = World::open().await;
        let task = world.submit(&chain(&["a"])).await;
        let stopped = world.post(&format!("/v1/tasks/{task}/stop"), &body).await;
        assert_eq!(stopped.status, 200, "{}", stopped.json());
        assert_eq!(stopped.json()["stop"]["mode"], mode);
        let seen = world.get(&format!("/v1/tasks/{task}")).await;
        assert_eq!(seen.json()["stop"]["mode"], mode);
    }
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let wrong = world.post(&format!("/v1/tasks/{task}/stop"), &json!({"mode": "kill"})).await;
    assert_eq!(wrong.status, 422, "{}", wrong.json());
}

#[tokio::test]
async fn a_stronger_stop_takes_the_place_of_a_weaker_one() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    world.claim().await;
    let path = format!("/v1/tasks/{task}/stop");
    for (asked, holds) in [("drain", "drain"), ("undo", "undo"), ("halt", "undo")] {
        let stopped = world.post(&path, &json!({"mode": asked})).await;
        assert_eq!(stopped.json()["stop"]["mode"], holds, "{asked}");
    }
}

#[tokio::test]
async fn a_drained_attempt_is_not_told_to_end_and_its_success_counts() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a", "b"])).await;
    let claim = world.claim().await;
    let path = format!("/v1/tasks/{task}/stop");
    let beat = json!({"worker": "w", "attempt": claim["attempt"], "epoch": claim["epoch"]});
    let heartbeat = format!("/v1/claims/{task}/a/heartbeat");
    world.post(&path, &json!({"mode": "drain"})).await;
    assert_eq!(world.post(&heartbeat, &beat).await.json()["stop"], false);
    let done = world.complete(&claim, json!({"status": "succeeded", "output": 1})).await;
    assert_eq!(done.status, 200, "{}", done.json());
    let steps = world.get(&format!("/v1/tasks/{task}/steps")).await.json();
    assert_eq!(steps["steps"][0]["state"], "succeeded", "{steps}");
    assert_eq!(steps["steps"][1]["state"], "cancelled", "{steps}");
}

#[tokio::test]
async fn a_pause_says_since_when_and_whether_anything_still_runs() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a", "b"])).await;
    let claim = world.claim().await;
    let (pause, resume) = (format!("/v1/tasks/{task}/pause"), format!("/v1/tasks/{task}/resume"));
    let paused = world.post(&pause, &json!({"reason": "lunch"})).await;
    assert_eq!(paused.status, 200, "{}", paused.json());
    assert_eq!(
        (&paused.json()["state"], &paused.json()["pause"]["drained"]),
        (&json!("blocked"), &json!(false))
    );
    let since = paused.json()["pause"]["since"].clone();
    world.complete(&claim, json!({"status": "succeeded", "output": 1})).await;
    let again = world.post(&pause, &json!({})).await.json();
    assert_eq!((&again["pause"]["since"], &again["pause"]["drained"]), (&since, &json!(true)));
    let seen = world.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!(seen["holds"][0]["reason"], "paused");
    assert!(seen["holds"][0]["message"].as_str().unwrap().contains("lunch"), "{seen}");
    for _ in 0..2 {
        let resumed = world.post(&resume, &json!({})).await;
        assert_eq!((resumed.status.as_u16(), &resumed.json()["pause"]), (200, &json!(null)));
    }
    world.claim().await;
    world.post(&format!("/v1/tasks/{task}/stop"), &json!({})).await;
    let late = world.post(&pause, &json!({})).await;
    assert_eq!((late.status.as_u16(), late.problem()), (409, "not_applicable".to_owned()));
}

#[tokio::test]
async fn no_other_page_and_no_get_changes_anything() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    for what in ["stop", "pause", "resume"] {
        let path = format!("/v1/tasks/{task}/{what}");
        let evil = ("origin", "https://evil.example");
        let form = ("content-type", "application/x-www-form-urlencoded");
        let text = ("content-type", "text/plain");
        for (headers, status) in [
            (vec![JSON, evil], 403),
            (vec![text, evil], 403),
            (vec![form], 415),
            (vec![text], 415),
            (vec![JSON, ("host", "evil.example")], 421),
        ] {
            let answer = world.send(request("POST", &path, &headers, "{}")).await;
            assert_eq!(answer.status.as_u16(), status, "{what} {headers:?}");
        }
        assert_eq!(world.get(&path).await.status, 405, "{what}");
    }
    let seen = world.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!((&seen["stop"], &seen["pause"]), (&json!(null), &json!(null)));
}

#[tokio::test]
async fn only_who_may_act_pauses_and_to_strangers_the_task_does_not_exist() {
    let world = World::open().await;
    let tokens = [("user:owner", 200), ("user:viewer", 403), ("user:stranger", 404)];
    let mut secrets = Vec::new();
    for (who, _) in tokens {
        secrets.push(format!("Bearer {}", world.token(Role::Publisher, who).await));
    }
    let mut plan = chain(&["a"]);
    plan["viewers"] = json!(["user:viewer"]);
    let headers = [JSON, ("authorization", secrets[0].as_str())];
    let made = world.send(request("POST", "/v1/tasks", &headers, plan.to_string())).await;
    let task = made.json()["id"].as_str().unwrap().to_owned();
    for ((who, status), secret) in tokens.iter().zip(&secrets) {
        for what in ["pause", "resume"] {
            let path = format!("/v1/tasks/{task}/{what}");
            let headers = [JSON, ("authorization", secret.as_str())];
            let answer = world.send(request("POST", &path, &headers, "{}")).await;
            assert_eq!(answer.status.as_u16(), *status, "{who} {what}");
        }
    }
}
