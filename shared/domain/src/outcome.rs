//! What a handler says at the end of an attempt. It proposes; the core decides.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plan::StepPlan;
use crate::record::{NotLanded, Payload};
use crate::time::Span;

/// Bytes of a failure's text that are kept: enough for a stack trace's head, small enough
/// for an event.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1024;
/// Artifacts of one attempt.
pub const ARTIFACTS_MAX: usize = 100;

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// May work next time.
    Retryable,
    /// Will not work next time either.
    Permanent,
    /// The other side asks for patience.
    RateLimited,
    /// It took too long.
    Timeout,
    /// It was told to end.
    Cancelled,
    /// Its worker fell silent.
    Lost,
}

impl FailureClass {
    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Permanent => "permanent",
            Self::RateLimited => "rate_limited",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// A file or directory that an attempt left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its name: the relative path it had in the attempt's directory.
    pub name: String,
    /// The blob that holds it.
    pub blob: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of the blob's content, in hex.
    pub sha256: String,
    /// True if the blob is a tar archive of a directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
}

/// A success.
#[derive(Clone, Debug, PartialEq)]
pub struct Success {
    /// What it gave.
    pub output: Payload,
    /// What it left.
    pub artifacts: Vec<Artifact>,
    /// The name of the checkpoint it makes, if it names one.
    pub checkpoint: Option<String>,
    /// Steps it adds to the plan.
    pub then: Vec<StepPlan>,
}

/// A failure.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Its class.
    pub class: FailureClass,
    /// Its text.
    pub message: String,
    /// Not before this span has passed.
    pub retry_after: Option<Span>,
    /// What it gave all the same.
    pub output: Value,
    /// What is known of the one effect that the step declares.
    pub effect: EffectEnd,
}

/// What a failed attempt knows of its step's one effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum EffectEnd {
    /// Nothing.
    #[default]
    Unknown,
    /// It has not happened.
    NotLanded(NotLanded),
    /// It has happened all the same, with this receipt.
    Landed(Payload),
}

impl Failure {
    /// Makes a failure with nothing but a class and a text.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            retry_after: None,
            output: Value::Null,
            effect: EffectEnd::Unknown,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It worked.
    Succeeded(Success),
    /// It did not.
    Failed(Failure),
}

/// Cuts a text to at most `bytes_max` bytes at a character's edge, and says so.
pub fn truncate(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let note = format!(" … ({} bytes in all)", text.len());
    let mut end = bytes_max.saturating_sub(note.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{note}", &text[..end])
}
