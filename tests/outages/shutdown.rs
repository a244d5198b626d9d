//! Being told to end: what fits is finished, the rest is handed back, nothing is charged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::{Queue, StepId, TaskId};
use standfast_domain::record::{Key, Record, Status};
use standfast_domain::time::Time;
use standfast_engine::ports::{Broker, Load, Range, Store, StoreError, StoreHealth};
use standfast_stores::redb::RedbStore;
use standfast_tests::binary::Draw;
use standfast_tests::embedded::World;
use standfast_tests::fleet::Process;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

use crate::ledger::{Start, failures, noted, now_ms, once_each, started, starts, wait_for};

/// The time that the worker is given; a step that fits it takes half as long.
const GRACE: &str = "4s";
const GRACE_SPAN: Duration = Duration::from_secs(4);
/// What a process may take beyond its grace period on a busy machine.
const SLACK: Duration = Duration::from_secs(5);
/// How long a start that was under way may take to reach the ledger.
const FORK_MS: u64 = 500;

/// Submits one-step tasks; gives their ids.
async fn submit(own: &Installation, id: &str, then: &str, count: usize) -> Vec<String> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        let plan = json!({ "kind": "ending", "steps": [noted(own, id, &[], then)] });
        tasks.push(own.client().submit(plan).await.unwrap().id);
    }
    tasks
}

