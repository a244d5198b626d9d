//! How workers outside work: announce, claim, heartbeat, complete, over HTTP.
//!
//! ```text
//! worker                                  api
//!   | POST /v1/workers                      |   which queues and handlers, repeated
//!   | POST /v1/claims (waits)               |
//!   | <-- 200 Claim, or 204: nothing        |   the attempt is charged from here on
//!   | POST …/heartbeat every heartbeat_ms   |
//!   | <-- stop: end soon; 409 fenced: end   |
//!   | PUT …/artifacts/{name}, POST …/log    |
//!   | POST …/complete or …/hand-back        |
//!   | <-- 200: stored, ack the delivery now |
//! ```
//!
//! Whoever holds an attempt names itself in every call by worker, attempt and epoch; together
//! they are the fence. A call with a fence that is over is refused with `fenced`, and changes
//! nothing. Every call may be repeated: the same completion twice is answered twice with 200.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::amqp::StepMessage;
use crate::effects::{DeclaredEffect, EffectEnd};
use crate::is_false;
use crate::steps::StepState;

/// Says what a worker can do. Repeated, because it is forgotten after a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Announce {
    /// The worker's id: new at each start of a process, chosen by it.
    pub worker: String,
    /// The queues it takes steps from.
    pub queues: Vec<String>,
    /// The handlers it has.
    pub handlers: Vec<AnnouncedHandler>,
    /// How many attempts it runs at once at most; without it, it is never taken to be full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many attempts it runs now; 0 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u32>,
    /// Whether it is leaving: it claims no more, and a queue without others shows `no_worker`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leaving: bool,
}

/// A handler that a worker has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnnouncedHandler {
    /// Its name, as `uses` gives it.
    pub name: String,
}

/// Answer to an announcement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Announced {
    /// The principal of the token.
    pub principal: String,
    /// How long until the worker should announce itself again, in milliseconds.
    pub again_ms: u64,
}

/// Asks for an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// The worker's id.
    pub worker: String,
    /// The queue to take a step from.
    pub queue: String,
    /// The handlers it has; steps that use another are left alone.
    pub handlers: Vec<String>,
    /// How long to wait for a step, in milliseconds; at most
    /// [`crate::limits::WAIT_MS_MAX`]. Ignored when `step` is given.
    #[serde(default)]
    pub wait_ms: u64,
    /// The step that a message spoke of; then it is this one or none. 204 means that it cannot
    /// be claimed now, whatever the reason, and the message has done its work: ack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepMessage>,
}

/// An attempt that the worker now holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Claim {
    /// The task.
    pub task: String,
    /// The step.
    pub step: String,
    /// The attempt's number: the fence.
    pub attempt: u32,
    /// The task's epoch.
    pub epoch: u32,
    /// The step's round.
    pub round: u32,
    /// The handler to run.
    pub handler: String,
    /// The step's `with`, its templates resolved.
    pub input: Value,
    /// In a round after the first: the failure that led to the `redo`, as `failure` in
    /// expressions; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Value>,
    /// What the attempt before this one last told of its progress; absent in a round's first
    /// attempt, and when nothing was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_details: Option<String>,
    /// How long the attempt may take from now, in milliseconds; absent without such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_deadline_ms: Option<u64>,
    /// How often to send a heartbeat, in milliseconds.
    pub heartbeat_ms: u64,
    /// How long the handler may be silent, in milliseconds; absent without such a limit. Only a
    /// heartbeat with `details` is a sign of life; the worker should end an attempt that gives
    /// none for longer, as a failure of class `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_timeout_ms: Option<u64>,
    /// How long the claim holds without a heartbeat, from now, in milliseconds.
    pub expires_ms: u64,
    /// Artifacts of the steps that this one needs.
    #[serde(default)]
    pub inputs: Vec<InputArtifact>,
    /// The artifact that the plan expects; an attempt that succeeds must have put it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
    /// What the step changes outside, if its plan declares that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<DeclaredEffect>,
    /// W3C trace context to continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// An artifact that an attempt may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputArtifact {
    /// The step that left it.
    pub step: String,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes in hex; the reader should check it.
    pub sha256: String,
    /// Path of the bytes on this api; the worker's token may read it while the claim holds.
    pub url: String,
}

/// Who holds an attempt: the query of calls whose body is not JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Holder {
    /// The worker's id.
    pub worker: String,
    /// The attempt's number.
    pub attempt: u32,
    /// The task's epoch.
    pub epoch: u32,
}

/// Keeps a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The worker's id.
    pub worker: String,
    /// The attempt's number.
    pub attempt: u32,
    /// The task's epoch.
    pub epoch: u32,
    /// How far the attempt is, in a line; becomes the step's summary, and is a sign of life of
    /// the handler: leave it out while the handler has said nothing new. It is given to the
    /// next attempt if this one does not succeed. Longer than
    /// [`crate::limits::DETAILS_BYTES_MAX`] is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

/// Answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatAnswer {
    /// Whether the attempt should end: the task is being stopped, or its time is over.
    pub stop: bool,
    /// How long the claim now holds, in milliseconds.
    pub expires_ms: u64,
}

/// Query of a wait for word that an attempt is to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ControlQuery {
    /// The worker's id.
    pub worker: String,
    /// The attempt's number.
    pub attempt: u32,
    /// The task's epoch.
    pub epoch: u32,
    /// How long to wait for it, in milliseconds, at most [`crate::limits::WAIT_MS_MAX`]; 0 when
    /// not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// Answer to a wait for word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControlAnswer {
    /// Whether the attempt is to end. If so send a heartbeat now, whose answer is what counts.
    pub stop: bool,
}

/// Ends an attempt with its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Complete {
    /// The worker's id.
    pub worker: String,
    /// The attempt's number.
    pub attempt: u32,
    /// The task's epoch.
    pub epoch: u32,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of an attempt, told by its handler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "status", rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// It did what it should.
    Succeeded {
        /// The step's output; null when not given.
        #[serde(default)]
        output: Value,
        /// Names of the artifacts it put, at most [`crate::limits::ARTIFACTS_MAX`]; those it put
        /// but does not name are dropped.
        #[serde(default)]
        artifacts: Vec<String>,
        /// What it cost, in micro-dollars.
        #[serde(default)]
        cost_usd_micros: u64,
        /// A name for the point reached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkpoint: Option<String>,
        /// Steps to add, in the form of a plan's steps.
        #[serde(default)]
        then: Vec<Value>,
    },
    /// It did not.
    Failed {
        /// Whether to try again.
        class: FailureClass,
        /// What went wrong; longer than [`crate::limits::MESSAGE_BYTES_MAX`] is cut.
        message: String,
        /// How long to wait before the next attempt, in milliseconds; otherwise as the plan's
        /// `retry` says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
        /// What is known nevertheless, for `failure.output` after a `redo`.
        #[serde(default)]
        output: Value,
        /// What it cost, in micro-dollars.
        #[serde(default)]
        cost_usd_micros: u64,
        /// What became of the effect that the step declares; absent: that is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effect: Option<EffectEnd>,
    },
}

/// Whether a failed attempt is tried again, as its worker sees it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// It may go better next time.
    Retryable,
    /// It will not: the step fails for good.
    Permanent,
    /// Somebody asked for fewer requests.
    RateLimited,
    /// It took too long.
    Timeout,
    /// It ended because it was told to.
    Cancelled,
}

/// Ends an attempt without an outcome: it is not charged, and the step is ready again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandBack {
    /// The worker's id.
    pub worker: String,
    /// The attempt's number.
    pub attempt: u32,
    /// The task's epoch.
    pub epoch: u32,
    /// Why, for the history, such as `the worker is shutting down`; at most
    /// [`crate::limits::NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer to a completion or hand-back: it is stored, and a delivery may be acked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Settled {
    /// The step's state after it.
    pub state: StepState,
}

/// Query of an append to an attempt's log; the body is the text, at most
/// [`crate::limits::LOG_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogAppend {
    /// The worker's id.
    pub worker: String,
    /// The attempt's number.
    pub attempt: u32,
    /// The task's epoch.
    pub epoch: u32,
    /// Bytes of the attempt's log before this text. What the server has already is not
    /// appended again, so that an append may be repeated.
    pub offset: u64,
}

/// Answer to an append.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogAppended {
    /// Bytes of the attempt's log now.
    pub next_offset: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_outcome_needs_little() {
        let done: Outcome = serde_json::from_value(json!({"status": "succeeded"})).unwrap();
        let Outcome::Succeeded { output, then, .. } = done else { panic!("read {done:?}") };
        assert_eq!((output, then.len()), (Value::Null, 0));
        let body = json!({"status": "failed", "class": "rate_limited", "message": "slow down"});
        assert!(serde_json::from_value::<Outcome>(body).is_ok());
    }

    #[test]
    fn an_outcome_refuses_what_it_does_not_know() {
        for body in [
            json!({"status": "succeeded", "outptu": 1}),
            json!({"status": "failed", "class": "lost", "message": ""}),
            json!({"status": "done"}),
            json!({}),
        ] {
            assert!(serde_json::from_value::<Outcome>(body.clone()).is_err(), "{body}");
        }
    }

    #[test]
    fn integers_of_64_bits_survive_an_outcome() {
        let text = r#"{"status":"succeeded","output":[18446744073709551615,-9223372036854775808]}"#;
        let outcome: Outcome = serde_json::from_str(text).unwrap();
        let back = serde_json::to_string(&outcome).unwrap();
        assert!(back.contains("[18446744073709551615,-9223372036854775808]"), "{back}");
    }
}
