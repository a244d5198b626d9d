//! Steps whose worker died are all run again, whatever happens to Redis and to the queue while
//! they are taken over, and by however many schedulers at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::join_all;
use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::event::Change;
use standfast_domain::ids::{Principal, Queue, StepId, TaskId, WorkerId};
use standfast_domain::record::TaskState;
use standfast_domain::time::{Span, Time};
use standfast_engine::claims::ClaimAsk;
use standfast_engine::ports::{Broker, Load, Range, Store, StoreError, StoreHealth};
use standfast_stores::redis::{RedisOptions, RedisStore};
use standfast_tests::binary::Draw;
use standfast_tests::embedded::World;
use standfast_tests::private_redis::PrivateRedis;
use standfast_tests::services::Place;
use standfast_tests::wait;

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--maxmemory-policy", "noeviction"];
/// How long claims last here.
const CLAIM: Span = Span::from_secs(2);

async fn store(redis: &PrivateRedis) -> RedisStore {
    RedisStore::connect(&RedisOptions::new(redis.url())).await.unwrap()
}

/// Gives a plan of steps without needs; each writes its name to the ledger.
fn plan(steps: usize) -> Value {
    let step = |n: usize| {
        json!({ "id": format!("s{n}"), "uses": "exec", "retry": { "backoff": "0s" },
                "with": { "command": ["sh", "-c",
                    "echo $STANDFAST_TASK/$STANDFAST_STEP >> ${{ plan.dir }}/ledger"] } })
    };
    json!({ "kind": "orphans", "steps": (0..steps).map(step).collect::<Vec<_>>() })
}

/// Submits tasks, and claims each of their steps as a worker that died right after would have.
async fn orphans(world: &World, tasks: usize, steps: usize) -> Vec<TaskId> {
    let mut made = Vec::new();
    for _ in 0..tasks {
        made.push(world.submit(plan(steps)).await.unwrap());
    }
    let asks = made.iter().flat_map(|task| {
        (0..steps).map(|n| ClaimAsk {
            task: task.clone(),
            step: StepId::new(format!("s{n}")).unwrap(),
            attempt: Some(1),
            worker: WorkerId::new("w-dead").unwrap(),
            principal: Principal::system(),
            length: CLAIM,
            handlers: None,
        })
    });
    let asks: Vec<ClaimAsk> = asks.collect();
    for claimed in join_all(asks.iter().map(|ask| world.claims.claim(ask))).await {
        claimed.unwrap();
    }
    made
}

/// Counts the starts of each step.
fn starts(world: &World) -> BTreeMap<String, usize> {
    let mut starts = BTreeMap::new();
    let text = std::fs::read_to_string(world.directory.join("ledger")).unwrap_or_default();
    for line in text.lines() {
        *starts.entry(line.to_owned()).or_insert(0) += 1;
    }
    starts
}

