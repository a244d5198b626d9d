//! Runs the jobs in turn, ours and the least loop's, so that both meet the same machine.

use std::collections::BTreeMap;
use std::sync::Arc;

use standfast_bench::{Job, Meter, Sample, Sites, Size, run, singles};

use crate::ground::{Counts, Ground, Rabbit, Servers, each};
use crate::least::Least;
use crate::options::Options;
use crate::report::{On, Report, Row, Side};

/// Tasks that each side runs before it is measured: a new quorum queue elects its leader first,
/// and may refuse what comes before that.
pub const WARM_UP: usize = 200;
/// Tries of opening the least loop.
const OPENINGS_MAX: usize = 3;

/// Runs everything that was asked for.
pub async fn all(options: &Options) -> anyhow::Result<Report> {
    let rabbit = Arc::new(Rabbit::open(options).await);
    let mut report = Report::default();
    for persistence in &options.persistence {
        let servers = Servers::open(rabbit.clone(), *persistence).await;
        let ground = Ground::Services(servers);
        rows(&ground, On::Services(*persistence), options, &mut report).await?;
    }
    if options.embedded {
        rows(&Ground::Folder, On::Folder, options, &mut report).await?;
    }
    Ok(report)
}

async fn rows(
    ground: &Ground,
    on: On,
    options: &Options,
    report: &mut Report,
) -> anyhow::Result<()> {
    for in_flight in &options.in_flight {
        let how = Sites { in_flight: *in_flight, stay: options.stay, exchange: None };
        for job in &options.jobs {
            if *job == Job::EAmqp && ground.servers().is_none() {
                continue; // there is no RabbitMQ to publish to
            }
            let mut row = Row::new(*job, *in_flight, on, options.stay);
            beside(ground, &how, options, &mut row).await?;
            if !options.json {
                row.print();
            }
            report.rows.push(row);
        }
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
        let counted = round == options.repeats;
        let folder = tempfile::tempdir()?;
        let sides = if round % 2 == 0 { [true, false] } else { [false, true] };
        for ours in sides {
            if let Some(servers) = ground.servers() {
                servers.empty().await;
            }
            if ours {
                let (site, left) = ground.site(folder.path(), how).await?;
                singles(&site, WARM_UP).await?;
                let before = site.counts();
                let side = measured(ground, counted, async || {
                    anyhow::Ok(run(&site, row.job, size).await?)
                });
                let side = side.await;
                let counts = site.counts().into_iter();
                let counts = counts
                    .map(|(name, count)| (name, count - before.get(name).copied().unwrap_or(0)));
                let counts = counts.collect();
                site.close().await;
                left.clear().await?;
                row.ours.add(round, Side { counts, ..side? });
            } else if let Some(servers) = ground.servers()
                && has_least(row.job)
            {
                let (redis, amqp) = (servers.redis.url(), &servers.rabbit.url);
                let least = opened(&redis, amqp, how.in_flight).await?;
                least.tasks(WARM_UP, 1).await?;
                let side = measured(ground, counted, async || floor(&least, row.job, size).await);
                let side = side.await;
                least.close().await?;
                row.least.add(round, side?);
            }
        }
    }
    Ok(())
}

/// Gives the jobs' size; A and B may be some times as large.
pub fn size(factor: usize) -> Size {
    Size { singles: 5_000 * factor, chains: 500 * factor, ..Size::FULL }
}

fn has_least(job: Job) -> bool {
    match job {
        Job::A | Job::B | Job::D | Job::H => true,
        Job::E | Job::EHttp | Job::EAmqp | Job::G => false,
    }
}

/// Opens the least loop. RabbitMQ 3.10 answers the declaration of a quorum queue with an internal
/// error now and then, which is no part of the measure.
async fn opened(redis: &str, amqp: &str, in_flight: u16) -> anyhow::Result<Least> {
    for _ in 1..OPENINGS_MAX {
        match Least::open(redis, amqp, in_flight).await {
            Ok(least) => return Ok(least),
            Err(error) => eprintln!("least loop opened anew: {error}"),
        }
    }
    Least::open(redis, amqp, in_flight).await
}

/// The least that comes near: it has no joins, so job H is compared with as many single steps.
async fn floor(least: &Least, job: Job, size: Size) -> anyhow::Result<Sample> {
    match job {
        Job::A | Job::E | Job::EHttp | Job::EAmqp | Job::G => least.tasks(size.singles, 1).await,
        Job::B => least.tasks(size.chains, 10).await,
        Job::D => least.latency(size.latencies).await,
        Job::H => least.tasks(size.parallel / 10, 10).await,
    }
}

/// Runs a job and says what it used; what RabbitMQ counted is asked for only where `counted`,
/// since it takes seconds.
async fn measured(
    ground: &Ground,
    counted: bool,
    job: impl AsyncFnOnce() -> anyhow::Result<Sample>,
) -> anyhow::Result<Side> {
    let before = counts(ground, counted).await;
    let meter = Meter::start(ground.processes());
    let sample = job().await?;
    let used = meter.read(sample.units);
    let after = counts(ground, counted).await;
    let [commands, messages] =
        [0, 1].map(|which| each(&before[which], &after[which], sample.units));
    Ok(Side { sample, used, commands, messages, counts: BTreeMap::new() })
}

/// Counts the commands of Redis and the messages of RabbitMQ.
async fn counts(ground: &Ground, messages: bool) -> [Counts; 2] {
    let Some(servers) = ground.servers() else { return Default::default() };
    let messages = match messages {
        true => servers.rabbit.messages().await,
        false => Counts::new(),
    };
    [servers.commands().await, messages]
}
