//! What Redis keeps of tasks that have ended, and where the bytes are.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use standfast_tests::private_redis::PrivateRedis;
use standfast_tests::wait;

/// Tasks whose keys are weighed one by one.
const WEIGHED: usize = 500;
/// Keys that one step of the walk looks at.
const SCAN_COUNT: usize = 1_000;
/// The pause between two looks at the memory in use.
const PAUSE: Duration = Duration::from_secs(1);
/// Looks after which it is taken as it is.
const LOOKS_MAX: usize = 20;
/// By how much two looks may differ, in parts of the whole.
const STILL: f64 = 0.001;

/// Gives the bytes in use, once two looks agree.
pub async fn settled(redis: &PrivateRedis) -> u64 {
    let mut last = used(redis).await;
    for _ in 0..LOOKS_MAX {
        wait::pass(PAUSE).await;
        let now = used(redis).await;
        let difference = now.abs_diff(last) as f64;
        last = now;
        if difference <= now as f64 * STILL {
            break;
        }
    }
    last
}

async fn used(redis: &PrivateRedis) -> u64 {
    let info = redis.command(&["INFO", "memory"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
}

/// Weighs the keys: the hash of a task's records and the list of its events on average, each
/// index as a whole; and the fields of one task.
pub async fn kept(redis: &PrivateRedis, quiet: bool) -> anyhow::Result<Value> {
    let client = redis::Client::open(redis.url())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let (mut tasks, mut indexes) = (Vec::new(), Vec::new());
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("COUNT").arg(SCAN_COUNT);
        let (next, keys): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
        for key in keys {
            if key.contains("}:r:t") {
                tasks.push(key);
            } else if key.contains("}:i:") {
                indexes.push(key);
            }
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    // Chains of the jobs are among them; those of one step have the fewest events.
    let mut records = Vec::new();
    let mut events = Vec::new();
    let mut shown = None;
    for key in &tasks {
        if records.len() == WEIGHED {
            break;
        }
        let log = key.replacen("}:r:", "}:e:", 1);
        let fields: Vec<(String, redis::Value)> =
            redis::cmd("HGETALL").arg(key).query_async(&mut connection).await?;
        if fields.iter().any(|(field, _)| field.contains("s9")) {
            continue; // a chain
        }
        records.push(weight(&mut connection, key).await?);
        events.push(weight(&mut connection, &log).await?);
        if shown.is_none() {
            shown = Some(dissected(&mut connection, key, &log).await?);
        }
    }
    let mean = |all: &[u64]| all.iter().sum::<u64>() as f64 / all.len().max(1) as f64;
    let mut by_index: BTreeMap<String, f64> = BTreeMap::new();
    for key in &indexes {
        let name = key.split_once("}:i:").map_or("", |(_, name)| name);
        let bytes = weight(&mut connection, key).await? as f64 / tasks.len().max(1) as f64;
        *by_index.entry(name.to_owned()).or_default() += bytes;
    }
    let shown = shown.unwrap_or_default();
    if !quiet {
        println!("  of a task of one step that has ended, in bytes ({} tasks):", tasks.len());
        println!("    records {:.0}, events {:.0}", mean(&records), mean(&events));
        println!("    indexes, their bytes over all tasks: {}", json!(by_index));
        println!("    one task: {shown:#}");
    }
    Ok(json!({ "tasks": tasks.len(), "records": mean(&records), "events": mean(&events),
        "indexes": by_index, "one": shown }))
}

async fn weight(
    connection: &mut redis::aio::MultiplexedConnection,
    key: &str,
) -> anyhow::Result<u64> {
    let mut usage = redis::cmd("MEMORY");
    usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
    let bytes: Option<u64> = usage.query_async(connection).await?;
    Ok(bytes.unwrap_or(0))
}

/// Shows one task: how its keys are encoded, and how long each field and event is.
async fn dissected(
    connection: &mut redis::aio::MultiplexedConnection,
    key: &str,
    log: &str,
) -> anyhow::Result<Value> {
    let fields: BTreeMap<String, Vec<u8>> =
        redis::cmd("HGETALL").arg(key).query_async(connection).await?;
    let events: Vec<Vec<u8>> =
        redis::cmd("LRANGE").arg(log).arg(0).arg(-1).query_async(connection).await?;
    let mut encodings = Vec::new();
    for key in [key, log] {
        let mut encoding = redis::cmd("OBJECT");
        let text: String = encoding.arg("ENCODING").arg(key).query_async(connection).await?;
        encodings.push(text);
    }
    let lengths: BTreeMap<&String, usize> =
        fields.iter().map(|(field, value)| (field, value.len())).collect();
    let events: Vec<usize> = events.iter().map(Vec::len).collect();
    Ok(json!({ "encodings": encodings, "fields": lengths, "events": events }))
}
