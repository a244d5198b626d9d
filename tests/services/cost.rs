//! The cost of a step does not grow with its task, and one task does not drown in conflicts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::ids::{HandlerName, Principal, Queue, StepId, TaskId, WorkerId};
use standfast_domain::time::Span;
use standfast_engine::claims::{ClaimAsk, Report, Stay};
use standfast_stores::redis::{RedisOptions, RedisStore};
use standfast_tests::embedded::World;
use standfast_tests::private_redis::PrivateRedis;

async fn world(redis: &PrivateRedis, directory: &std::path::Path) -> World {
    let store = RedisStore::connect(&RedisOptions::new(redis.url())).await.unwrap();
    World::over(Arc::new(store), Arc::new(InProcessBroker::new()), directory).await
}

/// A plan of `n` parallel steps and a join.
fn wide(n: usize) -> Value {
    let step = |id: String, needs: Vec<String>| json!({ "id": id, "uses": "exec", "needs": needs, "with": { "command": ["true"] } });
    let names: Vec<String> = (0..n).map(|n| format!("s{n}")).collect();
    let mut steps: Vec<Value> = names.iter().map(|name| step(name.clone(), vec![])).collect();
    steps.push(step("join".to_owned(), names));
    json!({ "kind": "wide", "steps": steps })
}

fn ask(task: &TaskId, step: &str, worker: &WorkerId) -> ClaimAsk {
    ClaimAsk {
        task: task.clone(),
        step: StepId::new(step).unwrap(),
        attempt: None,
        worker: worker.clone(),
        principal: Principal::system(),
        length: Span::from_secs(30),
        handlers: None,
    }
}

fn succeeded() -> Report {
    Report::Succeeded {
        output: json!({ "n": 1 }),
        artifacts: vec![],
        cost_usd_micros: 0,
        checkpoint: None,
        then: Value::Null,
    }
}

async fn run_step(world: &World, task: &TaskId, step: &str, worker: &str) {
    let worker = WorkerId::new(worker).unwrap();
    let claimed = world.claims.claim(&ask(task, step, &worker)).await.unwrap();
    let (at, by) = (claimed.at(&worker), Principal::system());
    world.claims.complete(task, at, succeeded(), by).await.unwrap();
}

/// Calls per command, the commands within scripts included, and bytes that came in.
async fn spent(redis: &PrivateRedis) -> (BTreeMap<String, u64>, u64) {
    let text = redis.command(&["INFO", "commandstats"]).await;
    let calls = text
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        // `set` keeps the clock, once a millisecond in which anything is written.
        .filter(|(name, _)| !matches!(*name, "info" | "ping" | "client|setinfo" | "hello" | "set"))
        .map(|(name, rest)| (name.to_owned(), rest.split(',').next().unwrap().parse().unwrap()))
        .collect();
    let text = redis.command(&["INFO", "stats"]).await;
    let bytes = text.lines().find_map(|line| line.strip_prefix("total_net_input_bytes:"));
    (calls, bytes.unwrap().trim().parse().unwrap())
}

/// Calls per command since then, and bytes that came in.
async fn since(
    redis: &PrivateRedis,
    (calls, bytes): (BTreeMap<String, u64>, u64),
) -> (BTreeMap<String, u64>, u64) {
    let (calls_after, bytes_after) = spent(redis).await;
    let delta = calls_after
        .into_iter()
        .map(|(name, count)| {
            let before = calls.get(&name).copied().unwrap_or(0);
            (name, count - before)
        })
        .filter(|(_, count)| *count > 0)
        .collect();
    (delta, bytes_after - bytes)
}

