//! The code that a step's `uses` names, as a worker runs it: the contract of a handler and
//! the built-in ones, `exec` and `http`. A handler knows nothing of claims, heartbeats,
//! stores or queues: it is given one attempt and reports how it ended.

mod fields;
mod log;
mod outside;
mod pulse;
mod secrets;
mod strict_json;

pub mod exec;
pub mod http;

pub use log::{LogLimits, LogPiece, LogSink, LogSnapshot, LogSource};
pub use outside::{Effect, Intents, MaySend, Sent};
pub use pulse::{Pulse, Untold};
pub use secrets::{Masker, NamedSecrets, SecretFault, Secrets};

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::record::EffectClass;
use tokio_util::sync::CancellationToken;

/// Bytes of what one attempt may produce and of what it may be told in its outcome file:
/// what a worker can hold in memory for each of its slots.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes of a failure's message: enough for a command, a cause and its last line.
pub const MESSAGE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of each text that a failure's output keeps, so that histories of retries stay small.
pub const FAILURE_TEXT_BYTES_MAX: usize = 16 * 1024;

/// What one attempt is given. The worker loop fills it in; a handler only reads it.
pub struct Job {
    /// The task's id.
    pub task: String,
    /// The step's id within its plan.
    pub step: String,
    /// The attempt's number within its step; rises with every start and is never reused.
    pub attempt: u32,
    /// The round of a `redo`, from one.
    pub round: u32,
    /// The step's `with` after its templates; only `${{ secrets.NAME }}` is still to come.
    pub input: Value,
    /// A fresh directory of this attempt that exists; holds `inputs/STEP/NAME` already.
    pub directory: PathBuf,
    /// A relative path that must exist after success; the worker loop checks it.
    pub artifact: Option<String>,
    /// What is left of the attempt's time.
    pub deadline: Duration,
    /// Is cancelled when the attempt has to end early.
    pub cancel: CancellationToken,
    /// Takes the attempt's log, readable while the attempt runs.
    pub log: LogSink,
    /// W3C trace context of the task's submission.
    pub traceparent: Option<String>,
    /// What the attempt before last said of its progress, in the same round.
    pub last_details: Option<String>,
    /// Takes the handler's signs of life; a step's `timeout.heartbeat` is the longest time
    /// without one.
    pub pulse: Pulse,
    /// Gives the values of `${{ secrets.NAME }}` at the moment they are used.
    pub secrets: Arc<dyn Secrets>,
    /// What the step changes outside, if it declares that it does: asked before it is sent.
    pub effect: Option<Arc<Effect>>,
}

/// Code that a step can name in `uses`.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Gives the name that plans use.
    fn name(&self) -> &str;

    /// Looks at an input before anything runs. Values that still hold a template are left
    /// alone; everything else that could never run is a fault.
    fn check(&self, input: &Value) -> Vec<Fault>;

    /// Gives the class of what this input changes outside unless the plan says otherwise; an
    /// error where the plan must say it.
    fn effect(&self, input: &Value) -> Result<EffectClass, String>;

    /// Checks a receipt that a person gives: it becomes the step's output, so it must look like
    /// one. Says what was expected.
    fn check_receipt(&self, _receipt: &Value) -> Result<(), String> {
        Ok(())
    }

    /// Says whether attempts use their directory besides a step's artifact and inputs. Where it
    /// is false and there are none of those, [`Job::directory`] names a place that does not exist.
    fn uses_directory(&self) -> bool {
        true
    }

    /// Says whether a run may keep its thread: by blocking calls or by long work between its waits.
    /// Then it gets threads apart; one that only waits runs among the worker's own tasks.
    fn may_block(&self) -> bool {
        true
    }

    /// Says of a failed run as the check of an effect that the effect has not happened. Any
    /// other failure says nothing of it.
    fn says_no(&self, _: &Failure) -> bool {
        false
    }

    /// Runs one attempt. Dropping the future ends whatever the attempt had started.
    async fn run(&self, job: Job) -> Report;
}

