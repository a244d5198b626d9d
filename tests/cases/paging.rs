//! Pages over tasks of one and the same millisecond, while others come and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;
use standfast_engine::ports::{Load, Range, Store, StoreError, StoreHealth};
use standfast_stores::redb::RedbStore;
use standfast_tests::embedded::World;
use standfast_tests::wait;

use crate::support::{Server, plan, step};

/// A store whose clock stands where it is put.
struct Frozen {
    store: Arc<RedbStore>,
    time: AtomicI64,
}

impl Frozen {
    fn time(&self) -> Time {
        Time(self.time.load(Ordering::SeqCst))
    }
}

#[async_trait]
impl Store for Frozen {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        Ok((self.time(), self.store.load(loads).await?.1))
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        Ok((self.time(), self.store.commit(commits).await?.1))
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
        Ok(self.time())
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.store.health().await
    }
}

async fn submit(server: &Server, kind: &str) -> String {
    let mut plan = plan(vec![step("a", &[], "true")]);
    plan["kind"] = json!(kind);
    plan["retention"] = json!("1s");
    server.submit(&plan).await.task()
}

async fn stop(server: &Server, task: &str) {
    let path = format!("/v1/tasks/{task}/stop");
    assert_eq!(server.post(&path, r#"{"mode":"halt"}"#).await.status, 200);
}

/// Two worlds over one file: one whose clock stands an hour ago, and one with the real clock,
/// whose scheduler therefore removes what has ended in the first.
async fn worlds() -> (tempfile::TempDir, Arc<Frozen>, World, World) {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::open(directory.path()).unwrap());
    let real = store.now().await.unwrap();
    let frozen =
        Arc::new(Frozen { store: store.clone(), time: AtomicI64::new(real.0 - 3_600_000) });
    let broker = Arc::new(InProcessBroker::new());
    let still = World::over(frozen.clone(), broker.clone(), directory.path()).await;
    let mut moving = World::over(store, broker, directory.path()).await;
    moving.schedule();
    (directory, frozen, still, moving)
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_millisecond_are_each_paged_once_while_others_come_and_go() {
    let (_directory, frozen, still, moving) = worlds().await;
    let server = Server::start(&still).await;
    let mut staying = Vec::new();
    let mut going = Vec::new();
    for n in 0..300 {
        match n % 6 {
            0 => going.push(submit(&server, "going").await),
            _ => staying.push(submit(&server, "staying").await),
        }
    }
    frozen.time.fetch_sub(1_000, Ordering::SeqCst);
    for _ in 0..20 {
        staying.push(submit(&server, "staying").await);
    }
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let (mut cursor, mut come) = (String::new(), 0);
    loop {
        let page = server.get(&format!("/v1/tasks?limit=7{cursor}")).await.json();
        for task in page["tasks"].as_array().unwrap() {
            *seen.entry(task["id"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
        for _ in 0..2 {
            if let Some(task) = going.pop() {
                stop(&server, &task).await;
                wait::until("a task to be removed", async || {
                    let gone = server.get(&format!("/v1/tasks/{task}")).await.status == 404;
                    gone.then_some(())
                })
                .await;
            }
            if come < 50 {
                submit(&server, "coming").await;
                come += 1;
            }
        }
    }
    for task in &staying {
        assert_eq!(seen.get(task), Some(&1), "{task}");
    }
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    assert_eq!((come, going.len()), (50, 0));
    server.stop().await;
    moving.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_by_state_gives_each_task_of_one_millisecond_that_keeps_its_state_once() {
    let (_directory, _frozen, still, moving) = worlds().await;
    let server = Server::start(&still).await;
    let mut tasks = Vec::new();
    for _ in 0..60 {
        tasks.push(submit(&server, "changing").await);
    }
    let (leaving, staying) = tasks.split_at(20);
    let mut leaving = leaving.iter();
    let mut seen: Vec<Value> = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("/v1/tasks?state=queued&limit=7{cursor}")).await.json();
        seen.extend(page["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
        for task in leaving.by_ref().take(3) {
            stop(&server, task).await;
        }
    }
    for task in staying {
        assert_eq!(seen.iter().filter(|id| *id == task).count(), 1, "{task}");
    }
    server.stop().await;
    moving.close().await;
}
