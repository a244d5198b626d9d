//! Stopping many tasks at once, and one attempt alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::steps::StepState;
use crate::tasks::{StopMode, TaskQuery, TaskState};

/// Which tasks a stop means: those that match all of it. An empty one is refused, for it would
/// mean every task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopFilter {
    /// In this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// Of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Of this owner, such as `user:ana`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// With all of these labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Accepted at or after this time (RFC 3339, any offset).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_after: Option<String>,
    /// Accepted before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_before: Option<String>,
    /// With an open hold: `any`, or one of this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// With an open hold of at least this age, in milliseconds; without `waiting`, of any reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_ms: Option<u64>,
    /// With `waiting` or `older_ms`: held at this time already, from which ages count back
    /// (RFC 3339, any offset); the server's time if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<String>,
}

impl StopFilter {
    /// True if it would mean every task.
    pub fn is_empty(&self) -> bool {
        let named = Self { as_of: None, ..self.clone() };
        named == Self::default()
    }

    /// True if tasks are looked for by their open holds.
    pub fn by_holds(&self) -> bool {
        self.waiting.is_some() || self.older_ms.is_some()
    }

    /// Gives the filters as those of a list.
    pub fn to_query(&self) -> TaskQuery {
        TaskQuery {
            state: self.state,
            kind: self.kind.clone(),
            owner: self.owner.clone(),
            labels: self.labels.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            created_after: self.created_after.clone(),
            created_before: self.created_before.clone(),
            waiting: self.waiting.clone(),
            older_ms: self.older_ms,
            as_of: self.as_of.clone(),
            ..TaskQuery::default()
        }
    }
}

/// Body of a question: how many tasks would a stop mean?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountStopsRequest {
    /// Which tasks.
    pub filter: StopFilter,
    /// As it would be stopped: those that were stopped this way already do not count.
    #[serde(default)]
    pub mode: StopMode,
    /// `next_cursor` of the page before, with the same filter and mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// One page of a count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopsCounted {
    /// Tasks of this page that a stop would stop.
    pub tasks: u64,
    /// Tasks of this page that match and that the caller may not stop.
    #[serde(default)]
    pub refused: Vec<StopRefused>,
    /// The server's time. As `created_before` of the stop it leaves out what came later; as
    /// `as_of`, what was held later.
    pub now: String,
    /// Cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Body of a stop of many tasks. One call stops a page of them; it is repeated with
/// `next_cursor` until there is none. Broken off anywhere, it can be begun anew: what was
/// stopped is skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopManyRequest {
    /// Which tasks.
    pub filter: StopFilter,
    /// How.
    #[serde(default)]
    pub mode: StopMode,
    /// Why, for the history of each; at most [`crate::limits::NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many tasks the caller has counted and means: over all pages no more are stopped.
    pub expected: u64,
    /// `next_cursor` of the page before, with all else as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// What one page of a stop came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopsDone {
    /// Tasks that this call has stopped.
    pub stopped: u64,
    /// Tasks that match and had been stopped before.
    pub already: u64,
    /// Tasks that match and were not stopped.
    #[serde(default)]
    pub refused: Vec<StopRefused>,
    /// Cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A task that is not stopped, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopRefused {
    /// The task's id.
    pub id: String,
    /// Why.
    pub why: String,
}

/// Body of a stop of one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopAttemptRequest {
    /// Why, for the history; at most [`crate::limits::NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer to a stop of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptStopped {
    /// The task's id.
    pub task: String,
    /// The step.
    pub step: String,
    /// The attempt that was named.
    pub attempt: u32,
    /// True if this call ended it; false if it was over already.
    pub stopped: bool,
    /// Where the step stands now.
    pub state: StepState,
}
