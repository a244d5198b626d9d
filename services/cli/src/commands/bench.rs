//! `standfast bench`: how fast an installation works here.
//!
//! It runs the jobs under a name of its own, with a worker, a scheduler and an engine of this
//! process, on the Redis and RabbitMQ of an installation, on none, or on both in turn, and removes
//! what it wrote. The comparison with the least durable loop is `tests/bench`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use standfast_bench::{
    Exchange, Figures, Job, Latency, Meter, Sample, Site, Sites, Size, Used, run,
};
use standfast_brokers::in_process::InProcessBroker;
use standfast_brokers::rabbitmq::{RabbitBroker, RabbitSettings};
use standfast_stores::redb::RedbStore;
use standfast_stores::redis::RedisStore;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::table::Table;
use crate::wiring::{brokers, stores};

/// What the table says of the embedded mode.
const EMBEDDED: &str = "embedded: redb in a folder, queues in this process";
/// How long the broker may take to answer.
const BROKER_WAIT: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Example:
  standfast bench
  standfast bench --redis redis://127.0.0.1:6379 --amqp amqp://127.0.0.1:5672/%2f --in-flight 256

Without Redis and RabbitMQ it measures the embedded mode in a folder of its own. With them it
works under a prefix of its own beside what is there, and removes what it wrote; what else runs
there meanwhile slows it, and it slows that.";

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", Job::help()))]
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
    #[arg(long, value_name = "JOB", value_delimiter = ',', default_value = Job::USUAL)]
    #[arg(value_parser = job(), hide_possible_values = true)]
    jobs: Vec<Job>,
    /// Measure the embedded mode too, after Redis and RabbitMQ
    #[arg(long)]
    embedded: bool,
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

/// Reads a job's name.
fn job() -> impl TypedValueParser<Value = Job> {
    PossibleValuesParser::new(Job::ALL.map(Job::name))
        .map(|name| Job::named(&name).expect("one of the possible values"))
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    /// `embedded`, or `services`.
    on: &'static str,
    in_flight: u16,
    jobs: BTreeMap<String, Row>,
    /// The same jobs embedded, where both were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    embedded: Option<BTreeMap<String, Row>>,
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
    /// What engine, worker and broker counted in the last run, for each unit.
    counts: BTreeMap<&'static str, f64>,
}

