//! Tasks: submitting, reading, listing, stopping.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::holds::HoldView;
use crate::is_false;
use crate::limits::{LABEL_FILTERS_MAX, PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX};
use crate::problem::Fault;
use crate::steps::WaitingFor;

/// Body of a submission, over HTTP and AMQP.
///
/// A body without a `plan` key is the plan itself: `SubmitRequest` reads both forms and writes
/// the long one. (A plan has no field of that name.)
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct SubmitRequest {
    /// The plan; its JSON Schema is at [`crate::paths::PLAN_SCHEMA`].
    pub plan: Value,
    /// Folder of the plan's file, absolute, for `${{ plan.dir }}`; set by the client, accepted
    /// by an api on a loopback address alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan_dir: Option<String>,
}

impl<'de> Deserialize<'de> for SubmitRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut body = Map::<String, Value>::deserialize(deserializer)?;
        let Some(plan) = body.remove("plan") else {
            return Ok(Self { plan: Value::Object(body), plan_dir: None });
        };
        let plan_dir = match body.remove("plan_dir") {
            None | Some(Value::Null) => None,
            Some(Value::String(dir)) => Some(dir),
            Some(_) => return Err(D::Error::custom("`plan_dir` is not a string")),
        };
        match body.keys().next() {
            Some(key) => Err(D::Error::unknown_field(key, &["plan", "plan_dir"])),
            None => Ok(Self { plan, plan_dir }),
        }
    }
}

/// Answer to a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The task's id; the same for every submission with the same principal, key and body.
    pub id: String,
    /// Whether this submission made the task (201) or found it (200).
    pub created: bool,
    /// The task's state now.
    pub state: TaskState,
    /// Path of the task on this api.
    pub url: String,
}

/// Where a task stands.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Accepted; no step has started.
    Queued,
    /// A step is ready or running.
    Running,
    /// Every open branch waits for something that ends by itself or by what it waits for.
    Waiting,
    /// An open branch needs a person.
    Blocked,
    /// Stopped; running attempts, undos and `finally` steps are ending.
    Cancelling,
    /// Stopped for good.
    Cancelled,
    /// All is done and checked.
    Completed,
    /// Failed for good.
    Failed,
}

impl TaskState {
    /// Every state.
    pub const ALL: &[Self] = &[
        Self::Queued,
        Self::Running,
        Self::Waiting,
        Self::Blocked,
        Self::Cancelling,
        Self::Cancelled,
        Self::Completed,
        Self::Failed,
    ];

    /// Says whether nothing will change any more.
    pub const fn is_ended(self) -> bool {
        match self {
            Self::Cancelled | Self::Completed | Self::Failed => true,
            Self::Queued | Self::Running | Self::Waiting | Self::Blocked | Self::Cancelling => {
                false
            }
        }
    }

    /// Gives the state as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

impl std::fmt::Display for TaskState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One task as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// The task's id, given by the server.
    pub id: String,
    /// What the task is for; from the plan.
    pub kind: String,
    /// The goal in a sentence; from the plan.
    pub goal: String,
    /// Where it stands.
    pub state: TaskState,
    /// Whether a running attempt's heartbeat is overdue; shown beside `running`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stalled: bool,
    /// Why its next ready step does not start; present when steps are ready, none runs, and
    /// something is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// The principal who owns it now; at first from the plan, by default who submitted it.
    pub owner: String,
    /// Who may act on it besides the owner; from the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<String>,
    /// Who decides its approvals; from the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvers: Vec<String>,
    /// Who may see it; from the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub viewers: Vec<String>,
    /// Labels to find it by; from the plan.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// When it was accepted; by the store's clock.
    pub created_at: String,
    /// When its last event happened.
    pub changed_at: String,
    /// When it was completed, cancelled or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// How many steps stand where, `finally` steps included.
    pub steps: StepCounts,
    /// Attempts started so far, over all steps.
    pub attempts: u64,
    /// What the attempts cost, as handlers reported it, in micro-dollars.
    pub cost_usd_micros: u64,
    /// Every open hold, the task's own first.
    #[serde(default)]
    pub holds: Vec<HoldView>,
    /// When the plan's deadline ends; absent without one, and once it is decided how the task ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// The last named checkpoint passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// The pause, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseView>,
    /// The stop, once one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopView>,
    /// Why it failed; present when the state is `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureView>,
}

/// How many steps stand where; the states add up to `total`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepCounts {
    /// All steps of the task so far, added ones included.
    pub total: u64,
    /// Steps that wait for others.
    #[serde(default)]
    pub pending: u64,
    /// Steps that wait for a worker.
    #[serde(default)]
    pub ready: u64,
    /// Steps with a claimed attempt.
    #[serde(default)]
    pub running: u64,
    /// Steps that wait for their next attempt.
    #[serde(default)]
    pub retrying: u64,
    /// Steps with an open hold.
    #[serde(default)]
    pub held: u64,
    /// Steps done.
    #[serde(default)]
    pub succeeded: u64,
    /// Steps failed for good.
    #[serde(default)]
    pub failed: u64,
    /// Steps left out.
    #[serde(default)]
    pub skipped: u64,
    /// Steps ended by a stop.
    #[serde(default)]
    pub cancelled: u64,
}