fn of<'s>(starts: &'s [Start], task: &str) -> Vec<&'s Start> {
    starts.iter().filter(|start| start.task == task).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fits_the_grace_period_is_finished_and_the_rest_runs_elsewhere_at_once() {
    let own = Installation::start("30s").await;
    let mut draw = Draw::new();
    let _api = own.api().await;
    let _scheduler = Process::start(&own, "scheduler", &["scheduler"], &[]);
    let words = ["worker", "--concurrency", "5", "--grace", GRACE];
    let mut ending = Process::start(&own, "ending", &words, &[("LANG", "ending")]);
    let gate = own.path().join("gate");
    let long = submit(&own, "long", &wait_for(&gate), 2).await;
    let short = submit(&own, "short", "sleep 2", 3).await;
    started(&own, 5).await;
    let other = Process::start(&own, "other", &words, &[("LANG", "other")]);
    other.green(Duration::from_secs(30)).await;
    let more = submit(&own, "short", "sleep 1", 6).await;

    wait::pass(Duration::from_millis(draw.below(500))).await; // the moment
    let told = now_ms();
    ending.signal("TERM");
    let (code, took) = ending.ended().await;
    let ended = now_ms();
    assert_eq!(code, Some(0), "{}", own.log("ending"));
    assert!((GRACE_SPAN..GRACE_SPAN + SLACK).contains(&took), "{took:?}");
    let all = wait::until("the long steps to start elsewhere", async || {
        let all = starts(&own);
        long.iter().all(|task| of(&all, task).len() == 2).then_some(all)
    })
    .await;
    for task in &long {
        let second = of(&all, task)[1].clone();
        assert_eq!((second.worker.as_str(), second.attempt), ("other", 2));
        assert!(second.at_ms < ended + 5_000, "{second:?} after {ended}");
    }
    std::fs::write(&gate, "").unwrap();
    own.completed(&[long.clone(), short.clone(), more.clone()].concat()).await;

    let all = starts(&own);
    for start in all.iter().filter(|start| start.worker == "ending") {
        assert!(start.at_ms < told + FORK_MS, "{start:?} was told at {told}");
    }
    for task in short.iter().chain(&more) {
        assert_eq!(of(&all, task).len(), 1, "{all:?}");
        assert_eq!(failures(&own, task).await, Vec::<Value>::new());
    }
    for task in &long {
        let handed_back = failures(&own, task).await;
        assert_eq!(handed_back.len(), 1, "{handed_back:?}");
        assert_eq!(handed_back[0]["charged"], false, "{handed_back:?}");
        assert_eq!(own.client().step(task, "long").await.unwrap().charged, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once_and_hands_back_all_the_same() {
    let own = Installation::start("30s").await;
    let _api = own.api().await;
    let _scheduler = Process::start(&own, "scheduler", &["scheduler"], &[]);
    let words = ["worker", "--grace", "60s"];
    let mut ending = Process::start(&own, "ending", &words, &[("LANG", "ending")]);
    let gate = own.path().join("gate");
    let tasks = submit(&own, "long", &wait_for(&gate), 2).await;
    started(&own, 2).await;
    let told = Instant::now();
    ending.signal("TERM");
    wait::until("the first signal to be heard", async || {
        (ending.said("a second signal ends at once") == 1).then_some(())
    })
    .await;
    ending.signal("TERM");
    assert_eq!(ending.ended().await.0, Some(0), "{}", own.log("ending"));
    assert!(told.elapsed() < SLACK, "{:?}", told.elapsed());
    let _other = Process::start(&own, "other", &words, &[("LANG", "other")]);
    std::fs::write(&gate, "").unwrap();
    own.completed(&tasks).await;
    for task in &tasks {
        assert_eq!(failures(&own, task).await[0]["charged"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_under_load_charges_no_attempt() {
    let own = Installation::start("30s").await;
    let worker: &[&str] = &["worker", "--grace", "10s"];
    let commands: [(&'static str, &[&str]); 5] = [
        ("api", &["api"]),
        ("scheduler-1", &["scheduler"]),
        ("scheduler-2", &["scheduler"]),
        ("worker-1", worker),
        ("worker-2", worker),
    ];
    let mut processes: Vec<Process> =
        commands.iter().map(|(name, words)| Process::start(&own, name, words, &[])).collect();
    for process in &processes {
        process.green(Duration::from_secs(30)).await;
    }
    let client = own.client();
    let steps = json!([noted(&own, "one", &[], "sleep 0.3"), noted(&own, "two", &["one"], "true")]);
    let plan = json!({ "kind": "rolling", "steps": steps });
    let end = tokio_util::sync::CancellationToken::new();
    let loading = tokio::spawn({
        let end = end.clone();
        async move {
            let mut tasks = Vec::new();
            while !end.is_cancelled() {
                tasks.push(client.submit(plan.clone()).await.unwrap().id);
                wait::pass(Duration::from_millis(150)).await;
            }
            tasks
        }
    });
    for at in [3, 4, 1, 2, 0] {
        let (name, words) = commands[at];
        let before = starts(&own).len();
        wait::until("work to go on", async || (starts(&own).len() > before + 4).then_some(()))
            .await;
        processes[at].signal("TERM");
        assert_eq!(processes[at].ended().await.0, Some(0), "{}", own.log(name));
        processes[at] = Process::start(&own, name, words, &[]);
        processes[at].green(Duration::from_secs(30)).await;
    }
    end.cancel();
    let tasks = loading.await.unwrap();
    own.completed(&tasks).await;
    once_each(&own, 2 * tasks.len());
    for task in &tasks {
        assert_eq!(failures(&own, task).await, Vec::<Value>::new(), "{task}");
    }
}

/// A store in which a claim takes until it is let go.
struct SlowClaims {
    store: RedbStore,
    asked: tokio::sync::Semaphore,
    gate: tokio::sync::Semaphore,
}

#[async_trait]
impl Store for SlowClaims {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        self.store.load(loads).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let mut written = commits.iter().flat_map(|commit| &commit.writes);
        if written.any(|(field, bytes)| field.starts_with("claim/") && bytes.is_some()) {
            self.asked.add_permits(1);
            self.gate.acquire().await.unwrap().forget();
        }
        self.store.commit(commits).await
    }

    async fn events(&self, scope: &Scope, from: u64, n: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.store.events(scope, from, n).await
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        self.store.ranges(ranges).await
    }

    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError> {
        self.store.counts(indexes).await
    }

    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError> {
        self.store.erase(task, limit).await
    }

    async fn now(&self) -> Result<Time, StoreError> {
        self.store.now().await
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.store.health().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_under_way_when_the_end_comes_is_handed_back_unrun() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(SlowClaims {
        store: RedbStore::open(directory.path()).unwrap(),
        asked: tokio::sync::Semaphore::new(0),
        gate: tokio::sync::Semaphore::new(0),
    });
    let broker = Arc::new(InProcessBroker::new());
    let mut world = World::over(store.clone(), broker.clone(), directory.path()).await;
    let reader = world.engine.clone();
    let script = "touch ${{ plan.dir }}/started";
    let step = json!({ "id": "only", "uses": "exec", "with": { "command": ["sh", "-c", script] } });
    let plan = json!({ "kind": "late", "steps": [step] });
    let task = world.submit(plan.clone()).await.unwrap();
    // A second one waits for room, and stays in the queue.
    world.submit(plan).await.unwrap();
    world.work(&["default"], 1);
    store.asked.acquire().await.unwrap().forget();
    let closing = tokio::spawn(world.close());
    let queue = Queue::new("default").unwrap();
    wait::until("the worker to take nothing more", async || {
        let depth = broker.depth(&queue).await.unwrap();
        (depth.consumers == 0 && depth.ready == 1).then_some(())
    })
    .await;
    store.gate.add_permits(1);
    closing.await.unwrap();
    assert!(!directory.path().join("started").exists(), "it started after the end had come");
    let key = Key::Step(StepId::new("only").unwrap());
    let record = reader.read(&task, std::slice::from_ref(&key)).await.unwrap().remove(&key);
    let Some(Some(Record::Step(state))) = record else { panic!("{record:?}") };
    assert!(matches!(state.status, Status::Ready { .. }), "{state:?}");
    assert_eq!((state.attempt, state.charged), (2, 0));
    assert_eq!(broker.depth(&queue).await.unwrap().ready, 2, "both are woken again");
}
