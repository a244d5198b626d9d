//! A process that dies right before or after a submission is stored: what was answered runs,
//! and the same key is the same task.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::{Principal, Queue, TaskId};
use standfast_domain::record::TaskState;
use standfast_domain::time::Time;
use standfast_engine::EngineError;
use standfast_engine::ports::{
    Broker, BrokerError, BrokerHealth, Depth, Load, Message, Range, Source, Store, StoreError,
    StoreHealth, Subscription,
};
use standfast_engine::submission::{RETENTION_DEFAULT, Submitted, prepare};
use standfast_stores::redb::RedbStore;
use standfast_tests::embedded::World;

use crate::support::{count, plan, step};

/// A broker that takes nothing and answers nothing, like a process that died before it asked.
struct Away;

#[async_trait]
impl Broker for Away {
    async fn declare(&self, _: &Queue) -> Result<(), BrokerError> {
        Err(BrokerError::Unavailable("away".into()))
    }

    async fn publish(&self, messages: Vec<Message>, _: Duration) -> Vec<Result<(), BrokerError>> {
        messages.iter().map(|_| Err(BrokerError::Unavailable("away".into()))).collect()
    }

    fn tell(&self, _: Bytes) {}

    async fn subscribe(&self, _: Source, _: u16) -> Result<Box<dyn Subscription>, BrokerError> {
        Err(BrokerError::Unavailable("away".into()))
    }

    async fn depth(&self, _: &Queue) -> Result<Depth, BrokerError> {
        Err(BrokerError::Unavailable("away".into()))
    }

    async fn health(&self) -> BrokerHealth {
        BrokerHealth::default()
    }
}

/// A store that writes so many commits and then, like a process that died, no more. With
/// `silent` the last one is written, and its answer lost.
struct Dying {
    store: Arc<RedbStore>,
    left: AtomicI64,
    silent: bool,
}

fn dead<T>() -> Result<T, StoreError> {
    Err(StoreError::ReadOnly("the process is dead".into())) // tried no second time
}

#[async_trait]
impl Store for Dying {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        match self.left.load(Ordering::SeqCst) > 0 {
            true => self.store.load(loads).await,
            false => dead(),
        }
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left == 1 && self.silent {
            self.store.commit(commits).await?;
        }
        match left > 1 {
            true => self.store.commit(commits).await,
            false => dead(),
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
        match self.left.load(Ordering::SeqCst) > 0 {
            true => self.store.now().await,
            false => dead(),
        }
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.store.health().await
    }
}

/// Gives a plan of so many steps that all but the first skip; large ones are written ahead.
fn keyed(key: &str, steps: usize) -> Value {
    let mut all = vec![step("a", &[], "true")];
    all.extend((1..steps).map(|n| {
        let mut step = step(&format!("s{n}"), &["a"], "true");
        step["if"] = json!("false");
        step
    }));
    let mut plan = plan(all);
    plan["idempotency_key"] = json!(key);
    plan
}

async fn submit(world: &World, plan: Value) -> Result<(TaskId, bool), EngineError> {
    let submitted = Submitted {
        body: plan,
        plan_dir: None,
        by: Principal::local(),
        key: None,
        traceparent: None,
    };
    let announced = BTreeSet::new();
    let submission = prepare(submitted, RETENTION_DEFAULT, &world.handlers, &announced).unwrap();
    world.engine.submit(submission).await
}

async fn alive(store: &Arc<RedbStore>, directory: &std::path::Path) -> World {
    let mut world = World::over(store.clone(), Arc::new(InProcessBroker::new()), directory).await;
    standfast_scheduler::publish_ready(&world.engine).await.unwrap();
    world.work(&["default"], 4);
    world.schedule();
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_before_its_messages_were_sent_runs_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::open(directory.path()).unwrap());
    let dying = World::over(store.clone(), Arc::new(Away), directory.path()).await;
    let mut answered = Vec::new();
    for n in 0..20 {
        answered.push(submit(&dying, keyed(&format!("k{n}"), 2)).await.unwrap().0);
    }
    drop(dying);
    let world = alive(&store, directory.path()).await;
    for (n, task) in answered.iter().enumerate() {
        let again = submit(&world, keyed(&format!("k{n}"), 2)).await.unwrap();
        assert_eq!(again, (task.clone(), false));
        world.wait_verified(task, TaskState::Completed).await;
    }
    assert_eq!(count(&world.engine, "tasks").await, 20);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_any_commit_of_a_submission_leaves_no_task_or_one_that_runs() {
    for (steps, silent) in [(2, false), (2, true), (120, false), (120, true)] {
        for commits in 1..=4 {
            let directory = tempfile::tempdir().unwrap();
            let store = Arc::new(RedbStore::open(directory.path()).unwrap());
            let left = AtomicI64::new(i64::MAX);
            let dying = Arc::new(Dying { store: store.clone(), left, silent });
            let broker = Arc::new(InProcessBroker::new());
            let world = World::over(dying.clone(), broker, directory.path()).await;
            dying.left.store(commits, Ordering::SeqCst);
            // The process is gone at its last commit, whatever it would have tried after it.
            let submitting = submit(&world, keyed("k", steps));
            let gone = async {
                standfast_tests::wait::until("the death", async || {
                    (dying.left.load(Ordering::SeqCst) <= 0).then_some(())
                })
                .await;
            };
            let answered = tokio::select! {
                biased;
                answered = submitting => answered.ok(),
                () = gone => None,
            };
            drop(world);
            let world = alive(&store, directory.path()).await;
            let before = count(&world.engine, "tasks").await;
            let (task, created) = submit(&world, keyed("k", steps)).await.unwrap();
            assert_eq!(created, before == 0, "{steps} steps, {commits} commits");
            if let Some((answered, _)) = answered {
                assert_eq!((answered, created), (task.clone(), false));
            }
            world.wait_verified(&task, TaskState::Completed).await;
            assert_eq!(count(&world.engine, "tasks").await, 1);
            world.close().await;
        }
    }
}
