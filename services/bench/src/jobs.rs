//! What is measured. Each job submits, waits until all of its work is done, and then looks at the
//! tasks themselves: a figure of work that was not done is none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde::Serialize;
use serde_json::{Value, json};
use standfast_domain::ids::TaskId;
use tokio::sync::broadcast::error::RecvError;

use crate::figures::Sample;
use crate::noop::NAME;
use crate::site::{Site, SiteError};

/// Submissions under way at a time.
const SUBMITTERS: usize = 32;
/// How often the counts are looked at: far below what a job takes.
const LOOK: Duration = Duration::from_millis(1);
/// The longest time without any progress.
const STANDSTILL: Duration = Duration::from_secs(30);

/// Why a job gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The installation did not take part.
    #[error(transparent)]
    Site(#[from] SiteError),
    /// The work stood still.
    #[error("finish the job: {done} of {wanted} done, and nothing more for {STANDSTILL:?}")]
    Standstill {
        /// Units done.
        done: u64,
        /// Units of the job.
        wanted: u64,
    },
    /// A task whose work was counted has not completed.
    #[error("finish the job: task {0} has not completed")]
    Unfinished(TaskId),
}

/// The jobs. `C` is kept for child tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Job {
    /// Tasks of one step.
    A,
    /// Chains of ten steps.
    B,
    /// The time of one task of one step, from submission to completion, on an idle system.
    D,
    /// Submissions alone.
    E,
    /// Timers that are due at once.
    G,
    /// One task of many parallel steps and a join.
    H,
}

impl Job {
    /// All, in the order they run.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::D, Self::E, Self::G, Self::H];

    /// Says what is measured, in a few words.
    pub fn says(self) -> &'static str {
        match self {
            Self::A => "tasks of one step",
            Self::B => "steps of chains of ten",
            Self::D => "one task, submission to completion",
            Self::E => "submissions",
            Self::G => "timers due at once",
            Self::H => "parallel steps of one task",
        }
    }
}

/// How large the jobs are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Tasks of job A.
    pub singles: usize,
    /// Chains of job B, of ten steps each.
    pub chains: usize,
    /// Tasks of job D, one after the other.
    pub latencies: usize,
    /// Submissions of job E.
    pub submissions: usize,
    /// Timers of job G.
    pub timers: usize,
    /// Parallel steps of job H.
    pub parallel: usize,
}

impl Size {
    /// The full jobs.
    pub const FULL: Self = Self {
        singles: 5_000,
        chains: 500,
        latencies: 300,
        submissions: 5_000,
        timers: 10_000,
        parallel: 1_000,
    };

    /// Small ones, for a first look.
    pub const QUICK: Self = Self {
        singles: 1_000,
        chains: 100,
        latencies: 50,
        submissions: 1_000,
        timers: 1_000,
        parallel: 200,
    };
}

/// Runs one job of a size.
pub async fn run(site: &Site, job: Job, size: Size) -> Result<Sample, JobError> {
    match job {
        Job::A => singles(site, size.singles).await,
        Job::B => chains(site, size.chains, 10).await,
        Job::D => latency(site, size.latencies).await,
        Job::E => submitted(site, size.submissions).await,
        Job::G => timers(site, size.timers).await,
        Job::H => wide(site, size.parallel).await,
    }
}

/// Job A: submits tasks of one step while the worker takes them.
pub async fn singles(site: &Site, tasks: usize) -> Result<Sample, JobError> {
    let plan = plan(vec![step("s0", &[])]);
    all(site, &plan, tasks, tasks as u64).await
}

/// Job B: submits chains; each step needs the one before.
pub async fn chains(site: &Site, chains: usize, length: usize) -> Result<Sample, JobError> {
    let plan = chain(length);
    all(site, &plan, chains, (chains * length) as u64).await
}

/// One chain of any length: what a step costs as its task grows.
pub async fn growing(site: &Site, length: usize) -> Result<Sample, JobError> {
    all(site, &chain(length), 1, length as u64).await
}

