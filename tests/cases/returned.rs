//! A commit whose answer was lost is tried again, and may have stood for a while by then: what it
//! would give back is not taken in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::{Principal, StepId, TaskId, WorkerId};
use standfast_domain::time::{Span, Time};
use standfast_engine::claims::{ClaimAsk, Report};
use standfast_engine::ports::{Load, Range, Store, StoreError, StoreHealth};
use standfast_stores::redb::RedbStore;
use standfast_tests::embedded::World;

use crate::support::{plan, step};

/// Counts loads, and may lose the answer to the next commit that gives something back.
struct Losing {
    store: Arc<RedbStore>,
    loads: AtomicUsize,
    loses: AtomicBool,
}

#[async_trait]
impl Store for Losing {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.store.load(loads).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let answer = self.store.commit(commits).await;
        let returns = commits.iter().any(|commit| !commit.returns.is_empty());
        match returns && self.loses.swap(false, Ordering::SeqCst) {
            true => Err(StoreError::Unavailable("its answer was lost".into())),
            false => answer,
        }
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

/// Runs a step; says how often its claim has loaded.
async fn run(world: &World, store: &Losing, task: &TaskId, step: &str) -> usize {
    let (worker, by) = (WorkerId::new("w").unwrap(), Principal::system());
    let ask = ClaimAsk {
        task: task.clone(),
        step: StepId::new(step).unwrap(),
        attempt: None,
        worker: worker.clone(),
        principal: by.clone(),
        length: Span::from_secs(30),
        handlers: None,
    };
    let before = store.loads.load(Ordering::SeqCst);
    let claimed = world.claims.claim(&ask).await.unwrap();
    let loaded = store.loads.load(Ordering::SeqCst) - before;
    let report = Report::Succeeded {
        output: json!(1),
        artifacts: vec![],
        cost_usd_micros: 0,
        checkpoint: None,
        then: Value::Null,
    };
    world.claims.complete(task, claimed.at(&worker), report, by).await.unwrap();
    loaded
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_commit_tried_again_gives_back_is_read_anew() {
    let directory = tempfile::tempdir().unwrap();
    let redb = Arc::new(RedbStore::open(&directory.path().join("standfast.redb")).unwrap());
    let (loads, loses) = (AtomicUsize::new(0), AtomicBool::new(false));
    let store = Arc::new(Losing { store: redb.clone(), loads, loses });
    let api = World::over(redb, Arc::new(InProcessBroker::new()), directory.path()).await;
    let broker = Arc::new(InProcessBroker::new());
    let worker = World::over(store.clone(), broker, directory.path()).await;
    let chain = plan(vec![
        step("a", &[], "true"),
        step("b", &["a"], "true"),
        step("c", &["b"], "true"),
        step("d", &["c"], "true"),
    ]);
    let task = api.submit(chain).await.unwrap();
    run(&worker, &store, &task, "a").await;
    assert_eq!(run(&worker, &store, &task, "b").await, 0, "it came with the end of `a`");
    store.loses.store(true, Ordering::SeqCst);
    run(&worker, &store, &task, "c").await;
    assert!(!store.loses.load(Ordering::SeqCst), "an answer was lost");
    assert!(run(&worker, &store, &task, "d").await > 0, "what came with the end of `c` may be old");
    worker.close().await;
    api.close().await;
}
