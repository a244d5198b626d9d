//! The records of a task: what is stored, field by field, and under which name.
//!
//! Immutable records (meta, definitions, needs, dependents, resolutions, outputs) are written
//! once. The header, the gate and the step states change; a claim changes without the header.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hold::Hold;
use crate::ids::{Kind, Principal, Queue, StepId, WorkerId};
use crate::outcome::{Artifact, FailureClass};
use crate::plan::{Deadline, StepPlan};
use crate::time::{Span, Time};

/// The format of everything that is stored; a reader refuses a higher one by name.
pub const FORMAT: u32 = 1;
/// Dependents kept within a step's definition; more stand in chunks of this size, so that no
/// commit over them grows beyond a batch.
pub const DEPENDENTS_CHUNK: usize = 200;
/// Names a chunk of a list record holds: a load of one chunk stays one small record.
pub const LIST_CHUNK: usize = 400;

/// Names a record within its task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// State, counts and the log's envelope.
    Header,
    /// Epoch, stop and task-level holds; guarded by what may not start after them.
    Gate,
    /// What was submitted and never changes.
    Meta,
    /// One chunk of the step names in plan order.
    Order(u32),
    /// One chunk of the names of steps without needs, in plan order.
    Roots(u32),
    /// A step's definition.
    Definition(StepId),
    /// One chunk of a step's needs.
    Needs(StepId, u32),
    /// One chunk of a step's dependents beyond the first [`DEPENDENTS_CHUNK`].
    Dependents(StepId, u32),
    /// A step's state; absent means pending with all needs left.
    Step(StepId),
    /// Who runs the step now.
    Claim(StepId),
    /// What exactly runs, templates resolved, in one round.
    Resolution(StepId, u32),
    /// What the step gave, in one round.
    Output(StepId, u32),
    /// The artifacts of the step's last success.
    Artifacts(StepId),
    /// Why a round was opened, by round.
    Failure(u32),
    /// The log of one attempt.
    Log(StepId, u32),
}

impl Key {
    /// True for records that are never changed once written.
    pub fn is_immutable(&self) -> bool {
        match self {
            Self::Meta
            | Self::Order(_)
            | Self::Roots(_)
            | Self::Definition(_)
            | Self::Needs(..)
            | Self::Dependents(..)
            | Self::Resolution(..)
            | Self::Output(..)
            | Self::Failure(_) => true,
            Self::Header
            | Self::Gate
            | Self::Step(_)
            | Self::Claim(_)
            | Self::Artifacts(_)
            | Self::Log(..) => false,
        }
    }

    /// True for records that change without the header, and so guard themselves.
    pub fn is_loose(&self) -> bool {
        matches!(self, Self::Claim(_) | Self::Log(..))
    }

    /// Gives the field name within the task's scope. Step names have no `/`.
    pub fn field(&self) -> String {
        match self {
            Self::Header => "header".to_owned(),
            Self::Gate => "gate".to_owned(),
            Self::Meta => "meta".to_owned(),
            Self::Order(chunk) => format!("order/{chunk}"),
            Self::Roots(chunk) => format!("roots/{chunk}"),
            Self::Definition(step) => format!("def/{step}"),
            Self::Needs(step, chunk) => format!("needs/{step}/{chunk}"),
            Self::Dependents(step, chunk) => format!("deps/{step}/{chunk}"),
            Self::Step(step) => format!("step/{step}"),
            Self::Claim(step) => format!("claim/{step}"),
            Self::Resolution(step, round) => format!("with/{step}/{round}"),
            Self::Output(step, round) => format!("out/{step}/{round}"),
            Self::Artifacts(step) => format!("files/{step}"),
            Self::Failure(round) => format!("failure/{round}"),
            Self::Log(step, attempt) => format!("log/{step}/{attempt}"),
        }
    }
}

/// The states of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Accepted; no step has started.
    Queued,
    /// A step is ready, running or about to be tried again.
    Running,
    /// Everything open waits for what ends by itself.
    Waiting,
    /// A person is needed.
    Blocked,
    /// Told to stop; ends are being tied.
    Cancelling,
    /// Stopped. Final.
    Cancelled,
    /// Done and checked. Final.
    Completed,
    /// Given up. Final.
    Failed,
}