/// What is wrong with an input: a JSON Pointer within it, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, as a JSON Pointer from the step's `with`; empty for the whole.
    pub pointer: String,
    /// What is wrong there: lower case, no full stop.
    pub message: String,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// The handler did what was asked.
    Succeeded(Success),
    /// It did not; the class says what may follow.
    Failed(Failure),
}

/// What a successful attempt hands over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Success {
    /// The step's output.
    pub output: Value,
    /// Paths within the attempt's directory to keep beside the step's `artifact`.
    pub artifacts: Vec<String>,
    /// What the attempt cost, in micro-dollars.
    pub cost_usd_micros: u64,
    /// Names a checkpoint to set at this point.
    pub checkpoint: Option<String>,
    /// Steps that the handler proposes to add.
    pub then: Vec<Value>,
    /// True if nothing ran: the output is the receipt of what an earlier attempt has sent.
    pub kept: bool,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What kind of failure it is.
    pub class: Class,
    /// What happened, for people: lower case, no full stop, up to [`MESSAGE_BYTES_MAX`].
    pub message: String,
    /// The earliest moment of the next attempt, counted from now.
    pub retry_after: Option<Duration>,
    /// What is known of the failed attempt, for `failure.output` in later templates.
    pub output: Option<Value>,
    /// What the attempt cost all the same, in micro-dollars.
    pub cost_usd_micros: u64,
    /// What is known of the step's effect.
    pub sent: Sent,
}

/// The kinds of failure; retries look at nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Another attempt may succeed.
    Retryable,
    /// No attempt with this input can succeed.
    Permanent,
    /// The other side asked for a pause.
    RateLimited,
    /// The attempt's time was over.
    Timeout,
    /// The attempt was told to end.
    Cancelled,
    /// The attempt's worker went away; handlers report it only on another's behalf.
    Lost,
}

impl Class {
    /// Gives the name that outcome files, records and people use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Permanent => "permanent",
            Self::RateLimited => "rate_limited",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }

    /// Reads a class by its name.
    pub fn parse(name: &str) -> Option<Self> {
        [
            Self::Retryable,
            Self::Permanent,
            Self::RateLimited,
            Self::Timeout,
            Self::Cancelled,
            Self::Lost,
        ]
        .into_iter()
        .find(|class| class.name() == name)
    }
}

impl Failure {
    /// Makes a failure that is only a class and a message; long messages are cut.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        let message = shorten(&message.into(), MESSAGE_BYTES_MAX);
        Self {
            class,
            message,
            retry_after: None,
            output: None,
            cost_usd_micros: 0,
            sent: Sent::Unknown,
        }
    }

    /// Adds what is known of the attempt.
    pub fn with_output(self, output: Value) -> Self {
        Self { output: Some(output), ..self }
    }
}

impl From<Failure> for Report {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Joins faults into one line, for an attempt whose input turned out to be wrong.
fn faults_failure(handler: &str, faults: &[Fault]) -> Failure {
    let listed: Vec<String> = faults
        .iter()
        .map(|Fault { pointer, message }| format!("`with{pointer}`: {message}"))
        .collect();
    Failure::new(Class::Permanent, format!("{handler}: {}", listed.join("; ")))
}

/// Cuts a text to a number of bytes, between characters, and says so.
fn shorten(text: &str, bytes_max: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max.saturating_sub(MARK.len()));
    format!("{}{MARK}", &text[..end])
}

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_read_back_by_name() {
        for name in ["retryable", "permanent", "rate_limited", "timeout", "cancelled", "lost"] {
            assert_eq!(Class::parse(name).map(Class::name), Some(name));
        }
        assert_eq!(Class::parse("Retryable"), None);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let failure = Failure::new(Class::Permanent, "ü".repeat(MESSAGE_BYTES_MAX));
        assert!(failure.message.len() <= MESSAGE_BYTES_MAX);
        assert!(failure.message.ends_with("ü…"));
    }
}
