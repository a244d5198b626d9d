//! Runs the jobs in turn, ours and the least loop's, so that both meet the same machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use standfast_bench::{Job, Meter, Sample, Site, Sites, Size, queue, run, singles};

use crate::ground::{Ground, Rabbit};
use crate::least::Least;
use crate::options::Options;
use crate::report::{Report, Row, Side};

/// Tasks that each side runs before it is measured: a new quorum queue elects its leader first,
/// and may refuse what comes before that.
const WARM_UP: usize = 200;

/// Runs everything that was asked for and prints it.
pub async fn all(options: &Options) -> anyhow::Result<()> {
    let rabbit = Arc::new(Rabbit::open(options).await);
    let mut report = Report::default();
    for persistence in &options.persistence {
        let ground = Ground::open(rabbit.clone(), *persistence).await;
        for in_flight in &options.in_flight {
            let how = Sites { in_flight: *in_flight, stay: options.stay };
            for job in &options.jobs {
                let mut row = Row::new(job.job(), *in_flight, persistence.name(), options.stay);
                beside(&ground, &how, options, &mut row).await?;
                if !options.json {
                    row.print();
                }
                report.rows.push(row);
            }
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report.json())?);
    }
    Ok(())
}

/// Runs one job on both sides, in turn; the first run of each only warms up.
async fn beside(
    ground: &Ground,
    how: &Sites,
    options: &Options,
    row: &mut Row,
) -> anyhow::Result<()> {
    let size = size(options.factor);
    for round in 0..=options.repeats {
        let folder = tempfile::tempdir()?;
        let sides = if round % 2 == 0 { [true, false] } else { [false, true] };
        for ours in sides {
            if ours {
                let (site, broker) = ground.site(folder.path(), how).await?;
                singles(&site, WARM_UP).await?;
                let side = measured(ground, || mine(&site, row.job, size)).await;
                let counts = site.counts();
                site.close().await;
                broker.remove_all(&[queue()]).await?;
                row.ours.add(round, Side { counts, ..side? });
            } else if has_least(row.job) {
                let least =
                    Least::open(&ground.redis.url(), &ground.rabbit.url, how.in_flight).await?;
                least.tasks(WARM_UP, 1).await?;
                let side = measured(ground, || floor(&least, row.job, size)).await;
                least.close().await?;
                row.least.add(round, side?);
            }
        }
    }
    Ok(())
}

fn size(factor: usize) -> Size {
    Size { singles: 5_000 * factor, chains: 500 * factor, ..Size::FULL }
}

fn has_least(job: Job) -> bool {
    match job {
        Job::A | Job::B | Job::D | Job::H => true,
        Job::E | Job::G => false,
    }
}

async fn mine(site: &Site, job: Job, size: Size) -> anyhow::Result<Sample> {
    Ok(run(site, job, size).await?)
}

/// The least that comes near: it has no joins, so job H is compared with as many single steps.
async fn floor(least: &Least, job: Job, size: Size) -> anyhow::Result<Sample> {
    match job {
        Job::A | Job::E | Job::G => least.tasks(size.singles, 1).await,
        Job::B => least.tasks(size.chains, 10).await,
        Job::D => least.latency(size.latencies).await,
        Job::H => least.tasks(size.parallel / 10, 10).await,
    }
}

async fn measured<F>(ground: &Ground, job: impl FnOnce() -> F) -> anyhow::Result<Side>
where
    F: Future<Output = anyhow::Result<Sample>>,
{
    let commands = ground.commands().await;
    let meter = Meter::start(ground.processes());
    let sample = job().await?;
    let used = meter.read(sample.units);
    let after = ground.commands().await;
    let units = sample.units as f64;
    let calls = after.into_iter().filter_map(|(name, count)| {
        let more = count - commands.get(&name).copied().unwrap_or(0);
        (more > 0 && name != "info").then(|| (name, more as f64 / units))
    });
    Ok(Side { sample, used, commands: calls.collect(), counts: BTreeMap::new() })
}
