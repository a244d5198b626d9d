//! The same jobs over processes of their own: the built binary as api, scheduler and worker, asked
//! over HTTP as a client asks. What each of them uses stands apart.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde_json::Value;
use standfast_bench::{
    Door, Entrance, Exchange, Front, Job, Meter, Stands, System, SystemError, run, singles,
};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;
use standfast_protocol::tasks::TaskState;
use standfast_sdk::{Client, Error};
use standfast_tests::fleet::Process;
use standfast_tests::private_redis::PrivateRedis;
use standfast_tests::processes::Installation;

use crate::ground::{Counts, Rabbit, commands, each};
use crate::options::{Options, Persistence};
use crate::report::{On, Report, Row, Side};
use crate::rounds::{WARM_UP, size};

/// How long a process may take until it works.
const START: Duration = Duration::from_secs(60);
/// How often the worker's metrics are read: each reading costs it some of its time.
const LOOK: Duration = Duration::from_millis(20);
/// The worker's count of what has succeeded.
const SUCCEEDED: &str =
    "standfast_worker_attempts_ended_total{queue=\"default\",outcome=\"succeeded\"} ";
/// A claim's length, the usual one.
const CLAIM_LENGTH: &str = "30s";

/// An installation of three processes. Fields are dropped in this order.
struct Fleet {
    members: Vec<Process>,
    own: Installation,
    client: Client,
    front: Front,
    metrics: reqwest::Client,
}

/// Runs the jobs under each setting.
pub async fn all(options: &Options) -> anyhow::Result<Report> {
    let rabbit = Arc::new(Rabbit::open(options).await);
    let mut report = Report::default();
    for persistence in &options.persistence {
        for in_flight in &options.in_flight {
            let fleet = Fleet::start(&rabbit, *persistence, *in_flight, options.stay).await?;
            singles(&fleet, WARM_UP).await?;
            for job in &options.jobs {
                let on = On::Processes(*persistence);
                let mut row = Row::new(*job, *in_flight, on, options.stay);
                for round in 0..=options.repeats {
                    let counted = round == options.repeats;
                    let side = fleet.measured(&rabbit, counted, *job, options.factor).await?;
                    row.ours.add(round, side);
                }
                if !options.json {
                    row.print();
                }
                report.rows.push(row);
            }
            fleet.front.close().await;
        }
    }
    Ok(report)
}

impl Fleet {
    async fn start(
        rabbit: &Rabbit,
        persistence: Persistence,
        in_flight: u16,
        stay: u32,
    ) -> anyhow::Result<Self> {
        let redis = PrivateRedis::start(persistence.arguments()).await;
        let own = Installation::start_over(redis, &rabbit.url, CLAIM_LENGTH).await;
        let (in_flight, stay) = (in_flight.to_string(), stay.to_string());
        let worker = ["worker", "--noop", "--concurrency", &in_flight, "--stay", &stay];
        let members = vec![
            Process::start(&own, "api", &["api"], &[]),
            Process::start(&own, "scheduler", &["scheduler"], &[]),
            Process::start(&own, "worker", &worker, &[]),
        ];
        for member in &members {
            member.green(START).await;
        }
        own.takes_messages().await;
        let (client, front) = (own.client(), Front::http(&own.url(), &own.token)?);
        Ok(Self { members, own, client, front, metrics: reqwest::Client::new() })
    }

    async fn measured(
        &self,
        rabbit: &Rabbit,
        counted: bool,
        job: Job,
        factor: usize,
    ) -> anyhow::Result<Side> {
        let messages = async || match counted {
            true => rabbit.messages().await,
            false => Counts::new(),
        };
        let before = [commands(&self.own.redis).await, messages().await];
        let processes = [("client", std::process::id()), ("redis", self.own.redis.pid())];
        let members = self.members.iter().map(|member| (member.name.as_str(), member.pid()));
        let meter = Meter::start(processes.into_iter().chain(rabbit.process()).chain(members));
        let sample = run(self, job, size(factor)).await?;
        let used = meter.read(sample.units);
        let after = [commands(&self.own.redis).await, messages().await];
        let [commands, messages] =
            [0, 1].map(|which| each(&before[which], &after[which], sample.units));
        Ok(Side { sample, used, commands, messages, counts: Default::default() })
    }
}

#[async_trait]
impl Entrance for Fleet {
    async fn submit(&self, plan: &Value) -> Result<TaskId, SystemError> {
        self.front.submit(plan).await
    }
}

#[async_trait]
impl System for Fleet {
    async fn carry_out(&self, plan: &Value) -> Result<TaskId, SystemError> {
        let task = self.submit(plan).await?;
        // A long poll would be answered at the api's next look at the store, up to a second later.
        while self.stands(&task).await? != Stands::Completed {
            tokio::task::yield_now().await;
        }
        Ok(task)
    }

    async fn succeeded(&self) -> Result<u64, SystemError> {
        let fault = |error: reqwest::Error| SystemError::Unreached(error.to_string());
        let worker = self.members.last().expect("a worker");
        let answer = self.metrics.get(worker.metrics_url()).send().await.map_err(fault)?;
        let text = answer.text().await.map_err(fault)?;
        let found = text.lines().find_map(|line| line.strip_prefix(SUCCEEDED));
        Ok(found.and_then(|count| count.parse().ok()).unwrap_or(0))
    }

    async fn stands(&self, task: &TaskId) -> Result<Stands, SystemError> {
        match self.client.get(task.as_str()).await {
            Ok(view) if view.state == TaskState::Completed => Ok(Stands::Completed),
            Ok(_) => Ok(Stands::Open),
            Err(Error::Problem(problem)) if problem.status == 404 => Ok(Stands::Missing),
            Err(error) => Err(error.into()),
        }
    }

    async fn now(&self) -> Result<Time, SystemError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_err(|error| SystemError::Unreached(error.to_string()))?;
        Ok(Time(i64::try_from(now.as_millis()).unwrap_or(i64::MAX)))
    }

    async fn open(&self, door: Door) -> Result<Front, SystemError> {
        match door {
            Door::Http => Front::http(&self.own.url(), &self.own.token),
            Door::Amqp => {
                let (url, name) = (self.own.amqp.clone(), self.own.place.prefix.clone());
                Front::amqp(&Exchange { url, name })
            }
        }
    }

    fn look(&self) -> Duration {
        LOOK
    }
}