impl TaskState {
    /// All states, in the order of a task's life.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Running,
        Self::Waiting,
        Self::Blocked,
        Self::Cancelling,
        Self::Cancelled,
        Self::Completed,
        Self::Failed,
    ];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
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

    /// True once nothing can change any more.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Cancelled | Self::Completed | Self::Failed)
    }
}

impl fmt::Display for TaskState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All checks held.
    Completed,
    /// A step failed under `on_failure: fail`, or the deadline passed under `then: fail`.
    Failed,
    /// It was stopped.
    Cancelled,
}

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "phase")]
pub enum Phase {
    /// Its steps are being worked through.
    Main,
    /// It is ending: attempts that run are told to end; nothing of the plan's steps starts.
    Closing {
        /// How it will end.
        ending: Ending,
    },
    /// Its `finally` steps are being worked through, in a new epoch.
    Finally {
        /// How it will end.
        ending: Ending,
    },
    /// It has ended.
    Ended {
        /// How.
        ending: Ending,
        /// When.
        at: Time,
    },
}

/// The small record that every logged commit guards: counts, never lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The shown state; follows from the other fields (see `Header::shown`).
    pub state: TaskState,
    /// Where the task is in its life.
    #[serde(flatten)]
    pub phase: Phase,
    /// Digest of the submitted body, to tell a repeat from another request under one key.
    pub fingerprint: String,
    /// When it was accepted.
    pub created_at: Time,
    /// The time of the last logged event.
    pub changed_at: Time,
    /// True once a first attempt has started.
    #[serde(default)]
    pub started: bool,
    /// Plan steps, those added later included; `finally` steps not.
    pub steps: u32,
    /// Of `steps`, those not settled.
    pub open: u32,
    /// `finally` steps not settled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub finally_open: u32,
    /// Steps that are ready, running or to be tried again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub active: u32,
    /// Steps under a hold that ends by itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting: u32,
    /// Steps under a hold that needs a person.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub blocked: u32,
    /// Holds of the task itself (they stand in the gate).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub task_holds: u32,
    /// Settled steps by how they settled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub succeeded: u32,
    /// Steps that failed for good.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u32,
    /// Steps that were skipped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u32,
    /// Attempts that have ended.
    #[serde(default)]
    pub attempts: u64,
    /// What attempts have cost, in micro-dollars.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub cost_usd_micros: u64,
    /// The last round that `redo` has opened; the first is 1.
    pub round: u32,
    /// Chunks of step names there are.
    pub order_chunks: u32,
    /// The chunk of steps without needs to be opened next, while that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roots_from: Option<u32>,
    /// True while index entries of steps that never settled may be left after the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncleared: bool,
    /// The last named checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// When the deadline strikes, if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Time>,
    /// The step or reason that made the task fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// When everything about the task is removed; set at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_at: Option<Time>,
    /// The log's envelope: the number that the next event gets.
    pub next_event: u64,
    /// The log's envelope: the hash of the last event, in hex.
    pub hash: String,
}

impl Header {
    /// Makes the header of a task that was just accepted.
    pub fn new(
        at: Time,
        sha256: &str,
        steps: u32,
        finally_open: u32,
        deadline_at: Option<Time>,
    ) -> Self {
        Self {
            state: TaskState::Queued,
            phase: Phase::Main,
            fingerprint: sha256.to_owned(),
            created_at: at,
            changed_at: at,
            started: false,
            steps,
            open: steps,
            finally_open,
            active: 0,
            waiting: 0,
            blocked: 0,
            task_holds: 0,
            succeeded: 0,
            failed: 0,
            skipped: 0,
            attempts: 0,
            cost_usd_micros: 0,
            round: 1,
            order_chunks: (steps + finally_open).div_ceil(LIST_CHUNK as u32),
            roots_from: None,
            uncleared: false,
            checkpoint: None,
            deadline_at,
            failure: None,
            remove_at: None,
            next_event: 0,
            hash: crate::event::FIRST_HASH.to_owned(),
        }
    }

