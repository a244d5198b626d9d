//! Effects of handlers: what is sent, told and reported, whatever the api answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use standfast_protocol::effects::{EffectEnd, IntentAnswer, NotLanded};
use standfast_sdk::testing::{Attempt, run_handler};
use standfast_sdk::{Context, EffectClass, HandlerError, SendError};
use tokio::sync::Notify;

use crate::support::{Answer, Call, ok, problem};
use crate::worker::{api, plain, run_until, worker};

const INTENT: &str = "/effects/pay";
const RECEIPT: &str = "/effects/pay/receipt";
const NOT_LANDED: &str = "/effects/pay/not-landed";

fn send() -> Answer {
    ok(json!({"do": "send", "key": "t/s/pay/1"}))
}

fn settled(call: &Call) -> Option<Answer> {
    (call.is(RECEIPT) || call.is(NOT_LANDED)).then(|| ok(json!({"state": "running"})))
}

/// A handler that pays and counts how often.
async fn pay(context: Context, sent: Arc<AtomicUsize>) -> Result<Value, HandlerError> {
    let class = EffectClass::Irreversible;
    let effect = context.effect("pay", class, json!({"amount": 10}), |request, key| async move {
        sent.fetch_add(1, Ordering::SeqCst);
        Ok(json!({"request": request, "key": key}))
    });
    effect.says("Pays 10 €").await
}

#[tokio::test]
async fn an_effect_is_intended_sent_with_its_key_and_told() {
    let api = api(plain, |call| call.is(INTENT).then(send).or_else(|| settled(call)));
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let handler = move |context: Context, _: Value| pay(context, Arc::clone(&counted));
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    let receipt = json!({"request": {"amount": 10}, "key": "t/s/pay/1"});
    assert_eq!(calls[0].json()["outcome"]["output"], receipt);
    let intent = api.calls(INTENT)[0].json();
    assert_eq!(intent["class"], "irreversible");
    assert_eq!(intent["request"], json!({"amount": 10}));
    assert_eq!((&intent["window_ms"], &intent["says"]), (&json!(10_000), &json!("Pays 10 €")));
    assert_eq!(api.calls(RECEIPT)[0].json()["receipt"], receipt);
    assert_eq!((sent.load(Ordering::SeqCst), api.calls(NOT_LANDED).len()), (1, 0));
}

#[tokio::test]
async fn a_receipt_is_told_until_it_is_heard_and_before_the_outcome() {
    let api = api(plain, |call| match call.is(RECEIPT) && call.before < 2 {
        true => Some(problem(503, "unavailable")),
        false => call.is(INTENT).then(send).or_else(|| settled(call)),
    });
    let handler = |context: Context, _: Value| pay(context, Arc::default());
    run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(api.calls(RECEIPT).len(), 3);
}

#[tokio::test]
async fn a_kept_effect_is_not_sent() {
    let kept = || ok(json!({"do": "kept", "receipt": {"id": "p-7"}}));
    let api = api(plain, move |call| call.is(INTENT).then(kept));
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let handler = move |context: Context, _: Value| pay(context, Arc::clone(&counted));
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["output"], json!({"id": "p-7"}));
    assert_eq!((sent.load(Ordering::SeqCst), api.calls(RECEIPT).len()), (0, 0));
}