/// Why a step's attempt, a step or a task failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    /// The step that failed; in a step's own view absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The class: `retryable`, `permanent`, `rate_limited`, `timeout`, `cancelled`, `lost`,
    /// `rejected`, or one that a later version adds.
    pub class: String,
    /// What the handler or the engine said, without control characters.
    pub message: String,
    /// When.
    pub at: String,
}

/// A stop that was asked for; written once, never taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopView {
    /// What happens to running attempts and to what has landed: `drain`, `halt`, `undo`, or a
    /// mode that a later version adds.
    pub mode: String,
    /// Why, in the words of who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The principal who asked.
    pub by: String,
    /// When.
    pub at: String,
}

/// Body of a stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// What happens to running attempts and to what has landed; by default `halt`.
    #[serde(default)]
    pub mode: StopMode,
    /// Why, for the history; at most [`crate::limits::NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The digest of the stop plan that it is to follow, whole or at least its first 8 digits;
    /// if the task's plan is another by now, the stop is refused with `plan_moved`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What happens at a stop to running attempts and to what has landed. Each is stronger than the
/// one before it; a stronger one that comes while attempts still run takes its place.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// Nothing starts; running attempts may finish, and their results count.
    Drain,
    /// Nothing starts and nothing new is sent; running attempts are told to end.
    #[default]
    Halt,
    /// As `halt`; then what has landed is undone, the last first.
    Undo,
}

impl StopMode {
    /// All modes, the mildest first.
    pub const ALL: [Self; 3] = [Self::Drain, Self::Halt, Self::Undo];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Halt => "halt",
            Self::Undo => "undo",
        }
    }

    /// Reads the word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

/// Answer to a stop. A second stop is answered like the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stopped {
    /// The task's id.
    pub id: String,
    /// Its state now: `cancelling` or `cancelled`.
    pub state: TaskState,
    /// The stop that holds: the first one, whoever asked again.
    pub stop: StopView,
}

/// Body of a pause, and of what ends it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Why, for the history; at most [`crate::limits::NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer to a pause, and to what ends it. Twice is once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Paused {
    /// The task's id.
    pub id: String,
    /// Its state now.
    pub state: TaskState,
    /// The pause that holds; absent once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseView>,
}

/// A pause: nothing new starts, and the task's clocks stand still.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PauseView {
    /// Since when.
    pub since: String,
    /// Whether no attempt runs any more.
    pub drained: bool,
}

/// Body of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandOverRequest {
    /// The principal who is to own the task, such as `user:ben` or `group:finance`.
    pub to: String,
    /// Why, for the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer to a hand-over. A second one to the same owner is answered like the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HandedOver {
    /// The task's id.
    pub id: String,
    /// Who owns it now.
    pub owner: String,
    /// Its state.
    pub state: TaskState,
}

/// Filters of a list of tasks, as query parameters. A task must match all of them.
///
/// `label` may be repeated, which `serde` does not read from a query: use
/// [`TaskQuery::from_pairs`] and [`TaskQuery::to_pairs`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskQuery {
    /// In this state.
    pub state: Option<TaskState>,
    /// Of this kind.
    pub kind: Option<String>,
    /// Of this owner, such as `user:ana`.
    pub owner: Option<String>,
    /// With all of these labels; `label=team=tools` in the query.
    pub labels: Vec<(String, String)>,
    /// With an open hold: `any`, or one of this reason. Then the longest wait comes first.
    pub waiting: Option<String>,
    /// With an open hold of at least this age, in milliseconds; without `waiting`, of any reason.
    pub older_ms: Option<u64>,
    /// With `waiting` or `older_ms`: held at this time already, from which ages count back
    /// (RFC 3339, any offset); the server's time if absent.
    pub as_of: Option<String>,
    /// Accepted at or after this time (RFC 3339, any offset).
    pub created_after: Option<String>,
    /// Accepted before this time.
    pub created_before: Option<String>,
    /// Tasks a page, 1 to [`PAGE_LIMIT_MAX`]; by default [`PAGE_LIMIT_DEFAULT`].
    pub limit: Option<u32>,
    /// `next_cursor` of the page before, with the same filters.
    pub cursor: Option<String>,
}

impl TaskQuery {
    /// Reads the decoded parameters of a query; reports every fault.
    pub fn from_pairs<K, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Result<Self, Vec<Fault>>
    where
        K: AsRef<str>,
        V: Into<String>,
    {
        let mut query = Self::default();
        let mut faults = Vec::new();
        for (name, value) in pairs {
            if let Err(message) = query.take(name.as_ref(), value.into()) {
                faults.push(Fault { pointer: format!("?{}", name.as_ref()), message });
            }
        }
        if faults.is_empty() { Ok(query) } else { Err(faults) }
    }

