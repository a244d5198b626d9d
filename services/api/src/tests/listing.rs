//! Listing: filters, pages while tasks come and change, cursors that belong elsewhere.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{World, chain};

/// Walks all pages; calls `between` after each.
async fn walk(world: &World, query: &str, between: impl AsyncFn(usize)) -> BTreeMap<String, u32> {
    let mut seen = BTreeMap::new();
    let mut cursor = String::new();
    for page in 0..1_000 {
        let answer = world.get(&format!("/v1/tasks?{query}{cursor}")).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        for task in answer.json()["tasks"].as_array().unwrap() {
            *seen.entry(task["id"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        match answer.json()["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen,
        }
        between(page).await;
    }
    panic!("the list does not end");
}

async fn submit_many(world: &World, count: usize, edit: impl Fn(usize, &mut Value)) -> Vec<String> {
    let plans: Vec<Value> = (0..count)
        .map(|n| {
            let mut plan = chain(&["a"]);
            plan["input"] = json!({"n": n});
            edit(n, &mut plan);
            plan
        })
        .collect();
    futures::future::join_all(plans.iter().map(|plan| world.submit(plan))).await
}

#[tokio::test]
async fn pages_give_every_task_once_while_others_come_and_change() {
    let world = World::open().await;
    let tasks = submit_many(&world, 80, |_, _| {}).await;
    let seen = walk(&world, "limit=7", async |page| {
        submit_many(&world, 3, |_, _| {}).await;
        let path = format!("/v1/tasks/{}/stop", tasks[page]);
        world.post(&path, &json!({"mode": "halt"})).await;
    })
    .await;
    for task in &tasks {
        assert_eq!(seen.get(task), Some(&1), "{task}");
    }
    assert!(seen.values().all(|times| *times == 1));
}

#[tokio::test]
async fn a_list_is_newest_first() {
    let world = World::open().await;
    submit_many(&world, 30, |_, _| {}).await;
    let page = world.get("/v1/tasks?limit=200").await.json();
    let times: Vec<&str> = page["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["created_at"].as_str().unwrap())
        .collect();
    assert_eq!(times.len(), 30);
    assert!(times.is_sorted_by(|a, b| a >= b));
    assert_eq!(page["next_cursor"], Value::Null);
}

#[tokio::test]
async fn filters_are_all_checked() {
    let world = World::open().await;
    submit_many(&world, 20, |n, plan| {
        plan["kind"] = json!(if n % 2 == 0 { "even" } else { "odd" });
        plan["labels"] = json!({"third": (n % 3).to_string()});
        plan["owner"] = json!(if n < 10 { "user:ana" } else { "user:ben" });
    })
    .await;
    for (query, count) in [
        ("kind=even", 10),
        ("kind=even&label=third=0", 4),
        ("kind=even&label=third=0&owner=user:ana", 2),
        ("state=queued", 20),
        ("state=completed", 0),
        ("label=third=0&label=third=1", 0),
        ("created_before=2020-01-01T00:00:00Z", 0),
        ("created_after=2020-01-01T00:00:00Z", 20),
    ] {
        assert_eq!(
            walk(&world, &format!("limit=3&{query}"), async |_| {}).await.len(),
            count,
            "{query}"
        );
    }
}

#[tokio::test]
async fn a_cursor_of_another_list_is_refused() {
    let world = World::open().await;
    submit_many(&world, 9, |_, _| {}).await;
    let page = world.get("/v1/tasks?limit=2&state=queued").await.json();
    let cursor = page["next_cursor"].as_str().unwrap();
    assert_eq!(
        world.get(&format!("/v1/tasks?limit=5&state=queued&cursor={cursor}")).await.status,
        200
    );
    for path in [
        format!("/v1/tasks?cursor={cursor}"),
        format!("/v1/tasks?state=running&cursor={cursor}"),
        format!("/v1/tasks?state=queued&cursor={}", &cursor[2..]),
        "/v1/tasks?cursor=garbage".to_owned(),
    ] {
        let answer = world.get(&path).await;
        assert_eq!(
            (answer.status.as_u16(), answer.problem().as_str()),
            (400, "bad_cursor"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn limits_and_unknown_filters_are_refused() {
    let world = World::open().await;
    for query in
        ["limit=0", "limit=-1", "limit=1000000000", "limit=x", "stat=queued", "created_after=now"]
    {
        assert_eq!(world.get(&format!("/v1/tasks?{query}")).await.status, 422, "{query}");
    }
}

#[tokio::test]
async fn steps_come_in_the_order_of_the_plan_with_finally_last() {
    let world = World::open().await;
    let mut plan = chain(&["c", "a", "b", "z", "y"]);
    plan["finally"] = json!([{"id": "tidy", "uses": "echo"}]);
    let task = world.submit(&plan).await;
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = world.get(&format!("/v1/tasks/{task}/steps?limit=2{cursor}")).await.json();
        let steps = page["steps"].as_array().unwrap();
        names.extend(steps.iter().map(|step| step["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["c", "a", "b", "z", "y", "tidy"]);
    let other = world.submit(&chain(&["a", "b"])).await;
    let answer = world.get(&format!("/v1/tasks/{other}/steps?limit=2{cursor}")).await;
    assert_eq!(answer.problem(), "bad_cursor");
}

#[tokio::test]
async fn a_stop_of_a_task_whose_end_is_decided_is_refused_and_says_so() {
    let world = World::open().await;
    let mut plan = chain(&["a"]);
    plan["finally"] = json!([{"id": "tidy", "uses": "echo"}]);
    plan["deadline"] = json!({"in": "1h", "then": "fail"});
    let task = world.submit(&plan).await;
    let path = format!("/v1/tasks/{task}");
    assert!(world.get(&path).await.json()["deadline"].is_string());
    let claim = world.claim().await;
    world.complete(&claim, json!({"status": "succeeded", "output": {}})).await;
    let last = world.claim().await;
    assert_eq!(last["step"], "tidy");
    for (path, body) in [
        (format!("{path}/stop"), json!({"mode": "halt"})),
        (format!("{path}/steps/a/answers"), json!({"answer": "stop"})),
    ] {
        let refused = world.post(&path, &body).await;
        assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (409, "not_applicable"));
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(
            detail.contains("it will be completed once its `finally` steps are done"),
            "{detail}"
        );
    }
    assert_eq!(world.get(&path).await.json()["deadline"], serde_json::Value::Null);
    world.complete(&last, json!({"status": "succeeded", "output": {}})).await;
    assert_eq!(world.get(&path).await.json()["state"], "completed");
}

#[tokio::test]
async fn what_waits_is_listed_by_reason_the_longest_wait_first_and_once() {
    let world = World::open().await;
    let mut failed = Vec::new();
    for _ in 0..5 {
        let plan = json!({"kind": "test", "steps": [
            {"id": "a", "uses": "echo", "retry": {"max_attempts": 1}},
            {"id": "b", "uses": "echo", "retry": {"max_attempts": 1}},
        ]});
        failed.push(world.submit(&plan).await);
        for _ in 0..2 {
            let claim = world.claim().await;
            let outcome = json!({"status": "failed", "class": "permanent", "message": "no"});
            assert_eq!(world.complete(&claim, outcome).await.status, 200);
        }
    }
    world.submit(&chain(&["free"])).await;
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for _ in 0..20 {
        let path = format!("/v1/tasks?waiting=failures&limit=2{cursor}");
        let page = world.get(&path).await.json();
        let tasks = page["tasks"].as_array().unwrap().iter();
        seen.extend(tasks.map(|task| task["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, failed, "each once, although two steps of it are held");
    let count = async |query: &str| {
        let page = world.get(&format!("/v1/tasks?{query}")).await.json();
        page["tasks"].as_array().unwrap_or_else(|| panic!("{page}")).len()
    };
    assert_eq!(count("waiting=any&older_ms=0").await, 5);
    assert_eq!(count("waiting=any&older_ms=3600000").await, 0);
    assert_eq!(count("older_ms=0").await, 5);
    assert_eq!(count("older_ms=3600000").await, 0);
    assert_eq!(count("waiting=any&as_of=2020-01-01T00:00:00Z").await, 0);
    let to = json!({"to": "user:ben"});
    world.post(&format!("/v1/tasks/{}/hand-over", failed[1]), &to).await;
    assert_eq!(count("waiting=any&owner=user:ben").await, 1, "who owns it now counts");
    assert_eq!(count("waiting=uncertain_effect").await, 0);
    assert_eq!(count("waiting=failures&state=completed").await, 0);
    world.post(&format!("/v1/tasks/{}/stop", failed[0]), &json!({})).await;
    assert_eq!(count("waiting=failures").await, 4, "a stop ends what holds");
    for query in
        ["waiting=nobody", "as_of=2020-01-01T00:00:00Z", "older_ms=x", "older_ms=5&as_of=x"]
    {
        assert_eq!(world.get(&format!("/v1/tasks?{query}")).await.status, 422, "{query}");
    }
}
