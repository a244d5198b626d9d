//! Tasks that ask for more than one commit of a store holds: it is cut, and the task goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::decide::Command;
use standfast_domain::ids::TaskId;
use standfast_domain::record::{Status, StopMode, TaskState};
use standfast_domain::time::Time;
use standfast_engine::ports::{Load, Range, Store, StoreError, StoreHealth};
use standfast_engine::stopping::{ByPlan, StoppedBy};
use standfast_stores::redb::RedbStore;
use standfast_tests::embedded::World;
use standfast_tests::wait;

fn step(name: &str, needs: &[&str], queue: &str) -> Value {
    json!({
        "id": name, "uses": "exec", "needs": needs, "queue": queue,
        "with": { "command": ["true"] }
    })
}

/// Steps of which each stands in three indexes once it is ready.
fn timed(number: usize, needs: &[&str]) -> Value {
    let mut step = step(&format!("s{number}"), needs, "away");
    step["timeout"] = json!({ "queue": "1h", "total": "2h" });
    step
}

async fn until_ready(world: &World, task: &TaskId, steps: usize) {
    for number in 0..steps {
        wait::until(&format!("step s{number} to be ready"), async || {
            let state = world.step(task, &format!("s{number}")).await?;
            matches!(state.status, Status::Ready { .. }).then_some(())
        })
        .await;
    }
}

/// A task of many steps that are ready and that no worker takes.
async fn waiting(world: &World, steps: usize) -> TaskId {
    let steps_given = (0..steps).map(|n| step(&format!("s{n}"), &[], "away")).collect::<Vec<_>>();
    let task = world.submit(json!({ "kind": "wide", "steps": steps_given })).await.unwrap();
    until_ready(world, &task, steps).await;
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_with_more_ready_steps_than_a_commit_has_guards_is_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::open(directory.path()).await;
    let task = waiting(&world, 600).await;
    let stop = Command::Stop { reason: None, mode: StopMode::Halt };
    assert!(world.command(&task, stop).await.unwrap());
    world.wait_verified(&task, TaskState::Cancelled).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn and_so_it_is_by_a_plan() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::open(directory.path()).await;
    let task = waiting(&world, 600).await;
    let mut plans = world.engine.stop_plans(&task, &[StopMode::Halt]).await.unwrap();
    let digest = plans.remove(0).digest().unwrap().to_owned();
    let by = ByPlan { mode: StopMode::Halt, reason: None, digest };
    let local = standfast_domain::ids::Principal::local();
    let stopped = world.engine.stop_by_plan(&task, &by, &local, &[]).await.unwrap();
    assert!(matches!(stopped, StoppedBy::Stopped(_)));
    world.wait_verified(&task, TaskState::Cancelled).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_steps_with_two_timers_each_become_ready_from_a_birth() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::open(directory.path()).await;
    let steps: Vec<Value> = (0..240).map(|number| timed(number, &[])).collect();
    let task = world.submit(json!({ "kind": "timed", "steps": steps })).await.unwrap();
    until_ready(&world, &task, 240).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_steps_with_two_timers_each_become_ready_from_one_success() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::open(directory.path()).await;
    let first = [step("first", &[], "default")];
    let steps: Vec<Value> =
        first.into_iter().chain((0..198).map(|number| timed(number, &["first"]))).collect();
    let task = world.submit(json!({ "kind": "timed", "steps": steps })).await.unwrap();
    world.work(&["default"], 1);
    until_ready(&world, &task, 198).await;
    world.close().await;
}

/// A store that breaks off in one call, as a fault of ours would.
struct Faulty {
    inner: RedbStore,
    breaks: Arc<AtomicBool>,
}

#[async_trait]
impl Store for Faulty {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        self.inner.load(loads).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        assert!(!self.breaks.swap(false, Ordering::SeqCst), "a fault of ours");
        self.inner.commit(commits).await
    }

    async fn events(
        &self,
        scope: &Scope,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        self.inner.events(scope, from, limit).await
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        self.inner.ranges(ranges).await
    }

    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError> {
        self.inner.counts(indexes).await
    }

    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError> {
        self.inner.erase(task, limit).await
    }

    async fn now(&self) -> Result<Time, StoreError> {
        self.inner.now().await
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.inner.health().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_in_the_commands_of_one_task_leaves_its_lane_to_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let breaks = Arc::new(AtomicBool::new(false));
    let inner = RedbStore::open(directory.path()).unwrap();
    let store = Arc::new(Faulty { inner, breaks: breaks.clone() });
    let broker = Arc::new(InProcessBroker::new());
    let world = World::over(store, broker, directory.path()).await;
    let task = waiting(&world, 1).await;
    breaks.store(true, Ordering::SeqCst);
    let pause = || Command::Pause { reason: None };
    assert!(world.command(&task, pause()).await.is_err(), "its answer is lost with the lane");
    assert!(world.command(&task, pause()).await.unwrap(), "the same lane goes on");
    world.close().await;
}