/// Job D: one task of one step after the other, each from its submission until its completion is
/// stored.
pub async fn latency(site: &Site, tasks: usize) -> Result<Sample, JobError> {
    let plan = plan(vec![step("s0", &[])]);
    let mut each = Vec::with_capacity(tasks);
    let mut changes = site.engine().listen();
    let began = Instant::now();
    for _ in 0..tasks {
        while changes.try_recv().is_ok() {}
        let since = Instant::now();
        let task = site.submit(plan.clone()).await?;
        // Submitted, claimed, completed.
        let mut seen = 0;
        let noticed = async {
            while seen < 3 {
                match changes.recv().await {
                    Ok(changed) if changed == task => seen += 1,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        };
        let stood = JobError::Standstill { done: each.len() as u64, wanted: tasks as u64 };
        tokio::time::timeout(STANDSTILL, noticed).await.map_err(|_| stood)?;
        each.push(since.elapsed());
        if !site.completed(&task).await? {
            return Err(JobError::Unfinished(task));
        }
    }
    Ok(Sample { units: tasks as u64, elapsed: began.elapsed(), each })
}

/// Job E within this process: plans checked and stored, while the worker waits for what a timer
/// of a year holds back.
pub async fn submitted(site: &Site, tasks: usize) -> Result<Sample, JobError> {
    let plan = plan(vec![json!({ "id": "later", "uses": "timer", "with": { "for": "365d" } })]);
    let began = Instant::now();
    submit_all(site, &plan, tasks).await?;
    Ok(Sample { units: tasks as u64, elapsed: began.elapsed(), each: Vec::new() })
}

/// Job G: timers of ten tasks in a hundred each, all due at one moment; counted from then.
pub async fn timers(site: &Site, timers: usize) -> Result<Sample, JobError> {
    let tasks = timers.div_ceil(100).max(1);
    let due = site.engine().now().await.map_err(SiteError::from)?;
    let wait = Duration::from_millis(3_000 + timers as u64);
    let due = due.after(standfast_domain::time::Span::from_millis(
        u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
    ));
    let until = json!({ "until": due.rfc3339() });
    let one = |n: usize| json!({ "id": format!("t{n}"), "uses": "timer", "with": until });
    let plan = plan((0..100).map(one).collect());
    let begun = Instant::now();
    let ids = submit_all(site, &plan, tasks).await?;
    tokio::time::sleep(wait.saturating_sub(begun.elapsed())).await;
    let since = Instant::now();
    let mut last = since;
    let mut open = ids;
    while let Some(task) = open.last() {
        if site.completed(task).await? {
            open.pop();
            last = Instant::now();
        } else if last.elapsed() > STANDSTILL {
            let done = (tasks - open.len()) as u64;
            return Err(JobError::Standstill { done, wanted: tasks as u64 });
        } else {
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(Sample { units: (tasks * 100) as u64, elapsed: since.elapsed(), each: Vec::new() })
}

/// Job H: one task of parallel steps, and one that needs them all.
pub async fn wide(site: &Site, parallel: usize) -> Result<Sample, JobError> {
    let names: Vec<String> = (0..parallel).map(|n| format!("p{n}")).collect();
    let mut steps: Vec<Value> = names.iter().map(|name| step(name, &[])).collect();
    let needs: Vec<&str> = names.iter().map(String::as_str).collect();
    steps.push(step("join", &needs));
    all(site, &plan(steps), 1, parallel as u64 + 1).await
}

/// Submits a plan some times, waits until so many steps have succeeded, and sees that each task
/// has completed.
async fn all(site: &Site, plan: &Value, tasks: usize, steps: u64) -> Result<Sample, JobError> {
    let before = site.succeeded();
    let began = Instant::now();
    let (submitted, done) =
        tokio::join!(submit_all(site, plan, tasks), done(site, before, steps, began));
    let (submitted, elapsed) = (submitted?, done?);
    for part in submitted.chunks(SUBMITTERS) {
        for (task, completed) in
            part.iter().zip(try_join_all(part.iter().map(|task| site.completed(task))).await?)
        {
            if !completed {
                return Err(JobError::Unfinished(task.clone()));
            }
        }
    }
    Ok(Sample { units: steps, elapsed, each: Vec::new() })
}

async fn submit_all(site: &Site, plan: &Value, tasks: usize) -> Result<Vec<TaskId>, JobError> {
    let next = AtomicUsize::new(0);
    let submitter = || async {
        let mut mine = Vec::new();
        while next.fetch_add(1, Ordering::Relaxed) < tasks {
            mine.push(site.submit(plan.clone()).await?);
        }
        Ok::<_, JobError>(mine)
    };
    let submitted = try_join_all((0..SUBMITTERS.min(tasks)).map(|_| submitter())).await?;
    Ok(submitted.into_iter().flatten().collect())
}

/// Waits until so many steps more have succeeded; gives when that was seen.
async fn done(site: &Site, before: u64, steps: u64, began: Instant) -> Result<Duration, JobError> {
    let (mut last, mut progress) = (before, Instant::now());
    loop {
        let now = site.succeeded();
        if now >= before + steps {
            return Ok(began.elapsed());
        }
        if now != last {
            (last, progress) = (now, Instant::now());
        } else if progress.elapsed() > STANDSTILL {
            return Err(JobError::Standstill { done: now - before, wanted: steps });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn step(id: &str, needs: &[&str]) -> Value {
    json!({ "id": id, "uses": NAME, "needs": needs })
}

fn chain(length: usize) -> Value {
    let name = |n: usize| format!("s{n}");
    let one = |n: usize| match n.checked_sub(1) {
        None => step(&name(n), &[]),
        Some(before) => step(&name(n), &[&name(before)]),
    };
    plan((0..length).map(one).collect())
}

fn plan(steps: Vec<Value>) -> Value {
    json!({ "kind": "bench", "steps": steps })
}
