//! Stops across processes: heard of at once, of one attempt alone, and of many tasks by a filter.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use standfast_protocol::bulk_stops::StopAttemptRequest;
use standfast_protocol::problem::ProblemKind;
use standfast_protocol::steps::StepState;
use standfast_protocol::tasks::{StopMode, StopRequest, TaskQuery, TaskState};
use standfast_tests::fleet::Process;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

/// How long everything may take where thousands of tasks are moved.
const PATIENCE: Duration = Duration::from_secs(600);

/// A number that the environment may raise for a run by hand.
fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A step that says when it starts and when it is told to end, and otherwise goes on for an hour.
/// What it says stands in files named `WHAT.TASK.ATTEMPT`.
fn stubborn(own: &Installation) -> Value {
    let script = "trap 'echo $EPOCHREALTIME > $PLACE/told.$NAME.tmp; \
                  mv $PLACE/told.$NAME.tmp $PLACE/told.$NAME; exit 0' TERM; \
                  NAME=$STANDFAST_TASK.$STANDFAST_ATTEMPT; \
                  touch $PLACE/started.$NAME; sleep 3600 & wait";
    json!({ "kind": "stubborn", "steps": [
        { "id": "only", "uses": "exec",
          "with": { "command": ["bash", "-c", script], "env": { "PLACE": own.path() } } },
    ]})
}

fn said(own: &Installation, what: &str, task: &str, attempt: u32) -> PathBuf {
    own.path().join(format!("{what}.{task}.{attempt}"))
}

async fn starts(own: &Installation, task: &str, attempt: u32) {
    let file = said(own, "started", task, attempt);
    let what = format!("attempt {attempt} of {task} to start");
    wait::until(&what, async || file.exists().then_some(())).await;
}

/// Waits until an attempt was told to end; gives when, in seconds.
async fn told(own: &Installation, task: &str, attempt: u32) -> f64 {
    let file = said(own, "told", task, attempt);
    wait::until(&format!("attempt {attempt} of {task} to be told to end"), async || {
        std::fs::read_to_string(&file).ok()?.trim().replace(',', ".").parse().ok()
    })
    .await
}

/// With `STANDFAST_TEST_STOPS` it stops that many tasks and prints how long a stop took to reach
/// its attempt; `tests/stop-latency` does so.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_a_running_attempt_without_any_heartbeat() {
    // A claim of an hour has its first heartbeat after twenty minutes.
    let own = Installation::start("1h").await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let _workers = [own.process(&["worker"]), own.process(&["worker"])];
    let (client, stops) = (own.client(), number("STANDFAST_TEST_STOPS", 3));
    let mut spans = Vec::new();
    for _ in 0..stops {
        let task = client.submit(stubborn(&own)).await.unwrap().id;
        starts(&own, &task, 1).await;
        let request = StopRequest { mode: StopMode::Halt, reason: None, digest: None };
        client.stop(&task, &request).await.unwrap();
        let answered = now();
        spans.push((told(&own, &task, 1).await - answered) * 1_000.0);
        assert_eq!(own.ended(&task).await.state, TaskState::Cancelled);
    }
    spans.sort_by(f64::total_cmp);
    let (median, most) = (spans[spans.len() / 2], spans[spans.len() - 1]);
    println!("{stops} stops: SIGTERM after the answer, median {median:.1} ms, most {most:.1} ms");
}

/// On a machine that is slow, nothing may have started by the deadline; then it is set later.
async fn stopped_by_its_deadline(own: &Installation) {
    for seconds in [2, 8, 24] {
        let mut plan = stubborn(own);
        plan["deadline"] = json!({ "in": format!("{seconds}s"), "then": "stop" });
        let task = own.client().submit(plan).await.unwrap().id;
        assert_eq!(own.ended(&task).await.state, TaskState::Cancelled);
        if said(own, "started", &task, 1).exists() {
            told(own, &task, 1).await;
            return;
        }
    }
    panic!("nothing starts within 24 s");
}

