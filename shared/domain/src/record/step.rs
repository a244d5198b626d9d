//! The state of a step.

use serde::{Deserialize, Serialize};

use super::{Gate, is_one, is_zero, is_zero_u64, one};
use crate::hold::Hold;
use crate::ids::{Principal, Queue, WorkerId};
use crate::outcome::FailureClass;
use crate::time::{Span, Time};

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
        hold: Box<Hold>,
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
        /// What kind of failure settled it: that of its last attempt, unless its time was over
        /// without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<FailureClass>,
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

/// How the last ended attempt failed, or why the step failed before any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastFailure {
    /// Its class.
    pub class: FailureClass,
    /// Its text, cut to a limit.
    pub message: String,
    /// The attempt's number; of a step that failed before any, 1.
    pub attempt: u32,
    /// When.
    pub at: Time,
}

/// The last ended attempt of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastAttempt {
    /// Who ran it.
    pub worker: WorkerId,
    /// When it started.
    pub started_at: Time,
    /// When it ended.
    pub ended_at: Time,
    /// Its number.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub attempt: u32,
    /// The epoch it ran in.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub epoch: u32,
    /// As whom it was claimed, if it was taken from its worker: who may still tell, once, what
    /// it came to and what it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_from: Option<Principal>,
    /// True once its worker told a result all the same, after the attempt was taken from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub late: bool,
    /// True if it ran when the task was stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_stop: bool,
}

/// How a step settled in an earlier round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settled {
    /// How.
    pub status: Status,
    /// In which round; the output of that round belongs to it.
    pub round: u32,
}

/// A step's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepState {
    /// What it is doing.
    #[serde(flatten)]
    pub status: Status,
    /// The round it is in; 1 until a `redo`.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub round: u32,
    /// How it last settled, while a later round has it open again: what steps outside of that
    /// round go by, since they were told of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Box<Settled>>,
    /// Needs not settled.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub remaining: u32,
    /// True if a need was skipped that its `if` does not name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub need_skipped: bool,
    /// The number that the next start gets or the running attempt has: the fence.
    #[serde(default = "one", skip_serializing_if = "is_one")]
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
    /// How long its task had been paused before it was first ready, in milliseconds: each pause
    /// since then gives it as much longer.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub paused_ms: u64,
    /// When its clock is looked at next, if that is later than it would strike: it struck while
    /// the task was paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look_at: Option<Time>,
    /// While it is ready: when a worker must have started it (`timeout.queue`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_by: Option<Time>,
    /// What a handler last said of its progress in this round, for the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
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
    /// True if it came to be open only after the task was stopped: it never starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_stop: bool,
    /// True if a resolution record exists for this round.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resolved: bool,
    /// How the last failed attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<LastFailure>>,
    /// The last ended attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastAttempt>,
    /// Attempts that have ended, over all rounds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// What its attempts have cost, in micro-dollars.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub cost_usd_micros: u64,
    /// Effects that it has recorded, by name.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub effects: u32,
    /// Of them, those that keep the task from completing: nobody knows what became of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub effects_owed: u32,
}

impl StepState {
    /// Makes the state of a step that nothing has happened to.
    pub fn pending(remaining: u32) -> Self {
        Self {
            status: Status::Pending,
            round: 1,
            earlier: None,
            remaining,
            need_skipped: false,
            attempt: 1,
            charged: 0,
            first_ready_at: None,
            give_up_at: None,
            paused_ms: 0,
            look_at: None,
            start_by: None,
            details: None,
            told: false,
            told_lists: 0,
            added_open: 0,
            telling: None,
            redone: 0,
            after_stop: false,
            resolved: false,
            failure: None,
            last: None,
            attempts: 0,
            cost_usd_micros: 0,
            effects: 0,
            effects_owed: 0,
        }
    }

    /// Gives when all its attempts must have ended, pauses of the task since then included.
    pub fn gives_up_at(&self, gate: &Gate, now: Time) -> Option<Time> {
        let still = gate.stood_still_ms(now).saturating_sub(self.paused_ms);
        self.give_up_at.map(|at| at.after(Span(still)))
    }

    /// Gives the status and the round that expressions read: those in which it last settled, or
    /// the present ones of a step that never has.
    pub fn seen(&self) -> (&Status, u32) {
        match &self.earlier {
            Some(earlier) => (&earlier.status, earlier.round),
            None => (&self.status, self.round),
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
