//! A request without an answer: what a person is told, and what happens without one.

use std::sync::Arc;

use serde_json::{Value, json};
use standfast_protocol::task_effects::{EffectQuery, EffectStanding};
use standfast_protocol::tasks::TaskState;
use standfast_tests::fleet::Process;
use standfast_tests::outside::{Answer, Outside};
use standfast_tests::processes::Installation;
use standfast_tests::services::amqp_url;
use standfast_tests::wait;
use tokio::sync::Notify;

const WORKER: [&str; 2] = ["worker", "--allow-private-addresses"];

/// A refund: an amount is reserved, paid back and told, and only paying gets no answer at once.
fn refund(outside: &Outside) -> Value {
    let http = |id: &str, needs: &[&str], method: &str| {
        json!({ "id": id, "uses": "http", "needs": needs, "timeout": { "attempt": "60s" },
                "with": { "url": format!("{}/{id}", outside.url), "method": method } })
    };
    let exec = |id: &str, needs: &[&str]| json!({ "id": id, "uses": "exec", "needs": needs, "with": { "command": ["echo", id] } });
    json!({ "kind": "refund", "steps": [
        exec("open", &[]),
        http("reserve", &["open"], "PUT"),
        http("pay", &["reserve"], "POST"),
        http("mail", &["pay"], "POST"),
        exec("close", &["mail"]),
    ]})
}

/// Waits until the request is under way, and gives the worker that sent it.
async fn under_way(own: &Installation, outside: &Outside, task: &str) -> String {
    wait::until("the request to come", async || (outside.sent("POST /pay ") > 0).then_some(()))
        .await;
    let effects = own.client().effects(task, &EffectQuery::default()).await.unwrap().effects;
    let pay = effects.iter().find(|effect| effect.step == "pay").unwrap();
    assert_eq!(pay.standing, EffectStanding::InFlight);
    pay.worker.clone()
}

/// Waits until a person is needed.
async fn blocked(own: &Installation, task: &str) {
    let client = own.client();
    let view = wait::until("the task to be blocked", async || {
        client.get(task).await.ok().filter(|view| view.state == TaskState::Blocked)
    })
    .await;
    assert_eq!(view.holds[0].reason, "uncertain_effect");
}

/// Asserts that a text has these parts in this order.
fn says(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("no `{part}` in its place in\n{text}"));
        rest = &rest[at + part.len()..];
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_after_sending_leaves_a_hold_that_says_all_a_person_needs() {
    let own = Installation::start_synced(&amqp_url(), "5s").await;
    let outside = Outside::new(|head, _| (!head.starts_with("POST /pay ")).then_some(201)).await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let mut worker = own.process(&WORKER);
    let task = own.client().submit(refund(&outside)).await.unwrap().id;
    let silent = under_way(&own, &outside, &task).await;
    worker.kill();
    let _heir = own.process(&WORKER);
    blocked(&own, &task).await;

    let text = own.run(&["explain", "--url", &own.url(), &task], 0);
    let url = &outside.url;
    says(
        &text,
        &[
            &format!("refund {task} · blocked: uncertain_effect since "),
            "· owner user:operator\n",
            "1 Stands    step 3 of 5 `pay`; 2 succeeded, 1 held, 2 pending · 3 attempts, $0.00\n",
            &format!("2 Why       POST {url}/pay may have been sent from "),
            &format!("(attempt 1, worker {silent}).\n"),
            "The worker fell silent and lost the attempt at ",
            "no answer kept.\n",
            "Whether it happened cannot be known from here; it is not sent again by itself. \
             No deadline.\n",
            "user:operator",
            &format!("can end it. Look for key {task}/pay/main/1, then one of:\n"),
            &format!("standfast answer {task}/pay happened --receipt '{{…}}'"),
            &format!("standfast answer {task}/pay not_happened "),
            "(takes it as not done; `pay` sends the stored request, under the same key; taken from ",
            "the receipt is the answer as `http` gives it: {\"status\": 201, \"body\": …}\n",
            "3 Next      happened: mail, close · not_happened: pay, mail, close\n",
            &format!("4 Landed    reserve: PUT {url}/reserve at "),
            "· receipt {",
            "5 Open      staged: mail · in flight: none · uncertain: pay\n",
            "6 Stop now  halt: nothing more starts or is sent; told to end: none · ",
            "will not happen: pay, mail, close · stays: reserve · stays to be settled: pay\n",
            &format!("standfast stop {task} --mode halt --digest "),
        ],
    );

    let answer = format!("{task}/pay");
    let url = own.url();
    let happened = |receipt: &'static str| {
        ["answer", answer.as_str(), "happened", "--receipt", receipt, "--url", url.as_str()]
    };
    let text = own.run(&happened(r#"{"id":"re_9"}"#), 1);
    says(&text, &["/receipt", r#"{"status": 201, "body": {"#]);
    own.run(&happened(r#"{"status":201,"body":{"id":"re_9"}}"#), 0);
    own.completed(std::slice::from_ref(&task)).await;
    let pay = own.client().step(&task, "pay").await.unwrap();
    assert_eq!(pay.output, Some(json!({ "status": 201, "body": { "id": "re_9" } })));
    assert_eq!((outside.sent("POST /pay "), outside.sent("POST /mail ")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_after_the_take_over_is_taken_and_nobody_is_needed() {
    let own = Installation::start_synced(&amqp_url(), "5s").await;
    let answer = Arc::new(Notify::new());
    let told = answer.clone();
    let outside = Outside::new(move |head, _| match head.starts_with("POST /pay ") {
        true => {
            let told = told.clone();
            Answer::After(Box::pin(async move { told.notified().await }), 201)
        }
        false => Answer::Status(201),
    })
    .await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let frozen = Process::start(&own, "frozen", &WORKER, &[]);
    let task = own.client().submit(refund(&outside)).await.unwrap().id;
    under_way(&own, &outside, &task).await;
    frozen.signal("STOP");
    let _heir = own.process(&WORKER);
    blocked(&own, &task).await;
    frozen.signal("CONT");
    answer.notify_one();
    own.completed(std::slice::from_ref(&task)).await;

    let effects = own.client().effects(&task, &EffectQuery::default()).await.unwrap().effects;
    assert!(effects.iter().all(|effect| effect.standing == EffectStanding::Landed), "{effects:?}");
    let of = |event: &standfast_protocol::events::EventView| event.actor == "user:operator";
    let by_person = own.events(&task).await.into_iter().filter(of).count();
    assert_eq!(by_person, 1, "the submission, and no answer");
    let pay = own.client().step(&task, "pay").await.unwrap();
    assert_eq!(pay.output.unwrap()["status"], 201);
    assert_eq!((outside.sent("POST /pay "), outside.sent("POST /mail ")), (1, 1));
}