    /// Computes the shown state by precedence: ended, cancelling, a task-level hold, running,
    /// blocked, waiting, queued.
    pub fn shown(&self) -> TaskState {
        match self.phase {
            Phase::Ended { ending: Ending::Completed, .. } => return TaskState::Completed,
            Phase::Ended { ending: Ending::Failed, .. } => return TaskState::Failed,
            Phase::Ended { ending: Ending::Cancelled, .. } => return TaskState::Cancelled,
            Phase::Closing { ending: Ending::Cancelled }
            | Phase::Finally { ending: Ending::Cancelled } => return TaskState::Cancelling,
            Phase::Main | Phase::Closing { .. } | Phase::Finally { .. } => {}
        }
        if self.task_holds > 0 {
            TaskState::Blocked
        } else if !self.started && self.waiting == 0 && self.blocked == 0 {
            TaskState::Queued
        } else if self.active > 0 {
            TaskState::Running
        } else if self.blocked > 0 {
            TaskState::Blocked
        } else if self.waiting > 0 {
            TaskState::Waiting
        } else {
            TaskState::Running
        }
    }
}

/// A stop, once it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Who asked; the system when the deadline did.
    pub by: Principal,
    /// When.
    pub at: Time,
    /// Why, in the asker's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What claims and births guard; ordinary progress never writes it. Absent: epoch 1, open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// The fencing number of the whole task.
    pub epoch: u32,
    /// True once the plan's steps may not start any more (a stop, a failure, an end).
    #[serde(default)]
    pub closed: bool,
    /// The stop, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Task-level holds; while there is one, nothing starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Hold>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { epoch: 1, closed: false, stop: None, holds: Vec::new() }
    }
}

/// What was submitted and never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// What the task is for.
    pub kind: Kind,
    /// The goal in the author's words.
    #[serde(default)]
    pub goal: String,
    /// Values that templates read as `input`.
    #[serde(default)]
    pub input: Value,
    /// Who owns the task.
    pub owner: Principal,
    /// Who submitted it.
    pub submitted_by: Principal,
    /// Who may see it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub viewers: Vec<Principal>,
    /// Who may act on it besides the owner.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<Principal>,
    /// Names and values to filter by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The key it was submitted under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// When it was accepted; the same as in the header.
    pub created_at: Time,
    /// The plan file's folder, for plans of the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_dir: Option<String>,
    /// The condition of completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_when: Option<String>,
    /// Artifacts that must exist at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<String>,
    /// The deadline as submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// How long everything is kept after the end.
    pub retention: Span,
    /// Names of the `finally` steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finally: Vec<StepId>,
    /// W3C trace context of the submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A step that waits for another, as the other's definition names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependent {
    /// The step that waits.
    pub step: StepId,
    /// How many needs it has in all: what is left when it has no state record yet.
    pub needs: u32,
    /// True if its `if` names this step, so that a skip here does not skip it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tolerant: bool,
}

/// A step's definition; immutable. The needs stand in records of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// The step as planned; its `needs` are left empty here.
    #[serde(flatten)]
    pub plan: StepPlan,
    /// How many needs it has.
    #[serde(default)]
    pub needs_count: u32,
    /// The first [`DEPENDENTS_CHUNK`] dependents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependents: Vec<Dependent>,
    /// How many chunks of further dependents there are.
    #[serde(default)]
    pub dependents_chunks: u32,
    /// True for `finally` steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finally: bool,
    /// The step whose outcome added this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_by: Option<StepId>,
    /// With `redo`: each step of a new round and how many of its needs belong to the round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redo: Vec<(StepId, u32)>,
    /// True if `with` or `if` must be evaluated when the step becomes ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub templated: bool,
}

/// What a step is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum Status {
    /// Its needs are not settled, or it is about to be made ready.
    Pending,
    /// A worker may claim it, or has.
    Ready {
        /// Since when.
        since: Time,
        /// Where.
        queue: Queue,
    },
    /// The last attempt failed; the next may start at `at`.
    Retrying {
        /// When it becomes ready again.
        at: Time,
    },
    /// It does not move for a reason.
    Held {
        /// Why, and what ends it.
        hold: Hold,
    },
    /// Done.
    Succeeded {
        /// When.
        at: Time,
    },
    /// Failed for good, and settled (`on_failure: continue`, or the task has failed).
    Failed {
        /// When.
        at: Time,
    },
    /// Not run.
    Skipped {
        /// When.
        at: Time,
        /// Why.
        reason: SkipReason,
    },
}