/// What claiming and completing ten steps costs in a task of `n`, once all are ready.
async fn cost_of_ten(n: usize) -> (BTreeMap<String, u64>, u64) {
    let redis = PrivateRedis::start(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let world = world(&redis, directory.path()).await;
    let task = world.submit(wide(n)).await.unwrap();
    standfast_tests::wait::until("all steps to be ready", async || {
        let header = world.header(&task).await?;
        (header.active as usize == n).then_some(())
    })
    .await;
    run_step(&world, &task, "s0", "warm").await;
    let before = spent(&redis).await;
    for step in 1..=10 {
        run_step(&world, &task, &format!("s{step}"), "w").await;
    }
    let spent = since(&redis, before).await;
    world.close().await;
    spent
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_costs_the_same_in_a_task_of_twelve_and_of_five_thousand() {
    let (small, small_bytes) = cost_of_ten(12).await;
    let (large, large_bytes) = cost_of_ten(5_000).await;
    assert_eq!(small, large);
    // Ten claims and ten outcomes: nothing is read but what they are guarded by.
    let wanted = [
        ("evalsha", 20),
        ("get", 20),
        ("hdel", 10),
        ("hmget", 20),
        ("hset", 20),
        ("rpush", 10),
        ("time", 20),
        ("zadd", 10),
        ("zrem", 20),
    ];
    assert_eq!(small, wanted.map(|(name, count)| (name.to_owned(), count)).into());
    let ratio = large_bytes as f64 / small_bytes as f64;
    assert!((0.9..1.1).contains(&ratio), "bytes: {small_bytes} and {large_bytes}");
}

/// A plan of `n` steps, each after the one before.
fn chain(n: usize) -> Value {
    let step = |n: usize| {
        let needs: Vec<String> = n.checked_sub(1).map(|n| format!("s{n}")).into_iter().collect();
        let with = json!({ "command": ["true"] });
        json!({ "id": format!("s{n}"), "uses": "exec", "needs": needs, "with": with })
    };
    json!({ "kind": "chain", "steps": (0..n).map(step).collect::<Vec<_>>() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_has_not_seen_the_birth_reads_with_its_commits() {
    let redis = PrivateRedis::start(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let api = world(&redis, directory.path()).await;
    let worker = world(&redis, directory.path()).await;
    let task = api.submit(chain(13)).await.unwrap();
    standfast_tests::wait::until("the first step to be ready", async || {
        (api.header(&task).await?.active == 1).then_some(())
    })
    .await;
    run_step(&worker, &task, "s0", "w").await;
    let before = spent(&redis).await;
    for step in 1..=10 {
        run_step(&worker, &task, &format!("s{step}"), "w").await;
    }
    let (calls, _) = since(&redis, before).await;
    // The guards of ten claims and ten outcomes, and what the outcomes gave back: no other read.
    assert_eq!((calls["evalsha"], calls["hmget"], calls["get"]), (20, 30, 20), "{calls:?}");
    worker.close().await;
    api.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_a_worker_stays_for_is_one_commit_and_stands_in_no_ready_index() {
    let redis = PrivateRedis::start(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let world = world(&redis, directory.path()).await;
    let task = world.submit(chain(13)).await.unwrap();
    standfast_tests::wait::until("the first step to be ready", async || {
        (world.header(&task).await?.active == 1).then_some(())
    })
    .await;
    let worker = WorkerId::new("w").unwrap();
    let stay = Stay {
        queue: Queue::new("default").unwrap(),
        worker: worker.clone(),
        principal: Principal::system(),
        length: Span::from_secs(30),
        handlers: Arc::new([HandlerName::new("exec").unwrap()].into()),
    };
    let mut claimed = world.claims.claim(&ask(&task, "s0", &worker)).await.unwrap();
    let before = spent(&redis).await;
    for _ in 0..10 {
        let (at, by, stay) = (claimed.at(&worker), Principal::system(), Some(stay.clone()));
        let next = world.claims.complete_and_stay(&task, at, succeeded(), by, stay).await.unwrap();
        claimed = next.unwrap();
    }
    let (calls, _) = since(&redis, before).await;
    let of = |name: &str| calls.get(name).copied().unwrap_or(0);
    // One claim goes, one comes.
    assert_eq!((of("evalsha"), of("zadd"), of("zrem")), (10, 10, 10), "{calls:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_processes_on_one_task_refuse_few_commits() {
    let redis = PrivateRedis::start(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let mut worlds = Vec::new();
    for _ in 0..4 {
        worlds.push(Arc::new(world(&redis, directory.path()).await));
    }
    let task = worlds[0].submit(wide(1_000)).await.unwrap();
    standfast_tests::wait::until("all steps to be ready", async || {
        let header = worlds[0].header(&task).await?;
        (header.active == 1_000).then_some(())
    })
    .await;
    let before: Vec<[u64; 4]> = worlds.iter().map(|world| world.engine.counters().read()).collect();
    let mut running = Vec::new();
    for slot in 0..64 {
        let world = worlds[slot % 4].clone();
        let task = task.clone();
        running.push(tokio::spawn(async move {
            for n in (slot..1_000).step_by(64) {
                run_step(&world, &task, &format!("s{n}"), &format!("w{slot}")).await;
            }
        }));
    }
    for slot in running {
        slot.await.unwrap();
    }
    let mut sums = [0, 0];
    for (world, before) in worlds.iter().zip(before) {
        let after = world.engine.counters().read();
        sums[0] += after[0] - before[0];
        sums[1] += after[1] - before[1];
    }
    let [tried, refused] = sums;
    let ratio = tried as f64 / (tried - refused) as f64;
    println!("tried {tried}, refused {refused}, {ratio:.2} attempted per commit made");
    assert!(ratio <= 1.5, "tried {tried}, refused {refused}");
}
