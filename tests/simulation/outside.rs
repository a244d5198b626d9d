//! The handlers' code, and a ledger of its starts. The ledger is what the oracle believes; nothing
//! in it comes from the product's own records.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::outcome::Artifact;
use standfast_domain::record::EffectClass;
use standfast_engine::blobs::Blobs;
use standfast_engine::claims::Claims;
use standfast_worker::handlers::{
    Class, Failure, Fault, Handler, Job, LogSource, Report, Sent, Success,
};
use standfast_worker::{Directories, FilesError};

use crate::process::Process;
use crate::sending::{self, Landed, Named};
use crate::trace::pause;

/// The name by which plans use the simulated handler.
pub const PLAY: &str = "play";

/// What a handler does in one start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    pub kind: Kind,
    /// How long it takes.
    pub ms: u64,
}

/// The ways in which a start goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Succeeds,
    /// Succeeds and adds a step.
    Adds,
    FailsRetryable,
    FailsPermanent,
    FailsRateLimited,
    /// Goes on until it is told to end or its time is over.
    Hangs,
    /// Does not hear that it is to end.
    Deaf,
    Panics,
}

impl Kind {
    /// True if a start that goes so comes to the point of sending something.
    fn sends(self, number: usize) -> bool {
        match self {
            Self::Succeeds | Self::Adds | Self::Deaf => true,
            Self::Hangs => false,
            Self::FailsRetryable | Self::FailsPermanent | Self::FailsRateLimited | Self::Panics => {
                number.is_multiple_of(2)
            }
        }
    }
}

/// One start of a handler.
#[derive(Clone, Debug)]
pub struct Start {
    /// When, as a line of the trace.
    pub moment: u64,
    /// Since the world began.
    pub at: Duration,
    pub task: String,
    pub step: String,
    pub attempt: u32,
    pub round: u32,
    pub process: String,
    /// True if its process stood still between the product's last look and this start, or its
    /// clock had stood still before: nothing could have told it that its claim was gone.
    pub unaware: bool,
    /// What it saw of the steps it needs.
    pub seen: Value,
    /// What it gave, if it came to its end and succeeded.
    pub output: Option<Value>,
}

/// What handlers have done.
#[derive(Default)]
pub struct Outside {
    starts: Mutex<Vec<Start>>,
}

impl Outside {
    /// Registers a start; gives its number and what it is to do.
    fn start(&self, process: &Process, job: &Job, unaware: bool) -> (usize, Act) {
        let mut starts = self.starts.lock().unwrap();
        let same = |start: &&Start| start.task == job.task && start.step == job.step;
        let nth = starts.iter().filter(same).count();
        let script: Vec<Act> = serde_json::from_value(job.input["acts"].clone()).unwrap();
        let act = script[nth.min(script.len() - 1)].clone();
        let (step, attempt, round) = (&job.step, job.attempt, job.round);
        let moment = process.world.trace.say(
            &process.name,
            format_args!("start {}/{step} attempt {attempt} round {round}: {act:?}", job.task),
        );
        starts.push(Start {
            moment,
            at: process.world.trace.elapsed(),
            task: job.task.clone(),
            step: job.step.clone(),
            attempt: job.attempt,
            round: job.round,
            process: process.name.clone(),
            unaware,
            seen: job.input["seen"].clone(),
            output: None,
        });
        (starts.len() - 1, act)
    }

    fn gave(&self, number: usize, output: Value) {
        self.starts.lock().unwrap()[number].output = Some(output);
    }

    pub fn starts(&self) -> Vec<Start> {
        self.starts.lock().unwrap().clone()
    }
}

/// The handler of all steps: does what the step's `acts` say, one a start.
pub struct Play {
    process: Arc<Process>,
    claims: OnceLock<Arc<Claims>>,
}

impl Play {
    pub fn new(process: &Arc<Process>) -> Self {
        Self { process: process.clone(), claims: OnceLock::new() }
    }

    /// Lets it record effects under names of its own, as a worker outside does.
    pub fn works_for(&self, claims: &Arc<Claims>) {
        let _ = self.claims.set(claims.clone()); // once for each
    }
}

#[async_trait]
impl Handler for Play {
    fn name(&self) -> &str {
        PLAY
    }

    fn check(&self, _: &Value) -> Vec<Fault> {
        Vec::new()
    }

    fn effect(&self, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::None)
    }

    fn says_no(&self, failure: &Failure) -> bool {
        sending::says_no(failure)
    }

    async fn run(&self, job: Job) -> Report {
        if job.input["checks"] == true {
            return sending::answer_check(&self.process, &job).await;
        }
        let (process, world) = (&self.process, &self.process.world);
        let before = world.trace.elapsed();
        process.pass_at("before the start").await;
        let unaware = world.trace.elapsed() > before || process.clock_stood_still();
        let (number, act) = world.outside.start(process, &job, unaware);
        if number.is_multiple_of(3) {
            job.log.write(LogSource::Stdout, format!("start {number}\n").as_bytes());
        }
        let mut landed = Vec::new();
        let report = match self.begin(&job, &act).await {
            Some(ended) => ended,
            None if act.kind.sends(number) => match self.send(&job).await {
                Ok(all) => {
                    process.pass_at("after receipt").await;
                    landed = all;
                    self.end(&job, number, &act, &landed)
                }
                Err(report) => report,
            },
            None => self.end(&job, number, &act, &[]),
        };
        process.pass_at("after the end").await;
        if let Report::Succeeded(success) = &report {
            world.outside.gave(number, success.output.clone());
        }
        landed.iter().filter_map(|landed| landed.number).for_each(|one| world.ledger.told(one));
        report
    }
}

