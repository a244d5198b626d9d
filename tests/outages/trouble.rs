//! One installation under load, and all that happens to a Redis: each process names it while it
//! lasts, says it once in its log, holds back, and goes on by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use standfast_domain::commit::Home;
use standfast_domain::ids::Partition;
use standfast_engine::ports::Store;
use standfast_protocol::tasks::{StopMode, StopRequest, SubmitRequest};
use standfast_sdk::Client;
use standfast_stores::redis::{RedisOptions, RedisStore};
use standfast_tests::binary;
use standfast_tests::fleet::Process;
use standfast_tests::processes::Installation;
use standfast_tests::wait;
use tokio::task::JoinHandle;

use crate::ledger::{noted, once_each};

/// How soon after a Redis is well again everything works.
const BACK: Duration = Duration::from_secs(10);
/// What a process says when an outage is over.
const OVER: &str = "the store answers and takes writes again";

/// Gives a plan of a step, a timer and another step.
fn plan(own: &Installation) -> Value {
    let timer = json!({ "id": "wait", "uses": "timer", "needs": ["one"],
                        "with": { "for": "100ms" } });
    json!({ "kind": "load", "steps": [
        noted(own, "one", &[], "true"), timer, noted(own, "two", &["wait"], "true"),
    ]})
}

/// Submits tasks as fast as the installation takes them, within reason, until told to end.
struct Load {
    end: Arc<AtomicBool>,
    submitting: JoinHandle<Vec<String>>,
}

impl Load {
    fn start(client: Client, plan: Value) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let submitting = tokio::spawn(async move {
            let mut tasks = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let request = SubmitRequest { plan: plan.clone(), plan_dir: None };
                let key = format!("load-{}", tasks.len());
                // Patience may be over amid an outage; the same key is the same task.
                if let Ok(submitted) = client.submit_keyed(&request, &key).await {
                    tasks.push(submitted.id);
                }
                wait::pass(Duration::from_millis(400)).await;
            }
            tasks
        });
        Self { end, submitting }
    }

    async fn end(self) -> Vec<String> {
        self.end.store(true, Ordering::Relaxed);
        self.submitting.await.unwrap()
    }
}

/// The installation and its processes.
struct Scene {
    own: Installation,
    processes: Vec<Process>,
    outages: usize,
    probes: Vec<String>,
}

impl Scene {
    async fn start() -> Self {
        let own = Installation::start("3s").await;
        // It starts with a Redis that may lose tasks.
        own.redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
        let processes = vec![
            Process::start(&own, "api", &["api"], &[]),
            Process::start(&own, "scheduler", &["scheduler"], &[]),
            Process::start(&own, "worker", &["worker"], &[]),
        ];
        Self { own, processes, outages: 0, probes: Vec::new() }
    }

    async fn set(&self, name: &str, value: &str) {
        self.own.redis.command(&["CONFIG", "SET", name, value]).await;
    }

    async fn red(&self, cause: &str) {
        for process in &self.processes {
            process.red(cause).await;
        }
    }

    /// Waits until all is well, and runs a task; all within the time that is promised.
    async fn back(&mut self) {
        let start = Instant::now();
        let task = self.own.client().submit(plan(&self.own)).await.unwrap().id;
        self.own.ended(&task).await;
        assert!(start.elapsed() < BACK, "a task took {:?}", start.elapsed());
        self.probes.push(task);
        for process in &self.processes {
            process.green(BACK.saturating_sub(start.elapsed())).await;
        }
    }

    /// Checks that each process has said an outage once, and its end once, and counts it once.
    async fn said_once(&mut self, text: &str, times: usize) {
        self.outages += 1;
        for process in &self.processes {
            wait::until(&format!("{} to say that it is over", process.name), async || {
                (process.said(OVER) >= self.outages).then_some(())
            })
            .await;
            let log = || self.own.log(&process.name);
            assert_eq!(process.said(text), times, "{text}\n{}", log());
            assert_eq!(process.said(OVER), self.outages, "{}", log());
            let counted = process.metric("standfast_store_outages_total").await;
            assert_eq!(counted, self.outages as f64, "{}", process.name);
            assert_eq!(process.metric("standfast_store_up").await, 1.0);
        }
    }

    /// Counts the entries of an index over all partitions.
    async fn count(&self, index: &str) -> u64 {
        let prefix = self.own.place.prefix.clone();
        let options = RedisOptions { prefix, ..RedisOptions::new(self.own.redis.url()) };
        let store = RedisStore::connect(&options).await.unwrap();
        let homes: Vec<(Home, String)> =
            Partition::all().map(|part| (Home::Partition(part), index.to_owned())).collect();
        store.counts(&homes).await.unwrap().into_iter().sum()
    }
}

