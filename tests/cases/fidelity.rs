//! Values come out as they went in, on both stores; what JSON cannot carry goes nowhere.

use serde_json::{Value, json};
use standfast_tests::embedded::World;

use crate::support::{Server, claim_path, embedded, over_redis, plan, step};

/// Values that some encoding on the way would change.
const VALUES: [&str; 14] = [
    "[]",
    r#"{"a":[]}"#,
    "{}",
    "9007199254740993",
    "-9223372036854775808",
    "18446744073709551615",
    "1.0",
    "3.99",
    "1e308",
    r#""\u0000""#,
    r#""🦀 e\u0301""#,
    r#"{"a":1,"aa":2,"b":3}"#,
    r#"["<script>alert(1)</script>",null,false]"#,
    r#""${{ input.v }}""#,
];

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Sends each value as a plan's input through a template to a worker, back as an output,
/// through a template to the next step, and reads it.
async fn values_pass(world: &World) {
    let server = Server::start(world).await;
    for text in VALUES {
        let value = parsed(text);
        let echo = |id: &str, needs: &[&str], from: &str| {
            json!({"id": id, "uses": "exec", "needs": needs,
                   "with": {"command": ["cat"], "stdin": from}})
        };
        let mut plan = plan(vec![
            echo("a", &[], "${{ input.v }}"),
            echo("b", &["a"], "${{ steps.a.output }}"),
        ]);
        plan["input"] = json!({"v": value});
        plan["labels"] = json!({"team": "a: [] {b} 🦀"});
        let task = server.submit(&plan).await.task();
        for id in ["a", "b"] {
            let claim = server.claim().await;
            assert_eq!((&claim["step"], &claim["task"]), (&json!(id), &json!(task)));
            let got = &claim["input"]["stdin"];
            assert_eq!((got, got.to_string()), (&value, value.to_string()), "{text} into {id}");
            let outcome = format!(r#"{{"status":"succeeded","output":{text}}}"#);
            let done = server.complete(&claim, &outcome).await;
            assert_eq!(done.status, 200, "{done:?}");
            let step = server.get(&format!("/v1/tasks/{task}/steps/{id}")).await.json();
            assert_eq!(step["output"].to_string(), value.to_string(), "{text} out of {id}");
        }
        let page = server.get(&format!("/v1/tasks/{task}/events?limit=200")).await.json();
        let stream = server
            .send(
                "GET",
                &format!("/v1/tasks/{task}/events"),
                &[("accept", &b"text/event-stream"[..])],
                Vec::new(),
            )
            .await;
        let told = stream.text.lines().filter_map(|line| line.strip_prefix("data:"));
        let told: Vec<Value> = told.map(parsed).filter(|data| *data != json!({})).collect();
        assert_eq!(json!(told), page["events"], "{text}");
        let report = server.get(&format!("/v1/tasks/{task}/verify")).await.json();
        assert_eq!(report["ok"], true, "{text}: {report}");
    }
    let listed = server.get("/v1/tasks?limit=200").await.json();
    let tasks = listed["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), VALUES.len());
    assert!(tasks.iter().all(|task| task["labels"]["team"] == "a: [] {b} 🦀"), "{listed}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_out_of_the_file_as_they_went_in() {
    let (_directory, world) = embedded().await;
    values_pass(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_out_of_redis_as_they_went_in() {
    let (place, _directory, world) = over_redis().await;
    values_pass(&world).await;
    place.clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_json_cannot_carry_is_refused_and_the_attempt_goes_on() {
    let (_directory, world) = embedded().await;
    let server = Server::start(&world).await;
    let task = server.submit(&plan(vec![step("a", &[], "true")])).await.task();
    let claim = server.claim().await;
    let before = server.get(&format!("/v1/tasks/{task}/events")).await.json();
    for value in ["NaN", "Infinity", "-Infinity", "1e400", "18446744073709551616", r#""\ud800""#] {
        let outcome = format!(r#"{{"status":"succeeded","output":{{"a":[{{"b":{value}}}]}}}}"#);
        let refused = server.complete(&claim, &outcome).await;
        assert_eq!(refused.status, 400, "{value}: {refused:?}");
        assert!(refused.json()["type"].as_str().unwrap().ends_with("invalid_json"), "{value}");
    }
    let raw = claim_path(&claim, "complete");
    let headers = [("content-type", &b"application/json"[..])];
    let refused = server.send("POST", &raw, &headers, vec![b'{', 0xff, b'}']).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert_eq!(server.get(&format!("/v1/tasks/{task}/events")).await.json(), before);
    assert_eq!(server.get("/v1/tasks").await.json()["tasks"][0]["state"], "running");
    let done = server.complete(&claim, r#"{"status":"succeeded","output":1}"#).await;
    assert_eq!(done.status, 200, "{done:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_file_that_is_not_json_fails_the_step_for_good_and_says_so() {
    let (_directory, mut world) = embedded().await;
    world.work(&["default"], 2);
    world.schedule();
    let server = Server::start(&world).await;
    for value in ["NaN", "Infinity", "-Infinity", "1e400"] {
        let script =
            format!(r#"printf '{{"output":{{"a":[{{"b":{value}}}]}}}}' > $STANDFAST_OUTCOME"#);
        let mut only = step("a", &[], &script);
        only["retry"] = json!({"max_attempts": 5, "backoff": "0s"});
        only["on_failure"] = json!("fail");
        let task = server.submit(&plan(vec![only])).await.task();
        let id = standfast_domain::ids::TaskId::parse(&task).unwrap();
        world.wait(&id, &[standfast_domain::record::TaskState::Failed]).await;
        let step = server.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
        assert_eq!((&step["attempt"], &step["failure"]["class"]), (&json!(1), &json!("permanent")));
        let message = step["failure"]["message"].as_str().unwrap();
        assert!(message.contains("the outcome file"), "{message}");
    }
    let listed = server.get("/v1/tasks").await.json();
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 4);
    server.stop().await;
    world.close().await;
}
