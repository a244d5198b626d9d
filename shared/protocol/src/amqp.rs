//! Names and bodies of AMQP messages.
//!
//! With the routing key [`STOP`], the body is a [`StopMessage`] and needs no id: twice is once.
//! Publishers send to [`EXCHANGE`] with the routing key [`SUBMIT`]; the body is that of
//! `POST /v1/tasks`, `message_id` is the idempotency key when the plan names none, and one of
//! them is required. The principal is the `user_id` that the broker has validated, or a token
//! in [`TOKEN_HEADER`]. With `reply_to`, a [`SubmitReply`] comes back with the same
//! `correlation_id` (or, without one, the `message_id`). What cannot be accepted goes to
//! [`REJECTED_QUEUE`] with the problem in [`PROBLEM_HEADER`].

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::tasks::{StopMode, Stopped, Submitted};

/// The direct exchange that publishers send to.
pub const EXCHANGE: &str = "standfast";
/// Routing key of a submission.
pub const SUBMIT: &str = "submit";
/// Routing key of a signal.
pub const SIGNAL: &str = "signal";
/// Routing key of a stop.
pub const STOP: &str = "stop";
/// The queue that the intake reads.
pub const INTAKE_QUEUE: &str = "standfast.intake";
/// The queue of messages that could not be accepted.
pub const REJECTED_QUEUE: &str = "standfast.rejected";
/// What the name of every queue of steps begins with.
pub const STEPS_PREFIX: &str = "standfast.steps.";

/// The fanout exchange of what all workers are to hear at once.
pub const CONTROL_EXCHANGE: &str = "standfast.control";

/// Header with the publisher's token; removed before anything is kept.
pub const TOKEN_HEADER: &str = "standfast-token";
/// Header with a [`Problem`] as JSON, on messages in [`REJECTED_QUEUE`].
pub const PROBLEM_HEADER: &str = "standfast-reason";
/// Header with the time at which a message came to [`REJECTED_QUEUE`] (RFC 3339).
pub const REJECTED_AT_HEADER: &str = "standfast-rejected-at";
/// Header with the routing key that a message in [`REJECTED_QUEUE`] was first sent with.
pub const ROUTING_KEY_HEADER: &str = "standfast-routing-key";
/// Header that proves who first sent a message in [`REJECTED_QUEUE`], so that it can be sent
/// again in that one's name; made by the intake, and good for that message alone.
pub const SENDER_HEADER: &str = "standfast-sender";
/// Header with the W3C trace context.
pub const TRACEPARENT_HEADER: &str = "traceparent";

/// Gives the name of the AMQP queue that wakes the workers of a queue.
pub fn steps_queue(queue: &str) -> String {
    format!("{STEPS_PREFIX}{queue}")
}

/// Gives the name of the queue of one that listens to [`CONTROL_EXCHANGE`].
pub fn control_queue(listener: &str) -> String {
    format!("{CONTROL_EXCHANGE}.{listener}")
}

/// Body of a message to all workers: attempts that one of them may run are to end. It says what
/// to look at, and decides nothing; it may be lost, doubled, late or wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControlMessage {
    /// Why: `task_ending`, `attempt_taken`, or what a later version adds.
    pub what: String,
    /// The task.
    pub task: String,
    /// The step; absent: all of the task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The task's epoch at that time.
    pub epoch: u32,
    /// The attempt; absent: whichever runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

impl ControlMessage {
    /// True if an attempt of the message's task is meant.
    pub fn means(&self, step: &str, attempt: u32) -> bool {
        self.step.as_ref().is_none_or(|said| said == step)
            && self.attempt.is_none_or(|said| said == attempt)
    }
}

/// Body of a message that wakes a worker. It says what to look at, and decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepMessage {
    /// The task.
    pub task: String,
    /// The step that is ready.
    pub step: String,
    /// The task's epoch when it became ready.
    pub epoch: u32,
    /// The number its next attempt will have.
    pub attempt: u32,
}

/// Body of a message that stops a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopMessage {
    /// The task's id.
    pub task: String,
    /// What happens to running attempts and to what has landed; by default `halt`.
    #[serde(default)]
    pub mode: StopMode,
    /// Why, for the history; at most [`crate::limits::NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of the reply to a submission or a stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SubmitReply {
    /// It was accepted, now or before.
    Submitted(Submitted),
    /// The task is stopped, now or before.
    Stopped(Stopped),
    /// It was not accepted.
    Problem(Problem),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::ProblemKind;

    #[test]
    fn a_reply_says_which_it_is() {
        let reply = SubmitReply::Problem(Problem::new(ProblemKind::InvalidPlan, "no steps"));
        let json = serde_json::to_value(&reply).unwrap();
        assert_eq!(json["problem"]["status"], 422);
        assert_eq!(serde_json::from_value::<SubmitReply>(json).unwrap(), reply);
    }

    #[test]
    fn a_control_message_means_a_whole_task_or_one_attempt() {
        for (more, means) in [
            ("", true),
            (r#","step":"a""#, true),
            (r#","step":"a","attempt":2"#, true),
            (r#","step":"a","attempt":1"#, false),
            (r#","step":"b","attempt":2"#, false),
            (r#","a later field":[1]"#, true),
        ] {
            let text = format!(r#"{{"what":"x","task":"t","epoch":1{more}}}"#);
            let message: ControlMessage = serde_json::from_str(&text).unwrap();
            assert_eq!(message.means("a", 2), means, "{text}");
        }
    }

    #[test]
    fn a_steps_queue_has_the_prefix() {
        assert_eq!(steps_queue("default"), "standfast.steps.default");
    }
}
