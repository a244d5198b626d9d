//! Submitting: faults, keys, limits, and values that must come back as they went in.

use serde_json::{Value, json};

use super::{JSON, World, chain, request};

#[tokio::test]
async fn a_plan_becomes_a_task_once() {
    let world = World::open().await;
    let mut plan = chain(&["a"]);
    plan["idempotency_key"] = json!("k");
    let first = world.post("/v1/tasks", &plan).await;
    assert_eq!(first.status, 201);
    assert_eq!(first.headers["location"], first.json()["url"].as_str().unwrap());
    let again = world.post("/v1/tasks", &json!({"plan": plan})).await;
    assert_eq!(
        (again.status.as_u16(), again.json()["id"].clone()),
        (200, first.json()["id"].clone())
    );
    plan["goal"] = json!("another");
    let other = world.post("/v1/tasks", &plan).await;
    assert_eq!((other.status.as_u16(), other.problem().as_str()), (409, "key_reused"));
}

#[tokio::test]
async fn keys_of_header_and_plan_must_agree() {
    let world = World::open().await;
    let mut plan = chain(&["a"]);
    let send = |plan: &Value, key: &str| {
        world.send(request(
            "POST",
            "/v1/tasks",
            &[JSON, ("idempotency-key", key)],
            plan.to_string(),
        ))
    };
    assert_eq!(send(&plan, "k").await.status, 201);
    assert_eq!(send(&plan, "k").await.status, 200);
    plan["idempotency_key"] = json!("other");
    let answer = send(&plan, "k").await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (409, "key_reused"));
    assert_eq!(answer.json()["errors"][0]["pointer"], "/idempotency_key");
    let long = "x".repeat(256);
    assert_eq!(send(&chain(&["b"]), &long).await.status, 422);
    assert_eq!(send(&chain(&["b"]), &long[1..]).await.status, 201);
}

#[tokio::test]
async fn a_burst_under_one_key_makes_one_task() {
    let world = World::open().await;
    let mut plan = chain(&["a"]);
    plan["idempotency_key"] = json!("k");
    let answers = futures::future::join_all((0..100).map(|_| world.post("/v1/tasks", &plan))).await;
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    let ids: std::collections::BTreeSet<String> =
        answers.iter().map(|answer| answer.json()["id"].to_string()).collect();
    assert_eq!((created, ids.len()), (1, 1));
}

#[tokio::test]
async fn every_fault_is_named_at_its_place() {
    let world = World::open().await;
    let plan = json!({
        "kind": "a/b",
        "steps": [{"id": "..", "uses": "echo"}, {"id": "b", "uses": "nobody", "needs": ["x"]}],
    });
    let answer = world.post("/v1/tasks", &plan).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (422, "invalid_plan"));
    let errors = answer.json()["errors"].clone();
    let places: Vec<&str> =
        errors.as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
    for place in ["/kind", "/steps/0/id", "/steps/1/needs/0", "/steps/1/uses"] {
        assert!(places.contains(&place), "{place} in {places:?}");
    }
}

#[tokio::test]
async fn what_json_cannot_carry_is_refused_by_name() {
    let world = World::open().await;
    let wrap = |value: &str| {
        let steps = r#""steps":[{"id":"a","uses":"echo"}]"#;
        format!(r#"{{"kind":"k","input":{{"a":[{{"b":{value}}}]}},{steps}}}"#)
    };
    let deep = "[".repeat(70) + &"]".repeat(70);
    for value in
        ["NaN", "Infinity", "-Infinity", "1e400", "18446744073709551616", r#""\ud800""#, &deep]
    {
        let answer = world.send(request("POST", "/v1/tasks", &[JSON], wrap(value))).await;
        assert_eq!(answer.status, 400, "{value}: {}", answer.json());
        assert_eq!(answer.problem(), "invalid_json", "{value}");
    }
    let twice = r#"{"kind":"k","kind":"k","steps":[]}"#;
    let answer = world.send(request("POST", "/v1/tasks", &[JSON], twice)).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["errors"][0]["pointer"].clone()),
        (400, json!("/kind"))
    );
    assert_eq!(world.get("/v1/tasks").await.json()["tasks"], json!([]));
}

#[tokio::test]
async fn a_body_has_limits_and_a_type() {
    let world = World::open().await;
    let plan = chain(&["a"]).to_string();
    for (headers, body, status) in [
        (&[JSON][..], "x".repeat(2 << 20), 413),
        (&[][..], plan.clone(), 415),
        (&[("content-type", "text/plain")][..], plan.clone(), 415),
        (&[("content-type", "application/x-www-form-urlencoded")][..], plan, 415),
        (&[JSON][..], String::new(), 400),
        (&[JSON][..], "[]".to_owned(), 422),
    ] {
        let answer = world.send(request("POST", "/v1/tasks", headers, body)).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.json());
        assert_eq!(answer.headers["content-type"], "application/problem+json");
    }
}

#[tokio::test]
async fn a_plan_is_measured_without_its_envelope() {
    let world = World::open().await;
    let padded = |bytes: usize| {
        let mut plan = chain(&["a"]);
        let frame = plan.to_string().len() + r#","input":{"x":""}"#.len();
        plan["input"] = json!({"x": "x".repeat(bytes - frame)});
        assert_eq!(plan.to_string().len(), bytes);
        plan
    };
    let max = standfast_domain::json::PLAN_BYTES_MAX;
    assert_eq!(world.post("/v1/tasks", &json!({"plan": padded(max)})).await.status, 201);
    assert_eq!(world.post("/v1/tasks", &json!({"plan": padded(max + 1)})).await.status, 413);
    assert_eq!(world.post("/v1/tasks", &padded(max + 1)).await.status, 413);
}

#[tokio::test]
async fn values_come_back_as_they_went_in() {
    let world = World::open().await;
    let values = r#"{"empty":[],"in":{"a":[]},"big":9007199254740993,"one":1.0,"huge":1e308,
        "min":-9223372036854775808,"max":18446744073709551615,"nul":"\u0000","emoji":"🦀",
        "aa":1,"b":2,"html":"<script>alert(1)</script>\"'&"}"#;
    let values: Value = serde_json::from_str(values).unwrap();
    let mut plan = chain(&["a"]);
    plan["steps"][0]["with"] = values.clone();
    plan["goal"] = json!("<img src=x onerror=alert(1)> \u{202e}");
    let task = world.submit(&plan).await;
    let claim = world.claim().await;
    assert_eq!(claim["input"], values);
    let done = world.complete(&claim, json!({"status": "succeeded", "output": values})).await;
    assert_eq!((done.status.as_u16(), done.json()["state"].clone()), (200, json!("succeeded")));
    let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await;
    assert_eq!(step.json()["output"], values);
    assert!(String::from_utf8_lossy(&step.body).contains("18446744073709551615"));
    let view = world.get(&format!("/v1/tasks/{task}")).await;
    assert_eq!(view.json()["goal"], plan["goal"]);
    assert_eq!(view.headers["content-type"], "application/json");
    assert_eq!(view.headers["x-content-type-options"], "nosniff");
}
