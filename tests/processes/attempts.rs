//! Attempts that end their worker, and workers outside that speak, fall silent and are refused.

use serde_json::{Value, json};
use standfast_protocol::tasks::TaskState;
use standfast_tests::binary::Running;
use standfast_tests::processes::{Installation, examples, python};
use standfast_tests::wait;

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_kills_its_worker_is_parked_and_the_others_go_on() {
    let own = Installation::start("1s").await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let client = own.client();
    let deadly = json!({ "kind": "deadly", "steps": [{
        "id": "kill", "uses": "exec", "retry": { "max_attempts": 3, "backoff": "300ms" },
        "with": { "command": ["sh", "-c", "kill -9 $PPID"] },
    }]});
    let plain = json!({ "kind": "plain", "steps": [
        { "id": "only", "uses": "exec", "with": { "command": ["true"] } },
    ]});
    let mut others = Vec::new();
    let task = client.submit(deadly).await.unwrap().id;
    let mut worker = own.process(&["worker"]);
    let mut deaths = 0;
    let view = wait::until("the deadly step to be parked", async || {
        if worker.0.try_wait().unwrap().is_some() {
            deaths += 1;
            others.push(client.submit(plain.clone()).await.unwrap().id);
            worker = own.process(&["worker"]);
        }
        let view = client.get(&task).await.ok()?;
        (view.state == TaskState::Blocked).then_some(view)
    })
    .await;
    assert_eq!((view.holds[0].reason.as_str(), deaths), ("worker_died", 3), "{view:?}");
    own.completed(&others).await;
    assert_eq!(worker.0.try_wait().unwrap(), None, "the last worker lives");

    let events = own.events(&task).await;
    let lost: Vec<&Value> =
        events.iter().filter(|event| event.kind == "attempt_failed").map(|e| &e.data).collect();
    assert_eq!(lost.len(), 3, "{events:?}");
    assert!(lost.iter().all(|data| data["class"] == "lost"), "{lost:?}");
    let waits = events.iter().filter(|event| event.kind == "retry_scheduled").count();
    assert_eq!(waits, 2, "each but the last is followed by a wait");
    let explain = client.explain(&task).await.unwrap();
    let why = explain.why.text.join("\n");
    assert!(why.contains("worker_died") && why.contains("fell silent"), "{why}");
    assert!(why.contains(&format!("standfast answer {task}/kill retry")), "{why}");
}

/// Starts the example's worker with another handler `shout`.
pub fn python_worker(own: &Installation, token: &str, name: &str, shout: &str) -> Running {
    let script = own.path().join(format!("{name}.py"));
    let folder = examples().join("python").display().to_string();
    let text = format!(
        "import sys, os, time\nsys.path.insert(0, {folder:?})\nimport worker\n\
         from worker import Cancelled, Permanent, RateLimited\n\
         def shout(text_input, attempt):\n{shout}\n\
         worker.HANDLERS['shout'] = shout\nsys.exit(worker.main())\n"
    );
    std::fs::write(&script, text).unwrap();
    let mut command = python();
    command.arg(&script).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("STANDFAST_URL", own.url()).env("STANDFAST_TOKEN", token);
    Running::start(command, &own.path().join(format!("{name}.log")))
}

/// Submits a plan as soon as the handler is known.
pub async fn submit(own: &Installation, plan: Value) -> String {
    let client = own.client();
    wait::until("the handler to be announced", async || {
        client.submit(plan.clone()).await.ok().map(|submitted| submitted.id)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_worker_names_each_class_ends_silence_and_goes_on_from_details() {
    let own = Installation::start("3s").await;
    let _processes = [own.api().await, own.process(&["scheduler"])];
    let token = own.make_token("worker", "worker:outside");
    let shout = "    how = text_input['text']
    if attempt.last_details:
        return {'text': attempt.last_details}
    attempt.heartbeat('began ' + how)
    if how == 'permanent':
        raise Permanent('no')
    if how == 'rate_limited':
        raise RateLimited('no', 0.2)
    if how == 'timeout':
        raise TimeoutError('no')
    if how == 'cancelled':
        raise Cancelled('no')
    if how == 'silent':
        attempt.cancelled.wait()
        time.sleep(0.5)
    raise RuntimeError('no')";
    let _worker = python_worker(&own, &token, "classes", shout);
    let classes = ["permanent", "rate_limited", "timeout", "cancelled", "silent", "retryable"];
    let mut tasks = Vec::new();
    for how in classes {
        let plan = json!({ "kind": "classes", "steps": [
            { "id": "only", "uses": "shout", "with": { "text": how },
              "timeout": { "heartbeat": "1s" }, "retry": { "backoff": "0s" } },
        ]});
        tasks.push(submit(&own, plan).await);
    }
    let client = own.client();
    for (task, how) in tasks.iter().zip(classes) {
        wait::until(&format!("the end of {how}: {}", own.log("classes")), async || {
            let view = client.get(task).await.ok()?;
            (view.state.is_ended() || view.state == TaskState::Blocked).then_some(())
        })
        .await;
        let events = own.events(task).await;
        let failed = events.iter().find(|event| event.kind == "attempt_failed").unwrap();
        let class = if how == "silent" { "timeout" } else { how };
        assert_eq!(failed.data["class"], class, "{how}");
        let step = client.step(task, "only").await.unwrap();
        match how {
            "permanent" => assert_eq!(step.summary.as_deref(), Some("began permanent")),
            _ => assert_eq!(step.output.unwrap()["text"], format!("began {how}")),
        }
    }
}
