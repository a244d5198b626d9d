//! Effects of workers outside: sent once, whoever dies in between.

use serde_json::{Value, json};
use standfast_domain::decide::Command;
use standfast_domain::ids::{Principal, StepId, TaskId};
use standfast_domain::time::Span;
use standfast_engine::tokens::Role;
use standfast_protocol::limits::{EFFECT_BYTES_MAX, SEND_WINDOW_MS_MAX, WORDS_BYTES_MAX};

use super::{Answer, JSON, World, chain, request};

fn path(claim: &Value, rest: &str) -> String {
    let text = |name: &str| claim[name].as_str().unwrap();
    format!("/v1/claims/{}/{}/effects/{rest}", text("task"), text("step"))
}

/// A call on an effect as the claim's worker, with more fields.
fn call(claim: &Value, more: Value) -> Value {
    let mut body = json!({"worker": "w", "attempt": claim["attempt"], "epoch": claim["epoch"]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn intend(world: &World, claim: &Value, class: &str) -> Answer {
    let more = json!({"class": class, "request": {"amount": 10}, "says": "Pays 10 €"});
    world.post(&path(claim, "pay"), &call(claim, more)).await
}

async fn receipt(world: &World, claim: &Value, receipt: Value) -> Answer {
    world.post(&path(claim, "pay/receipt"), &call(claim, json!({"receipt": receipt}))).await
}

async fn not_landed(world: &World, claim: &Value, how: &str) -> Answer {
    world.post(&path(claim, "pay/not-landed"), &call(claim, json!({"how": how}))).await
}

/// A plan of one step that may be tried three times at once.
fn patient() -> Value {
    let mut plan = chain(&["a"]);
    plan["steps"][0]["retry"] = json!({"max_attempts": 3, "backoff": "0s"});
    plan
}

/// Ends a claim as its worker's death does.
async fn die(world: &World, claim: &Value) {
    let task = TaskId::parse(claim["task"].as_str().unwrap()).unwrap();
    let step = StepId::new(claim["step"].as_str().unwrap()).unwrap();
    let attempt = u32::try_from(claim["attempt"].as_u64().unwrap()).unwrap();
    let command = Command::ExpireClaim { step, attempt, proven: true };
    let actor = Principal::local();
    world.api.engine().execute(&task, command, actor, Vec::new()).await.unwrap();
}

async fn holds(world: &World, task: &str) -> Value {
    let view = world.get(&format!("/v1/tasks/{task}")).await.json();
    let each = view["holds"].as_array().unwrap().iter().map(|hold| hold["reason"].clone());
    Value::Array(each.collect())
}

#[tokio::test]
async fn a_late_receipt_ends_the_hold_and_the_next_attempt_sends_nothing() {
    let world = World::open().await;
    let task = world.submit(&patient()).await;
    let first = world.claim().await;
    let key = format!("{task}/a/pay/1");
    for _ in 0..2 {
        let answer = intend(&world, &first, "irreversible").await.json();
        assert_eq!(answer, json!({"do": "send", "key": key}), "a lost answer is given again");
    }
    die(&world, &first).await;
    assert_eq!(holds(&world, &task).await, json!(["uncertain_effect"]));
    for _ in 0..2 {
        let told = receipt(&world, &first, json!({"id": "p-7"})).await;
        assert_eq!((told.status.as_u16(), &told.json()["state"]), (200, &json!("ready")));
    }
    assert_eq!(holds(&world, &task).await, json!([]));
    let second = world.claim().await;
    assert_eq!(second["attempt"], 2);
    let kept = intend(&world, &second, "irreversible").await.json();
    assert_eq!(kept, json!({"do": "kept", "receipt": {"id": "p-7"}}));
    let done = world.complete(&second, json!({"status": "succeeded"})).await;
    assert_eq!(done.json()["state"], "succeeded");
    let again = receipt(&world, &first, json!({"id": "other"})).await;
    assert_eq!(again.status, 200, "{}", again.json());
    let view = world.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!(view["state"], "completed");
    assert_eq!(world.get(&format!("/v1/tasks/{task}/verify")).await.status, 200);
}

#[tokio::test]
async fn after_a_stop_an_intent_ends_the_attempt() {
    let world = World::open().await;
    let task = world.submit(&patient()).await;
    let claim = world.claim().await;
    world.post(&format!("/v1/tasks/{task}/stop"), &json!({"mode": "halt"})).await;
    let answer = intend(&world, &claim, "irreversible").await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"do": "ended"})));
    assert_eq!(intend(&world, &claim, "irreversible").await.problem(), "fenced");
    let step = world.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
    assert_eq!((&step["state"], &step["worker"]), (&json!("cancelled"), &json!("w")));
}