/// Why a step was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Its `if` was false.
    Condition,
    /// A step that it needs was skipped.
    Need,
    /// A person said so.
    Answer,
}

/// How the last ended attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// Its class.
    pub class: FailureClass,
    /// Its text, cut to a limit.
    pub message: String,
    /// The attempt's number.
    pub attempt: u32,
    /// When.
    pub at: Time,
}

/// A step's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepState {
    /// What it is doing.
    #[serde(flatten)]
    pub status: Status,
    /// The round it is in; 1 until a `redo`.
    pub round: u32,
    /// Needs not settled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remaining: u32,
    /// True if a need was skipped that its `if` does not name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub need_skipped: bool,
    /// The number that the next start gets or the running attempt has: the fence.
    pub attempt: u32,
    /// Charged attempts that have ended in this round.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub charged: u32,
    /// When it was first ready in this round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ready_at: Option<Time>,
    /// When all its attempts must have ended (`timeout.total`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub give_up_at: Option<Time>,
    /// True once its dependents outside a redone round have been told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub told: bool,
    /// Lists of dependents (the definition's own, then chunk by chunk) that were told at least
    /// once; in a later round they are told again only where they take part in it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub told_lists: u32,
    /// Steps it has added that are not settled; its dependents wait for them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub added_open: u32,
    /// The chunk of dependents to be told next, while that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telling: Option<u32>,
    /// Rounds that this step's failures have opened.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redone: u32,
    /// True if a resolution record exists for this round.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resolved: bool,
    /// How the last failed attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<LastFailure>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_zero_u64(number: &u64) -> bool {
    *number == 0
}

impl StepState {
    /// Makes the state of a step that nothing has happened to.
    pub fn pending(remaining: u32) -> Self {
        Self {
            status: Status::Pending,
            round: 1,
            remaining,
            need_skipped: false,
            attempt: 1,
            charged: 0,
            first_ready_at: None,
            give_up_at: None,
            told: false,
            told_lists: 0,
            added_open: 0,
            telling: None,
            redone: 0,
            resolved: false,
            failure: None,
        }
    }

    /// True while its dependents still wait for it: it runs, or telling them is not done.
    pub fn owes(&self) -> bool {
        !self.is_settled() || self.added_open > 0 || self.telling.is_some()
    }

    /// True once the step will not run again in this round.
    pub fn is_settled(&self) -> bool {
        match self.status {
            Status::Succeeded { .. } | Status::Failed { .. } | Status::Skipped { .. } => true,
            Status::Pending
            | Status::Ready { .. }
            | Status::Retrying { .. }
            | Status::Held { .. } => false,
        }
    }
}

/// A worker's hold on an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Who runs it.
    pub worker: WorkerId,
    /// As whom the worker came: itself, or the token of an outside worker.
    pub principal: Principal,
    /// The attempt's number.
    pub attempt: u32,
    /// The epoch it started in.
    pub epoch: u32,
    /// When it started.
    pub started_at: Time,
    /// Dead unless renewed by then.
    pub expires_at: Time,
    /// When the attempt must have ended.
    pub ends_at: Time,
    /// How long a renewal lasts.
    pub length: Span,
    /// What the handler last said of its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

/// A value that is kept inline or in the blobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// The value itself.
    Inline(Value),
    /// A reference to the blobs.
    Blob {
        /// The blob's name.
        name: String,
        /// Its size.
        bytes: u64,
        /// SHA-256 of its content, in hex.
        sha256: String,
    },
}

/// Why a round was opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundFailure {
    /// The step that failed.
    pub step: StepId,
    /// The failure's class.
    pub class: FailureClass,
    /// Its text.
    pub message: String,
    /// What the failing attempt gave.
    #[serde(default)]
    pub output: Value,
    /// The round that this opened.
    pub round: u32,
    /// The steps of the round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepId>,
}

/// What an attempt wrote: the head and the tail, the rest as a blob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptLog {
    /// The first bytes.
    pub head: String,
    /// The last bytes, if they are not in the head.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
    /// Bytes between head and tail that are not here.
    #[serde(default)]
    pub omitted: u64,
    /// The whole log, if it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// True once the attempt has ended.
    #[serde(default)]
    pub ended: bool,
}

