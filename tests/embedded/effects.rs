//! Effects of the shipped worker: sent once, kept, checked, or held for a person.

use std::path::Path;

use serde_json::{Value, json};
use standfast_domain::decide::Command;
use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::record::{
    Effect, EffectClass, Key, MAIN_EFFECT, Payload, Record, Standing, Status, TaskState,
};
use standfast_tests::embedded::World;
use standfast_tests::outside::Outside;
use standfast_tests::wait;

async fn world(directory: &Path) -> World {
    let mut world = World::open(directory).await;
    world.work(&["default"], 2);
    world.schedule();
    world
}

fn post(url: &str, fields: Value) -> Value {
    let mut pay = json!({ "id": "pay", "uses": "http", "timeout": { "attempt": "20s" },
                          "with": { "url": url, "method": "POST", "body": { "eur": 120 } },
                          "retry": { "max_attempts": 3, "backoff": "10ms" } });
    pay.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "kind": "refund", "steps": [
        pay,
        { "id": "close", "uses": "exec", "needs": ["pay"], "with": { "command": ["echo", "done"] } }
    ] })
}

async fn effect(world: &World, task: &TaskId) -> Option<Effect> {
    let key = Key::Effects(StepId::new("pay").unwrap());
    let read = world.engine.read(task, std::slice::from_ref(&key)).await.unwrap().remove(&key);
    match read.flatten() {
        Some(Record::Effects(mut effects)) => effects.remove(MAIN_EFFECT),
        _ => None,
    }
}

async fn hold(world: &World, task: &TaskId) -> Option<HoldReason> {
    match world.step(task, "pay").await?.status {
        Status::Held { hold } => Some(hold.reason),
        _ => None,
    }
}

fn answer(answer: Answer, receipt: Option<Value>) -> Command {
    let step = Some(StepId::new("pay").unwrap());
    let receipt = receipt.map(Payload::Inline);
    Command::Answer { step, answer, note: None, effect: None, receipt }
}