#[tokio::test]
async fn a_receipt_is_taken_after_a_stop_and_under_another_epoch() {
    let world = World::open().await;
    let task = world.submit(&patient()).await;
    let claim = world.claim().await;
    intend(&world, &claim, "irreversible").await;
    world.post(&format!("/v1/tasks/{task}/stop"), &json!({"mode": "halt"})).await;
    die(&world, &claim).await;
    assert_eq!(receipt(&world, &claim, json!("r")).await.status, 200);
    let view = world.get(&format!("/v1/tasks/{task}/events")).await.json();
    let kinds: Vec<&Value> =
        view["events"].as_array().unwrap().iter().map(|e| &e["type"]).collect();
    assert!(kinds.contains(&&json!("effect_landed")), "{kinds:?}");
}

#[tokio::test]
async fn what_was_not_sent_or_checked_is_sent_by_the_next_attempt() {
    let world = World::open().await;
    let task = world.submit(&patient()).await;
    let claim = world.claim().await;
    intend(&world, &claim, "irreversible").await;
    assert_eq!(not_landed(&world, &claim, "not_sent").await.status, 200);
    let again = intend(&world, &claim, "irreversible").await.json();
    assert_eq!(again["do"], "send", "a late answer is asked for again");
    assert_eq!(not_landed(&world, &claim, "refused").await.status, 200);
    let failed = json!({"status": "failed", "class": "retryable", "message": "declined"});
    world.complete(&claim, failed).await;
    assert_eq!(holds(&world, &task).await, json!([]));
    let second = world.claim().await;
    assert_eq!(intend(&world, &second, "irreversible").await.json()["do"], "send");
    let other = json!({"class": "irreversible", "request": {"amount": 11}});
    let refused = world.post(&path(&second, "pay"), &call(&second, other)).await;
    assert_eq!(refused.problem(), "not_applicable", "another request under the same name");
}

#[tokio::test]
async fn a_checkable_effect_is_checked_before_it_is_sent_again() {
    let world = World::open().await;
    world.submit(&patient()).await;
    let first = world.claim().await;
    let more = json!({
        "class": "checkable", "request": {"amount": 10}, "window_ms": 1, "request_timeout_ms": 1,
    });
    world.post(&path(&first, "pay"), &call(&first, more.clone())).await;
    let store = world.api.engine().store();
    let settled = store.now().await.unwrap().after(Span::from_millis(3));
    while store.now().await.unwrap() < settled {} // else the next attempt waits for a timer
    die(&world, &first).await;
    let wait = json!({"worker": "w", "queue": "default", "handlers": ["echo"], "wait_ms": 10_000});
    let second = world.post("/v1/claims", &wait).await.json();
    let ask = call(&second, more);
    let answer = world.post(&path(&second, "pay"), &ask).await.json();
    assert_eq!(answer["do"], "check", "{answer}");
    assert_eq!(not_landed(&world, &second, "checked").await.status, 200);
    let answer = world.post(&path(&second, "pay"), &ask).await.json();
    assert_eq!(answer["do"], "send", "{answer}");
}

#[tokio::test]
async fn a_claim_shows_the_declared_effect_and_a_failure_tells_what_became_of_it() {
    let world = World::open().await;
    let mut plan = patient();
    plan["steps"][0]["effect"] =
        json!({"class": "idempotent", "target": "the bank", "says": "Pays"});
    let task = world.submit(&plan).await;
    let claim = world.claim().await;
    let declared = json!({
        "class": "idempotent", "key": format!("{task}/a/main/1"), "target": "the bank",
        "says": "Pays",
    });
    assert_eq!(claim["effect"], declared);
    let failed = json!({
        "status": "failed", "class": "retryable", "message": "the answer was cut",
        "effect": {"landed": {"id": 7}},
    });
    assert_eq!(world.complete(&claim, failed).await.status, 200);
    let again = world.claim().await;
    assert_eq!(again["effect"]["kept"], json!({"id": 7}));
    let mut second = patient();
    second["steps"][0]["effect"] = json!({"class": "irreversible"});
    world.complete(&again, json!({"status": "succeeded"})).await;
    let task = world.submit(&second).await;
    let claim = world.claim().await;
    let intent = call(&claim, json!({"class": "irreversible"}));
    world.post(&path(&claim, "main"), &intent).await;
    let failed = json!({
        "status": "failed", "class": "retryable", "message": "no route",
        "effect": {"not_landed": "not_sent"},
    });
    world.complete(&claim, failed).await;
    assert_eq!(holds(&world, &task).await, json!([]), "nothing was sent");
}