/// A record of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// See [`Header`].
    Header(Header),
    /// See [`Gate`].
    Gate(Gate),
    /// See [`Meta`].
    Meta(Box<Meta>),
    /// Names of steps.
    Names(Vec<StepId>),
    /// See [`Definition`].
    Definition(Box<Definition>),
    /// See [`Dependent`].
    Dependents(Vec<Dependent>),
    /// See [`StepState`].
    Step(StepState),
    /// See [`Claim`].
    Claim(Claim),
    /// Resolved input.
    Value(Value),
    /// See [`Payload`].
    Payload(Payload),
    /// See [`Artifact`].
    Artifacts(Vec<Artifact>),
    /// See [`RoundFailure`].
    Failure(RoundFailure),
    /// See [`AttemptLog`].
    Log(AttemptLog),
}

/// Says why stored bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A later version of this program wrote it.
    #[error("read record `{field}`: its format is {found}, this program knows up to {FORMAT}")]
    Newer {
        /// The record's field name.
        field: String,
        /// The format found.
        found: u32,
    },
    /// The bytes are not what this program writes.
    #[error("read record `{field}`: {reason}")]
    Malformed {
        /// The record's field name.
        field: String,
        /// What is wrong.
        reason: String,
    },
}

impl Record {
    /// Encodes as the format's number, a space, and JSON.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = format!("{FORMAT} ").into_bytes();
        let out = &mut bytes;
        let done = match self {
            Self::Header(record) => serde_json::to_writer(out, record),
            Self::Gate(record) => serde_json::to_writer(out, record),
            Self::Meta(record) => serde_json::to_writer(out, record),
            Self::Names(record) => serde_json::to_writer(out, record),
            Self::Definition(record) => serde_json::to_writer(out, record),
            Self::Dependents(record) => serde_json::to_writer(out, record),
            Self::Step(record) => serde_json::to_writer(out, record),
            Self::Claim(record) => serde_json::to_writer(out, record),
            Self::Value(record) => serde_json::to_writer(out, record),
            Self::Payload(record) => serde_json::to_writer(out, record),
            Self::Artifacts(record) => serde_json::to_writer(out, record),
            Self::Failure(record) => serde_json::to_writer(out, record),
            Self::Log(record) => serde_json::to_writer(out, record),
        };
        done.expect("records hold only what JSON can carry");
        bytes
    }

    /// Decodes what [`Record::encode`] wrote under `key`.
    pub fn decode(key: &Key, bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = |reason: String| DecodeError::Malformed { field: key.field(), reason };
        let space = bytes.iter().position(|byte| *byte == b' ');
        let (format, json) = bytes.split_at(space.unwrap_or(0));
        let found: u32 = std::str::from_utf8(format)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| malformed("it does not start with its format's number".to_owned()))?;
        if found > FORMAT {
            return Err(DecodeError::Newer { field: key.field(), found });
        }
        let decoded = match key {
            Key::Header => serde_json::from_slice(json).map(Self::Header),
            Key::Gate => serde_json::from_slice(json).map(Self::Gate),
            Key::Meta => serde_json::from_slice(json).map(Self::Meta),
            Key::Order(_) | Key::Roots(_) | Key::Needs(..) => {
                serde_json::from_slice(json).map(Self::Names)
            }
            Key::Definition(_) => serde_json::from_slice(json).map(Self::Definition),
            Key::Dependents(..) => serde_json::from_slice(json).map(Self::Dependents),
            Key::Step(_) => serde_json::from_slice(json).map(Self::Step),
            Key::Claim(_) => serde_json::from_slice(json).map(Self::Claim),
            Key::Resolution(..) => serde_json::from_slice(json).map(Self::Value),
            Key::Output(..) => serde_json::from_slice(json).map(Self::Payload),
            Key::Artifacts(_) => serde_json::from_slice(json).map(Self::Artifacts),
            Key::Failure(_) => serde_json::from_slice(json).map(Self::Failure),
            Key::Log(..) => serde_json::from_slice(json).map(Self::Log),
        };
        decoded.map_err(|error| malformed(error.to_string()))
    }
}
