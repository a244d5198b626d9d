//! What grows with tasks: what a step costs in tasks of more and more steps, what it costs beside
//! more and more stored tasks, and what Redis keeps of one that has ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use standfast_bench::{Figures, Meter, Sample, Site, Sites, growing, singles};

use crate::ground::{Ground, Rabbit, Servers, each};
use crate::memory::{kept, settled};
use crate::options::Options;
use crate::rounds::WARM_UP;

/// Tasks of one step that are stored at a time.
const PORTION: usize = 5_000;
/// Chains of ten steps that are run beside stored tasks: for about a second.
const CHAINS: usize = 1_000;

/// What steps cost at one size.
struct Cost {
    rate: Figures,
    cpu_us_each: f64,
    /// Commands of Redis for each step, by name; none where there is no Redis.
    commands: BTreeMap<String, f64>,
}

impl Cost {
    fn commands_each(&self) -> f64 {
        self.commands.values().fold(0.0, |sum, each| sum + each)
    }
}

/// Measures on Redis and RabbitMQ, and embedded where that was asked for too.
pub async fn all(options: &Options) -> anyhow::Result<Value> {
    let rabbit = Arc::new(Rabbit::open(options).await);
    let mut grounds = serde_json::Map::new();
    for persistence in &options.persistence {
        let ground = Ground::Services(Servers::open(rabbit.clone(), *persistence).await);
        let name = format!("services, {}", persistence.name());
        grounds.insert(name.clone(), on(&ground, &name, options).await?);
    }
    if options.embedded {
        grounds.insert("embedded".to_owned(), on(&Ground::Folder, "embedded", options).await?);
    }
    Ok(Value::Object(grounds))
}

async fn on(ground: &Ground, name: &str, options: &Options) -> anyhow::Result<Value> {
    Ok(json!({
        "steps": larger(ground, name, options).await?,
        "stored": fuller(ground, name, options).await?,
    }))
}

/// Tasks of more and more steps: as many of them each time as have the same number of steps.
async fn larger(ground: &Ground, name: &str, options: &Options) -> anyhow::Result<Vec<Value>> {
    let most = options.steps.iter().copied().max().unwrap_or(0);
    let mut first = None;
    let mut rows = Vec::new();
    for steps in &options.steps {
        let tasks = (most / steps).max(1);
        let (folder, how) = (tempfile::tempdir()?, sites(options));
        let (site, left) = ground.site(folder.path(), &how).await?;
        singles(&site, WARM_UP).await?;
        let cost = cost(ground, options, async || Ok(growing(&site, tasks, *steps).await?)).await;
        site.close().await;
        left.clear().await?;
        emptied(ground).await;
        let what = json!({ "steps": steps, "tasks": tasks });
        let text = format!("{name}: {tasks} tasks of {steps} steps");
        rows.push(row(what, &text, cost?, &mut first, options));
    }
    Ok(rows)
}

/// Chains of ten beside more and more tasks that have ended, and what those take.
async fn fuller(ground: &Ground, name: &str, options: &Options) -> anyhow::Result<Vec<Value>> {
    let (folder, how) = (tempfile::tempdir()?, sites(options));
    let (site, left) = ground.site(folder.path(), &how).await?;
    singles(&site, WARM_UP).await?;
    let mut first = None;
    let mut rows = Vec::new();
    let mut stored = 0;
    for wanted in &options.stored {
        let more = wanted.saturating_sub(stored);
        let before = taken(ground, folder.path()).await?;
        filled(&site, more).await?;
        let bytes = taken(ground, folder.path()).await?.saturating_sub(before);
        stored += more;
        if let Some(servers) = ground.servers() {
            servers.rewritten().await;
        }
        let job = async || Ok(growing(&site, CHAINS, 10).await?);
        let cost = cost(ground, options, job).await?;
        let bytes_each = bytes as f64 / more.max(1) as f64;
        let what = json!({ "stored": stored, "bytes_each": bytes_each.round() });
        let text = format!("{name}: {stored} ended tasks, {bytes_each:.0} bytes each");
        rows.push(row(what, &text, cost, &mut first, options));
    }
    if let Some(servers) = ground.servers() {
        let kept = kept(&servers.redis, options.json).await?;
        rows.push(json!({ "kept": kept }));
    }
    site.close().await;
    left.clear().await?;
    emptied(ground).await;
    Ok(rows)
}

