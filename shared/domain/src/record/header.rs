//! A task as a whole: its state, its counts, its gate.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{LIST_CHUNK, Part, is_one, is_zero, is_zero_u64, one};
use crate::hold::{Hold, HoldReason};
use crate::ids::Principal;
use crate::time::{Span, Time};

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

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Completed => TaskState::Completed.as_str(),
            Self::Failed => TaskState::Failed.as_str(),
            Self::Cancelled => TaskState::Cancelled.as_str(),
        })
    }
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
    /// What has landed is being undone, the last first, one after the other, in a new epoch.
    Undoing {
        /// When the allowance for it is spent; a person's answer begins it anew.
        until: Time,
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

impl Phase {
    /// True if steps of this part may start and move.
    pub fn wants(&self, part: Part) -> bool {
        match self {
            Self::Main => part == Part::Main,
            Self::Undoing { .. } => part == Part::Undo,
            Self::Finally { .. } => part == Part::Finally,
            Self::Closing { .. } | Self::Ended { .. } => false,
        }
    }

    /// True if the task's life has gone past this part: what has not settled of it never will.
    pub fn is_past(&self, part: Part) -> bool {
        match self {
            Self::Main => false,
            Self::Closing { .. } | Self::Undoing { .. } | Self::Finally { .. } => {
                part == Part::Main
            }
            Self::Ended { .. } => true,
        }
    }
}

/// The small record that every logged commit guards: counts, never lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The shown state; follows from the other fields (see `Header::shown`).
    pub state: TaskState,
    /// Where the task is in its life.
    #[serde(flatten)]
    pub phase: Phase,
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
    /// True while the task is paused: its deadline does not strike.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
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
    /// Effects that its steps have recorded, by name: without any, nobody looks for one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub effects: u32,
    /// Effects that have happened, each generation of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub effects_landed: u32,
    /// Effects that keep the task from completing: in flight, or nobody knows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub effects_owed: u32,
    /// Effects that have happened and whose step has an `undo`: each has a landing record,
    /// numbered from 1 in the order of landing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub landings: u32,
    /// The last landing whose undo has not begun; 0: there is none. The others follow it, each
    /// named by the one above it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undo_top: u32,
    /// Runs of an `undo` that were added.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undos: u32,
    /// Runs of an `undo` that are not settled: at most one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub undo_open: u32,
    /// The last round that `redo` has opened; the first is 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub round: u32,
    /// Chunks of step names there are.
    #[serde(default = "one", skip_serializing_if = "is_one")]
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
    /// When the deadline strikes; none once it has, or once it is decided that the task ends.
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
    pub fn new(at: Time, steps: u32, finally_open: u32, deadline_at: Option<Time>) -> Self {
        Self {
            state: TaskState::Queued,
            phase: Phase::Main,
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
            paused: false,
            succeeded: 0,
            failed: 0,
            skipped: 0,
            attempts: 0,
            cost_usd_micros: 0,
            effects: 0,
            effects_landed: 0,
            effects_owed: 0,
            landings: 0,
            undo_top: 0,
            undos: 0,
            undo_open: 0,
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
            | Phase::Undoing { .. }
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

/// What a stop does to attempts that run and to effects that have landed; a later one is
/// stronger.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// Nothing new starts; attempts that run may finish, and their results count.
    Drain,
    /// Nothing new starts, nothing more is sent; attempts that run are told to end.
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

impl fmt::Display for StopMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
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
    /// The strongest mode that was asked for while attempts still ran.
    #[serde(default)]
    pub mode: StopMode,
    /// Digest of the stop plan that it was first asked for by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_sha256: Option<String>,
    /// Holds of the task itself that ended with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lapsed: Vec<Hold>,
    /// The deadline that ended with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at: Option<Time>,
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
    /// When the last of them ended; queue times count from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
    /// While the task is paused: since when its clocks stand still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Time>,
    /// How long its clocks have stood still in pauses that are over, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub paused_ms: u64,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            epoch: 1,
            closed: false,
            stop: None,
            holds: Vec::new(),
            released_at: None,
            paused_at: None,
            paused_ms: 0,
        }
    }
}

impl Gate {
    /// Gives how long the task's clocks have stood still up to now, in milliseconds.
    pub fn stood_still_ms(&self, now: Time) -> u64 {
        let still = self.paused_at.map_or(0, |since| now.since(since).0);
        self.paused_ms.saturating_add(still)
    }

    /// Lets the clocks run on if no pause is left.
    pub fn thaw(&mut self, now: Time) -> Option<Span> {
        let paused = self.holds.iter().any(|hold| hold.reason == HoldReason::Paused);
        let still = self.paused_at.filter(|_| !paused).map(|since| now.since(since))?;
        self.paused_at = None;
        self.paused_ms = self.paused_ms.saturating_add(still.0);
        Some(still)
    }

    /// True if attempts of this part of the task are to end: what undoes and cleans up goes on.
    pub fn ends(&self, part: Part) -> bool {
        match part {
            Part::Main => self.ends_attempts(),
            Part::Undo | Part::Finally => false,
        }
    }

    /// True if attempts of the plan's steps are to end: unless a stop lets them finish.
    pub fn ends_attempts(&self) -> bool {
        let drains = self.stop.as_ref().is_some_and(|stop| stop.mode == StopMode::Drain);
        self.closed && !drains
    }
}
