//! Holds: why a step or task does not move, and who or what ends that.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::StepId;
use crate::record::Gate;
use crate::time::{Span, Time};

/// Why something does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldReason {
    /// A timer step waits for its time.
    Timer,
    /// Nothing new starts: `on_failure: pause`, or a deadline under `then: pause`.
    Paused,
    /// A step has failed for good and the owner decides.
    Failures,
    /// A step's attempts were lost with their workers, up to its limit.
    WorkerDied,
    /// The checks of completion do not hold.
    Verification,
    /// It cannot be known from here whether an effect has happened.
    UncertainEffect,
    /// An effect has happened, and the step would now send another request under its name.
    EffectChanged,
    /// A stop could not undo what has landed.
    UndoFailed,
}

/// Whether a hold ends by itself or needs a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldClass {
    /// Ends by itself or by what it waits for.
    Waiting,
    /// Needs a person.
    Blocked,
}

/// What a person may say to a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Go on: run the step again, or lift the task's hold.
    Retry,
    /// Go on without: the step counts as skipped, the check as passed, what was not undone as
    /// settled by hand.
    Skip,
    /// The effect has happened; its receipt may come with the answer.
    Happened,
    /// The effect has not happened: send the stored request.
    NotHappened,
    /// Take the receipt of what has happened for the changed request too.
    Keep,
    /// Send the changed request additionally, under a key of its own.
    SendAlso,
    /// Stop the task (`halt`).
    Stop,
}

impl HoldReason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Timer,
        Self::Paused,
        Self::Failures,
        Self::WorkerDied,
        Self::Verification,
        Self::UncertainEffect,
        Self::EffectChanged,
        Self::UndoFailed,
    ];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timer => "timer",
            Self::Paused => "paused",
            Self::Failures => "failures",
            Self::WorkerDied => "worker_died",
            Self::Verification => "verification",
            Self::UncertainEffect => "uncertain_effect",
            Self::EffectChanged => "effect_changed",
            Self::UndoFailed => "undo_failed",
        }
    }

    /// Says whether a person is needed.
    pub fn class(self) -> HoldClass {
        match self {
            Self::Timer => HoldClass::Waiting,
            Self::Paused
            | Self::Failures
            | Self::WorkerDied
            | Self::Verification
            | Self::UncertainEffect
            | Self::EffectChanged
            | Self::UndoFailed => HoldClass::Blocked,
        }
    }

    /// Gives the answers that end it; the first is the suggested one.
    pub fn answers(self) -> &'static [Answer] {
        match self {
            Self::Timer => &[Answer::Skip, Answer::Stop],
            Self::Paused => &[Answer::Retry, Answer::Stop],
            Self::Failures | Self::WorkerDied => &[Answer::Retry, Answer::Skip, Answer::Stop],
            Self::Verification => &[Answer::Skip, Answer::Retry, Answer::Stop],
            Self::UncertainEffect => &[Answer::Happened, Answer::NotHappened, Answer::Stop],
            Self::EffectChanged => &[Answer::Keep, Answer::SendAlso, Answer::Stop],
            Self::UndoFailed => &[Answer::Retry, Answer::Skip],
        }
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Answer {
    /// All answers.
    pub const ALL: [Self; 7] = [
        Self::Retry,
        Self::Skip,
        Self::Happened,
        Self::NotHappened,
        Self::Keep,
        Self::SendAlso,
        Self::Stop,
    ];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Happened => "happened",
            Self::NotHappened => "not_happened",
            Self::Keep => "keep",
            Self::SendAlso => "send_also",
            Self::Stop => "stop",
        }
    }

    /// Reads the word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|answer| answer.as_str() == text)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One open hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Why.
    pub reason: HoldReason,
    /// What happened, in words.
    pub message: String,
    /// Since when.
    pub since: Time,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
    /// Of a wait for a span, whose clock stands still while its task is paused: how long the
    /// task had been paused before it began, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_ms: Option<u64>,
    /// Of a hold of the task: the step whose failure made it, and whose answer ends it. A task
    /// has at most one hold for each reason and step, and one for each reason of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<StepId>,
    /// The effect that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<HeldEffect>,
}

/// The effect that a hold is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldEffect {
    /// Its name.
    pub name: String,
    /// The key under which the outside world may know it.
    pub key: String,
    /// Digest of the request that the step would send now, if that has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_sha256: Option<String>,
}

impl Hold {
    /// Gives when it ends by itself, pauses of the task since it began included.
    pub fn ends_at(&self, gate: &Gate, now: Time) -> Option<Time> {
        let still = self.paused_ms.map_or(0, |ms| gate.stood_still_ms(now).saturating_sub(ms));
        self.due.map(|due| due.after(Span(still)))
    }

    /// Says whether its clock stands still, since its task is paused: when it ends cannot be said.
    pub fn stands_still(&self, gate: &Gate) -> bool {
        self.due.is_some() && self.paused_ms.is_some() && gate.paused_at.is_some()
    }

    /// Makes a hold without a clock.
    pub fn new(reason: HoldReason, message: impl Into<String>, since: Time) -> Self {
        Self {
            reason,
            message: message.into(),
            since,
            due: None,
            paused_ms: None,
            by: None,
            effect: None,
        }
    }
}