const AWAY: &str = "the store does not answer";
const REFUSES: &str = "the store refuses writes";
const SETTINGS: &str = "the store may lose data";

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_killed_or_hangs_is_named_said_once_and_gone_on_from() {
    let mut scene = Scene::start().await;
    scene.red("maxmemory-policy is allkeys-lru").await;
    scene.set("maxmemory-policy", "noeviction").await;
    scene.back().await;
    let load = Load::start(scene.own.client(), plan(&scene.own));

    println!("killed");
    scene.own.redis.kill();
    scene.red("store: ").await;
    scene.own.redis.revive().await;
    scene.back().await;
    scene.said_once(AWAY, 1).await;

    println!("frozen, for longer than calls wait");
    scene.own.redis.signal("STOP");
    scene.red("store: no answer within").await;
    for process in &scene.processes {
        wait::until(&format!("{} to say it", process.name), async || {
            (process.said(AWAY) == 2).then_some(())
        })
        .await;
    }
    scene.own.redis.signal("CONT");
    scene.back().await;
    scene.said_once(AWAY, 2).await;
    consistent(scene, load.end().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_refuses_writes_or_may_evict_is_named_said_once_and_gone_on_from() {
    let mut scene = Scene::start().await;
    scene.set("maxmemory-policy", "noeviction").await;
    scene.back().await;
    let load = Load::start(scene.own.client(), plan(&scene.own));

    println!("a replica");
    scene.own.redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    scene.red("point the URL at the primary").await;
    scene.red("write: ").await;
    scene.own.redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    scene.back().await;
    scene.said_once(REFUSES, 1).await;

    println!("out of memory");
    out_of_memory(&mut scene).await;

    println!("a policy that removes tasks, set at run time");
    scene.set("maxmemory-policy", "volatile-lru").await;
    scene.red("maxmemory-policy is volatile-lru").await;
    let text = format!("{SETTINGS} faults=\"maxmemory-policy is volatile-lru");
    for process in &scene.processes {
        wait::until(&format!("{} to say it", process.name), async || {
            (process.said(&text) == 1).then_some(())
        })
        .await;
    }
    scene.set("maxmemory-policy", "noeviction").await;
    scene.back().await;
    for process in &scene.processes {
        assert_eq!(process.said(&text), 1, "{}", scene.own.log(&process.name));
    }

    println!("hiccups, and scripts flushed");
    for _ in 0..3 {
        scene.own.redis.command(&["SCRIPT", "FLUSH"]).await;
        scene.own.redis.command(&["CLIENT", "PAUSE", "900", "ALL"]).await;
        scene.back().await;
    }
    for process in &scene.processes {
        assert_eq!(process.said(OVER), scene.outages, "a hiccup is no outage");
    }
    consistent(scene, load.end().await).await;
}

/// Redis refuses writes for some seconds: submissions are refused as something to try again,
/// nobody spins, and nothing starts.
async fn out_of_memory(scene: &mut Scene) {
    scene.set("maxmemory", "1").await;
    scene.red("write: ").await;
    scene.red("OOM").await;
    let submitted = reqwest::Client::new()
        .post(format!("{}/v1/tasks", scene.own.url()))
        .bearer_auth(&scene.own.token)
        .json(&plan(&scene.own))
        .send()
        .await
        .unwrap();
    assert_eq!(submitted.status(), 503);
    let before: Vec<Duration> = scene.processes.iter().map(Process::cpu).collect();
    let starts = crate::ledger::starts(&scene.own).len();
    let span = Duration::from_secs(3);
    wait::pass(span).await;
    for (process, before) in scene.processes.iter().zip(before) {
        let used = process.cpu() - before;
        assert!(used < span / 2, "{} used {used:?} of {span:?}", process.name);
    }
    assert_eq!(crate::ledger::starts(&scene.own).len(), starts, "attempts started");
    scene.set("maxmemory", "0").await;
    scene.back().await;
    scene.said_once(REFUSES, 2).await;
}

/// Everything that was accepted completes, each step once, and no entry is left over.
async fn consistent(scene: Scene, mut tasks: Vec<String>) {
    tasks.extend(scene.probes.iter().cloned());
    scene.own.completed(&tasks).await;
    once_each(&scene.own, 2 * tasks.len());
    for index in ["work", "claims", "expiries", "ready:default"] {
        wait::until(&format!("`{index}` to be empty"), async || {
            (scene.count(index).await == 0).then_some(())
        })
        .await;
    }
    // What is left of each task is its removal.
    assert_eq!(scene.count("tasks").await, tasks.len() as u64);
    assert_eq!(scene.count("timers").await, tasks.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_works_again_soon_after_each_restart() {
    let mut scene = Scene::start().await;
    scene.set("maxmemory-policy", "noeviction").await;
    scene.back().await;
    let gate = scene.own.path().join("gate");
    let steps = json!([noted(&scene.own, "one", &[], &crate::ledger::wait_for(&gate))]);
    let followed = json!({ "kind": "followed", "steps": steps });
    let followed = scene.own.client().submit(followed).await.unwrap().id;
    let mut stream = scene.own.client().events(&followed, None);
    let following = tokio::spawn(async move {
        let mut kinds = Vec::new();
        while let Some(event) = stream.next().await.unwrap() {
            kinds.push(event.kind);
        }
        kinds
    });
    for _ in 0..binary::repeats(3).min(5) {
        scene.own.redis.kill();
        wait::pass(Duration::from_millis(700)).await;
        scene.own.redis.revive().await;
        scene.back().await; // submission, both kinds of steps, a timer
        let start = Instant::now();
        let mut stopped = plan(&scene.own);
        stopped["steps"][1]["with"]["for"] = json!("1h");
        let client = scene.own.client();
        let stop = StopRequest { mode: StopMode::Halt, reason: None, digest: None };
        let task = client.submit(stopped).await.unwrap().id;
        client.stop(&task, &stop).await.unwrap();
        scene.own.ended(&task).await;
        assert!(start.elapsed() < BACK, "a stop took {:?}", start.elapsed());
    }
    std::fs::write(&gate, "").unwrap();
    let kinds = following.await.unwrap();
    assert_eq!(kinds.last().map(String::as_str), Some("task_ended"), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "step_succeeded").count(), 1, "{kinds:?}");
}
