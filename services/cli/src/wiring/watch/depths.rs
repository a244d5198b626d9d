//! How much waits in each queue, looked up in the store when somebody asks: what autoscalers
//! go by. The broker's own depth says less: messages only wake, and one may be lost or doubled.

use async_trait::async_trait;
use standfast_api::admin::{Gauge, Gauges};
use standfast_domain::commit::Home;
use standfast_domain::ids::{Partition, Queue};
use standfast_domain::index::{parse_ready_member, ready_index};
use standfast_domain::time::Time;
use standfast_engine::ports::Range;
use standfast_engine::{Engine, EngineError};

/// The depths of all queues that plans have named.
pub struct Depths(pub Engine);

#[async_trait]
impl Gauges for Depths {
    async fn read(&self) -> Vec<Gauge> {
        match all(&self.0).await {
            Ok(gauges) => gauges,
            Err(error) => {
                tracing::debug!(%error, "queues not counted");
                Vec::new()
            }
        }
    }
}

async fn all(engine: &Engine) -> Result<Vec<Gauge>, EngineError> {
    let mut gauges = Vec::new();
    let now = engine.store().now().await?;
    for queue in engine.queues().await? {
        gauges.extend(one(engine, &queue, now).await?);
    }
    Ok(gauges)
}

/// Counts a queue's steps that are ready and not claimed, over all partitions.
async fn one(engine: &Engine, queue: &Queue, now: Time) -> Result<[Gauge; 2], EngineError> {
    let index = ready_index(queue);
    let homes: Vec<(Home, String)> =
        Partition::all().map(|p| (Home::Partition(p), index.clone())).collect();
    let ready: u64 = engine.store().counts(&homes).await?.iter().sum();
    let oldest = match ready {
        0 => None,
        _ => oldest(engine, homes).await?,
    };
    let age = oldest.map_or(0, |oldest| now.since(oldest).0 / 1_000);
    let gauge = |name, help, value: u64| Gauge {
        name,
        help,
        labels: vec![("queue", queue.to_string())],
        value: i64::try_from(value).unwrap_or(i64::MAX),
    };
    Ok([
        gauge("standfast_queue_ready", "Steps that are ready and not claimed", ready),
        gauge(
            "standfast_queue_oldest_ready_age_seconds",
            "How long the oldest of these has been ready",
            age,
        ),
    ])
}

async fn oldest(engine: &Engine, homes: Vec<(Home, String)>) -> Result<Option<Time>, EngineError> {
    let first = |(home, index)| Range {
        home,
        index,
        after: String::new(),
        before: None,
        limit: 1,
        reverse: false,
    };
    let ranges: Vec<Range> = homes.into_iter().map(first).collect();
    let pages = engine.store().ranges(&ranges).await?;
    let times = pages.iter().flatten().filter_map(|member| Some(parse_ready_member(member)?.0));
    Ok(times.min())
}