#[tokio::test]
async fn an_answer_after_the_window_is_not_for_sending() {
    let api = api(plain, |call| call.is(INTENT).then(send).or_else(|| settled(call)));
    let handler = |context: Context, _: Value| async move {
        // No answer comes within no time.
        let class = EffectClass::Irreversible;
        let effect = context.effect("pay", class, 1, |_, _| async { Ok("sent".to_owned()) });
        effect.window(Duration::ZERO).await
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    let outcome = &calls[0].json()["outcome"];
    assert_eq!(outcome["class"], "retryable", "{outcome}");
    assert_eq!(api.calls(INTENT).len(), api.calls(NOT_LANDED).len());
    assert!(api.calls(INTENT).len() > 1, "it asks again");
    assert_eq!(api.calls(NOT_LANDED)[0].json()["how"], "not_sent");
}

#[tokio::test]
async fn an_attempt_that_the_api_has_ended_reports_nothing() {
    let ended = || ok(json!({"do": "ended"}));
    let api = api(plain, move |call| call.is(INTENT).then(ended));
    let handler = |context: Context, _: Value| async move {
        let error = pay(context.clone(), Arc::default()).await.unwrap_err();
        assert!(context.is_cancelled(), "{error}");
        Ok(()) // whatever it says
    };
    // The worker asks for the next step only once the first is done with.
    run_until(&api, worker(&api).handler("h", handler), "/claims", 2).await;
    assert_eq!(api.calls("/complete").len() + api.calls("/hand-back").len(), 0);
}

#[tokio::test]
async fn a_stopped_handler_has_its_request_answered_and_its_receipt_told() {
    // The stop comes with the first heartbeat, the answer of the outside world so many of them
    // later that a handler which does not listen would be dropped before.
    const BEATS: usize = 270;
    let answered = Arc::new(Notify::new());
    let answer = Arc::clone(&answered);
    let api = api(plain, move |call| {
        if call.is("/heartbeat") {
            if call.before == BEATS {
                answer.notify_one();
            }
            return Some(ok(json!({"stop": true, "expires_ms": 60_000})));
        }
        call.is(INTENT).then(send).or_else(|| settled(call))
    });
    let handler = move |context: Context, _: Value| {
        let answered = Arc::clone(&answered);
        async move {
            let class = EffectClass::Irreversible;
            let effect = context.effect("pay", class, 1, |_, _| async move {
                answered.notified().await;
                Ok("answered".to_owned())
            });
            effect.await
        }
    };
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(api.calls(RECEIPT)[0].json()["receipt"], "answered");
    assert_eq!(calls[0].json()["outcome"]["output"], "answered");
}

#[tokio::test]
async fn what_is_known_of_a_failure_is_told_and_what_is_not_is_not() {
    let refused = |context: Context, known: bool| async move {
        let class = EffectClass::Irreversible;
        let effect = context.effect("pay", class, 1, |_, _| async move {
            let declined = HandlerError::permanent("declined");
            Err::<(), _>(match known {
                true => SendError::refused(declined),
                false => SendError::unknown(declined),
            })
        });
        effect.await
    };
    let ended = run_handler(refused, true).await;
    assert_eq!(ended.effects["pay"].not_landed, Some(NotLanded::Refused));
    let ended = run_handler(refused, false).await;
    assert_eq!((ended.effects["pay"].not_landed, &ended.effects["pay"].receipt), (None, &None));
    let broken = |context: Context, _: Value| async move {
        let class = EffectClass::Idempotent;
        context.effect("pay", class, 1, |_, _| async { Ok("x".parse::<u32>()?) }).await
    };
    let ended = run_handler(broken, ()).await;
    assert_eq!(ended.effects["pay"].not_landed, None, "`?` claims nothing");
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_dropped_and_uncertain() {
    let slow = |context: Context, _: Value| async move {
        let class = EffectClass::Irreversible;
        let never = |_, _| std::future::pending::<Result<(), SendError>>();
        context.effect("pay", class, 1, never).request_timeout(Duration::from_millis(1)).await
    };
    let ended = run_handler(slow, ()).await;
    assert_eq!((ended.effects["pay"].not_landed, &ended.effects["pay"].receipt), (None, &None));
    assert_eq!(serde_json::to_value(&ended.outcome).unwrap()["class"], "timeout");
}

async fn checked(context: Context, has_happened: bool) -> Result<String, HandlerError> {
    let check = |_, key| async move { Ok(has_happened.then(|| format!("found {key}"))) };
    let send = |request: u32, _| async move { Ok(format!("sent {request}")) };
    context.checkable("pay", 7, check, send).await
}

#[tokio::test]
async fn a_checkable_effect_is_checked_and_sent_only_if_it_has_not_happened() {
    let doubt = || {
        let key = "test/step/pay/1".to_owned();
        Attempt::default().intent("pay", IntentAnswer::Check { key })
    };
    let ended = doubt().run(checked, true).await;
    assert_eq!(ended.output(), Some(&json!("found test/step/pay/1")));
    assert_eq!(ended.effects["pay"].receipt, Some(json!("found test/step/pay/1")));
    let ended = doubt().run(checked, false).await;
    assert_eq!(ended.output(), Some(&json!("sent 7")));
    let ended = run_handler(checked, true).await;
    assert_eq!(ended.output(), Some(&json!("sent 7")), "a first attempt has nothing to check");
    let unchecked = |context: Context, _: Value| async move {
        context.effect("pay", EffectClass::Checkable, 7, |_, _| async { Ok(()) }).await
    };
    let ended = run_handler(unchecked, ()).await;
    assert!(ended.effects.is_empty(), "nothing is intended without its check");
}

#[tokio::test]
async fn a_test_can_say_that_an_effect_is_kept_or_that_the_attempt_is_over() {
    let handler = |context: Context, _: Value| pay(context, Arc::default());
    let ended = Attempt::default().kept("pay", json!("p-7")).run(handler, ()).await;
    assert_eq!(ended.output(), Some(&json!("p-7")));
    let ended = Attempt::default().intent("pay", IntentAnswer::Ended).run(handler, ()).await;
    assert_eq!(ended.effects["pay"].receipt, None);
    assert_eq!(serde_json::to_value(&ended.outcome).unwrap()["class"], "cancelled");
}

#[tokio::test]
async fn a_failure_tells_of_the_declared_effect() {
    let handler = |_: Context, _: Value| async {
        let end = EffectEnd::NotLanded(NotLanded::NotSent);
        Err::<(), _>(HandlerError::retryable("no route").with_effect(end))
    };
    let api = api(plain, |_| None);
    let calls = run_until(&api, worker(&api).handler("h", handler), "/complete", 1).await;
    assert_eq!(calls[0].json()["outcome"]["effect"], json!({"not_landed": "not_sent"}));
}
