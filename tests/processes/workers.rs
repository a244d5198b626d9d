//! Workers outside: the examples in Python and Rust, over HTTP alone.

use std::io::{Read, Write};
use std::net::TcpListener;
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

/// A shop that takes one order and gives what it was sent.
fn shop() -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/orders", listener.local_addr().unwrap());
    let taking = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
        while !request.ends_with(b"}") {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the order broke off: {}", String::from_utf8_lossy(&request));
            request.extend_from_slice(&buffer[..count]);
        }
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n";
        stream.write_all(format!("{answer}{{\"number\":7}}").as_bytes()).unwrap();
        String::from_utf8(request).unwrap()
    });
    (url, taking)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_worker_orders_under_a_key_and_keeps_the_receipt() {
    let (own, token, _processes) = served().await;
    let mut command = python();
    command.arg(examples().join("python/worker.py"));
    let mut worker = start(&own, command, &token).await;
    let (url, taking) = shop();
    let plan = json!({ "kind": "order", "steps": [
        { "id": "buy", "uses": "order", "with": { "url": url, "order": { "tea": 2 } } },
    ]});
    let task = submit(&own, plan).await;
    own.completed(std::slice::from_ref(&task)).await;
    let request = taking.join().unwrap();
    let key = format!("{task}/buy/order/1");
    assert!(request.to_lowercase().contains(&format!("idempotency-key: {key}")), "{request}");
    assert!(request.ends_with(r#"{"tea": 2}"#), "{request}");
    let step = own.client().step(&task, "buy").await.unwrap();
    assert_eq!(step.output.unwrap(), json!({ "number": 7 }));
    let events = own.events(&task).await;
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
    let intended = kinds.iter().position(|kind| *kind == "effect_intended");
    let landed = kinds.iter().position(|kind| *kind == "effect_landed");
    assert!(intended.is_some() && intended < landed, "{kinds:?}");
    assert_eq!(worker.terminate(), Some(0), "{}", own.log("outside"));
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
