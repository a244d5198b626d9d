//! What comes and goes leaves nothing behind in the processes, nor scripts in Redis.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use standfast_tests::fleet::Process;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

use crate::ledger::{noted, started, wait_for};

/// Times that all connections to Redis are cut.
const CUTS: usize = 100;
/// Clients that follow a task and go away.
const CLIENTS: usize = 200;
/// Open files beyond those before that are no leak: pools that grew to their size.
const POOLED: usize = 4;

/// Tasks of the run that looks at memory, unless `STANDFAST_TEST_TASKS` says otherwise.
const TASKS: usize = 300;
/// Tasks that are submitted before anybody looks whether the worker keeps up.
const BATCH: usize = 100;
/// How far the worker may be behind.
const BEHIND_MAX: usize = 200;
/// What memory may grow by between the first sixth of the tasks and the last: a part of it, or
/// what an allocator keeps in a short run.
const GROWTH_MAX: f64 = 0.15;
const KEPT_BYTES: u64 = 8 * 1024 * 1024;

async fn scripts(own: &Installation) -> u64 {
    let info = own.redis.command(&["INFO", "memory"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("number_of_cached_scripts:"));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_connections_and_clients_that_went_leave_no_file_open_and_no_script() {
    let own = Installation::start("30s").await;
    let processes = [
        Process::start(&own, "api", &["api"], &[]),
        Process::start(&own, "scheduler", &["scheduler"], &[]),
        Process::start(&own, "worker", &["worker"], &[]),
    ];
    for process in &processes {
        process.green(Duration::from_secs(30)).await;
    }
    let gate = own.path().join("gate");
    let steps = json!([noted(&own, "only", &[], &wait_for(&gate))]);
    let plan = json!({ "kind": "growth", "steps": steps });
    let task = own.client().submit(plan).await.unwrap().id;
    started(&own, 1).await;
    for process in &processes {
        process.green(Duration::from_secs(10)).await;
    }
    let base: Vec<usize> = processes.iter().map(Process::open_files).collect();
    let scripts_before = scripts(&own).await;

    for cut in 0..CUTS {
        own.redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        // Each process has connected anew once it answers; the scheduler never rests anyway.
        let process = &processes[cut % processes.len()];
        wait::until("a process to answer", async || process.ready().await.ok()).await;
    }
    let url = format!("{}/v1/tasks/{task}/events", own.url());
    let follow = || async {
        let client = reqwest::Client::new();
        let request = client.get(&url).bearer_auth(&own.token);
        let answer = request.header("accept", "text/event-stream").send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer // dropped with its connection, its stream still open
    };
    for _ in 0..CLIENTS / 20 {
        drop(join_all((0..20).map(|_| follow())).await);
    }
    for (process, base) in processes.iter().zip(base) {
        let mut last = 0;
        let what = format!("{} to close what it opened beyond {base}", process.name);
        wait::until(&what, async || {
            last = process.open_files();
            (last <= base + POOLED).then_some(())
        })
        .await;
    }
    assert_eq!(scripts(&own).await, scripts_before);
    std::fs::write(&gate, "").unwrap();
    own.completed(std::slice::from_ref(&task)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_does_not_grow_with_the_tasks_that_went_through() {
    let given = std::env::var("STANDFAST_TEST_TASKS").ok();
    let tasks = given.map_or(TASKS, |text| text.parse().unwrap());
    let own = Installation::start("30s").await;
    let processes = [
        Process::start(&own, "api", &["api"], &[]),
        Process::start(&own, "scheduler", &["scheduler"], &[]),
        Process::start(&own, "worker", &["worker", "--concurrency", "16"], &[]),
    ];
    for process in &processes {
        process.green(Duration::from_secs(30)).await;
    }
    let step = json!({ "id": "only", "uses": "exec", "with": { "command": ["true"] } });
    let plan = json!({ "kind": "tiny", "retention": "30s", "steps": [step] });
    let client = own.client();
    let mut looks: Vec<[u64; 3]> = Vec::new();
    for done in (BATCH..=tasks).step_by(BATCH) {
        join_all((0..BATCH).map(|_| async { client.submit(plan.clone()).await.unwrap() })).await;
        let started = r#"standfast_worker_attempts_started_total{queue="default"}"#;
        let least = done.saturating_sub(BEHIND_MAX) as f64;
        wait::until(&format!("the worker to keep up with {done} tasks"), async || {
            (processes[2].metric(started).await >= least).then_some(())
        })
        .await;
        if done % (tasks / 6).next_multiple_of(BATCH) == 0 {
            looks.push([0, 1, 2].map(|n| processes[n].memory()));
            let megabytes = looks[looks.len() - 1].map(|bytes| bytes / (1024 * 1024));
            let keys = own.redis.command(&["DBSIZE"]).await;
            println!("{done} tasks: api, scheduler, worker MiB {megabytes:?}; {keys} keys");
        }
    }
    let (first, last) = (looks[0], looks[looks.len() - 1]);
    for (n, process) in processes.iter().enumerate() {
        let most = first[n] + KEPT_BYTES.max((first[n] as f64 * GROWTH_MAX) as u64);
        assert!(last[n] <= most, "{}: {looks:?}", process.name);
    }
}