    fn take(&mut self, name: &str, value: String) -> Result<(), String> {
        match name {
            "state" => {
                let state = TaskState::ALL.iter().find(|state| state.as_str() == value);
                let state = *state.ok_or("not a state of a task")?;
                once(&mut self.state, state)
            }
            "kind" => once(&mut self.kind, value),
            "owner" => once(&mut self.owner, value),
            "label" => {
                let (key, value) = value.split_once('=').ok_or("expected `key=value`")?;
                if self.labels.len() == LABEL_FILTERS_MAX {
                    return Err(format!("more than {LABEL_FILTERS_MAX} labels"));
                }
                self.labels.push((key.to_owned(), value.to_owned()));
                Ok(())
            }
            "waiting" => once(&mut self.waiting, value),
            "older_ms" => {
                let older = value.parse().map_err(|_| "expected whole milliseconds")?;
                once(&mut self.older_ms, older)
            }
            "as_of" => once(&mut self.as_of, value),
            "created_after" => once(&mut self.created_after, value),
            "created_before" => once(&mut self.created_before, value),
            "limit" => {
                let limit = value.parse().ok().filter(|n| (1..=PAGE_LIMIT_MAX).contains(n));
                let limit = limit.ok_or(format!("expected 1 to {PAGE_LIMIT_MAX}"))?;
                once(&mut self.limit, limit)
            }
            "cursor" => once(&mut self.cursor, value),
            _ => Err("unknown parameter".to_owned()),
        }
    }

    /// Writes the parameters; the caller encodes them.
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = Vec::new();
        let mut add = |name, value: Option<String>| pairs.extend(value.map(|value| (name, value)));
        add("state", self.state.map(|state| state.as_str().to_owned()));
        add("kind", self.kind.clone());
        add("owner", self.owner.clone());
        for (key, value) in &self.labels {
            add("label", Some(format!("{key}={value}")));
        }
        add("waiting", self.waiting.clone());
        add("older_ms", self.older_ms.map(|older| older.to_string()));
        add("as_of", self.as_of.clone());
        add("created_after", self.created_after.clone());
        add("created_before", self.created_before.clone());
        add("limit", self.limit.map(|limit| limit.to_string()));
        add("cursor", self.cursor.clone());
        pairs
    }

    /// True if tasks are looked for by their open holds.
    pub fn by_holds(&self) -> bool {
        self.waiting.is_some() || self.older_ms.is_some()
    }

    /// Gives the tasks a page.
    pub fn page_limit(&self) -> u32 {
        self.limit.unwrap_or(PAGE_LIMIT_DEFAULT)
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("given more than once".to_owned()),
    }
}

/// One page of tasks, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskPage {
    /// The tasks that the principal may see.
    pub tasks: Vec<TaskView>,
    /// Cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_is_a_plan_or_holds_one() {
        let bare: SubmitRequest =
            serde_json::from_value(json!({"kind": "k", "steps": []})).unwrap();
        assert_eq!(bare.plan["kind"], "k");
        let body = json!({"plan": {"kind": "k"}, "plan_dir": "/p"});
        let long: SubmitRequest = serde_json::from_value(body.clone()).unwrap();
        assert_eq!(long.plan_dir.as_deref(), Some("/p"));
        assert_eq!(serde_json::to_value(&long).unwrap(), body);
    }

    #[test]
    fn a_body_with_a_plan_and_more_is_refused() {
        for body in [json!({"plan": {}, "x": 1}), json!({"plan": {}, "plan_dir": 1}), json!([])] {
            assert!(serde_json::from_value::<SubmitRequest>(body.clone()).is_err(), "{body}");
        }
    }

    #[test]
    fn a_query_reads_what_it_wrote() {
        let query = TaskQuery {
            state: Some(TaskState::Blocked),
            labels: vec![("team".into(), "a=b".into()), ("x".into(), String::new())],
            waiting: Some("failures".into()),
            older_ms: Some(60_000),
            as_of: Some("2026-11-29T16:20:00Z".into()),
            limit: Some(200),
            ..TaskQuery::default()
        };
        assert_eq!(TaskQuery::from_pairs(query.to_pairs()), Ok(query));
    }

    #[test]
    fn a_query_reports_every_fault() {
        let pairs = [("limit", "201"), ("state", "done"), ("label", "x"), ("a", ""), ("kind", "k")];
        let faults = TaskQuery::from_pairs(pairs).unwrap_err();
        let places: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(places, ["?limit", "?state", "?label", "?a"]);
    }

    #[test]
    fn states_are_written_as_they_are_named() {
        for state in TaskState::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
