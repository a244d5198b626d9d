//! Spans and times over the api: what is accepted is due when it says, the rest is refused.

use serde_json::{Value, json};
use standfast_domain::ids::TaskId;
use standfast_domain::record::TaskState;
use standfast_domain::time::Time;

use crate::support::{Server, embedded, plan, step};

const DAY: i64 = 86_400_000;

fn timer(with: &str) -> String {
    let step = format!(r#"{{"id":"wait","uses":"timer","with":{with}}}"#);
    format!(r#"{{"kind":"timer","steps":[{step}]}}"#)
}

fn at(text: &Value) -> i64 {
    Time::parse_rfc3339(text.as_str().unwrap()).unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_and_times_of_any_size_are_due_when_they_say_or_refused() {
    let (_directory, mut world) = embedded().await;
    let server = Server::start(&world).await;
    world.schedule();
    for with in [
        r#"{"for":"9223372036854775807ms"}"#,
        r#"{"for":"18446744073709551615ms"}"#,
        r#"{"for":9223372036854775807}"#,
        r#"{"for":18446744073709551615}"#,
        r#"{"for":"-1ms"}"#,
        r#"{"for":-1}"#,
        r#"{"for":"NaN"}"#,
        r#"{"for":NaN}"#,
        r#"{"for":1.5}"#,
        r#"{"for":"1.5s"}"#,
        r#"{"for":"10"}"#,
        r#"{"for":"3661d"}"#,
        r#"{"until":"10000-01-01T00:00:00Z"}"#,
        r#"{"until":"+10000-01-01T00:00:00Z"}"#,
        r#"{"until":"tomorrow"}"#,
        r#"{"until":1.5}"#,
    ] {
        let answer = server.post("/v1/tasks", timer(with)).await;
        assert!((400..500).contains(&answer.status), "{with}: {answer:?}");
    }
    for (with, span) in [
        (r#"{"for":"2147483647ms"}"#, 2_147_483_647),
        (r#"{"for":"2147483648ms"}"#, 2_147_483_648),
        (r#"{"for":"4294967296ms"}"#, 4_294_967_296),
        (r#"{"for":"3650d"}"#, 3_650 * DAY),
    ] {
        let task = server.post("/v1/tasks", timer(with)).await.task();
        let hold = held(&server, &task).await;
        assert_eq!(at(&hold["deadline"]) - at(&hold["since"]), span, "{with}");
    }
    let far = server.post("/v1/tasks", timer(r#"{"until":"2035-06-30T12:00:00+14:00"}"#)).await;
    let hold = held(&server, &far.task()).await;
    assert_eq!(hold["deadline"], "2035-06-29T22:00:00.000Z");
    let mut soon = Vec::new();
    for with in [
        r#"{"for":"0ms"}"#,
        r#"{"for":"1ms"}"#,
        r#"{"until":"1970-01-01T00:00:00Z"}"#,
        r#"{"until":"2016-12-31T23:59:60Z"}"#,
    ] {
        soon.push(server.post("/v1/tasks", timer(with)).await.task());
    }
    for task in soon {
        world.wait(&TaskId::parse(&task).unwrap(), &[TaskState::Completed]).await;
    }
    // Those that came after the far ones have fired; the far ones have not.
    let waiting = server.get("/v1/tasks?state=waiting").await.json();
    assert_eq!(waiting["tasks"].as_array().unwrap().len(), 5, "{waiting}");
    server.stop().await;
    world.close().await;
}

async fn held(server: &Server, task: &str) -> Value {
    let path = format!("/v1/tasks/{task}/steps/wait");
    standfast_tests::wait::until("the timer to be held", async || {
        let step = server.get(&path).await.json();
        step["hold"].is_object().then(|| step["hold"].clone())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_a_worker_asks_for_never_overflows_to_now() {
    let (_directory, mut world) = embedded().await;
    let server = Server::start(&world).await;
    world.schedule();
    for wait in ["18446744073709551615", "9223372036854775807", "315576000000", "-1", "1.5", "NaN"]
    {
        let mut only = step("a", &[], "true");
        only["retry"] = json!({"max_attempts": 3, "backoff": "0s"});
        let task = server.submit(&plan(vec![only])).await.task();
        let claim = server.claim().await;
        assert_eq!(claim["task"], json!(task));
        let outcome = format!(
            r#"{{"status":"failed","class":"retryable","message":"m","retry_after_ms":{wait}}}"#
        );
        let answer = server.complete(&claim, &outcome).await;
        if answer.status == 200 {
            let step = server.get(&format!("/v1/tasks/{task}/steps/a")).await.json();
            assert_eq!(step["state"], "retrying", "{wait}: {step}");
            let after = at(&step["retry_at"]) - at(&step["since"]);
            assert!((DAY..=3_660 * DAY).contains(&after), "{wait}: {step}");
        } else {
            assert!((400..500).contains(&answer.status), "{wait}: {answer:?}");
            assert_eq!(server.complete(&claim, r#"{"status":"succeeded"}"#).await.status, 200);
        }
        let list = server.get("/v1/tasks").await;
        assert_eq!(list.status, 200, "{list:?}");
        let explained = server.get(&format!("/v1/tasks/{task}/explain")).await;
        assert_eq!(explained.status, 200, "{explained:?}");
    }
    let body = json!({"worker": "outside", "queue": "default", "handlers": ["exec"]});
    assert_eq!(server.post("/v1/claims", body.to_string()).await.status, 204);
    server.stop().await;
    world.close().await;
}