/// One run: what it gave, what this process used, what was counted meanwhile.
type Run = (Sample, Used, BTreeMap<&'static str, u64>);

/// Where the jobs run, and what is to be removed afterwards.
enum Ground {
    Folder(Arc<RedbStore>, Arc<InProcessBroker>),
    Services(Arc<RedisStore>, Arc<RabbitBroker>, Exchange),
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

async fn measure(args: &BenchArgs, folder: &Path) -> Result<Report, Failure> {
    let services = match (&args.redis, &args.amqp) {
        (Some(redis), Some(amqp)) => Some(Ground::services(redis, amqp).await?),
        _ => None,
    };
    let in_flight = args.in_flight;
    let Some(services) = services else {
        let messages = args.jobs.iter().filter(|job| **job != Job::EAmqp);
        if messages.count() < args.jobs.len() {
            let message = "job e-amqp needs a RabbitMQ";
            return Err(Failure::usage(message).and("name one with --redis and --amqp"));
        }
        let jobs = on(Ground::folder(folder).await?, args, &args.jobs, folder).await?;
        return Ok(Report { on: "embedded", in_flight, jobs, embedded: None });
    };
    let jobs = on(services, args, &args.jobs, folder).await?;
    let mut embedded = None;
    if args.embedded {
        let possible: Vec<Job> =
            args.jobs.iter().copied().filter(|job| *job != Job::EAmqp).collect();
        embedded = Some(on(Ground::folder(folder).await?, args, &possible, folder).await?);
    }
    Ok(Report { on: "services", in_flight, jobs, embedded })
}

/// Runs jobs on one ground, and removes what they wrote there.
async fn on(
    ground: Ground,
    args: &BenchArgs,
    wanted: &[Job],
    folder: &Path,
) -> Result<BTreeMap<String, Row>, Failure> {
    let how = Sites { in_flight: args.in_flight, stay: 0, exchange: ground.exchange() };
    let site = match &ground {
        Ground::Folder(store, broker) => {
            Site::start(store.clone(), broker.clone(), folder, &how).await
        }
        Ground::Services(store, broker, _) => {
            Site::start(store.clone(), broker.clone(), folder, &how).await
        }
    };
    let site = site.map_err(|error| Failure::new(format!("failed to {error}")))?;
    let ran = jobs(args, wanted, &site, &ground).await;
    site.close().await;
    ground.clear().await?;
    ran
}

async fn jobs(
    args: &BenchArgs,
    wanted: &[Job],
    site: &Site,
    ground: &Ground,
) -> Result<BTreeMap<String, Row>, Failure> {
    let size = if args.quick { Size::QUICK } else { Size::FULL };
    let mut rows = BTreeMap::new();
    for job in wanted {
        let once = async || {
            let before = ground.counts(site);
            let meter = Meter::start([("process", std::process::id())]);
            let sample = run(site, *job, size).await;
            let sample = sample.map_err(|error| Failure::new(format!("failed to {error}")))?;
            let used = meter.read(sample.units).remove("process").unwrap_or_default();
            let counts = ground.counts(site).into_iter();
            let counts = counts
                .map(|(name, count)| (name, count - before.get(name).copied().unwrap_or(0)))
                .collect();
            Ok::<Run, Failure>((sample, used, counts))
        };
        once().await?; // warms up
        let mut runs = Vec::new();
        for _ in 0..args.repeats {
            runs.push(once().await?);
        }
        rows.insert(job.to_string(), row(&runs));
    }
    Ok(rows)
}

fn row(runs: &[Run]) -> Row {
    let each: Vec<Duration> = runs.iter().flat_map(|(sample, ..)| sample.each.clone()).collect();
    let median =
        |of: fn(&Used) -> f64| Figures::of(runs.iter().map(|(_, used, _)| of(used))).median;
    let counts = runs.last().into_iter().flat_map(|(sample, _, counts)| {
        let units = sample.units.max(1) as f64;
        counts.iter().map(move |(name, count)| (*name, *count as f64 / units))
    });
    Row {
        rate: Figures::of(runs.iter().map(|(sample, ..)| sample.rate())),
        latency: (!each.is_empty()).then(|| Latency::of(&each)),
        process: Used {
            cpu_us_each: median(|used| used.cpu_us_each),
            cores: median(|used| used.cores),
            resident_bytes: runs.last().map_or(0, |(_, used, _)| used.resident_bytes),
        },
        counts: counts.collect(),
    }
}

fn table(report: &Report, look: &Look) -> Vec<String> {
    let mut lines = rows(&report.jobs, look);
    let on = match report.on {
        "embedded" => EMBEDDED,
        _ => "on Redis and RabbitMQ",
    };
    lines.push(format!("{on}; {} attempts at a time", report.in_flight));
    if let Some(jobs) = &report.embedded {
        lines.push(String::new());
        lines.extend(rows(jobs, look));
        lines.push(format!("{EMBEDDED}; {} attempts at a time", report.in_flight));
    }
    lines
}

fn rows(jobs: &BTreeMap<String, Row>, look: &Look) -> Vec<String> {
    let mut table = Table::new(&[
        ("JOB", 6),
        ("EACH SECOND", 12),
        ("RANGE", 20),
        ("CPU EACH", 10),
        ("WHAT", usize::MAX),
    ]);
    for (name, row) in jobs {
        let job = Job::ALL.into_iter().find(|job| job.to_string() == *name);
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
    table.lines(look)
}

impl Ground {
    async fn folder(folder: &Path) -> Result<Self, Failure> {
        let store = stores::folder(folder.to_owned()).await?;
        Ok(Self::Folder(Arc::new(store), Arc::new(InProcessBroker::new())))
    }

    async fn services(redis: &str, amqp: &str) -> Result<Self, Failure> {
        let prefix = name();
        let store = stores::redis(redis, &prefix)?;
        let fault = |fault| Failure::usage(format!("failed to {fault}"));
        let settings = RabbitSettings::parse(amqp).map_err(fault)?;
        let settings = settings.with_prefix(&prefix).map_err(fault)?;
        let exchange = Exchange { url: amqp.to_owned(), name: settings.names().exchange() };
        let broker = RabbitBroker::connect(settings, Some(BROKER_WAIT)).await;
        let broker = broker.map_err(brokers::failure)?;
        Ok(Self::Services(Arc::new(store), Arc::new(broker), exchange))
    }

    /// Gives where messages to the intake go.
    fn exchange(&self) -> Option<Exchange> {
        match self {
            Self::Folder(..) => None,
            Self::Services(_, _, exchange) => Some(exchange.clone()),
        }
    }

    /// Counts what engine, worker and broker did since the start.
    fn counts(&self, site: &Site) -> BTreeMap<&'static str, u64> {
        let mut counts = site.counts();
        if let Self::Services(_, broker, _) = self {
            let broker = broker.counters();
            counts.extend([("confirmed", broker.confirmed), ("returned", broker.returned)]);
            counts.extend([("nacked", broker.nacked), ("unanswered", broker.unanswered)]);
        }
        counts
    }

    /// Removes what the jobs have written; a folder is removed whole by the caller.
    async fn clear(&self) -> Result<(), Failure> {
        let Self::Services(store, broker, _) = self else { return Ok(()) };
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
