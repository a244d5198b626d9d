//! Stopping many tasks by a filter, and one attempt alone.

use serde_json::{Value, json};
use standfast_engine::tokens::Role;

use super::{Answer, JSON, World, chain, request};

async fn submit(world: &World, count: usize, label: &str) -> Vec<String> {
    let mut plan = chain(&["a"]);
    plan["labels"] = json!({ "batch": label });
    futures::future::join_all((0..count).map(|_| world.submit(&plan))).await
}

fn of(label: &str) -> Value {
    json!({ "labels": { "batch": label } })
}

/// Repeats a call with its cursor to the end; gives all pages.
async fn walk(world: &World, path: &str, mut body: Value) -> Vec<Value> {
    let mut pages = Vec::new();
    loop {
        let answer = world.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        pages.push(answer.json());
        match pages[pages.len() - 1].get("next_cursor") {
            Some(cursor) => body["cursor"] = cursor.clone(),
            None => return pages,
        }
    }
}

fn sum(pages: &[Value], field: &str) -> u64 {
    pages.iter().map(|page| page[field].as_u64().unwrap()).sum()
}

fn faults(answer: &Answer) -> Vec<String> {
    let errors = answer.json()["errors"].as_array().cloned().unwrap_or_default();
    errors.iter().map(|fault| fault["pointer"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_filter_stops_what_it_matches_once_and_page_by_page() {
    let world = World::open().await;
    let (mine, other) = (submit(&world, 450, "mine").await, submit(&world, 3, "other").await);
    world.post(&format!("/v1/tasks/{}/stop", mine[7]), &json!({"mode": "halt"})).await;
    let counted = walk(&world, "/v1/stops/count", json!({ "filter": of("mine") })).await;
    assert_eq!(sum(&counted, "tasks"), 449);
    let stop = json!({ "filter": of("mine"), "expected": 449, "reason": "wrong branch" });
    let first = world.post("/v1/stops", &stop).await.json();
    assert!(first["next_cursor"].is_string(), "one page does not hold them: {first}");
    let all = walk(&world, "/v1/stops", stop.clone()).await; // begun anew after a break
    assert_eq!(sum(&all, "stopped") + first["stopped"].as_u64().unwrap(), 449);
    assert_eq!(sum(&all, "already"), first["stopped"].as_u64().unwrap() + 1);
    let again = walk(&world, "/v1/stops", stop).await;
    assert_eq!((sum(&again, "stopped"), sum(&again, "already")), (0, 450));
    let counted = walk(&world, "/v1/stops/count", json!({ "filter": of("mine") })).await;
    assert_eq!(sum(&counted, "tasks"), 0);
    for task in &mine {
        let view = world.get(&format!("/v1/tasks/{task}")).await.json();
        assert!(["cancelling", "cancelled"].contains(&view["state"].as_str().unwrap()), "{view}");
    }
    let view = world.get(&format!("/v1/tasks/{}", mine[9])).await.json();
    assert_eq!(view["stop"]["reason"], "wrong branch");
    for task in &other {
        assert_eq!(world.get(&format!("/v1/tasks/{task}")).await.json()["state"], "queued");
    }
}

#[tokio::test]
async fn more_than_was_counted_is_not_stopped() {
    let world = World::open().await;
    submit(&world, 5, "mine").await;
    let stop = json!({ "filter": of("mine"), "expected": 4 });
    let answer = world.post("/v1/stops", &stop).await;
    assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (409, "not_applicable"));
    let counted = walk(&world, "/v1/stops/count", json!({ "filter": of("mine") })).await;
    assert_eq!(sum(&counted, "tasks"), 5, "nothing was stopped");
    // What comes after the count is left out by its time.
    let bound = counted[0]["now"].clone();
    let mut filter = of("mine");
    filter["created_before"] = bound;
    let count = json!({ "filter": of("other") });
    while world.post("/v1/stops/count", &count).await.json()["now"] == filter["created_before"] {}
    let late = submit(&world, 1, "mine").await;
    let done = walk(&world, "/v1/stops", json!({ "filter": filter, "expected": 5 })).await;
    assert_eq!(sum(&done, "stopped"), 5);
    assert_eq!(world.get(&format!("/v1/tasks/{}", late[0])).await.json()["state"], "queued");
}

/// Submits tasks of which some have a step that failed and waits for a person.
async fn submit_held(world: &World, count: usize, label: &str) -> Vec<String> {
    let tasks = submit(world, count, label).await;
    for _ in 0..count {
        let claim = world.claim().await;
        let outcome = json!({"status": "failed", "class": "permanent", "message": "no"});
        assert_eq!(world.complete(&claim, outcome).await.status, 200);
    }
    tasks
}

#[tokio::test]
async fn a_stop_takes_the_holds_that_a_list_takes() {
    let world = World::open().await;
    let held = submit_held(&world, 250, "held").await;
    let paused = submit(&world, 2, "free").await;
    world.post(&format!("/v1/tasks/{}/pause", paused[0]), &json!({})).await;
    let count = async |filter: Value| {
        let query = ["waiting", "older_ms", "as_of"].map(|name| match &filter[name] {
            Value::Null => String::new(),
            Value::String(text) => format!("&{name}={text}"),
            other => format!("&{name}={other}"),
        });
        let (mut listed, mut cursor) = (0, String::new());
        loop {
            let path = format!("/v1/tasks?limit=200{}{cursor}", query.concat());
            let page = world.get(&path).await.json();
            listed += page["tasks"].as_array().unwrap_or_else(|| panic!("{page}")).len() as u64;
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let pages = walk(&world, "/v1/stops/count", json!({ "filter": filter })).await;
        assert_eq!(sum(&pages, "tasks"), listed, "{filter}");
        listed
    };
    for (filter, found) in [
        (json!({ "waiting": "any" }), 251),
        (json!({ "waiting": "failures" }), 250),
        (json!({ "waiting": "paused" }), 1),
        (json!({ "waiting": "timer" }), 0),
        (json!({ "older_ms": 0 }), 251),
        (json!({ "older_ms": 3_600_000 }), 0),
        (json!({ "waiting": "any", "as_of": "2020-01-01T00:00:00Z" }), 0),
    ] {
        assert_eq!(count(filter.clone()).await, found, "{filter}");
    }
    let mine = json!({ "waiting": "failures", "labels": { "batch": "held" } });
    let stop = json!({ "filter": mine, "expected": 250, "mode": "drain" });
    let first = world.post("/v1/stops", &stop).await.json();
    assert!(first["next_cursor"].is_string(), "one page does not hold them: {first}");
    let rest = walk(&world, "/v1/stops", stop).await; // begun anew: what was stopped waits no more
    assert_eq!(first["stopped"].as_u64().unwrap() + sum(&rest, "stopped"), 250);
    assert_eq!(sum(&rest, "already"), 0);
    let view = world.get(&format!("/v1/tasks/{}", held[249])).await.json();
    assert_eq!(view["stop"]["mode"], "drain", "{view}");
    assert_eq!(count(json!({ "older_ms": 0 })).await, 1, "the paused one was not meant");
    for task in &paused {
        assert!(world.get(&format!("/v1/tasks/{task}")).await.json()["stop"].is_null());
    }
}

#[tokio::test]
async fn what_is_held_after_the_count_is_not_stopped() {
    let world = World::open().await;
    let mut tasks = submit_held(&world, 2, "mine").await;
    let filter = json!({ "waiting": "any" });
    let counted = walk(&world, "/v1/stops/count", json!({ "filter": filter })).await;
    assert_eq!(sum(&counted, "tasks"), 2);
    let mut bound = filter.clone();
    bound["as_of"] = counted[0]["now"].clone();
    let count = json!({ "filter": { "waiting": "timer" } });
    while world.post("/v1/stops/count", &count).await.json()["now"] == bound["as_of"] {}
    tasks.extend(submit_held(&world, 1, "mine").await);
    let refused = world.post("/v1/stops", &json!({ "filter": filter, "expected": 2 })).await;
    assert_eq!(refused.problem(), "not_applicable", "without it there is one too many");
    let done = walk(&world, "/v1/stops", json!({ "filter": bound, "expected": 2 })).await;
    assert_eq!(sum(&done, "stopped"), 2);
    assert!(world.get(&format!("/v1/tasks/{}", tasks[2])).await.json()["stop"].is_null());
}

#[tokio::test]
async fn what_is_wrong_is_named_and_cursors_belong_to_their_stop() {
    let world = World::open().await;
    submit(&world, 450, "mine").await;
    for (path, body, pointer) in [
        ("/v1/stops/count", json!({ "filter": {} }), "/filter"),
        ("/v1/stops", json!({ "filter": {}, "expected": 1 }), "/filter"),
        (
            "/v1/stops",
            json!({ "filter": { "created_after": "monday" }, "expected": 1 }),
            "/filter/created_after",
        ),
        ("/v1/stops/count", json!({ "filter": { "as_of": "2026-01-01T00:00:00Z" } }), "/filter"),
        ("/v1/stops/count", json!({ "filter": { "waiting": "nobody" } }), "/filter/waiting"),
        (
            "/v1/stops",
            json!({ "filter": { "waiting": "any", "as_of": "now" }, "expected": 1 }),
            "/filter/as_of",
        ),
    ] {
        let answer = world.post(path, &body).await;
        assert_eq!(answer.status, 422, "{}", answer.json());
        assert_eq!(faults(&answer), [pointer]);
    }
    for body in [
        json!({ "filter": of("mine") }),
        json!({ "filter": { "status": "queued" }, "expected": 1 }),
        json!({ "filter": of("mine"), "expected": -1 }),
        json!({ "filter": of("mine"), "expected": 1, "mode": "kill" }),
    ] {
        assert_eq!(world.post("/v1/stops", &body).await.status, 422, "{body}");
    }
    let stop = json!({ "filter": of("mine"), "expected": 450 });
    let cursor = world.post("/v1/stops", &stop).await.json()["next_cursor"].clone();
    for other in [
        json!({ "filter": of("other"), "expected": 450, "cursor": cursor }),
        json!({ "filter": of("mine"), "expected": 9_000, "cursor": cursor }),
        json!({ "filter": of("mine"), "expected": 450, "mode": "drain", "cursor": cursor }),
    ] {
        assert_eq!(world.post("/v1/stops", &other).await.problem(), "bad_cursor", "{other}");
    }
}

#[tokio::test]
async fn what_one_may_not_stop_is_named_and_what_one_may_not_see_is_not() {
    let world = World::open().await;
    let ana = world.token(Role::Publisher, "user:ana").await;
    let ben = world.token(Role::Publisher, "user:ben").await;
    let send = async |token: &str, path: &str, body: Value| {
        let bearer = format!("Bearer {token}");
        let headers = [JSON, ("authorization", bearer.as_str())];
        world.send(request("POST", path, &headers, body.to_string())).await
    };
    let mut plan = chain(&["a"]);
    plan["labels"] = json!({ "batch": "shared" });
    send(&ana, "/v1/tasks", plan.clone()).await; // ben does not see this one
    plan["viewers"] = json!(["user:ben"]);
    let seen = send(&ana, "/v1/tasks", plan.clone()).await.json()["id"].clone();
    plan["viewers"] = json!([]);
    send(&ben, "/v1/tasks", plan).await;
    let counted = send(&ben, "/v1/stops/count", json!({ "filter": of("shared") })).await.json();
    assert_eq!(counted["tasks"], 1);
    assert_eq!(counted["refused"][0]["id"], seen);
    assert!(counted["refused"][0]["why"].as_str().unwrap().contains("owner"), "{counted}");
    let body = json!({ "filter": of("shared"), "expected": 1 });
    let done = send(&ben, "/v1/stops", body).await.json();
    assert_eq!((&done["stopped"], &done["refused"][0]["id"]), (&json!(1), &seen));
    let worker = world.token(Role::Worker, "worker:w").await;
    let body = json!({ "filter": of("shared") });
    assert_eq!(send(&worker, "/v1/stops/count", body).await.status, 403);
}

#[tokio::test]
async fn an_attempt_is_stopped_once_and_its_worker_is_fenced() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    let stop = |step: &str, attempt: &str| {
        let path = format!("/v1/tasks/{task}/steps/{step}/attempts/{attempt}/stop");
        (path, json!({ "reason": "it hangs" }))
    };
    let post = async |(path, body): (String, Value)| world.post(&path, &body).await;
    assert_eq!(post(stop("a", "1")).await.problem(), "not_applicable", "it has not started");
    let claim = world.claim().await;
    let first = post(stop("a", "1")).await.json();
    assert_eq!((&first["stopped"], &first["state"]), (&json!(true), &json!("ready")), "{first}");
    let again = post(stop("a", "1")).await.json();
    assert_eq!((&again["stopped"], &again["state"]), (&json!(false), &json!("ready")));
    let beat = json!({"worker": "w", "attempt": 1, "epoch": 1});
    let path = format!("/v1/claims/{task}/a/heartbeat");
    assert_eq!(world.post(&path, &beat).await.problem(), "fenced");
    assert_eq!(world.complete(&claim, json!({"status": "succeeded"})).await.problem(), "fenced");
    let claim = world.claim().await;
    assert_eq!(claim["attempt"], 2);
    let refused = post(stop("a", "1")).await;
    assert!(refused.json()["detail"].as_str().unwrap().contains("attempt 2 runs now"));
    assert_eq!(world.complete(&claim, json!({"status": "succeeded"})).await.status, 200);
    assert_eq!(post(stop("a", "2")).await.problem(), "not_applicable", "the task has ended");
    for (step, attempt) in [("nobody", "1"), ("a", "0"), ("a", "x")] {
        assert_eq!(post(stop(step, attempt)).await.status, 404, "{step} {attempt}");
    }
    let events = world.get(&format!("/v1/tasks/{task}/events")).await.json();
    let failed = events["events"].as_array().unwrap().iter();
    let failed: Vec<&Value> = failed.filter(|event| event["type"] == "attempt_failed").collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["data"]["message"], "stopped by user:local: it hangs");
    assert_eq!(
        (&failed[0]["data"]["charged"], &failed[0]["actor"]),
        (&json!(false), &json!("user:local"))
    );
}
