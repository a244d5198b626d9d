//! `standfast bench`: how fast an installation works here.
//!
//! It runs the jobs under a name of its own, with a worker, a scheduler and an engine of this
//! process, on the Redis and RabbitMQ of an installation or on none, and removes what it wrote.
//! The comparison with the least durable loop is `tests/bench`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use standfast_bench::{Figures, Job, Latency, Meter, Sample, Site, Sites, Size, Used, run};
use standfast_brokers::in_process::InProcessBroker;
use standfast_brokers::rabbitmq::{RabbitBroker, RabbitSettings};
use standfast_stores::redb::RedbStore;
use standfast_stores::redis::RedisStore;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::table::Table;
use crate::wiring::{brokers, stores};

/// How long the broker may take to answer.
const BROKER_WAIT: Duration = Duration::from_secs(5);

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast bench
  standfast bench --redis redis://127.0.0.1:6379 --amqp amqp://127.0.0.1:5672/%2f --in-flight 256

Without Redis and RabbitMQ it measures the embedded mode in a folder of its own. With them it
works under a prefix of its own beside what is there, and removes what it wrote; what else runs
there meanwhile slows it, and it slows that.

Jobs: a tasks of one step, b chains of ten steps, d the time of one task on an idle system,
e submissions, g timers that are due at once, h parallel steps of one task.")]
pub struct BenchArgs {
    /// The Redis to work on, beside what is there
    #[arg(long, env = "STANDFAST_REDIS", value_name = "URL", hide_env_values = true)]
    #[arg(requires = "amqp")]
    redis: Option<String>,
    /// The RabbitMQ to work on, beside what is there
    #[arg(long, env = "STANDFAST_AMQP", value_name = "URL", hide_env_values = true)]
    #[arg(requires = "redis")]
    amqp: Option<String>,
    /// Jobs to run, in this order
    #[arg(long, value_name = "JOB", value_delimiter = ',', default_value = "a,b,d,h")]
    jobs: Vec<JobName>,
    /// Attempts under way at a time
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    in_flight: u16,
    /// Runs of each job, besides one to warm up
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    repeats: u16,
    /// A fifth of the work, for a first look
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A job by its letter.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum JobName {
    A,
    B,
    D,
    E,
    G,
    H,
}

impl JobName {
    fn job(self) -> Job {
        match self {
            Self::A => Job::A,
            Self::B => Job::B,
            Self::D => Job::D,
            Self::E => Job::E,
            Self::G => Job::G,
            Self::H => Job::H,
        }
    }
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    /// `embedded`, or `services`.
    on: &'static str,
    in_flight: u16,
    jobs: BTreeMap<String, Row>,
}

/// One job's figures.
#[derive(Serialize)]
struct Row {
    /// Units a second.
    rate: Figures,
    /// The time of each unit, where the job measures it.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Latency>,
    /// What this process used.
    process: Used,
}

/// Where the jobs run, and what is to be removed afterwards.
enum Ground {
    Folder(Arc<RedbStore>, Arc<InProcessBroker>),
    Services(Arc<RedisStore>, Arc<RabbitBroker>),
}

/// Runs the jobs and says how fast they were.
pub async fn execute(args: BenchArgs) -> Result<Exit, Failure> {
    let folder = std::env::temp_dir().join(format!("standfast-{}", name()));
    let measured = measure(&args, &folder).await;
    let removed = tokio::fs::remove_dir_all(&folder).await;
    let report = measured?;
    removed.map_err(|error| Failure::new(format!("failed to remove the folder: {error}")))?;
    match args.json {
        true => look::json(&report)?,
        false => table(&report, &Look::of_stdout()).iter().try_for_each(|line| look::line(line))?,
    }
    Ok(Exit::Completed)
}

async fn measure(args: &BenchArgs, folder: &std::path::Path) -> Result<Report, Failure> {
    let ground = Ground::open(args, folder).await?;
    let how = Sites { in_flight: args.in_flight, stay: 0 };
    let site = match &ground {
        Ground::Folder(store, broker) => {
            Site::start(store.clone(), broker.clone(), folder, &how).await
        }
        Ground::Services(store, broker) => {
            Site::start(store.clone(), broker.clone(), folder, &how).await
        }
    };
    let site = site.map_err(|error| Failure::new(format!("failed to {error}")))?;
    let ran = jobs(args, &site).await;
    site.close().await;
    ground.clear().await?;
    let on = match ground {
        Ground::Folder(..) => "embedded",
        Ground::Services(..) => "services",
    };
    Ok(Report { on, in_flight: args.in_flight, jobs: ran? })
}

async fn jobs(args: &BenchArgs, site: &Site) -> Result<BTreeMap<String, Row>, Failure> {
    let size = if args.quick { Size::QUICK } else { Size::FULL };
    let mut rows = BTreeMap::new();
    for job in args.jobs.iter().map(|name| name.job()) {
        let once = async || {
            let meter = Meter::start([("process", std::process::id())]);
            let sample = run(site, job, size).await;
            let sample = sample.map_err(|error| Failure::new(format!("failed to {error}")))?;
            let used = meter.read(sample.units).remove("process").unwrap_or_default();
            Ok::<_, Failure>((sample, used))
        };
        once().await?; // warms up
        let mut runs = Vec::new();
        for _ in 0..args.repeats {
            runs.push(once().await?);
        }
        rows.insert(format!("{job:?}"), row(&runs));
    }
    Ok(rows)
}

fn row(runs: &[(Sample, Used)]) -> Row {
    let each: Vec<Duration> = runs.iter().flat_map(|(sample, _)| sample.each.clone()).collect();
    let median = |of: fn(&Used) -> f64| Figures::of(runs.iter().map(|(_, used)| of(used))).median;
    Row {
        rate: Figures::of(runs.iter().map(|(sample, _)| sample.rate())),
        latency: (!each.is_empty()).then(|| Latency::of(&each)),
        process: Used {
            cpu_us_each: median(|used| used.cpu_us_each),
            cores: median(|used| used.cores),
            resident_bytes: runs.last().map_or(0, |(_, used)| used.resident_bytes),
        },
    }
}

fn table(report: &Report, look: &Look) -> Vec<String> {
    let mut table = Table::new(&[
        ("JOB", 3),
        ("EACH SECOND", 12),
        ("RANGE", 20),
        ("CPU EACH", 10),
        ("WHAT", usize::MAX),
    ]);
    for (name, row) in &report.jobs {
        let job = Job::ALL.into_iter().find(|job| format!("{job:?}") == *name);
        let mut what = job.map_or("", Job::says).to_owned();
        if let Some(latency) = row.latency {
            what += &format!(
                ": half within {:.2} ms, 99 % within {:.2} ms",
                latency.p50_ms, latency.p99_ms
            );
        }
        table.row(vec![
            name.clone(),
            format!("{:.0}", row.rate.median),
            format!("{:.0} to {:.0}", row.rate.min, row.rate.max),
            format!("{:.0} µs", row.process.cpu_us_each),
            what,
        ]);
    }
    let on = match report.on {
        "embedded" => "embedded: redb in a folder, queues in this process",
        _ => "on Redis and RabbitMQ",
    };
    let mut lines = table.lines(look);
    lines.push(format!("{on}; {} attempts at a time", report.in_flight));
    lines
}

impl Ground {
    async fn open(args: &BenchArgs, folder: &std::path::Path) -> Result<Self, Failure> {
        let (Some(redis), Some(amqp)) = (&args.redis, &args.amqp) else {
            let store = stores::folder(folder.to_owned()).await?;
            return Ok(Self::Folder(Arc::new(store), Arc::new(InProcessBroker::new())));
        };
        let prefix = name();
        let store = stores::redis(redis, &prefix)?;
        let fault = |fault| Failure::usage(format!("failed to {fault}"));
        let settings = RabbitSettings::parse(amqp).map_err(fault)?;
        let settings = settings.with_prefix(&prefix).map_err(fault)?;
        let broker = RabbitBroker::connect(settings, Some(BROKER_WAIT)).await;
        Ok(Self::Services(Arc::new(store), Arc::new(broker.map_err(brokers::failure)?)))
    }

    /// Removes what the jobs have written; a folder is removed whole by the caller.
    async fn clear(&self) -> Result<(), Failure> {
        let Self::Services(store, broker) = self else { return Ok(()) };
        let failed = |error| Failure::new(format!("failed to remove what was written: {error}"));
        store.remove_all().await.map_err(|error| failed(error.to_string()))?;
        broker
            .remove_all(&[standfast_bench::queue()])
            .await
            .map_err(|error| failed(error.to_string()))
    }
}

/// Makes a name that nothing else has.
fn name() -> String {
    format!("bench-{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
}
