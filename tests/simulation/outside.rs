//! What lies outside of the product: the handlers' code, and a ledger of what they did. The
//! ledger is what the oracle believes; nothing in it comes from the product's own records.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::outcome::Artifact;
use standfast_domain::record::EffectClass;
use standfast_engine::blobs::Blobs;
use standfast_worker::handlers::{Class, Failure, Fault, Handler, Job, LogSource, Report, Success};
use standfast_worker::{Directories, FilesError};

use crate::process::Process;
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

/// One start of a handler.
#[derive(Clone, Debug)]
pub struct Start {
    /// When, as a line of the trace.
    pub moment: u64,
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

/// The world outside. Effects will have their ledger of sends beside that of starts.
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
pub struct Play(pub Arc<Process>);

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

    async fn run(&self, job: Job) -> Report {
        let before = self.0.world.trace.elapsed();
        self.0.pass_where_it_matters().await;
        let stood = self.0.world.trace.elapsed() > before;
        let unaware = stood || self.0.clock_stood_still();
        let (number, act) = self.0.world.outside.start(&self.0, &job, unaware);
        if number % 3 == 0 {
            job.log.write(LogSource::Stdout, format!("start {number}\n").as_bytes());
        }
        let report = self.act(&job, number, &act).await;
        self.0.pass_where_it_matters().await;
        if let Report::Succeeded(success) = &report {
            self.0.world.outside.gave(number, success.output.clone());
        }
        report
    }
}

impl Play {
    async fn act(&self, job: &Job, number: usize, act: &Act) -> Report {
        let span = Duration::from_millis(act.ms);
        if act.kind == Kind::Deaf {
            pause(span).await;
        } else {
            let span = if act.kind == Kind::Hangs { job.deadline } else { span };
            tokio::select! {
                biased;
                () = job.cancel.cancelled() => {
                    return Failure::new(Class::Cancelled, "told to end").into();
                }
                () = pause(span.min(job.deadline)) => {}
            }
            if span >= job.deadline {
                return Failure::new(Class::Timeout, "its time is over").into();
            }
        }
        let failed = |class| Failure::new(class, format!("start {number} failed as scripted"));
        match act.kind {
            Kind::Succeeds | Kind::Deaf | Kind::Hangs | Kind::Adds => {
                let output = json!({
                    "step": job.step, "attempt": job.attempt, "round": job.round, "start": number,
                });
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
    json!({
        "id": format!("{}.{number}", job.step),
        "uses": PLAY,
        "with": { "acts": [{ "kind": "succeeds", "ms": 100 }] },
        "on_failure": "continue",
    })
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
