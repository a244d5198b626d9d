//! What is measured. Each job submits, waits until all of its work is done, and then looks at the
//! tasks themselves: a figure of work that was not done is none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::{Value, json};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Span;

use crate::figures::Sample;
use crate::job::{Job, Size};
use crate::noop::NAME;
use crate::system::{Door, Entrance, Stands, System, SystemError};

/// Submissions under way at a time.
const SUBMITTERS: usize = 32;
/// The longest time without any progress.
const STANDSTILL: Duration = Duration::from_secs(30);

/// Why a job gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The installation did not take part.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The work stood still.
    #[error("finish the job: {done} of {wanted} done, and nothing more for {STANDSTILL:?}")]
    Standstill {
        /// Units done.
        done: u64,
        /// Units of the job.
        wanted: u64,
    },
    /// A submission that was answered is not stored.
    #[error("finish the job: task {0} is not stored")]
    NotStored(TaskId),
    /// A task whose work was counted has not completed.
    #[error("finish the job: task {0} has not completed")]
    Unfinished(TaskId),
}

/// Runs one job of a size.
pub async fn run(system: &dyn System, job: Job, size: Size) -> Result<Sample, JobError> {
    match job {
        Job::A => singles(system, size.singles).await,
        Job::B => chains(system, size.chains, 10).await,
        Job::D => latency(system, size.latencies).await,
        Job::E => submitted(system, system, size.submissions).await,
        Job::EHttp => submitted_by(system, Door::Http, size.submissions).await,
        Job::EAmqp => submitted_by(system, Door::Amqp, size.submissions).await,
        Job::G => timers(system, size.timers).await,
        Job::H => wide(system, size.parallel).await,
    }
}

/// Job A: submits tasks of one step while the worker takes them.
pub async fn singles(system: &dyn System, tasks: usize) -> Result<Sample, JobError> {
    let plan = plan(vec![step("s0", &[])]);
    all(system, &plan, tasks, tasks as u64).await
}

/// Job B: submits chains; each step needs the one before.
async fn chains(system: &dyn System, chains: usize, length: usize) -> Result<Sample, JobError> {
    let plan = chain(length);
    all(system, &plan, chains, (chains * length) as u64).await
}

/// Tasks of many steps, in chains of ten side by side: what a step costs as its task grows.
pub async fn growing(system: &dyn System, tasks: usize, steps: usize) -> Result<Sample, JobError> {
    let chained = |n: usize| match n % 10 {
        0 => step(&format!("s{n}"), &[]),
        _ => step(&format!("s{n}"), &[&format!("s{}", n - 1)]),
    };
    let plan = plan((0..steps).map(chained).collect());
    all(system, &plan, tasks, (tasks * steps) as u64).await
}

/// Job D: one task of one step after the other, each from its submission until its completion is
/// stored.
async fn latency(system: &dyn System, tasks: usize) -> Result<Sample, JobError> {
    let plan = plan(vec![step("s0", &[])]);
    let mut each = Vec::with_capacity(tasks);
    let began = Instant::now();
    for _ in 0..tasks {
        let since = Instant::now();
        let stood = JobError::Standstill { done: each.len() as u64, wanted: tasks as u64 };
        let carried = tokio::time::timeout(STANDSTILL, system.carry_out(&plan)).await;
        let task = carried.map_err(|_| stood)??;
        each.push(since.elapsed());
        if system.stands(&task).await? != Stands::Completed {
            return Err(JobError::Unfinished(task));
        }
    }
    Ok(Sample { units: tasks as u64, elapsed: began.elapsed(), each })
}

/// Job E: plans checked and stored, while the worker waits for what a timer of a year holds back.
/// Each of them is there afterwards.
async fn submitted(
    system: &dyn System,
    entrance: &dyn Entrance,
    tasks: usize,
) -> Result<Sample, JobError> {
    let plan = plan(vec![json!({ "id": "later", "uses": "timer", "with": { "for": "365d" } })]);
    // Connections are opened by the first calls.
    submit_all(entrance, &plan, SUBMITTERS.min(tasks)).await?;
    let began = Instant::now();
    let ids = submit_all(entrance, &plan, tasks).await?;
    let elapsed = began.elapsed();
    for (task, stands) in stand(system, &ids).await? {
        if stands == Stands::Missing {
            return Err(JobError::NotStored(task));
        }
    }
    Ok(Sample { units: tasks as u64, elapsed, each: Vec::new() })
}