fn sites(options: &Options) -> Sites {
    let in_flight = options.in_flight.first().copied().unwrap_or(32);
    Sites { in_flight, stay: options.stay, exchange: None }
}

/// Lets tasks of one step through; all of them have completed.
async fn filled(site: &Site, tasks: usize) -> anyhow::Result<()> {
    let mut open = tasks;
    while open > 0 {
        let portion = open.min(PORTION);
        singles(site, portion).await?;
        open -= portion;
    }
    Ok(())
}

/// Gives the bytes that the store has taken, once they stand still.
async fn taken(ground: &Ground, folder: &std::path::Path) -> anyhow::Result<u64> {
    match ground.servers() {
        Some(servers) => Ok(settled(&servers.redis).await),
        None => Ok(std::fs::metadata(folder.join("standfast.redb"))?.len()),
    }
}

/// Forgets what was stored for one size.
async fn emptied(ground: &Ground) {
    if let Some(servers) = ground.servers() {
        servers.redis.command(&["FLUSHALL", "ASYNC"]).await;
    }
}

/// Runs a job some times; the first run only warms up.
async fn cost(
    ground: &Ground,
    options: &Options,
    job: impl AsyncFn() -> anyhow::Result<Sample>,
) -> anyhow::Result<Cost> {
    let (mut rates, mut cpu, mut commands) = (Vec::new(), Vec::new(), BTreeMap::new());
    for round in 0..=options.repeats {
        let counted = async || match ground.servers() {
            Some(servers) => servers.commands().await,
            None => Default::default(),
        };
        let before = counted().await;
        let meter = Meter::start([("client", std::process::id())]);
        let sample = job().await?;
        let used = meter.read(sample.units);
        if round > 0 {
            rates.push(sample.rate());
            cpu.extend(used.get("client").map(|used| used.cpu_us_each));
            commands = each(&before, &counted().await, sample.units);
        }
    }
    let cpu_us_each = Figures::of(cpu).median;
    Ok(Cost { rate: Figures::of(rates), cpu_us_each, commands })
}

/// Makes one row, with what it is of the first, and prints it.
fn row(
    mut what: Value,
    text: &str,
    cost: Cost,
    first: &mut Option<[f64; 3]>,
    options: &Options,
) -> Value {
    let now = [cost.rate.median, cost.cpu_us_each, cost.commands_each()];
    let then = *first.get_or_insert(now);
    let [rate, cpu, commands] =
        [0, 1, 2].map(|which| if then[which] > 0.0 { now[which] / then[which] } else { 0.0 });
    if !options.json {
        println!(
            "{text}: {:.0} steps/s [{:.0}-{:.0}], {rate:.2} of the first; client {:.0} µs a step, \
             {cpu:.2}",
            cost.rate.median, cost.rate.min, cost.rate.max, now[1],
        );
        if !cost.commands.is_empty() {
            let round = |each: f64| (each * 100.0).round() / 100.0;
            let rounded: BTreeMap<&String, f64> =
                cost.commands.iter().map(|(name, each)| (name, round(*each))).collect();
            println!("  {:.2} commands a step, {commands:.2}: {}", now[2], json!(rounded));
        }
    }
    what["rate"] = json!(cost.rate);
    what["client_us_each"] = json!(cost.cpu_us_each);
    what["commands_each"] = json!(cost.commands);
    what["of_first"] = json!({ "rate": rate, "client": cpu, "commands": commands });
    what
}