/// Runs the program and gives the JSON that it prints.
fn printed(own: &Installation, arguments: &[&str]) -> Value {
    let output = own.command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Names the items of a stop plan or of a settlement.
fn items(of: &Value) -> Vec<&str> {
    of["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_by_its_plan_reaches_an_attempt_that_its_worker_stayed_with() {
    let own = Installation::start("1h").await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let worker = Process::start(&own, "staying", &["worker", "--stay", "4"], &[]);
    let mut plan = stubborn(&own);
    plan["steps"][0]["needs"] = json!(["before"]);
    let before = json!({ "id": "before", "uses": "exec", "with": { "command": ["true"] } });
    plan["steps"].as_array_mut().unwrap().push(before);
    let task = own.client().submit(plan).await.unwrap().id;
    starts(&own, &task, 1).await;
    assert_eq!(worker.metric("standfast_wakes_total").await, 0.0, "it stays, and wakes nobody");

    let url = own.url();
    let about = |words: &[&str]| {
        printed(&own, &[&["stop", &task, "--json", "--url", &url], words].concat())
    };
    let plan = about(&["--preview"]);
    assert_eq!(items(&plan), ["only#1"]);
    let digest = plan["digest"].as_str().unwrap().to_owned();
    let other = ["stop", &task, "--digest", "00000000", "--url", &url];
    assert!(own.run(&other, 1).contains("nothing was stopped"));
    about(&["--digest", &digest[..8]]);
    told(&own, &task, 1).await;
    assert_eq!(own.ended(&task).await.state, TaskState::Cancelled);
    let report = about(&["--report"]);
    assert_eq!(items(&report), items(&plan));
    assert_eq!(report["items"][0]["became"], "cancelled");
    assert_eq!(report["plan_digest"], digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_and_a_failure_reach_running_attempts_too() {
    let own = Installation::start("1h").await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let _worker = own.process(&["worker"]);
    let client = own.client();
    stopped_by_its_deadline(&own).await;

    let mut failing = stubborn(&own);
    let place = own.path().display();
    let script = format!("until ls {place}/started.$STANDFAST_TASK.1; do sleep 0.1; done; exit 1");
    failing["steps"].as_array_mut().unwrap().push(json!({
        "id": "fails", "uses": "exec", "on_failure": "fail", "retry": { "max_attempts": 1 },
        "with": { "command": ["sh", "-c", script] },
    }));
    let task = client.submit(failing).await.unwrap().id;
    told(&own, &task, 1).await;
    assert_eq!(own.ended(&task).await.state, TaskState::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_attempt_is_told_at_once_and_the_next_one_starts() {
    let own = Installation::start("1h").await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let _workers = [own.process(&["worker"]), own.process(&["worker"])];
    let client = own.client();
    let mut plan = stubborn(&own);
    plan["steps"][0]["retry"] = json!({ "max_attempts": 1 });
    let task = client.submit(plan).await.unwrap().id;
    starts(&own, &task, 1).await;
    let step = format!("{task}/only");
    let url = own.url();
    let stop = ["attempt", "stop", &step, "--reason", "it hangs", "--url", &url];
    let text = own.run(&stop, 0);
    assert!(text.contains("attempt 1 of step `only` is stopped, the step is ready"), "{text}");
    told(&own, &task, 1).await;
    starts(&own, &task, 2).await; // though it may be tried once: it was not charged

    let request = StopAttemptRequest::default();
    let refused = client.stop_attempt(&task, "only", 1, &request).await.unwrap_err();
    assert_eq!(refused.problem(), Some(ProblemKind::NotApplicable));
    assert!(refused.to_string().contains("attempt 2 runs now"), "{refused}");
    let events = own.events(&task).await;
    let failed = events.iter().find(|event| event.kind == "attempt_failed").unwrap();
    assert_eq!(failed.actor, "user:operator");
    assert_eq!(failed.data["charged"], false);
    assert_eq!(failed.data["message"], "stopped by user:operator: it hangs");

    let step = client.step(&task, "only").await.unwrap();
    assert_eq!((step.state, step.charged), (StepState::Running, 0));
    client
        .stop(&task, &StopRequest { mode: StopMode::Halt, reason: None, digest: None })
        .await
        .unwrap();
    told(&own, &task, 2).await;
    assert_eq!(own.ended(&task).await.state, TaskState::Cancelled);
    let refused = client.stop_attempt(&task, "only", 2, &request).await.unwrap_err();
    assert_eq!(refused.problem(), Some(ProblemKind::NotApplicable));
}

/// A step that writes to the ledger when it starts, and then runs for an hour.
fn batch(own: &Installation) -> Value {
    let script = "echo $STANDFAST_TASK/$STANDFAST_STEP >> $LEDGER; exec sleep 3600";
    json!({ "kind": "batch", "labels": { "batch": "one" }, "steps": [
        { "id": "first", "uses": "exec", "retry": { "max_attempts": 9, "backoff": "0s" },
          "timeout": { "queue": "24h", "total": "48h" },
          "with": { "command": ["sh", "-c", script], "env": { "LEDGER": own.ledger() } } },
        { "id": "wait", "uses": "timer", "with": { "for": "24h" } },
        { "id": "second", "uses": "exec", "needs": ["first", "wait"],
          "with": { "command": ["true"] } },
    ]})
}

async fn submit(own: &Installation, count: usize) -> BTreeSet<String> {
    let (client, plan) = (own.client(), batch(own));
    let submitting = stream::iter(0..count).map(|_| client.submit(plan.clone()));
    submitting.buffer_unordered(16).map(|submitted| submitted.unwrap().id).collect().await
}

/// Waits until no task of the batch is in any of these states.
async fn none_are(own: &Installation, states: &[TaskState]) {
    let client = own.client();
    for state in states {
        let (state, limit) = (Some(*state), Some(1));
        let query = TaskQuery { state, limit, ..TaskQuery::default() };
        wait::within(PATIENCE, &format!("no task to be {state:?}"), async || {
            let page = client.list(&query).await.ok()?;
            (page.tasks.is_empty() && page.next_cursor.is_none()).then_some(())
        })
        .await;
    }
}

/// Gives the tasks of the batch that are cancelled.
async fn cancelled(own: &Installation) -> BTreeSet<String> {
    let (client, mut found) = (own.client(), BTreeSet::new());
    let state = Some(TaskState::Cancelled);
    let mut query = TaskQuery { state, limit: Some(200), ..TaskQuery::default() };
    loop {
        let page = client.list(&query).await.unwrap();
        found.extend(page.tasks.into_iter().map(|task| task.id));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return found;
        }
    }
}

/// Gives what `doctor --counts` counts, by index.
fn counts(own: &Installation) -> Vec<(String, u64)> {
    let output = own.command(&["doctor", "--counts", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().iter();
    let index = checks.filter_map(|check| {
        let name = check["name"].as_str()?.strip_prefix("index ")?.to_owned();
        Some((name, check["found"].as_str()?.split(' ').next()?.parse().ok()?))
    });
    index.collect()
}

/// With `STANDFAST_TEST_QUEUED` and `STANDFAST_TEST_RUNNING` it is that large.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_by_filter_holds_though_every_process_dies() {
    let queued = number("STANDFAST_TEST_QUEUED", 300);
    let running = number("STANDFAST_TEST_RUNNING", 8);
    let own = Installation::start("3s").await;
    let concurrency = running.div_ceil(2).to_string();
    let worker = ["worker", "--concurrency", &concurrency];
    let mut api = own.api().await;
    let mut scheduler = own.process(&["scheduler"]);
    let mut workers = [own.process(&worker), own.process(&worker)];
    let begin = Instant::now();
    let mut tasks = submit(&own, running).await;
    let started = || own.starts().len();
    wait::until("the first tasks to run", async || (started() == running).then_some(())).await;
    tasks.extend(submit(&own, queued).await);
    println!("{queued} queued, {running} running after {:.1} s", begin.elapsed().as_secs_f64());

    workers.iter_mut().for_each(|worker| worker.kill());
    let (url, begin) = (own.url(), Instant::now());
    let filter = ["stop", "--label", "batch=one", "--kind", "batch", "--url", &url];
    let asked = own.run(&filter, 64); // nobody is there to confirm
    assert!(asked.contains(&format!("{} tasks would be stopped", tasks.len())), "{asked}");
    let stopped = own.run(&[&filter[..], &["--yes"]].concat(), 0);
    assert!(stopped.contains(&format!("{} tasks stopped", tasks.len())), "{stopped}");
    println!("counted and stopped after {:.1} s", begin.elapsed().as_secs_f64());
    let again = own.run(&[&filter[..], &["--yes"]].concat(), 0);
    assert!(again.contains("0 tasks stopped"), "{again}");
    api.kill();
    scheduler.kill();

    let begin = Instant::now();
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let _workers = [own.process(&worker), own.process(&worker)];
    none_are(&own, &[TaskState::Queued, TaskState::Running, TaskState::Cancelling]).await;
    println!("all ended {:.1} s after the restart", begin.elapsed().as_secs_f64());
    assert!(cancelled(&own).await == tasks, "another set of tasks is cancelled");

    // What an ended task keeps is the timer of its own removal.
    let own_timers = tasks.len() as u64;
    let expected = |name: &str| match name {
        "timers" | "tasks" => own_timers,
        _ => 0,
    };
    wait::within(PATIENCE, "the indexes to be cleared", async || {
        let mut left = counts(&own).into_iter().filter(|(name, count)| *count != expected(name));
        left.all(|(name, _)| name.starts_with("queues")).then_some(())
    })
    .await;
    println!("indexes cleared {:.1} s after the restart", begin.elapsed().as_secs_f64());
    drained(&own).await;
    println!("queue drained {:.1} s after the restart", begin.elapsed().as_secs_f64());
    let starts = own.starts();
    assert_eq!(starts.len(), running, "a task started after the stop");
    assert!(starts.values().all(|&times| times == 1), "{starts:?}");
}

/// Waits until the workers' queue holds no message, delivered or not.
async fn drained(own: &Installation) {
    let connect = lapin::Connection::connect(&own.amqp, lapin::ConnectionProperties::default());
    let connection = connect.await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let name = format!("{}.steps.default", own.place.prefix);
    let passive = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
    wait::within(PATIENCE, "the queue to be drained", async || {
        let declare = channel.queue_declare(name.as_str().into(), passive, Default::default());
        (declare.await.ok()?.message_count() == 0).then_some(())
    })
    .await;
}