/// Job E from outside: counted when it is answered.
async fn submitted_by(system: &dyn System, door: Door, tasks: usize) -> Result<Sample, JobError> {
    let front = system.open(door).await?;
    let sample = submitted(system, &front, tasks).await;
    front.close().await;
    sample
}

/// Job G: timers of ten tasks in a hundred each, all due at one moment; counted from then.
async fn timers(system: &dyn System, timers: usize) -> Result<Sample, JobError> {
    let tasks = timers.div_ceil(100).max(1);
    let now = system.now().await?;
    let wait = Duration::from_millis(3_000 + timers as u64);
    let due = now.after(Span::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)));
    let until = json!({ "until": due.rfc3339() });
    let one = |n: usize| json!({ "id": format!("t{n}"), "uses": "timer", "with": until });
    let plan = plan((0..100).map(one).collect());
    let begun = Instant::now();
    let ids = submit_all(system, &plan, tasks).await?;
    tokio::time::sleep(wait.saturating_sub(begun.elapsed())).await;
    let since = Instant::now();
    let mut last = since;
    let mut open = ids;
    while let Some(task) = open.last() {
        if system.stands(task).await? == Stands::Completed {
            open.pop();
            last = Instant::now();
        } else if last.elapsed() > STANDSTILL {
            let done = (tasks - open.len()) as u64;
            return Err(JobError::Standstill { done, wanted: tasks as u64 });
        } else {
            tokio::time::sleep(system.look()).await;
        }
    }
    Ok(Sample { units: (tasks * 100) as u64, elapsed: since.elapsed(), each: Vec::new() })
}

/// Job H: one task of parallel steps, and one that needs them all.
async fn wide(system: &dyn System, parallel: usize) -> Result<Sample, JobError> {
    let names: Vec<String> = (0..parallel).map(|n| format!("p{n}")).collect();
    let mut steps: Vec<Value> = names.iter().map(|name| step(name, &[])).collect();
    let needs: Vec<&str> = names.iter().map(String::as_str).collect();
    steps.push(step("join", &needs));
    all(system, &plan(steps), 1, parallel as u64 + 1).await
}

/// Submits a plan some times, waits until so many steps have succeeded, and sees that each task
/// has completed.
async fn all(
    system: &dyn System,
    plan: &Value,
    tasks: usize,
    steps: u64,
) -> Result<Sample, JobError> {
    let before = system.succeeded().await?;
    let began = Instant::now();
    let (submitted, done) =
        tokio::join!(submit_all(system, plan, tasks), done(system, before, steps, began));
    let (submitted, elapsed) = (submitted?, done?);
    for (task, stands) in stand(system, &submitted).await? {
        if stands != Stands::Completed {
            return Err(JobError::Unfinished(task));
        }
    }
    Ok(Sample { units: steps, elapsed, each: Vec::new() })
}

async fn submit_all(
    entrance: &dyn Entrance,
    plan: &Value,
    tasks: usize,
) -> Result<Vec<TaskId>, JobError> {
    let next = AtomicUsize::new(0);
    let submitter = || async {
        let mut mine = Vec::new();
        while next.fetch_add(1, Ordering::Relaxed) < tasks {
            mine.push(entrance.submit(plan).await?);
        }
        Ok::<_, JobError>(mine)
    };
    let submitted = try_join_all((0..SUBMITTERS.min(tasks)).map(|_| submitter())).await?;
    Ok(submitted.into_iter().flatten().collect())
}

/// Says where each task stands.
async fn stand(system: &dyn System, tasks: &[TaskId]) -> Result<Vec<(TaskId, Stands)>, JobError> {
    let mut all = Vec::with_capacity(tasks.len());
    for part in tasks.chunks(SUBMITTERS) {
        let stand = try_join_all(part.iter().map(|task| system.stands(task))).await?;
        all.extend(part.iter().cloned().zip(stand));
    }
    Ok(all)
}

/// Waits until so many steps more have succeeded; gives when that was seen.
async fn done(
    system: &dyn System,
    before: u64,
    steps: u64,
    began: Instant,
) -> Result<Duration, JobError> {
    let (mut last, mut progress) = (before, Instant::now());
    loop {
        let now = system.succeeded().await?;
        if now >= before + steps {
            return Ok(began.elapsed());
        }
        if now != last {
            (last, progress) = (now, Instant::now());
        } else if progress.elapsed() > STANDSTILL {
            return Err(JobError::Standstill { done: now - before, wanted: steps });
        }
        tokio::time::sleep(system.look()).await;
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