impl Play {
    /// Works for as long as its act takes; gives a report if that ends the attempt.
    async fn begin(&self, job: &Job, act: &Act) -> Option<Report> {
        let span = Duration::from_millis(act.ms);
        if act.kind == Kind::Deaf {
            pause(span).await;
            return None;
        }
        let span = if act.kind == Kind::Hangs { job.deadline } else { span };
        tokio::select! {
            biased;
            () = job.cancel.cancelled() => {
                return Some(Failure::new(Class::Cancelled, "told to end").into());
            }
            () = pause(span.min(job.deadline)) => {}
        }
        let over = span >= job.deadline;
        over.then(|| Failure::new(Class::Timeout, "its time is over").into())
    }

    /// Sends what the step declares, or what its input names.
    async fn send(&self, job: &Job) -> Result<Vec<Landed>, Report> {
        if let Some(effect) = &job.effect {
            return Ok(vec![sending::declared(&self.process, job, effect).await?]);
        }
        let claims = self.claims.get().expect("the handlers of workers have claims");
        let mut landed = Vec::new();
        for effect in job.input["named"].as_array().into_iter().flatten() {
            let class = EffectClass::parse(effect["class"].as_str().unwrap()).unwrap();
            let name = effect["name"].as_str().unwrap().to_owned();
            let named = Named { process: &self.process, claims, job, name, class };
            landed.push(named.run().await.map_err(Report::from)?);
        }
        Ok(landed)
    }

    /// Ends as its act says, whatever has landed.
    fn end(&self, job: &Job, number: usize, act: &Act, landed: &[Landed]) -> Report {
        let receipt = job.effect.is_some().then(|| landed.first()).flatten();
        let receipt = receipt.map(|landed| landed.receipt.clone());
        let failed = |class| {
            let failure = Failure::new(class, format!("start {number} failed as scripted"));
            let sent = receipt.clone().map_or(failure.sent, Sent::Landed);
            Failure { sent, ..failure }
        };
        match act.kind {
            Kind::Succeeds | Kind::Deaf | Kind::Hangs | Kind::Adds => {
                let mut output = json!({
                    "step": job.step, "attempt": job.attempt, "round": job.round, "start": number,
                });
                if let Some(receipt) = &receipt {
                    output["receipt"] = receipt["receipt"].clone();
                }
                let cost_usd_micros = number as u64;
                let then = match act.kind {
                    Kind::Adds => vec![added(job, number)],
                    _ => Vec::new(),
                };
                Success { output, cost_usd_micros, then, ..Success::default() }.into_report()
            }
            Kind::FailsRetryable => failed(Class::Retryable).into(),
            Kind::FailsPermanent => failed(Class::Permanent).into(),
            Kind::FailsRateLimited => {
                let retry_after = Some(Duration::from_millis(1_500));
                Failure { retry_after, ..failed(Class::RateLimited) }.into()
            }
            // Without the hook that would print it.
            Kind::Panics => std::panic::resume_unwind(Box::new("a scripted panic".to_owned())),
        }
    }
}

/// A step that a success adds; its name is new with every start.
fn added(job: &Job, number: usize) -> Value {
    let mut step = json!({
        "id": format!("{}.{number}", job.step),
        "uses": PLAY,
        "with": { "acts": [{ "kind": "succeeds", "ms": 100 }] },
        "on_failure": "continue",
    });
    if number.is_multiple_of(2) {
        step["effect"] = json!({ "class": "irreversible" });
    }
    step
}

trait IntoReport {
    fn into_report(self) -> Report;
}

impl IntoReport for Success {
    fn into_report(self) -> Report {
        Report::Succeeded(self)
    }
}

/// Directories of attempts that are nowhere: each artifact holds its attempt's name.
pub struct Nowhere {
    pub process: Arc<Process>,
    pub blobs: Blobs,
}

#[async_trait]
impl Directories for Nowhere {
    fn place(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    async fn make(&self, name: &str, inputs: &[(StepId, Artifact)]) -> Result<PathBuf, FilesError> {
        self.process.pass().await;
        for (_, artifact) in inputs {
            self.blobs.get(&artifact.blob).await?;
        }
        Ok(Path::new("/standfast-simulates-and-has-no-folder").join(name))
    }

    async fn make_within(&self, directory: &Path, name: &str) -> Result<PathBuf, FilesError> {
        self.process.pass().await;
        Ok(directory.join(name))
    }

    async fn keep(
        &self,
        task: &TaskId,
        directory: &Path,
        names: &[String],
    ) -> Result<Vec<Artifact>, FilesError> {
        let mut kept = Vec::new();
        for name in names {
            self.process.pass().await;
            let content = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let blob = self.blobs.put(task, Bytes::from(content)).await?;
            kept.push(Artifact {
                name: name.clone(),
                blob: blob.name,
                bytes: blob.bytes,
                sha256: blob.sha256,
                directory: false,
            });
        }
        Ok(kept)
    }

    async fn remove(&self, _: &Path) {
        self.process.pass().await;
    }
}