/// Checks that each step started once and was lost once before.
async fn once_each(world: &World, tasks: &[TaskId], steps: usize) {
    for task in tasks {
        world.wait_verified(task, TaskState::Completed).await;
        let events = world.events(task).await;
        let lost =
            events.iter().filter(|event| matches!(event.change, Change::AttemptFailed { .. }));
        assert_eq!(lost.count(), steps, "{task}");
    }
    let starts = starts(world);
    assert_eq!(starts.len(), tasks.len() * steps);
    assert!(starts.values().all(|times| *times == 1), "{starts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_worker_died_at_once_is_run_soon_after_it_expires() {
    let redis = PrivateRedis::start(&DURABLE).await;
    let directory = tempfile::tempdir().unwrap();
    let broker = Arc::new(InProcessBroker::new());
    let mut world = World::over(Arc::new(store(&redis).await), broker, directory.path()).await;
    world.claim_length = CLAIM;
    let start = Instant::now();
    let tasks = orphans(&world, 1, 1).await;
    world.work(&["default"], 2);
    world.schedule();
    once_each(&world, &tasks, 1).await;
    let most = CLAIM.to_std() + Duration::from_secs(5);
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_cannot_be_read_strands_no_other() {
    let redis = PrivateRedis::start(&DURABLE).await;
    let directory = tempfile::tempdir().unwrap();
    let broker = Arc::new(InProcessBroker::new());
    let mut world = World::over(Arc::new(store(&redis).await), broker, directory.path()).await;
    world.claim_length = CLAIM;
    let torn = orphans(&world, 1, 1).await.remove(0); // it expires first
    let tasks = orphans(&world, 3, 1).await;
    let key = format!("{{standfast:p{:02x}}}:r:{torn}", torn.partition().number());
    redis.command(&["HSET", &key, "claim/s0", "0123456789abcdefnot JSON"]).await;
    world.work(&["default"], 2);
    world.schedule();
    once_each(&world, &tasks, 1).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_orphans_all_run_though_redis_restarts_twice_and_the_queue_is_lost() {
    let mut redis = PrivateRedis::start(&DURABLE).await;
    let place = Place::new();
    let directory = tempfile::tempdir().unwrap();
    let broker = place.broker().await;
    let shared = Arc::new(store(&redis).await);
    let mut world = World::over(shared, broker.clone(), directory.path()).await;
    world.claim_length = CLAIM;
    let tasks = orphans(&world, 10, 30).await;
    let start = Instant::now();
    world.work(&["default"], 8);
    world.schedule();
    for round in 0..2 {
        wait::until("take-overs to have begun", async || {
            (starts(&world).len() > 5 + 40 * round).then_some(())
        })
        .await;
        redis.kill();
        wait::pass(Duration::from_millis(500)).await;
        redis.revive().await;
    }
    delete_queue(&place).await;
    once_each(&world, &tasks, 30).await;
    let most = 2 * CLAIM.to_std() + Duration::from_secs(60);
    assert!(start.elapsed() < most, "{:?}", start.elapsed());
    world.close().await;
    place.clean(&["default"]).await;
}

/// Deletes the step queue with its messages and consumers.
async fn delete_queue(place: &Place) {
    let url = standfast_tests::services::amqp_url();
    let connection = lapin::Connection::connect(&url, Default::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let name = format!("{}.steps.default", place.prefix);
    channel.queue_delete(name.as_str().into(), Default::default()).await.unwrap();
    connection.close(200, "done".into()).await.unwrap();
}

/// A store under a scheduler that believes to be alone and that acts on what it read up to two
/// seconds ago.
struct Hesitating {
    store: Arc<RedisStore>,
    draw: tokio::sync::Mutex<Draw>,
}

#[async_trait]
impl Store for Hesitating {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        self.store.load(loads).await
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        self.store.commit(commits).await
    }

    async fn events(&self, scope: &Scope, from: u64, n: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        self.store.events(scope, from, n).await
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        let pages = self.store.ranges(ranges).await?;
        match ranges.first().map(|range| range.index.as_str()) {
            Some("schedulers") => Ok(pages.iter().map(|_| Vec::new()).collect()),
            Some("expiries") => {
                let pause = self.draw.lock().await.below(500); // one of three looks at a time
                wait::pass(Duration::from_millis(pause)).await;
                Ok(pages)
            }
            _ => Ok(pages),
        }
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
async fn a_hundred_orphans_under_three_schedulers_that_act_on_old_lists_start_once_each() {
    let place = Place::new();
    let directory = tempfile::tempdir().unwrap();
    let broker = place.broker().await;
    let mut worlds = Vec::new();
    for _ in 0..3 {
        let draw = tokio::sync::Mutex::new(Draw::new());
        let hesitating = Arc::new(Hesitating { store: place.store().await, draw });
        let mut world = World::over(hesitating, broker.clone(), directory.path()).await;
        world.claim_length = CLAIM;
        worlds.push(world);
    }
    let tasks = orphans(&worlds[0], 4, 25).await;
    for world in &mut worlds {
        world.schedule();
    }
    worlds[2].work(&["default"], 8);
    once_each(&worlds[1], &tasks, 25).await;
    let queue = Queue::new("default").unwrap();
    wait::until("no message to be left", async || {
        (broker.depth(&queue).await.ok()?.ready == 0).then_some(())
    })
    .await;
    once_each(&worlds[1], &tasks, 25).await;
    for world in worlds {
        world.close().await;
    }
    place.clean(&["default"]).await;
}