#[tokio::test]
async fn nobody_speaks_for_another_ones_effect() {
    let world = World::open().await;
    let admin = world.token(Role::Admin, "user:ana").await;
    let one = world.token(Role::Worker, "worker:one").await;
    let two = world.token(Role::Worker, "worker:two").await;
    let send = |path: String, token: &str, body: Value| {
        let token = format!("Bearer {token}");
        let headers = [JSON, ("authorization", token.as_str())];
        world.send(request("POST", &path, &headers, body.to_string()))
    };
    send("/v1/tasks".into(), &admin, patient()).await;
    let ask = json!({"worker": "w", "queue": "default", "handlers": ["echo"]});
    let claim = send("/v1/claims".into(), &one, ask.clone()).await.json();
    let intent = call(&claim, json!({"class": "irreversible", "request": 1}));
    assert_eq!(send(path(&claim, "pay"), &two, intent.clone()).await.problem(), "fenced");
    assert_eq!(send(path(&claim, "pay"), &one, intent).await.json()["do"], "send");
    let (landed, not) =
        (call(&claim, json!({"receipt": 7})), call(&claim, json!({"how": "refused"})));
    let steal = async || {
        for (rest, body) in [("pay/receipt", &landed), ("pay/not-landed", &not)] {
            let answer = send(path(&claim, rest), &two, body.clone()).await;
            assert_eq!(answer.problem(), "fenced", "{rest}: {}", answer.json());
        }
    };
    steal().await;
    die(&world, &claim).await;
    steal().await;
    let told = send(path(&claim, "pay/receipt"), &one, landed.clone()).await;
    assert_eq!((told.status.as_u16(), &told.json()["state"]), (200, &json!("ready")));
    // The next claim is the other worker's, and still the effect is not.
    let next = send("/v1/claims".into(), &two, ask).await.json();
    assert_eq!(next["attempt"], 2);
    steal().await;
}

#[tokio::test]
async fn what_an_intent_may_hold_is_limited() {
    let world = World::open().await;
    world.submit(&patient()).await;
    let claim = world.claim().await;
    let deep = (0..70).fold(json!(1), |inner, _| json!([inner]));
    let long = "x".repeat(WORDS_BYTES_MAX + 1);
    let large = "x".repeat(EFFECT_BYTES_MAX);
    for (more, status) in [
        (json!({"class": "none"}), 422),
        (json!({}), 422),
        (json!({"class": "idempotent", "says": long}), 422),
        (json!({"class": "idempotent", "window_ms": 0}), 422),
        (json!({"class": "idempotent", "window_ms": SEND_WINDOW_MS_MAX + 1}), 422),
        (json!({"class": "idempotent", "request": deep.clone()}), 400),
        (json!({"class": "idempotent", "request": large}), 413),
    ] {
        let answer = world.post(&path(&claim, "pay"), &call(&claim, more)).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.json());
    }
    let more = json!({"class": "idempotent", "request": 1});
    let answer = world.post(&path(&claim, "a%2Fb"), &call(&claim, more)).await;
    assert_eq!(answer.problem(), "not_applicable", "{}", answer.json());
    assert_eq!(receipt(&world, &claim, deep).await.status, 400);
    let unknown = receipt(&world, &claim, json!(1)).await;
    assert_eq!(unknown.problem(), "not_applicable", "{}", unknown.json());
    intend(&world, &claim, "idempotent").await;
    let done = world.complete(&claim, json!({"status": "succeeded"})).await;
    assert_eq!(done.status, 200, "{}", done.json());
}