/// Ends the claim of `pay` as a scheduler does once its worker was silent for long enough.
async fn lose(world: &World, task: &TaskId, outside: &Outside) {
    wait::until("the request to be under way", async || (outside.sent("POST") > 0).then_some(()))
        .await;
    let attempt = world.step(task, "pay").await.unwrap().attempt;
    let step = StepId::new("pay").unwrap();
    let lost = Command::ExpireClaim { step, attempt, proven: true };
    assert!(world.command(task, lost).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_is_sent_once_and_its_answer_is_the_receipt() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let outside = Outside::new(|_, _| Some(201)).await;
    let task = world.submit(post(&outside.url, json!({}))).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((header.effects_landed, header.effects_owed), (1, 0));
    let effect = effect(&world, &task).await.unwrap();
    assert_eq!(effect.class, EffectClass::Irreversible);
    assert!(matches!(effect.standing, Standing::Landed { output_round: Some(1), .. }));
    let sent = outside.all();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].contains(&format!("idempotency-key: {task}/pay/main/1")), "{sent:?}");
    let recorded = |change: &Change| matches!(change, Change::EffectIntended { .. });
    assert!(world.events(&task).await.iter().any(|event| recorded(&event.change)));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_without_an_answer_waits_for_a_person_and_goes_on_without_sending_again() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let outside = Outside::new(|_, _| None::<u16>).await;
    let task = world.submit(post(&outside.url, json!({}))).await.unwrap();
    lose(&world, &task, &outside).await;
    let header = world.wait(&task, &[TaskState::Blocked]).await;
    assert_eq!(hold(&world, &task).await, Some(HoldReason::UncertainEffect));
    assert_eq!(header.effects_owed, 1);
    let happened = answer(Answer::Happened, Some(json!({ "id": "re_9" })));
    assert!(world.command(&task, happened).await.unwrap());
    world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!(outside.sent("POST"), 1);
    assert_eq!(world.output(&task, "pay").await, Some(json!({ "id": "re_9" })));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn not_happened_sends_the_stored_request_under_the_same_key() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let outside = Outside::new(|_, number| (number > 1).then_some(200)).await;
    let short = json!({ "timeout": { "attempt": "1s" } });
    let task = world.submit(post(&outside.url, short)).await.unwrap();
    world.wait(&task, &[TaskState::Blocked]).await;
    assert_eq!(hold(&world, &task).await, Some(HoldReason::UncertainEffect), "a time-out too");
    world.command(&task, answer(Answer::NotHappened, None)).await.expect_err("it may be under way");
    wait::until("the request to be settled", async || {
        world.command(&task, answer(Answer::NotHappened, None)).await.ok()
    })
    .await;
    world.wait_verified(&task, TaskState::Completed).await;
    let sent = outside.all();
    let key = format!("idempotency-key: {task}/pay/main/1");
    assert!(sent.len() == 2 && sent.iter().all(|head| head.contains(&key)), "{sent:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_post_is_no_effect_and_is_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let outside = Outside::new(|_, number| Some(if number < 3 { 429 } else { 200 })).await;
    let task = world.submit(post(&outside.url, json!({}))).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((outside.sent("POST"), header.effects_landed), (3, 1));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_without_an_answer_is_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let outside = Outside::new(|_, number| (number > 1).then_some(200)).await;
    let with = json!({ "url": outside.url, "method": "PUT", "body": "x" });
    let fields = json!({ "with": with, "timeout": { "attempt": "1s" } });
    let task = world.submit(post(&outside.url, fields)).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((outside.sent("PUT"), header.effects_landed, header.effects_owed), (2, 1, 0));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkable_effect_is_asked_about_instead_of_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    for (found, posts) in [(200, 1), (404, 2)] {
        let outside = Outside::new(move |head, number| match head.starts_with("GET") {
            true => Some(found),
            false => (number > 1).then_some(201),
        })
        .await;
        let check = json!({ "uses": "http", "with": { "url": format!("{}/paid", outside.url) } });
        let fields = json!({ "effect": { "class": "checkable", "check": check },
                             "timeout": { "attempt": "1s" } });
        let task = world.submit(post(&outside.url, fields)).await.unwrap();
        let header = world.wait_verified(&task, TaskState::Completed).await;
        assert_eq!((outside.sent("GET"), outside.sent("POST")), (1, posts), "check says {found}");
        assert_eq!((header.effects_landed, header.effects_owed), (1, 0));
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_declared_irreversible_that_fails_needs_a_person_unless_it_says_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let says = |effect: &str| {
        format!(
            "echo '{{\"error\":{{\"class\":\"retryable\",\"message\":\"no\",\
             \"effect\":\"{effect}\"}}}}' > $STANDFAST_OUTCOME"
        )
    };
    let first_only = "test -e tried || test $STANDFAST_ATTEMPT -gt 1 && exit 0;";
    for (script, blocked) in [
        ("exit 3".to_owned(), true),
        (format!("{first_only} {}", says("not_happened")), false),
        (format!("{first_only} {}", says("unknown")), true),
    ] {
        let fields = json!({ "uses": "exec", "effect": { "class": "irreversible" },
                             "with": { "command": ["sh", "-c", script] } });
        let task = world.submit(post("", fields)).await.unwrap();
        let states = [TaskState::Blocked, TaskState::Completed];
        let header = world.wait(&task, &states).await;
        assert_eq!(header.state == TaskState::Blocked, blocked, "{script}");
        let hold = hold(&world, &task).await;
        assert_eq!(hold, blocked.then_some(HoldReason::UncertainEffect), "{script}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redone_post_keeps_its_receipt() {
    let directory = tempfile::tempdir().unwrap();
    let world = world(directory.path()).await;
    let outside = Outside::new(|_, _| Some(200)).await;
    let mut plan = post(&outside.url, json!({}));
    let script = "test $STANDFAST_ROUND -gt 1";
    plan["steps"][1]["with"] = json!({ "command": ["sh", "-c", script] });
    plan["steps"][1]["retry"] = json!({ "max_attempts": 1 });
    plan["steps"][1]["on_failure"] = json!({ "redo": "pay", "max": 1 });
    let task = world.submit(plan).await.unwrap();
    let header = world.wait_verified(&task, TaskState::Completed).await;
    assert_eq!((outside.sent("POST"), header.effects_landed), (1, 1));
    assert_eq!(world.step(&task, "pay").await.unwrap().round, 2);
    world.close().await;
}
