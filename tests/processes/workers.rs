//! Workers outside: the examples in Python and Rust, over HTTP alone.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use standfast_tests::binary::{self, Running};
use standfast_tests::processes::{Installation, examples, python, said};
use standfast_tests::wait;

/// Runs an installation with an api and a scheduler, and gives a worker's token.
async fn served() -> (Installation, String, [Running; 2]) {
    let own = Installation::start("3s").await;
    let api = own.api().await;
    let scheduler = own.process(&["scheduler"]);
    let token = own.make_token("worker", "worker:outside");
    (own, token, [api, scheduler])
}

/// Starts a worker program that serves `shout`, and waits until plans may use it.
async fn start(own: &Installation, mut command: Command, token: &str) -> Running {
    command.env("STANDFAST_URL", own.url()).env("STANDFAST_TOKEN", token);
    Running::start(command, &own.path().join("outside.log"))
}

/// Submits a plan as soon as its handlers are known.
async fn submit(own: &Installation, plan: Value) -> String {
    let client = own.client();
    wait::until(&format!("the handlers of {plan} to be announced"), async || {
        client.submit(plan.clone()).await.ok().map(|submitted| submitted.id)
    })
    .await
}

fn greeting() -> Value {
    json!({ "kind": "greeting", "steps": [
        { "id": "hello", "uses": "shout", "with": { "text": "hello world" } },
        { "id": "again", "uses": "shout", "needs": ["hello"],
          "with": { "text": "${{ steps.hello.output.text }}, again" } },
    ]})
}

async fn greets(command: Command) {
    let (own, token, _processes) = served().await;
    let mut worker = start(&own, command, &token).await;
    let task = submit(&own, greeting()).await;
    own.completed(std::slice::from_ref(&task)).await;
    let step = own.client().step(&task, "again").await.unwrap();
    assert_eq!(step.output.unwrap()["text"], "HELLO WORLD, AGAIN");
    assert_eq!(worker.terminate(), Some(0), "{}", own.log("outside"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_worker_serves_a_plan() {
    let mut command = python();
    command.arg(examples().join("python/worker.py"));
    greets(command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_worker_serves_a_plan() {
    greets(Command::new(rust_worker())).await;
}

/// Finds the example beside the binary, building it where it is missing.
fn rust_worker() -> PathBuf {
    let path = binary::path().with_file_name("standfast-example-rust-worker");
    if !path.exists() {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let target = path.ancestors().nth(2).unwrap();
        let built = Command::new(cargo)
            .args(["build", "--locked", "-p", "standfast-example-rust-worker", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", said(&built));
    }
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_of_a_killed_worker_is_lost_and_another_worker_goes_on() {
    let (own, token, _processes) = served().await;
    // The example's worker with a handler that waits for a file, as a user would replace it.
    let (started, gate) = (own.path().join("started"), own.path().join("gate"));
    let script = own.path().join("slow.py");
    let text = format!(
        "import sys, os, time, pathlib\nsys.path.insert(0, {:?})\nimport worker\n\
         def shout(text_input, attempt):\n    \
         pathlib.Path({started:?}).touch()\n    \
         while not os.path.exists({gate:?}):\n        time.sleep(0.05)\n    \
         return {{'text': str(attempt.number)}}\n\
         worker.HANDLERS['shout'] = shout\nsys.exit(worker.main())\n",
        examples().join("python").display().to_string(),
    );
    std::fs::write(&script, text).unwrap();
    let command = || {
        let mut command = python();
        command.arg(&script).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let mut first = start(&own, command(), &token).await;
    let plan = json!({ "kind": "slow", "steps": [
        { "id": "only", "uses": "shout", "with": { "text": "x" },
          "retry": { "max_attempts": 3, "backoff": "0s" } },
    ]});
    let task = submit(&own, plan).await;
    wait::until("the first attempt to start", async || started.exists().then_some(())).await;
    first.kill();
    std::fs::write(&gate, "").unwrap();
    let _second = start(&own, command(), &token).await;
    own.completed(std::slice::from_ref(&task)).await;
    let step = own.client().step(&task, "only").await.unwrap();
    assert_eq!(step.output.unwrap()["text"], "2");
    let events = own.events(&task).await;
    let lost: Vec<&Value> = events
        .iter()
        .filter(|event| event.kind == "attempt_failed")
        .map(|event| &event.data["class"])
        .collect();
    assert_eq!(lost, ["lost"], "{events:?}");
}
